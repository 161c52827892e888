"""What every proposer must do, as tests that yours can run too.

    class TestMine(ProposerContract):
        @pytest.fixture
        def subject(self, tmp_path: Path) -> Subject:
            return MySubject(tmp_path)

`subject` makes your proposer play a script. The tests are async (pytest-asyncio in auto mode) and use plain asserts.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol

from pydantic import BaseModel, ConfigDict

from bco_graph.errors import StepFailed, SubmissionRefused
from bco_graph.proposers.tree import Entry, lay, snapshot
from bco_graph.protocols import Step, StepResult
from bco_graph.state import StepName


@dataclass(frozen=True, slots=True)
class Attempt:
    """One try: files written first (path in the workspace -> text), then text that is handed in as it is."""

    submission: str
    edits: Mapping[str, str] = field(default_factory=dict)


class Subject(Protocol):
    """A proposer with somebody behind it who plays attempts in order, and the last one again when asked on."""

    own_files: frozenset[str]
    """What the proposer itself may leave in the workspace: files, or folders with all below them."""
    hears_refusals: bool
    """False where a second try cannot differ from the first, as in a recording."""

    async def perform(self, step: Step[Any], attempts: list[Attempt], *, max_refusals: int) -> StepResult[Any]:
        """Let a proposer, allowed so many refusals, do the step."""

    def tries(self) -> int:
        """How many submissions whoever proposes was asked for during `perform`."""

    def heard(self) -> str:
        """All that whoever proposes was told during `perform`, as text."""


class Form(BaseModel):
    """The contract's submission."""

    model_config = ConfigDict(extra="forbid")

    word: str
    share: float


GOOD = '{"word": "blue", "share": 0.5}'


class ProposerContract:
    """The tests. They own the workspace, the form and what is accepted; `subject` owns everything else."""

    async def test_an_accepted_submission_comes_back_with_its_value(self, subject: Subject, tmp_path: Path) -> None:
        result = await subject.perform(_step(tmp_path), [Attempt(GOOD)], max_refusals=2)
        assert result.value == "BLUE"
        assert result.submission == {"word": "blue", "share": 0.5}
        assert list(result.refusals) == []

    async def test_whoever_proposes_hears_the_instructions(self, subject: Subject, tmp_path: Path) -> None:
        if subject.hears_refusals:
            await subject.perform(_step(tmp_path), [Attempt(GOOD)], max_refusals=2)
            assert "Name a colour." in subject.heard()

    async def test_a_refused_submission_can_be_mended(self, subject: Subject, tmp_path: Path) -> None:
        attempts = [Attempt('{"word": "seven", "share": 0.5}'), Attempt(GOOD)]
        if subject.hears_refusals:
            result = await subject.perform(_step(tmp_path), attempts, max_refusals=2)
            assert result.value == "BLUE"
            assert [list(reasons) for reasons in result.refusals] == [["'seven' is no colour"]]
            assert "'seven' is no colour" in subject.heard()
        else:
            error = await _failure(subject, _step(tmp_path), attempts, max_refusals=2)
            assert error.cause == "refused"
            assert "'seven' is no colour" in str(error)

    async def test_refusals_without_end_fail_the_step_within_the_bound(self, subject: Subject, tmp_path: Path) -> None:
        wrong = Attempt('{"word": "seven", "share": 0.5}')
        error = await _failure(subject, _step(tmp_path), [wrong], max_refusals=2)
        assert error.cause == "refused"
        assert "seven" in error.raw
        assert subject.tries() == (3 if subject.hears_refusals else 1)

    async def test_text_that_is_no_json_is_refused_with_its_place(self, subject: Subject, tmp_path: Path) -> None:
        error = await _failure(subject, _step(tmp_path), [Attempt('{"word": "blue", "share": }')], max_refusals=1)
        assert error.cause == "refused"
        assert "line 1" in str(error)

    async def test_a_number_that_is_none_is_refused(self, subject: Subject, tmp_path: Path) -> None:
        error = await _failure(subject, _step(tmp_path), [Attempt('{"word": "blue", "share": NaN}')], max_refusals=0)
        assert error.cause == "refused"
        assert "NaN" in str(error)

    async def test_an_unknown_field_is_refused_with_the_nearest_name(self, subject: Subject, tmp_path: Path) -> None:
        wrong = Attempt('{"word": "blue", "share": 0.5, "shares": 1}')
        error = await _failure(subject, _step(tmp_path), [wrong], max_refusals=0)
        assert error.cause == "refused"
        assert "did you mean 'share'?" in str(error)

    async def test_propose_leaves_the_edited_scaffold_and_nothing_else(self, subject: Subject, tmp_path: Path) -> None:
        step = _step(tmp_path)
        before = _kept(step, subject)
        edits = {"scaffold/agent.py": "x = 2\n", "scaffold/new/prompt.md": "````\n```\n"}
        await subject.perform(step, [Attempt(GOOD, edits)], max_refusals=2)
        assert (step.workspace / "scaffold/agent.py").read_bytes() == b"x = 2\n"
        assert (step.workspace / "scaffold/new/prompt.md").read_bytes() == b"````\n```\n"
        assert _names(step) == {"agent.py", "kept.txt", "new/prompt.md"}
        assert _kept(step, subject) == before

    async def test_a_step_that_only_reads_moves_no_byte(self, subject: Subject, tmp_path: Path) -> None:
        step = _step(tmp_path, name="predict")
        before = _kept(step, subject)
        scaffold = snapshot(step.workspace / "scaffold")
        await subject.perform(step, [Attempt(GOOD)], max_refusals=2)
        assert _kept(step, subject) == before
        assert snapshot(step.workspace / "scaffold") == scaffold

    async def test_a_failed_step_moves_no_byte_of_the_evidence(self, subject: Subject, tmp_path: Path) -> None:
        step = _step(tmp_path)
        before = _kept(step, subject)
        await _failure(subject, step, [Attempt("nothing of value")], max_refusals=1)
        assert _kept(step, subject) == before


def _step(tmp_path: Path, *, name: StepName = "propose") -> Step[str]:
    def accept(model: BaseModel) -> str:
        assert isinstance(model, Form)
        if model.word != "blue":
            raise SubmissionRefused([f"{model.word!r} is no colour"])
        return model.word.upper()

    workspace = tmp_path / "workspace"
    lay(workspace, {path: Entry("file", text) for path, text in _WORKSPACE.items()})
    return Step(name, 1, "bco", workspace, "Name a colour.", Form, accept)


_WORKSPACE = {
    "SKILL.md": b"the contract\n",
    "candidates.csv": b"candidate\r\niter_000\r\n",
    "iterations/iter_000/source/agent.py": b"x = 1\n",
    "iterations/iter_000/traces/t1.json": b'{"answer": "\xff"}',
    "scaffold/agent.py": b"x = 1\n",
    "scaffold/kept.txt": b"kept",
}


async def _failure(subject: Subject, step: Step[str], attempts: list[Attempt], *, max_refusals: int) -> StepFailed:
    try:
        result = await subject.perform(step, attempts, max_refusals=max_refusals)
    except StepFailed as error:
        return error
    raise AssertionError(f"StepFailed was expected, but the step gave {result.value!r}")


def _kept(step: Step[str], subject: Subject) -> dict[str, Entry]:
    """The workspace less the scaffold and the proposer's own files."""
    own = {"scaffold", *subject.own_files}
    tree = snapshot(step.workspace)
    return {path: entry for path, entry in tree.items() if path not in own and path.split("/")[0] not in own}


def _names(step: Step[str]) -> set[str]:
    return set(snapshot(step.workspace / "scaffold"))
