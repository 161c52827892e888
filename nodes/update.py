"""update: correct the beliefs that the outcome addresses, one by one, all or none (Eq. 5, Calibrate and Apply).

After the baseline this is ConstructBeliefs. After an iteration without a candidate, or a refused update, the HEAD
stays byte-identical; HISTORY grows by a record in every case.
"""

from __future__ import annotations

from functools import partial
from typing import cast

from pydantic import BaseModel

from bco_graph.calibration import Computed, touched_beliefs
from bco_graph.distill import distill_of, render_distill
from bco_graph.document import draw_document
from bco_graph.prediction import Prediction
from bco_graph.runtime import RunContext
from bco_graph.state import JSON, BCOState, UpdateUpdate, candidate_id
from bco_graph.steps import StepRecord, perform
from bco_graph.world_model import Delta, Experiment, WorldModel, apply, compact, history_record, record_experiment


async def update(state: BCOState, *, run: RunContext) -> UpdateUpdate:
    iteration = state["outcome"]["iteration"]
    head = WorldModel.from_json(state["world_model"]) if "world_model" in state else WorldModel()
    done = run.receipts.step(iteration, "document")
    if done is None:
        done = await _document(state, run, iteration, head)
        run.receipts.add_step(iteration, "document", done)
        run.events.emit("beliefs", iteration, changes=done["changes"])
    draw_document(run)
    return {"world_model": done["head"]}


async def _document(state: BCOState, run: RunContext, iteration: int, head: WorldModel) -> dict[str, JSON]:
    """The new HEAD with the record that HISTORY gets; the same HEAD where there is nothing to learn."""
    if failure := state["outcome"]["failure"]:
        text = f"No candidate: step {failure['step']} failed ({failure['cause']}): {'; '.join(failure['reasons'])}"
        return {"head": head.to_json(), "changes": [], "history": f"### {candidate_id(iteration)}\n{text}\n"}
    graded = iteration > 0
    distill = _distill(state, run) if graded else ""
    touched = _touched(state) if graded else None
    record = await _ask(run, iteration, head, distill, touched)
    if record["result"] is None:
        reasons = record["failure"]["reasons"] if record["failure"] else []
        refused = f"Update refused, the beliefs stay as they were: {'; '.join(reasons)}\n"
        changed: dict[str, JSON] = {"head": head.to_json(), "changes": [], "history": distill + "\n" + refused}
    else:
        changed = record["result"]
    return _close(state, run, changed, graded=graded)


async def _ask(
    run: RunContext, iteration: int, head: WorldModel, distill: str, touched: frozenset[str] | None
) -> StepRecord:
    fields = {"document_path": run.evidence.document or ""}
    accept = partial(_accept, run, iteration, head, distill, touched)
    if touched is None:
        return await perform(run, "update", iteration, schema=Delta, accept=accept, prompt="step_construct", **fields)
    named = ", ".join(sorted(touched)) or "none: this outcome says nothing about any belief"
    return await perform(run, "update", iteration, schema=Delta, accept=accept, grade=distill, touched=named, **fields)


def _accept(
    run: RunContext, iteration: int, head: WorldModel, distill: str, touched: frozenset[str] | None, given: BaseModel
) -> dict[str, JSON]:
    delta = cast(Delta, given)
    applied = apply(head, delta, iteration=iteration, touched=touched, evidence_exists=run.evidence.has)
    fitted = compact(applied.head, run.config.world_model.token_budget, keep_ids=frozenset())
    history = history_record(iteration, applied, delta, distill).text
    removed = f"\nCompacted away:\n{fitted.removed_text}\n" if fitted.removed_text else ""
    return {
        "head": fitted.head.to_json(), "changes": list(applied.changes), "history": history + removed,
        "note": delta.experiment_note,
    }  # fmt: skip


def _close(state: BCOState, run: RunContext, changed: dict[str, JSON], *, graded: bool) -> dict[str, JSON]:
    """Add the experiment of a graded iteration: which edit probed which belief, with what verdict."""
    head = WorldModel.from_json(changed["head"])
    if graded and state["proposal"]["beliefs"]:
        proposal, verdict = state["proposal"], state["grade"]["verdict"]
        experiment = Experiment(
            beliefs=tuple(proposal["beliefs"]), candidate=state["grade"]["candidate"],
            edit=" ".join(f"{proposal['name']}: {proposal['mechanism']}".split())[:400], verdict=verdict,
            note=changed.get("note", ""),
        )  # fmt: skip
        head = record_experiment(head, experiment)
    fitted = compact(head, run.config.world_model.token_budget, keep_ids=frozenset())
    removed = f"\nCompacted away:\n{fitted.removed_text}\n" if fitted.removed_text else ""
    return {
        "head": fitted.head.to_json(), "changes": changed["changes"], "history": changed["history"] + removed,
    }  # fmt: skip


def _distill(state: BCOState, run: RunContext) -> str:
    prediction = Prediction.from_json(state["prediction"]["content"])
    computed = Computed.model_validate(state["grade"]["computed"])
    return render_distill(distill_of(prediction, computed, state["grade"], grading=run.config.grading))


def _touched(state: BCOState) -> frozenset[str]:
    prediction = Prediction.from_json(state["prediction"]["content"])
    return frozenset(touched_beliefs(prediction, state["grade"]["verdict"]))
