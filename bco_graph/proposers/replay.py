"""The `replay` proposer: the steps of a recorded run, given again. No model, no key.

A recording is a folder: `iter_001/{propose.json, source/, predict.json, grade.json, update.json}`, the first update in
`iter_000/update.json`; each file is `{"submission": {...}}`.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any, TypeVar

from bco_graph.errors import ConfigError, StepFailed, SubmissionRefused
from bco_graph.proposers.intake import take
from bco_graph.proposers.tree import lay, snapshot
from bco_graph.proposers.workspace import SCAFFOLD
from bco_graph.protocols import Step, StepResult
from bco_graph.state import JSON, StepName, candidate_id
from bco_graph.strict_json import read_object

T = TypeVar("T")

_SOURCE = "source"


class ReplayProposer:
    """Each step has one submission; a refused one fails the step, for asking again would give the same."""

    def __init__(self, recording: Path) -> None:
        if not recording.is_dir():
            raise ConfigError(f"proposer.recording {str(recording)!r} is no folder; give the folder of a recorded run")
        self._recording = recording

    async def perform(self, step: Step[T]) -> StepResult[T]:
        folder = self._recording / candidate_id(step.iteration)
        raw = _recorded(step, folder / f"{step.name}.json")
        if step.name == "propose":
            source = folder / _SOURCE
            if not source.is_dir():
                raise _missing(step, source)
            lay(step.workspace / SCAFFOLD, snapshot(source))
        try:
            value, submission = take(step, _submission(raw))
        except SubmissionRefused as refused:
            reasons = [f"recorded in {folder.name}/{step.name}.json: {reason}" for reason in refused.reasons]
            raise StepFailed(step.name, cause="refused", reasons=reasons, raw=raw) from refused
        return StepResult(value, submission)


def _recorded(step: Step[Any], path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8")
    except FileNotFoundError as error:
        raise _missing(step, path) from error
    except (OSError, UnicodeDecodeError) as error:
        reason = f"the recording's {path.parent.name}/{path.name} cannot be read: {error}"
        raise StepFailed(step.name, cause="missing", reasons=[reason]) from error


def _missing(step: Step[Any], path: Path) -> StepFailed:
    reason = f"the recording has no {path.parent.name}/{path.name} ({path})"
    return StepFailed(step.name, cause="missing", reasons=[reason])


def _submission(raw: str) -> dict[str, JSON]:
    try:
        recorded = read_object(raw)
    except ValueError as error:
        raise SubmissionRefused([f"the file is {error}"]) from error
    if recorded.keys() != {"submission"} or not isinstance(recorded["submission"], dict):
        raise SubmissionRefused(['the file is not of the form {"submission": {...}}'])
    return recorded["submission"]


def write_recording(
    dest: Path,
    steps: Iterable[tuple[int, StepName, Mapping[str, JSON]]],
    source_of: Callable[[int], Path | None],
) -> None:
    """Make a recording of accepted submissions, (iteration, step, submission) each.

    `source_of` gives the folder of the scaffold as an iteration's `propose` left it, or None where there is none:
    such an iteration fails when it is replayed. Raises ConfigError where `dest` holds something already.
    """
    if dest.exists() and any(dest.iterdir()):
        raise ConfigError(f"{str(dest)!r} is not empty; give a new folder for the recording")
    for iteration, step, submission in steps:
        folder = dest / candidate_id(iteration)
        folder.mkdir(parents=True, exist_ok=True)
        text = json.dumps({"submission": submission}, ensure_ascii=False, allow_nan=False, indent=1)
        (folder / f"{step}.json").write_text(text + "\n", encoding="utf-8")
        if step == "propose" and (source := source_of(iteration)) is not None:
            lay(folder / _SOURCE, snapshot(source))
