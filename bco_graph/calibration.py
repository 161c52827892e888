"""The mechanical grade of a prediction (paper section 3, Listing 3), and how well stated confidence held over a run.

Figures come from receipts, never from a model; all is pure and deterministic. Comparisons use only tasks with a real
result on both sides. Changes are of mean scores, candidate less parent, in [-1, 1], rounded to 9 decimals: what is
smaller is float noise.
"""

from __future__ import annotations

import math
from bisect import bisect_right
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass
from itertools import pairwise

from bco_graph.prediction import Prediction
from bco_graph.receipts import ResultRow
from bco_graph.selection import checked_share, mean
from bco_graph.state import JSON, Verdict
from bco_graph.submissions import Change, OwnNumbers
from bco_graph.task_tables import Figures, Share, TaskTables, TypeChange

OWN_TOLERANCE = 0.005
"""A proposer's own figure may be this far off, for rounding, before the difference is put on record."""

Names = tuple[str, ...]


@dataclass(frozen=True, slots=True)
class SignatureHits:
    """In how many task traces of each side the live signature occurs."""

    candidate_tasks: int
    parent_tasks: int


class Computed(Figures):
    """The computed grade. None stands where there is nothing to compute from; lists are sorted.

    Rates are shares in [0, 1] over task types with at least one stable shared task; a base rate is what naming types
    blindly would score (paper, Table 5).
    """

    verdict: Verdict
    coverage: Share
    parent_coverage: Share
    shared: int
    """Tasks with a real result on both sides."""
    subset_tasks: int
    """Tasks of the predicted subset, measured or not."""
    subset_n: int
    """Those that are shared and stable: the base of `subset_change`."""
    subset_change: Change | None
    overall_change: Change | None
    """Over all shared tasks, unstable ones too."""
    by_type: dict[str, TypeChange]
    improved_types: Names
    regressed_types: Names
    unstable: Names
    """Shared tasks left out of all figures but `overall_change`."""
    regressions: Names
    """Stable tasks that passed on the parent and fail now."""
    blind_spots: Names
    """Regressions outside the predicted subset and the downside types."""
    breakthroughs: Names
    """Stable tasks that failed on the parent and pass now."""
    upside_hit_rate: Share | None
    """Share of the named upside types that improved."""
    upside_base_rate: Share | None
    """Share of all types that improved."""
    upside_excess: Change | None
    downside_precision: Share | None
    """Share of the named downside types that regressed; None when none is named."""
    downside_recall: Share | None
    """Share of the regressed types that were named; None when none regressed."""
    downside_base_rate: Share | None
    """Share of all types that regressed."""
    net_effect_sign_right: bool | None
    interval_hit: bool | None
    """Whether the subset's change lies within the stated interval, both bounds included."""
    downside_bound_kept: bool | None
    signature_tasks: int
    signature_fired: bool
    """The live signature occurs in a trace of the candidate."""
    signature_distinctive: bool
    """It occurs in no trace of the parent."""

    def to_json(self) -> dict[str, JSON]:
        return self.model_dump(mode="json")


def compute(
    prediction: Prediction,
    candidate_rows: Sequence[ResultRow],
    parent_rows: Sequence[ResultRow],
    *,
    flipping: Collection[str],
    signature_hits: SignatureHits,
    coverage_floor: float,
) -> Computed:
    """Grade a prediction by the train rows of its candidate and of its parent.

    `flipping` are the tasks that `Flips` finds over the candidates evaluated before this one. With the graded
    candidate among them, each regression of a task that was once repaired would count as a flip and hide itself.
    Raises ValueError for rows that cannot be compared: held-out ones, a (task, repeat) that stands twice, a task of two
    types, a score outside [0, 1].
    """
    tables = TaskTables(prediction.subset, candidate_rows, parent_rows, flipping)
    types = tables.by_type()
    improved = tuple(name for name, change in types.items() if change.change > 0)
    regressed = tuple(name for name, change in types.items() if change.change < 0)
    regressions = tables.crossed(passed=True)
    safe = tables.subset | {task for task, type_ in tables.types.items() if type_ in prediction.downside_types}
    upside, upside_base = _share(prediction.upside_types, improved, types), _share(types, improved, types)
    subset_change, overall = tables.change(tables.stable_subset), tables.change(tables.shared)
    return Computed(
        verdict=_verdict(prediction, tables, len(regressions), signature_hits, coverage_floor),
        coverage=tables.coverage,
        parent_coverage=tables.parent_coverage,
        shared=len(tables.shared),
        subset_tasks=len(tables.subset),
        subset_n=len(tables.stable_subset),
        subset_change=subset_change,
        overall_change=overall,
        by_type=types,
        improved_types=improved,
        regressed_types=regressed,
        unstable=tuple(sorted(tables.shared - tables.stable)),
        regressions=regressions,
        blind_spots=tuple(task for task in regressions if task not in safe),
        breakthroughs=tables.crossed(passed=False),
        upside_hit_rate=upside,
        upside_base_rate=upside_base,
        upside_excess=None if upside is None or upside_base is None else round(upside - upside_base, 9),
        downside_precision=_share(prediction.downside_types, regressed, types),
        downside_recall=_share(regressed, prediction.downside_types, types),
        downside_base_rate=_share(types, regressed, types),
        net_effect_sign_right=None if overall is None else _sign(prediction.net_effect) == _sign(overall),
        interval_hit=None if subset_change is None else _within(prediction, subset_change),
        downside_bound_kept=len(regressions) <= prediction.downside_bound if tables.stable else None,
        signature_tasks=signature_hits.candidate_tasks,
        signature_fired=signature_hits.candidate_tasks > 0,
        signature_distinctive=signature_hits.parent_tasks == 0,
    )


def _share(of: Iterable[str], hit: Collection[str], measured: Collection[str]) -> float | None:
    """Which share of `of` is in `hit`; types that were not measured are left out."""
    named = {name for name in of if name in measured}
    return sum(name in hit for name in named) / len(named) if named else None


def _sign(change: float) -> int:
    return (change > 0) - (change < 0)


def _within(prediction: Prediction, change: float) -> bool:
    return round(prediction.subset.low, 9) <= change <= round(prediction.subset.high, 9)


def _verdict(
    prediction: Prediction, tables: TaskTables, regressions: int, hits: SignatureHits, coverage_floor: float
) -> Verdict:
    """The first row that applies:

    ============ ==============================================================================================
    undecided    coverage of either side is below the floor, or the subset has no stable shared task
    void         the live signature occurs in no trace of the candidate
    held         regressions are within the downside bound, and the subset's change is as predicted:
                 a gain (expected > 0) needs change >= low and change > 0, so that an interval that reaches below
                 0 does not turn "nothing happened" into a success; more than `high` is fine.
                 No gain (expected <= 0, an ablation or a rewrite meant to be neutral) needs low <= change <= high
    inert        no stable task of the subset changed its score (regressions elsewhere stand beside it)
    refuted      else
    ============ ==============================================================================================
    """
    change = tables.change(tables.stable_subset)
    if min(tables.coverage, tables.parent_coverage) < coverage_floor or change is None:
        return "undecided"
    if hits.candidate_tasks == 0:
        return "void"
    if prediction.subset.expected > 0:
        as_predicted = change >= round(prediction.subset.low, 9) and change > 0
    else:
        as_predicted = _within(prediction, change)
    if as_predicted and regressions <= prediction.downside_bound:
        return "held"
    moved = any(tables.change([task]) for task in tables.stable_subset)
    return "refuted" if moved else "inert"


def differences(computed: Computed, own: OwnNumbers) -> list[str]:
    """Where the proposer's figures differ from the computed ones; the computed stand."""
    found = []
    for name in ("subset_change", "overall_change"):
        theirs, ours = getattr(own, name), getattr(computed, name)
        if theirs is None or (ours is not None and round(abs(theirs - ours), 9) <= OWN_TOLERANCE):
            continue
        found.append(f"{name}: stated {theirs:+.3f}, computed {'nothing' if ours is None else format(ours, '+.3f')}")
    regressions = len(computed.regressions)
    if own.regressions is not None and own.regressions != regressions:
        found.append(f"regressions: stated {own.regressions}, computed {regressions}")
    return found


def touched_beliefs(prediction: Prediction, verdict: Verdict) -> set[str]:
    """The beliefs that an outcome may move: those at stake, none where it says nothing about them."""
    return set() if verdict in ("void", "undecided") else set(prediction.beliefs)


# -- over a run --------------------------------------------------------------------------------------------------

LOG_CLIP = 0.01
"""Stated confidence is kept this far from 0 and 1 in the log score, so that one sure miss does not end it."""
BIN_EDGES = (0.0, 0.2, 0.4, 0.6, 0.8, 1.0)


@dataclass(frozen=True, slots=True)
class CalibrationRecord:
    """One graded prediction; rates as in `Computed`."""

    confidence: float
    verdict: Verdict
    upside_hit_rate: float | None = None
    upside_base_rate: float | None = None
    downside_precision: float | None = None
    downside_recall: float | None = None
    downside_base_rate: float | None = None


def record_of(prediction: Prediction, computed: Computed) -> CalibrationRecord:
    return CalibrationRecord(
        confidence=prediction.confidence,
        verdict=computed.verdict,
        upside_hit_rate=computed.upside_hit_rate,
        upside_base_rate=computed.upside_base_rate,
        downside_precision=computed.downside_precision,
        downside_recall=computed.downside_recall,
        downside_base_rate=computed.downside_base_rate,
    )


class Bin(Figures):
    """Predictions with low <= confidence < high (the last bin takes 1.0 too)."""

    low: Share
    high: Share
    n: int
    mean_stated: Share | None
    share_held: Share | None


class RateAgainstBase(Figures):
    """A rate and its base rate, both averaged over the same `n` iterations: those in which the rate exists."""

    n: int
    rate: Share | None
    base: Share | None
    excess: Change | None


class CalibrationScores(Figures):
    """`void` and `undecided` predictions are counted and otherwise left out; None where none is left."""

    n: int
    void: int
    undecided: int
    mean_stated: Share | None
    share_held: Share | None
    brier: Share | None
    """Mean squared distance of stated confidence from 1 (held) or 0 (refuted, inert); 0 is best."""
    log_score: float | None
    """Mean natural logarithm of the probability given to what happened, clipped to [0.01, 0.99]: in
    [-4.61, -0.01], higher is better; always saying 0.5 scores -0.69."""
    bins: tuple[Bin, ...]
    upside_hit_rate: RateAgainstBase
    downside_precision: RateAgainstBase
    downside_recall: RateAgainstBase


def calibration_scores(records: Sequence[CalibrationRecord]) -> CalibrationScores:
    """Raises ValueError for a confidence outside [0, 1]."""
    graded = [record for record in records if record.verdict not in ("void", "undecided")]
    bets = [(checked_share(r.confidence, "a stated confidence"), r.verdict == "held") for r in graded]
    return CalibrationScores(
        n=len(bets),
        void=sum(record.verdict == "void" for record in records),
        undecided=sum(record.verdict == "undecided" for record in records),
        mean_stated=mean([stated for stated, _ in bets]) if bets else None,
        share_held=mean([float(held) for _, held in bets]) if bets else None,
        brier=mean([(stated - held) ** 2 for stated, held in bets]) if bets else None,
        log_score=mean([_log(stated if held else 1 - stated) for stated, held in bets]) if bets else None,
        bins=_bins(bets),
        upside_hit_rate=_against_base([(r.upside_hit_rate, r.upside_base_rate) for r in graded]),
        downside_precision=_against_base([(r.downside_precision, r.downside_base_rate) for r in graded]),
        downside_recall=_against_base([(r.downside_recall, r.downside_base_rate) for r in graded]),
    )


def _log(probability: float) -> float:
    return math.log(min(max(probability, LOG_CLIP), 1 - LOG_CLIP))


def _bins(bets: Sequence[tuple[float, bool]]) -> tuple[Bin, ...]:
    inside: list[list[tuple[float, bool]]] = [[] for _ in BIN_EDGES[1:]]
    for bet in bets:
        inside[bisect_right(BIN_EDGES[1:-1], bet[0])].append(bet)
    return tuple(
        Bin(
            low=low,
            high=high,
            n=len(found),
            mean_stated=mean([stated for stated, _ in found]) if found else None,
            share_held=mean([float(held) for _, held in found]) if found else None,
        )
        for (low, high), found in zip(pairwise(BIN_EDGES), inside, strict=True)
    )


def _against_base(rates: Sequence[tuple[float | None, float | None]]) -> RateAgainstBase:
    known = [(rate, base) for rate, base in rates if rate is not None and base is not None]
    if not known:
        return RateAgainstBase(n=0, rate=None, base=None, excess=None)
    rate, base = mean([rate for rate, _ in known]), mean([base for _, base in known])
    return RateAgainstBase(n=len(known), rate=rate, base=base, excess=round(rate - base, 9))


def calibration_block(records: Sequence[CalibrationRecord]) -> str:
    """Markdown, without a heading, that shows a proposer its own record: stated confidence against what held."""
    scores = calibration_scores(records)
    left_out = f"left out: {scores.void} void, {scores.undecided} undecided"
    stated, held = scores.mean_stated, scores.share_held
    if stated is None or held is None:
        return f"No prediction has been graded so far ({left_out}).\n"
    lines = [
        f"- {scores.n} graded prediction(s), all on train tasks, the ones that are searched ({left_out})",
        f"- confidence: stated {stated:.2f} on average, held {held:.2f}: {_lean(round(stated - held, 2))}",
        f"- Brier score {scores.brier:.3f} (0 is best; stating {held:.2f} each time gives {held * (1 - held):.3f}),"
        f" log score {scores.log_score:.3f} (higher is better; stating 0.50 each time gives -0.693)",
        *_rate_lines(scores),
        "",
        "| stated | predictions | mean stated | held |",
        "| --- | --- | --- | --- |",
        *(
            f"| {b.low:.1f} to {b.high:.1f} | {b.n} | {b.mean_stated:.2f} | {b.share_held:.2f} |"
            for b in scores.bins
            if b.n
        ),
    ]
    return "\n".join(lines) + "\n"


def _lean(gap: float) -> str:
    if gap == 0:
        return "no lean"
    return f"overconfident by {gap:.2f}" if gap > 0 else f"underconfident by {-gap:.2f}"


def _rate_lines(scores: CalibrationScores) -> list[str]:
    named = (
        ("named upside types that improved", scores.upside_hit_rate, "of all types did"),
        ("named downside types that regressed", scores.downside_precision, "of all types did"),
        ("regressed types that were named as downside", scores.downside_recall, "of all types regressed"),
    )
    return [
        f"- {what}: {found.rate:.2f}, while {found.base:.2f} {base} (excess {found.excess:+.2f}, n {found.n})"
        for what, found, base in named
        if found.n
    ]
