"""The HEAD stays below its budget; what leaves it is marked in place and whole in HISTORY."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st

from bco_graph.errors import SubmissionRefused
from bco_graph.world_model import (
    Belief,
    Delta,
    Document,
    Experiment,
    HistoryRecord,
    WorldModel,
    apply,
    check_append_only,
    compact,
    estimate_tokens,
    history_record,
    lint,
    parse_document,
    record_experiment,
    render_belief,
    render_document,
    render_head,
)


def belief(name: str, claim: str = "short", **changes: Any) -> Belief:
    given: dict[str, Any] = {
        "id": name, "kind": "execution", "claim": claim, "confidence": 0.5, "status": "hypothesis", "mass": 1,
        "evidence_for": ({"path": "a.json"},),
    }  # fmt: skip
    return Belief.model_validate(given | changes)


def experiment(number: int, note: str = "", edit: str = "an edit") -> Experiment:
    return Experiment(beliefs=("E1",), candidate=f"iter_{number:03d}", edit=edit, verdict="held", note=note)


def tokens(head: WorldModel) -> int:
    return estimate_tokens(render_head(head))


def test_tokens_are_a_quarter_of_the_characters_rounded_up() -> None:
    assert [estimate_tokens("x" * length) for length in (0, 1, 4, 5)] == [0, 1, 1, 2]


def test_what_fits_is_left_alone_and_one_token_less_is_not() -> None:
    head = WorldModel(beliefs=(belief("E1", "x" * 300),), experiments=(experiment(1), experiment(2)))
    fitted = compact(head, tokens(head), keep_ids=())
    assert fitted.head is head
    assert fitted.removed_text == ""
    assert compact(head, tokens(head) - 1, keep_ids=()).head != head


def test_notes_of_old_experiments_go_before_the_oldest_experiments() -> None:
    notes = tuple(experiment(number, note="n" * 300, edit="e" * 60) for number in (1, 2, 3))
    head = WorldModel(beliefs=(belief("E1", "x" * 400),), experiments=notes, folded=2)
    once = compact(head, tokens(head) - 10, keep_ids=())
    assert once.head.experiments[0].note == "n" * 80 + " [cut: kept 80/300 characters]"
    assert once.head.experiments[1:] == notes[1:]
    assert once.removed_text == f"- E1 (iter_001): {'e' * 60} -> held ({'n' * 300})"
    twice = compact(head, tokens(head) - 160, keep_ids=())
    assert [len(e.note) for e in twice.head.experiments] == [110, 110]
    assert twice.head.folded == 3
    assert "Folded: 3 older experiments" in render_head(twice.head)
    assert twice.removed_text.splitlines() == [
        f"- E1 (iter_00{n}): {'e' * 60} -> held ({'n' * 300})" for n in (1, 2, 3)
    ]
    assert twice.head.beliefs == head.beliefs


def entries(*numbers: int) -> list[dict[str, str]]:
    return [{"path": f"iterations/iter_{number:03d}/traces/some_task.json"} for number in numbers]


def test_evidence_lists_keep_their_newest_with_a_mark_that_counts_all() -> None:
    full = belief(
        "E1", "x" * 400, evidence_for=entries(*range(9)), evidence_against=entries(*range(20, 26)), older_for=3
    )
    head = WorldModel(beliefs=(full,))
    fitted = compact(head, tokens(head) - 5, keep_ids=())
    small = fitted.head.beliefs[0]
    assert [entry.path[16:19] for entry in small.evidence_for] == ["005", "006", "007", "008"]
    assert [entry.path[16:19] for entry in small.evidence_against] == ["022", "023", "024", "025"]
    assert "[kept 4/12]" in render_belief(small)
    assert "[kept 4/6]" in render_belief(small)
    assert (small.claim, small.older_for, small.older_against) == (full.claim, 8, 2)
    assert fitted.removed_text == f"- {render_belief(full)}"
    least = compact(head, tokens(head) - 130, keep_ids=()).head.beliefs[0]
    assert [entry.path[16:19] for entry in (*least.evidence_for, *least.evidence_against)] == ["008", "025"]


def test_a_mark_that_would_take_more_room_than_it_saves_is_not_made() -> None:
    few = belief("E1", "x" * 400, evidence_for=[{"path": "a"}, {"path": "b"}], conditions="y" * 90)
    small = compact(WorldModel(beliefs=(few,)), 82, keep_ids=()).head.beliefs[0]
    assert small.evidence_for == few.evidence_for
    assert small.conditions == few.conditions
    assert small.claim == "x" * 80 + " [cut: kept 80/400 characters]"


def test_texts_of_refuted_beliefs_are_cut_first_the_lightest_first_and_staked_ones_last() -> None:
    text = "x" * 1000
    head = WorldModel(
        beliefs=(
            belief("E1", text, mass=0.5), belief("E2", text, mass=1), belief("E3", text, mass=2),
            belief("E4", text, mass=9, status="refuted"), belief("E5", text, mass=8, status="refuted"),
            belief("E6", text, mass=0, status="refuted"),
        )
    )  # fmt: skip
    order: list[str] = []
    for budget in (*range(tokens(head) - 1, 293, -20), 293):
        small = compact(head, budget, keep_ids={"E1", "E6"}).head
        order += [b.id for b in small.beliefs if b.claim.startswith("x" * 80 + " [cut: ") and b.id not in order]
    assert order == ["E5", "E4", "E2", "E3", "E6", "E1"]
    assert [b.id for b in small.beliefs] == ["E1", "E2", "E3", "E4", "E5", "E6"]
    assert [b.status for b in small.beliefs] == ["hypothesis"] * 3 + ["refuted"] * 3


def test_a_text_is_cut_step_by_step_and_the_mark_remembers_the_first_length() -> None:
    head = WorldModel(beliefs=(belief("E1", "y" * 2000, conditions="z" * 900),))
    seen = []
    for budget in (700, 400, 250, 100):
        head = compact(head, budget, keep_ids=()).head
        seen.append((head.beliefs[0].claim[-32:], head.beliefs[0].conditions[-30:]))
    assert seen[1] == (" [cut: kept 600/2000 characters]", "[cut: kept 600/900 characters]")
    assert seen[3] == ("y [cut: kept 80/2000 characters]", " [cut: kept 80/900 characters]")
    located = belief("E1", evidence_for=[{"path": "a", "locator": "l" * 5000}])
    cut = compact(WorldModel(beliefs=(located,)), 60, keep_ids=()).head.beliefs[0]
    assert cut.evidence_for[0].locator == "l" * 80 + " [cut: kept 80/5000 characters]"


def test_a_budget_that_stubs_alone_would_pass_is_refused_with_what_to_do() -> None:
    beliefs = tuple(belief(f"E{number}", "x" * 500) for number in range(1, 30))
    head = WorldModel(beliefs=(*beliefs, belief("E30", status="refuted", confidence=0.1, claim="y" * 900)))
    with pytest.raises(SubmissionRefused) as caught:
        compact(head, 500, keep_ids=())
    (reason,) = caught.value.reasons
    assert "and 500 are allowed" in reason
    assert "merge those of the 30 beliefs that overlap" in reason
    assert "remove refuted ones (E30)" in reason
    assert "the largest (E30, E10, E11)" in reason


UNSHRUNK = (Phase.explicit, Phase.reuse, Phase.generate)
"""Long texts shrink for minutes."""

beliefs = st.builds(
    lambda mass, claim, status, paths: (mass, claim, status, paths),
    st.floats(0, 9),
    st.sampled_from(["short", "long words | with pipes \n" * 40, "tail " * 300, " ", "a [cut: kept 9/99 characters]"]),
    st.sampled_from(["hypothesis", "confirmed", "refuted"]),
    st.lists(
        st.tuples(st.sampled_from(["a", "iterations/iter_001/x.json"]), st.sampled_from(["", "l " * 150])), max_size=9
    ),
)


@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.too_slow], phases=UNSHRUNK)
@given(
    st.lists(beliefs, max_size=6), st.lists(st.sampled_from(["", "n " * 200]), max_size=8),
    st.integers(700, 3000), st.sets(st.sampled_from(["E1", "E2", "E3"])),
)  # fmt: skip
def test_any_head_fits_after_compaction_and_nothing_is_lost(
    parts: list[tuple[float, str, Any, list[tuple[str, str]]]], notes: list[str], budget: int, keep: set[str]
) -> None:
    made = tuple(
        belief(f"E{n}", claim, mass=mass, status=status, evidence_for=[{"path": p, "locator": t} for p, t in paths])
        for n, (mass, claim, status, paths) in enumerate(parts, 1)
    )
    head = WorldModel(
        beliefs=made, experiments=tuple(experiment(n, note) for n, note in enumerate(notes)), retired=("E9",)
    )
    fitted = compact(head, budget, keep_ids=keep)
    small = fitted.head
    assert tokens(small) <= budget
    same = ("id", "kind", "confidence", "status", "mass")
    for old, new in zip(head.beliefs, small.beliefs, strict=True):
        assert all(getattr(old, name) == getattr(new, name) for name in same)
        assert [e.path for e in new.evidence_for] == [e.path for e in old.evidence_for][new.older_for :]
        assert old == new or render_belief(old) in fitted.removed_text
    assert small.folded + len(small.experiments) == len(head.experiments)
    assert small.retired == head.retired
    again = compact(small, budget, keep_ids=keep)
    assert (again.head, again.removed_text) == (small, "")
    assert compact(head, budget, keep_ids=keep) == fitted
    assert parse_document(render_document(Document(head=small))).head == small


# Two kilobytes of beliefs an iteration, for thirty iterations, on a budget of 4,000 tokens.


def grow(document: Document, iteration: int, staked: str) -> Document:
    claim = f"Claim number {iteration}: " + "it holds | under load\n" * 90
    op = {
        "op": "add", "kind": "execution", "claim": claim, "confidence": 0.5, "reason": "seen", "mass": iteration % 7,
        "evidence_for": [{"path": f"iterations/iter_{iteration:03d}/outcome.json"}],
    }  # fmt: skip
    delta = Delta.model_validate({"ops": [op]})
    applied = apply(document.head, delta, iteration=iteration, touched=frozenset(), evidence_exists=lambda path: True)
    done = Experiment(
        beliefs=(staked,), candidate=f"iter_{iteration:03d}", edit="e" * 200, verdict="inert", note="n" * 300
    )
    fitted = compact(record_experiment(applied.head, done), 4000, keep_ids={staked})
    record = history_record(iteration, applied, delta, "- Verdict: inert", removed_text=fitted.removed_text)
    return Document(head=fitted.head, history=(*document.history, record))


def test_the_document_stays_in_its_budget_while_history_keeps_everything() -> None:
    document = Document()
    for iteration in range(1, 31):
        staked = f"E{max(1, iteration - 1)}"
        before, document = document, grow(document, iteration, staked)
        text = render_document(document)
        assert tokens(document.head) <= 4000
        assert document.head.find(staked) is not None
        check_append_only(before, text)
        assert parse_document(text) == document
        assert lint(document) == []
    assert [b.id for b in document.head.beliefs] == [f"E{number}" for number in range(1, 31)]
    kept = render_document(document)
    for number in range(1, 31):
        assert f"Claim number {number}: " + "it holds \\| under load" in kept
        whole = f"[E{number}] Claim number {number}: " + "it holds \\| under load\\\n     " * 89
        assert whole in kept
        assert f"- E{max(1, number - 1)} (iter_{number:03d}): {'e' * 200} -> inert ({'n' * 300})" in kept
    assert document.history[0] == HistoryRecord.from_json(document.history[0].to_json())
