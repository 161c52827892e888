"""One step of a proposer: asked once, recorded once, and never a crash of the run.

A step's record in the receipts is what a node that runs again after a kill returns instead of paying anew.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import TypedDict, cast

from pydantic import BaseModel

from bco_graph import prompts
from bco_graph.errors import BudgetExceeded, StepFailed
from bco_graph.protocols import Step
from bco_graph.receipts import dumps
from bco_graph.runtime import RunContext
from bco_graph.state import JSON, Failure, StepName, candidate_id


class StepRecord(TypedDict):
    """`result` is what the step gave, or None with a `failure`; `submission` is kept for replay."""

    result: dict[str, JSON] | None
    submission: dict[str, JSON] | None
    refusals: list[list[str]]
    trace_reads: int | None
    notes: dict[str, JSON]
    """What the proposer says of its work: turns, tokens, edits applied and refused, exit code, output."""
    raw: str
    failure: Failure | None


async def perform(
    run: RunContext,
    name: StepName,
    iteration: int,
    *,
    schema: type[BaseModel],
    accept: Callable[[BaseModel], dict[str, JSON]],
    prompt: str | None = None,
    **fields: str,
) -> StepRecord:
    """The step's record: from the receipts where it is finished, else by asking the proposer now.

    `prompt` names the instructions' template (`step_<name>` by default), `fields` fill it.
    """
    if done := run.receipts.step(iteration, name):
        return cast(StepRecord, done)
    instructions = prompts.render(
        prompt or f"step_{name}",
        iteration=str(iteration),
        candidate=candidate_id(iteration),
        schema=schema_text(schema),
        **fields,
    )
    redactor = run.gateway.redactor

    def accept_clean(given: BaseModel) -> dict[str, JSON]:
        said = given.model_dump(mode="json")
        clean = redactor.plain(said)
        return accept(given if clean is said else schema.model_validate(clean))

    step = Step(
        name, iteration, run.config.method, run.evidence.root, redactor.known(instructions), schema, accept_clean,
        redact=redactor.known,
    )  # fmt: skip
    record = cast(StepRecord, redactor.plain(await _ask(run, step)))
    _tell(run, step, record)
    run.receipts.add_step(iteration, name, record)
    return record


async def _ask(run: RunContext, step: Step[dict[str, JSON]]) -> StepRecord:
    try:
        result = await run.proposer.perform(step)
    except StepFailed as error:
        return _failed(Failure(step=step.name, cause=error.cause, reasons=error.reasons), error.raw)
    except BudgetExceeded as error:
        return _failed(Failure(step=step.name, cause="budget", reasons=[str(error)]), "")
    return StepRecord(
        result=result.value, submission=result.submission, refusals=[list(r) for r in result.refusals],
        trace_reads=result.trace_reads, notes=dict(result.notes), raw="", failure=None,
    )  # fmt: skip


def _tell(run: RunContext, step: Step[dict[str, JSON]], record: StepRecord) -> None:
    for reasons in record["refusals"]:
        run.events.emit("step_refused", step.iteration, step=step.name, reasons=reasons)
    if failure := record["failure"]:
        run.events.emit("step_failed", step.iteration, **failure)


def _failed(failure: Failure, raw: str) -> StepRecord:
    return StepRecord(result=None, submission=None, refusals=[], trace_reads=None, notes={}, raw=raw, failure=failure)


@functools.cache
def schema_text(schema: type[BaseModel]) -> str:
    """The JSON schema of a submission, as it is shown to proposers: the form alone, what it means the prompts say."""
    return dumps(_form(schema.model_json_schema()))


def _form(schema: JSON) -> JSON:
    if isinstance(schema, list):
        return [_form(item) for item in schema]
    if not isinstance(schema, dict):
        return schema
    # Below `properties` and `$defs` keys are names of ours, not of JSON Schema.
    return {
        key: {name: _form(inner) for name, inner in value.items()} if key in ("properties", "$defs") else _form(value)
        for key, value in schema.items()
        if not (key in ("title", "description") and isinstance(value, str))
    }
