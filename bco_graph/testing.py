"""A scripted model server for tests, examples and demonstrations: real HTTP on loopback, no key, no money.

    with ScriptedModelServer({"target": ["first answer", Reply("second", usage={"prompt_tokens": 7})]}) as server:
        ...  # models.model_list: [server.deployment("target")]
        assert [request.body["messages"] for request in server.requests] == ...

The server speaks OpenAI's chat completions (streamed or not) and lists its models. It runs in a thread of its own with
a loop of its own, so that synchronous tests, async tests and other processes can all talk to it.
"""

from __future__ import annotations

import asyncio
import json
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

from aiohttp import web

from bco_graph.state import JSON


@dataclass(frozen=True, slots=True)
class ToolCall:
    """One call of a tool. `arguments` is a mapping, or text that goes out as it is, broken JSON included."""

    name: str
    arguments: Mapping[str, JSON] | str = field(default_factory=dict)
    id: str = ""
    """Empty: `call_0`, `call_1`, ... by position."""

    def wire(self, position: int) -> dict[str, JSON]:
        text = self.arguments if isinstance(self.arguments, str) else json.dumps(self.arguments, ensure_ascii=False)
        return {
            "id": self.id or f"call_{position}",
            "type": "function",
            "function": {"name": self.name, "arguments": text},
        }


@dataclass(frozen=True, slots=True)
class Reply:
    """What the server answers to one request. The first fault that is set wins over everything below it."""

    text: str | None = "ok"
    """The message's content; None goes out as null, as models do that spent all their room on reasoning."""
    tool_calls: Sequence[ToolCall] = ()
    finish_reason: str | None = None
    """None: `tool_calls` where there are any, else `stop`."""
    usage: Mapping[str, JSON] | None = field(default_factory=lambda: {"prompt_tokens": 10, "completion_tokens": 5})
    """`total_tokens` is filled in; None: the reply has no usage at all."""
    delay_s: float = 0.0
    """Seconds before the first byte."""
    chunks: int | None = None
    """In how many pieces a streamed reply's text goes out, and the arguments of each call; None: the text in two."""
    chunk_delay_s: float = 0.0
    """Seconds before each piece of a streamed reply but the first."""
    cut_after: int | None = None
    """The connection is closed after so many events of a streamed reply."""
    headers: Mapping[str, str] = field(default_factory=dict)
    """Such as `{"Retry-After": "2"}`."""
    status: int = 200
    """From 400 on, the body is OpenAI's error object with `text` as its message and `code` as its code."""
    code: str | None = None
    shape: Literal["normal", "empty_choices", "null_message"] = "normal"
    body: bytes | None = None
    """Sent as it is instead of a reply, with the status above."""
    drop: bool = False
    """Close the connection without an answer."""
    hang: bool = False
    """Never answer: the connection stays open until the client or the server closes it."""


Script = Sequence["Reply | str"] | Callable[[dict[str, JSON]], "Reply | str"]
"""Replies in the order they are given out, or a function of the request's body; a text stands for `Reply(text)`."""


@dataclass(frozen=True, slots=True)
class LoggedRequest:
    """One request as it came. `at` is seconds since the epoch; `body` is {} where it was no JSON object."""

    at: float
    model: str
    path: str
    headers: Mapping[str, str]
    body: dict[str, JSON]


class ScriptedModelServer:
    """Answers by model name. A name without a script gets `default`; without a default it is 404, as in real life.

    `when_exhausted`: `repeat` gives the last reply again, `error` answers 500 with the code `script_exhausted`.
    A server is started once and closed once; `requests` can be read after it closed.
    """

    def __init__(
        self,
        scripts: Mapping[str, Script] | None = None,
        *,
        default: Script | None = None,
        when_exhausted: Literal["repeat", "error"] = "repeat",
    ) -> None:
        self._scripts: dict[str, Script] = dict(scripts or {})
        self._default = default
        self._when_exhausted = when_exhausted
        self._given: dict[str, int] = {}
        self._requests: list[LoggedRequest] = []
        self._lock = threading.Lock()
        self._loop: asyncio.AbstractEventLoop | None = None
        self._thread: threading.Thread | None = None
        self._stopping: asyncio.Event | None = None
        self._port = 0

    @property
    def base_url(self) -> str:
        """What a client takes as its base: `http://127.0.0.1:PORT/v1`."""
        return f"http://127.0.0.1:{self._port}/v1"

    def deployment(
        self, model: str, *, model_info: Mapping[str, JSON] | None = None, **params: JSON
    ) -> dict[str, JSON]:
        """An entry of litellm's `model_list` that leads here; `params` are more of its `litellm_params`."""
        route = {"model": f"openai/{model}", "api_base": self.base_url, "api_key": "scripted"}
        return {"model_name": model, "litellm_params": {**route, **params}, "model_info": dict(model_info or {})}

    @property
    def requests(self) -> list[LoggedRequest]:
        """Requests for completions, in the order they came, refused ones included; a copy."""
        with self._lock:
            return list(self._requests)

    def requests_of(self, model: str) -> list[LoggedRequest]:
        return [request for request in self.requests if request.model == model]

    def script(self, model: str, script: Script) -> None:
        """Give a model another script from now on; it starts at its first reply."""
        with self._lock:
            self._scripts[model] = script
            self._given.pop(model, None)

    # -- life ------------------------------------------------------------------------------------------------

    def __enter__(self) -> ScriptedModelServer:
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def start(self) -> None:
        ready = threading.Event()
        self._thread = threading.Thread(
            target=lambda: asyncio.run(self._serve(ready)), name="scripted-model-server", daemon=True
        )
        self._thread.start()
        if not ready.wait(10):
            raise TimeoutError("the scripted model server did not start within 10 s")

    def close(self) -> None:
        """Stop at once: a reply that is still delayed or hanging is cut off. Closing twice is harmless."""
        thread, self._thread = self._thread, None
        if thread is not None and self._loop is not None and self._stopping is not None:
            self._loop.call_soon_threadsafe(self._stopping.set)
            thread.join(10)

    async def _serve(self, ready: threading.Event) -> None:
        self._loop, self._stopping = asyncio.get_running_loop(), asyncio.Event()
        app = web.Application(client_max_size=1 << 28)
        app.router.add_post("/v1/chat/completions", self._complete)
        app.router.add_get("/v1/models", self._models)
        runner = web.AppRunner(app, access_log=None, shutdown_timeout=0.1)
        await runner.setup()
        site = web.TCPSite(runner, "127.0.0.1", 0, backlog=1024)
        await site.start()
        self._port = int(runner.addresses[0][1])
        ready.set()
        await self._stopping.wait()
        await runner.cleanup()

    # -- answers ---------------------------------------------------------------------------------------------

    async def _models(self, _: web.Request) -> web.Response:
        with self._lock:
            names = sorted(self._scripts)
        return web.json_response({"object": "list", "data": [{"id": name, "object": "model"} for name in names]})

    async def _complete(self, request: web.Request) -> web.StreamResponse:
        body = _json_object(await request.read())
        model = str(body.get("model", ""))
        reply = self._take(LoggedRequest(time.time(), model, request.path, dict(request.headers), body))
        if reply.hang:
            assert self._stopping is not None
            await self._stopping.wait()
        await asyncio.sleep(reply.delay_s)
        if reply.drop or reply.hang:
            if request.transport is not None:
                request.transport.abort()
            return web.Response()
        if reply.body is not None or reply.status >= 400 or not body.get("stream"):
            return web.Response(
                body=reply.body if reply.body is not None else json.dumps(_payload(reply, model)).encode(),
                status=reply.status,
                headers={"Content-Type": "application/json", **reply.headers},
            )
        return await _stream(request, reply, model, usage=bool((body.get("stream_options") or {}).get("include_usage")))

    def _take(self, logged: LoggedRequest) -> Reply:
        with self._lock:
            self._requests.append(logged)
            script = self._scripts.get(logged.model, self._default)
            given = self._given[logged.model] = self._given.get(logged.model, 0) + 1
        if script is None:
            return Reply(f"the model {logged.model!r} does not exist", status=404, code="model_not_found")
        if callable(script):
            return _reply(script(logged.body))
        if given > len(script) and (self._when_exhausted == "error" or not script):
            return Reply(f"the script of {logged.model!r} is exhausted", status=500, code="script_exhausted")
        return _reply(script[min(given, len(script)) - 1])


def _reply(reply: Reply | str) -> Reply:
    return Reply(reply) if isinstance(reply, str) else reply


def _json_object(raw: bytes) -> dict[str, JSON]:
    try:
        value = json.loads(raw)
    except ValueError:
        return {}
    return value if isinstance(value, dict) else {}


def _payload(reply: Reply, model: str) -> dict[str, JSON]:
    if reply.status >= 400:
        return {"error": {"message": reply.text, "type": "scripted_error", "param": None, "code": reply.code}}
    payload: dict[str, Any] = {"id": "chatcmpl-scripted", "object": "chat.completion", "created": 1, "model": model}
    choice = {"index": 0, "finish_reason": _finish_reason(reply), "message": _message(reply)}
    payload["choices"] = [] if reply.shape == "empty_choices" else [choice]
    if reply.usage is not None:
        payload["usage"] = _usage(reply.usage)
    return payload


def _message(reply: Reply) -> dict[str, JSON] | None:
    if reply.shape == "null_message":
        return None
    message: dict[str, JSON] = {"role": "assistant", "content": reply.text}
    if reply.tool_calls:
        message["tool_calls"] = [call.wire(position) for position, call in enumerate(reply.tool_calls)]
    return message


def _finish_reason(reply: Reply) -> str:
    return reply.finish_reason or ("tool_calls" if reply.tool_calls else "stop")


def _usage(usage: Mapping[str, JSON]) -> dict[str, JSON]:
    total = usage.get("prompt_tokens", 0) + usage.get("completion_tokens", 0)
    return {"prompt_tokens": 0, "completion_tokens": 0, "total_tokens": total, **usage}


async def _stream(request: web.Request, reply: Reply, model: str, *, usage: bool) -> web.StreamResponse:
    """Server-sent events: the message in some deltas, the end, the usage where it is asked for."""
    response = web.StreamResponse(headers={"Content-Type": "text/event-stream", **reply.headers})
    await response.prepare(request)
    head = {"id": "chatcmpl-scripted", "object": "chat.completion.chunk", "created": 1, "model": model}
    deltas = [] if reply.shape != "normal" else _deltas(reply)
    chunks: list[dict[str, JSON]] = [
        {**head, "choices": [{"index": 0, "delta": delta, "finish_reason": None}]} for delta in deltas
    ]
    chunks.append({**head, "choices": [{"index": 0, "delta": {}, "finish_reason": _finish_reason(reply)}]})
    if usage and reply.usage is not None:
        chunks.append({**head, "choices": [], "usage": _usage(reply.usage)})
    for number, chunk in enumerate(chunks):
        if number == reply.cut_after and request.transport is not None:
            request.transport.abort()
            return response
        await asyncio.sleep(reply.chunk_delay_s if number else 0)
        await response.write(b"data: " + json.dumps(chunk).encode() + b"\n\n")
    await response.write(b"data: [DONE]\n\n")
    await response.write_eof()
    return response


def _deltas(reply: Reply) -> list[dict[str, JSON]]:
    deltas: list[dict[str, JSON]] = [{"role": "assistant", "content": None if reply.text is None else ""}]
    deltas += [{"content": part} for part in _parts(reply.text or "", reply.chunks or 2)]
    for position, call in enumerate(reply.tool_calls):
        wire = call.wire(position)
        first, *rest = _parts(wire["function"]["arguments"], reply.chunks or 1) or [""]
        function = {**wire["function"], "arguments": first}
        deltas.append({"tool_calls": [{"index": position, **wire, "function": function}]})
        deltas += [{"tool_calls": [{"index": position, "function": {"arguments": part}}]} for part in rest]
    return deltas


def _parts(text: str, count: int) -> list[str]:
    """The text in pieces of one length, at most so many."""
    size = max(1, -(-len(text) // count))
    return [text[at : at + size] for at in range(0, len(text), size)]
