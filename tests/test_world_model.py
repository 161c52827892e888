"""What a delta may do to the world model, what it may not, and what is kept of what it took away."""

from __future__ import annotations

import json
from typing import Any

import pytest
from pydantic import ValidationError

from bco_graph.errors import SubmissionRefused
from bco_graph.world_model import (
    Applied,
    Belief,
    Delta,
    Document,
    Evidence,
    Experiment,
    HistoryRecord,
    WorldModel,
    apply,
    history_record,
    lint,
    parse_document,
    record_experiment,
    render_belief,
    render_document,
)

TRACE = "iterations/iter_002/traces/t1.json"
CITED = [{"path": TRACE, "locator": "second call"}]
ON_DISK = {TRACE, "iterations/iter_000/outcome.json", "iterations/iter_001/outcome.json"}


def belief(name: str, **changes: Any) -> Belief:
    given: dict[str, Any] = {
        "id": name,
        "kind": "execution" if name[0] == "E" else "evaluation",
        "claim": f"claim of {name}",
        "confidence": 0.6,
        "status": "hypothesis",
        "evidence_for": ({"path": "iterations/iter_000/outcome.json", "locator": name},),
        "mass": 3,
    }
    return Belief.model_validate(given | changes)


REFUTED = {"status": "refuted", "confidence": 0.1}
HEAD = WorldModel(
    beliefs=(belief("E1"), belief("E3", mass=5, older_for=2), belief("E4", **REFUTED), belief("V2")),
    retired=("E2", "V1"),
)


def delta(*ops: dict[str, Any], **texts: str) -> Delta:
    return Delta.model_validate({"ops": [{"reason": "the trace shows it"} | op for op in ops], **texts})


def add(**changes: Any) -> dict[str, Any]:
    return {"op": "add", "kind": "execution", "claim": "new", "confidence": 0.5, "evidence_for": CITED} | changes


def revise(name: str, **changes: Any) -> dict[str, Any]:
    return {"op": "revise", "id": name, "add_evidence_for": CITED} | changes


def merge(*names: str, **changes: Any) -> dict[str, Any]:
    return {"op": "merge", "ids": list(names), "evidence": CITED} | changes


def remove(name: str) -> dict[str, Any]:
    return {"op": "remove", "id": name, "evidence": CITED}


def run(*ops: dict[str, Any], head: WorldModel = HEAD, **options: Any) -> Applied:
    options = {"iteration": 2, "touched": None, "evidence_exists": ON_DISK.__contains__} | options
    return apply(head, delta(*ops), **options)


def refusal(*ops: dict[str, Any], **options: Any) -> list[str]:
    with pytest.raises(SubmissionRefused) as caught:
        run(*ops, **options)
    return caught.value.reasons


def test_an_add_gets_the_next_id_of_its_kind_and_never_a_used_one() -> None:
    applied = run(add(), add(kind="evaluation"), add(id="E7"), add())
    assert [change["id"] for change in applied.changes] == ["E8", "V3", "E7", "E9"]
    assert [b.id for b in applied.head.beliefs] == ["E1", "E3", "E4", "V2", "E8", "V3", "E7", "E9"]
    assert run(add(), head=WorldModel()).changes[0]["id"] == "E1"
    assert run(add(), head=WorldModel(retired=("E1", "E2"))).changes[0]["id"] == "E3"


def test_a_new_belief_holds_what_was_given() -> None:
    against = [{"path": "iterations/iter_001/outcome.json"}]
    op = add(conditions="two units", status="refuted", confidence="20%", evidence_against=against, mass=4)
    assert run(op).head.beliefs[-1] == belief(
        "E5", claim="new", conditions="two units", confidence=0.2, evidence_for=CITED, evidence_against=against, mass=4,
        status="refuted",
    )  # fmt: skip
    assert run(add(evidence_for=[], evidence_against=CITED)).head.beliefs[-1].evidence_against == (
        Evidence(**CITED[0]),
    )


def test_a_revision_changes_what_is_given_and_nothing_else() -> None:
    applied = run(revise("E3", confidence=0.8, add_evidence_for=CITED + CITED), touched={"E3"})
    old, new = HEAD.beliefs[1], applied.head.beliefs[1]
    assert new == old.model_copy(update={"confidence": 0.8, "evidence_for": (*old.evidence_for, Evidence(**CITED[0]))})
    assert applied.head.beliefs[0] is HEAD.beliefs[0]
    assert applied.changes == [
        {
            "iteration": 2, "op": "revise", "id": "E3",
            "before": {"confidence": 0.6, "status": "hypothesis"}, "after": {"confidence": 0.8, "status": "hypothesis"},
        }
    ]  # fmt: skip
    every = {"claim": "c", "conditions": "w", "confidence": 0.0, "status": "refuted", "mass": 0.0}
    changed = run(revise("E1", **every, add_evidence_for=[], add_evidence_against=CITED)).head.beliefs[0]
    assert changed == belief("E1", **every, evidence_against=CITED)
    conditional = WorldModel(beliefs=(belief("E1", conditions="w"),))
    assert run(revise("E1", conditions=""), head=conditional).head.beliefs[0].conditions == ""


def test_a_merge_keeps_one_id_and_the_evidence_of_all() -> None:
    applied = run(merge("E1", "E3", confidence=0.7, claim="both"))
    kept = applied.head.beliefs[0]
    assert (kept.id, kept.claim, kept.confidence, kept.status, kept.mass) == ("E1", "both", 0.7, "hypothesis", 5)
    assert [entry.locator for entry in kept.evidence_for] == ["E1", "E3"]
    assert kept.older_for == 2
    assert [b.id for b in applied.head.beliefs] == ["E1", "E4", "V2"]
    assert applied.head.retired == ("E2", "V1", "E3")
    assert (applied.changes[0]["id"], applied.changes[0]["merged"]) == ("E1", ["E3"])
    assert applied.replaced == [(HEAD.beliefs[0], HEAD.beliefs[1])]


@pytest.mark.parametrize("op", [merge("E1", "E3", into="E3"), merge("E1", into="E3"), merge("E3", "E1")])
def test_a_merge_may_name_the_id_that_stays(op: dict[str, Any]) -> None:
    applied = run(op)
    assert [b.id for b in applied.head.beliefs] == ["E3", "E4", "V2"]
    assert [entry.locator for entry in applied.head.beliefs[0].evidence_for] == ["E3", "E1"]
    assert applied.head.beliefs[0].claim == "claim of E3"


def test_only_a_refuted_belief_can_be_removed_and_its_id_stays_used() -> None:
    applied = run(remove("E4"))
    assert [b.id for b in applied.head.beliefs] == ["E1", "E3", "V2"]
    assert applied.head.retired == ("E2", "V1", "E4")
    assert applied.changes[0]["after"] is None
    assert refusal(remove("E1")) == [
        "operation 1 (remove): 'E1' is 'hypothesis': only what is already 'refuted' can be removed"
    ]
    assert "named by another" in refusal(revise("E1", **REFUTED), remove("E1"))[0]


HELD = [{"path": "iterations/iter_000/outcome.json", "locator": "E1"}]
REFUSED: list[tuple[dict[str, Any], str]] = [
    (add(evidence_for=[]), "give the path of a file that shows it in evidence_for or evidence_against"),
    (revise("E1", add_evidence_for=[], claim="x"), "no evidence is named"),
    (merge("E1", "E3", evidence=[]), "in evidence"),
    (remove("E4") | {"evidence": []}, "no evidence is named"),
    (add(evidence_for=[{"path": "nowhere.json"}]), "evidence 'nowhere.json' does not exist"),
    (add(evidence_against=[{"path": "nowhere.json"}]), "evidence 'nowhere.json' does not exist"),
    (revise("E1", add_evidence_against=[{"path": "nowhere.json"}]), "evidence 'nowhere.json' does not exist"),
    (add(evidence_for=[{"path": "/etc/passwd"}]), "'/etc/passwd' is no path inside the run"),
    (add(evidence_for=[{"path": "a/../../b"}]), "'a/../../b' is no path inside the run"),
    (add(evidence_for=[{"path": "a\\..\\b"}]), "is no path inside the run"),
    (add(evidence_for=[{"path": "C:\\x"}]), "is no path inside the run"),
    (add(evidence_for=[{"path": "\\x"}]), "is no path inside the run"),
    (add(evidence_for=[{"path": "a\0"}]), "'a\\x00' is no path inside the run"),
    (add(id="E1"), "id 'E1' has been used"),
    (add(id="E2"), "id 'E2' has been used"),
    (add(id="V9"), "id 'V9' is not of kind 'execution': expected E"),
    (add(id="E07"), "id 'E07' is not of kind"),
    (add(id="E123456"), "id 'E123456' is not of kind"),
    (add(id="belief"), "id 'belief' is not of kind"),
    (add(status="refuted", confidence=0.51), "is refuted and yet held with confidence 0.51, above 0.5"),
    (revise("E1", status="confirmed", confidence=0.49), "is confirmed and yet held with confidence 0.49, below 0.5"),
    (revise("E99", confidence=0.1), "there is no belief 'E99'; there are E1, E3, E4 and V2"),
    (revise("E2", confidence=0.1), "belief 'E2' was merged or removed; HISTORY holds it"),
    (remove("E99"), "there is no belief 'E99'"),
    (merge("E1", "E99"), "there is no belief 'E99'"),
    (merge("E1", into="E99"), "there is no belief 'E99'"),
    (merge("E1"), "needs two beliefs or more"),
    (merge("E1", into="E1"), "needs two beliefs or more"),
    (merge(), "needs two beliefs or more"),
    (merge("E1", "E3", "E1"), "name a belief twice"),
    (merge("E1", "V2"), "cannot be merged with one another"),
    (revise("E1", add_evidence_for=HELD), "nothing of 'E1' would change"),
    (revise("E1", claim="claim of E1", confidence=0.6, add_evidence_for=HELD), "nothing of 'E1' would change"),
]  # fmt: skip


@pytest.mark.parametrize(("op", "reason"), REFUSED, ids=[f"{op['op']}: {reason}" for op, reason in REFUSED])
def test_a_wrong_operation_is_refused_with_its_reason(op: dict[str, Any], reason: str) -> None:
    reasons = refusal(op)
    assert len(reasons) == 1
    assert reasons[0].startswith(f"operation 1 ({op['op']}): ")
    assert reason in reasons[0]


def test_a_confidence_at_even_odds_fits_every_status() -> None:
    assert run(revise("E1", status="confirmed", confidence=0.5), revise("E3", status="refuted", confidence=0.5))


@pytest.mark.parametrize("confidence", [1.01, -0.1, "75", float("nan"), True])
def test_a_confidence_that_is_none_does_not_pass_the_form(confidence: object) -> None:
    with pytest.raises(ValidationError, match="is not a probability"):
        delta(add(confidence=confidence))


@pytest.mark.parametrize("op", [add(prior=1), {"op": "drop", "id": "E1"}, add(claim=" "), add(mass=-1), {"id": "E1"}])
def test_an_operation_of_another_form_does_not_pass(op: dict[str, Any]) -> None:
    with pytest.raises(ValidationError):
        delta(op)


def test_all_problems_are_told_at_once_and_nothing_is_applied() -> None:
    before = json.dumps(HEAD.to_json())
    reasons = refusal(
        revise("E1", confidence=0.9),
        revise("E99", add_evidence_for=[{"path": "/x"}, {"path": "gone"}]),
        add(evidence_for=[]),
        remove("V2"),
        touched={"E3", "V2"},
    )
    assert [reason.partition(": ")[0] for reason in reasons] == [
        "operation 1 (revise)", "operation 2 (revise)", "operation 2 (revise)", "operation 2 (revise)",
        "operation 3 (add)", "operation 4 (remove)",
    ]  # fmt: skip
    assert reasons[0].endswith("'E1' may not change: this outcome addressed E3 and V2; all others stay as they are")
    assert json.dumps(HEAD.to_json()) == before


def test_a_belief_is_named_by_one_operation_only() -> None:
    assert [reason[-47:] for reason in refusal(revise("E1", mass=1), merge("E1", "E3"))] == [
        "named by another operation too: say all about a belief in one"[-47:]
    ] * 2
    assert "there is no belief 'E5'" in refusal(add(id="E5"), revise("E5", mass=1))[1]
    assert len(refusal(add(id="E5"), add(id="E5"))) == 2


@pytest.mark.parametrize("op", [revise("E1", mass=9), merge("E1", "E3"), merge("E3", "E1"), merge("E3", into="E1")])
def test_a_belief_that_the_outcome_did_not_address_stays(op: dict[str, Any]) -> None:
    assert "'E1' may not change" in refusal(op, touched={"E3"})[0]
    assert "'E4' may not change" in refusal(remove("E4"), touched=frozenset())[0]
    assert "addressed none" in refusal(remove("E4"), touched=frozenset())[0]
    assert run(op, touched={"E1", "E3"})
    assert run(add(), touched=frozenset()).head.beliefs[:4] == HEAD.beliefs


def test_evidence_is_looked_up_once_and_only_inside_the_run() -> None:
    asked: list[str] = []

    def exists(path: str) -> bool:
        asked.append(path)
        return True

    with pytest.raises(SubmissionRefused):
        run(add(evidence_for=[*CITED, *CITED, {"path": "/x"}, {"path": "../y"}]), evidence_exists=exists)
    assert asked == [TRACE]


def test_nothing_learned_is_a_delta_too() -> None:
    applied = run()
    assert (applied.head, applied.changes) == (HEAD, [])


def test_history_keeps_whole_what_an_operation_merged_removed_or_reworded() -> None:
    ops = (merge("E1", "E3"), remove("E4"), revise("V2", claim="sharper", confidence=0.7), add())
    applied = run(*ops)
    given = delta(*ops, learned="Gate it.", experiment_note="no gate fired")
    record = history_record(2, applied, given, "- Verdict: held\n", removed_text="- E1: x -> held")
    cited = f"{TRACE} (second call)"
    assert record.heading == "### iter_001 -> iter_002 distill"
    assert record.text == (
        "- Verdict: held\n\nLearned: Gate it.\n\nNote: no gate fired\n\nOperations:\n"
        "- merge E3 into E1 (hypothesis 0.6 -> hypothesis 0.6): the trace shows it "
        f"[evidence: {cited}]\n  was: {render_belief(HEAD.beliefs[1])}\n"
        f"- remove E4 (refuted 0.1): the trace shows it [evidence: {cited}]\n  was: {render_belief(HEAD.beliefs[2])}\n"
        "- revise V2 (hypothesis 0.6 -> hypothesis 0.7): the trace shows it "
        f"[evidence: {cited}]\n  was: {render_belief(HEAD.beliefs[3])}\n"
        f"- add E5 (hypothesis 0.5): the trace shows it [evidence: {cited}]\n\n"
        "Compacted away:\n- E1: x -> held"
    )
    document = Document(head=applied.head, history=(record,))
    assert parse_document(render_document(document)) == document
    assert history_record(2, run(), delta(), "- Verdict: void").text == "- Verdict: void\n\nOperations: none"


def test_a_revision_of_the_numbers_needs_no_old_wording() -> None:
    op = revise("E1", confidence=0.9, status="confirmed")
    text = history_record(2, run(op), delta(op | {"reason": "a\n\nb"}), "").text
    assert text == (
        f"Operations:\n- revise E1 (hypothesis 0.6 -> confirmed 0.9): a b [evidence: {TRACE} (second call)]"
    )


def test_an_experiment_is_appended() -> None:
    first, second = (
        Experiment(beliefs=("E1",), candidate=f"iter_00{number}", edit="gate", verdict="inert") for number in (1, 2)
    )
    head = record_experiment(record_experiment(HEAD, first), second)
    assert head.experiments == (first, second)
    assert head.beliefs == HEAD.beliefs


def test_lint_says_what_does_not_hold_together() -> None:
    loose = WorldModel(
        beliefs=(
            belief("E1"), belief("E1"), belief("E2", evidence_for=()), belief("E3", evidence_for=({"path": "../x"},)),
            belief("E4", status="refuted", confidence=0.9), belief("E5", status="confirmed", confidence=0.4),
        ),
        experiments=(Experiment(beliefs=("E9", "E8", "E1"), edit="x", verdict="held"),),
        retired=("E8", "E5"), folded=3,
    )  # fmt: skip
    assert lint(Document(head=loose)) == [
        "belief id 'E1' stands 2 times",
        "belief id 'E5' is in use and retired",
        "'E2' has no evidence",
        "'E3': evidence '../x' lies outside of the run",
        "'E4' is refuted and yet held with confidence 0.9, above 0.5",
        "'E5' is confirmed and yet held with confidence 0.4, below 0.5",
        "experiment 4 names belief 'E9', which there never was",
    ]
    assert lint(Document(head=run(merge("E1", "E3"), remove("E4"), add(), revise("V2", mass=0)).head)) == []


# An update that cannot be read leaves the document as it is, and a good one changes what it names.


def test_an_update_that_fails_leaves_every_byte_of_the_document() -> None:
    document = Document(head=HEAD, history=(HistoryRecord(iteration=1, text="x"),))
    text = render_document(document)
    for reply in ("I am sorry. ## Beliefs\n[E1] mine", '{"ops": [{"op": "revise", "id": "E1"}]}', '{"beliefs": []}'):
        with pytest.raises(ValidationError):
            Delta.model_validate_json(reply)
    assert refusal(revise("E1", mass=1), remove("E1"), add(), head=document.head)
    assert render_document(document) == text


def test_a_good_update_changes_only_the_belief_it_names() -> None:
    document = Document(head=HEAD, history=(HistoryRecord(iteration=1, text="x"),))
    head = run(revise("E3", mass=1), touched={"E3"}).head
    old, new = (render_document(d).split("\n\n") for d in (document, document.model_copy(update={"head": head})))
    assert [(a, b) for a, b in zip(old, new, strict=True) if a != b] == [
        (render_belief(HEAD.beliefs[1]), render_belief(head.beliefs[1]))
    ]


# Ids are unique and every one that is named exists.


def test_an_update_that_cites_an_unknown_id_is_refused_and_the_document_stays_clean() -> None:
    assert "there is no belief 'B99'; there are" in refusal(revise("B99", confidence=0.2))[0]
    assert "there is no belief 'B99'" in refusal(merge("E1", "B99"))[0]
    head = run(merge("E1", "E3"), add(claim="## Beliefs\n[E1] twice")).head
    head = record_experiment(head, Experiment(beliefs=("E3", "E5"), edit="x", verdict="held"))
    document = Document(head=head)
    assert lint(document) == []
    assert parse_document(render_document(document)) == document
