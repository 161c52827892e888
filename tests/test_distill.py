"""The distill block: made from a grade, written and read back, and the authors' blocks read too."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from bco_graph.calibration import Computed, SignatureHits, compute
from bco_graph.distill import CAUSES, VERDICTS, Distill, distill_of, parse_distill, render_distill
from bco_graph.errors import DocumentError
from bco_graph.prediction import Prediction
from bco_graph.receipts import ResultRow
from bco_graph.state import Failure, Grade
from bco_graph.submissions import GradeSubmission

PREDICTION = Prediction.model_validate({
    "iteration": 16, "mode": "refine", "candidate": "x", "base": "iter_015", "base_why": "", "failure_mode": "f",
    "attempts": 0, "beliefs": ["E1"], "assumption_audit": "", "mechanism": "m", "behavioural": "b",
    "subset": {"tasks": [], "types": ["sum"], "expected": 0.1, "low": 0.0, "high": 0.5}, "confidence": 0.7,
    "downside_bound": 1, "upside_types": ["sum"], "downside_types": [], "net_effect": 0.05, "live_signature": "s",
    "anchors": [], "falsification": "f",
})  # fmt: skip


def row(candidate: str, task: str, type_: str, score: float) -> ResultRow:
    return ResultRow(
        split="train", candidate=candidate, task=task, repeat=0, type=type_, kind="scored", score=score, answer=None,
        note="", error="", seconds=0.0, calls=1, tokens=1,
    )  # fmt: skip


def computed() -> Computed:
    return compute(
        PREDICTION,
        candidate_rows=[row("iter_016", "t1", "sum", 1), *(row("iter_016", task, "map", 0) for task in ("t2", "t3"))],
        parent_rows=[row("iter_015", "t1", "sum", 0), row("iter_015", "t2", "map", 1), row("iter_015", "t3", "map", 0)],
        flipping={"t3"},
        signature_hits=SignatureHits(2, 0),
        coverage_floor=0.9,
    )  # fmt: skip


def grade(reading: dict[str, Any] | None, failure: Failure | None = None) -> Grade:
    stated = GradeSubmission.model_validate(reading).model_dump(mode="json") if reading else None
    return Grade(
        iteration=16, candidate="iter_016", verdict="held", cause=stated["cause"] if stated else None,
        computed=computed().to_json(), reading=stated, differences=[], failure=failure,
    )  # fmt: skip


READING = {
    "behavioural_check": "The second call was made.\nIn 2 of 2 traces.", "behaviour_changed": "yes", "verdict": "held",
    "unstable": ["t3", "t9"], "learned": "Units can be asked for.", "belief_update": "E1 up.",
    "numbers": {"subset_change": 0.4},
}  # fmt: skip


def test_a_block_shows_the_computed_figures_beside_the_reading() -> None:
    text = render_distill(distill_of(PREDICTION, computed(), grade(READING)))
    assert text == (
        "## iter_015 -> iter_016 distill\n"
        "- Mode: refine\n"
        "- Behavioral check (self): The second call was made.\n"
        "  In 2 of 2 traces.\n"
        "- Aggregate check (computed): subset +1.000 over 1 stable of 1 tasks, predicted +0.1 in [+0, +0.5]; overall"
        " +0.000 over 3 shared tasks, predicted +0.05; regressions 1, bound 1; breakthroughs 1; upside types hit 1.00,"
        " base rate 0.50; downside precision none, recall 0.00, base rate 0.50; live signature in 2 tasks; coverage 1,"
        " parent 1\n"
        "- Unstable (excluded): t3; by the proposer's reading also t9\n"
        "- Blind-spot regressions: t2\n"
        "- Verdict: held\n"
        "- What was learned: Units can be asked for.\n"
        "- Belief update: E1 up.\n"
    )


def test_where_the_paper_grades_the_proposers_own_numbers_stand() -> None:
    block = distill_of(PREDICTION, computed(), grade(READING), grading="paper")
    assert block.aggregate == "subset +0.400; overall unknown; regressions not stated"
    assert "- Aggregate check (self): subset +0.400" in render_distill(block)


def test_a_grade_without_a_reading_says_why() -> None:
    failed = Failure(step="grade", cause="turns", reasons=["60 turns"])
    block = distill_of(PREDICTION, computed(), grade(None, failed), grading="paper")
    assert block.behavioural == "none: step grade failed (turns)"
    assert (block.aggregate_by, block.learned, block.cause) == ("computed", "", None)


VALUE = st.lists(
    st.sampled_from(["a", "- Verdict: held", "## iter_001 -> iter_002 distill", "\n", "\n\n", " ", "  ", "\r", "\\r",
                     "é", "```", ": ", "# x", "\u2028", "\x1c", "\\"]),
    max_size=7,
).map("".join)  # fmt: skip
TEXTS = ["mode", "behavioural", "aggregate", "unstable", "blind_spots", "learned", "belief_update"]
BLOCKS = st.fixed_dictionaries({
    "parent": st.sampled_from(["iter_000", "iter_015"]),
    "candidate": st.just("iter_016"),
    "stamp": st.sampled_from(["", "2026-01-02T03:04:05Z", "a) (b"]),
    **dict.fromkeys([*TEXTS, "outcome_mismatch", "unresolved"], VALUE),
    "verdict": st.sampled_from([None, *VERDICTS]),
    "cause": st.sampled_from([None, *CAUSES]),
}).map(Distill.model_validate)  # fmt: skip


@settings(deadline=None, max_examples=200)
@given(BLOCKS, st.sampled_from(["computed", "self"]))
def test_writing_and_reading_a_block_loses_nothing(block: Distill, by: str) -> None:
    block = block.model_copy(update={"aggregate_by": by if block.aggregate else "computed"})
    text = render_distill(block)
    assert "\r" not in text
    assert parse_distill(text) == block
    assert parse_distill(f"\n{text}\n\n".replace("\n", "\r\n")) == block
    assert [line for line in text.split("\n") if line.startswith("#")] == text.split("\n")[:1]


def test_a_cause_stands_with_what_it_means() -> None:
    block = Distill(parent="iter_001", candidate="iter_002", verdict="refuted", cause="surface_without_failure")
    text = render_distill(block)
    assert "- Cause: surface_without_failure -- the surface changed, the failure did not\n" in text
    assert parse_distill(text.replace(" -- the surface changed, the failure did not", "")) == block


def test_blocks_of_the_paper_and_of_its_earlier_protocol_are_read() -> None:
    later = parse_distill(
        "### iter_004 -> iter_005 distill\n- Behavioral check (self): seen in\n  two traces\n"
        "- Aggregate check (self): 3 more passed. Verdict: works.\n- Unstable (multi-run, excluded): many\n"
        "- Blind-spot regressions: none\n"
    )
    assert (later.behavioural, later.aggregate_by, later.unstable) == ("seen in\ntwo traces", "self", "many")
    assert later.verdict is None
    earlier = parse_distill(
        "## iter_001 → iter_002 distill (2026-01-02T03:04:05Z)\n- Outcome mismatch: predicted [+0.1, +0.2], got 0\n"
        "- Unresolved: why\n- Belief update: rank less\n"
    )
    assert (earlier.parent, earlier.candidate, earlier.stamp) == ("iter_001", "iter_002", "2026-01-02T03:04:05Z")
    assert (earlier.unresolved, earlier.belief_update) == ("why", "rank less")
    assert earlier.outcome_mismatch == "predicted [+0.1, +0.2], got 0"


@pytest.mark.parametrize(
    ("verdict", "read"),
    [
        ("held", "held"), ("not held", None), ("unheld", None), ("The verdict is held", None), ("Held", None),
        ("held, mostly", None), ("refuted or inert", None), ("0.9", None), ("held -- for sure", None),
    ],
)  # fmt: skip
def test_a_verdict_is_the_whole_fixed_word_and_is_never_found_in_a_sentence(verdict: str, read: str | None) -> None:
    text = f"## iter_001 -> iter_002 distill\n- Mode: act\n- Verdict: {verdict}\n"
    if read:
        assert parse_distill(text).verdict == read
        return
    with pytest.raises(
        DocumentError, match="expected a verdict, one of held, refuted, inert, void, undecided"
    ) as caught:
        parse_distill(text)
    assert caught.value.line == 3


@pytest.mark.parametrize(
    ("text", "line", "said"),
    [
        ("## iter_001 distill\n- Mode: act\n", 1, "expected `## iter_015 -> iter_016 distill`"),
        ("", 1, "expected `## iter_015"),
        ("\n## a -> b distill\n- Mod: act\n", 3, "unknown line 'Mod' (did you mean 'Mode'?)"),
        ("## a -> b distill\n- Mode: act\n- Mode: act\n", 3, "stands twice"),
        ("## a -> b distill\nMode: act\n", 2, "expected `- Label: value`"),
        ("## a -> b distill\n- Mode: act\nand so on\n", 3, "two blanks before it"),
        ("## a -> b distill\n- Cause: the belief was wrong\n", 2, "expected a cause, one of not_wired"),
        ("## a -> b distill\n- Cause: belief_wrong -- or not\n", 2, "expected a cause"),
    ],
)  # fmt: skip
def test_a_block_that_cannot_be_read_is_refused_at_its_line(text: str, line: int, said: str) -> None:
    with pytest.raises(DocumentError) as caught:
        parse_distill(text)
    assert said in str(caught.value)
    assert caught.value.line == line
