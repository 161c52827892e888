"""evaluate: make the staged edit a candidate and measure it; the first time, the untouched baseline.

An iteration whose edit or prediction failed has no candidate: it is recorded as such, and nothing is spent on it. An
evaluation that a budget cut off below the coverage floor is not over: it is not recorded, the run stops, and a resumed
one makes the missing rows before anything else.
"""

from __future__ import annotations

from typing import cast

from bco_graph.asking import asked_before_evaluation
from bco_graph.errors import ConfigError, RunError
from bco_graph.evaluation.service import OUT_OF_BUDGET, no_outcome, sum_up
from bco_graph.receipts import ResultRow
from bco_graph.runtime import RunContext
from bco_graph.state import BCOState, EvaluateUpdate, Failure, Outcome, StopReason, candidate_id


async def evaluate(state: BCOState, *, run: RunContext) -> EvaluateUpdate:
    first = "iteration" not in state
    iteration = 0 if first else state["iteration"] + 1
    if done := run.receipts.step(iteration, "evaluate"):
        outcome = cast(Outcome, done)
    else:
        made = await (_baseline(run) if first else _candidate(state, iteration, run))
        if made is None:
            return EvaluateUpdate(stop="budget")
        outcome = made
        run.receipts.add_step(iteration, "evaluate", dict(outcome))
    records = run.records.candidates()
    run.evidence.write_scores(run.tasks, [record["candidate"] for record in records])
    run.evidence.write_candidates(records)
    standing = run.records.best(run.config.evaluation.coverage_floor)
    run.keep_for_heldout(standing["id"] if standing else None)
    update = EvaluateUpdate(iteration=iteration, stop=_stop(run, iteration, outcome), outcome=outcome, best=standing)
    run.events.emit("candidate", **outcome, best=standing["id"] if standing else None)
    run.events.emit("spend", iteration, totals=run.ledger.totals())
    return update


async def _baseline(run: RunContext) -> Outcome | None:
    if faults := run.check_scaffold(run.initial_scaffold):
        listed = "\n  ".join(faults)
        raise ConfigError(f"the initial scaffold {str(run.initial_scaffold)!r} cannot be evaluated:\n  {listed}")
    tree = run.candidates.stage(run.initial_scaffold)
    candidate = run.candidates.admit(0, tree, None)
    run.evidence.write_baseline(tree)
    run.reuse_baseline(tree)
    outcome, rows = await _measure(run, 0, candidate, None, tree)
    if _cut_off(run, outcome, rows):
        return None
    if outcome["mean"] is None:
        raise RunError(_dead_baseline(rows))
    return outcome


async def _candidate(state: BCOState, iteration: int, run: RunContext) -> Outcome | None:
    """None where a budget cut it off."""
    if failure := _failure(state, iteration):
        return no_outcome(iteration, failure)
    parent, tree = state["proposal"]["parent"], state["proposal"]["tree"]
    _require_replies(run, iteration)
    candidate = run.candidates.admit(iteration, tree, parent)
    outcome, rows = await _measure(run, iteration, candidate, parent, tree)
    if _cut_off(run, outcome, rows):
        return None
    if run.suite.interface.must_call_target and not any(row.calls for row in rows):
        reason = f"{candidate} answered without ever calling the target: it is no scaffold around the model"
        return no_outcome(iteration, Failure(step="evaluate", cause="checks", reasons=[reason]))
    return outcome


def _require_replies(run: RunContext, iteration: int) -> None:
    """An input where a reply was awaited enters the graph anew, past the question: it is no yes. An evaluation that has
    begun was let go on before."""
    name = candidate_id(iteration)
    for question in asked_before_evaluation(run.config.ask):
        if run.receipts.step(iteration, question) is None and not run.receipts.results("train", name):
            raise RunError(
                f"{name} waits for a person's reply to {question!r}, and an input is none: give the reply by "
                "Command(resume=...) or `bco approve`; on a new thread, {} leads to the question"
            )


async def _measure(
    run: RunContext, iteration: int, candidate: str, parent: str | None, tree: str
) -> tuple[Outcome, list[ResultRow]]:
    rows = await run.measure(
        "train", candidate, tree, run.tasks,
        iteration=iteration, keep_trace=lambda trace: run.evidence.write_trace(iteration, trace),
    )  # fmt: skip
    outcome = sum_up(iteration, candidate, parent, rows)
    run.evidence.write_outcome(iteration, dict(outcome), rows)
    return outcome, rows


def _cut_off(run: RunContext, outcome: Outcome, rows: list[ResultRow]) -> bool:
    floor = run.config.evaluation.coverage_floor
    return outcome["coverage"] < floor and any(row.note == OUT_OF_BUDGET for row in rows)


def _failure(state: BCOState, iteration: int) -> Failure | None:
    """Why this iteration has no candidate; the prediction counts only where it is of this iteration."""
    if failure := state["proposal"]["failure"]:
        return failure
    prediction = state.get("prediction")
    return prediction["failure"] if prediction and prediction["iteration"] == iteration else None


def _stop(run: RunContext, iteration: int, outcome: Outcome) -> StopReason | None:
    failure = outcome["failure"]
    if (failure and failure["cause"] == "budget") or run.ledger.exhausted():
        return "budget"
    if run.records.failed_in_a_row() >= run.config.max_failures:
        return "failures"
    return "iterations" if iteration >= run.config.iterations else None


def _dead_baseline(rows: list[ResultRow]) -> str:
    notes = sorted({row.note or row.error for row in rows})
    return (
        f"the baseline has no real result on any of its {len(rows)} tasks ({'; '.join(notes)[:500]}): nothing can be "
        "improved on this. `bco doctor CONFIG` checks the models; `bco resume RUN` tries again"
    )
