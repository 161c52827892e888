"""One model call from the request to its receipt: pin, look up, refuse or send, count, write down, answer.

Everything here runs on the gateway's event loop. A call under way is a flight of its own: who waits for it may leave,
it is still paid, recorded and stored; who asks the same meanwhile waits for it too.
"""

from __future__ import annotations

import asyncio
import copy
import json
import time
from collections import Counter, OrderedDict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

from bco_graph.errors import (
    BcoError,
    BudgetExceeded,
    ConfigError,
    ContextOverflow,
    ModelCallError,
    RequestRejected,
    UpstreamUnavailable,
)
from bco_graph.gateway.cache import ResponseCache, cache_key
from bco_graph.gateway.deployments import Deployed, LaneName
from bco_graph.gateway.failures import Redactor
from bco_graph.gateway.group_commit import GroupCommit
from bco_graph.gateway.lanes import Lane, Retries
from bco_graph.gateway.pinning import Pinned, pin
from bco_graph.gateway.prices import Price
from bco_graph.gateway.replies import Usage, estimated_tokens, storable, text_bytes, usage_of, whole
from bco_graph.ledger import Ledger
from bco_graph.protocols import Caller, Role
from bco_graph.receipts import CallRecord, Receipts, dumps
from bco_graph.state import JSON

_REMEMBERED_CALLERS = 4096
_SURELY_BYTES_PER_TOKEN = 6
"""A prompt of more than this many UTF-8 bytes per token of the window is refused unsent: English text has about 4."""


_NOTHING = Usage(0, 0)


@dataclass(frozen=True)
class _Call:
    caller: Caller
    deployed: Deployed
    pinned: Pinned
    key: str
    started: float
    sent: str
    """The request after pinning as JSON text, the model's name in it."""


@dataclass(frozen=True)
class _Landed:
    """How a flight ended: the reply as JSON text, or the error."""

    reply: str = ""
    error: BcoError | None = None
    usage: Usage = _NOTHING
    model: str = ""


@dataclass
class Calls:
    """`prices` and `windows` are by deployment, `fallback_prices` by model, for answers of another deployment than was
    asked; what has no entry has no known price, or no known window."""

    roles: Mapping[Role, Deployed]
    problems: Mapping[Role, ConfigError]
    lanes: Mapping[LaneName, Lane]
    prices: Mapping[str, Price]
    fallback_prices: Mapping[str, Price]
    windows: Mapping[str, int]
    ledger: Ledger
    receipts: Receipts
    redactor: Redactor
    retries: Retries
    cache: ResponseCache | None
    offline: bool
    _flights: dict[str, asyncio.Task[_Landed]] = field(default_factory=dict)
    _under_way: set[asyncio.Task[_Landed]] = field(default_factory=set)
    _askings: OrderedDict[Caller, Counter[str]] = field(default_factory=OrderedDict)

    def __post_init__(self) -> None:
        self._commits = GroupCommit(self._commit)

    async def complete(self, caller: Caller, request: Mapping[str, JSON], *, probe: bool = False) -> dict[str, JSON]:
        """`probe`: one attempt, neither looked up nor stored."""
        call = self._prepare(caller, request)
        retries = replace(self.retries, retries=0) if probe else self.retries
        cache = None if probe else self.cache
        if cache is not None and (stored := cache.get(call.key)) is not None:
            return self._from_cache(call, stored)
        if self.offline:
            raise self._refused(call, _not_recorded(call))
        flight = self._flights.get(call.key) if cache is not None else None
        joined = flight is not None
        if flight is None:
            flight = self._launch(call, retries, cache)
        landed = await asyncio.shield(flight)
        if landed.error is not None:
            self._forget_asking(call)
            error = copy.copy(landed.error)
            raise self._refused(call, error) if joined else error
        return self._from_cache(call, landed.reply) if joined else dict(json.loads(landed.reply))

    def begin(self, caller: Caller) -> None:
        """A job starts, perhaps again: its askings count from 0, so that what it paid for before is found."""
        self._askings.pop(caller, None)

    async def drain(self, grace_s: float) -> None:
        """Wait for the calls under way, then cut off and record what is left."""
        if self._under_way:
            _, late = await asyncio.wait(self._under_way, timeout=grace_s)
            for task in late:
                task.cancel()
            await asyncio.gather(*late, return_exceptions=True)
        self._commits.close()

    # -- before it is sent -----------------------------------------------------------------------------------

    def _prepare(self, caller: Caller, request: Mapping[str, JSON]) -> _Call:
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
            raise self._refused(_Call(caller, deployed, Pinned(asked, {}), "", started, dumps(asked)), error) from None
        key = cache_key(deployed.model, deployed.endpoint, pinned.request, caller.repeat)
        if pinned.request.get("temperature") != 0 and (asking := self._count_asking(caller, key)):
            key = cache_key(deployed.model, deployed.endpoint, pinned.request, caller.repeat, asking)
        return _Call(caller, deployed, pinned, key, started, dumps({**pinned.request, "model": deployed.model}))

    def _count_asking(self, caller: Caller, key: str) -> int:
        """How many times this caller asked the same before. Where sampling is not frozen, each asking is another
        sample, so that votes within one job are not all one stored answer; asked again after a kill, the n-th finds
        the n-th."""
        counts = self._askings.setdefault(caller, Counter())
        self._askings.move_to_end(caller)
        if len(self._askings) > _REMEMBERED_CALLERS:
            self._askings.popitem(last=False)
        counts[key] += 1
        return counts[key] - 1

    def _forget_asking(self, call: _Call) -> None:
        """An asking that failed did not happen: asked again, it is the same one."""
        base = cache_key(call.deployed.model, call.deployed.endpoint, call.pinned.request, call.caller.repeat)
        if (counts := self._askings.get(call.caller)) is not None and counts[base] > 0:
            counts[base] -= 1

    # -- under way -------------------------------------------------------------------------------------------

    def _launch(self, call: _Call, retries: Retries, cache: ResponseCache | None) -> asyncio.Task[_Landed]:
        flight = asyncio.get_running_loop().create_task(self._fly(call, retries, cache))
        self._under_way.add(flight)
        flight.add_done_callback(self._under_way.discard)
        if cache is not None:
            self._flights[call.key] = flight
            flight.add_done_callback(lambda _: self._flights.pop(call.key, None))
        return flight

    async def _fly(self, call: _Call, retries: Retries, cache: ResponseCache | None) -> _Landed:
        deployed, price = call.deployed, self.prices.get(call.deployed.name)
        try:
            self._check_window(call)
            tokens, usd = _worst_case(call.pinned, price)
            hold = self.ledger.check(deployed.role, price is not None, model=deployed.model, tokens=tokens, usd=usd)
        except (ContextOverflow, BudgetExceeded, ConfigError) as error:
            return _Landed(error=self._refused(call, error))
        failed: list[JSON] = []
        changes = dict(call.pinned.changes)
        try:
            lane = self.lanes[deployed.lane]
            raw = await retries.run(lambda: lane.complete(deployed, call.pinned.request), failed)
            landed = self._land(call, raw, changes)
        except ModelCallError as error:
            error.attempts = len(failed) + 1
            landed = _Landed(error=self._redacted(error))
        except asyncio.CancelledError:
            landed = _Landed(error=UpstreamUnavailable("the gateway was closed while this call was under way"))
        except Exception as error:
            # A fault of ours, of litellm's or of llama.cpp's says nothing about who called; it must be on record.
            message = f"the {deployed.lane} lane failed: {type(error).__name__}: {error}"
            landed = _Landed(error=self._redacted(UpstreamUnavailable(message, attempts=len(failed) + 1)))
        if failed:
            changes["retries"] = failed
        record = self._record(call, landed, attempts=len(failed) + 1, changes=changes)
        stored = (call.key, landed.reply, record.model) if cache is not None and landed.error is None else None
        await self._commits.add((record, stored))
        self.ledger.book(record, hold)
        return landed

    def _commit(self, batch: Sequence[tuple[CallRecord, tuple[str, str, str] | None]]) -> None:
        self.receipts.add_calls([record for record, _ in batch])
        stored = [row for _, row in batch if row is not None]
        if stored and self.cache is not None:
            self.cache.put(stored)

    def _check_window(self, call: _Call) -> None:
        window, length = self.windows.get(call.deployed.name), text_bytes(call.pinned.request)
        if window is not None and length > window * _SURELY_BYTES_PER_TOKEN:
            raise ContextOverflow(
                f"a prompt of {length} bytes cannot fit the window of {call.deployed.model!r}, {window} tokens; "
                "it was not sent",
                status=400,
                attempts=0,
            )

    def _land(self, call: _Call, raw: dict[str, JSON], changes: dict[str, JSON]) -> _Landed:
        served_by = str(raw.pop("served_by", call.deployed.model))
        if served_by != call.deployed.model:
            changes["model"] = {"asked": call.deployed.model, "sent": served_by}
        for name in raw.pop("dropped", ()):
            changes[name] = {"asked": call.pinned.request[name], "by": "litellm_settings.drop_params"}
        reply = whole(storable(raw))
        usage = usage_of(reply)
        if usage is None:
            told = json.dumps(reply["choices"][0]["message"], ensure_ascii=False)
            usage = Usage(estimated_tokens(text_bytes(call.pinned.request)), estimated_tokens(len(told.encode())))
            reply["usage"] = {
                "prompt_tokens": usage.prompt,
                "completion_tokens": usage.completion,
                "total_tokens": usage.prompt + usage.completion,
                "estimated": True,
            }
            changes["usage"] = {"sent": "estimated, at 4 bytes a token: the endpoint reported none"}
        return _Landed(self.redactor.known(dumps(reply)), None, usage, served_by)

    # -- written down ----------------------------------------------------------------------------------------

    def _record(self, call: _Call, landed: _Landed, *, attempts: int, changes: Mapping[str, JSON]) -> CallRecord:
        caller, usage = call.caller, landed.usage
        model = landed.model or call.deployed.model
        return CallRecord(
            role=caller.role, candidate=caller.candidate, task=caller.task, repeat=caller.repeat, step=caller.step,
            deployment=call.deployed.name, model=model, key=call.key, cached=False, attempts=attempts,
            status="ok" if landed.error is None else type(landed.error).__name__,
            prompt_tokens=usage.prompt, cached_tokens=usage.cached, completion_tokens=usage.completion,
            usd=self._usd(call.deployed, model, usage), seconds=time.monotonic() - call.started,
            request=self.redactor.known(call.sent), response=landed.reply or _told(landed.error),
            changes=json.loads(self.redactor.known(dumps(changes))),
        )  # fmt: skip

    def _usd(self, deployed: Deployed, model: str, usage: Usage) -> float | None:
        price = self.prices.get(deployed.name) if model == deployed.model else self.fallback_prices.get(model)
        return price.of(usage) if price else 0.0 if usage == _NOTHING else None

    def _from_cache(self, call: _Call, stored: str) -> dict[str, JSON]:
        """Answer from what was paid before: the same content and usage, no money."""
        reply = dict(json.loads(stored))
        usage = usage_of(reply) or _NOTHING
        landed = _Landed(stored, None, usage)
        record = replace(self._record(call, landed, attempts=0, changes=call.pinned.changes), cached=True, usd=0.0)
        self.receipts.add_call(record)
        self.ledger.book(record)
        return reply

    def _refused(self, call: _Call, error: BcoError) -> BcoError:
        """Write down a call that was not sent, and give its error back."""
        record = self._record(call, _Landed(error=error), attempts=0, changes=call.pinned.changes)
        self.receipts.add_call(record)
        self.ledger.book(record)
        return error

    def _redacted(self, error: ModelCallError) -> ModelCallError:
        error.args = (self.redactor.error(str(error)),)
        error.raw = self.redactor.error(error.raw)
        error.__cause__ = error.__context__ = None
        return error


def _told(error: BcoError | None) -> str:
    return dumps(storable({"error": str(error), "raw": getattr(error, "raw", "")}))


def _worst_case(pinned: Pinned, price: Price | None) -> tuple[int, float]:
    """Tokens and USD that this call may take at most; (0, 0) where its length is not limited."""
    if pinned.max_tokens is None:
        return 0, 0.0
    prompt = estimated_tokens(text_bytes(pinned.request))
    usd = price.usd(prompt_tokens=prompt, completion_tokens=pinned.max_tokens) if price else 0.0
    return prompt + pinned.max_tokens, usd


def _not_recorded(call: _Call) -> RequestRejected:
    last = str(call.pinned.request["messages"][-1].get("content"))
    return RequestRejected(
        f"the recorded responses do not cover this request to {call.deployed.model!r} (repeat {call.caller.repeat}, "
        f"last message {last[:80]!r}), and this run makes no calls; run it with a model, or with the source, prompts "
        "and settings that were recorded",
        attempts=0,
    )
