"""The `replay` proposer: the steps of a recorded run, given again. No model, no key.

A recording is a folder: `iter_001/{propose.json, source/, predict.json, grade.json, update.json}`, the first update in
`iter_000/update.json`; each file is `{"submission": {...}}`. What people did is there too:

iter_001/{approve,afford,review}.json   {"reply": {...}}; `approved/` beside it is the scaffold that a person changed
iter_001/changes.json                   {"changes": [...]}: `RecordedChange`, other HEADs after the iteration's update
iter_001/agent_notes.md                 method `notes`: the file as its `propose` left it
recording.json                          {"own_nodes": {node: [iteration]}}: done by nodes of the caller's own, not here
"""

from __future__ import annotations

import json
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, TypeVar

from bco_graph.config import RunConfig
from bco_graph.errors import ConfigError, StepFailed, SubmissionRefused
from bco_graph.proposers.intake import take
from bco_graph.proposers.tree import lay, snapshot
from bco_graph.proposers.workspace import SCAFFOLD
from bco_graph.protocols import Step, StepResult
from bco_graph.recorded import RecordedChange
from bco_graph.run_folder import DOCUMENTS
from bco_graph.state import JSON, AskName, StepName, candidate_id
from bco_graph.strict_json import read_object

T = TypeVar("T")

_SOURCE = "source"
_APPROVED = "approved"
NOTES = str(DOCUMENTS["notes"])
QUESTIONS: Mapping[AskName, tuple[str, Callable[[RunConfig], bool]]] = {
    "approve": ("ask.edit: true", lambda config: config.ask.edit),
    "afford": (
        "a limit such as ask.evaluation_calls",
        lambda config: (config.ask.evaluation_usd, config.ask.evaluation_calls) != (None, None),
    ),
    "review": ("ask.grade: true", lambda config: config.ask.grade),
}
"""The key of the config that asks, and whether it does."""


class ReplayProposer:
    """Each step has one submission; a refused one fails the step, for asking again would give the same."""

    def __init__(self, recording: Path) -> None:
        if not recording.is_dir():
            raise ConfigError(f"proposer.recording {str(recording)!r} is no folder; give the folder of a recorded run")
        self._recording = recording

    def reply(self, question: AskName, iteration: int, workspace: Path) -> dict[str, JSON] | None:
        folder = self._recording / candidate_id(iteration)
        recorded = _side_file(folder / f"{question}.json", "reply", dict)
        if question == "approve" and (folder / _APPROVED).is_dir():
            lay(workspace / SCAFFOLD, snapshot(folder / _APPROVED))
        return recorded

    def changes(self, iteration: int) -> list[RecordedChange]:
        path = self._recording / candidate_id(iteration) / "changes.json"
        try:
            return [
                RecordedChange(after=(item["after"][0], item["after"][1]), on=item["on"], record=item["record"])
                for item in _side_file(path, "changes", list) or []
            ]
        except (TypeError, KeyError, IndexError) as error:
            raise ConfigError(f"{path} is no list of changes: {error!r}; export the recording again") from error

    async def perform(self, step: Step[T]) -> StepResult[T]:
        folder = self._recording / candidate_id(step.iteration)
        raw = _recorded(step, folder / f"{step.name}.json")
        if step.name == "propose":
            source = folder / _SOURCE
            if not source.is_dir():
                raise _missing(step, source)
            lay(step.workspace / SCAFFOLD, snapshot(source))
            if (notes := folder / NOTES).is_file():
                (step.workspace / NOTES).write_bytes(notes.read_bytes())
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


def _side_file(path: Path, key: str, form: type[T]) -> T | None:
    """What is below the one key of a file; None where there is no file."""
    try:
        recorded = read_object(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        return None
    except (OSError, ValueError) as error:
        raise ConfigError(f"{path} of the recording cannot be read: {error}") from error
    found = recorded.get(key)
    if recorded.keys() != {key} or not isinstance(found, form):
        raise ConfigError(f'{path} is not of the form {{"{key}": ...}}; export the recording again')
    return found


def require_what_is_recorded(recording: Path, config: RunConfig, own: Collection[str]) -> None:
    """Raises ConfigError where a graph would leave out in silence what was not the proposer's: replies of people that
    changed something, which need the question, and what nodes of the caller's own (`own`: those of the graph) did."""
    for question, (key, asked) in QUESTIONS.items():
        decided = [
            path.parent.name
            for path in sorted(recording.glob(f"iter_*/{question}.json"))
            if _decides(_side_file(path, "reply", dict) or {})
        ]
        if decided and not asked(config):
            raise ConfigError(
                f"{recording}: a person's reply to {question!r} made a difference in {', '.join(decided)}: set {key} "
                "in the config that replays it; the recorded replies are given, nobody is asked"
            )
    nodes = _side_file(recording / "recording.json", "own_nodes", dict) or {}
    if missing := {name: found for name, found in nodes.items() if name not in own}:
        listed = "; ".join(f"{name} in {', '.join(map(candidate_id, found))}" for name, found in missing.items())
        raise ConfigError(
            f"{recording}: nodes of the caller's own did steps that are not in the recording ({listed}): give the same "
            "to create_bco(nodes=...), or under `nodes` in the config; to go on with ours, take them out of "
            "recording.json"
        )


def _decides(reply: Mapping[str, JSON]) -> bool:
    return bool(reply.get("beliefs")) or reply.get("decision") in ("reject", "edit")


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
        _write(folder / f"{step}.json", {"submission": submission})
        if step == "propose" and (source := source_of(iteration)) is not None:
            lay(folder / _SOURCE, snapshot(source))


def write_reply(
    dest: Path, iteration: int, question: AskName, reply: Mapping[str, JSON], *, approved: Path | None
) -> None:
    """Add to a recording what a person replied; `approved` is the scaffold that they changed by hand."""
    folder = dest / candidate_id(iteration)
    _write(folder / f"{question}.json", {"reply": reply})
    if approved is not None:
        lay(folder / _APPROVED, snapshot(approved))


def write_changes(dest: Path, iteration: int, changes: Sequence[RecordedChange]) -> None:
    told = [{"after": list(change.after), "on": change.on, "record": change.record} for change in changes]
    _write(dest / candidate_id(iteration) / "changes.json", {"changes": told})


def write_own_nodes(dest: Path, nodes: Mapping[str, Sequence[int]]) -> None:
    """Say in a recording which steps it lacks."""
    _write(dest / "recording.json", {"own_nodes": nodes})


def _write(path: Path, value: Mapping[str, JSON]) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    text = json.dumps(value, ensure_ascii=False, allow_nan=False, indent=1)
    path.write_text(text + "\n", encoding="utf-8")
