"""The world model: what a run believes about how its environment answers to edits, and how that may change.

The one door to the room. Behind it:

values   what it is made of
ops      Add, Revise, Merge, Remove
delta    what a list of them does to the HEAD
people   what a person may do to it
text     Markdown: the form and writing it; parse reads it
budget   keeps the HEAD small

This file adds what stands beside them: experiments, HISTORY, lint. Pure: no disk, no clock.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from itertools import zip_longest

from bco_graph.errors import DocumentError
from bco_graph.state import JSON
from bco_graph.world_model.budget import Compacted, compact, estimate_tokens
from bco_graph.world_model.delta import Applied, apply, leaves_the_run, strains
from bco_graph.world_model.ops import Add, Delta, Merge, Op, Remove, Revise, cited
from bco_graph.world_model.parse import parse_document
from bco_graph.world_model.people import HumanBelief, HumanChange, apply_human, human_record, wrong_stakes
from bco_graph.world_model.text import render_belief, render_document, render_entry, render_head, render_record
from bco_graph.world_model.values import (
    Belief,
    BeliefKind,
    BeliefStatus,
    Document,
    Evidence,
    Experiment,
    HistoryRecord,
    WorldModel,
)

__all__ = [
    "Add",
    "Applied",
    "Belief",
    "BeliefKind",
    "BeliefStatus",
    "Compacted",
    "Delta",
    "Document",
    "Evidence",
    "Experiment",
    "HistoryRecord",
    "HumanBelief",
    "HumanChange",
    "Merge",
    "Op",
    "Remove",
    "Revise",
    "WorldModel",
    "apply",
    "apply_human",
    "check_append_only",
    "compact",
    "estimate_tokens",
    "history_record",
    "human_record",
    "lint",
    "parse_document",
    "record_experiment",
    "render_belief",
    "render_document",
    "render_head",
    "render_record",
    "wrong_stakes",
]


def record_experiment(head: WorldModel, experiment: Experiment) -> WorldModel:
    """`head` with one experiment more. Its ids were checked when the proposal was accepted; `lint` checks again."""
    return head.model_copy(update={"experiments": (*head.experiments, experiment)})


def history_record(
    iteration: int, applied: Applied, delta: Delta, distill_text: str, *, removed_text: str = ""
) -> HistoryRecord:
    """The record of an accepted update: the distill block, then one line an operation.

    Beneath a line stand, whole, the beliefs that the operation merged, removed or worded anew. `removed_text` is
    what compaction took out of the HEAD.
    """
    parts = [distill_text.strip("\n")]
    parts += [f"Learned: {delta.learned}"] if delta.learned else []
    parts += [f"Note: {delta.experiment_note}"] if delta.experiment_note else []
    lines = [_op_line(op, change) for op, change in zip(delta.ops, applied.changes, strict=True)]
    wordings = [_old_wordings(applied.head, replaced) for replaced in applied.replaced]
    log = "\n".join(line + old for line, old in zip(lines, wordings, strict=True))
    parts.append(f"Operations:\n{log}" if log else "Operations: none")
    parts += [f"Compacted away:\n{removed_text}"] if removed_text else []
    return HistoryRecord(iteration=iteration, text="\n\n".join(part for part in parts if part))


def _op_line(op: Op, change: dict[str, JSON]) -> str:
    states = [f"{held['status']} {held['confidence']:g}" for held in (change["before"], change["after"]) if held]
    names = f"{', '.join(change['merged'])} into {change['id']}" if "merged" in change else change["id"]
    evidence = "; ".join(render_entry(entry) for entry in cited(op))
    return f"- {op.op} {names} ({' -> '.join(states)}): {' '.join(op.reason.split())} [evidence: {evidence}]"


def _old_wordings(head: WorldModel, replaced: Sequence[Belief]) -> str:
    def reworded(old: Belief) -> bool:
        new = head.find(old.id)
        return new is None or (new.claim, new.conditions) != (old.claim, old.conditions)

    return "".join(f"\n  was: {render_belief(old)}" for old in replaced if reworded(old))


def check_append_only(
    old: str | Document | Sequence[HistoryRecord], new: str | Document | Sequence[HistoryRecord]
) -> None:
    """Raises DocumentError when a record of `old` is absent from `new`, altered, or not in its place."""
    for number, (before, after) in enumerate(zip_longest(_records(old), _records(new)), 1):
        if before is None or before == after:
            continue
        if after is None:
            raise DocumentError(f"HISTORY only grows: record {number}, {before.heading!r}, is gone")
        raise DocumentError(
            f"HISTORY only grows: record {number}, {before.heading!r}, was changed; now {after.heading!r}"
        )


def _records(given: str | Document | Sequence[HistoryRecord]) -> Sequence[HistoryRecord]:
    if isinstance(given, str):
        return parse_document(given).history
    return given.history if isinstance(given, Document) else given


def lint(document: Document) -> list[str]:
    """What is wrong in a document although it can be read, as sentences; nothing in a new one or after `apply`."""
    head = document.head
    counts = Counter(belief.id for belief in head.beliefs)
    found = [f"belief id {name!r} stands {count} times" for name, count in counts.items() if count > 1]
    found += [f"belief id {name!r} is in use and retired" for name in counts if name in head.retired]
    for belief in head.beliefs:
        found += strains(belief)
        entries = (*belief.evidence_for, *belief.evidence_against)
        found += [] if entries or belief.origin == "human" else [f"{belief.id!r} has no evidence"]
        found += [
            f"{belief.id!r}: evidence {e.path!r} lies outside of the run" for e in entries if leaves_the_run(e.path)
        ]
    for number, experiment in enumerate(head.experiments, head.folded + 1):
        unknown = [name for name in experiment.beliefs if name not in head.used_ids]
        found += [f"experiment {number} names belief {name!r}, which there never was" for name in unknown]
    return found
