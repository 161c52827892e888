"""What is written down of a call, and the money it cost: receipts, stored responses and the ledger's totals."""

from __future__ import annotations

import json
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from bco_graph.errors import BcoError, ModelCallError, UpstreamUnavailable
from bco_graph.gateway.cache import ResponseCache
from bco_graph.gateway.deployments import Deployed
from bco_graph.gateway.group_commit import GroupCommit
from bco_graph.gateway.lanes import is_completion, parsed
from bco_graph.gateway.notices import Notices
from bco_graph.gateway.pinning import Pinned
from bco_graph.gateway.prices import Price
from bco_graph.gateway.replies import NO_USAGE, Usage, storable, usage_of
from bco_graph.ledger import Hold, Ledger
from bco_graph.protocols import Caller
from bco_graph.receipts import CallRecord, Receipts, dumps
from bco_graph.redaction import Redactor
from bco_graph.state import JSON

_Written = tuple[CallRecord, tuple[str, str, str] | None]
"""A receipt, and the row of the cache that goes with it."""


@dataclass(frozen=True, slots=True)
class Call:
    caller: Caller
    deployed: Deployed
    pinned: Pinned
    first_key: str
    """The key of the first asking; `key` is that of this one."""
    key: str
    started: float
    sent: str
    """The request after pinning as JSON text, the model's name in it."""


@dataclass(frozen=True, slots=True)
class Landed:
    """How a call ended: the reply as JSON text, or the error."""

    reply: str = ""
    error: BcoError | None = None
    usage: Usage = NO_USAGE
    model: str = ""


@dataclass
class Booking:
    """`prices` are by deployment, `fallback_prices` by model, for answers of another deployment than was asked; what
    has no entry has no known price. All of it belongs to the gateway's loop."""

    prices: Mapping[str, Price]
    fallback_prices: Mapping[str, Price]
    ledger: Ledger
    receipts: Receipts
    redactor: Redactor
    notices: Notices
    cache: ResponseCache | None

    def __post_init__(self) -> None:
        self._commits: GroupCommit[_Written] = GroupCommit(self._commit)

    async def landed(
        self, call: Call, landed: Landed, hold: Hold, *, attempts: int, changes: Mapping[str, JSON], store: bool
    ) -> None:
        """Write down a call that was sent, durably, and count it."""
        record = self._record(call, landed, attempts=attempts, changes=changes)
        stored = (call.key, landed.reply, record.model) if store and landed.error is None else None
        await self._commits.add((record, stored))
        self.ledger.book(record, hold)

    async def cached(self, call: Call, stored: str) -> None:
        """Write down an answer from what was paid before: the same content and usage, no money.

        Raises UpstreamUnavailable where no completion is stored: that says nothing about who asked.
        """
        reply = parsed(stored)
        if not is_completion(reply) or not reply["choices"]:
            reason = "the response stored in cache.sqlite is no completion: delete the file and run again"
            raise await self.refused(call, UpstreamUnavailable(reason, attempts=0))
        usage = usage_of(reply) or NO_USAGE
        record = self._record(call, Landed(stored, None, usage), attempts=0, changes=call.pinned.changes)
        record = replace(record, cached=True, usd=0.0)
        await self._commits.add((record, None))
        self.ledger.book(record)

    async def refused(self, call: Call, error: BcoError) -> BcoError:
        """Write down a call that was not sent, and give its error back."""
        record = self._record(call, Landed(error=error), attempts=0, changes=call.pinned.changes)
        await self._commits.add((record, None))
        self.ledger.book(record)
        return error

    def redacted(self, error: ModelCallError) -> ModelCallError:
        error.args = (self.redactor.error(str(error)),)
        error.raw = self.redactor.error(error.raw)
        error.__cause__ = error.__context__ = None
        return error

    def close(self) -> None:
        self._commits.close()

    def _commit(self, batch: Sequence[_Written]) -> None:
        self.receipts.add_calls([record for record, _ in batch])
        stored = [row for _, row in batch if row is not None]
        if stored and self.cache is not None:
            self.cache.put(stored)

    def _record(self, call: Call, landed: Landed, *, attempts: int, changes: Mapping[str, JSON]) -> CallRecord:
        caller, usage = call.caller, landed.usage
        model = landed.model or call.deployed.model
        kept = json.loads(self.redactor.known(dumps(changes))) if changes else {}
        self.notices.changed(call.deployed.name, kept)
        return CallRecord(
            role=caller.role, candidate=caller.candidate, task=caller.task, repeat=caller.repeat, step=caller.step,
            deployment=call.deployed.name, model=model, key=call.key, cached=False, attempts=attempts,
            status="ok" if landed.error is None else type(landed.error).__name__,
            prompt_tokens=usage.prompt, cached_tokens=usage.cached, completion_tokens=usage.completion,
            usd=self._usd(call.deployed, model, usage), seconds=time.monotonic() - call.started,
            request=self.redactor.known(call.sent), response=landed.reply or _told(landed.error),
            changes=kept,
        )  # fmt: skip

    def _usd(self, deployed: Deployed, model: str, usage: Usage) -> float | None:
        price = self.prices.get(deployed.name) if model == deployed.model else self.fallback_prices.get(model)
        return price.of(usage) if price else 0.0 if usage == NO_USAGE else None


def _told(error: BcoError | None) -> str:
    return dumps(storable({"error": str(error), "raw": getattr(error, "raw", "")}))
