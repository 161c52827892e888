"""update: correct the beliefs that the outcome addresses, one by one, all or none (Eq. 5, Calibrate and Apply).

After the baseline this is ConstructBeliefs. After an iteration without a candidate the HEAD stays byte-identical; after
a refused update its beliefs do, and the experiment is recorded. HISTORY grows by a record in every case.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import cast

from pydantic import BaseModel

from bco_graph.calibration import touched_beliefs
from bco_graph.distill import distill_text
from bco_graph.document import reference_to
from bco_graph.outside import replay_changes
from bco_graph.prediction import Prediction
from bco_graph.runtime import RunContext
from bco_graph.state import JSON, BCOState, UpdateUpdate, candidate_id
from bco_graph.steps import StepRecord, perform
from bco_graph.world_model import Delta, Experiment, WorldModel, apply, compact, history_record, record_experiment

EDIT_CHARACTERS = 400
"""Of an edit's name and mechanism in an experiment's line."""


async def update(state: BCOState, *, run: RunContext) -> UpdateUpdate:
    iteration = state["outcome"]["iteration"]
    if run.receipts.step(iteration, "document") is None:
        head = run.document.head(state["world_model"]["iteration"]) if "world_model" in state else WorldModel()
        done = await _document(state, run, iteration, head)
        run.receipts.add_step(iteration, "document", done)
        run.events.emit("beliefs", iteration, changes=done["changes"])
    run.write_document()
    reference = reference_to(iteration, run.document.head(iteration))
    replay_changes(run, iteration, before=(iteration + 1, "propose"))
    return {"world_model": reference}


async def _document(state: BCOState, run: RunContext, iteration: int, head: WorldModel) -> dict[str, JSON]:
    """The new HEAD with the record that HISTORY gets; the same HEAD where there is nothing to learn."""
    if failure := state["outcome"]["failure"]:
        text = f"No candidate: step {failure['step']} failed ({failure['cause']}): {'; '.join(failure['reasons'])}"
        return {"head": head.to_json(), "changes": [], "history": f"### {candidate_id(iteration)}\n{text}\n"}
    graded = _Graded.of(state, run, head) if iteration > 0 else None
    record = await _ask(run, iteration, head, graded)
    if record["result"] is not None:
        return record["result"]
    reasons = record["failure"]["reasons"] if record["failure"] else []
    refused = f"Update refused, the beliefs stay as they were: {'; '.join(reasons)}\n"
    history = f"{graded.distill}\n{refused}" if graded else f"### {candidate_id(iteration)}\n{refused}"
    head = record_experiment(head, graded.experiment) if graded and graded.experiment else head
    return {"head": head.to_json(), "changes": [], "history": history}


@dataclass(frozen=True)
class _Graded:
    """What a grade says to the document: its distill block, the beliefs it may move, the experiment it was."""

    distill: str
    touched: frozenset[str]
    experiment: Experiment | None

    @classmethod
    def of(cls, state: BCOState, run: RunContext, head: WorldModel) -> _Graded:
        prediction = Prediction.from_json(state["prediction"]["content"])
        vetoed = {belief.id for belief in head.beliefs if belief.vetoed}
        touched = frozenset(touched_beliefs(prediction, state["grade"]["verdict"])) - vetoed
        distill = distill_text(prediction, state["grade"], grading=run.config.grading)
        return cls(distill, touched, _experiment(state))


def _experiment(state: BCOState) -> Experiment | None:
    """Which edit probed which belief, with what verdict; None for an edit that staked none."""
    proposal, grade = state["proposal"], state["grade"]
    if not proposal["beliefs"]:
        return None
    return Experiment(
        beliefs=tuple(proposal["beliefs"]),
        candidate=grade["candidate"],
        edit=f"{proposal['name']}: {proposal['mechanism']}"[:EDIT_CHARACTERS],
        verdict=grade["verdict"],
    )


async def _ask(run: RunContext, iteration: int, head: WorldModel, graded: _Graded | None) -> StepRecord:
    document = run.evidence.document or ""
    accept = partial(_accept, run, iteration, head, graded)
    if graded is None:
        return await perform(
            run, "update", iteration, schema=Delta, accept=accept, prompt="step_construct", document_path=document
        )
    named = ", ".join(sorted(graded.touched)) or "none: this outcome says nothing about any belief"
    return await perform(
        run, "update", iteration,
        schema=Delta, accept=accept, document_path=document, grade=graded.distill, touched=named,
    )  # fmt: skip


def _accept(
    run: RunContext, iteration: int, head: WorldModel, graded: _Graded | None, given: BaseModel
) -> dict[str, JSON]:
    """The next document: beliefs corrected, the experiment recorded, all within the token budget; or a refusal."""
    delta = cast(Delta, given)
    applied = apply(
        head, delta, iteration=iteration, touched=graded.touched if graded else None, evidence_exists=run.evidence.has
    )
    changed = applied.head
    if graded and graded.experiment:
        changed = record_experiment(changed, graded.experiment.model_copy(update={"note": delta.experiment_note}))
    fitted = compact(changed, run.config.world_model.token_budget, keep_ids=frozenset())
    history = history_record(
        iteration, applied, delta, graded.distill if graded else "", removed_text=fitted.removed_text
    )
    return {"head": fitted.head.to_json(), "changes": list(applied.changes), "history": history.markdown}
