"""review: a person sees the grade, and may add, veto, lift, pin or unpin beliefs before the update (`ask.grade`)."""

from __future__ import annotations

from bco_graph.asking import ReviewQuestion, ReviewReply, ask, taken, untaken
from bco_graph.believing import change_of, record_once
from bco_graph.distill import distill_text
from bco_graph.document import reference_to
from bco_graph.errors import SubmissionRefused
from bco_graph.prediction import Prediction
from bco_graph.runtime import RunContext
from bco_graph.state import JSON, BCOState, ReviewUpdate


async def review(state: BCOState, *, run: RunContext) -> ReviewUpdate:
    iteration, stands = state["grade"]["iteration"], state["world_model"]["iteration"]
    answer = run.receipts.step(iteration, "review")
    if answer is None:
        try:
            answer = _ask(state, run)
        except SubmissionRefused as refused:
            return {"refused_reply": untaken(run, "review", iteration, refused.reasons)}
        taken(run, "review", iteration, answer)
    if answer["change"] is None:
        return {"refused_reply": []}
    record_once(run.receipts, stands, answer["change"])
    run.write_document()
    return {"world_model": reference_to(stands, run.document.head(stands)), "refused_reply": []}


def _ask(state: BCOState, run: RunContext) -> dict[str, JSON]:
    """The answer as it is recorded, with the `change` of the document that it makes, or None."""
    grade, stands = state["grade"], state["world_model"]["iteration"]
    head = run.document.head(stands)
    prediction = Prediction.from_json(state["prediction"]["content"])
    shown = distill_text(prediction, grade, grading=run.config.grading)
    reply = ask(
        run, state, ReviewQuestion, ReviewReply,
        iteration=grade["iteration"], candidate=grade["candidate"], verdict=grade["verdict"], grade=shown,
        beliefs=list(head.beliefs),
    )  # fmt: skip
    change = change_of(
        head, reply.beliefs, iteration=stands, by=reply.by, token_budget=run.config.world_model.token_budget,
        evidence_exists=run.evidence.has,
    )  # fmt: skip
    if change is not None:
        change = {**change, "review": grade["iteration"]}
    return {**reply.model_dump(mode="json"), "decision": "reviewed", "change": change}
