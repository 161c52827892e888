"""What the earlier iterations say, read from the receipts: the views that nodes and reports share."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypedDict, cast

from bco_graph.calibration import Computed, SignatureHits, compute
from bco_graph.evaluation.service import sum_up
from bco_graph.evidence import task_means
from bco_graph.prediction import Prediction
from bco_graph.receipts import Receipts
from bco_graph.selection import Standing, best
from bco_graph.state import JSON, Best, Verdict
from bco_graph.task_tables import unstable_tasks


class CandidateRecord(TypedDict):
    """One evaluated candidate. Means and coverage in [0, 1]; `verdict` only in method `bco`."""

    candidate: str
    iteration: int
    parent: str | None
    name: str
    mean: float | None
    coverage: float
    passed: int
    tasks: int
    verdict: Verdict | None


def candidate_records(receipts: Receipts) -> list[CandidateRecord]:
    """Every evaluated candidate in the order of iterations, the baseline first."""
    names = {i: record["result"]["name"] for i, _, record in receipts.steps("propose") if record["result"]}
    verdicts = {i: record["verdict"] for i, _, record in receipts.steps("graded")}
    return [
        CandidateRecord(
            candidate=outcome["candidate"], iteration=iteration, parent=outcome["parent"],
            name=names.get(iteration, "baseline" if iteration == 0 else ""), mean=outcome["mean"],
            coverage=outcome["coverage"], passed=outcome["passed"], tasks=outcome["tasks"],
            verdict=verdicts.get(iteration),
        )
        for iteration, _, outcome in receipts.steps("evaluate")
        if outcome["candidate"] is not None
    ]  # fmt: skip


def best_of(receipts: Receipts, coverage_floor: float) -> Best | None:
    """The best candidate by the one ranking function, the baseline among them; None while nothing is eligible."""
    standings = [
        Standing(
            id=record["candidate"],
            iteration=record["iteration"],
            mean=record["mean"],
            coverage=record["coverage"],
            n=round(record["coverage"] * record["tasks"]),
        )
        for record in candidate_records(receipts)
    ]
    first = best(standings, coverage_floor=coverage_floor)
    return Best(id=first.id, mean=cast(float, first.mean)) if first else None


def candidates_table(receipts: Receipts) -> str:
    """The candidates as a Markdown table."""
    lines = ["| candidate | parent | name | mean score | coverage |", "| --- | --- | --- | --- | --- |"]
    for record in candidate_records(receipts):
        mean = "none" if record["mean"] is None else f"{record['mean']:.3f}"
        lines.append(
            f"| {record['candidate']} | {record['parent'] or ''} | {record['name']} | {mean} "
            f"| {record['coverage']:.2f} |"
        )
    return "\n".join(lines)


def score_history(receipts: Receipts, *, before: int | None = None) -> dict[str, list[float]]:
    """Each task's mean score over the candidates evaluated before an iteration (None: over all), in their order."""
    history: dict[str, list[float]] = {}
    for record in candidate_records(receipts):
        if before is not None and record["iteration"] >= before:
            continue
        for task, mean in task_means(receipts.results("train", record["candidate"])).items():
            history.setdefault(task, []).append(mean)
    return history


def computed_grade(
    receipts: Receipts,
    prediction: Prediction,
    candidate: str,
    iteration: int,
    *,
    hits: Callable[[str], int | None],
    coverage_floor: float,
) -> Computed:
    """The mechanical grade of a candidate, from the rows as they stand.

    `hits` counts the traces of a candidate that hold the live signature; what it cannot search in time (None) counts as
    not found, so that no belief moves on it.
    """
    return compute(
        prediction,
        candidate_rows=receipts.results("train", candidate),
        parent_rows=receipts.results("train", prediction.base),
        # The graded candidate itself is no evidence of noise: a repaired task that breaks now is a regression.
        history_scores=score_history(receipts, before=iteration),
        signature_hits=SignatureHits(candidate_tasks=hits(candidate) or 0, parent_tasks=hits(prediction.base) or 0),
        coverage_floor=coverage_floor,
    )


def stable_tasks(receipts: Receipts, candidate: str) -> list[str]:
    """Tasks of a candidate that no evidence so far calls unstable."""
    rows = receipts.results("train", candidate)
    unsteady = unstable_tasks([rows], score_history(receipts))
    return sorted({row.task for row in rows} - set(unsteady))


def attempts_on(receipts: Receipts, failure_mode: str) -> int:
    """How many earlier proposals attacked a failure mode of this very name."""
    wanted = " ".join(failure_mode.lower().split())
    made = [record["result"]["failure_mode"] for _, _, record in receipts.steps("propose") if record["result"]]
    return max(0, sum(" ".join(mode.lower().split()) == wanted for mode in made) - 1)


def cut(text: str, limit: int, where: str) -> str:
    """The text, or its beginning with a mark that says how much is shown and where the whole is."""
    if len(text) <= limit:
        return text
    return f"{text[:limit]}\n[... kept {limit} of {len(text)} characters; the whole is {where} ...]"


def heldout_records(receipts: Receipts) -> dict[str, dict[str, JSON]]:
    """Mean and coverage on the held-out split of each candidate that was measured there."""
    rows = receipts.results("heldout")
    names = sorted({row.candidate for row in rows})
    return {name: dict(sum_up(0, name, None, [row for row in rows if row.candidate == name])) for name in names}
