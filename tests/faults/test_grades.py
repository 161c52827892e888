"""Verdicts, grades and updates of the world model: read from the named field or not at all, never from a sentence."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from bco_graph.document import document_of
from bco_graph.protocols import Score, Task
from bco_graph.state import JSON
from bco_graph.world_model import lint, parse_document
from tests.faults.play import FIRST, MARKED, Act, Played, When, models, play, submit, told, write
from tests.toy import GRADE, PREDICT, PROPOSE, SHORT, ToySuite

NO_VERDICTS = ["INCORRECT", "not held", "The verdict is held", "upheld yesterday", ""]
TRACE = {"path": "iterations/iter_000/traces/toy-train-0.json"}
REVISED = {"op": "revise", "id": "E1", "confidence": 0.8, "reason": "it held", "add_evidence_for": [TRACE]}
UNKNOWN = {"op": "revise", "id": "E99", "confidence": 0.9, "reason": "it held", "add_evidence_for": [TRACE]}
NOWHERE = {
    "op": "revise",
    "id": "E1",
    "confidence": 0.7,
    "reason": "x",
    "add_evidence_for": [{"path": "traces/no.json"}],
}
APOLOGY = (
    "Sorry for the mix-up! Here is the whole updated document:\n\n# World model\n\n## Beliefs\n- E1: it is right\n"
)


def proposes(number: int) -> list[Act]:
    """An edit of `number` that scores 0.5; each is another text."""
    prompt = SHORT + "\n" * number
    return [
        [
            write("prompt.md", prompt),
            write("agent.py", MARKED),
            *submit({**PROPOSE, "failure_mode": f"way {number} to say too much"}),
        ]
    ]


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Played]:
    """Verdicts in sentences; an update without its list; one inside an apology; one with dangling and doubled ids;
    and at last a good one."""
    acts: dict[When, list[Act]] = {(number, "propose"): proposes(number) for number in range(1, 5)}
    acts |= {
        (1, "grade"): [*(submit({**GRADE, "verdict": word}) for word in NO_VERDICTS), submit(GRADE)],
        (1, "update"): [submit({"learned": "much", "experiment_note": "no list of operations"})],
        (2, "predict"): [submit({**PREDICT, "confidence": "9 of 10"}), submit(PREDICT)],
        (2, "update"): [APOLOGY],
        (3, "update"): [submit({"ops": [UNKNOWN, NOWHERE, REVISED, {**FIRST, "id": "E1"}]})],
        (4, "update"): [submit({"ops": [UNKNOWN]}), submit({"ops": [REVISED]})],
    }
    with models(acts) as server:
        yield play(tmp_path_factory.mktemp("grades"), server, method="bco", iterations=4, proposer={"max_refusals": 5})


def heads(run: Played) -> list[dict[str, Any]]:
    with run.receipts() as receipts:
        return [record["head"] for _, _, record in receipts.steps("document")]


def test_a_verdict_is_never_found_inside_a_word_or_a_sentence(run: Played) -> None:
    asked = run.asked(1, "grade")
    assert len(asked) == 1 + len(NO_VERDICTS)
    for number, word in enumerate(NO_VERDICTS, 1):
        refused = asked[number]["messages"][-1]["content"]
        assert refused.startswith("refused")
        assert "verdict" in refused
        assert repr(word) in refused
    with run.receipts() as receipts:
        step = receipts.step(1, "grade")
    assert step is not None
    assert step["submission"]["verdict"] == "held"


def test_a_confidence_in_words_is_refused_and_never_guessed(run: Played) -> None:
    refused = run.asked(2, "predict")[1]["messages"][-1]["content"]
    assert "confidence" in refused
    assert "'9 of 10'" in refused


def test_an_update_that_cannot_be_read_moves_no_belief_and_is_on_the_record(run: Played) -> None:
    """A missing list, a whole chat reply instead, ids that do not exist: three refusals, no byte of a belief."""
    failed = [failure for failure in run.failures() if failure[1] == "update"]
    assert failed == [(1, "update", "refused"), (2, "update", "format"), (3, "update", "refused")]
    before, *after = [head["beliefs"] for head in heads(run)]
    assert after[:3] == [before] * 3
    assert [len(head["experiments"]) for head in heads(run)] == [0, 1, 2, 3, 4]
    text = (run.folder / "world_model_calibration.md").read_text(encoding="utf-8")
    assert text.count("Update refused, the beliefs stay as they were") == 3
    assert "Sorry for the mix-up" not in text


def test_a_good_update_changes_only_what_it_names(run: Played) -> None:
    before, after = (head["beliefs"][0] for head in heads(run)[3:])
    assert {key for key in before if before[key] != after[key]} == {"confidence"}
    assert after["confidence"] == 0.8


def test_ids_that_dangle_or_stand_twice_are_refused_and_told_and_the_document_has_none(run: Played) -> None:
    reasons = told(run.asked(3, "update")[1])
    assert "'E99'" in reasons
    assert "'E1' is named by another operation too" in reasons
    assert "'E99'" in told(run.asked(4, "update")[1])
    with run.receipts() as receipts:
        document = document_of(receipts)
    assert lint(document) == []
    assert [belief.id for belief in document.head.beliefs] == ["E1"]
    assert parse_document((run.folder / "world_model_calibration.md").read_text(encoding="utf-8")) == document


GIVEN: dict[str, Any] = {
    "fig": Score(1.0), "oak": Score(9), "elm": None, "ash": Score(float("nan")),
    "chestnut": Score(0.5), "sycamore": True, "hornbeam": "final grade 9 of 10", "tamarind": Score(-0.5),
}  # fmt: skip


class OddGrader(ToySuite):
    """Grades as a judge model might have been read: off the scale, in words, not at all."""

    def grade(self, task: Task, answer: JSON) -> Score:
        given: Score = GIVEN[str(task.inputs["word"])]
        return given


def test_a_grade_that_is_no_number_on_the_scale_is_ungraded_and_shown_apart(tmp_path: Path) -> None:
    """No default, no guessed scale, no 0.5: the mean is over what was graded, and the rest lowers the coverage."""
    with models() as server:
        run = play(tmp_path, server, suite=OddGrader(tmp_path / "initial"), iterations=0)
    outcome = run.ended.state["outcome"]
    assert outcome["kinds"] == {"scored": 2, "ungradeable": 6}
    assert (outcome["mean"], outcome["coverage"]) == (0.75, 0.25)
    assert run.ended.state["best"] is None
    matrix = (run.folder / "workspace/task_score_matrix.csv").read_text(encoding="utf-8").splitlines()
    assert [line.rsplit(",", 1)[1] for line in matrix[1:]] == ["1", "", "", "", "0.5", "", "", ""]
