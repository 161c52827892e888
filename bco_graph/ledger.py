"""What the run has spent, per role, and the refusal before a call that would pass a budget.

Totals are those of the receipts: a resumed run starts where the killed one stopped. Calls that are under way are
held against the budget with their worst case, so that many at once cannot pass it together. While a run searches,
what its final held-out evaluation will take is kept back.
"""

from __future__ import annotations

import threading
import time
from dataclasses import dataclass

from bco_graph.config import Budget
from bco_graph.errors import BudgetExceeded, ConfigError
from bco_graph.protocols import Role
from bco_graph.receipts import CallRecord, Receipts
from bco_graph.state import JSON

_COUNTS = ("calls", "cache_hits", "prompt_tokens", "completion_tokens", "usd", "seconds")


@dataclass(frozen=True, slots=True)
class Hold:
    """The worst case of one call under way. `tokens` are prompt and completion together; 0 where it is not known."""

    tokens: int = 0
    usd: float = 0.0


@dataclass(frozen=True, slots=True)
class Reserve:
    """What is kept back of each budget for the held-out evaluation that ends a run."""

    calls: int = 0
    tokens: int = 0
    usd: float = 0.0


class Ledger:
    """Thread-safe. `started` is seconds since the epoch, from which `budget.wall_s` counts; None: from now."""

    def __init__(self, budget: Budget, receipts: Receipts, *, started: float | None = None) -> None:
        self.budget = budget
        self._started = time.time() if started is None else started
        self._lock = threading.Lock()
        self._holds: list[Hold] = []
        self._reserve = Reserve()
        self._totals: dict[str, dict[str, JSON]] = {}
        for row in receipts.spend():
            self._add(str(row["role"]), {name: row[name] for name in _COUNTS})

    def require_price(self, role: Role, priced: bool, *, model: str = "") -> None:
        """Called before the first call: a budget in USD cannot be kept for a model whose price nobody knows."""
        if self.budget.usd is not None and not priced:
            raise ConfigError(
                f"budget.usd is set, but no price is known for the model {model!r} of role {role!r}: give its "
                "deployment model_info.input_cost_per_token and model_info.output_cost_per_token (USD per token), "
                "or use budget.tokens instead"
            )

    def check(self, role: Role, model_priced: bool, *, model: str = "", tokens: int = 0, usd: float = 0.0) -> Hold:
        """Admit one call, or raise before it is made.

        `tokens` and `usd` are the call's worst case, 0 where it is not known; they are held until `book` gets the
        hold back. Raises BudgetExceeded where a limit is used up or this call would pass it, and ConfigError
        where a budget in USD meets a model without a price.
        """
        self.require_price(role, model_priced, model=model)
        hold = Hold(tokens, usd)
        with self._lock:
            refusal = self._passed(hold)
            if refusal is not None:
                raise refusal
            self._holds.append(hold)
        return hold

    def keep(self, reserve: Reserve) -> None:
        """Keep this much back from now on, in place of what was kept before; an empty one frees everything."""
        with self._lock:
            self._reserve = reserve

    def book(self, call: CallRecord, hold: Hold | None = None) -> None:
        """Count a call that ended. A cached one counts as a hit only; one that made no attempt counts as nothing."""
        made = 0 if call.cached or call.attempts == 0 else 1
        counts = {
            "calls": made,
            "cache_hits": int(call.cached),
            "prompt_tokens": made * call.prompt_tokens,
            "completion_tokens": made * call.completion_tokens,
            "usd": 0.0 if made == 0 else call.usd,
            "seconds": made * call.seconds,
        }
        with self._lock:
            self._add(call.role, counts)
            if hold is not None:
                self._holds.remove(hold)

    def exhausted(self) -> str | None:
        """The name of a limit that leaves no room for one more call, or None."""
        with self._lock:
            refusal = self._passed(Hold())
            return None if refusal is None else refusal.limit

    def totals(self) -> dict[str, dict[str, JSON]]:
        """Per role: calls made upstream, cache hits, tokens, seconds, and `usd` (None: a price was not known)."""
        with self._lock:
            return {role: dict(counts) for role, counts in sorted(self._totals.items())}

    def _add(self, role: str, counts: dict[str, JSON]) -> None:
        total = self._totals.setdefault(role, dict.fromkeys(_COUNTS, 0) | {"usd": 0.0, "seconds": 0.0})
        for name in _COUNTS:
            unknown = total[name] is None or counts[name] is None
            total[name] = None if unknown else total[name] + counts[name]

    def _passed(self, more: Hold) -> BudgetExceeded | None:
        """The refusal by the first limit that `more` would pass, the reserve counted as spent; None: there is room."""
        totals, holds, budget, reserve = self._totals.values(), self._holds, self.budget, self._reserve
        tokens = sum(t["prompt_tokens"] + t["completion_tokens"] for t in totals) + sum(h.tokens for h in holds)
        usd = sum(t["usd"] or 0.0 for t in totals) + sum(h.usd for h in holds)
        made = sum(t["calls"] for t in totals) + len(holds)
        wall = time.time() - self._started
        limits: list[tuple[str, float, float, float, float | None]] = [
            ("calls", made, 1, reserve.calls, budget.calls),
            ("tokens", tokens, more.tokens, reserve.tokens, budget.tokens),
            ("usd", usd, more.usd, reserve.usd, budget.usd),
            ("wall_s", wall, 0, 0, budget.wall_s),
        ]
        for name, spent, wanted, kept, allowed in limits:
            if allowed is not None and (spent + kept >= allowed or spent + kept + wanted > allowed):
                return BudgetExceeded(name, used=spent + kept + wanted, allowed=allowed, reserved=kept)
        return None
