"""The prediction: built, checked, sealed, and written to Markdown and back."""

from __future__ import annotations

import re
from typing import Any

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from pydantic import ValidationError

from bco_graph.errors import DocumentError
from bco_graph.paper_prediction import read_paper_prediction
from bco_graph.prediction import (
    Prediction,
    build_prediction,
    check_prediction,
    parse_prediction,
    render_prediction,
    seal,
)
from bco_graph.prose import escape, parse_names, render_names, unescape
from bco_graph.state import Proposal
from bco_graph.submissions import PredictSubmission

PROPOSAL = Proposal(
    iteration=16, parent="iter_015", name="ask_for_the_unit", mode="act", beliefs=["E3", "V1"],
    failure_mode="number without unit", mechanism="A reply without a unit is asked for it once.",
    live_signature="unit-gate: asked again", tree="f" * 40, failure=None,
)  # fmt: skip
SUBMITTED: dict[str, Any] = {
    "base_why": "the best so far",
    "assumption_audit": "",
    "behavioural": "one more call where the unit is missing",
    "subset": {"tasks": ["t1", "t2"], "types": ["conversion"], "expected": 0.1, "low": 0.0, "high": 0.2},
    "confidence": "60%",
    "downside_bound": 1,
    "upside_types": ["conversion"],
    "downside_types": ["counting"],
    "net_effect": 0.03,
    "anchors": ["t1"],
    "falsification": "the second reply has no unit either",
}
KNOWN: dict[str, Any] = {
    "task_ids": ["t1", "t2", "t3"],
    "types": ["conversion", "counting"],
    "belief_ids": ["E3", "V1"],
    "stable_tasks": ["t1", "t3"],
    "attempts": 0,
}


def prediction(**changes: Any) -> Prediction:
    subset = {**SUBMITTED["subset"], **changes.pop("subset", {})}
    built = build_prediction(PROPOSAL, PredictSubmission.model_validate({**SUBMITTED, "subset": subset}), attempts=0)
    return Prediction.model_validate({**built.to_json(), **changes})


def reasons(pred: Prediction, **known: Any) -> list[str]:
    return check_prediction(pred, **{**KNOWN, **known})


def test_a_prediction_joins_what_the_proposal_states_with_what_is_handed_in() -> None:
    made = build_prediction(PROPOSAL, PredictSubmission.model_validate(SUBMITTED), attempts=1)
    assert (made.iteration, made.base, made.candidate, made.mode) == (16, "iter_015", "ask_for_the_unit", "act")
    assert (made.beliefs, made.live_signature, made.attempts) == (("E3", "V1"), "unit-gate: asked again", 1)
    assert (made.confidence, made.subset.tasks, made.subset.expected) == (0.6, ("t1", "t2"), 0.1)


def test_a_prediction_cannot_change_once_it_is_made() -> None:
    submission = PredictSubmission.model_validate(SUBMITTED)
    made = build_prediction(PROPOSAL, submission, attempts=0)
    digest = seal(made)
    submission.subset.tasks.append("t3")
    submission.subset.low = -1.0
    assert seal(made) == digest
    with pytest.raises(ValidationError, match="frozen"):
        made.subset.low = -1.0  # type: ignore[misc]
    with pytest.raises(ValidationError, match="frozen"):
        made.downside_bound = 9  # type: ignore[misc]


def test_the_seal_is_of_the_content_and_nothing_else() -> None:
    made = prediction()
    assert re.fullmatch("[0-9a-f]{64}", seal(made))
    assert seal(Prediction.from_json(made.to_json())) == seal(made)
    assert seal(prediction(subset={"low": 0.01})) != seal(made)
    assert seal(prediction(falsification="the second reply has no unit  either")) != seal(made)


def test_sealed_json_with_a_wrong_or_unknown_field_is_refused_by_name() -> None:
    with pytest.raises(DocumentError, match="sealed prediction: confidence: 'high' is not a probability"):
        Prediction.from_json({**prediction().to_json(), "confidence": "high"})
    with pytest.raises(DocumentError, match="extra"):
        Prediction.from_json({**prediction().to_json(), "extra": 1})


# -- checks ------------------------------------------------------------------------------------------------------


def test_an_acceptable_prediction_gives_no_reason() -> None:
    assert reasons(prediction()) == []


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"subset": {"tasks": ["t11"]}}, r"subset\.tasks: task 't11' does not exist \(did you mean 't1'\?\)"),
        ({"subset": {"types": ["conversions"]}}, r"subset\.types: type 'conversions' .*did you mean 'conversion'"),
        ({"upside_types": ["countin"]}, r"upside_types: type 'countin' .*'counting'\?\); available: conversion, c"),
        ({"downside_types": ["chess"]}, r"downside_types: type 'chess' does not exist; available"),
        ({"beliefs": ["E4"]}, r"beliefs: belief 'E4' does not exist"),
        ({"anchors": ["t9"]}, r"anchors: task 't9' does not exist"),
        ({"anchors": ["t2"]}, r"anchors: task 't2' is not stable"),
        ({"subset": {"tasks": [], "types": []}}, r"subset: it is empty"),
        ({"subset": {"low": 0.11}}, r"low is above expected \(low \+0\.11, expected \+0\.1, high \+0\.2\)"),
        ({"subset": {"high": 0.09}}, r"expected is above high"),
        ({"downside_types": ["conversion"]}, r"type 'conversion' is named as upside and as downside"),
        ({"mode": "act", "beliefs": []}, r"mode 'act' needs at least one belief"),
        ({"mode": "probe", "beliefs": []}, r"mode 'probe' needs at least one belief"),
    ],
)  # fmt: skip
def test_each_fault_is_one_reason_that_names_it(changes: dict[str, Any], said: str) -> None:
    (reason,) = reasons(prediction(**changes))
    assert re.search(said, reason), reason


def test_an_interval_may_be_a_point() -> None:
    assert reasons(prediction(subset={"low": 0.1, "expected": 0.1, "high": 0.1})) == []


@pytest.mark.parametrize("mode", ["refine", "explore"])
def test_an_edit_may_stake_no_belief_while_there_is_none_to_stake(mode: str) -> None:
    assert reasons(prediction(mode=mode, beliefs=[]), belief_ids=[]) == []


def test_the_third_attempt_on_a_failure_mode_needs_an_assumption_audit() -> None:
    assert reasons(prediction(), attempts=1) == []
    (reason,) = reasons(prediction(assumption_audit=" \n"), attempts=2)
    assert "assumption_audit" in reason
    assert "'number without unit'" in reason
    assert reasons(prediction(assumption_audit="that replies are read at all"), attempts=2) == []


def test_a_long_list_of_known_names_is_counted_instead_of_listed() -> None:
    (reason,) = reasons(prediction(anchors=["u1"]), task_ids=[*(f"t{i}" for i in range(1000)), "t1"])
    assert "there are 1001" in reason
    assert len(reason) < 200


# -- prediction.md -----------------------------------------------------------------------------------------------


def test_the_document_has_the_papers_shape() -> None:
    text = render_prediction(prediction(attempts=1, subset={"low": -0.02}))
    assert text.startswith(
        "# iter_016 prediction\n\n## Mode\nact\n\n## Candidate\nask_for_the_unit\n\n## Base\niter_015 -- "
    )
    assert re.findall(r"^#+ (.*)$", text, re.MULTILINE)[1:] == [
        "Mode", "Candidate", "Base", "Failure mode attacked", "Beliefs at stake", "Assumption audit",
        "Mechanism -- the behavioral change", "Behavioral prediction (graded from traces)",
        "Aggregate prediction (graded on the subset, de-noised)", "Live signature", "Anchors (stable tasks only)",
        "Falsification",
    ]  # fmt: skip
    assert (
        "- subset: tasks t1, t2; types conversion\n- expected: +0.1\n- interval: [-0.02, +0.2]\n- downside bound: 1\n"
        "- upside types: conversion\n- downside types: counting\n- net effect: +0.03\n- confidence: 0.6\n"
    ) in text
    assert "number without unit\n(attempts so far: 1)\n" in text


HOSTILE = st.lists(
    st.sampled_from(["## Mode", "#", "# x", "\\## Base", "```", "~~~", "\r", "\\r", "\\", "r", "\n", "\n\n", " ", "é",
                     "- expected: +9", "(attempts so far: 7)", "none", " -- ", "\u2028", "\x85", "\x0b", '"', "\ufeff",
                     "\x00", "−", "日本", "###### deep", "    # code", "\t# tab"]),
    max_size=8,
).map("".join)  # fmt: skip
TEXT = st.one_of(HOSTILE, st.text(st.characters(codec="utf-8"), max_size=12))
NAMES = st.lists(st.one_of(TEXT, st.sampled_from(["none", "tasks", "types", "a,b", "a; types b", ""])), max_size=3)
CHANGE = st.one_of(st.floats(-1, 1), st.sampled_from([0.0, -0.0, 1e-7, 0.1, 1 / 3]))
PREDICTIONS = st.fixed_dictionaries({
    "iteration": st.integers(0, 12_000),
    "mode": st.sampled_from(["probe", "act", "refine", "explore"]),
    **dict.fromkeys(["candidate", "base", "base_why", "failure_mode", "assumption_audit"], TEXT),
    **dict.fromkeys(["mechanism", "behavioural"], TEXT),
    "attempts": st.integers(0, 99),
    **dict.fromkeys(["beliefs", "upside_types", "downside_types", "anchors"], NAMES),
    "subset": st.fixed_dictionaries(
        {"tasks": NAMES, "types": NAMES, "expected": CHANGE, "low": CHANGE, "high": CHANGE}
    ),
    "confidence": st.floats(0, 1),
    "downside_bound": st.integers(0, 10**6),
    "net_effect": CHANGE,
    "live_signature": TEXT,
    "falsification": TEXT,
}).map(Prediction.model_validate)  # fmt: skip


@settings(deadline=None, max_examples=200)
@given(PREDICTIONS)
def test_writing_and_reading_a_prediction_loses_nothing(made: Prediction) -> None:
    text = render_prediction(made)
    assert "\r" not in text
    assert parse_prediction(text) == made
    assert seal(parse_prediction(text.replace("\n", "\r\n"))) == seal(made)


@settings(deadline=None, max_examples=300)
@given(TEXT)
@example(" # x")
@example("a\n   ###### deep\n##\n\\##")
def test_free_text_cannot_forge_a_heading_and_reads_back_to_the_letter(text: str) -> None:
    written = escape(text)
    assert unescape(written) == text
    assert not re.search(r"^ {0,3}#{1,6}(?:[ \t]|$)|\r", written, re.MULTILINE)


def test_the_escape_leaves_ordinary_text_as_it_is() -> None:
    ordinary = "Use `\\d+` and #tags.\n    indented code\n```python\nprint('a\\n')\n```\nend --"
    assert escape(ordinary) == ordinary
    assert escape("## Mode") == "\\## Mode"
    assert escape("a\rb") == "a\\rb"


def test_names_stand_bare_where_they_can() -> None:
    assert render_names(["gaia#4fc2", "a, b", "none"]) == 'gaia#4fc2, "a, b", "none"'
    assert render_names([]) == "none"
    for wrong in ("a b", "a,b", "", 'a, "b'):
        with pytest.raises(ValueError, match="no list of names"):
            parse_names(wrong)


def test_a_hand_written_number_may_use_the_unicode_minus() -> None:
    text = render_prediction(prediction()).replace("[+0.0, +0.2]", "[−0.05, .2]").replace("0.6\n", "60%\n")
    assert parse_prediction(text).subset.low == -0.05
    assert parse_prediction(text).confidence == 0.6


@pytest.mark.parametrize(
    ("old", "new", "line", "said"),
    [
        ("# iter_016 prediction", "# prediction", 1, "expected the title"),
        ("# iter_016 prediction\n", "# iter_016 prediction\nhello\n", 2, "expected a section"),
        ("## Mode\nact", "## Mode\nacting", 4, "mode: "),
        ("## Candidate", "## Candidates", 6, "unknown section 'Candidates' (did you mean 'candidate'?)"),
        ("## Candidate", "## Mode", 6, "stands twice"),
        ("iter_015 -- the", "iter_015: the", 10, "expected `iter_015 -- why"),
        ("(attempts so far: 0)", "(attempts so far: none)", 13, "(attempts so far: 0)"),
        ("E3, V1", "E3 and V1", 17, "no list of names"),
        ("- expected: +0.1", "- expected: +0.1 or more", 30, "a number such as +0.05"),
        ("[+0.0, +0.2]", "+0.0 to +0.2", 31, "an interval such as"),
        ("- downside bound: 1", "- downside bound: one", 32, "downside_bound: "),
        ("- net effect: +0.03", "- net effect: +3", 35, "net_effect: "),
        ("- confidence: 0.6", "- confidence: likely", 36, "is not a probability"),
        ("- confidence: 0.6", "- confidence: 0.6\n- confidence: 0.7", 37, "each once"),
        ("- confidence: 0.6\n", "", 28, "missing line(s): confidence"),
        ("tasks t1, t2; types conversion", "t1, t2", 29, "expected `tasks a, b; types c`"),
    ],
)  # fmt: skip
def test_a_document_that_cannot_be_read_is_refused_at_its_line(old: str, new: str, line: int, said: str) -> None:
    text = render_prediction(prediction())
    assert text.count(old) == 1
    with pytest.raises(DocumentError) as caught:
        parse_prediction(text.replace(old, new))
    assert said in str(caught.value)
    assert caught.value.line == line


def test_a_missing_section_is_named() -> None:
    text = render_prediction(prediction())
    with pytest.raises(DocumentError, match=r"missing section\(s\): falsification"):
        parse_prediction(text[: text.index("## Falsification")])


# -- the authors' earlier shape ----------------------------------------------------------------------------------

EARLIER = """# iter_007 prediction
## Candidate
tidy_the_notes

## Mechanism
Keep the first line of each note.

## Outcome prediction
- Train passrate Δ: [+0.03, +0.07] (to ~0.56–0.60)
- Trace movement: shorter prompts, 3–5 hits.

## Falsification
- No change at all.
"""


def test_a_prediction_of_the_earlier_shape_is_read() -> None:
    read = read_paper_prediction(EARLIER)
    assert (read["iteration"], read["candidate"]) == (7, "tidy_the_notes")
    assert (read["interval"], read["absolute"]) == ((0.03, 0.07), (0.56, 0.60))
    assert read["mechanism"] == "Keep the first line of each note."
    assert read["falsification"] == "- No change at all."
    assert list(read["sections"]) == ["Outcome prediction"]
    assert read["sections"]["Outcome prediction"].endswith("- Trace movement: shorter prompts, 3–5 hits.")


@pytest.mark.parametrize(
    ("line", "interval", "absolute"),
    [
        ("- Train passrate Δ: [−0.03, +0.02] from 0.39, so flat at ~0.36–0.41.", (-0.03, 0.02), (0.36, 0.41)),
        ("- **Train passrate Δ**: [-0.34, -0.26] (from 0.38 to ~0.04-0.12)", (-0.34, -0.26), (0.04, 0.12)),
        ("* Train pass rate delta: [.5, .54]", (0.5, 0.54), None),
        ("- Train passrate Δ: [0, 1] with 3–5 of 14 mended (absolute 0.69 — 0.71)", (0.0, 1.0), (0.69, 0.71)),
    ],
)  # fmt: skip
def test_signs_ranges_and_bold_labels_vary(
    line: str, interval: tuple[float, float], absolute: tuple[float, float] | None
) -> None:
    read = read_paper_prediction(EARLIER.replace("- Train passrate Δ: [+0.03, +0.07] (to ~0.56–0.60)", line))
    assert (read["interval"], read["absolute"]) == (interval, absolute)


@pytest.mark.parametrize(
    ("old", "new", "line"),
    [
        ("[+0.03, +0.07]", "between 0.03 and 0.07", 9),
        ("[+0.03, +0.07]", "[+0.07, +0.03]", 9),
        ("- Train passrate Δ: [+0.03, +0.07] (to ~0.56–0.60)", "- It will rise.", 8),
        ("- Trace movement:", "- Train passrate Δ: [0, 0]\n- Trace movement:", 10),
        ("# iter_007 prediction", "# notes", 1),
    ],
)  # fmt: skip
def test_a_bet_that_cannot_be_read_is_refused_at_its_line(old: str, new: str, line: int) -> None:
    with pytest.raises(DocumentError) as caught:
        read_paper_prediction(EARLIER.replace(old, new))
    assert caught.value.line == line
