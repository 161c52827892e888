"""What a proposer hands in: refused with reasons, or taken as it came."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, cast

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import BaseModel

from bco_graph.errors import StepFailed, SubmissionRefused
from bco_graph.prediction import (
    Prediction,
    build_prediction,
    check_prediction,
    parse_prediction,
    render_prediction,
    seal,
)
from bco_graph.proposers.intake import Intake, take
from bco_graph.protocols import Step
from bco_graph.receipts import dumps
from bco_graph.signature import signature_fault
from bco_graph.state import JSON, Proposal
from bco_graph.strict_json import loads
from bco_graph.submissions import GradeSubmission, PredictSubmission, ProposeSubmission, ProposeWithBeliefs
from bco_graph.world_model import (
    Belief,
    Delta,
    Document,
    Evidence,
    HistoryRecord,
    WorldModel,
    apply,
    compact,
    history_record,
    lint,
    parse_document,
    render_document,
)
from tests.fuzz.strategies import FUZZ, anything, as_text, broken, broken_text, cuts, refused_or
from tests.toy import GRADE, PREDICT, PROPOSE

TRACE = "iterations/iter_001/traces/t.json"
DELTA: JSON = {
    "ops": [
        {"op": "add", "kind": "execution", "claim": "It obeys.", "confidence": 0.6, "mass": 2, "reason": "seen",
         "evidence_for": [{"path": TRACE, "locator": "call 1"}]},
        {"op": "revise", "id": "E1", "confidence": 0.8, "status": "confirmed", "reason": "again",
         "add_evidence_for": [{"path": TRACE}]},
        {"op": "merge", "ids": ["V1", "V2"], "reason": "the same", "evidence": [{"path": TRACE}]},
        {"op": "remove", "id": "E2", "reason": "refuted", "evidence": [{"path": TRACE}]},
    ],
    "experiment_note": "as said", "learned": "much",
}  # fmt: skip
FORMS: list[tuple[type[BaseModel], JSON]] = [
    (ProposeSubmission, {key: PROPOSE[key] for key in ("parent", "name", "mechanism")}),
    (ProposeWithBeliefs, PROPOSE),
    (PredictSubmission, PREDICT),
    (GradeSubmission, {**GRADE, "numbers": {"subset_change": 0.5, "regressions": 1}}),
    (Delta, DELTA),
]
forms = st.sampled_from(FORMS)


def step(schema: type[BaseModel], accept: Any = lambda model: model) -> Step[Any]:
    return Step("grade", 1, "bco", Path("/nowhere"), "", schema, accept)


@FUZZ
@given(forms.flatmap(lambda form: st.tuples(st.just(form[0]), broken(form[1]))), st.booleans())
def test_a_submission_is_refused_with_reasons_or_stored_as_it_came(
    form: tuple[type[BaseModel], JSON], text: bool
) -> None:
    schema, submission = form
    raw = as_text(submission) if text or not isinstance(submission, dict) else submission
    taken = refused_or(SubmissionRefused, lambda: take(step(schema), raw))
    if taken is not None:
        model, stored = taken
        assert json.loads(dumps(stored).encode("utf-8")) == submission
        assert schema.model_validate(json.loads(dumps(model.model_dump(mode="json")))) == model


@FUZZ
@given(forms.flatmap(lambda form: st.tuples(st.just(form[0]), broken_text(as_text(form[1])))))
def test_a_submission_that_is_broken_text_is_refused_with_reasons(form: tuple[type[BaseModel], str]) -> None:
    refused_or(SubmissionRefused, lambda: take(step(form[0]), form[1]))


@pytest.mark.parametrize(("schema", "example"), FORMS)
def test_a_submission_cut_off_anywhere_is_refused(schema: type[BaseModel], example: JSON) -> None:
    *cut, whole = cuts(as_text(example))
    for text in cut:
        with pytest.raises(SubmissionRefused):
            take(step(schema), text)
    take(step(schema), whole)


@FUZZ
@given(st.one_of(anything, st.dictionaries(st.one_of(st.integers(), st.tuples(st.text())), anything)), st.booleans())
def test_what_is_handed_in_by_code_ends_a_step_in_order_and_on_record(raw: Any, text: bool) -> None:
    given_raw = raw if isinstance(raw, dict) and not text else str(raw)
    intake = Intake(step(GradeSubmission), max_refusals=0)
    with pytest.raises(StepFailed) as failed:
        intake.offer(given_raw)
    dumps({"raw": failed.value.raw, "reasons": failed.value.reasons}).encode("utf-8")


@FUZZ
@given(st.one_of(anything.map(as_text), broken_text(as_text(DELTA))))
def test_strict_json_gives_back_what_can_be_stored_or_says_why_not(text: str) -> None:
    value = refused_or(ValueError, lambda: loads(text))
    if value is not None:
        assert loads(dumps(value).encode("utf-8").decode("utf-8")) == value


# -- what the steps make of them ------------------------------------------------------------------------------------

PROPOSAL = {**PROPOSE, "iteration": 3, "tree": "t", "failure": None}


@FUZZ
@given(broken(PROPOSE, most=2), broken(PREDICT))
def test_a_prediction_that_is_taken_is_sealed_written_and_read_back_whole(proposal: JSON, prediction: JSON) -> None:
    staged = refused_or(SubmissionRefused, lambda: take(step(ProposeWithBeliefs), as_text(proposal)))
    staked = refused_or(SubmissionRefused, lambda: take(step(PredictSubmission), as_text(prediction)))
    if staged is None or staked is None:
        return
    made = build_prediction(cast(Proposal, {**PROPOSAL, **staged[0].model_dump()}), staked[0], attempts=1)
    check_prediction(made, task_ids=["t"], types=["short"], belief_ids=["E1"], stable_tasks=["t"], attempts=1)
    assert len(seal(made)) == 64
    assert Prediction.from_json(json.loads(dumps(made.to_json()))) == made
    assert parse_prediction(render_prediction(made)) == made


HEAD = WorldModel(
    beliefs=tuple(
        Belief(
            id=name, kind="execution" if name[0] == "E" else "evaluation", claim=f"claim {name}", confidence=0.4,
            status="refuted" if name == "E2" else "hypothesis", mass=1, evidence_for=(Evidence(path=TRACE),),
        )
        for name in ("E1", "E2", "V1", "V2")
    )
)  # fmt: skip


@FUZZ
@given(broken(DELTA, most=2))
def test_a_delta_changes_all_that_it_names_or_nothing(submission: JSON) -> None:
    before = render_document(Document(head=HEAD))
    taken = refused_or(SubmissionRefused, lambda: take(step(Delta), as_text(submission)))
    applied = taken and refused_or(
        SubmissionRefused,
        lambda: apply(HEAD, taken[0], iteration=1, touched=None, evidence_exists=lambda path: path == TRACE),
    )
    assert render_document(Document(head=HEAD)) == before
    if not applied:
        return
    assert WorldModel.from_json(json.loads(dumps(applied.head.to_json()))) == applied.head
    record = history_record(1, applied, taken[0], "")
    stored = HistoryRecord(iteration=1, text=json.loads(dumps(record.markdown)))
    document = Document(head=compact(applied.head, 500, keep_ids=frozenset()).head, history=(stored,))
    assert lint(document) == []
    assert parse_document(render_document(document)) == document


@FUZZ
@given(st.one_of(st.text(max_size=60), st.from_regex(r"re:[\[\]()*+?{}\\|a-z0-9,^$-]{0,30}")))
def test_a_live_signature_is_faulted_in_words_or_can_be_looked_for(pattern: str) -> None:
    fault = signature_fault(pattern)
    assert fault is None or "live_signature" in fault
