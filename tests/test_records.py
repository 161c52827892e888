"""What is kept in memory of earlier iterations says what the receipts say, however it came to be there."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from bco_graph.candidates import CandidateStore
from bco_graph.evaluation.service import no_outcome, sum_up
from bco_graph.evidence import EvidenceSurface
from bco_graph.protocols import Task
from bco_graph.receipts import Receipts, ResultRow
from bco_graph.records import SHOWN, Records
from bco_graph.run_folder import RunFolder
from bco_graph.state import Failure, candidate_id

TASKS = [Task("t1", "a", {}), Task("t,2", "b", {})]
FAILED = Failure(step="propose", cause="empty", reasons=[])


@pytest.fixture
def receipts(tmp_path: Path) -> Iterator[Receipts]:
    opened = Receipts(tmp_path / "receipts.sqlite")
    yield opened
    opened.close()


def evaluated(receipts: Receipts, iteration: int, *scores: float | None) -> None:
    """A candidate with a score for each task, None for one whose result says nothing; no score: no candidate."""
    result = {"name": f"edit-{iteration}", "failure_mode": f"Mode  {iteration % 2}"}
    if iteration:
        receipts.add_step(iteration, "propose", {"result": result if scores else None})
    name, parent = candidate_id(iteration), "iter_000" if iteration else None
    for task, score in zip(TASKS, scores, strict=False):
        kind: Any = "infra_error" if score is None else "scored"
        row = ResultRow("train", name, task.id, 0, task.type, kind, score, None, "", "", 0.0, 1, 1)
        receipts.add_result(row)
    rows = receipts.results("train", name)
    outcome = sum_up(iteration, name, parent, rows) if scores else no_outcome(iteration, FAILED)
    receipts.add_step(iteration, "evaluate", dict(outcome))


ROUNDS: list[tuple[float | None, ...]] = [(0, 0), (1, 0), (), (0, 0.5), (None, 0.2), (), (), (1, 1)]


def test_records_that_grew_with_the_run_say_what_new_ones_say(receipts: Receipts) -> None:
    grown = Records(receipts)
    for iteration, scores in enumerate(ROUNDS):
        evaluated(receipts, iteration, *scores)
        if iteration == 3:
            receipts.add_step(3, "graded", {"verdict": "refuted"})
        fresh = Records(receipts)
        assert grown.candidates() == fresh.candidates()
        assert grown.best(0.9) == fresh.best(0.9)
        assert grown.failed_in_a_row() == fresh.failed_in_a_row()
        assert grown.stable_tasks("iter_000", before=99) == fresh.stable_tasks("iter_000", before=99)
    assert [r["candidate"] for r in grown.candidates()] == [
        "iter_000", "iter_001", "iter_003", "iter_004", "iter_007"
    ]  # fmt: skip
    assert [r["name"] for r in grown.candidates()][:3] == ["baseline", "edit-1", "edit-3"]
    assert [r["verdict"] for r in grown.candidates()] == [None, None, "refuted", None, None]
    assert grown.best(0.9) == {"id": "iter_007", "mean": 1.0}
    assert grown.summaries()[3] == {"id": "iter_004", "parent": "iter_000", "mean": 0.2, "coverage": 0.5}


def test_failures_in_a_row_are_those_since_the_last_candidate(receipts: Receipts) -> None:
    records = Records(receipts)
    counts = []
    for iteration, scores in enumerate(ROUNDS):
        evaluated(receipts, iteration, *scores)
        counts.append(records.failed_in_a_row())
    assert counts == [0, 0, 1, 0, 0, 1, 2, 0]


def test_a_task_is_unstable_by_what_was_evaluated_before_an_iteration_alone(receipts: Receipts) -> None:
    for iteration, scores in enumerate(ROUNDS[:4]):
        evaluated(receipts, iteration, *scores)
    records = Records(receipts)
    assert records.stable_tasks("iter_000", before=3) == ["t,2", "t1"]
    assert records.stable_tasks("iter_000", before=4) == ["t,2"]


def test_attempts_on_a_failure_mode_are_counted_by_its_name_whatever_its_case(receipts: Receipts) -> None:
    for iteration, scores in enumerate(ROUNDS[:2]):
        evaluated(receipts, iteration, *scores)
    records = Records(receipts)
    assert (records.attempts_on("mode 1"), records.attempts_on("MODE 0")) == (0, 0)
    for iteration, scores in enumerate(ROUNDS[2:], 2):
        evaluated(receipts, iteration, *scores)
    assert (records.attempts_on("mode 1"), records.attempts_on("MODE 0"), records.attempts_on("other")) == (2, 0, 0)


def test_a_proposer_is_shown_all_candidates_or_the_best_and_the_newest_of_many(receipts: Receipts) -> None:
    records = Records(receipts)
    for iteration in range(2 * SHOWN):
        evaluated(receipts, iteration, 1.0 if iteration == 3 else 0.0, 0.0)
    assert [line[2:10] for line in records.candidates_table(0.9).splitlines()[2:]] == [
        candidate_id(i) for i in range(2 * SHOWN)
    ]
    for iteration in range(2 * SHOWN, 3 * SHOWN):
        evaluated(receipts, iteration, 0.0, 0.0)
    lines = records.candidates_table(0.9).splitlines()
    assert lines[2:6] == [f"| iter_00{i} | {'iter_000' if i else ''} | {name} | {mean} | 1.00 |" for i, name, mean in [
        (0, "baseline", "0.000"), (1, "edit-1", "0.000"), (2, "edit-2", "0.000"), (3, "edit-3", "0.500")]]  # fmt: skip
    newest = [candidate_id(i) for i in range(2 * SHOWN, 3 * SHOWN)]
    assert [line[2:10] for line in lines[2 + SHOWN : -2]] == newest
    assert lines[-1].startswith(f"[kept {2 * SHOWN} of {3 * SHOWN} candidates")


def test_tables_that_grew_are_those_that_a_restart_draws(receipts: Receipts, tmp_path: Path) -> None:
    def surface() -> EvidenceSurface:
        return EvidenceSurface(RunFolder(tmp_path), "bco", CandidateStore(tmp_path / "candidates.git"), receipts)

    def drawn(by: EvidenceSurface) -> list[str]:
        records = Records(receipts).candidates()
        by.write_scores(TASKS, [record["candidate"] for record in records])
        by.write_candidates(records)
        files = ("task_score_matrix.csv", "candidates.csv")
        return [(tmp_path / "workspace" / name).read_text(encoding="utf-8") for name in files]

    grown = surface()
    for iteration, scores in enumerate(ROUNDS):
        evaluated(receipts, iteration, *scores)
        assert drawn(grown) == drawn(surface())
        if iteration in (1, 3, 7):
            receipts.add_step(iteration, "graded", {"verdict": "inert" if iteration == 1 else "held"})
            assert drawn(grown) == drawn(surface())
    matrix, candidates = drawn(grown)
    assert matrix.splitlines() == [
        "task,type,iter_000,iter_001,iter_003,iter_004,iter_007", "t1,a,0,1,0,,1", '"t,2",b,0,0,0.5,0.2,1'
    ]  # fmt: skip
    assert [line.rsplit(",", 1)[-1] for line in candidates.splitlines()] == [
        "verdict", "", "inert", "held", "", "held"
    ]  # fmt: skip
