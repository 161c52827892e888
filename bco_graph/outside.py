"""A HEAD that comes from outside of the loop: a person, or a program, changes beliefs between two rounds.

Who changes them puts another HEAD into the state (`change_world_model`), by `update_state` or as input. The first node
that sees it records it in the receipts, so that document, HISTORY and every later reader go by it (`take_over`).
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from bco_graph.document import RunDocument, reference_to
from bco_graph.errors import DocumentError, RunUnreadable
from bco_graph.places import DONE, has_gone_on, iteration_of, stale
from bco_graph.receipts import Receipts
from bco_graph.recorded import Recorded, digest_of
from bco_graph.run_folder import RunFolder
from bco_graph.runtime import RunContext
from bco_graph.state import JSON, AskName, BCOState, NodeName, WorldModelReference, candidate_id
from bco_graph.world_model import Belief, Document, WorldModel, lint, render_belief


def read_world_model(folder: Path | str, iteration: int | None = None) -> WorldModel:
    """The HEAD of a run as it stands, or as it stood after an iteration. Raises RunUnreadable where there is none."""
    run = RunFolder(Path(folder))
    run.read()
    run.require_receipts()
    receipts = Receipts(run.receipts)
    try:
        document = RunDocument(receipts)
        newest = document.newest()
        if newest is None:
            raise RunUnreadable(f"{run.root} has no world model: no update has ended there, or its method is not 'bco'")
        return document.head(newest if iteration is None else iteration)
    finally:
        receipts.close()


def change_world_model(state: Mapping[str, Any], head: WorldModel) -> dict[str, WorldModelReference]:
    """The update of the state that puts another HEAD in the place of the one it names; for `update_state`, or input."""
    reference = state["world_model"]
    return {"world_model": {**reference_to(reference["iteration"], head), "head": head.to_json()}}


def take_over(run: RunContext, node: NodeName | AskName, state: BCOState) -> None:
    """Record the HEAD that the state brings, where it is another than stands, and in a replay those that came from
    outside before this node. Raises DocumentError for one that the document could not hold, and StaleCheckpoint where
    rounds were run on the old one already."""
    reference = state.get("world_model")
    if reference is None:
        return
    if "head" in reference:
        _take_over(run, node, reference)
    replay_changes(run, reference["iteration"], before=(iteration_of(node, state), node))


def _take_over(run: RunContext, node: NodeName | AskName, reference: WorldModelReference) -> None:
    iteration = reference["iteration"]
    head, stands = WorldModel.from_json(reference["head"]), run.document.head(iteration)
    if head == stands or reference["head"] == _last_from_outside(run, iteration):
        return
    if has_gone_on(run, iteration):
        raise stale(run, node, iteration + 1)
    if problems := lint(Document(head=head)):
        raise DocumentError("; ".join(problems), source="the world model that the state brings")
    history = f"### {candidate_id(iteration)} changed from outside\n{difference(stands, head)}\n"
    record = {"head": head.to_json(), "changes": changes(iteration, stands, head), "history": history}
    run.receipts.add_change(iteration, record)
    run.write_document()
    run.events.emit("beliefs", iteration, changes=record["changes"])


def replay_changes(run: RunContext, iteration: int, *, before: tuple[int, NodeName | AskName]) -> None:
    """In a replay: put on record, once, the recorded changes after the update of an iteration that were made before a
    node. One that was made on another HEAD than stands here is left out, with those after it, and a warning."""
    recorded = run.proposer.changes(iteration) if isinstance(run.proposer, Recorded) else ()
    done = [record for _, at, record in run.receipts.changes() if at == iteration] if recorded else []
    for number, change in enumerate(recorded):
        if any(record.get("replayed") == number for record in done) or not _precedes(change.after, before):
            continue
        if digest_of(run.document.head(iteration).to_json()) != change.on:
            run.events.warn("replay", f"{candidate_id(iteration)}: {_LEFT_OUT.format(number + 1, len(recorded))}")
            return
        run.receipts.add_change(iteration, {**change.record, "replayed": number})
        run.write_document()
        _tell(run, iteration, change.record)


def _precedes(after: tuple[int, str], before: tuple[int, NodeName | AskName]) -> bool:
    steps, nodes = list(DONE.values()), list(DONE)
    return (after[0], steps.index(after[1])) < (before[0], nodes.index(before[1]))


def _tell(run: RunContext, iteration: int, record: Mapping[str, JSON]) -> None:
    if "by" not in record:
        run.events.emit("beliefs", iteration, changes=record["changes"])
        return
    run.events.emit(
        "decided", run.receipts.last_iteration(), step="believe", decision="changed", reason="", by=record["by"],
        changes=record["changes"],
    )  # fmt: skip


_LEFT_OUT = (
    "recorded change {} of {} of the beliefs is left out, with those after it: it was made on another world model than "
    "this run has here"
)


def _last_from_outside(run: RunContext, iteration: int) -> JSON:
    """The HEAD that was taken over last. A state keeps one until the next update, while people may have changed what
    stands (`believing`): what they said is not undone by it."""
    given = [record["head"] for _, at, record in run.receipts.changes() if at == iteration and "by" not in record]
    return given[-1] if given else None


def changes(iteration: int, before: WorldModel, after: WorldModel) -> list[dict[str, JSON]]:
    """What differs, belief by belief, as the event `beliefs` tells it."""
    return [
        {"iteration": iteration, "op": _op(old, new), "id": name, "before": _held(old), "after": _held(new)}
        for name, old, new in _pairs(before, after)
    ]


def difference(before: WorldModel, after: WorldModel) -> str:
    """The same for HISTORY: a line for each belief, what it was beneath."""
    lines = []
    for name, old, new in _pairs(before, after):
        states = " -> ".join(f"{belief.status} {belief.confidence:g}" for belief in (old, new) if belief)
        lines.append(f"- {_op(old, new)} {name} ({states})")
        lines += [f"  was: {render_belief(old)}"] if old else []
    if before.experiments != after.experiments:
        lines.append(f"- experiments: {len(before.experiments)} -> {len(after.experiments)}")
    return "\n".join(lines) or "No belief differs."


def _pairs(before: WorldModel, after: WorldModel) -> list[tuple[str, Belief | None, Belief | None]]:
    names = dict.fromkeys(belief.id for belief in (*before.beliefs, *after.beliefs))
    pairs = [(name, before.find(name), after.find(name)) for name in names]
    return [(name, old, new) for name, old, new in pairs if old != new]


def _op(old: Belief | None, new: Belief | None) -> str:
    if old is None:
        return "add"
    return "remove" if new is None else "revise"


def _held(belief: Belief | None) -> dict[str, JSON] | None:
    return {"confidence": belief.confidence, "status": belief.status} if belief else None
