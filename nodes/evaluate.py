"""evaluate: make the staged edit a candidate and measure it; the first time, the untouched baseline.

An iteration whose edit or prediction failed has no candidate: it is recorded as such, and nothing is spent on it.
"""

from __future__ import annotations

from typing import cast

from bco_graph.errors import RunError
from bco_graph.evaluation.service import no_outcome, sum_up
from bco_graph.records import best_of, candidate_records
from bco_graph.runtime import RunContext
from bco_graph.state import (
    BCOState,
    CandidateSummary,
    EvaluateUpdate,
    Failure,
    Outcome,
    StopReason,
    candidate_id,
)


async def evaluate(state: BCOState, *, run: RunContext) -> EvaluateUpdate:
    first = "outcome" not in state
    iteration = 0 if first else state["iteration"] + 1
    if done := run.receipts.step(iteration, "evaluate"):
        outcome = cast(Outcome, done)
    else:
        outcome = await (_baseline(run) if first else _candidate(state, iteration, run))
        run.receipts.add_step(iteration, "evaluate", dict(outcome))
    run.evidence.write_tables(run.tasks, candidate_records(run.receipts))
    standing = best_of(run.receipts, run.config.evaluation.coverage_floor)
    update = EvaluateUpdate(
        iteration=iteration, stop=_stop(run, iteration), outcome=outcome, candidates=_summaries(outcome), best=standing
    )
    run.events.emit("candidate", **outcome, best=standing["id"] if standing else None)
    run.events.emit("spend", iteration, totals=run.ledger.totals())
    return update


async def _baseline(run: RunContext) -> Outcome:
    tree = run.candidates.stage(run.initial_scaffold)
    candidate = run.candidates.admit(0, tree, None)
    run.evidence.write_baseline(tree)
    run.reuse_baseline(tree)
    outcome = await _measure(run, 0, candidate, None, tree)
    if outcome["mean"] is None:
        raise RunError(_dead_baseline(run))
    return outcome


async def _candidate(state: BCOState, iteration: int, run: RunContext) -> Outcome:
    if failure := _failure(state, iteration):
        return no_outcome(iteration, failure)
    proposal = state["proposal"]
    candidate = run.candidates.admit(iteration, proposal["tree"], proposal["parent"])
    outcome = await _measure(run, iteration, candidate, proposal["parent"], proposal["tree"])
    if run.suite.interface.must_call_target and not any(row.calls for row in run.receipts.results("train", candidate)):
        reason = f"{candidate} answered without ever calling the target: it is no scaffold around the model"
        return no_outcome(iteration, Failure(step="evaluate", cause="checks", reasons=[reason]))
    return outcome


async def _measure(run: RunContext, iteration: int, candidate: str, parent: str | None, tree: str) -> Outcome:
    with run.source(tree) as source:
        rows = await run.evaluator.evaluate(
            "train", candidate, source, run.tasks,
            iteration=iteration, keep_trace=lambda trace: run.evidence.write_trace(iteration, trace),
        )  # fmt: skip
    outcome = sum_up(iteration, candidate, parent, rows)
    run.evidence.write_outcome(iteration, dict(outcome), rows)
    return outcome


def _failure(state: BCOState, iteration: int) -> Failure | None:
    """Why this iteration has no candidate; the prediction counts only where it is of this iteration."""
    if failure := state["proposal"]["failure"]:
        return failure
    prediction = state.get("prediction")
    return prediction["failure"] if prediction and prediction["iteration"] == iteration else None


def _stop(run: RunContext, iteration: int) -> StopReason | None:
    outcomes = [record for _, _, record in run.receipts.steps("evaluate")]
    failed = 0
    while failed < len(outcomes) and outcomes[-1 - failed]["failure"]:
        failed += 1
    budget = bool(outcomes[-1]["failure"]) and outcomes[-1]["failure"]["cause"] == "budget"
    if budget or run.ledger.exhausted():
        return "budget"
    if failed >= run.config.max_failures:
        return "failures"
    return "iterations" if iteration >= run.config.iterations else None


def _summaries(outcome: Outcome) -> list[CandidateSummary]:
    if outcome["candidate"] is None:
        return []
    return [
        CandidateSummary(
            id=outcome["candidate"], parent=outcome["parent"], mean=outcome["mean"], coverage=outcome["coverage"]
        )
    ]


def _dead_baseline(run: RunContext) -> str:
    rows = run.receipts.results("train", candidate_id(0))
    notes = sorted({row.note or row.error for row in rows})
    return (
        f"the baseline has no real result on any of its {len(rows)} tasks ({'; '.join(notes)[:500]}): nothing can be "
        "improved on this. `bco doctor CONFIG` checks the models; `bco resume RUN` tries again"
    )
