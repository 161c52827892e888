"""The response cache: what is the same request, what is stored, what a hit is."""

from __future__ import annotations

import asyncio
import hashlib
import itertools
import json
import sqlite3
import threading
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from bco_graph.errors import RequestRejected, RunUnreadable, UpstreamUnavailable
from bco_graph.gateway.cache import ResponseCache, cache_key, write_responses
from bco_graph.protocols import Caller
from bco_graph.receipts import dumps
from bco_graph.testing import Reply, ScriptedModelServer
from tests.gateway_room import JOB, Room, opened, says, text


def counting() -> Any:
    """A script whose every answer is another one."""
    numbers = itertools.count()
    return lambda _: f"answer {next(numbers)}"


def test_a_hit_equals_the_miss_in_content_and_usage_costs_nothing_and_survives_a_restart(tmp_path: Path) -> None:
    prices = {"input_cost_per_token": 0.001, "output_cost_per_token": 0.001}
    with ScriptedModelServer({"m": counting()}) as server:
        deployment = server.deployment("m", model_info=prices, temperature=0)
        with opened(tmp_path, deployment) as room:
            first = room.ask(says("hi"))
        with opened(tmp_path, deployment) as room:
            assert room.ask(says("hi"), replace(JOB, candidate="iter_002")) == first
            (miss,) = room.calls
            (hit,) = room.receipts.calls_of("iter_002", "t1", 0)
            totals = room.ledger.totals()["target"]
        assert len(server.requests) == 1
    assert (hit.response, hit.request, hit.key, hit.prompt_tokens) == (miss.response, miss.request, miss.key, 10)
    assert (hit.cached, hit.attempts, hit.usd, miss.cached) == (True, 0, 0.0, False)
    assert (totals["calls"], totals["cache_hits"], totals["prompt_tokens"]) == (1, 1, 10)
    assert totals["usd"] == pytest.approx(0.015)


def test_another_repeat_is_another_sample_and_a_second_run_finds_the_same_ones(tmp_path: Path) -> None:
    with ScriptedModelServer({"m": counting()}) as server:
        seen = []
        for _ in range(2):
            with opened(tmp_path, server.deployment("m", temperature=0)) as room:
                seen.append([text(room.ask(says("hi"), replace(JOB, repeat=n))) for n in range(5)])
        assert seen[0] == seen[1] == [f"answer {n}" for n in range(5)]
        assert len(server.requests) == 5


def test_each_asking_of_one_job_is_another_sample_unless_the_temperature_is_0(tmp_path: Path) -> None:
    with ScriptedModelServer({"m": counting()}) as server:
        for number, (temperature, different) in enumerate([(0.7, 3), (None, 3), (0, 1), (0.0, 1)]):
            params: dict[str, Any] = {} if temperature is None else {"temperature": temperature}
            with opened(tmp_path / str(number), server.deployment("m", **params)) as room:
                votes = [text(room.ask(says("vote"))) for _ in range(3)]
                others = [text(room.ask(says("vote"), replace(JOB, candidate="iter_002"))) for _ in range(3)]
            assert len(set(votes)) == different
            assert others == votes


def test_a_job_that_runs_again_finds_its_askings_after_a_restart_and_after_a_new_token(tmp_path: Path) -> None:
    with ScriptedModelServer({"m": counting()}) as server:
        with opened(tmp_path, server.deployment("m")) as room:
            votes = [text(room.ask(says("vote"))) for _ in range(2)]
            room.gateway.token(JOB)
            assert [text(room.ask(says("vote"))) for _ in range(2)] == votes
        with opened(tmp_path, server.deployment("m")) as room:
            assert [text(room.ask(says("vote"))) for _ in range(3)] == [*votes, "answer 2"]


def test_an_asking_that_failed_is_asked_again_as_the_same_one(tmp_path: Path) -> None:
    with (
        ScriptedModelServer({"m": [Reply(status=500), "good"]}) as server,
        opened(tmp_path, server.deployment("m")) as room,
    ):
        with pytest.raises(UpstreamUnavailable):
            room.ask(says("hi"))
        room.ask(says("hi"))
        assert room.calls[0].key == room.calls[1].key


def test_model_parameters_tools_and_endpoint_each_make_another_request(tmp_path: Path) -> None:
    tool = {"type": "function", "function": {"name": "look"}}
    with ScriptedModelServer({"m": counting(), "n": counting()}) as server, ScriptedModelServer({"m": ["o"]}) as other:
        variants: list[tuple[Any, dict[str, Any]]] = [
            (server.deployment("m", temperature=0), {}),
            (server.deployment("n", temperature=0), {}),
            (server.deployment("m", temperature=0.5), {}),
            (server.deployment("m", temperature=0, seed=1), {}),
            (server.deployment("m", temperature=0), {"tools": [tool]}),
            (server.deployment("m", temperature=0), {"tools": [tool], "tool_choice": "none"}),
            (server.deployment("m", temperature=0), {"stop": "x"}),
            (other.deployment("m", temperature=0), {}),
        ]
        keys = []
        for deployment, asked in variants:
            with opened(tmp_path, deployment) as room:
                room.ask(says("hi", **asked))
                keys.append(room.calls[-1].key)
                assert not room.calls[-1].cached
        assert len(set(keys)) == len(variants)
        with opened(tmp_path, server.deployment("m", temperature=0, api_key="another-key")) as room:
            room.ask(says("hi", temperature=1, model="m"))
            assert room.calls[-1].cached


def test_errors_are_never_stored(tmp_path: Path) -> None:
    with (
        ScriptedModelServer({"m": [Reply(status=500), Reply(status=400), "good"]}) as server,
        opened(tmp_path, server.deployment("m", temperature=0)) as room,
    ):
        for _ in range(2):
            with pytest.raises((UpstreamUnavailable, RequestRejected)):
                room.ask(says("hi"))
        assert text(room.ask(says("hi"))) == "good"


def test_without_the_cache_every_request_goes_upstream(tmp_path: Path) -> None:
    with (
        ScriptedModelServer({"m": counting()}) as server,
        opened(tmp_path, server.deployment("m", temperature=0), cache=False) as room,
    ):
        assert [text(room.ask(says("hi"))) for _ in range(2)] == ["answer 0", "answer 1"]


async def _all(room: Room, *callers: Caller) -> list[Any]:
    asked = (room.gateway.complete(caller, says("hi")) for caller in callers)
    return await asyncio.gather(*asked, return_exceptions=True)


def test_two_that_ask_the_same_at_once_share_one_call_upstream(tmp_path: Path) -> None:
    with ScriptedModelServer({"m": [Reply("one", delay_s=0.2)]}) as server:
        with opened(tmp_path, server.deployment("m", temperature=0)) as room:
            first, second = asyncio.run(_all(room, JOB, replace(JOB, task="t2")))
            assert first == second
            first["choices"].clear()
            assert text(second) == "one"
            assert sorted(
                call.cached for task in ("t1", "t2") for call in room.receipts.calls_of("iter_001", task, 0)
            ) == [
                False,
                True,
            ]
        assert len(server.requests) == 1


def test_who_shares_a_call_that_fails_gets_the_error_and_a_record_of_it(tmp_path: Path) -> None:
    with ScriptedModelServer({"m": [Reply(status=500, delay_s=0.2)]}) as server:
        with opened(tmp_path, server.deployment("m", temperature=0)) as room:
            errors = asyncio.run(_all(room, JOB, replace(JOB, task="t2")))
            assert [type(error) for error in errors] == [UpstreamUnavailable] * 2
            assert errors[0] is not errors[1]
            for task in ("t1", "t2"):
                assert [call.status for call in room.receipts.calls_of("iter_001", task, 0)] == ["UpstreamUnavailable"]
            assert room.ledger.totals()["target"]["calls"] == 1
        assert len(server.requests) == 1


def test_an_exported_cache_replays_a_run_offline_and_says_what_it_does_not_cover(tmp_path: Path) -> None:
    shipped = tmp_path / "shipped" / "responses.sqlite"
    shipped.parent.mkdir()
    with ScriptedModelServer({"m": counting()}) as server:
        deployment = server.deployment("m")
        with opened(tmp_path / "a", deployment) as room:
            told = [text(room.ask(says("vote"))) for _ in range(2)]
            assert write_responses(shipped, room.receipts.responses(("target",))) == 2
    shipped.chmod(0o400)
    shipped.parent.chmod(0o500)
    try:
        with opened(tmp_path / "b", deployment, extra_cache=shipped, offline=True) as room:
            assert [text(room.ask(says("vote"))) for _ in range(2)] == told
            with pytest.raises(RequestRejected, match=r"do not cover this request .*something else"):
                room.ask(says("something else"))
            assert room.calls[-1].status == "RequestRejected"
    finally:
        shipped.parent.chmod(0o700)
    assert [file.name for file in shipped.parent.iterdir()] == ["responses.sqlite"]


def test_an_extra_cache_is_asked_before_a_call_is_made_and_never_written(tmp_path: Path) -> None:
    shipped = tmp_path / "responses.sqlite"
    with ScriptedModelServer({"m": counting()}) as server:
        deployment = server.deployment("m", temperature=0)
        with opened(tmp_path / "a", deployment) as room:
            room.ask(says("one"))
            write_responses(shipped, room.receipts.responses(("target",)))
        before = shipped.read_bytes()
        with opened(tmp_path / "b", deployment, extra_cache=shipped) as room:
            assert [text(room.ask(says(word))) for word in ("one", "two")] == ["answer 0", "answer 1"]
            assert write_responses(tmp_path / "both.sqlite", room.receipts.responses(("target",))) == 2
        assert shipped.read_bytes() == before


def test_a_file_that_holds_no_responses_is_refused_and_left_as_it_is(tmp_path: Path) -> None:
    torn, other = tmp_path / "torn.sqlite", tmp_path / "other.sqlite"
    torn.write_bytes(b"not a database, and long enough to be looked at as one" * 40)
    sqlite3.connect(other).close()
    for file in (torn, other, tmp_path / "missing.sqlite"):
        with pytest.raises(RunUnreadable, match="recorded responses"):
            ResponseCache(tmp_path / "own.sqlite", extra=file)
    assert torn.read_bytes().startswith(b"not a database")
    assert not (tmp_path / "missing.sqlite").exists()


@pytest.mark.parametrize("asking", [0, 3])
def test_the_key_is_the_digest_of_what_decides_an_answer_as_one_json_text(asking: int) -> None:
    request = {"messages": [{"role": "user", "content": "é"}], "temperature": 1e-7}
    identity = {"model": "openai/m", "endpoint": "http://h/v1", "repeat": 2, "request": request}
    if asking:
        identity["asking"] = asking
    key = cache_key("openai/m", "http://h/v1", dumps(request), 2, asking)
    assert key == hashlib.sha256(dumps(identity).encode()).hexdigest()


def test_who_looks_up_does_not_wait_for_a_write(tmp_path: Path) -> None:
    cache, other = ResponseCache(tmp_path / "c.sqlite"), sqlite3.connect(tmp_path / "c.sqlite", isolation_level=None)
    cache.put([("k", "{}", "m")])
    other.execute("begin immediate")
    writer = threading.Thread(target=cache.put, args=([("l", "{}", "m")],))
    writer.start()
    assert cache.get("k") == "{}"
    other.execute("commit")
    writer.join()
    assert cache.get("l") == "{}"
    other.close()
    cache.close()


def test_the_cache_file_can_be_read_without_this_package(tmp_path: Path) -> None:
    with ScriptedModelServer({"m": ["plain"]}) as server, opened(tmp_path, server.deployment("m")) as room:
        room.ask(says("hi"))
        db = sqlite3.connect(tmp_path / "cache.sqlite")
        ((key, response, model),) = db.execute("select key, response, model from cache").fetchall()
        db.close()
        assert (len(key), model, room.calls[0].key) == (64, "openai/m", key)
        assert text(json.loads(response)) == "plain"
