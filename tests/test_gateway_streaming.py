"""Streamed requests: the same reply as events, the same receipt, on every lane and through both doors."""

from __future__ import annotations

import json
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from bco_graph.gateway import local
from bco_graph.gateway.prices import Price
from bco_graph.gateway.replies import usage_of
from bco_graph.protocols import Caller
from bco_graph.receipts import CallRecord
from bco_graph.testing import Reply, ScriptedModelServer, ToolCall
from tests.gateway_room import JOB, Room, connect, knock, opened, says

LANES = pytest.mark.parametrize("lane", ["forward", "litellm"])
DOORS = pytest.mark.parametrize("door", ["unix", "tcp"])
ASKED = {"stream": True, "stream_options": {"include_usage": True}}
CACHED = {"prompt_tokens": 1000, "completion_tokens": 7, "prompt_tokens_details": {"cached_tokens": 900}}
RATES = {"input_cost_per_token": 3e-6, "output_cost_per_token": 1.5e-5, "cache_read_input_token_cost": 3e-7}


def streamed(room: Room, request: dict[str, Any], *, door: str = "unix", caller: Caller = JOB) -> list[dict[str, Any]]:
    """The chunks of a streamed reply."""
    status, raw, headers = knock(room, request, room.gateway.token(caller), door=door)
    assert (status, headers["Content-Type"]) == (200, "text/event-stream")
    events = [line.removeprefix("data: ") for line in raw.split("\n\n") if line]
    assert events.pop() == "[DONE]"
    return [json.loads(event) for event in events]


def put_together(chunks: list[dict[str, Any]]) -> tuple[str, list[dict[str, Any]], list[str | None]]:
    """Text, tool calls and finish reasons of the chunks."""
    choices = [choice for chunk in chunks for choice in chunk["choices"]]
    calls = [call for choice in choices for call in choice["delta"].get("tool_calls", [])]
    told = "".join(choice["delta"].get("content") or "" for choice in choices)
    return told, calls, [choice["finish_reason"] for choice in choices]


def costs(call: CallRecord) -> tuple[int, int, int, float | None]:
    return call.prompt_tokens, call.cached_tokens, call.completion_tokens, call.usd


@LANES
@DOORS
def test_streamed_and_whole_are_one_reply_one_usage_and_one_price(lane: str, door: str, tmp_path: Path) -> None:
    reply = Reply("Größe", tool_calls=[ToolCall("look", {"x": 1}, id="c1")], usage=CACHED)
    with ScriptedModelServer({"m": [reply]}) as server:
        deployment = server.deployment("m", model_info={"lane": lane, **RATES})
        with opened(tmp_path, deployment, cache=False) as room:
            whole = room.ask(says("hi"))
            chunks = streamed(room, says("hi", **ASKED), door=door)
            plain, by_stream = room.calls
            (prices,) = room.gateway.prices().values()
        assert all("stream" not in request.body for request in server.requests)
    said, (call,), reasons = put_together(chunks)
    assert (said, reasons) == ("Größe", [None, "tool_calls"])
    assert call == {"index": 0, **whole["choices"][0]["message"]["tool_calls"][0]}
    assert chunks[-1]["usage"] == whole["usage"] == {**CACHED, "total_tokens": 1007}
    assert costs(by_stream) == costs(plain)
    assert costs(plain)[:3] == (1000, 900, 7)
    for record in (plain, by_stream):
        usage = usage_of(json.loads(record.response))
        assert usage is not None
        assert record.usd == pytest.approx(Price(prices["rates"]).of(usage), abs=1e-9)
        assert record.usd == pytest.approx(100 * 3e-6 + 900 * 3e-7 + 7 * 1.5e-5, abs=1e-9)


@pytest.mark.parametrize(("options", "told"), [({}, False), ({"stream_options": {"include_usage": False}}, False),
                                               ({"stream_options": None}, False), (ASKED, True)])  # fmt: skip
def test_the_usage_chunk_comes_only_where_it_is_asked_for_and_is_booked_either_way(
    options: dict[str, Any], told: bool, tmp_path: Path
) -> None:
    with ScriptedModelServer({"m": ["ok"]}) as server, opened(tmp_path, server.deployment("m")) as room:
        chunks = streamed(room, says("hi", **{**options, "stream": True}))
        assert ["usage" in chunk for chunk in chunks] == [False, False] + [True] * told
        assert costs(room.calls[0])[:3] == (10, 0, 5)


def test_a_streamed_answer_from_the_cache_is_the_same_reply(tmp_path: Path) -> None:
    with ScriptedModelServer({"m": ["once"]}) as server:
        with opened(tmp_path, server.deployment("m", temperature=0)) as room:
            room.ask(says("hi"))
            assert put_together(streamed(room, says("hi", **ASKED)))[0] == "once"
            assert [call.cached for call in room.calls] == [False, True]
        assert len(server.requests) == 1


@LANES
@DOORS
def test_a_client_that_leaves_before_the_answer_has_its_call_paid_and_recorded_once(
    lane: str, door: str, tmp_path: Path
) -> None:
    with ScriptedModelServer({"m": [Reply("late", delay_s=0.3)]}) as server:
        with opened(tmp_path, server.deployment("m", model_info={"lane": lane}, temperature=0)) as room:
            leave(room, door, read=0, when=lambda: bool(server.requests))
            wait_for_call(room)
            assert put_together(streamed(room, says("hi", **ASKED)))[0] == "late"
            assert [(call.status, call.cached) for call in room.calls] == [("ok", False), ("ok", True)]
            assert room.ledger.totals()["target"]["calls"] == 1
        assert len(server.requests) == 1


@DOORS
def test_a_client_that_leaves_in_mid_stream_has_its_call_recorded_once_and_others_are_served(
    door: str, tmp_path: Path
) -> None:
    with ScriptedModelServer({"m": [Reply("x" * 4_000_000)]}) as server:
        with opened(tmp_path, server.deployment("m", temperature=0)) as room:
            leave(room, door, read=1000, when=lambda: True)
            other = replace(JOB, task="t2")
            assert len(put_together(streamed(room, says("hi", **ASKED), caller=other))[0]) == 4_000_000
            assert [(call.status, call.cached) for call in room.calls] == [("ok", False)]
        assert len(server.requests) == 1


def leave(room: Room, door: str, *, read: int, when: Any) -> None:
    """Ask for a stream, read so many bytes of it, wait, and go."""
    connection = connect(room, door)
    headers = {"Authorization": f"Bearer {room.gateway.token(JOB)}"}
    connection.request("POST", "/v1/chat/completions", json.dumps(says("hi", **ASKED)), headers)
    if read:
        assert len(connection.getresponse().read(read)) == read
    while not when():
        time.sleep(0.01)
    connection.close()


def wait_for_call(room: Room) -> None:
    until = time.monotonic() + 20
    while not room.calls and time.monotonic() < until:
        time.sleep(0.02)


@LANES
def test_an_upstream_error_is_an_error_status_and_no_stream(lane: str, tmp_path: Path) -> None:
    with (
        ScriptedModelServer({"m": [Reply("no", status=500)]}) as server,
        opened(tmp_path, server.deployment("m", model_info={"lane": lane})) as room,
    ):
        status, answer, headers = knock(room, says("hi", **ASKED), room.gateway.token(JOB))
        assert (status, answer["error"]["code"]) == (503, "upstream_unavailable")
        assert headers["Content-Type"].startswith("application/json")
        assert [call.status for call in room.calls] == ["UpstreamUnavailable"]


def test_probabilities_of_tokens_are_streamed_with_their_text(tmp_path: Path) -> None:
    body = b'{"choices": [{"message": {"content": "a"}, "logprobs": {"content": [{"token": "a"}]}}], "usage": {}}'
    with ScriptedModelServer({"m": [Reply(body=body)]}) as server, opened(tmp_path, server.deployment("m")) as room:
        chunks = streamed(room, says("hi", stream=True))
        assert chunks[0]["choices"][0]["logprobs"] == {"content": [{"token": "a"}]}


@pytest.mark.live
@pytest.mark.skipif(not local.available(), reason="the extra [local] is not installed")
def test_a_model_in_this_process_streams_what_it_says_whole(tmp_path: Path) -> None:
    small = {"model_name": "small", "litellm_params": {"model": "local/smollm2-135m", "max_tokens": 6}}
    with opened(tmp_path, small, cache=False) as room:
        whole = room.ask(says("Say hello."))
        chunks = streamed(room, says("Say hello.", **ASKED))
        plain, by_stream = room.calls
    assert put_together(chunks)[0] == whole["choices"][0]["message"]["content"]
    assert chunks[-1]["usage"] == whole["usage"]
    assert costs(plain) == costs(by_stream)


async def test_openais_own_client_takes_the_stream_with_its_tools_and_usage(tmp_path: Path) -> None:
    openai = pytest.importorskip("openai")
    reply = Reply("so", tool_calls=[ToolCall("look", {"x": 1})], usage=CACHED)
    with ScriptedModelServer({"m": [reply]}) as server, opened(tmp_path, server.deployment("m")) as room:
        base_url, token = room.gateway.base_url, room.gateway.token(JOB)
        async with (
            openai.AsyncOpenAI(base_url=base_url, api_key=token) as client,
            client.chat.completions.stream(
                model="m", messages=says("hi")["messages"], stream_options={"include_usage": True}
            ) as stream,
        ):
            done = await stream.get_final_completion()
    assert done.choices[0].message.content == "so"
    assert done.choices[0].message.tool_calls[0].function.arguments == '{"x": 1}'
    assert done.usage.prompt_tokens_details.cached_tokens == 900
