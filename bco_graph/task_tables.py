"""Per-task means of a candidate and its parent, and which tasks their comparison may rest on. Pure.

Only real results count, and only tasks that have them on both sides are compared.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Annotated

from pydantic import BaseModel, ConfigDict, Field

from bco_graph.prediction import PredictedSubset
from bco_graph.receipts import ResultRow
from bco_graph.selection import checked_share, coverage, mean, scores_by_pair
from bco_graph.submissions import Change

PASS_AT = 0.5
"""A score of at least this is a pass."""

Share = Annotated[float, Field(ge=0, le=1, allow_inf_nan=False)]


class Figures(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)


class TypeChange(Figures):
    """One task type over its stable shared tasks."""

    n: int
    parent_mean: Share
    candidate_mean: Share
    change: Change


class TaskTables:
    """Per-task means of both sides, over real results only, and the task sets that figures are taken over."""

    def __init__(
        self,
        subset: PredictedSubset,
        rows: Sequence[ResultRow],
        parent_rows: Sequence[ResultRow],
        flipping: Collection[str],
    ) -> None:
        self.types = _types([*rows, *parent_rows])
        scores, parent_scores = scores_by_pair(rows), scores_by_pair(parent_rows)
        planned = scores.keys() | parent_scores.keys()
        self.coverage, self.parent_coverage = coverage(scores, planned), coverage(parent_scores, planned)
        now, before = _by_task(scores), _by_task(parent_scores)
        self.shared = now.keys() & before.keys()
        self.now = {task: mean(now[task]) for task in self.shared}
        self.before = {task: mean(before[task]) for task in self.shared}
        self.stable = self.shared - unstable_tasks([rows, parent_rows], flipping)
        named = set(subset.tasks) & self.types.keys()
        self.subset = named | {task for task, type_ in self.types.items() if type_ in subset.types}
        self.stable_subset = self.subset & self.stable

    def change(self, tasks: Collection[str]) -> float | None:
        """Mean change over some shared tasks; None over no task."""
        if not tasks:
            return None
        return round(mean([self.now[task] - self.before[task] for task in tasks]), 9) + 0.0  # no -0.0

    def crossed(self, *, passed: bool) -> tuple[str, ...]:
        """Stable tasks that did or did not pass on the parent and do the opposite now."""
        return tuple(
            sorted(
                task
                for task in self.stable
                if (self.before[task] >= PASS_AT) == passed and (self.now[task] >= PASS_AT) != passed
            )
        )

    def by_type(self) -> dict[str, TypeChange]:
        tasks_of: dict[str, list[str]] = {}
        for task in sorted(self.stable):
            tasks_of.setdefault(self.types[task], []).append(task)
        return {
            name: TypeChange(
                n=len(tasks),
                parent_mean=mean([self.before[task] for task in tasks]),
                candidate_mean=mean([self.now[task] for task in tasks]),
                change=self.change(tasks) or 0.0,
            )
            for name, tasks in sorted(tasks_of.items())
        }


def unstable_tasks(arms: Iterable[Sequence[ResultRow]], flipping: Collection[str]) -> set[str]:
    """Tasks whose score is no steady thing: repeats of one arm's candidate disagree on pass and fail, or the task is
    among the `flipping` ones, as `Flips` says."""
    unsteady = set(flipping)
    for rows in arms:
        unsteady |= {task for task, scores in _by_task(scores_by_pair(rows)).items() if _disagree(scores)}
    return unsteady


class Flips:
    """Tasks whose scores across candidates go back and forth: pass and fail change places at least twice.

    Candidates are added in the order of their evaluation. Only what the last one passed is kept, so that one more costs
    the same however many came before.
    """

    def __init__(self) -> None:
        self._passed: dict[str, bool] = {}
        self._changes: dict[str, int] = {}
        self._since: dict[str, int] = {}

    def add(self, iteration: int, means: Mapping[str, float]) -> None:
        """Mean scores of the candidate of an iteration; a task without a real result is left out."""
        for task, score in means.items():
            passed = checked_share(score, "a task's mean score") >= PASS_AT
            if self._passed.setdefault(task, passed) == passed:
                continue
            self._passed[task] = passed
            self._changes[task] = self._changes.get(task, 0) + 1
            if self._changes[task] == 2:
                self._since[task] = iteration

    def before(self, iteration: int) -> set[str]:
        """What the candidates of earlier iterations say alone."""
        return {task for task, since in self._since.items() if since < iteration}


def task_means(scores: Iterable[tuple[str, float]]) -> dict[str, float]:
    """Mean score of each task, in [0, 1], from (task, score) of its real results."""
    by_task: dict[str, list[float]] = {}
    for task, score in scores:
        by_task.setdefault(task, []).append(score)
    return {task: mean(values) for task, values in by_task.items()}


def _disagree(scores: Sequence[float]) -> bool:
    return len({score >= PASS_AT for score in scores}) > 1


def _types(rows: Iterable[ResultRow]) -> dict[str, str]:
    types: dict[str, str] = {}
    for row in rows:
        if row.split != "train":
            raise ValueError(f"task {row.task!r} is of split {row.split!r}; a grade uses train rows only")
        if types.setdefault(row.task, row.type) != row.type:
            raise ValueError(f"task {row.task!r} has the types {types[row.task]!r} and {row.type!r}")
    return types


def _by_task(scores: Mapping[tuple[str, int], float | None]) -> dict[str, list[float]]:
    by_task: dict[str, list[float]] = {}
    for (task, _), score in scores.items():
        if score is not None:
            by_task.setdefault(task, []).append(score)
    return by_task
