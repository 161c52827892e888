"""What an evaluation will take, going by rows that are there; and what the held-out one that ends a run keeps back from
the budgets while the run searches."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from statistics import mean

from bco_graph.ledger import Reserve
from bco_graph.receipts import Receipts
from bco_graph.state import JSON, candidate_id


@dataclass(frozen=True, slots=True)
class Cost:
    """Expected of one evaluation. `usd` is None where no price is known."""

    calls: float
    tokens: float
    usd: float | None


def evaluation_cost(receipts: Receipts, spent: Mapping[str, JSON], task_runs: int) -> Cost:
    """Of `task_runs` like the baseline's, by the mean calls and tokens of its train rows. `spent` is the ledger's total
    of the target; its money says what a token costs, so there is none where nothing was paid for so far."""
    calls, tokens = (task_runs * each for each in _task_run(receipts, candidate_id(0)))
    priced = bool(spent.get("calls")) and spent["usd"] is not None
    return Cost(calls, tokens, tokens * _usd_per_token(spent) if priced else None)


def heldout_reserve(receipts: Receipts, spent: Mapping[str, JSON], best: str | None, task_runs: int) -> Reserve:
    """For `task_runs` of the baseline and as many of the best, at the mean calls and tokens of their train rows.

    While the best is the baseline or not known, another like the baseline is counted. What has been measured already is
    not kept again. Money goes by what the target's tokens have cost so far: `spent` is the ledger's total of that role.
    """
    baseline = candidate_id(0)
    measured = len(receipts.results("heldout", baseline))
    first = _task_run(receipts, baseline)
    second = _task_run(receipts, best or baseline)
    also = len(receipts.results("heldout", best)) if best and best != baseline else 0
    runs = max(0, task_runs - measured), max(0, task_runs - also)
    calls, tokens = (runs[0] * first[unit] + runs[1] * second[unit] for unit in (0, 1))
    return Reserve(round(calls), round(tokens), tokens * _usd_per_token(spent))


def _task_run(receipts: Receipts, candidate: str) -> tuple[float, float]:
    """Mean calls and tokens of a candidate's task on train; a call and no known tokens where it has no rows."""
    rows = receipts.results("train", candidate)
    return (mean(row.calls for row in rows), mean(row.tokens for row in rows)) if rows else (1.0, 0.0)


def _usd_per_token(spent: Mapping[str, JSON]) -> float:
    tokens = spent["prompt_tokens"] + spent["completion_tokens"] if spent else 0
    return float((spent["usd"] or 0.0) / tokens) if tokens else 0.0
