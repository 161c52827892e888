"""The real frozen model, in this process: scores repeat, and a proposer that is far too weak ends a run in order."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from bco_graph.config import RunConfig, check_config
from bco_graph.driver import Ended, drive
from bco_graph.gateway import local
from bco_graph.receipts import Receipts

pytestmark = [
    pytest.mark.live,
    pytest.mark.skipif(not local.available(), reason="the extra [local] is not installed"),
    pytest.mark.timeout(900),
]


def config(tmp_path: Path, **changes: Any) -> RunConfig:
    model = {"model": "local/smollm2-135m", "temperature": 0, "max_tokens": 48}
    weak = {"model": "local/smollm2-135m", "temperature": 0, "max_tokens": 64, "n_ctx": 4096}
    models = [
        {"model_name": "smollm2", "litellm_params": model},
        {"model_name": "weak", "litellm_params": weak},
    ]
    return check_config(
        {
            "name": "live",
            "suite": "quickstart",
            "runs": str(tmp_path / "runs"),
            "models": {"model_list": models},
            "roles": {"target": "smollm2", "proposer": "weak"},
            "evaluation": {"train": 6, "concurrency": 4},
            **changes,
        }
    )


def scores(given: RunConfig) -> list[tuple[str, float | None, Any]]:
    receipts = Receipts(given.run_dir / "receipts.sqlite")
    rows = [(row.task, row.score, row.answer) for row in receipts.results("train", "iter_000")]
    receipts.close()
    return rows


async def test_two_runs_of_the_baseline_give_the_same_answers_and_both_ask_the_model(tmp_path: Path) -> None:
    first = config(tmp_path, iterations=0, method="vanilla", name="one")
    second = config(tmp_path, iterations=0, method="vanilla", name="two")
    for given in (first, second):
        ended = await drive(given)
        assert ended.state["outcome"]["kinds"] == {"scored": 6}
    assert scores(first) == scores(second)
    receipts = Receipts(second.run_dir / "receipts.sqlite")
    (spend,) = receipts.spend()
    receipts.close()
    assert (spend["calls"], spend["cache_hits"]) == (6, 0)


async def test_a_model_too_weak_to_propose_ends_the_run_in_order_with_every_failure_named(tmp_path: Path) -> None:
    bounds = {"kind": "agent", "max_turns": 1, "max_refusals": 1}
    given = config(tmp_path, method="bco", iterations=3, max_failures=3, proposer=bounds)
    ended: Ended = await drive(given)
    assert ended.stop in ("failures", "iterations")
    receipts = Receipts(given.run_dir / "receipts.sqlite")
    records = receipts.steps("evaluate")
    steps = [record for name in ("propose", "update") for _, _, record in receipts.steps(name)]
    receipts.close()
    assert [iteration for iteration, _, _ in records] == list(range(ended.state["iteration"] + 1))
    assert records[0][2]["mean"] is not None
    failures = [record["failure"] for record in steps if record["result"] is None]
    assert all(failure["cause"] and failure["reasons"] for failure in failures)
    for _, _, outcome in records[1:]:
        assert outcome["candidate"] is not None or outcome["failure"]["reasons"]
    assert ended.state["best"]["id"] in [candidate["id"] for candidate in ended.candidates]
