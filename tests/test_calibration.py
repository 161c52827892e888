"""The mechanical grade, figure by figure and verdict by verdict, and the calibration of a run of bets."""

from __future__ import annotations

import json
import math
from collections.abc import Collection, Mapping
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from bco_graph.calibration import (
    CalibrationRecord,
    Computed,
    SignatureHits,
    calibration_block,
    calibration_scores,
    compute,
    differences,
    record_of,
    touched_beliefs,
)
from bco_graph.prediction import Prediction
from bco_graph.receipts import ResultRow
from bco_graph.state import OutcomeKind, Split, Verdict
from bco_graph.submissions import OwnNumbers
from bco_graph.task_tables import Flips, unstable_tasks

Scores = Mapping[str, Any]
"""Task -> score, or a list with one score per repeat; None: the endpoint failed. The letter before the digits of a
task's name is its type: `a1`, `a2` are of type `a`."""


def row(
    candidate: str, task: str, score: Any, repeat: int = 0, kind: OutcomeKind = "scored", split: Split = "train"
) -> ResultRow:
    return ResultRow(
        split=split, candidate=candidate, task=task, repeat=repeat, type=task.rstrip("0123456789"), kind=kind,
        score=score, answer=None, note="", error="", seconds=0.0, calls=1, tokens=1,
    )  # fmt: skip


def rows(candidate: str, scores: Scores) -> list[ResultRow]:
    return [
        row(candidate, task, score, repeat, "infra_error" if score is None else "scored")
        for task, given in scores.items()
        for repeat, score in enumerate(given if isinstance(given, list) else [given])
    ]


def prediction(**changes: Any) -> Prediction:
    subset = {"tasks": (), "types": ("a",), "expected": 0.25, "low": 0.1, "high": 0.5, **changes.pop("subset", {})}
    stated: dict[str, Any] = {
        "iteration": 3, "mode": "act", "candidate": "x", "base": "iter_001", "base_why": "", "failure_mode": "f",
        "attempts": 0, "beliefs": ("E1", "E2"), "assumption_audit": "", "mechanism": "m", "behavioural": "b",
        "subset": subset, "confidence": 0.7, "downside_bound": 0, "upside_types": ("a",), "downside_types": (),
        "net_effect": 0.1, "live_signature": "s", "anchors": (), "falsification": "f",
    }  # fmt: skip
    return Prediction.model_validate(stated | changes)


def grade(
    before: Scores,
    after: Scores,
    *,
    pred: Prediction | None = None,
    flipping: Collection[str] = (),
    hits: tuple[int, int] = (1, 0),
    floor: float = 0.9,
) -> Computed:
    return compute(
        pred or prediction(),
        candidate_rows=rows("iter_003", after),
        parent_rows=rows("iter_001", before),
        flipping=flipping,
        signature_hits=SignatureHits(*hits),
        coverage_floor=floor,
    )


# -- figures -----------------------------------------------------------------------------------------------------


def test_changes_are_candidate_less_parent_on_the_subset_overall_and_per_type() -> None:
    computed = grade({"a1": 0, "a2": 1, "b1": 1, "b2": 0.5}, {"a1": 1, "a2": 1, "b1": 0, "b2": 0.5})
    assert (computed.subset_change, computed.subset_n, computed.subset_tasks) == (0.5, 2, 2)
    assert (computed.overall_change, computed.shared) == (0.0, 4)
    assert computed.by_type["b"].model_dump() == {
        "n": 2, "parent_mean": 0.75, "candidate_mean": 0.25, "change": -0.5,
    }  # fmt: skip
    assert (computed.improved_types, computed.regressed_types) == (("a",), ("b",))
    assert (computed.regressions, computed.breakthroughs) == (("b1",), ("a1",))


def test_a_subset_is_its_tasks_and_the_tasks_of_its_types() -> None:
    pred = prediction(subset={"tasks": ("b1",), "types": ("a",)})
    computed = grade({"a1": 0, "b1": 0, "b2": 0}, {"a1": 1, "b1": 0.5, "b2": 1}, pred=pred)
    assert (computed.subset_tasks, computed.subset_change) == (2, 0.75)


def test_an_endpoint_that_fails_for_half_of_the_tasks_costs_the_candidate_no_score() -> None:
    """Rate limits on a2 and a4 are no misses; they enter no mean, and nothing is decided on the rest."""
    before = {"a1": 0, "a2": 1, "a3": 0, "a4": 1}
    computed = grade(before, {"a1": 1, "a2": None, "a3": 0, "a4": None})
    assert (computed.coverage, computed.parent_coverage, computed.shared) == (0.5, 1.0, 2)
    assert (computed.subset_change, computed.regressions) == (0.5, ())
    assert computed.verdict == "undecided"


def test_a_timeout_is_the_scaffolds_own_miss() -> None:
    late = [row("iter_003", "a1", 0.0, kind="timeout"), row("iter_003", "a2", 0.0, kind="context_overflow")]
    computed = compute(
        prediction(), late, rows("iter_001", {"a1": 1, "a2": 1}),
        flipping=(), signature_hits=SignatureHits(1, 0), coverage_floor=0.9,
    )  # fmt: skip
    assert (computed.coverage, computed.regressions, computed.subset_change) == (1.0, ("a1", "a2"), -1.0)


def test_a_row_that_was_never_made_counts_against_coverage() -> None:
    computed = grade({"a1": 1, "a2": 1, "a3": 1, "a4": 1}, {"a1": 1, "a2": 1, "a3": 1})
    assert (computed.coverage, computed.parent_coverage, computed.verdict) == (0.75, 1.0, "undecided")


def test_a_tasks_score_is_the_mean_of_its_real_repeats() -> None:
    computed = grade({"a1": [0, 0, None]}, {"a1": [0.75, None, 1.0]}, floor=0.6)
    assert (computed.subset_change, computed.coverage) == (0.875, 2 / 3)


def test_changes_smaller_than_float_noise_are_none() -> None:
    before, after = {"a1": 0.8, "a2": 0.2, "b1": 0.5}, {"a1": 0.7, "a2": 0.3, "b1": 0.6}
    computed = grade(before, after, pred=prediction(subset={"types": ("b",), "low": 0.1}))
    assert computed.by_type["a"].change == 0.0
    assert str(grade({"a1": 0.8, "a2": 0.2}, {"a1": 0.7, "a2": 0.3}).subset_change) == "0.0"  # and not -0.0
    assert "a" not in computed.improved_types + computed.regressed_types
    assert 0.6 - 0.5 < 0.1  # and yet the bound 0.1 is met:
    assert (computed.subset_change, computed.interval_hit, computed.verdict) == (0.1, True, "held")


# -- unstable tasks ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("scores", "unsteady"),
    [
        ([0, 1], False), ([0, 0, 1, 1], False), ([0, 1, 0], True), ([1, 0, 0, 1], True), ([0.5, 0.49, 0.5], True),
        ([0.6, 0.9, 0.5], False), ([], False), ([1], False),
    ],
)  # fmt: skip
def test_a_score_row_that_flips_back_and_forth_is_unstable(scores: list[float], unsteady: bool) -> None:
    flips = Flips()
    for iteration, score in enumerate(scores):
        flips.add(iteration, {"a1": score})
    assert flips.before(len(scores)) == ({"a1"} if unsteady else set())


def test_a_flip_counts_from_the_candidate_after_the_one_that_made_it() -> None:
    flips = Flips()
    for iteration, means in {0: {"a1": 0, "b1": 0}, 2: {"a1": 1}, 5: {"a1": 0, "b1": 1}, 6: {"a1": 1, "b1": 0}}.items():
        flips.add(iteration, means)
    assert [flips.before(iteration) for iteration in (5, 6, 7)] == [set(), {"a1"}, {"a1", "b1"}]


def test_repeats_that_disagree_on_pass_and_fail_are_unstable_on_either_side() -> None:
    assert unstable_tasks([rows("iter_001", {"a1": [1, 0], "a2": [1, None, 0.5], "a3": [0.4, 0]})], ()) == {"a1"}
    assert grade({"a1": [1, 0], "a2": 0}, {"a1": [1, 1], "a2": 1}).unstable == ("a1",)
    assert grade({"a1": [1, 1], "a2": 0}, {"a1": [0, 1], "a2": 1}).unstable == ("a1",)


def test_an_unstable_task_is_listed_and_enters_nothing_but_the_overall_change() -> None:
    before, after = {"a1": 1, "a2": 0, "b1": 1, "b2": 1}, {"a1": 0, "a2": 1, "b1": 0, "b2": 1}
    computed = grade(before, after, flipping={"a1", "b1", "c9"})
    assert computed.unstable == ("a1", "b1")
    assert (computed.subset_change, computed.subset_n, computed.subset_tasks) == (1.0, 1, 2)
    assert (computed.regressions, computed.blind_spots, computed.breakthroughs) == ((), (), ("a2",))
    assert (computed.improved_types, computed.regressed_types, computed.by_type["b"].n) == (("a",), (), 1)
    assert computed.overall_change == -0.25


# -- regressions, upside, downside -------------------------------------------------------------------------------


def test_a_regression_that_nothing_in_the_prediction_names_is_a_blind_spot() -> None:
    pred = prediction(subset={"tasks": ("c1",)}, downside_types=("b",))
    names = ["a1", "b1", "c1", "c2", "d1"]
    computed = grade(dict.fromkeys(names, 1), dict.fromkeys(names, 0), pred=pred)
    assert computed.regressions == ("a1", "b1", "c1", "c2", "d1")
    assert computed.blind_spots == ("c2", "d1")


def test_a_task_regresses_when_it_falls_below_the_pass_mark_and_not_by_less() -> None:
    computed = grade({"a1": 1.0, "a2": 0.5, "a3": 0.4}, {"a1": 0.5, "a2": 0.49, "a3": 0.0})
    assert (computed.regressions, computed.breakthroughs) == (("a2",), ())


def test_upside_is_judged_against_naming_types_blindly() -> None:
    before = {"a1": 0, "b1": 0, "c1": 0, "d1": 0}
    computed = grade(before, {"a1": 1, "b1": 0, "c1": 1, "d1": 0}, pred=prediction(upside_types=("a", "b")))
    assert (computed.upside_hit_rate, computed.upside_base_rate, computed.upside_excess) == (0.5, 0.5, 0.0)
    sharper = grade(before, {"a1": 1, "b1": 0, "c1": 0, "d1": 0}, pred=prediction(upside_types=("a", "a")))
    assert (sharper.upside_hit_rate, sharper.upside_base_rate, sharper.upside_excess) == (1.0, 0.25, 0.75)


def test_downside_has_a_precision_a_recall_and_a_base_rate() -> None:
    before = {"a1": 1, "b1": 1, "c1": 1, "d1": 1}
    computed = grade(before, {"a1": 1, "b1": 0, "c1": 0, "d1": 0}, pred=prediction(downside_types=("a", "b")))
    assert (computed.downside_precision, computed.downside_recall) == (0.5, 1 / 3)
    assert computed.downside_base_rate == 0.75


def test_rates_over_nothing_are_none_and_not_zero() -> None:
    quiet = grade({"a1": 1}, {"a1": 1}, pred=prediction(upside_types=(), downside_types=()))
    assert (quiet.upside_hit_rate, quiet.upside_excess, quiet.upside_base_rate) == (None, None, 0.0)
    assert (quiet.downside_precision, quiet.downside_recall, quiet.downside_base_rate) == (None, None, 0.0)
    named = grade({"a1": 1}, {"a1": 1}, pred=prediction(downside_types=("a",)))
    assert (named.downside_precision, named.downside_recall) == (0.0, None)


def test_a_type_without_a_stable_shared_task_takes_no_part_in_rates() -> None:
    computed = grade({"a1": 0, "b1": 0}, {"a1": 1, "b1": None}, pred=prediction(upside_types=("a", "b")), floor=0.5)
    assert (computed.upside_hit_rate, computed.upside_base_rate) == (1.0, 1.0)
    assert "b" not in computed.by_type


@pytest.mark.parametrize(
    ("stated", "after", "right"),
    [(0.1, 1, True), (0.1, 0.5, False), (0.1, 0, False), (-0.1, 0, True), (0.0, 0.5, True), (0.0, 1, False)],
)
def test_the_net_effect_is_right_when_its_sign_is(stated: float, after: float, right: bool) -> None:
    computed = grade({"a1": 0.5}, {"a1": after}, pred=prediction(net_effect=stated))
    assert computed.net_effect_sign_right is right


@pytest.mark.parametrize(("after", "hit"), [(0.1, True), (0.5, True), (0.09, False), (0.51, False)])
def test_an_interval_holds_its_bounds(after: float, hit: bool) -> None:
    assert grade({"a1": 0}, {"a1": after}).interval_hit is hit


def test_the_live_signature_must_be_the_candidates_own() -> None:
    own, both, never = (grade({"a1": 0}, {"a1": 1}, hits=h) for h in [(2, 0), (2, 1), (0, 1)])
    assert (own.signature_fired, own.signature_distinctive, own.signature_tasks) == (True, True, 2)
    assert (both.signature_fired, both.signature_distinctive) == (True, False)
    assert (never.signature_fired, never.signature_distinctive) == (False, False)


# -- the verdict -------------------------------------------------------------------------------------------------

GAIN = {"expected": 0.25, "low": 0.1, "high": 0.5}
WIDE = {"expected": 0.25, "low": -0.5, "high": 0.5}
NEUTRAL = {"expected": 0.0, "low": -0.1, "high": 0.1}
LOSS = {"expected": -0.5, "low": -0.75, "high": -0.25}


@pytest.mark.parametrize(
    ("interval", "before", "after", "verdict"),
    [
        (GAIN, 0.0, 0.1, "held"),  # on the bound
        (GAIN, 0.0, 1.0, "held"),  # more than was promised
        (GAIN, 0.0, 0.05, "refuted"),
        (GAIN, 0.2, 0.1, "refuted"),
        (GAIN, 0.2, 0.2, "inert"),
        (WIDE, 0.2, 0.21, "held"),
        (WIDE, 0.2, 0.2, "inert"),  # a gain was predicted, and an interval below 0 does not make one
        (WIDE, 0.2, 0.1, "refuted"),
        (NEUTRAL, 0.2, 0.2, "held"),
        (NEUTRAL, 0.2, 0.1, "held"),
        (NEUTRAL, 0.2, 0.4, "refuted"),
        (LOSS, 0.4, 0.1, "held"),
        (LOSS, 0.4, 0.4, "inert"),
        (LOSS, 0.1, 0.4, "refuted"),
    ],
)
def test_held_means_that_what_was_predicted_came(
    interval: dict[str, float], before: float, after: float, verdict: Verdict
) -> None:
    assert grade({"a1": before}, {"a1": after}, pred=prediction(subset=interval)).verdict == verdict


def test_a_gain_does_not_hold_when_more_tasks_regress_than_was_said() -> None:
    before, after = {"a1": 0, "b1": 1, "b2": 1}, {"a1": 1, "b1": 0, "b2": 1}
    at_bound, beyond = (grade(before, after, pred=prediction(downside_bound=bound)) for bound in (1, 0))
    assert (at_bound.verdict, at_bound.downside_bound_kept) == ("held", True)
    assert (beyond.verdict, beyond.downside_bound_kept) == ("refuted", False)


def test_changes_that_cancel_out_are_an_effect() -> None:
    assert grade({"a1": 0.3, "a2": 0.3}, {"a1": 0.2, "a2": 0.4}).verdict == "refuted"


def test_inert_looks_at_the_stable_subset_only() -> None:
    computed = grade({"a1": 0, "a2": 1, "b1": 1}, {"a1": 0, "a2": 0, "b1": 0}, flipping={"a2"})
    assert (computed.verdict, computed.regressions, computed.downside_bound_kept) == ("inert", ("b1",), False)


def test_a_signature_that_never_fired_voids_even_a_gain() -> None:
    computed = grade({"a1": 0}, {"a1": 1}, hits=(0, 0))
    assert (computed.verdict, computed.subset_change) == ("void", 1.0)


@pytest.mark.parametrize("short", ["candidate", "parent"])
def test_too_few_results_on_either_side_decide_nothing_whatever_else_is_true(short: str) -> None:
    whole = {"a1": 1, "a2": 1}
    cut = {"a1": 1, "a2": None}
    before, after = (whole, cut) if short == "candidate" else (cut, whole)
    assert grade(before, after, hits=(0, 0)).verdict == "undecided"
    assert grade(before, after, hits=(0, 0), floor=0.5).verdict == "void"


def test_a_subset_without_a_stable_shared_task_decides_nothing() -> None:
    flipped = grade({"a1": 0, "b1": 0}, {"a1": 1, "b1": 0}, flipping={"a1"})
    assert (flipped.verdict, flipped.subset_change, flipped.interval_hit) == ("undecided", None, None)
    empty = grade({}, {})
    assert (empty.verdict, empty.coverage, empty.overall_change, empty.net_effect_sign_right) == (
        "undecided", 0.0, None, None,
    )  # fmt: skip
    assert empty.downside_bound_kept is None


@pytest.mark.parametrize(
    ("verdict", "touched"),
    [("held", 2), ("refuted", 2), ("inert", 2), ("void", 0), ("undecided", 0)],
)
def test_an_outcome_that_says_nothing_touches_no_belief(verdict: Verdict, touched: int) -> None:
    assert touched_beliefs(prediction(), verdict) == ({"E1", "E2"} if touched else set())


# -- rows and figures as data ------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("wrong", "said"),
    [
        (row("iter_003", "a1", 1.0, split="heldout"), "of split 'heldout'; a grade uses train rows only"),
        (row("iter_003", "a1", float("nan")), "the score of iter_003, task 'a1' is nan"),
        (row("iter_003", "a1", 1.5), r"expected a finite number in \[0, 1\]"),
        (row("iter_003", "a2", 1.0), "'a2', repeat 0, stands twice"),
        (row("iter_004", "a3", 1.0), "iter_003 on train, iter_004 on train"),
        (replace(row("iter_003", "a2", 1.0, repeat=1), type="b"), "task 'a2' has the types 'a' and 'b'"),
    ],
)
def test_rows_that_cannot_be_compared_are_refused(wrong: ResultRow, said: str) -> None:
    good = rows("iter_003", {"a2": 1})
    with pytest.raises(ValueError, match=said):
        compute(
            prediction(), [*good, wrong], rows("iter_001", {"a2": 1}),
            flipping=(), signature_hits=SignatureHits(1, 0), coverage_floor=0.9,
        )  # fmt: skip


SCORE = st.sampled_from([None, 0.0, 0.1, 0.3, 0.5, 1.0])
TABLE = st.dictionaries(st.sampled_from(["a1", "a2", "a3", "b1", "b2", "c1"]), st.lists(SCORE, min_size=1, max_size=2))


@settings(deadline=None)
@given(TABLE, TABLE, st.sampled_from([GAIN, WIDE, NEUTRAL, LOSS]), st.integers(0, 1), st.sampled_from([0.1, 0.9]))
def test_a_grade_is_plain_finite_json_and_independent_of_the_order_of_rows(
    before: Scores, after: Scores, interval: dict[str, float], fired: int, floor: float
) -> None:
    pred = prediction(subset=interval, downside_types=("b",))
    computed = grade(before, after, pred=pred, hits=(fired, 0), floor=floor)
    turned = [{task: table[task] for task in sorted(table, reverse=True)} for table in (before, after)]
    assert grade(turned[0], turned[1], pred=pred, hits=(fired, 0), floor=floor) == computed
    text = json.dumps(computed.to_json(), allow_nan=False)
    assert Computed.model_validate(json.loads(text)) == computed
    assert set(computed.blind_spots) <= set(computed.regressions)
    assert (computed.verdict == "undecided") == (
        computed.subset_n == 0 or min(computed.coverage, computed.parent_coverage) < floor
    )


def test_own_numbers_are_held_against_the_computed_ones_which_stand() -> None:
    computed = grade({"a1": 0, "a2": 1, "b1": 1}, {"a1": 0.5, "a2": 1, "b1": 0})
    assert differences(computed, OwnNumbers()) == []
    assert differences(computed, OwnNumbers(subset_change=0.255, overall_change=-1 / 6, regressions=1)) == []
    assert differences(computed, OwnNumbers(subset_change=0.26, overall_change=0.0, regressions=0)) == [
        "subset_change: stated +0.260, computed +0.250",
        "overall_change: stated +0.000, computed -0.167",
        "regressions: stated 0, computed 1",
    ]


def test_a_number_stated_where_none_can_be_computed_is_a_difference() -> None:
    assert differences(grade({"b1": 1}, {"b1": 1}), OwnNumbers(subset_change=0.0)) == [
        "subset_change: stated +0.000, computed nothing"
    ]


# -- over a run --------------------------------------------------------------------------------------------------


def record(confidence: float, verdict: Verdict, **rates: float) -> CalibrationRecord:
    return CalibrationRecord(confidence=confidence, verdict=verdict, **rates)


def test_confidence_is_scored_against_what_held() -> None:
    scores = calibration_scores([record(0.8, "held"), record(0.6, "refuted"), record(0.9, "inert")])
    assert (scores.n, scores.share_held) == (3, 1 / 3)
    assert scores.mean_stated == pytest.approx(2.3 / 3)
    assert scores.brier == pytest.approx((0.04 + 0.36 + 0.81) / 3)
    assert scores.log_score == pytest.approx((math.log(0.8) + math.log(0.4) + math.log(0.1)) / 3)


def test_void_and_undecided_bets_are_counted_and_not_scored() -> None:
    silent = [record(1.0, "void", upside_hit_rate=0.0, upside_base_rate=0.0), record(1.0, "undecided")]
    scores = calibration_scores([record(0.5, "held"), *silent, silent[0]])
    assert (scores.n, scores.void, scores.undecided, scores.brier) == (1, 2, 1, 0.25)
    assert scores.upside_hit_rate.n == 0
    nothing = calibration_scores(silent)
    assert (nothing.n, nothing.brier, nothing.log_score, nothing.mean_stated, nothing.share_held) == (0, *[None] * 4)


def test_one_sure_miss_is_dear_but_finite() -> None:
    assert calibration_scores([record(1.0, "refuted")]).log_score == pytest.approx(math.log(0.01))
    assert calibration_scores([record(1.0, "held")]).log_score == pytest.approx(math.log(0.99))


def test_reliability_bins_are_closed_below_and_the_last_one_above_too() -> None:
    stated = [0.0, 0.19, 0.2, 0.6, 0.8, 1.0]
    bins = calibration_scores([record(c, "held" if c >= 0.6 else "refuted") for c in stated]).bins
    assert [(b.low, b.high, b.n) for b in bins] == [
        (0.0, 0.2, 2), (0.2, 0.4, 1), (0.4, 0.6, 0), (0.6, 0.8, 1), (0.8, 1.0, 2),
    ]  # fmt: skip
    assert (bins[0].mean_stated, bins[0].share_held) == (0.095, 0.0)
    assert (bins[2].mean_stated, bins[2].share_held) == (None, None)
    assert (bins[4].mean_stated, bins[4].share_held) == (0.9, 1.0)


def test_hit_rates_are_averaged_with_the_base_rates_of_the_same_iterations() -> None:
    scores = calibration_scores([
        record(0.5, "held", upside_hit_rate=1.0, upside_base_rate=0.5, downside_base_rate=0.5, downside_recall=0.0),
        record(0.5, "refuted", upside_hit_rate=0.0, upside_base_rate=0.25, downside_base_rate=0.0),
        record(0.5, "refuted", upside_base_rate=1.0, downside_base_rate=0.25, downside_precision=1.0),
    ])  # fmt: skip
    upside, precision, recall = scores.upside_hit_rate, scores.downside_precision, scores.downside_recall
    assert (upside.n, upside.rate, upside.base, upside.excess) == (2, 0.5, 0.375, 0.125)
    assert (precision.n, precision.rate, precision.base) == (1, 1.0, 0.25)
    assert (recall.n, recall.rate, recall.base, recall.excess) == (1, 0.0, 0.5, -0.5)


def test_a_record_is_taken_from_a_prediction_and_its_grade() -> None:
    computed = grade({"a1": 0, "b1": 1}, {"a1": 1, "b1": 0}, pred=prediction(downside_types=("b",)))
    assert record_of(prediction(), computed) == record(
        0.7, "refuted", upside_hit_rate=1.0, upside_base_rate=0.5, downside_precision=1.0, downside_recall=1.0,
        downside_base_rate=0.5,
    )  # fmt: skip


@pytest.mark.parametrize("wrong", [math.nan, 1.2, -0.1, True, "0.5"])
def test_a_confidence_that_is_none_is_refused(wrong: Any) -> None:
    with pytest.raises(ValueError, match="a stated confidence"):
        calibration_scores([record(wrong, "held")])


def test_the_block_shows_a_proposer_its_own_record() -> None:
    block = calibration_block([
        record(0.9, "held", upside_hit_rate=1.0, upside_base_rate=0.5),
        record(0.9, "refuted", upside_hit_rate=0.0, upside_base_rate=0.25),
        record(0.7, "void"),
    ])  # fmt: skip
    assert block == (
        "- 2 graded prediction(s), all on train tasks, the ones that are searched (left out: 1 void, 0 undecided)\n"
        "- confidence: stated 0.90 on average, held 0.50: overconfident by 0.40\n"
        "- Brier score 0.410 (0 is best; stating 0.50 each time gives 0.250), log score -1.204 (higher is better;"
        " stating 0.50 each time gives -0.693)\n"
        "- named upside types that improved: 0.50, while 0.38 of all types did (excess +0.12, n 2)\n"
        "\n"
        "| stated | predictions | mean stated | held |\n"
        "| --- | --- | --- | --- |\n"
        "| 0.8 to 1.0 | 2 | 0.90 | 0.50 |\n"
    )


@pytest.mark.parametrize(
    ("stated", "verdict", "lean"),
    [(0.6, "held", "underconfident by 0.40"), (1.0, "held", "no lean"), (0.2, "inert", "overconfident by 0.20")],
)
def test_the_block_says_which_way_confidence_leans(stated: float, verdict: Verdict, lean: str) -> None:
    assert lean in calibration_block([record(stated, verdict)])


def test_the_block_of_a_run_without_a_graded_bet_says_so() -> None:
    assert calibration_block([]) == "No prediction has been graded so far (left out: 0 void, 0 undecided).\n"
    assert "1 undecided" in calibration_block([record(0.5, "undecided")])
