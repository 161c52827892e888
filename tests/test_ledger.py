"""The ledger: totals, limits, calls under way, and what a resumed run already used."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from bco_graph.config import Budget
from bco_graph.errors import BudgetExceeded, ConfigError
from bco_graph.ledger import Ledger, Reserve
from bco_graph.receipts import CallRecord, Receipts

CALL = CallRecord(
    role="target", candidate="iter_001", task="t1", repeat=0, step="", deployment="m", model="openai/m", key="k",
    cached=False, attempts=1, status="ok", prompt_tokens=100, cached_tokens=0, completion_tokens=10, usd=0.5,
    seconds=2.0, request="{}", response="{}", changes={},
)  # fmt: skip


@pytest.fixture
def receipts(tmp_path: Path) -> Iterator[Receipts]:
    opened = Receipts(tmp_path / "receipts.sqlite")
    yield opened
    opened.close()


def refused(ledger: Ledger, **worst: Any) -> str | None:
    """The limit that refuses the next call, or None; an admitted call is booked as nothing."""
    try:
        hold = ledger.check("target", True, **worst)
    except BudgetExceeded as error:
        return error.limit if error.used >= error.allowed else f"{error.limit}, although there is room"
    ledger.book(replace(CALL, attempts=0), hold)
    return None


def test_without_limits_everything_is_admitted_and_totals_add_up_per_role(receipts: Receipts) -> None:
    ledger = Ledger(Budget(), receipts)
    for call in (CALL, CALL, replace(CALL, role="proposer", usd=0.25), replace(CALL, cached=True, attempts=0, usd=0.0)):
        ledger.book(call)
    assert refused(ledger, tokens=10**9, usd=10.0**6) is None
    assert ledger.exhausted() is None
    assert ledger.totals() == {
        "proposer": {
            "calls": 1,
            "cache_hits": 0,
            "prompt_tokens": 100,
            "completion_tokens": 10,
            "usd": 0.25,
            "seconds": 2,
        },
        "target": {
            "calls": 2,
            "cache_hits": 1,
            "prompt_tokens": 200,
            "completion_tokens": 20,
            "usd": 1.0,
            "seconds": 4,
        },
    }


@pytest.mark.parametrize(
    ("budget", "limit"),
    [({"calls": 2}, "calls"), ({"tokens": 220}, "tokens"), ({"usd": 1.0}, "usd"), ({"tokens": 215}, "tokens")],
)
def test_a_limit_that_is_used_up_refuses_the_next_call_all_roles_together(
    budget: dict[str, Any], limit: str, receipts: Receipts
) -> None:
    ledger = Ledger(Budget.model_validate(budget), receipts)
    ledger.book(CALL)
    assert refused(ledger) is None
    ledger.book(replace(CALL, role="proposer"))
    assert refused(ledger) == limit == ledger.exhausted()


def test_a_worst_case_that_would_pass_a_limit_is_refused_one_that_just_fits_is_not(receipts: Receipts) -> None:
    ledger = Ledger(Budget(tokens=210, usd=1.0), receipts)
    ledger.book(CALL)
    assert refused(ledger, tokens=100) is None
    assert refused(ledger, tokens=101) == "tokens"
    assert refused(ledger, usd=0.5) is None
    assert refused(ledger, usd=0.51) == "usd"


def test_calls_under_way_count_until_they_are_booked(receipts: Receipts) -> None:
    ledger = Ledger(Budget(calls=2, tokens=1000), receipts)
    first = ledger.check("target", True, tokens=400)
    ledger.check("proposer", True, tokens=400)
    assert refused(ledger) == "calls"
    ledger.book(replace(CALL, attempts=0), first)
    assert refused(ledger, tokens=601) == "tokens"
    assert refused(ledger, tokens=600) is None


def test_many_threads_cannot_pass_a_limit_together(receipts: Receipts) -> None:
    ledger, admitted = Ledger(Budget(calls=50), receipts), []

    def ask() -> None:
        for _ in range(20):
            try:
                ledger.book(CALL, ledger.check("target", True))
                admitted.append(1)
            except BudgetExceeded:
                pass

    threads = [threading.Thread(target=ask) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(admitted) == ledger.totals()["target"]["calls"] == 50


def test_a_resumed_run_starts_from_the_receipts(receipts: Receipts) -> None:
    before = Ledger(Budget(), receipts)
    calls = (
        CALL,
        replace(CALL, cached=True, attempts=0, usd=0.0),
        replace(CALL, attempts=0, status="BudgetExceeded", prompt_tokens=0, completion_tokens=0, usd=0.0, seconds=0.0),
        replace(CALL, role="judge", usd=None),
        replace(CALL, role="judge", deployment="other"),
    )
    for call in calls:
        receipts.add_call(call)
        before.book(call)
    resumed = Ledger(Budget(calls=3), receipts)
    assert resumed.totals() == before.totals()
    assert resumed.totals()["judge"]["usd"] is None
    assert resumed.exhausted() == "calls"


def test_wall_time_counts_from_the_given_start(receipts: Receipts) -> None:
    assert Ledger(Budget(wall_s=60.0), receipts).exhausted() is None
    assert Ledger(Budget(wall_s=60.0), receipts, started=time.time() - 59).exhausted() is None
    late = Ledger(Budget(wall_s=60.0), receipts, started=time.time() - 61)
    assert late.exhausted() == "wall_s"
    assert refused(late) == "wall_s"


def test_a_usd_budget_needs_a_price_and_other_budgets_do_not(receipts: Receipts) -> None:
    Ledger(Budget(tokens=1000), receipts).check("target", False)
    ledger = Ledger(Budget(usd=1.0), receipts)
    with pytest.raises(ConfigError, match=r"'openai/x' of role 'judge'.*budget\.tokens"):
        ledger.require_price("judge", False, model="openai/x")
    with pytest.raises(ConfigError, match="output_cost_per_token"):
        ledger.check("target", False)


def test_what_is_kept_for_the_heldout_evaluation_is_refused_to_the_search_and_free_again_for_it(
    receipts: Receipts,
) -> None:
    ledger = Ledger(Budget(calls=10, tokens=1000, usd=5.0), receipts)
    ledger.keep(Reserve(calls=9))
    assert refused(ledger) is None
    ledger.book(CALL)
    with pytest.raises(BudgetExceeded, match=r"'calls' is used up: 11 of 10, of which 9 are kept for the held-out"):
        ledger.check("target", True)
    ledger.keep(Reserve(tokens=800))
    assert refused(ledger, tokens=90) is None
    assert refused(ledger, tokens=91) == "tokens"
    ledger.keep(Reserve(usd=4.2))
    assert refused(ledger, usd=0.3) is None
    assert refused(ledger, usd=0.4) == "usd"
    ledger.keep(Reserve())
    assert refused(ledger, tokens=890, usd=4.5) is None
