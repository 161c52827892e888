"""Two candidates beside each other: what differs in the source, and which tasks went another way."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from bco_graph.receipts import ResultRow
from bco_graph.report.reading import Reading, reading
from bco_graph.report.wording import change, one_line, score, visible
from bco_graph.run_folder import RunFolder
from bco_graph.selection import mean
from bco_graph.task_tables import PASS_AT, task_means

NO_RESULT = "no result"
_ORDER = ("pass -> fail", "fail -> pass", "worse", "better", "not comparable")


@dataclass(frozen=True, slots=True)
class Moved:
    """One task whose mean score over its repeats is not the same; a mean is None where no repeat has a real result."""

    task: str
    type: str
    a: float | None
    b: float | None
    kinds: str
    """Outcomes of b other than `scored`, such as `timeout`."""

    @property
    def how(self) -> str:
        if self.a is None or self.b is None:
            return "not comparable"
        if (self.a >= PASS_AT) != (self.b >= PASS_AT):
            return "pass -> fail" if self.a >= PASS_AT else "fail -> pass"
        return "worse" if self.b < self.a else "better"


def diff(folder: RunFolder, a: str, b: str) -> str:
    """The source patch from a to b, then the train tasks on which they differ. Raises ConfigError for unknown ids."""
    with reading(folder) as run:
        run.candidate(a), run.candidate(b)
        store = run.store()
        patch = store.diff(store.tree(a), store.tree(b))
        source = visible(patch).rstrip("\n") or f"{a} and {b} have the same source."
        return f"{source}\n\n{_tasks(run, a, b)}\n"


def _tasks(run: Reading, a: str, b: str) -> str:
    rows_a, rows_b = run.receipts.results("train", a), run.receipts.results("train", b)
    means_a, means_b = (task_means(run.receipts.scores("train", name)) for name in (a, b))
    moved = _moved(rows_a, rows_b, means_a, means_b)
    shared = sorted(means_a.keys() & means_b.keys())
    if not shared:
        return f"{a} and {b} share no train task with a real result."
    before, after = (mean([means[task] for task in shared]) for means in (means_a, means_b))
    counts = [f"{number} {how}" for how in _ORDER if (number := sum(item.how == how for item in moved))]
    same = len({row.task for row in (*rows_a, *rows_b)}) - len(moved)
    summary = f"{len(shared)} shared train tasks: {score(before)} -> {score(after)} ({change(after - before)})"
    return "\n".join([summary, ", ".join([*counts, f"{same} the same"]), *_table(moved, a, b)])


def _moved(
    rows_a: Sequence[ResultRow], rows_b: Sequence[ResultRow], a: Mapping[str, float], b: Mapping[str, float]
) -> list[Moved]:
    """Regressions first, then by task."""
    types = {row.task: row.type for row in (*rows_a, *rows_b)}
    kinds: dict[str, set[str]] = {}
    for row in rows_b:
        kinds.setdefault(row.task, set()).update({row.kind} - {"scored"})
    moved = [
        Moved(task, types[task], a.get(task), b.get(task), ", ".join(sorted(kinds.get(task, set()))))
        for task in sorted(types)
        if a.get(task) != b.get(task)
    ]
    return sorted(moved, key=lambda item: _ORDER.index(item.how))


def _table(moved: Sequence[Moved], a: str, b: str) -> list[str]:
    if not moved:
        return []
    rows = [("", "task", "type", a, b, "")]
    rows += [
        (item.how, one_line(item.task), one_line(item.type), _cell(item.a), _cell(item.b), item.kinds) for item in moved
    ]
    widths = [max(len(row[column]) for row in rows) for column in range(6)]
    return ["", *("  ".join(cell.ljust(w) for cell, w in zip(row, widths, strict=True)).rstrip() for row in rows)]


def _cell(value: float | None) -> str:
    return NO_RESULT if value is None else score(value)
