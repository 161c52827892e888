"""The gateway's contract, the same for each lane: replies, usage, errors, retries, receipts."""

from __future__ import annotations

import asyncio
import json
import sqlite3
import threading
import time
from pathlib import Path
from typing import Any

import pytest

from bco_graph.errors import (
    AuthenticationFailed,
    BudgetExceeded,
    ConfigError,
    ContextOverflow,
    ModelCallError,
    RequestRejected,
    UpstreamUnavailable,
)
from bco_graph.protocols import Caller
from bco_graph.testing import Reply, ScriptedModelServer, ToolCall
from tests.gateway_room import JOB, Room, opened, says, text

LANES = pytest.mark.parametrize("lane", ["forward", "litellm"])


def by_lane(server: ScriptedModelServer, lane: str, **params: Any) -> dict[str, Any]:
    return server.deployment("m", model_info={"lane": lane}, **params)


# -- the contract of the lanes ---------------------------------------------------------------------------------


@LANES
def test_a_reply_with_text_tools_and_usage_comes_back_whole(lane: str, tmp_path: Path) -> None:
    usage = {"prompt_tokens": 1000, "completion_tokens": 7, "prompt_tokens_details": {"cached_tokens": 900}}
    reply = Reply("Größe", tool_calls=[ToolCall("look", {"x": 1}, id="c1")], usage=usage)
    with ScriptedModelServer({"m": [reply]}) as server, opened(tmp_path, by_lane(server, lane)) as room:
        answer = room.ask(says("hi"))
        (call,) = room.calls
    (choice,) = answer["choices"]
    assert choice["finish_reason"] == "tool_calls"
    assert choice["message"]["content"] == "Größe"
    assert choice["message"]["tool_calls"][0]["function"] == {"name": "look", "arguments": '{"x": 1}'}
    assert answer["usage"] == {**usage, "total_tokens": 1007}
    assert (call.status, call.attempts, call.cached) == ("ok", 1, False)
    assert (call.prompt_tokens, call.cached_tokens, call.completion_tokens) == (1000, 900, 7)
    assert json.loads(call.response) == answer
    assert json.loads(call.request) == {**says("hi"), "model": "openai/m"}


@LANES
@pytest.mark.parametrize(
    ("reply", "finish_reason"),
    [
        (Reply(None, finish_reason="length"), "length"),
        (Reply(shape="empty_choices"), "empty"),
        (Reply(shape="null_message"), "stop"),
    ],
)
def test_a_reply_without_text_is_an_answer_and_no_fault(
    lane: str, reply: Reply, finish_reason: str, tmp_path: Path
) -> None:
    with ScriptedModelServer({"m": [reply]}) as server, opened(tmp_path, by_lane(server, lane), retries=2) as room:
        answer = room.ask(says("hi"))
        assert len(server.requests) == 1
        assert [(call.status, call.prompt_tokens, call.completion_tokens) for call in room.calls] == [("ok", 10, 5)]
    assert answer["choices"][0]["message"] == {"role": "assistant", "content": None}
    assert answer["choices"][0]["finish_reason"] == finish_reason


FAULTS: list[tuple[Reply, type[ModelCallError], int]] = [
    (Reply("no", status=400), RequestRejected, 1),
    (Reply("no", status=401), AuthenticationFailed, 1),
    (Reply("no", status=402), AuthenticationFailed, 1),
    (Reply("no", status=403), AuthenticationFailed, 1),
    (Reply("no", status=404), RequestRejected, 1),
    (Reply("no", status=422), RequestRejected, 1),
    (Reply("too long", status=400, code="context_length_exceeded"), ContextOverflow, 1),
    (Reply("This model's maximum context length is 10 tokens", status=400), ContextOverflow, 1),
    (Reply("maximum context length of the queue", status=429), UpstreamUnavailable, 2),
    (Reply("no", status=408), UpstreamUnavailable, 2),
    (Reply("no", status=500), UpstreamUnavailable, 2),
    (Reply("no", status=503), UpstreamUnavailable, 2),
    (Reply(drop=True), UpstreamUnavailable, 2),
    (Reply(body=b"<html>gateway</html>"), UpstreamUnavailable, 2),
    (Reply(body=b'{"id": "x", "choi'), UpstreamUnavailable, 2),
    (Reply(body=b"[1]"), UpstreamUnavailable, 2),
]


@LANES
def test_each_fault_is_its_own_error_and_only_what_may_pass_is_retried(lane: str, tmp_path: Path) -> None:
    with ScriptedModelServer() as server, opened(tmp_path, by_lane(server, lane), retries=1) as room:
        for number, (reply, kind, attempts) in enumerate(FAULTS):
            server.script("m", [reply])
            before = len(server.requests)
            with pytest.raises(ModelCallError) as caught:
                room.ask(says(f"question {number}"))
            assert type(caught.value) is kind, (reply, caught.value)
            assert caught.value.attempts == attempts == len(server.requests) - before, reply
            call = room.calls[-1]
            assert (call.status, call.attempts, call.completion_tokens) == (kind.__name__, attempts, 0)
            if reply.status not in (200, 402, 403):
                assert caught.value.status == reply.status


@LANES
def test_the_body_that_could_not_be_used_is_kept(lane: str, tmp_path: Path) -> None:
    with (
        ScriptedModelServer({"m": [Reply(body=b'{"id": "x", "choi')]}) as server,
        opened(tmp_path, by_lane(server, lane)) as room,
    ):
        with pytest.raises(UpstreamUnavailable):
            room.ask(says("hi"))
        assert json.loads(room.calls[0].response)["raw"] == '{"id": "x", "choi'


@LANES
def test_retry_after_is_honoured_within_the_only_retry_layer_and_recorded(lane: str, tmp_path: Path) -> None:
    script: list[Reply | str] = [Reply(status=503, headers={"Retry-After": "0.4"}), Reply(status=503), "at last"]
    with ScriptedModelServer({"m": script}) as server, opened(tmp_path, by_lane(server, lane), retries=2) as room:
        assert text(room.ask(says("hi"))) == "at last"
        first, second, _ = (request.at for request in server.requests)
        assert second - first >= 0.4
        (call,) = room.calls
        assert (call.status, call.attempts) == ("ok", 3)
        assert [entry["status"] for entry in call.changes["retries"]] == [503, 503]
        assert call.changes["retries"][0]["waited_s"] == 0.4


@LANES
def test_an_endpoint_that_hangs_ends_at_the_time_limit(lane: str, tmp_path: Path) -> None:
    with (
        ScriptedModelServer({"m": [Reply(hang=True)]}) as server,
        opened(tmp_path, by_lane(server, lane), timeout_s=0.3) as room,
    ):
        started = time.monotonic()
        with pytest.raises(UpstreamUnavailable, match=r"timeout_s, 0\.3 s|[Tt]imed? ?out"):
            room.ask(says("hi"))
        assert time.monotonic() - started < 5


@LANES
def test_an_answer_that_speaks_of_faults_is_an_answer(lane: str, tmp_path: Path) -> None:
    told = "rate limit exceeded, status 429, maximum context length, timeout"
    with ScriptedModelServer({"m": [told]}) as server, opened(tmp_path, by_lane(server, lane)) as room:
        assert text(room.ask(says("hi"))) == told
        assert room.calls[0].status == "ok"


@LANES
def test_usage_that_the_endpoint_does_not_report_is_estimated_and_marked(lane: str, tmp_path: Path) -> None:
    with (
        ScriptedModelServer({"m": [Reply("a" * 400, usage=None)]}) as server,
        opened(tmp_path, by_lane(server, lane)) as room,
    ):
        answer = room.ask(says("b" * 400))
        (call,) = room.calls
    assert answer["usage"]["estimated"] is True
    assert (call.prompt_tokens, call.completion_tokens >= 100) == (100, True)
    assert "estimated" in call.changes["usage"]["sent"]


@LANES
def test_the_key_goes_upstream_and_nowhere_else(lane: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    key = "marker-3f9a7c51d2e8"
    monkeypatch.setenv("BCO_TEST_KEY", key)
    script = [Reply(f"bad key {key} at http://x/?key={key}", status=401), Reply(f"the key is {key}")]
    with (
        ScriptedModelServer({"m": script}) as server,
        opened(tmp_path, by_lane(server, lane, api_key="os.environ/BCO_TEST_KEY")) as room,
    ):
        with pytest.raises(AuthenticationFailed) as caught:
            room.ask(says("hi"))
        answer = room.ask(says(f"my environment: {key}", tools=None))
        assert key not in str(caught.value)
        assert key not in json.dumps(answer)
        assert server.requests[0].headers["Authorization"] == f"Bearer {key}"
    for file in tmp_path.rglob("*"):
        assert key.encode() not in file.read_bytes(), file


# -- the gateway itself ----------------------------------------------------------------------------------------


def test_it_serves_several_event_loops_and_threads_one_after_another_and_at_once(tmp_path: Path) -> None:
    with ScriptedModelServer({"m": ["ok"]}) as server, opened(tmp_path, server.deployment("m")) as room:
        for number in range(3):
            room.ask(says(f"loop {number}"))
        threads = [threading.Thread(target=room.ask, args=(says(f"thread {number}"),)) for number in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert len(room.calls) == len(server.requests) == 7


def test_it_starts_and_closes_again_and_a_closed_one_says_so(tmp_path: Path) -> None:
    with ScriptedModelServer({"m": ["ok"]}) as server, opened(tmp_path, server.deployment("m")) as room:
        room.gateway.start()
        room.ask(says("one"))
        socket = room.gateway.socket_path
        room.gateway.close()
        room.gateway.close()
        assert not socket.parent.exists()
        with pytest.raises(ConfigError, match="not running"):
            room.ask(says("two"))
        room.gateway.start()
        room.ask(says("two"))


def test_who_leaves_does_not_undo_the_call_it_is_still_paid_and_stored(tmp_path: Path) -> None:
    async def impatient(room: Room) -> None:
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(room.gateway.complete(JOB, says("hi")), 0.1)

    with (
        ScriptedModelServer({"m": [Reply("late", delay_s=0.4)]}) as server,
        opened(tmp_path, server.deployment("m", temperature=0)) as room,
    ):
        asyncio.run(impatient(room))
        room.gateway.close()
        assert [call.status for call in room.calls] == ["ok"]
        room.gateway.start()
        assert text(room.ask(says("hi"))) == "late"
        assert len(server.requests) == 1


def test_closing_cuts_off_what_does_not_end_and_records_it(tmp_path: Path) -> None:
    with ScriptedModelServer({"m": [Reply(hang=True)]}) as server, opened(tmp_path, server.deployment("m")) as room:
        errors: list[BaseException] = []

        def ask() -> None:
            try:
                room.ask(says("hi"))
            except UpstreamUnavailable as error:
                errors.append(error)

        thread = threading.Thread(target=ask)
        thread.start()
        while not server.requests:
            time.sleep(0.01)
        room.gateway.close(grace_s=0.1)
        thread.join(5)
        assert [str(error) for error in errors] == ["the gateway was closed while this call was under way"]
        assert [call.status for call in room.calls] == ["UpstreamUnavailable"]


def test_a_budget_refuses_before_the_call_also_many_at_once(tmp_path: Path) -> None:
    async def many(room: Room) -> list[Any]:
        asked = (room.gateway.complete(JOB, says(f"question {number}")) for number in range(8))
        return await asyncio.gather(*asked, return_exceptions=True)

    with ScriptedModelServer({"m": [Reply("ok", delay_s=0.05)]}) as server:
        with opened(tmp_path, server.deployment("m"), budget={"calls": 3}) as room:
            answers = asyncio.run(many(room))
            assert len(server.requests) == 3
            refused = [answer for answer in answers if isinstance(answer, BudgetExceeded)]
            assert [error.limit for error in refused] == ["calls"] * 5
            assert room.ledger.totals()["target"]["calls"] == 3
            assert sorted(call.status for call in room.calls) == ["BudgetExceeded"] * 5 + ["ok"] * 3
        with opened(tmp_path, server.deployment("m"), budget={"calls": 3}) as room, pytest.raises(BudgetExceeded):
            room.ask(says("after a restart"))
        assert len(server.requests) == 3


def test_a_call_whose_worst_case_would_pass_the_token_budget_is_not_made(tmp_path: Path) -> None:
    with ScriptedModelServer({"m": ["ok"]}) as server:
        with opened(tmp_path, server.deployment("m", max_tokens=500), budget={"tokens": 510}) as room:
            room.ask(says("short"))
            with pytest.raises(BudgetExceeded):
                room.ask(says("short too"))
        assert len(server.requests) == 1


def test_a_usd_budget_with_an_unknown_price_is_refused_at_start_and_kept_with_given_prices(tmp_path: Path) -> None:
    prices = {"input_cost_per_token": 0.001, "output_cost_per_token": 0.01}
    with ScriptedModelServer({"m": ["ok"]}) as server:
        with (
            pytest.raises(ConfigError, match="input_cost_per_token"),
            opened(tmp_path / "a", server.deployment("m"), budget={"usd": 1.0}),
        ):
            pass
        priced = server.deployment("m", model_info=prices)
        with opened(tmp_path / "b", priced, budget={"usd": 0.1}, roles={"proposer": "m"}) as room:
            room.ask(says("one"))
            room.ask(says("two"), Caller("proposer", step="propose"))
            with pytest.raises(BudgetExceeded) as caught:
                room.ask(says("three"))
            assert caught.value.limit == "usd"
            assert room.calls[0].usd == pytest.approx(10 * 0.001 + 5 * 0.01, abs=1e-12)
    assert len(server.requests) == 2


def test_a_prompt_that_cannot_fit_the_window_is_refused_unsent(tmp_path: Path) -> None:
    with (
        ScriptedModelServer({"m": ["ok"]}) as server,
        opened(tmp_path, server.deployment("m", model_info={"max_input_tokens": 100})) as room,
    ):
        room.ask(says("x" * 600))
        with pytest.raises(ContextOverflow, match="not sent"):
            room.ask(says("x" * 601))
        assert [(call.status, call.attempts) for call in room.calls] == [("ok", 1), ("ContextOverflow", 0)]
        assert room.ledger.totals()["target"]["calls"] == 1
    assert len(server.requests) == 1


def test_any_text_is_storable_lone_surrogates_and_infinities_included(tmp_path: Path) -> None:
    body = b'{"choices": [{"message": {"content": "a\\ud800b"}, "logprobs": {"x": [-Infinity]}}], "usage": {}}'
    with ScriptedModelServer({"m": [Reply(body=body)]}) as server, opened(tmp_path, server.deployment("m")) as room:
        answer = room.ask(says("q\udfff"))
        assert text(answer) == "a\ufffdb"
        assert answer["choices"][0]["logprobs"] == {"x": [None]}
        assert server.requests[0].body["messages"][0]["content"] == "q\ufffd"


def test_a_request_without_messages_or_with_a_senseless_length_is_rejected_and_recorded(tmp_path: Path) -> None:
    with ScriptedModelServer({"m": ["ok"]}) as server, opened(tmp_path, server.deployment("m")) as room:
        requests: list[dict[str, Any]] = [
            {},
            {"messages": []},
            {"messages": ["hi"]},
            says("hi", max_tokens="9"),
            says("hi", max_tokens=0),
        ]
        for request in requests:
            with pytest.raises(RequestRejected):
                room.ask(request)
        assert {call.status for call in room.calls} == {"RequestRejected"}
        assert server.requests == []


def test_the_receipt_is_written_before_the_answer_goes_back(tmp_path: Path) -> None:
    seen: list[int] = []
    with ScriptedModelServer({"m": ["ok"]}) as server, opened(tmp_path, server.deployment("m")) as room:
        room.ask(says("hi"))
        other = sqlite3.connect(room.receipts.path)
        seen = [other.execute("select count(*) from calls").fetchone()[0]]
        other.close()
    assert seen == [1]
