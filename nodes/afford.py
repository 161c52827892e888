"""afford: before an evaluation that is expected to pass a limit of `ask`, a person says whether it is worth it."""

from __future__ import annotations

from typing import cast

from bco_graph.asking import AffordQuestion, AffordReply, ask, recorded_reply, rejection, taken, untaken
from bco_graph.config import Ask
from bco_graph.errors import SubmissionRefused
from bco_graph.reserve import Cost, evaluation_cost
from bco_graph.runtime import RunContext
from bco_graph.state import JSON, BCOState, DecideUpdate, Proposal

WITHIN: dict[str, JSON] = {"decision": "within", "reason": "", "by": "", "failure": None}
"""On record where no limit is passed, and nobody was asked."""


async def afford(state: BCOState, *, run: RunContext) -> DecideUpdate:
    proposal = state["proposal"]
    iteration = proposal["iteration"]
    prediction = state.get("prediction")
    if prediction and prediction["iteration"] == iteration and prediction["failure"]:
        return {"refused_reply": []}  # nothing will be evaluated
    answer = run.receipts.step(iteration, "afford")
    if answer is None:
        task_runs = len(run.tasks) * run.config.evaluation.repeats
        expected = evaluation_cost(run.receipts, run.ledger.totals().get("target", {}), task_runs)
        try:
            # A replay pays less than the run that it replays; where that asked, this gives the same reply.
            asks = passes(expected, run.config.ask) or recorded_reply(run, "afford", iteration) is not None
            answer = _ask(state, run, task_runs, expected) if asks else WITHIN
        except SubmissionRefused as refused:
            return {"refused_reply": untaken(run, "afford", iteration, refused.reasons)}
        taken(run, "afford", iteration, answer)
    if answer["failure"] is not None:
        proposal = cast(Proposal, {**proposal, "failure": answer["failure"]})
    return {"proposal": proposal, "refused_reply": []}


def passes(expected: Cost, limits: Ask) -> bool:
    """Whether an evaluation is expected to pass a limit; with no price known, it passes one in USD."""
    calls, usd = limits.evaluation_calls, limits.evaluation_usd
    dear = usd is not None and (expected.usd is None or expected.usd > usd)
    return dear or (calls is not None and expected.calls > calls)


def _ask(state: BCOState, run: RunContext, task_runs: int, expected: Cost) -> dict[str, JSON]:
    proposal = state["proposal"]
    reply = ask(
        run, state, AffordQuestion, AffordReply,
        iteration=proposal["iteration"], proposal=proposal, task_runs=task_runs, expected=expected,
        limits=run.config.ask, spent=run.ledger.totals(),
    )  # fmt: skip
    failure = rejection("afford", reply.reason) if reply.decision == "reject" else None
    return {**reply.model_dump(mode="json"), "failure": failure}
