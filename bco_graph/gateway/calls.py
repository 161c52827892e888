"""One model call from the request to its receipt: pin, look up, refuse or send, count, write down, answer.

Everything here runs on the gateway's event loop. A call under way is a flight of its own: who waits for it may leave,
it is still paid, recorded and stored; who asks the same meanwhile waits for it too.
"""

from __future__ import annotations

import asyncio
import copy
import functools
import json
import time
from collections.abc import Mapping
from dataclasses import dataclass, field, replace

from bco_graph.errors import (
    BudgetExceeded,
    ConfigError,
    ContextOverflow,
    ModelCallError,
    RequestRejected,
    RunUnreadable,
    UpstreamUnavailable,
)
from bco_graph.gateway.askings import Askings
from bco_graph.gateway.booking import Booking, Call, Landed
from bco_graph.gateway.cache import ResponseCache, cache_key
from bco_graph.gateway.deployments import Deployed, LaneName
from bco_graph.gateway.dropping import Dropping
from bco_graph.gateway.lanes import Lane, Retries
from bco_graph.gateway.pinning import Pinned, pin
from bco_graph.gateway.prices import Price
from bco_graph.gateway.replies import Usage, estimated_tokens, storable, text_bytes, usage_of, whole
from bco_graph.gateway.streaming import Hearing, refuses_to_stream
from bco_graph.ledger import Hold
from bco_graph.protocols import Caller, Role
from bco_graph.receipts import dumps
from bco_graph.state import JSON

_SURELY_BYTES_PER_TOKEN = 6
"""A prompt of more than this many UTF-8 bytes per token of the window is refused unsent: English text has about 4."""


@dataclass
class Calls:
    """`windows` are by deployment; what has no entry has no known window."""

    roles: Mapping[Role, Deployed]
    problems: Mapping[Role, ConfigError]
    lanes: Mapping[LaneName, Lane]
    windows: Mapping[str, int]
    booking: Booking
    retries: Retries
    cache: ResponseCache | None
    offline: bool
    _flights: dict[str, asyncio.Task[Landed]] = field(default_factory=dict)
    _under_way: set[asyncio.Task[Landed]] = field(default_factory=set)
    _askings: Askings = field(default_factory=Askings)
    _dropping: Dropping = field(default_factory=Dropping)
    _not_streaming: set[tuple[str, str]] = field(default_factory=set)
    """Name and model of the deployments that refused to stream."""

    async def complete(
        self, caller: Caller, request: Mapping[str, JSON], *, probe: bool = False, hearing: Hearing | None = None
    ) -> str:
        """The reply as JSON text. `request` is parsed JSON; `probe`: one attempt, neither looked up nor stored;
        `hearing`: who listens to the reply as it comes, where this call is sent."""
        call = await self._prepare(caller, request)
        cache = None if probe else self.cache
        if cache is not None and (stored := await self._stored(call, cache)) is not None:
            await self.booking.cached(call, stored)
            return stored
        if self.offline:
            raise await self.booking.refused(call, _not_recorded(call))
        flight = self._flights.get(call.key) if cache is not None else None
        joined = flight is not None
        if flight is None:
            once = probe or call.deployed.own_retries
            retries = replace(self.retries, retries=0) if once else self.retries
            flight = self._launch(call, retries, cache, hearing)
        landed = await asyncio.shield(flight)
        if landed.error is not None:
            self._askings.forget(caller, call.first_key)
            error = copy.copy(landed.error)
            raise await self.booking.refused(call, error) if joined else error
        if joined:
            await self.booking.cached(call, landed.reply)
        return landed.reply

    async def _stored(self, call: Call, cache: ResponseCache) -> str | None:
        try:
            return cache.get(call.key)
        except RunUnreadable as error:
            raise await self.booking.refused(call, UpstreamUnavailable(str(error), attempts=0)) from error

    def begin(self, caller: Caller) -> None:
        """A job starts, perhaps again."""
        self._askings.begin(caller)

    async def drain(self, grace_s: float) -> None:
        """Wait for the calls under way, then cut off and record what is left."""
        if self._under_way:
            _, late = await asyncio.wait(self._under_way, timeout=grace_s)
            for task in late:
                task.cancel()
            await asyncio.gather(*late, return_exceptions=True)

    # -- before it is sent -----------------------------------------------------------------------------------

    async def _prepare(self, caller: Caller, request: Mapping[str, JSON]) -> Call:
        if caller.role in self.problems:
            raise copy.copy(self.problems[caller.role])
        if caller.role not in self.roles:
            raise ConfigError(
                f"role {caller.role!r} has no deployment in this run (roles: {', '.join(self.roles)}): "
                f"name one of models.model_list under roles.{caller.role}"
            )
        deployed, started = self.roles[caller.role], time.monotonic()
        try:
            pinned = pin(deployed, request)
        except RequestRejected as error:
            asked = storable(request)
            refused = Call(caller, deployed, Pinned.of(asked, {}), "", "", started, dumps(asked))
            raise await self.booking.refused(refused, error) from None
        except RecursionError:
            raise RequestRejected("the request is nested too deeply", status=400, attempts=0) from None
        text = pinned.text()
        key = first = cache_key(deployed.model, deployed.endpoint, text, caller.repeat)
        if pinned.request.get("temperature") != 0 and (asking := self._askings.count(caller, first)):
            key = cache_key(deployed.model, deployed.endpoint, text, caller.repeat, asking)
        return Call(caller, deployed, pinned, first, key, started, pinned.text(deployed.model))

    # -- under way -------------------------------------------------------------------------------------------

    def _launch(
        self, call: Call, retries: Retries, cache: ResponseCache | None, hearing: Hearing | None
    ) -> asyncio.Task[Landed]:
        flight = asyncio.get_running_loop().create_task(self._fly(call, retries, hearing, store=cache is not None))
        self._under_way.add(flight)
        flight.add_done_callback(self._under_way.discard)
        if cache is not None:
            self._flights[call.key] = flight
            flight.add_done_callback(lambda _: self._flights.pop(call.key, None))
        return flight

    async def _fly(self, call: Call, retries: Retries, hearing: Hearing | None, *, store: bool) -> Landed:
        try:
            hold = self._admit(call)
        except (ContextOverflow, BudgetExceeded, ConfigError) as error:
            return Landed(error=await self.booking.refused(call, error))
        failed: list[JSON] = []
        changes = dict(call.pinned.changes)
        call, landed = await self._send(call, retries, hearing, failed, changes)
        if failed:
            changes["retries"] = failed
        await self.booking.landed(call, landed, hold, attempts=len(failed) + 1, changes=changes, store=store)
        return landed

    def _admit(self, call: Call) -> Hold:
        """Hold the call's worst case against the budget, or raise why it is not made."""
        deployed, most = call.deployed, call.pinned.max_tokens
        window, price = self.windows.get(deployed.name), self.booking.prices.get(deployed.name)
        length = 0 if window is None and most is None else text_bytes(call.pinned.request)
        if window is not None and length > window * _SURELY_BYTES_PER_TOKEN:
            raise ContextOverflow(
                f"a prompt of {length} bytes cannot fit the window of {deployed.model!r}, {window} tokens; "
                "it was not sent",
                status=400,
                attempts=0,
            )
        tokens, usd = (0, 0.0) if most is None else _worst_case(estimated_tokens(length), most, price)
        return self.booking.ledger.check(deployed.role, price is not None, model=deployed.model, tokens=tokens, usd=usd)

    async def _send(
        self, call: Call, retries: Retries, hearing: Hearing | None, failed: list[JSON], changes: dict[str, JSON]
    ) -> tuple[Call, Landed]:
        """The call as it was sent in the end, and how it ended; `failed` and `changes` are added to."""
        try:
            while True:
                call = self._without_refused(call, changes)
                attempt = functools.partial(self.lanes[call.deployed.lane].complete, call.deployed, call.pinned)
                if hearing is not None:
                    attempt = functools.partial(self._heard, call, hearing)
                try:
                    return call, self._land(call, await retries.run(attempt, failed), changes)
                except RequestRejected as error:
                    self._dropping.refused(call.deployed, call.pinned, error)
        except ModelCallError as error:
            error.attempts = len(failed) + 1
            return call, Landed(error=self.booking.redacted(error))
        except asyncio.CancelledError:
            return call, Landed(error=UpstreamUnavailable("the gateway was closed while this call was under way"))
        except Exception as error:
            # A fault of ours, of litellm's or of llama.cpp's says nothing about who called; it must be on record.
            message = f"the {call.deployed.lane} lane failed: {type(error).__name__}: {error}"
            return call, Landed(error=self.booking.redacted(UpstreamUnavailable(message, attempts=len(failed) + 1)))

    async def _heard(self, call: Call, hearing: Hearing) -> dict[str, JSON]:
        """One attempt that is listened to; a plain one where the deployment refuses to stream."""
        deployed, lane = call.deployed, self.lanes[call.deployed.lane]
        place = deployed.name, deployed.model
        hearing.begin()
        if place in self._not_streaming:
            return await lane.complete(deployed, call.pinned)
        try:
            reply = await lane.stream(deployed, call.pinned, hearing.take)
        except RequestRejected as error:
            if not refuses_to_stream(error):
                raise
            hearing.begin()
            reply = await lane.complete(deployed, call.pinned)
            self._not_streaming.add(place)
        hearing.end()
        return reply

    def _without_refused(self, call: Call, changes: dict[str, JSON]) -> Call:
        pinned = self._dropping.known(call.deployed, call.pinned, changes)
        return call if pinned is call.pinned else replace(call, pinned=pinned, sent=pinned.text(call.deployed.model))

    def _land(self, call: Call, raw: dict[str, JSON], changes: dict[str, JSON]) -> Landed:
        served_by = str(raw.pop("served_by", call.deployed.model))
        if served_by != call.deployed.model:
            changes["model"] = {"asked": call.deployed.model, "sent": served_by}
        reply = whole(raw)
        deployed = call.deployed
        self.booking.notices.answered(deployed.name, served_by, deployed.model, reply.get("system_fingerprint"))
        usage = usage_of(reply)
        if usage is None:
            told = json.dumps(reply["choices"][0]["message"])
            usage = Usage(estimated_tokens(text_bytes(call.pinned.request)), estimated_tokens(len(told.encode())))
            reply["usage"] = {
                "prompt_tokens": usage.prompt,
                "completion_tokens": usage.completion,
                "total_tokens": usage.prompt + usage.completion,
                "estimated": True,
            }
            changes["usage"] = {"sent": "estimated, at 4 bytes a token: the endpoint reported none"}
        return Landed(self.booking.redactor.known(_text(reply)), None, usage, served_by)


def _text(reply: dict[str, JSON]) -> str:
    """What strict JSON cannot say is rare: it is looked for only where writing it failed."""
    try:
        text = dumps(reply)
        text.encode()
    except ValueError:
        return dumps(storable(reply))
    return text


def _worst_case(prompt: int, most: int, price: Price | None) -> tuple[int, float]:
    """Tokens and USD that a call may take at most."""
    return prompt + most, price.usd(prompt_tokens=prompt, completion_tokens=most) if price else 0.0


def _not_recorded(call: Call) -> RequestRejected:
    last = str(call.pinned.request["messages"][-1].get("content"))
    return RequestRejected(
        f"the recorded responses do not cover this request to {call.deployed.model!r} (repeat {call.caller.repeat}, "
        f"last message {last[:80]!r}), and this run makes no calls; run it with a model, or with the source, prompts "
        "and settings that were recorded",
        attempts=0,
    )
