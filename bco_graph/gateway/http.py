"""The gateway's HTTP face: OpenAI's chat completions for whoever holds a token, on a Unix socket and on loopback.

`POST /v1/chat/completions` (streamed requests are answered as events once the reply is whole), `GET /v1/models`.
Errors are OpenAI's error objects, with `x-should-retry: false`: the retries are the gateway's, and a client that
retries again would multiply them.
"""

from __future__ import annotations

import json
import logging
import os
import secrets
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field

from aiohttp import web

from bco_graph.errors import (
    AuthenticationFailed,
    BcoError,
    BudgetExceeded,
    ContextOverflow,
    RequestRejected,
    UpstreamUnavailable,
)
from bco_graph.gateway.lanes import parsed
from bco_graph.gateway.replies import events
from bco_graph.protocols import Caller
from bco_graph.receipts import dumps
from bco_graph.scratch import Scratch
from bco_graph.state import JSON

Complete = Callable[[Caller, Mapping[str, JSON]], Awaitable[str]]
"""The reply as JSON text."""

SOCKET_NAME = "g.sock"
_SOCKET_PATH_BYTES = 100
"""Linux allows 108 bytes, macOS 104."""
_MAX_REQUEST_BYTES = 1 << 24
"""16 MB: images go with a request, but a body of nothing but brackets takes sixteen times its size when it is read."""
BROKEN_REQUESTS = logging.getLogger("bco_graph.gateway.requests")
"""What a caller breaks off or garbles is its own affair: said to who listens here, and never on the terminal."""
BROKEN_REQUESTS.propagate = False
BROKEN_REQUESTS.addHandler(logging.NullHandler())
_STATUS: Mapping[type[BcoError], tuple[int, str]] = {
    AuthenticationFailed: (403, "upstream_authentication_failed"),
    ContextOverflow: (400, "context_length_exceeded"),
    RequestRejected: (400, "request_rejected"),
    UpstreamUnavailable: (503, "upstream_unavailable"),
    BudgetExceeded: (402, "budget_exceeded"),
}


@dataclass
class Tokens:
    """Bearer tokens of this run: opaque, one per caller, so that a scaffold learns nothing from its own."""

    _callers: dict[str, Caller] = field(default_factory=dict)
    _tokens: dict[Caller, str] = field(default_factory=dict)

    def issue(self, caller: Caller) -> str:
        """The caller's token, the same each time."""
        token = self._tokens.setdefault(caller, f"bco-{secrets.token_urlsafe(24)}")
        self._callers[token] = caller
        return token

    def caller(self, authorization: str | None) -> Caller | None:
        return self._callers.get((authorization or "").removeprefix("Bearer ").strip())


def application(complete: Complete, tokens: Tokens, model_of: Callable[[Caller], str]) -> web.Application:
    """`model_of` gives the name under which a caller sees its one model."""

    async def chat(request: web.Request) -> web.Response:
        caller = tokens.caller(request.headers.get("Authorization"))
        if caller is None:
            return _unauthorized()
        body = parsed((await request.read()).decode("utf-8", "replace"))
        if not isinstance(body, dict):
            return _error(400, "request_rejected", "the body is no JSON object")
        try:
            reply = await complete(caller, body)
        except BcoError as error:
            status, code = _STATUS.get(type(error), (500, "gateway_error"))
            return _error(status, code, str(error))
        if not body.get("stream"):
            return web.Response(body=reply.encode(), content_type="application/json")
        options = body.get("stream_options")
        usage = isinstance(options, dict) and bool(options.get("include_usage"))
        return web.Response(body=events(json.loads(reply), usage=usage), content_type="text/event-stream")

    async def models(request: web.Request) -> web.Response:
        caller = tokens.caller(request.headers.get("Authorization"))
        if caller is None:
            return _unauthorized()
        model = {"id": model_of(caller), "object": "model", "created": 0, "owned_by": "bco-graph"}
        return web.json_response({"object": "list", "data": [model]})

    app = web.Application(client_max_size=_MAX_REQUEST_BYTES)
    app.router.add_post("/v1/chat/completions", chat)
    app.router.add_get("/v1/models", models)
    return app


def _unauthorized() -> web.Response:
    return _error(401, "invalid_api_key", "this gateway takes only the bearer token that the run gave to its job")


def _error(status: int, code: str, message: str) -> web.Response:
    body = {"error": {"message": message, "type": code, "param": None, "code": code}}
    headers = {"x-should-retry": "false"}
    return web.Response(text=dumps(body), status=status, headers=headers, content_type="application/json")


def socket_folder() -> Scratch:
    """A new private folder whose path leaves room for the socket's name."""
    made = Scratch.make("gateway")
    if len(os.fsencode(made.path / SOCKET_NAME)) > _SOCKET_PATH_BYTES:
        made.remove()
        made = Scratch.make("gateway", within="/tmp")
    return made
