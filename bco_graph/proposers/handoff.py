"""The `handoff` proposer: a person, or another system, works in the workspace and resumes the graph.

The step stops the graph by LangGraph's `interrupt`. A node that is resumed runs again from its start, so everything
here can be repeated: the same answers give the same results, and no file that somebody edits is written or removed.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, TypeVar

from bco_graph.config import ProposerConfig
from bco_graph.errors import StepFailed, SubmissionRefused
from bco_graph.proposers.intake import Intake
from bco_graph.proposers.step_files import SUBMISSION, read_submission, write_step
from bco_graph.proposers.tree import write_file
from bco_graph.protocols import Step, StepResult
from bco_graph.run_folder import below
from bco_graph.state import JSON

T = TypeVar("T")

READY = "ready"
_TAKEN = ".handoff"
"""Folder of what a repeated node must find again: per answer, the submission read from a file, or its refusal."""


class HandoffProposer:
    """Needs a graph with a checkpointer. A resume value is the submission as an object or as text, `"ready"` for the
    workspace's submission.json, or `{"file": PATH}` for another file below the workspace.
    """

    def __init__(self, config: ProposerConfig) -> None:
        self._config = config

    async def perform(self, step: Step[T]) -> StepResult[T]:
        intake = Intake(step, self._config.max_refusals)
        instructions = write_step(step)
        refused: Sequence[str] | None = None
        while True:
            number = len(intake.refusals)
            answer = _ask(step, instructions, refused, intake)
            try:
                accepted = _offer(step, intake, answer, number)
            except SubmissionRefused as error:
                refused = error.reasons
                if len(intake.refusals) == number:
                    refused = _count(intake, error.reasons)
                _remember(step, number, refused)
                continue
            except StepFailed:
                _drop_taken(step, number)
                raise
            _drop_taken(step, number)
            return intake.result(accepted)


def _offer(step: Step[T], intake: Intake[T], answer: Any, number: int) -> tuple[T, dict[str, JSON]]:
    """The accepted submission. An answer that was refused stays refused when the node runs again: what it was checked
    against, such as the scaffold, may have been mended since, for the next answer."""
    earlier = _refusal(step, number)
    if earlier.is_file():
        intake.refuse(list(json.loads(earlier.read_text(encoding="utf-8"))))
    return intake.offer(_read(step, answer, number))


def _refusal(step: Step[Any], number: int) -> Path:
    return step.workspace / _TAKEN / f"{_stem(step)}-{number}.refused"


def _remember(step: Step[Any], number: int, reasons: Sequence[str]) -> None:
    write_file(_refusal(step, number), json.dumps(list(reasons)).encode(), beside=step.workspace)


def _count(intake: Intake[Any], reasons: list[str]) -> list[str]:
    try:
        intake.refuse(reasons)
    except SubmissionRefused as refused:
        return refused.reasons


def _ask(step: Step[Any], instructions: Path, refused: Sequence[str] | None, intake: Intake[Any]) -> Any:
    from langgraph.errors import GraphInterrupt
    from langgraph.types import interrupt

    question = {
        "step": step.name,
        "iteration": step.iteration,
        "workspace": str(step.workspace.resolve()),
        "instructions": str(instructions.resolve()),
        "schema": step.schema.model_json_schema(),
        "refused": None if refused is None else list(refused),
        "tries_left": intake.tries_left,
    }
    try:
        return interrupt(question)
    except GraphInterrupt:
        # Nobody has answered this question yet: what an abandoned thread took for it is not its answer.
        for stale in (step.workspace / _TAKEN).glob(f"{_stem(step)}-*"):
            if int(stale.stem.rsplit("-", 1)[1]) >= len(intake.refusals):
                stale.unlink()
        raise


def _read(step: Step[Any], answer: Any, number: int) -> str | Mapping[str, JSON]:
    """The submission in an answer; a file is read once per answer and kept."""
    if isinstance(answer, str) and answer.strip() != READY:
        return answer
    if isinstance(answer, Mapping) and answer.keys() != {"file"}:
        return answer
    if not isinstance(answer, str | Mapping):
        raise SubmissionRefused(
            [f"the answer is of type {type(answer).__name__}; give the submission, {READY!r}, or {{'file': PATH}}"]
        )
    taken = step.workspace / _TAKEN / f"{_stem(step)}-{number}.json"
    if not taken.is_file():
        name = SUBMISSION if isinstance(answer, str) else str(answer["file"])
        try:
            text = read_submission(step.workspace / name if name == SUBMISSION else _below(step.workspace, name))
        except SubmissionRefused:
            write_file(taken, b"", beside=step.workspace)
            raise
        write_file(taken, step.redact(text).encode("utf-8"), beside=step.workspace)
    return taken.read_bytes().decode("utf-8")


def _below(workspace: Path, name: str) -> Path:
    found = below(workspace, name)
    if found is None:
        raise SubmissionRefused(
            [f"the file {name!r} is missing or not below the workspace; give a path relative to it"]
        )
    return found


def _drop_taken(step: Step[Any], number: int) -> None:
    """Remove a submission.json that was taken, so that the next step's `ready` cannot mean it; an edited one stays."""
    taken = step.workspace / _TAKEN / f"{_stem(step)}-{number}.json"
    written = step.workspace / SUBMISSION
    if taken.is_file() and written.is_file() and taken.read_text("utf-8") == step.redact(written.read_text("utf-8")):
        written.unlink()


def _stem(step: Step[Any]) -> str:
    return f"{step.iteration}-{step.name}"
