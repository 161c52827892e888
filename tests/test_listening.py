"""Calls that somebody listens to: what is heard while the reply comes in, and that what is recorded is the same."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
from langchain_core.language_models import BaseChatModel
from langchain_core.messages import AIMessageChunk
from langchain_core.messages.tool import tool_call_chunk
from langchain_core.outputs import ChatGenerationChunk, ChatResult
from pydantic import Field

from bco_graph.errors import RequestRejected, UpstreamUnavailable
from bco_graph.gateway.streaming import Pieces, events_in
from bco_graph.protocols import StreamedCalls
from bco_graph.redaction import MARK, Redactor
from bco_graph.testing import Reply, ScriptedModelServer, ToolCall
from tests.gateway_room import JOB, Room, opened, says, text

LANES = pytest.mark.parametrize("lane", ["forward", "litellm"])
LOOK = [ToolCall("look", {"where": "a long way off"}, id="c1"), ToolCall("submit", "{broken", id="c2")]
USAGE = {"prompt_tokens": 1000, "completion_tokens": 7, "prompt_tokens_details": {"cached_tokens": 900}}
SPOKEN = Reply("Größe und mehr", tool_calls=LOOK, usage=USAGE, chunks=5)
STREAMED = {"stream": True, "stream_options": {"include_usage": True}}


def listen(room: Room, request: Mapping[str, Any]) -> tuple[dict[str, Any], list[Any]]:
    """The reply, and what was heard of it."""
    heard: list[Any] = []
    return asyncio.run(room.gateway.stream(JOB, request, heard.append)), heard


def put_together(heard: list[Any]) -> tuple[str, list[tuple[str, str, str]]]:
    """Text and calls (id, name, arguments) of what counts: what came after the last break."""
    since = max((at + 1 for at, delta in enumerate(heard) if delta is None), default=0)
    said, calls = "", dict[int, tuple[str, str, str]]()
    for delta in heard[since:]:
        said += delta.get("content", "")
        for call in delta.get("tool_calls", []):
            held, function = calls.get(call["index"], ("", "", "")), call.get("function", {})
            new = (call.get("id", ""), function.get("name", ""), function.get("arguments", ""))
            calls[call["index"]] = (held[0] + new[0], held[1] + new[1], held[2] + new[2])
    return said, [calls[at] for at in sorted(calls)]


def sent(server: ScriptedModelServer) -> list[bool]:
    """Of each request, whether it asked for a stream."""
    return [bool(request.body.get("stream")) for request in server.requests]


def test_the_gateway_can_be_listened_to(tmp_path: Path) -> None:
    with ScriptedModelServer({"m": ["ok"]}) as server, opened(tmp_path, server.deployment("m")) as room:
        assert isinstance(room.gateway, StreamedCalls)


@LANES
@pytest.mark.parametrize("reply", [SPOKEN, Reply(None, tool_calls=LOOK), Reply("cut", finish_reason="length"),
                                   Reply("uncounted", usage=None), Reply("")],
                         ids=["all", "calls", "length", "no usage", "nothing"])  # fmt: skip
def test_what_is_recorded_of_a_call_is_the_same_whether_it_was_listened_to_or_not(
    lane: str, reply: Reply, tmp_path: Path
) -> None:
    with ScriptedModelServer({"m": [reply]}) as server:
        deployment = server.deployment(
            "m", model_info={"lane": lane, "input_cost_per_token": 1e-6, "output_cost_per_token": 2e-6}
        )
        with opened(tmp_path, deployment, cache=False) as room:
            plain = room.ask(says("hi"))
            told, heard = listen(room, says("hi"))
            first, second = room.calls
        assert sent(server) == [False, True]
        assert {name: server.requests[1].body[name] for name in STREAMED} == STREAMED
        assert server.requests[1].body == {**server.requests[0].body, **STREAMED}
    assert told["usage"] == plain["usage"]
    assert told["choices"] == plain["choices"]
    same = ("request", "usd", "prompt_tokens", "cached_tokens", "completion_tokens", "changes", "attempts", "status")
    assert [getattr(second, name) for name in same] == [getattr(first, name) for name in same]
    made = [(call.id, call.name, call.wire(0)["function"]["arguments"]) for call in reply.tool_calls]
    assert put_together(heard) == (reply.text or "", made)


@LANES
def test_the_beginning_is_heard_before_the_reply_is_whole(lane: str, tmp_path: Path) -> None:
    slow = Reply("one two three four", chunks=4, chunk_delay_s=0.1)
    with (
        ScriptedModelServer({"m": [slow]}) as server,
        opened(tmp_path, server.deployment("m", model_info={"lane": lane}), cache=False) as room,
    ):
        listen(room, says("warm up"))
        heard: list[float] = []
        asyncio.run(room.gateway.stream(JOB, says("hi"), lambda _: heard.append(time.monotonic())))
        assert len(heard) >= 3
        assert time.monotonic() - heard[0] > 0.25
        assert heard[-1] - heard[0] > 0.15


def test_a_stored_reply_is_not_heard_in_pieces(tmp_path: Path) -> None:
    with ScriptedModelServer({"m": [SPOKEN]}) as server:
        with opened(tmp_path, server.deployment("m", temperature=0)) as room:
            told, heard = listen(room, says("hi"))
            again, nothing = listen(room, says("hi"))
            assert (again, nothing) == (told, [])
            assert heard
            assert room.ask(says("hi")) == told
            assert [call.cached for call in room.calls] == [False, True, True]
        assert len(server.requests) == 1


@LANES
def test_a_stream_that_breaks_off_is_a_failed_attempt_and_what_was_heard_of_it_counts_no_more(
    lane: str, tmp_path: Path
) -> None:
    broken = Reply("one two three four", chunks=4, cut_after=3)
    with ScriptedModelServer({"m": [broken, SPOKEN]}) as server:
        with opened(tmp_path, server.deployment("m", model_info={"lane": lane}), retries=1) as room:
            told, heard = listen(room, says("hi"))
            (call,) = room.calls
        assert sent(server) == [True, True]
    assert heard.count(None) == 1
    assert put_together(heard[: heard.index(None)])[0] == "one two th"
    assert put_together(heard)[0] == text(told) == SPOKEN.text
    assert (call.attempts, len(call.changes["retries"])) == (2, 1)


@LANES
def test_a_stream_that_breaks_off_for_good_fails_the_call(lane: str, tmp_path: Path) -> None:
    with (
        ScriptedModelServer({"m": [Reply("one two", cut_after=2)]}) as server,
        opened(tmp_path, server.deployment("m", model_info={"lane": lane})) as room,
    ):
        with pytest.raises(UpstreamUnavailable):
            listen(room, says("hi"))
        assert [call.status for call in room.calls] == ["UpstreamUnavailable"]


def test_a_fallback_of_litellm_s_router_is_heard_and_booked_as_the_model_that_answered(tmp_path: Path) -> None:
    scripts = {"m": [Reply("no", status=500), Reply("broken", cut_after=1)], "spare": [SPOKEN]}
    settings = {"fallbacks": [{"m": ["spare"]}]}
    with ScriptedModelServer(scripts) as server:
        entries = [server.deployment(name, model_info={"lane": "litellm"}) for name in scripts]
        with opened(tmp_path, *entries, litellm_settings=settings, cache=False) as room:
            for _ in range(2):
                told, heard = listen(room, says("hi"))
                assert put_together(heard)[0] == text(told) == SPOKEN.text
            assert [(call.model, call.completion_tokens) for call in room.calls] == [("openai/spare", 7)] * 2


def refusing(message: str, param: str | None = None) -> Any:
    """A model that does not stream."""
    body = json.dumps({"error": {"message": message, "param": param}}).encode()
    return lambda asked: Reply(status=400, body=body) if "stream" in asked else Reply("plainly")


@LANES
@pytest.mark.parametrize(("message", "param"), [("stream_options: extra inputs are not permitted", None),
                                                ("Your organization must be verified", "stream")])  # fmt: skip
def test_an_endpoint_that_refuses_to_stream_is_asked_plainly_from_then_on(
    lane: str, message: str, param: str | None, tmp_path: Path
) -> None:
    with ScriptedModelServer({"m": refusing(message, param)}) as server:
        with opened(tmp_path, server.deployment("m", model_info={"lane": lane}), cache=False) as room:
            for _ in range(2):
                told, heard = listen(room, says("hi"))
                assert (text(told), heard) == ("plainly", [])
            assert [(call.status, call.attempts, call.changes) for call in room.calls] == [("ok", 1, {})] * 2
        assert sent(server) == [True, False, False]


@LANES
def test_another_refusal_is_no_reason_to_ask_plainly(lane: str, tmp_path: Path) -> None:
    with ScriptedModelServer({"m": [Reply("seed is out of range", status=400)]}) as server:
        with (
            opened(tmp_path, server.deployment("m", model_info={"lane": lane})) as room,
            pytest.raises(RequestRejected, match="seed"),
        ):
            listen(room, says("hi"))
        assert sent(server) == [True]


def test_an_endpoint_that_takes_no_notice_of_the_wish_for_a_stream_is_read_whole(tmp_path: Path) -> None:
    whole = b'\n {"choices": [{"message": {"content": "whole"}, "finish_reason": "stop"}]}'
    with ScriptedModelServer({"m": [Reply(body=whole)]}) as server, opened(tmp_path, server.deployment("m")) as room:
        told, heard = listen(room, says("hi"))
    assert (text(told), heard) == ("whole", [])


@pytest.mark.parametrize(
    "body",
    [
        b'data: {"choices": [{"delta": {"content": "a"}}]}\n\ndata: {"error": {"message": "overloaded"}}\n\n',
        b'data: {"choices": [{"delta": {"content": "a"}}]}\n\ndata: {"choices": [], "error": {"message": "x"}}\n\n',
        b'data: {"choices": [{"delta": {"content": "a"}}]}\n\n',
        b"data: [1]\n\n",
        b": only a comment\n\n",
        b"",
    ],
    ids=["error", "error with choices", "no end", "no object", "no event", "nothing"],
)
def test_a_stream_without_a_whole_reply_in_it_is_a_failure_that_may_pass(body: bytes, tmp_path: Path) -> None:
    with (
        ScriptedModelServer({"m": [Reply(body=body), "mended"]}) as server,
        opened(tmp_path, server.deployment("m"), retries=1) as room,
    ):
        told, heard = listen(room, says("hi"))
    assert (text(told), put_together(heard)[0]) == ("mended", "mended")


def test_who_stops_listening_leaves_a_call_that_is_paid_and_recorded(tmp_path: Path) -> None:
    slow = Reply("one two three four", chunks=4, chunk_delay_s=0.1)
    with ScriptedModelServer({"m": [slow]}) as server, opened(tmp_path, server.deployment("m")) as room:

        async def leave() -> None:
            first = asyncio.Event()
            loop = asyncio.get_running_loop()

            def hear(_: object) -> None:
                loop.call_soon_threadsafe(first.set)

            task = asyncio.create_task(room.gateway.stream(JOB, says("hi"), hear))
            await first.wait()
            task.cancel()

        asyncio.run(leave())
        room.gateway.close()
        assert [call.status for call in room.calls] == ["ok"]
        assert json.loads(room.calls[0].response)["choices"][0]["message"]["content"] == slow.text


# -- keys --------------------------------------------------------------------------------------------------------------

KEY = "scripted-key-71ab5e22"


@LANES
@pytest.mark.parametrize("chunks", [1, 2, 3, 7, 60])
def test_a_key_that_comes_in_pieces_is_not_heard(lane: str, chunks: int, tmp_path: Path) -> None:
    said = f"the key is {KEY}, scripted-key-"
    reply = Reply(said, tool_calls=[ToolCall("look", {"key": KEY, "also": "scr"}, id="c1")], chunks=chunks)
    with (
        ScriptedModelServer({"m": [reply]}) as server,
        opened(tmp_path, server.deployment("m", api_key=KEY, model_info={"lane": lane})) as room,
    ):
        told, heard = listen(room, says("hi"))
    clean = said.replace(KEY, MARK)
    assert put_together(heard) == (clean, [("c1", "look", json.dumps({"key": MARK, "also": "scr"}))])
    assert text(told) == clean


@pytest.mark.parametrize("size", [1, 2, 5, 13, 100])
def test_a_text_in_pieces_loses_the_same_keys_as_the_whole(size: int) -> None:
    keys = ["abcabcabcabd", "abcabcabcabdefgh", "bdefghijklmnop", "zzzzzzzzzzzzzz"]
    redactor = Redactor(keys)
    said = "abcabcabcabcabd abcabcabcabdefgh abcabcabcabdef zzzzzzzzzzzzz zzzzzzzzzzzzzzzz \U0001f600 abcabc"
    rolling = redactor.rolling()
    told = [rolling.take(said[at : at + size]) for at in range(0, len(said), size)]
    assert "".join([*told, rolling.end()]) == redactor.known(said)
    assert "abcabcabcabd" not in "".join(told)


def test_what_was_held_back_of_a_broken_attempt_is_not_heard_in_the_next(tmp_path: Path) -> None:
    broken = Reply(f"a {KEY[:-1]}", chunks=1, cut_after=2)
    with (
        ScriptedModelServer({"m": [broken, "b"]}) as server,
        opened(tmp_path, server.deployment("m", api_key=KEY), retries=1) as room,
    ):
        _, heard = listen(room, says("hi"))
    assert heard == [{"content": "a "}, None, {"content": "b"}]


def test_what_cannot_be_a_key_is_not_held_back() -> None:
    rolling = Redactor([KEY]).rolling()
    assert [rolling.take(piece) for piece in ("a word", " scripted-key", "hole")] == ["a word", " ", "scripted-keyhole"]


def test_half_of_a_character_waits_for_the_other_half(tmp_path: Path) -> None:
    events = [json.dumps({"choices": [{"delta": {"content": half}}]}) for half in ("\ud83d", "\ude00")]
    body = "".join(f"data: {event}\n\n" for event in [*events, "[DONE]"]).encode()
    with ScriptedModelServer({"m": [Reply(body=body)]}) as server, opened(tmp_path, server.deployment("m")) as room:
        told, heard = listen(room, says("hi"))
    assert heard == [{"content": "\U0001f600"}]
    assert text(told) == "\U0001f600"


# -- chat models given in code -----------------------------------------------------------------------------------------


class Speaking(BaseChatModel):
    """A LangChain model that streams; `refuses` stands for one whose endpoint does not."""

    refuses: bool = False
    max_retries: int = 0
    asked: list[str] = Field(default_factory=list)

    @property
    def _llm_type(self) -> str:
        return "speaking"

    def _generate(self, *_: Any, **__: Any) -> ChatResult:
        raise NotImplementedError

    async def _agenerate(self, *_: Any, **__: Any) -> ChatResult:
        from langchain_core.language_models.chat_models import agenerate_from_stream

        self.asked.append("plain")
        return await agenerate_from_stream(self._chunks())

    async def _astream(self, *_: Any, **__: Any) -> Any:
        self.asked.append("stream")
        if self.refuses:
            raise TypeError("got an unexpected keyword argument 'stream_options'")
        async for chunk in self._chunks():
            yield chunk

    async def _chunks(self) -> Any:
        calls = [
            tool_call_chunk(name="look", args='{"x":', id="c1", index=1),
            tool_call_chunk(name=None, args=" 1}", id=None, index=1),
            tool_call_chunk(name="submit", args='{"cut', id="c2", index=2),
        ]
        messages = [
            AIMessageChunk(content="on"),
            AIMessageChunk(content="e"),
            *(AIMessageChunk(content="", tool_call_chunks=[call]) for call in calls),
            AIMessageChunk(
                content="",
                usage_metadata={"input_tokens": 3, "output_tokens": 2, "total_tokens": 5},
                response_metadata={"finish_reason": "tool_calls", "model_name": "speaking-1"},
                chunk_position="last",
            ),
        ]
        for message in messages:
            yield ChatGenerationChunk(message=message)


def test_a_chat_model_given_in_code_is_heard_as_it_streams(tmp_path: Path) -> None:
    model = Speaking()
    with opened(tmp_path, chat_models={"target": model}) as room:
        told, heard = listen(room, says("hi"))
        (call,) = room.calls
    calls = [("c1", "look", '{"x": 1}'), ("c2", "submit", '{"cut')]
    assert model.asked == ["stream"]
    assert [delta["content"] for delta in heard[:2]] == ["on", "e"]
    assert put_together(heard) == ("one", calls)
    (choice,) = told["choices"]
    made = [(c["id"], c["function"]["name"], c["function"]["arguments"]) for c in choice["message"]["tool_calls"]]
    assert (choice["message"]["content"], choice["finish_reason"], made) == ("one", "tool_calls", calls)
    assert (told["model"], call.prompt_tokens, call.completion_tokens) == ("speaking-1", 3, 2)


def test_a_chat_model_that_refuses_to_stream_is_invoked_plainly(tmp_path: Path) -> None:
    model = Speaking(refuses=True)
    with opened(tmp_path, chat_models={"target": model}, cache=False) as room:
        for _ in range(2):
            told, heard = listen(room, says("hi"))
            assert (text(told), heard) == ("one", [])
    assert model.asked == ["stream", "plain", "plain"]


# -- chunks of many makes ----------------------------------------------------------------------------------------------


def chunk(**delta: Any) -> dict[str, Any]:
    return {"choices": [{"index": 0, "delta": delta, "finish_reason": None}]}


def call(name: str | None, arguments: str, **fields: Any) -> dict[str, Any]:
    return chunk(tool_calls=[{**fields, "function": {"name": name, "arguments": arguments}}])


@pytest.mark.parametrize(
    "chunks",
    [
        [call("f", "{", index=0, id="a"), call(None, "}", index=0), call("g", "{}", index=1, id="b")],
        [call("f", "{", index=0, id="a"), call("f", "}", index=0, id="a"), call("g", "{}", index=0, id="b")],
        [call("f", "{", id="a"), call(None, "}"), call("g", "{}", id="b")],
        [call("f", "{", index=0, id="a"), call("g", "{}", index=1, id="b"), call("", "}", index=0, id="")],
        [call("f", "{", index=3, id="a"), call(None, "}", index=3), call("g", "{}", index=7, id="b")],
    ],
    ids=["as OpenAI", "one index", "no index", "interleaved", "gaps"],
)
def test_pieces_of_calls_find_their_call_however_they_are_numbered(chunks: list[dict[str, Any]]) -> None:
    pieces = Pieces()
    heard = [pieces.add(part) for part in chunks]
    made = pieces.whole()["choices"][0]["message"]["tool_calls"]
    assert [(c["id"], c["function"]) for c in made] == [
        ("a", {"name": "f", "arguments": "{}"}), ("b", {"name": "g", "arguments": "{}"}),
    ]  # fmt: skip
    assert {c["index"] for delta in heard for c in delta["tool_calls"]} == {0, 1}


def test_calls_without_index_and_id_are_told_apart_by_their_names() -> None:
    pieces = Pieces()
    for part in (call("f", "{}"), call("f", "{}")):
        pieces.add(part)
    assert len(pieces.whole()["choices"][0]["message"]["tool_calls"]) == 2


def test_what_a_provider_adds_to_a_message_comes_whole_and_a_message_of_calls_alone_has_no_text() -> None:
    pieces = Pieces()
    thought = {"type": "reasoning.text", "index": 0}
    for part in (
        chunk(role="assistant", content="", reasoning_content="so "),
        chunk(reasoning_content="it is", reasoning_details=[{**thought, "text": "so "}]),
        chunk(reasoning_details=[{**thought, "text": "it is"}, {**thought, "signature": "s", "text": None}]),
        call("f", "{}", index=0, id="a", type="function", extra_content={"signature": "t"}),
        {"choices": [{"delta": {}, "finish_reason": "tool_calls"}], "usage": None},
        {"choices": [], "usage": {"prompt_tokens": 3}, "model": "m-1"},
    ):
        pieces.add(part)
    whole = pieces.whole()
    assert whole["choices"][0]["message"] == {
        "role": "assistant",
        "content": None,
        "reasoning_content": "so it is",
        "reasoning_details": [{**thought, "text": "so it is", "signature": "s"}],
        "tool_calls": [
            {"id": "a", "type": "function", "extra_content": {"signature": "t"},
             "function": {"name": "f", "arguments": "{}"}}
        ],
    }  # fmt: skip
    assert (whole["usage"], whole["model"]) == ({"prompt_tokens": 3}, "m-1")


@pytest.mark.parametrize("size", [1, 2, 3, 1000])
async def test_events_are_found_however_the_body_is_cut(size: int) -> None:
    body = ": hello\r\n\r\nevent: x\r\ndata: ä1\r\n\r\ndata:two\ndata: lines\n\n\n\nid: 3\ndata: last".encode()

    async def parts() -> Any:
        for at in range(0, len(body), size):
            yield body[at : at + size]

    assert [event async for event in events_in(parts())] == ["ä1", "two\nlines", "last"]
