"""Takes things out of a run folder: a candidate's scaffold byte for byte, or a recording that replays the run."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import cast, get_args

from bco_graph.errors import ConfigError, RunUnreadable
from bco_graph.gateway.cache import write_responses
from bco_graph.own_nodes import OWN
from bco_graph.places import DONE
from bco_graph.proposers.replay import NOTES, write_changes, write_own_nodes, write_recording, write_reply
from bco_graph.receipts import Receipts
from bco_graph.recorded import RecordedChange, digest_of
from bco_graph.report.reading import Reading, reading
from bco_graph.report.wording import BASELINE
from bco_graph.run_folder import RunFolder
from bco_graph.scratch import scratch
from bco_graph.state import JSON, AskName, StepName, candidate_id

STEPS: tuple[StepName, ...] = ("propose", "predict", "grade", "update")
REPLAYED_ROLES = ("target", "judge")
"""Whose responses a replay asks for again; the proposer's and the predictor's are in the recorded steps."""


def export_scaffold(
    folder: RunFolder, candidate: str | None, dest: Path, *, overwrite: bool = False
) -> dict[str, JSON]:
    """Write a candidate's files (None: the best's) as `dest`, checked against the digest of its tree.

    Raises ConfigError where the candidate is unknown, nothing is ranked yet, or `dest` is taken; `overwrite` replaces
    the whole of it. The facts show the mean beside that of the untouched baseline.
    """
    with reading(folder) as run:
        name = candidate or _best(run)
        record = run.candidate(name)
        store = run.store()
        tree = store.tree(name)
        with _made(dest, folder, overwrite=overwrite) as making:
            store.checkout(tree, making)
            if (found := store.stage(making)) != tree:
                raise RunUnreadable(f"the files of {name} are not what its tree {tree} says (they are {found})")
            files = [path for path in making.rglob("*") if path.is_file()]
        return {
            "candidate": name, "dest": str(dest), "tree": tree, "files": len(files), "mean": record["mean"],
            "baseline": run.candidate(BASELINE)["mean"],
        }  # fmt: skip


def _best(run: Reading) -> str:
    best = run.best()
    if best is None:
        raise ConfigError(
            f"{run.folder.root} has no best candidate: none has real results on enough tasks; "
            "name one with `--candidate iter_000`"
        )
    return best


def export_recording(folder: RunFolder, dest: Path) -> dict[str, JSON]:
    """Make a recording in `dest`: every accepted submission with its source, what people replied, changes of the world
    model from outside, and `cache.sqlite` with the responses that the target and the judge gave, for `extra_cache`.
    Equal receipts give equal files.

    `own_nodes` are the iterations, by node, that nodes of the caller's own did: their results are not in the recording.
    `without_responses` counts baseline results whose model calls are not in the receipts, for they were taken from
    another run: a replay needs the model for them. `bytes` is the size of the whole. Raises ConfigError where `dest`
    is taken.
    """
    with reading(folder) as run, scratch("recording") as apart:
        steps = list(_submissions(run))
        with _made(dest, folder, overwrite=False) as making:
            write_recording(making, steps, _sources(run, apart))
            making.mkdir(exist_ok=True)
            replies, changes = _record_people(run, apart, making), _record_changes(run, making)
            if own := _own_nodes(run):
                write_own_nodes(making, own)
            responses = write_responses(making / "cache.sqlite", run.receipts.responses(REPLAYED_ROLES))
            size = sum(path.stat().st_size for path in making.rglob("*") if path.is_file())
        return {
            "dest": str(dest), "steps": len(steps), "responses": responses, "bytes": size,
            "without_responses": _without_responses(run.receipts), "replies": replies, "changes": changes,
            "own_nodes": own,
        }  # fmt: skip


def _submissions(run: Reading) -> Iterator[tuple[int, StepName, dict[str, JSON]]]:
    for iteration, step, record in run.receipts.steps():
        if step in STEPS and record["submission"] is not None:
            yield iteration, step, record["submission"]


def _sources(run: Reading, scratch: Path) -> Callable[[int], Path | None]:
    """The scaffold of an iteration's edit as it was proposed, laid out one at a time."""

    def source_of(iteration: int) -> Path | None:
        proposed = (run.receipts.step(iteration, "propose") or {}).get("result") or {}
        return _laid_out(run, proposed.get("tree"), scratch)

    return source_of


def _laid_out(run: Reading, tree: str | None, scratch: Path) -> Path | None:
    if tree is None:
        return None
    run.store().checkout(tree, scratch / "source")
    return scratch / "source"


def _record_people(run: Reading, scratch: Path, dest: Path) -> int:
    """What people replied, and the notes of method `notes`; returns how many replies there are."""
    count = 0
    for iteration, step, record in run.receipts.steps():
        if step == "propose" and (notes := (record.get("result") or {}).get("notes")) is not None:
            (dest / candidate_id(iteration) / NOTES).write_text(notes, encoding="utf-8")
        if step not in get_args(AskName) or record["decision"] == "within":
            continue
        count += 1
        question = cast(AskName, step)
        keys = ("beliefs", "by") if question == "review" else ("decision", "reason", "by")
        approved = _laid_out(run, record.get("tree"), scratch)
        write_reply(dest, iteration, question, {key: record[key] for key in keys}, approved=approved)
    return count


def _record_changes(run: Reading, dest: Path) -> int:
    """Changes of the world model from outside, less those of a review, which its reply makes again."""
    stands: dict[int, JSON] = {}
    found: dict[int, list[RecordedChange]] = {}
    for number, iteration, record in run.receipts.changes():
        before = stands.get(iteration) or (run.receipts.step(iteration, "document") or {}).get("head", {})
        stands[iteration] = record["head"]
        if "review" not in record:
            ended = run.receipts.step_before_change(number, list(DONE.values())) or (iteration, "document")
            after = max(ended, (iteration, "document"), key=lambda place: place[0])
            plain = {key: value for key, value in record.items() if key != "replayed"}
            found.setdefault(iteration, []).append(RecordedChange(after, digest_of(before), plain))
    for iteration, changes in found.items():
        write_changes(dest, iteration, changes)
    return sum(map(len, found.values()))


def _own_nodes(run: Reading) -> dict[str, list[int]]:
    found: dict[str, list[int]] = {}
    for iteration, step, _ in run.receipts.steps():
        if step.startswith(OWN):
            found.setdefault(step.removeprefix(OWN), []).append(iteration)
    return found


def render_recording(facts: dict[str, JSON]) -> str:
    lines = [f"wrote {facts['dest']}: {facts['steps']} steps, {facts['responses']} responses"]
    if facts["replies"] or facts["changes"]:
        lines.append(f"  people     {facts['replies']} replies, {facts['changes']} changes of beliefs; given again")
    for node, iterations in facts["own_nodes"].items():
        where = ", ".join(map(candidate_id, iterations))
        lines.append(f"  not in it   what your own node {node!r} did in {where}: a replay needs that node")
    return "\n".join(lines)


def _without_responses(receipts: Receipts) -> int:
    rows = receipts.results("train", BASELINE)
    return sum(row.calls > len(receipts.calls_of(row.candidate, row.task, row.repeat)) for row in rows)


@contextmanager
def _made(dest: Path, folder: RunFolder, *, overwrite: bool) -> Iterator[Path]:
    """A folder beside `dest` that takes its place when the block ends well; `dest` is as it was when it does not."""
    target, root = dest.resolve(), folder.root.resolve()
    if target.is_relative_to(root) or root.is_relative_to(target):
        raise ConfigError(f"{str(dest)!r} holds the run folder, or lies in it: give a folder outside of {root}")
    if target.exists() and not target.is_dir():
        raise ConfigError(f"{str(dest)!r} is a file: give a folder")
    if target.is_dir() and any(target.iterdir()) and not overwrite:
        raise ConfigError(f"{str(dest)!r} is not empty: give another folder, or replace it with `--overwrite`")
    making = target.with_name(f".{target.name}.{os.getpid()}.making")
    target.parent.mkdir(parents=True, exist_ok=True)
    try:
        yield making
        shutil.rmtree(target, ignore_errors=True)
        making.replace(target)
    finally:
        shutil.rmtree(making, ignore_errors=True)
