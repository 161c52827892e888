"""What people do to beliefs, and what no proposer may do to them after that."""

from __future__ import annotations

from typing import Any

import pytest
from pydantic import ValidationError

from bco_graph.errors import DocumentError, SubmissionRefused
from bco_graph.world_model import (
    Applied,
    Belief,
    Delta,
    Document,
    Evidence,
    HumanChange,
    WorldModel,
    apply,
    apply_human,
    compact,
    estimate_tokens,
    human_record,
    lint,
    parse_document,
    render_belief,
    render_document,
    render_head,
)

PATH = "iterations/iter_000/traces/a.json"


def belief(name: str, **changes: Any) -> Belief:
    given = {"id": name, "kind": "evaluation" if name[0] == "V" else "execution", "claim": f"claim of {name}",
             "confidence": 0.7, "status": "hypothesis", "evidence_for": [{"path": PATH}], "mass": 3}  # fmt: skip
    return Belief.model_validate({**given, **changes})


HEAD = WorldModel(beliefs=(belief("E1"), belief("E2"), belief("V1")), retired=("E3",))


def human(*changes: dict[str, Any], head: WorldModel = HEAD) -> Applied:
    made = [HumanChange.model_validate(change) for change in changes]
    return apply_human(head, made, iteration=2, evidence_exists=lambda path: path == PATH)


def refused(*changes: dict[str, Any], head: WorldModel = HEAD) -> list[str]:
    with pytest.raises(SubmissionRefused) as error:
        human(*changes, head=head)
    return error.value.reasons


def by_proposer(*ops: dict[str, Any], head: WorldModel) -> Applied:
    delta = Delta.model_validate({"ops": [{"reason": "seen", **op} for op in ops]})
    return apply(head, delta, iteration=3, touched=None, evidence_exists=lambda path: True)


def not_by_proposer(*ops: dict[str, Any], head: WorldModel) -> str:
    with pytest.raises(SubmissionRefused) as error:
        by_proposer(*ops, head=head)
    return "; ".join(error.value.reasons)


CITED = {"add_evidence_for": [{"path": PATH}]}
REMOVE = {"op": "remove", "id": "E1", "evidence": [{"path": PATH}]}
MERGE = {"op": "merge", "ids": ["E2", "E1"], "evidence": [{"path": PATH}]}
VETO = {"veto": "E1", "reason": "the tool was changed since"}
ADD = {"add": {"claim": "Digits are read one by one.", "confidence": 0.8}}


def test_what_a_person_adds_is_theirs_and_needs_no_evidence() -> None:
    head = human(ADD).head
    assert head.beliefs[:3] == HEAD.beliefs
    added = head.beliefs[3]
    assert (added.id, added.origin, added.kind, added.status, added.pinned) == (
        "E4", "human", "execution", "hypothesis", False,
    )  # fmt: skip
    assert lint(Document(head=head)) == []
    assert lint(Document(head=WorldModel(beliefs=(belief("E1", evidence_for=[]),)))) == ["'E1' has no evidence"]


@pytest.mark.parametrize(
    ("given", "reason"),
    [
        ({"id": "E1"}, "id 'E1' has been used"),
        ({"id": "E3"}, "id 'E3' has been used"),
        ({"id": "V9"}, "id 'V9' is not of kind 'execution'"),
        ({"evidence_for": [{"path": "nowhere.json"}]}, "evidence 'nowhere.json' does not exist"),
        ({"evidence_for": [{"path": "../x"}]}, "no path inside the run"),
        ({"status": "refuted"}, "is refuted and yet held with confidence 0.8"),
    ],
)
def test_all_else_holds_for_what_a_person_adds(given: dict[str, Any], reason: str) -> None:
    (said,) = refused({"add": {**ADD["add"], **given}})
    assert said.startswith("change 1 (add): ")
    assert reason in said


def test_a_veto_refutes_and_keeps_its_reason_and_a_lift_opens_it_again() -> None:
    made = human(VETO)
    vetoed = made.head.beliefs[0]
    assert (vetoed.status, vetoed.confidence, vetoed.vetoed) == ("refuted", 0.5, True)
    assert made.head.beliefs[1:] == HEAD.beliefs[1:]
    text = human_record(2, made, [HumanChange.model_validate(VETO)], by="ops").markdown
    assert text.startswith(
        "### iter_002 changed by a person (ops)\n- veto E1 (hypothesis 0.7 -> refuted 0.5): the tool"
    )
    assert f"  was: {render_belief(HEAD.beliefs[0])}" in text
    lifted = human({"lift": "E1"}, head=made.head).head.beliefs[0]
    assert (lifted.status, lifted.confidence, lifted.vetoed) == ("hypothesis", 0.5, False)
    low = WorldModel(beliefs=(belief("E1", confidence=0.2),))
    assert human(VETO, head=low).head.beliefs[0].confidence == 0.2


def test_changes_follow_one_another_and_all_or_none_of_them_hold() -> None:
    head = human({"add": {**ADD["add"], "id": "E9"}}, {"pin": "E9"}, {"pin": "E1"}, {"unpin": "E1"}).head
    assert [b.id for b in head.beliefs if b.pinned] == ["E9"]
    reasons = refused({"pin": "E1"}, {"pin": "E1"}, {"unpin": "E2"}, {"lift": "E2"}, {"pin": "E3"}, {"pin": "E7"})
    assert reasons == [
        "change 2 (pin): 'E1' is pinned already",
        "change 3 (unpin): 'E2' is not pinned",
        "change 4 (lift): 'E2' is not vetoed",
        "change 5 (pin): belief 'E3' was merged or removed; HISTORY holds it",
        "change 6 (pin): there is no belief 'E7'; there are E1, E2 and V1",
    ]
    assert refused(VETO, head=human(VETO).head) == ["change 1 (veto): 'E1' is vetoed already"]


@pytest.mark.parametrize(
    ("given", "reason"),
    [
        ({}, "here is none"),
        ({"pin": "E1", "unpin": "E2"}, "here are pin and unpin"),
        ({"veto": "E1"}, "a veto needs a reason"),
        ({"veto": "E1", "reason": "  "}, "a veto needs a reason"),
        ({"drop": "E1"}, "Extra inputs"),
        ({"add": {"claim": "x", "confidence": 1.5}}, "is not a probability"),
        ({"add": {"claim": "x", "confidence": 0.5, "origin": "proposer"}}, "Extra inputs"),
    ],
)
def test_a_change_says_exactly_one_thing(given: dict[str, Any], reason: str) -> None:
    with pytest.raises(ValidationError, match=reason):
        HumanChange.model_validate(given)


def test_no_operation_changes_what_was_vetoed() -> None:
    head = human(VETO).head
    for op in ({"op": "revise", "id": "E1", "mass": 9, **CITED}, REMOVE, MERGE):
        assert "'E1' was vetoed by a person and may not change" in not_by_proposer(op, head=head)
    lifted = human({"lift": "E1"}, head=head).head
    assert by_proposer(MERGE, head=lifted).head.retired == ("E3", "E1")


def test_what_is_pinned_stays_with_its_words_and_its_confidence_moves() -> None:
    refuted = WorldModel(beliefs=(belief("E1", status="refuted", confidence=0.1), belief("E2")))
    assert by_proposer(REMOVE, head=refuted).head.retired == ("E1",)
    head = human({"pin": "E1"}, head=refuted).head
    assert "'E1' was pinned by a person: it cannot be removed" in not_by_proposer(REMOVE, head=head)
    assert "nor merged into another" in not_by_proposer(MERGE, head=head)
    for words in ({"claim": "another"}, {"conditions": "at noon"}):
        revise = {"op": "revise", "id": "E1", **words, **CITED}
        assert "its claim and conditions stay" in not_by_proposer(revise, head=head)
    moved = by_proposer({"op": "revise", "id": "E1", "confidence": 0.4, **CITED}, head=head).head.beliefs[0]
    assert (moved.confidence, moved.pinned) == (0.4, True)
    taken_in = by_proposer({**MERGE, "into": "E1"}, head=head).head
    assert [(b.id, b.claim, b.pinned) for b in taken_in.beliefs] == [("E1", "claim of E1", True)]


def test_a_human_belief_is_revised_merged_and_removed_like_any_other() -> None:
    head = human(ADD).head
    moved = by_proposer({"op": "revise", "id": "E4", "status": "confirmed", **CITED}, head=head).head.beliefs[3]
    assert (moved.origin, moved.status, moved.evidence_for) == ("human", "confirmed", (Evidence(path=PATH),))
    assert by_proposer({**MERGE, "ids": ["E4", "E1"]}, head=head).head.find("E4")


def test_compaction_keeps_the_words_of_what_is_pinned() -> None:
    long = "word " * 100
    head = WorldModel(beliefs=(belief("E1", claim=long, mass=1), belief("E2", claim=long, mass=9)))
    pinned = human({"pin": "E1"}, head=head).head
    budget = estimate_tokens(render_head(pinned)) - 40
    small = compact(pinned, budget, keep_ids=frozenset()).head
    assert [b.claim == long for b in small.beliefs] == [True, False]
    assert [b.claim == long for b in compact(head, budget, keep_ids=frozenset()).head.beliefs] == [False, True]


def test_marks_are_written_and_read_and_a_document_without_them_reads_as_before() -> None:
    marked = belief("E1", origin="human", pinned=True, vetoed=True, status="refuted", confidence=0.2)
    assert "| conf:0.2 | status:refuted | marks:human, pinned, vetoed\n" in render_belief(marked)
    document = Document(head=WorldModel(beliefs=(marked, belief("E2", pinned=True), belief("E3"))))
    text = render_document(document)
    assert parse_document(text) == document
    assert text.count("marks:") == 2
    for wrong in ("marks:human, human", "marks:own", "marks:"):
        with pytest.raises(DocumentError, match="are no marks: expected some of human, pinned, vetoed"):
            parse_document(text.replace("marks:pinned", wrong))


def test_a_vetoed_belief_that_is_not_refuted_is_found() -> None:
    odd = WorldModel(beliefs=(belief("E1", vetoed=True),))
    assert lint(Document(head=odd)) == ["'E1' is vetoed and yet hypothesis, not refuted"]
