"""propose: choose a parent, design one mechanism-level edit of it, stage it (Algorithm 1, SelectParent and Propose)."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import cast

from pydantic import BaseModel

from bco_graph.config import nearest
from bco_graph.errors import SubmissionRefused
from bco_graph.runtime import RunContext
from bco_graph.signature import signature_fault
from bco_graph.state import JSON, BCOState, Failure, Proposal, ProposeUpdate, candidate_id
from bco_graph.steps import perform
from bco_graph.submissions import ProposeSubmission, ProposeWithBeliefs
from bco_graph.world_model import Belief, wrong_stakes

_SHOWN = ("parent", "name", "mode", "beliefs", "mechanism", "failure_mode")


async def propose(state: BCOState, *, run: RunContext) -> ProposeUpdate:
    iteration = state["iteration"] + 1
    best = state.get("best")
    suggested = best["id"] if best else candidate_id(0)
    run.evidence.open_scaffold(iteration, run.candidates.tree(suggested))
    beliefs = run.document.head(state["world_model"]["iteration"]).beliefs if run.config.method == "bco" else ()
    record = await perform(
        run, "propose", iteration,
        schema=ProposeWithBeliefs if run.config.method == "bco" else ProposeSubmission,
        accept=partial(_accept, run, iteration, beliefs), parent=suggested,
        candidates=_evaluated(run), suggested_parent=suggested,
    )  # fmt: skip
    if record["result"] is None:
        run.evidence.reset_scaffold(run.candidates.tree(suggested))
        return {"proposal": _no_proposal(iteration, suggested, cast(Failure, record["failure"]))}
    proposal = cast(Proposal, {key: record["result"][key] for key in Proposal.__annotations__})
    parent_tree = run.candidates.tree(proposal["parent"])
    run.events.emit("proposal", iteration, **{key: proposal[key] for key in _SHOWN})  # type: ignore[literal-required]
    run.evidence.write_candidate(iteration, record["result"], tree=proposal["tree"], parent_tree=parent_tree)
    return {"proposal": proposal}


def _evaluated(run: RunContext) -> str:
    """The candidates, and the edits that a person rejected before they became any."""
    table = run.records.candidates_table(run.config.evaluation.coverage_floor)
    rejected = "\n".join(run.records.rejections())
    return f"{table}\n\nRejected by a person, with the reason:\n\n{rejected}" if rejected else table


def _accept(run: RunContext, iteration: int, beliefs: Sequence[Belief], submission: BaseModel) -> dict[str, JSON]:
    """The staged proposal, or SubmissionRefused with every reason that was found."""
    edit = cast(ProposeSubmission, submission)
    reasons = _wrong_parent(run, edit.parent)
    if isinstance(edit, ProposeWithBeliefs):
        reasons += _wrong_signature(run, edit)
        reasons += wrong_stakes(beliefs, edit.beliefs)
    tree = stage_scaffold(run, reasons)
    notes = {"notes": run.evidence.notes()} if run.config.method == "notes" else {}
    return {**_proposal(iteration, edit, tree), **notes}


def stage_scaffold(run: RunContext, reasons: Sequence[str] = ()) -> str:
    """Tree of what `scaffold/` holds now. Raises SubmissionRefused with `reasons` and all that speaks against it."""
    if found := [*reasons, *run.check_scaffold(run.evidence.scaffold)]:
        raise SubmissionRefused(found)
    tree = run.candidates.stage(run.evidence.scaffold)
    if twin := _twin(run, tree):
        raise SubmissionRefused([f"scaffold/ is the same as {twin}, which is evaluated already: nothing would be new"])
    return tree


def _wrong_parent(run: RunContext, parent: str) -> list[str]:
    # The store also holds edits that turned out to be no candidate, such as one that never asks the target.
    known = [record["candidate"] for record in run.records.candidates()]
    if parent in known:
        return []
    return [f"parent {parent!r} is no evaluated candidate{nearest(parent, known)}; there are: {', '.join(known)}"]


def _wrong_signature(run: RunContext, edit: ProposeWithBeliefs) -> list[str]:
    """Only this mechanism may leave the mark: it must be searchable, and not stand in the parent's traces already."""
    if fault := signature_fault(edit.live_signature):
        return [fault]
    hits = run.evidence.signature_hits(edit.live_signature, edit.parent)
    if hits is None:
        return [f"live_signature {edit.live_signature!r} takes too long to search for: give a literal"]
    if hits:
        return [f"live_signature {edit.live_signature!r} stands in {hits} trace(s) of {edit.parent} already"]
    return []


def _twin(run: RunContext, tree: str) -> str | None:
    return next((name for name, known in run.candidates.trees().items() if known == tree), None)


def _proposal(iteration: int, edit: ProposeSubmission, tree: str) -> Proposal:
    staked = edit if isinstance(edit, ProposeWithBeliefs) else None
    return Proposal(
        iteration=iteration, parent=edit.parent, name=edit.name, mode=staked.mode if staked else None,
        beliefs=list(staked.beliefs) if staked else [], failure_mode=staked.failure_mode if staked else "",
        mechanism=edit.mechanism, live_signature=staked.live_signature if staked else "", tree=tree, failure=None,
    )  # fmt: skip


def _no_proposal(iteration: int, parent: str, failure: Failure) -> Proposal:
    return Proposal(
        iteration=iteration, parent=parent, name="", mode=None, beliefs=[], failure_mode="", mechanism="",
        live_signature="", tree="", failure=failure,
    )  # fmt: skip
