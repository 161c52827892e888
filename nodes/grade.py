"""grade: hold the sealed prediction against what happened (section 3.3, Listing 3). Numbers are computed here;
the proposer adds the reading."""

from __future__ import annotations

import json
from functools import partial
from typing import cast

from pydantic import BaseModel

from bco_graph.calibration import Computed, differences
from bco_graph.distill import distill_of, render_distill
from bco_graph.errors import SubmissionRefused
from bco_graph.prediction import Prediction, render_prediction
from bco_graph.runtime import RunContext
from bco_graph.state import JSON, BCOState, Grade, GradeUpdate
from bco_graph.steps import perform
from bco_graph.submissions import GradeSubmission

_MISSES = frozenset({"refuted", "inert", "void"})


async def grade(state: BCOState, *, run: RunContext) -> GradeUpdate:
    outcome = state["outcome"]
    iteration, candidate = outcome["iteration"], cast(str, outcome["candidate"])
    prediction = Prediction.from_json(state["prediction"]["content"])
    computed = run.records.computed_grade(
        prediction,
        candidate,
        iteration,
        hits=partial(run.evidence.signature_hits, prediction.live_signature),
        coverage_floor=run.config.evaluation.coverage_floor,
    )
    record = await perform(
        run,
        "grade",
        iteration,
        schema=GradeSubmission,
        accept=partial(_accept, computed, paper=run.config.grading == "paper"),
        parent=prediction.base,
        computed=_shown(run, computed),
        prediction=render_prediction(prediction),
    )
    made = _grade(run, iteration, candidate, computed, record["result"], record["failure"])
    if run.receipts.step(iteration, "graded") is None:
        run.receipts.add_step(iteration, "graded", dict(made))
    run.evidence.write_text(
        iteration, "grade.md", render_distill(distill_of(prediction, computed, made, grading=run.config.grading))
    )
    run.evidence.write_candidates(run.records.candidates())
    run.events.emit(
        "grade", iteration, candidate=candidate, verdict=made["verdict"], cause=made["cause"],
        subset_change=computed.subset_change, losses=len(computed.regressions), bound=prediction.downside_bound,
    )  # fmt: skip
    return {"grade": made}


def _shown(run: RunContext, computed: Computed) -> str:
    """The computed figures for the proposer; in `grading: paper` it works out its own, as the paper's does."""
    if run.config.grading == "paper":
        return "Nothing: work the figures out yourself, from `outcome.json` and `task_score_matrix.csv`."
    return f"```json\n{json.dumps(computed.to_json(), indent=1)}\n```"


def _accept(computed: Computed, submission: BaseModel, *, paper: bool) -> dict[str, JSON]:
    reading = cast(GradeSubmission, submission)
    verdict = reading.verdict if paper else computed.verdict
    if verdict in _MISSES and reading.cause is None:
        raise SubmissionRefused([f"the verdict is {verdict!r}, a miss: `cause` must name one of the four causes"])
    return {"reading": reading.model_dump(mode="json"), "differences": differences(computed, reading.numbers)}


def _grade(
    run: RunContext, iteration: int, candidate: str, computed: Computed, result: dict[str, JSON] | None, failure: JSON
) -> Grade:
    reading = result["reading"] if result else {}
    verdict = reading["verdict"] if run.config.grading == "paper" and reading else computed.verdict
    return Grade(
        iteration=iteration,
        candidate=candidate,
        verdict=verdict,
        cause=reading.get("cause") if verdict in _MISSES else None,
        computed=computed.to_json(),
        reading=reading or None,
        differences=result["differences"] if result else [],
        failure=failure,
    )
