"""The one ranking function, and the paired comparison of two arms. Pure.

Whatever says "best" (the state, the report, the CLI, an export) asks `rank`, at every stop reason. The untouched
baseline is a candidate like any other: it takes part, and as the earliest one it wins ties.
"""

from __future__ import annotations

import math
import random
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from bco_graph.receipts import ResultRow
from bco_graph.state import REAL_OUTCOMES

RESAMPLES = 2000
LEVEL = 0.95
Pair = tuple[str, int]
"""(task, repeat)."""


@dataclass(frozen=True, slots=True)
class Standing:
    """What ranking knows of a candidate.

    `mean` in [0, 1], or None where it has no real result: missing, not zero. `coverage` in [0, 1] of its `n` rows.
    Raises ValueError for a mean or coverage that is no finite number in [0, 1] (a bool, a text, NaN).
    """

    id: str
    iteration: int
    mean: float | None
    coverage: float
    n: int

    def __post_init__(self) -> None:
        if self.mean is not None:
            checked_share(self.mean, f"the mean of {self.id!r}")
        checked_share(self.coverage, f"the coverage of {self.id!r}")


def rank(candidates: Sequence[Standing], *, coverage_floor: float) -> list[str]:
    """Ids of the eligible candidates, best first; the order of the argument has no effect.

    Eligible: a mean, and coverage of at least the floor. The highest mean comes first, ties go to the earliest
    iteration. Means of candidates above the floor may still rest on slightly different tasks: `compare` is the
    judgement on two of them. Raises ValueError where an id stands twice.
    """
    seen = Counter(candidate.id for candidate in candidates)
    if twice := sorted(id for id, times in seen.items() if times > 1):
        raise ValueError(f"ranked twice: {', '.join(twice)}; give one standing per candidate")
    eligible = [(c.mean, c) for c in candidates if c.mean is not None and c.coverage >= coverage_floor]
    return [c.id for _, c in sorted(eligible, key=lambda entry: (-entry[0], entry[1].iteration, entry[1].id))]


def best(candidates: Sequence[Standing], *, coverage_floor: float) -> Standing | None:
    """The first of `rank` with the iteration that made it; None where no candidate is eligible."""
    order = rank(candidates, coverage_floor=coverage_floor)
    return next((c for c in candidates if c.id == order[0]), None) if order else None


# -- two arms ----------------------------------------------------------------------------------------------------

Call = Literal["a_better", "b_better", "no_difference", "undecided"]


@dataclass(frozen=True, slots=True)
class Comparison:
    """Arm b against arm a (the incumbent) on the (task, repeat) pairs that both have a real result for.

    The figures a decision rests on, all of them, so that they can be stored with it.
    """

    shared: int
    """Pairs compared."""
    coverage_a: float
    """Share of all pairs, of either arm, with a real result in arm a; in [0, 1]."""
    coverage_b: float
    a_only: int
    """Discordant pairs: a scored higher (McNemar's b)."""
    b_only: int
    """Discordant pairs: b scored higher (McNemar's c)."""
    difference: float | None
    """Mean score of b less that of a, in [-1, 1]; None where nothing is shared."""
    low: float | None
    """Bounds of the 95% paired bootstrap interval of the difference."""
    high: float | None
    p: float | None
    """Two-sided exact McNemar p; None where a score is not 0 or 1, or where a task has several repeats (they are
    not independent: the interval, which resamples whole tasks, then stands alone)."""
    seed: int
    resamples: int
    call: Call
    """`undecided`: an arm is below the coverage floor, or nothing is shared; `no_difference`: the interval holds 0,
    so the incumbent stays."""


def compare(
    rows_a: Sequence[ResultRow],
    rows_b: Sequence[ResultRow],
    *,
    coverage_floor: float,
    seed: int = 0,
    resamples: int = RESAMPLES,
) -> Comparison:
    """Same rows and seed, same answer: the random numbers are its own. Takes about a second for 1,500 pairs."""
    a, b = scores_by_pair(rows_a), scores_by_pair(rows_b)
    planned = a.keys() | b.keys()
    coverage_a, coverage_b = coverage(a, planned), coverage(b, planned)
    both = [
        (pair[0], before, after)
        for pair in sorted(planned)
        if (before := a.get(pair)) is not None and (after := b.get(pair)) is not None
    ]
    differences: dict[str, list[float]] = {}
    for task, before, after in both:
        differences.setdefault(task, []).append(after - before)
    interval = _bootstrap(list(differences.values()), seed, resamples)
    worse = sum(before > after for _, before, after in both)
    better = sum(after > before for _, before, after in both)
    independent = len(differences) == len(both)
    binary = all(score in (0.0, 1.0) for _, before, after in both for score in (before, after))
    return Comparison(
        shared=len(both),
        coverage_a=coverage_a,
        coverage_b=coverage_b,
        a_only=worse,
        b_only=better,
        difference=mean([after - before for _, before, after in both]) if both else None,
        low=interval[0] if interval else None,
        high=interval[1] if interval else None,
        p=mcnemar(worse, better) if both and independent and binary else None,
        seed=seed,
        resamples=resamples,
        call="undecided" if min(coverage_a, coverage_b) < coverage_floor else _call(interval),
    )


def mcnemar(b: int, c: int) -> float:
    """Two-sided exact p of b and c discordant pairs: the binomial test against 1/2. 1.0 without a discordant pair."""
    n = b + c
    tail = sum(math.comb(n, k) for k in range(min(b, c) + 1))
    return min(1.0, 2 * tail / (1 << n))


def _call(interval: tuple[float, float] | None) -> Call:
    if interval is None:
        return "undecided"
    if interval[0] > 0:
        return "b_better"
    return "a_better" if interval[1] < 0 else "no_difference"


def _bootstrap(by_task: Sequence[Sequence[float]], seed: int, resamples: int) -> tuple[float, float] | None:
    """Percentile interval of the mean difference; tasks are drawn with replacement, each with all its repeats."""
    if not by_task:
        return None
    rng = random.Random(seed)
    tasks = [(math.fsum(values), len(values)) for values in by_task]
    drawn = []  # rounded, so that float noise does not push a bound off 0
    for _ in range(resamples):
        sample = rng.choices(tasks, k=len(tasks))
        drawn.append(round(math.fsum(total for total, _ in sample) / sum(n for _, n in sample), 12))
    drawn.sort()
    cut = int(resamples * (1 - LEVEL) / 2)
    return drawn[cut], drawn[-1 - cut]


# -- scores of rows ----------------------------------------------------------------------------------------------


def scores_by_pair(rows: Sequence[ResultRow]) -> dict[Pair, float | None]:
    """The score of each (task, repeat), None where the outcome says nothing about the scaffold.

    Raises ValueError for a pair that stands twice, rows of several candidates or splits, and a real result whose
    score is no number in [0, 1].
    """
    if len({(row.split, row.candidate) for row in rows}) > 1:
        found = ", ".join(sorted({f"{row.candidate} on {row.split}" for row in rows}))
        raise ValueError(f"one arm holds rows of {found}; give one candidate on one split")
    scores: dict[Pair, float | None] = {}
    for row in rows:
        pair = (row.task, row.repeat)
        if pair in scores:
            raise ValueError(f"{row.candidate}: task {row.task!r}, repeat {row.repeat}, stands twice")
        real = row.kind in REAL_OUTCOMES
        scores[pair] = checked_share(row.score, f"the score of {row.candidate}, task {row.task!r}") if real else None
    return scores


def coverage(scores: dict[Pair, float | None], planned: set[Pair]) -> float:
    """Share of the planned pairs with a real result, in [0, 1]; 0 where nothing is planned."""
    return sum(scores.get(pair) is not None for pair in planned) / len(planned) if planned else 0.0


def mean(values: Sequence[float]) -> float:
    """Exactly rounded, so that the order of the values has no effect. Not for an empty sequence."""
    return math.fsum(values) / len(values)


def checked_share(value: object, what: str) -> float:
    """`value` as a float in [0, 1]; raises ValueError for anything else, a bool and NaN among them."""
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 <= value <= 1:
        raise ValueError(f"{what} is {value!r}; expected a finite number in [0, 1]")
    return float(value)
