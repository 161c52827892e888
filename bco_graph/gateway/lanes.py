"""How a request reaches a model: one protocol, four lanes, one retry layer above them.

forward   (here)       the deployment speaks OpenAI's protocol: posted over one shared aiohttp session
litellm   (routed.py)  everything else, and whatever asks for litellm's router
local     (local.py)   models that run in this process
chat      (chat_models.py)  LangChain chat models given in code

A lane makes one attempt, within the time limit it was built with. It returns the completion as it came, or raises a
ModelCallError. Streamed, where somebody listens, it returns the same, and says meanwhile what comes.
"""

from __future__ import annotations

import asyncio
import json
import random
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from typing import Protocol

import aiohttp
from multidict import CIMultiDict
from yarl import URL

from bco_graph.errors import UpstreamUnavailable
from bco_graph.gateway.deployments import Deployed
from bco_graph.gateway.failures import failure, retry_after_s
from bco_graph.gateway.pinning import Pinned
from bco_graph.gateway.streaming import Pieces, Take, events_in
from bco_graph.state import JSON
from bco_graph.strict_json import MAX_DEPTH, is_too_deep

RETRY_AFTER_CAP_S = 60.0
"""The longest wait that an upstream's Retry-After is granted."""
_OURS = frozenset({"served_by"})
"""What a lane may add to a completion; an endpoint may not."""
STREAMED: Mapping[str, JSON] = {"stream": True, "stream_options": {"include_usage": True}}
"""What a streamed request says beside a plain one."""


class Lane(Protocol):
    """Lives on the gateway's event loop. What is sent has no model; the deployment names it."""

    async def complete(self, deployed: Deployed, pinned: Pinned) -> dict[str, JSON]:
        """One attempt. Beside the completion, the result may hold `served_by`, the model that answered where it is
        not the deployment's."""

    async def stream(self, deployed: Deployed, pinned: Pinned, take: Take) -> dict[str, JSON]:
        """As `complete`, and `take` is given what comes; nothing where the endpoint answers whole. Raises
        RequestRejected, its text about streaming, where it refuses to stream."""

    async def close(self) -> None:
        """Close every connection; a lane is not used again."""


@dataclass(frozen=True)
class Retries:
    """The only retry layer: `retries` more attempts after a failure that may pass.

    Waits double from `base_s`, less a random part of up to a half; they are never shorter than the upstream's
    Retry-After, as far as that is granted.
    """

    retries: int
    base_s: float = 0.5
    cap_s: float = 30.0
    rng: random.Random = field(default_factory=random.Random)

    async def run(self, attempt: Callable[[], Awaitable[dict[str, JSON]]], failed: list[JSON]) -> dict[str, JSON]:
        """The reply, or the error of the last attempt. Each failed attempt before it is appended to `failed`."""
        while True:
            try:
                return await attempt()
            except UpstreamUnavailable as error:
                if len(failed) >= self.retries:
                    raise
                wait_s = self._wait_s(len(failed), error.retry_after_s)
                failed.append({"status": error.status, "retry_after_s": error.retry_after_s, "waited_s": wait_s})
                await asyncio.sleep(wait_s)

    def _wait_s(self, failures: int, asked_s: float | None) -> float:
        backoff: float = self.rng.uniform(0.5, 1.0) * min(self.cap_s, self.base_s * 2.0**failures)
        return round(max(backoff, min(asked_s or 0.0, RETRY_AFTER_CAP_S)), 3)


class ForwardLane:
    """Posts to `api_base/chat/completions`; no client library between, so 0.3 ms a call instead of 6."""

    def __init__(self, timeout_s: float) -> None:
        self._timeout_s = timeout_s
        timeout = aiohttp.ClientTimeout(total=timeout_s)
        self._session = aiohttp.ClientSession(connector=aiohttp.TCPConnector(limit=0), timeout=timeout)
        self._doors: dict[str, tuple[URL, CIMultiDict[str]]] = {}
        """Where each deployment is posted to, and with which headers."""

    async def complete(self, deployed: Deployed, pinned: Pinned) -> dict[str, JSON]:
        return await self._post(deployed, pinned)

    async def stream(self, deployed: Deployed, pinned: Pinned, take: Take) -> dict[str, JSON]:
        return await self._post(deployed, Pinned.of({**pinned.request, **STREAMED}, {}), take)

    async def _post(self, deployed: Deployed, pinned: Pinned, take: Take | None = None) -> dict[str, JSON]:
        if (door := self._doors.get(deployed.name)) is None:
            door = self._doors[deployed.name] = _door(deployed)
        url, headers = door
        try:
            async with self._session.post(
                url,
                data=_body(deployed, pinned),
                headers=headers,
                allow_redirects=False,
            ) as response:
                if take is not None and response.status < 300:
                    return await _streamed(response, take)
                text = (await response.read()).decode("utf-8", "replace")
                return _completion(text, response.status, response.headers.get("Retry-After"))
        except TimeoutError as error:
            raise too_late(self._timeout_s) from error
        except aiohttp.ClientError as error:
            raise UpstreamUnavailable(f"no connection to {deployed.host}: {error or type(error).__name__}") from error

    async def close(self) -> None:
        await self._session.close()


def too_late(timeout_s: float) -> UpstreamUnavailable:
    return UpstreamUnavailable(f"no answer within models.timeout_s, {timeout_s:g} s")


def _door(deployed: Deployed) -> tuple[URL, CIMultiDict[str]]:
    route, headers = deployed.route, {"Content-Type": "application/json"}
    if route.get("api_key"):
        headers["Authorization"] = f"Bearer {route['api_key']}"
    if route.get("organization"):
        headers["OpenAI-Organization"] = str(route["organization"])
    headers |= dict(route.get("extra_headers") or route.get("headers") or {})
    return URL(f"{deployed.api_base}/chat/completions"), CIMultiDict(headers)


def _body(deployed: Deployed, pinned: Pinned) -> bytes:
    if "extra_body" in pinned.request:
        merged = {**pinned.request, **(pinned.request["extra_body"] or {})}
        pinned = Pinned.of({name: value for name, value in merged.items() if name not in ("extra_body", "model")}, {})
    return pinned.text(deployed.model.partition("/")[2]).encode()


async def _streamed(response: aiohttp.ClientResponse, take: Take) -> dict[str, JSON]:
    """The completion that an event stream makes up, or that the body is: some endpoints take no notice of `stream`."""
    content, first = response.content, b""
    while not first.strip() and not content.at_eof():
        first += await content.readany()
    if first.lstrip()[:1] in (b"", b"{", b"[", b"<"):
        return _completion((first + await content.read()).decode("utf-8", "replace"), response.status, None)

    async def bodies() -> AsyncIterator[bytes]:
        yield first
        async for body in content.iter_any():
            yield body

    pieces, ended = Pieces(), False
    async for event in events_in(bodies()):
        if ended := event.strip() == "[DONE]":
            break
        chunk = parsed(event)
        if not isinstance(chunk, Mapping):
            raise UpstreamUnavailable("an event of the stream is no JSON object", status=response.status, raw=event)
        if chunk.get("error"):
            return _completion(json.dumps({"error": chunk["error"]}), response.status, None)
        take(pieces.add(chunk))
    if not ended and not pieces.ended:
        raise UpstreamUnavailable("the stream broke off before the reply's end", status=response.status)
    return {name: value for name, value in pieces.whole().items() if name not in _OURS}


def _completion(text: str, status: int, retry_after: str | None) -> dict[str, JSON]:
    body = parsed(text)
    error = body.get("error") if isinstance(body, Mapping) else None
    if status >= 300 or (error and "choices" not in body):
        told: Mapping[str, JSON] = error if isinstance(error, Mapping) else body if isinstance(body, Mapping) else {}
        code = told.get("code")
        if status < 300 and isinstance(code, int):
            status = code
        message = f"status {status}: {told.get('message') or error or text[:2000]}"
        known = None if status < 300 else status
        named = code if isinstance(code, str) else None
        raise failure(message, status=known, code=named, retry_after_s=retry_after_s(retry_after), raw=text)
    if not is_completion(body):
        raise UpstreamUnavailable(f"status {status}, but the body is no chat completion", status=status, raw=text)
    return {name: value for name, value in body.items() if name not in _OURS}


def is_completion(body: JSON) -> bool:
    """Whether a body has the outline of a chat completion; what is null in it is mended later."""
    if not isinstance(body, Mapping) or "choices" not in body:
        return False
    choices = body["choices"]
    return choices is None or (
        isinstance(choices, list)
        and all(isinstance(c, Mapping) and isinstance(c.get("message"), Mapping | None) for c in choices)
    )


def parsed(text: str) -> JSON:
    """The JSON value of a body, or None where it is none, or nested too deeply to be walked through."""
    try:
        value = json.loads(text)
    except (ValueError, RecursionError):
        return None
    brackets = text.count("[") + text.count("{")
    return None if brackets > MAX_DEPTH and is_too_deep(value) else value
