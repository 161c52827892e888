"""A person or another system works in the workspace: repeatable up to the answer, bounded in refusals."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any, TypeVar

import pytest
from pydantic import BaseModel

from bco_graph.config import ProposerConfig
from bco_graph.errors import StepFailed, SubmissionRefused
from bco_graph.proposers.handoff import HandoffProposer
from bco_graph.protocols import Step, StepResult
from bco_graph.state import StepName
from tests.proposer_contract import hand_off

T = TypeVar("T")

GOOD = '{"word": "blue"}'


class Form(BaseModel):
    word: str


@pytest.fixture
def workspace(tmp_path: Path) -> Path:
    (tmp_path / "scaffold").mkdir()
    return tmp_path


def make_step(workspace: Path, name: StepName = "propose") -> Step[str]:
    def accept(model: BaseModel) -> str:
        assert isinstance(model, Form)
        return model.word

    return Step(name, 2, "bco", workspace, "Name a colour.", Form, accept)


def proposer(max_refusals: int = 2) -> HandoffProposer:
    return HandoffProposer(ProposerConfig(kind="handoff", max_refusals=max_refusals))


async def test_the_question_holds_all_that_is_needed_and_is_plain_json(workspace: Path) -> None:
    questions: list[Mapping[str, Any]] = []

    def answer(question: Mapping[str, Any], number: int) -> Any:
        questions.append(json.loads(json.dumps(question)))
        return {"word": "blue"} if number else {"wort": "blue"}

    result = await hand_off(proposer(), make_step(workspace), answer)
    assert result.submission == {"word": "blue"}
    first, second = questions
    assert first == {
        "step": "propose",
        "iteration": 2,
        "workspace": str(workspace),
        "instructions": str(workspace / "STEP.md"),
        "schema": Form.model_json_schema(),
        "refused": None,
        "tries_left": 3,
    }
    assert second["refused"] == ["word: missing; it is required (string)"]


@pytest.mark.parametrize(("given", "name"), [("ready", "submission.json"), ({"file": "mine/it.json"}, "mine/it.json")])
async def test_a_submission_can_lie_in_a_file(workspace: Path, given: Any, name: str) -> None:
    def answer(question: Mapping[str, Any], number: int) -> Any:
        (workspace / name).parent.mkdir(exist_ok=True)
        (workspace / name).write_text(GOOD, encoding="utf-8")
        return given

    assert (await hand_off(proposer(), make_step(workspace), answer)).value == "blue"


async def test_each_answer_of_ready_means_the_file_as_it_was_then(workspace: Path) -> None:
    texts = ["{", '{"word": 7}', GOOD]

    def answer(question: Mapping[str, Any], number: int) -> Any:
        (workspace / "submission.json").write_text(texts[number], encoding="utf-8")
        return "ready"

    result = await hand_off(proposer(), make_step(workspace), answer)
    assert result.value == "blue"
    assert ["JSON" in result.refusals[0][0], "word" in result.refusals[1][0]] == [True, True]
    assert not (workspace / "submission.json").exists()


async def test_ready_without_a_file_counts_as_a_refusal(workspace: Path) -> None:
    with pytest.raises(StepFailed) as caught:
        await hand_off(proposer(max_refusals=1), make_step(workspace), lambda question, number: "ready")
    assert caught.value.cause == "refused"
    assert "submission.json was not written" in caught.value.reasons[0]


async def test_a_file_that_was_missing_then_stays_a_refusal_when_the_node_runs_again(workspace: Path) -> None:
    def answer(question: Mapping[str, Any], number: int) -> Any:
        if number:
            (workspace / "submission.json").write_text(GOOD, encoding="utf-8")
        return "ready"

    assert len((await hand_off(proposer(), make_step(workspace), answer)).refusals) == 1


class TwoSteps:
    """Two steps in one node: the first one's answer is repeated while the second is asked."""

    async def perform(self, step: Step[T]) -> StepResult[T]:
        await proposer().perform(make_step(step.workspace))
        return await proposer().perform(step)


async def test_a_submission_that_was_written_since_is_not_removed_by_a_repetition(workspace: Path) -> None:
    def answer(question: Mapping[str, Any], number: int) -> Any:
        written = workspace / "submission.json"
        assert not written.exists()
        written.write_text(GOOD if number == 0 else '{"word": "draft"}', encoding="utf-8")
        return "ready" if number == 0 else {"word": "green"}

    assert (await hand_off(TwoSteps(), make_step(workspace, "predict"), answer)).value == "green"
    assert (workspace / "submission.json").read_text(encoding="utf-8") == '{"word": "draft"}'


async def test_a_file_outside_of_the_workspace_is_not_read(workspace: Path) -> None:
    with pytest.raises(StepFailed, match="not below the workspace"):
        await hand_off(proposer(0), make_step(workspace), lambda question, number: {"file": "/etc/hostname"})


async def test_an_answer_of_another_type_is_refused(workspace: Path) -> None:
    with pytest.raises(StepFailed, match="of type int; give the submission, 'ready'"):
        await hand_off(proposer(0), make_step(workspace), lambda question, number: 7)


async def test_edits_of_a_person_survive_every_repetition(workspace: Path) -> None:
    def answer(question: Mapping[str, Any], number: int) -> Any:
        (workspace / f"scaffold/{number}.py").write_text("mine", encoding="utf-8")
        (workspace / "submission.json").write_text(f"draft {number}", encoding="utf-8")
        return {"word": "blue"} if number == 2 else {}

    await hand_off(proposer(), make_step(workspace), answer)
    assert sorted(path.name for path in (workspace / "scaffold").iterdir()) == ["0.py", "1.py", "2.py"]
    assert (workspace / "submission.json").read_text(encoding="utf-8") == "draft 2"


async def test_what_an_abandoned_thread_took_is_not_taken_again(workspace: Path) -> None:
    for word in ("red", "blue"):

        def answer(question: Mapping[str, Any], number: int, word: str = word) -> Any:
            (workspace / "submission.json").write_text(json.dumps({"word": word}), encoding="utf-8")
            return "ready"

        assert (await hand_off(proposer(), make_step(workspace), answer)).value == word


async def test_the_instructions_are_not_written_again_where_they_stand(workspace: Path) -> None:
    times: list[int] = []

    def answer(question: Mapping[str, Any], number: int) -> Any:
        times.append((workspace / "STEP.md").stat().st_mtime_ns)
        return {"word": "blue"} if number else {}

    await hand_off(proposer(), make_step(workspace), answer)
    assert times[0] == times[1]


async def test_a_refused_answer_stays_refused_when_what_it_was_checked_against_is_mended(workspace: Path) -> None:
    """The node runs again for each answer; the first one must not be taken then in place of the second."""
    allowed = {"colour": "red"}

    def accept(model: BaseModel) -> str:
        assert isinstance(model, Form)
        if allowed["colour"] == "red":
            raise SubmissionRefused(["mend the scaffold first"])
        return model.word

    step = Step("propose", 2, "bco", workspace, "Name a colour.", Form, accept)

    def answer(question: Mapping[str, Any], number: int) -> Any:
        if number:
            assert question["refused"] == ["mend the scaffold first"]
            allowed["colour"] = "blue"
        return {"word": "second" if number else "first"}

    result = await hand_off(proposer(), step, answer)
    assert result.submission == {"word": "second"}
    assert result.refusals == [["mend the scaffold first"]]
