"""approve: a person sees the staged edit, and lets it go on, rejects it, or changes it by hand (`ask.edit`)."""

from __future__ import annotations

from typing import cast

from bco_graph.asking import ApproveQuestion, ApproveReply, ask, rejection, taken, untaken
from bco_graph.errors import SubmissionRefused
from bco_graph.nodes.propose import stage_scaffold
from bco_graph.records import cut
from bco_graph.runtime import RunContext
from bco_graph.state import JSON, BCOState, DecideUpdate, Failure, Proposal, candidate_id

DIFF_CHARACTERS = 20_000
"""Of the edit's diff in the question, which every checkpoint of the thread keeps; the whole is a file."""


async def approve(state: BCOState, *, run: RunContext) -> DecideUpdate:
    proposal = state["proposal"]
    iteration = proposal["iteration"]
    answer = run.receipts.step(iteration, "approve")
    if answer is None:
        run.evidence.open_scaffold(iteration, proposal["tree"])
        try:
            answer = _ask(state, run, proposal)
        except SubmissionRefused as refused:
            return {"refused_reply": untaken(run, "approve", iteration, refused.reasons)}
        taken(run, "approve", iteration, answer)
    if answer["tree"] is not None:
        proposal = cast(Proposal, {**proposal, "tree": answer["tree"]})
        parent_tree = run.candidates.tree(proposal["parent"])
        run.evidence.write_candidate(iteration, dict(proposal), tree=proposal["tree"], parent_tree=parent_tree)
    if answer["failure"] is not None:
        proposal = cast(Proposal, {**proposal, "failure": answer["failure"]})
    return {"proposal": proposal, "refused_reply": []}


def _ask(state: BCOState, run: RunContext, proposal: Proposal) -> dict[str, JSON]:
    """The answer as it is recorded: `tree` only where a person changed the edit, `failure` where one rejected it."""
    folder = f"iterations/{candidate_id(proposal['iteration'])}"
    patch = run.candidates.diff(run.candidates.tree(proposal["parent"]), proposal["tree"])
    reply = ask(
        run, state, ApproveQuestion, ApproveReply,
        iteration=proposal["iteration"], proposal=proposal, diff_file=f"{folder}/diff.patch",
        diff=cut(patch, DIFF_CHARACTERS, f"{folder}/diff.patch"),
    )  # fmt: skip
    tree = _changed(run, proposal) if reply.decision == "edit" else None
    failure: Failure | None = rejection("approve", reply.reason) if reply.decision == "reject" else None
    return {**reply.model_dump(mode="json"), "tree": tree, "failure": failure}


def _changed(run: RunContext, proposal: Proposal) -> str:
    tree = stage_scaffold(run)
    if tree == proposal["tree"]:
        raise SubmissionRefused(["scaffold/ is as it was proposed: change it first, or reply with `approve`"])
    return tree
