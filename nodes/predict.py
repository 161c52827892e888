"""predict: stake the beliefs on numbers, sealed before the candidate exists (Algorithm 1, Predict)."""

from __future__ import annotations

from functools import partial
from typing import cast

from pydantic import BaseModel

from bco_graph.errors import SubmissionRefused
from bco_graph.prediction import build_prediction, check_prediction, render_prediction, seal
from bco_graph.records import cut
from bco_graph.runtime import RunContext
from bco_graph.state import JSON, BCOState, PredictUpdate, Proposal, SealedPrediction, candidate_id
from bco_graph.steps import perform
from bco_graph.submissions import PredictSubmission
from bco_graph.world_model import WorldModel

DIFF_CHARACTERS = 20_000
"""Of the edit's diff in the instructions; the whole of it is `diff.patch` in the iteration's folder."""


async def predict(state: BCOState, *, run: RunContext) -> PredictUpdate:
    proposal = state["proposal"]
    iteration = proposal["iteration"]
    world_model = run.document.head(state["world_model"]["iteration"])
    patch = run.candidates.diff(run.candidates.tree(proposal["parent"]), proposal["tree"])
    where = f"iterations/{candidate_id(iteration)}/diff.patch"
    record = await perform(
        run, "predict", iteration,
        schema=PredictSubmission, accept=partial(_accept, run, proposal, world_model), parent=proposal["parent"],
        diff=cut(patch, DIFF_CHARACTERS, where), task_types=_types(run), beliefs=_claims(world_model),
    )  # fmt: skip
    failure = record["failure"]
    if record["result"] is None:
        return {"prediction": SealedPrediction(iteration=iteration, digest="", content={}, failure=failure)}
    run.evidence.write_text(iteration, "prediction.md", record["result"]["text"])
    sealed = SealedPrediction(
        iteration=iteration, digest=record["result"]["digest"], content=record["result"]["content"], failure=None
    )
    content = sealed["content"]
    run.events.emit(
        "prediction", iteration, digest=sealed["digest"], mode=content["mode"], beliefs=content["beliefs"],
        confidence=content["confidence"], **content["subset"],
    )  # fmt: skip
    return {"prediction": sealed}


def _accept(run: RunContext, proposal: Proposal, world_model: WorldModel, submission: BaseModel) -> dict[str, JSON]:
    attempts = run.records.attempts_on(proposal["failure_mode"])
    prediction = build_prediction(proposal, cast(PredictSubmission, submission), attempts=attempts)
    reasons = check_prediction(
        prediction,
        task_ids=[task.id for task in run.tasks],
        types=sorted({task.type for task in run.tasks}),
        belief_ids=[belief.id for belief in world_model.beliefs],
        stable_tasks=run.records.stable_tasks(proposal["parent"], before=proposal["iteration"]),
        attempts=attempts,
    )
    if reasons:
        raise SubmissionRefused(reasons)
    return {"content": prediction.to_json(), "digest": seal(prediction), "text": render_prediction(prediction)}


def _types(run: RunContext) -> str:
    counts: dict[str, int] = {}
    for task in run.tasks:
        counts[task.type] = counts.get(task.type, 0) + 1
    return "\n".join(f"- {name}: {count} tasks" for name, count in sorted(counts.items()))


def _claims(world_model: WorldModel) -> str:
    lines = [f"- {b.id} ({b.status}, confidence {b.confidence:g}): {b.claim}" for b in world_model.beliefs]
    return "\n".join(lines) or "(none)"
