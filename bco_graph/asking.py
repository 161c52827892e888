"""Asking a person: what is asked (the payload of LangGraph's `interrupt`) and what may be replied, as models.

A node that asks stops the graph; whoever resumes it gives the reply, an object or JSON text, which is checked against
the form and then against the run. One that is not taken changes nothing: the node ends with the reasons in
`refused_reply`, runs again, and asks the same with them. One that was taken is a step in the receipts: after a kill
nobody is asked twice. Forms and replies: docs/ASK.md.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Literal, Self, TypeVar

from pydantic import BaseModel, Field, ValidationError, model_validator

from bco_graph.config import Ask
from bco_graph.errors import SubmissionRefused
from bco_graph.proposers.intake import explain
from bco_graph.recorded import Recorded
from bco_graph.redaction import Redactor
from bco_graph.reserve import Cost
from bco_graph.runtime import RunContext
from bco_graph.state import JSON, REJECTED, AskName, BCOState, Failure
from bco_graph.strict_json import read_object
from bco_graph.submissions import Submission
from bco_graph.world_model import Belief, HumanChange
from bco_graph.world_model.people import Person, Reason


class Question(BaseModel):
    """What every question holds."""

    step: AskName
    iteration: int
    workspace: str
    schema_: dict[str, JSON] = Field(alias="schema", description="JSON schema of the reply")
    refused: list[str] | None = Field(description="why the last reply was not taken; null the first time")


class ApproveQuestion(Question):
    """Before an edit is predicted and evaluated."""

    step: Literal["approve"] = "approve"
    proposal: dict[str, JSON] = Field(description="`Proposal` of bco_graph.state")
    diff: str = Field(description="against the parent; its middle is cut where it is long")
    diff_file: str


class AffordQuestion(Question):
    """Before an evaluation that is expected to pass a limit of `ask`."""

    step: Literal["afford"] = "afford"
    proposal: dict[str, JSON] = Field(description="`Proposal` of bco_graph.state")
    task_runs: int = Field(description="tasks times repeats")
    expected: Cost
    limits: Ask
    spent: dict[str, JSON] = Field(description="so far, by role")


class ReviewQuestion(Question):
    """After a grade, before the beliefs are updated by it."""

    step: Literal["review"] = "review"
    candidate: str
    verdict: str
    grade: str = Field(description="Markdown, as the proposer sees it")
    beliefs: list[Belief]


class Decision(Submission):
    decision: str
    reason: Reason = Field("", description="of a rejection: the proposer is told")
    by: Person = ""

    @model_validator(mode="after")
    def _rejection_says_why(self) -> Self:
        if self.decision == "reject" and not self.reason:
            raise ValueError("a rejection needs a reason: the proposer is told")
        return self


class ApproveReply(Decision):
    """To `approve`. `edit`: workspace/scaffold/ was changed by hand, and is taken in the place of what was proposed."""

    decision: Literal["approve", "reject", "edit"]


class AffordReply(Decision):
    """To `afford`: the evaluation is made, or the edit is given up."""

    decision: Literal["approve", "reject"]


class ReviewReply(Submission):
    """To `review`: what the person does to the beliefs, in this order; all of it or none."""

    beliefs: list[HumanChange] = Field(default_factory=list)
    by: Person = ""


R = TypeVar("R", bound=BaseModel)


def ask(run: RunContext, state: BCOState, question: type[Question], reply: type[R], **facts: Any) -> R:
    """Stop the graph until somebody replies; a replay gives the recorded reply, once. Raises SubmissionRefused for a
    reply that is not of the form."""
    from langgraph.types import interrupt

    name: AskName = question.model_fields["step"].default
    recorded = recorded_reply(run, name, facts["iteration"])
    if recorded is not None and not state.get("refused_reply"):
        return read_reply(recorded, reply, run.gateway.redactor)
    asked = question.model_validate(
        {
            **facts, "workspace": str(run.evidence.root.resolve()), "schema": reply.model_json_schema(),
            "refused": state.get("refused_reply") or None,
        }
    )  # fmt: skip
    return read_reply(interrupt(asked.model_dump(mode="json", by_alias=True)), reply, run.gateway.redactor)


def recorded_reply(run: RunContext, question: AskName, iteration: int) -> dict[str, JSON] | None:
    """What a person replied in the run that is replayed."""
    proposer = run.proposer
    return proposer.reply(question, iteration, run.evidence.root) if isinstance(proposer, Recorded) else None


def read_reply(given: Any, form: type[R], redactor: Redactor) -> R:
    if isinstance(given, str):
        try:
            given = read_object(given)
        except ValueError as error:
            raise SubmissionRefused([f"the reply is {error}"]) from error
    if not isinstance(given, Mapping):
        raise SubmissionRefused([f"the reply is of type {type(given).__name__}; give an object, or JSON text of one"])
    try:
        return form.model_validate(redactor.plain(dict(given)))
    except ValidationError as error:
        raise SubmissionRefused(explain(error, form)) from error
    except (TypeError, ValueError) as error:
        raise SubmissionRefused([f"the reply is no plain JSON: {error}"]) from error


def asked_before_evaluation(ask: Ask) -> list[AskName]:
    """The questions that an edit has to pass."""
    cost: list[AskName] = ["afford"] if (ask.evaluation_usd, ask.evaluation_calls) != (None, None) else []
    return ["approve", *cost] if ask.edit else cost


def taken(run: RunContext, step: AskName, iteration: int, answer: Mapping[str, JSON]) -> None:
    """Put the reply on record, and tell of it where somebody gave one."""
    run.receipts.add_step(iteration, step, answer)
    if answer["decision"] == "within":
        return
    changes = (answer.get("change") or {}).get("changes", [])
    run.events.emit(
        "decided", iteration, step=step, decision=answer["decision"], reason=answer.get("reason", ""), by=answer["by"],
        changes=changes,
    )  # fmt: skip


def untaken(run: RunContext, step: AskName, iteration: int, reasons: Sequence[str]) -> list[str]:
    """Tell that a reply was not taken; returns the reasons for `refused_reply`."""
    run.events.emit("step_refused", iteration, step=step, reasons=list(reasons))
    return list(reasons)


def rejection(step: AskName, reason: str) -> Failure:
    return Failure(step=step, cause=REJECTED, reasons=[reason])
