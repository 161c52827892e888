"""The gateway between strangers: candidates' requests of any bytes, upstream answers of any bytes."""

from __future__ import annotations

import asyncio
import http.client
import json
import math
import sqlite3
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from bco_graph.errors import ModelCallError, RunUnreadable
from bco_graph.gateway.cache import ResponseCache
from bco_graph.gateway.failures import failure, retry_after_s
from bco_graph.gateway.rendering import grammar_of, message_of, refuse_unknown, stops_of
from bco_graph.receipts import Receipts, dumps
from bco_graph.state import JSON
from bco_graph.testing import Reply, ScriptedModelServer
from tests.fuzz.strategies import FUZZ, SLOW, as_text, broken, broken_bytes, refused_or, texts
from tests.gateway_room import JOB, Room, opened, says

PRICED = {"input_cost_per_token": 1e-6, "output_cost_per_token": 2e-6}


@pytest.fixture(scope="module")
def server() -> Iterator[ScriptedModelServer]:
    with ScriptedModelServer({"toy": ["ok"]}) as started:
        yield started


@pytest.fixture(scope="module")
def room(server: ScriptedModelServer, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Room]:
    target = server.deployment("toy", model_info=PRICED, temperature=0)
    with opened(tmp_path_factory.mktemp("gateway"), target, cache=False, timeout_s=5.0) as room:
        yield room


def post(room: Room, body: bytes, headers: dict[str, str] | None = None) -> tuple[int, bytes]:
    where = urlsplit(room.gateway.base_url)
    connection = http.client.HTTPConnection(where.netloc, timeout=5)
    try:
        token = {"Authorization": f"Bearer {room.gateway.token(JOB)}"}
        connection.request("POST", f"{where.path}/chat/completions", body, {**token, **(headers or {})})
        answer = connection.getresponse()
        return answer.status, answer.read()
    finally:
        connection.close()


REQUEST: JSON = {
    "model": "target", "max_tokens": 5, "stop": ["\n"], "stream": True, "stream_options": {"include_usage": True},
    "messages": [
        {"role": "system", "content": "Say it."},
        {"role": "user", "content": [{"type": "text", "text": "What?"}]},
        {"role": "assistant", "content": None, "tool_calls": [{"id": "1", "function": {"name": "f", "arguments": ""}}]},
    ],
    "tools": [{"type": "function", "function": {"name": "f", "parameters": {"type": "object"}}}],
    "response_format": {"type": "json_schema", "json_schema": {"schema": {"type": "object"}}},
}  # fmt: skip
bodies = st.one_of(
    broken(REQUEST).map(lambda value: as_text(value).encode()),
    broken_bytes(as_text(REQUEST).encode()),
    st.sampled_from([b"", b"null", b"\xff\xfe", b"[" * 5000, b'{"messages":' + b"[" * 400 + b"]" * 400 + b"}"]),
)


@FUZZ
@given(bodies)
@example(as_text({**REQUEST, "max_tokens": 10**4000}).encode())
@example(as_text({**says("x"), "stop": "\ud800", "model": "\ud800"}).encode())
@example(b'{"messages": [{"role": "user", "content": NaN}], "messages": [{"role": "user", "content": 1e999}]}')
def test_any_body_of_a_candidate_gets_an_answer_or_an_error_object_and_is_on_record(
    server: ScriptedModelServer, room: Room, body: bytes
) -> None:
    server.script("toy", ["ok"])
    before = len(room.calls)
    status, content = post(room, body)
    if status == 200:
        assert content.endswith(b"data: [DONE]\n\n") or json.loads(content)["choices"]
        assert len(room.calls) == before + 1
    else:
        assert status == 400
        assert json.loads(content)["error"]["code"] in ("request_rejected", "context_length_exceeded")


@pytest.mark.parametrize("token", ["", "Bearer ", "Bearer \xff", "x" * 9000, "Bearer bco-none"])
def test_a_wrong_token_gets_an_error_and_no_call_is_made(room: Room, token: str) -> None:
    before = len(room.calls)
    status, _ = post(room, as_text(REQUEST).encode(), {"Authorization": token})
    assert status in (400, 401)
    assert len(room.calls) == before


@pytest.mark.parametrize("length", ["-1", "x", "999999999999999999999", "3", "0"])
def test_a_wrong_content_length_is_an_error_and_the_gateway_goes_on(
    server: ScriptedModelServer, room: Room, length: str
) -> None:
    where = urlsplit(room.gateway.base_url)
    connection = http.client.HTTPConnection(where.netloc, timeout=5)
    connection.putrequest("POST", f"{where.path}/chat/completions")
    connection.putheader("Authorization", f"Bearer {room.gateway.token(JOB)}")
    connection.putheader("Content-Length", length)
    connection.endheaders(as_text(REQUEST).encode())
    if length != "999999999999999999999":
        assert connection.getresponse().status == 400
    connection.close()
    server.script("toy", ["ok"])
    assert post(room, as_text(says("still there?")).encode())[0] == 200


COMPLETION: JSON = {
    "id": "c1", "object": "chat.completion", "created": 1, "model": "toy", "system_fingerprint": None,
    "choices": [
        {"index": 0, "finish_reason": "tool_calls", "logprobs": {"content": []},
         "message": {"role": "assistant", "content": "so", "refusal": None, "tool_calls": [
             {"id": "1", "type": "function", "function": {"name": "f", "arguments": "{}"}}]}},
    ],
    "usage": {"prompt_tokens": 5, "completion_tokens": 5, "total_tokens": 10,
              "prompt_tokens_details": {"cached_tokens": 2, "cache_creation_tokens": 1},
              "completion_tokens_details": {"reasoning_tokens": 1}},
}  # fmt: skip
ERROR: JSON = {"error": {"message": "too many requests", "type": "rate_limit", "param": None, "code": "rate"}}
upstream = st.builds(
    Reply,
    body=st.one_of(
        broken(COMPLETION).map(lambda value: as_text(value).encode()),
        broken(ERROR).map(lambda value: as_text(value).encode()),
        broken_bytes(as_text(COMPLETION).encode()),
        st.sampled_from([b"", b"null", b"data: {}\n\n", b"\xff\xfe", b"[" * 5000, b"<html>"]),
    ),
    status=st.sampled_from([200, 200, 200, 201, 204, 302, 400, 401, 404, 413, 429, 500, 529, 599]),
    headers=st.sampled_from([{}, *({"Retry-After": value} for value in (
        "0", "-1", "nan", "1e999", "inf", "9" * 400, "soon", "Mon, 01 Jan 0001 00:00:00 GMT",
        "Fri, 31 Dec 9999 23:59:59 -2359",
    ))]),
)  # fmt: skip


def body(value: JSON, **reply: Any) -> Reply:
    return Reply(body=as_text(value).encode(), **reply)


@FUZZ
@given(upstream, st.booleans())
@example(body(ERROR, status=429, headers={"Retry-After": "1e999"}), False)
@example(body({**COMPLETION, "served_by": "other", "dropped": ["x", 1]}), False)
@example(body({**COMPLETION, "usage": {"prompt_tokens": 10**30, "completion_tokens": True}}), False)
@example(body({**COMPLETION, "usage": [1], "choices": None}), True)
@example(body({**COMPLETION, "choices": [{"message": {"content": "x", "tool_calls": "all"}}]}), True)
@example(body({**COMPLETION, "choices": [{"message": {"content": {"a": 1}, "tool_calls": [1, None]}}]}), True)
def test_any_answer_from_upstream_is_passed_on_or_an_error_and_paid_ones_are_kept(
    server: ScriptedModelServer, room: Room, reply: Reply, streamed: bool
) -> None:
    server.script("toy", [reply])
    before = len(room.calls)
    answer = refused_or(ModelCallError, lambda: room.ask(says("go on")))
    recorded = room.calls[before]
    assert len(room.calls) == before + 1
    json.loads(recorded.response)
    if answer is None:
        assert recorded.status != "ok"
        return
    assert recorded.status == "ok"
    assert recorded.usd is not None
    assert recorded.model == "openai/toy"
    assert isinstance(answer["choices"][0]["message"], dict)
    dumps(answer).encode("utf-8")
    status, content = post(room, as_text({**says("go on"), "stream": streamed}).encode())
    assert status == 200
    assert content.endswith(b"data: [DONE]\n\n") if streamed else json.loads(content)


@FUZZ
@given(st.one_of(texts, st.from_regex(r"[A-Z][a-z]{2}, [0-9]{2} [A-Z][a-z]{2} [0-9]{1,6} [0-9:]{1,8}( [+-][0-9]{4})?")))
@example("nan")
@example("inf")
@example("1e999")
@example("Mon, 01 Jan 0001 00:00:00 -0000")
def test_any_retry_after_is_a_finite_wait_or_none(header: str) -> None:
    wait_s = retry_after_s(header)
    assert wait_s is None or (math.isfinite(wait_s) and wait_s >= 0)


@FUZZ
@given(st.one_of(st.none(), st.integers()), texts, st.one_of(st.none(), texts))
def test_any_status_is_one_of_our_errors(status: int | None, message: str, code: str | None) -> None:
    assert isinstance(failure(message, status=status, code=code), ModelCallError)


class Grammars:
    """llama.cpp's door to grammars, which takes the text of a schema."""

    class LlamaGrammar:
        @staticmethod
        def from_json_schema(schema: str, *, verbose: bool) -> object:
            return json.loads(schema)


@FUZZ
@given(broken({**REQUEST, "temperature": 0}))
@example({"stop": 5, "response_format": "json"})
@example({"stop": {"a": 1}, "response_format": {"type": "json_schema", "json_schema": ["x"]}})
def test_a_model_in_this_process_takes_a_request_or_rejects_it(request: JSON) -> None:
    if not isinstance(request, dict):
        return
    refused_or(ModelCallError, lambda: refuse_unknown("m", request))
    refused_or(ModelCallError, lambda: stops_of(request.get("stop")))
    refused_or(ModelCallError, lambda: grammar_of(Grammars, request.get("response_format")))
    messages = request.get("messages")
    for message in messages if isinstance(messages, list) else []:
        if isinstance(message, dict):
            refused_or(ModelCallError, lambda message=message: message_of(message))  # type: ignore[misc]


# -- stored responses ----------------------------------------------------------------------------------------------


def recorded(folder: Path, response: Any = None) -> Path:
    """A file of recorded responses with one under every key that is asked."""
    path = folder / "recorded.sqlite"
    path.unlink(missing_ok=True)
    cache = ResponseCache(path)
    cache.put([("k" * 64, as_text(COMPLETION), "toy")])
    cache.close()
    db = sqlite3.connect(path)
    db.execute("pragma journal_mode=delete")
    if response is not None:
        db.execute("update cache set response=?", (response,))
    db.commit()
    db.close()
    return path


@SLOW
@given(st.data())
def test_a_file_of_recorded_responses_of_any_bytes_is_read_or_refused_and_left_alone(
    tmp_path_factory: pytest.TempPathFactory, data: st.DataObject
) -> None:
    folder = tmp_path_factory.mktemp("recorded")
    path = recorded(folder)
    content = data.draw(broken_bytes(path.read_bytes()))
    path.write_bytes(content)

    def read() -> None:
        cache = ResponseCache(folder / "own.sqlite", extra=path)
        try:
            cache.get("k" * 64)
            cache.get("l" * 64)
        finally:
            cache.close()

    refused_or(RunUnreadable, read)
    assert path.read_bytes() == content


@pytest.mark.parametrize("stored", ["", "null", "[1]", "{}", '{"choices": 5}', "[" * 5000, '{"a": NaN', b"\xff\xfe"])
def test_a_stored_response_that_is_no_completion_says_nothing_about_who_asked(
    server: ScriptedModelServer, tmp_path: Path, stored: Any
) -> None:
    target = server.deployment("toy", temperature=0)
    server.script("toy", ["ok"])
    with opened(tmp_path / "made", target) as room:
        room.ask(says("once"))
    db = sqlite3.connect(tmp_path / "made" / "cache.sqlite")
    db.execute("update cache set response=?", (stored,))
    db.commit()
    db.close()
    with opened(tmp_path / "made", target) as room:
        with pytest.raises(ModelCallError, match="cache"):
            room.ask(says("once"))
        assert [call.status for call in room.calls] == ["ok", "UpstreamUnavailable"]


def test_asking_in_a_row_after_all_this_still_works(server: ScriptedModelServer, room: Room) -> None:
    server.script("toy", ["still"])
    answers = [asyncio.run(room.gateway.complete(JOB, says(f"n{number}"))) for number in range(3)]
    assert [answer["choices"][0]["message"]["content"] for answer in answers] == ["still"] * 3
    assert isinstance(room.receipts, Receipts)
