"""The scripted model server: what it answers, what it logs, how it fails on purpose."""

from __future__ import annotations

import json
import time
import urllib.error
import urllib.request
from typing import Any

import aiohttp
import pytest

from bco_graph.testing import Reply, ScriptedModelServer, ToolCall


def ask(server: ScriptedModelServer, model: str, timeout_s: float = 5, **fields: Any) -> dict[str, Any]:
    body = json.dumps({"model": model, "messages": [{"role": "user", "content": "hi"}], **fields}).encode()
    url = f"{server.base_url}/chat/completions"
    request = urllib.request.Request(url, body, {"Content-Type": "application/json", "X-Mark": "7"})
    with urllib.request.urlopen(request, timeout=timeout_s) as response:
        return dict(json.load(response))


def text(reply: dict[str, Any]) -> Any:
    return reply["choices"][0]["message"]["content"]


def test_each_model_consumes_its_own_script_in_order_and_the_last_reply_repeats() -> None:
    with ScriptedModelServer({"a": ["one", "two"], "b": ["other"]}) as server:
        assert [text(ask(server, name)) for name in "aabaa"] == ["one", "two", "other", "two", "two"]
        server.script("a", ["anew"])
        assert text(ask(server, "a")) == "anew"


def test_an_exhausted_script_is_an_error_where_that_is_asked_for() -> None:
    with ScriptedModelServer({"a": ["one"]}, when_exhausted="error") as server:
        ask(server, "a")
        with pytest.raises(urllib.error.HTTPError) as caught:
            ask(server, "a")
        assert caught.value.code == 500
        assert json.load(caught.value)["error"]["code"] == "script_exhausted"


def test_a_function_sees_the_body_and_unknown_models_are_404() -> None:
    with ScriptedModelServer({"echo": lambda body: body["messages"][0]["content"].upper()}) as server:
        assert text(ask(server, "echo")) == "HI"
        with pytest.raises(urllib.error.HTTPError) as caught:
            ask(server, "nobody")
        assert caught.value.code == 404
        caught.value.close()


def test_requests_are_logged_with_time_model_path_headers_and_body_and_outlive_the_server() -> None:
    before = time.time()
    with ScriptedModelServer(default=["ok"]) as server:
        ask(server, "m", temperature=0.5)
    (request,) = server.requests
    assert (request.model, request.path, request.body["temperature"]) == ("m", "/v1/chat/completions", 0.5)
    assert request.headers["X-Mark"] == "7"
    assert before <= request.at <= time.time()
    assert server.requests_of("n") == []


def test_replies_carry_tools_usage_finish_reason_and_the_three_empty_shapes() -> None:
    script = [
        Reply(None, tool_calls=[ToolCall("f", {"x": 1}), ToolCall("g", "{broken", id="k")]),
        Reply(None, finish_reason="length", usage={"prompt_tokens": 3}),
        Reply(shape="empty_choices", usage=None),
        Reply(shape="null_message"),
    ]
    with ScriptedModelServer({"m": script}) as server:
        tools, null, empty, no_message = (ask(server, "m") for _ in script)
    calls = tools["choices"][0]["message"]["tool_calls"]
    assert [(c["id"], c["function"]["arguments"]) for c in calls] == [("call_0", '{"x": 1}'), ("k", "{broken")]
    assert tools["choices"][0]["finish_reason"] == "tool_calls"
    assert (text(null), null["choices"][0]["finish_reason"]) == (None, "length")
    assert null["usage"] == {"prompt_tokens": 3, "completion_tokens": 0, "total_tokens": 3}
    assert empty["choices"] == []
    assert "usage" not in empty
    assert no_message["choices"][0]["message"] is None


def test_faults_are_real_a_status_with_headers_a_raw_body_a_dropped_and_a_hanging_connection() -> None:
    script = [Reply("slow down", status=429, headers={"Retry-After": "2"}), Reply(body=b"<html>"), Reply(drop=True)]
    with ScriptedModelServer({"m": [*script, Reply(hang=True)]}) as server:
        with pytest.raises(urllib.error.HTTPError) as caught:
            ask(server, "m")
        assert (caught.value.code, caught.value.headers["Retry-After"]) == (429, "2")
        assert json.load(caught.value)["error"]["message"] == "slow down"
        with pytest.raises(json.JSONDecodeError):
            ask(server, "m")
        with pytest.raises(ConnectionError):
            ask(server, "m")
        with pytest.raises(TimeoutError):
            ask(server, "m", timeout_s=0.2)


def test_closing_does_not_wait_for_a_hanging_or_delayed_reply() -> None:
    server = ScriptedModelServer({"m": [Reply(hang=True), Reply(delay_s=60)]})
    server.start()
    for _ in range(2):
        with pytest.raises(TimeoutError):
            ask(server, "m", timeout_s=0.1)
    started = time.monotonic()
    server.close()
    server.close()
    assert time.monotonic() - started < 5


def test_a_delay_is_waited_before_the_answer() -> None:
    with ScriptedModelServer({"m": [Reply(delay_s=0.2)]}) as server:
        started = time.monotonic()
        ask(server, "m")
        assert time.monotonic() - started >= 0.2


async def test_a_streamed_reply_joins_to_the_same_text_tools_and_usage_as_a_whole_one() -> None:
    reply = Reply("hällo", tool_calls=[ToolCall("f", {"x": 1})], usage={"prompt_tokens": 9, "completion_tokens": 2})
    with ScriptedModelServer({"m": [reply]}) as server:
        whole = ask(server, "m")
        body = {"model": "m", "messages": [], "stream": True, "stream_options": {"include_usage": True}}
        async with (
            aiohttp.ClientSession() as session,
            session.post(f"{server.base_url}/chat/completions", json=body) as response,
        ):
            lines = [line.decode().removeprefix("data: ").strip() async for line in response.content if line.strip()]
        assert lines.pop() == "[DONE]"
        chunks = [json.loads(line) for line in lines]
        deltas = [choice["delta"] for chunk in chunks for choice in chunk["choices"]]
        assert "".join(delta.get("content") or "" for delta in deltas) == text(whole)
        streamed = [{k: v for k, v in c.items() if k != "index"} for d in deltas for c in d.get("tool_calls", [])]
        assert streamed == whole["choices"][0]["message"]["tool_calls"]
        assert chunks[-1]["usage"] == whole["usage"]


def test_the_scripted_models_are_listed() -> None:
    with (
        ScriptedModelServer({"b": ["x"], "a": ["x"]}) as server,
        urllib.request.urlopen(f"{server.base_url}/models", timeout=5) as response,
    ):
        assert [model["id"] for model in json.load(response)["data"]] == ["a", "b"]
