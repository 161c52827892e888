"""Every type of event with its fields: version 1.

The version rises when a field goes or changes its meaning. Types and fields may be added without that, so a reader
passes over what it does not know. Scores, means, shares and confidences are in [0, 1], higher is better; changes are in
[-1, 1]. Money is USD, None where a price is not known.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, Literal, TypeAlias, TypedDict, get_args, get_type_hints

from bco_graph.state import CandidateSummary, Cause, Failure, Method, Mode, OutcomeKind, Split, StopReason, Verdict

EVENT_VERSION = 1

Event: TypeAlias = dict[str, Any]
"""An event as it is written and streamed; `EVENT_TYPES[event["type"]]` says what it holds."""


class Common(TypedDict):
    v: Annotated[int, "version of this schema"]
    at: Annotated[float, "seconds since the epoch"]
    iteration: Annotated[int, "0 is the untouched baseline"]


class RunStarted(Common):
    """The run is begun, or goes on: first of each process that drives it."""

    type: Literal["run_started"]
    name: str
    method: Method
    iterations: Annotated[int, "how many are planned, the baseline not counted"]
    tasks: Annotated[int, "train tasks"]
    target: Annotated[str, "deployment of the frozen model"]
    sandbox: Annotated[str, "how candidates are kept apart; begins with `none` where they are not"]
    folder: Annotated[str, "the run folder"]
    candidates: Annotated[list[CandidateSummary], "those that were evaluated before"]


class NodeStarted(Common):
    """A node of the graph begins."""

    type: Literal["node_started"]
    node: Annotated[
        str, "evaluate, update, propose, predict or grade; approve, afford or review where a person is asked"
    ]


class NodeEnded(Common):
    """A node of the graph gave its update; one that raised, or waits for somebody, has none."""

    type: Literal["node_ended"]
    node: str
    seconds: float


class StepRefused(Common):
    """A submission of the proposer, or a person's reply, was sent back."""

    type: Literal["step_refused"]
    step: Annotated[str, "propose, predict, grade or update; approve, afford or review for a reply"]
    reasons: list[str]


class StepFailed(Common):
    """A step ended without an accepted submission."""

    type: Literal["step_failed"]
    step: str
    cause: Annotated[str, "one word for the kind, such as `refused` or `budget`"]
    reasons: list[str]


class Evaluation(Common):
    """Tasks are run for a candidate from now on."""

    type: Literal["evaluation"]
    candidate: str
    split: Split
    tasks: Annotated[int, "tasks times repeats"]
    done: Annotated[int, "how many have a result already"]


class TaskDone(Common):
    """A task of an evaluation has its result."""

    type: Literal["task_done"]
    candidate: str
    split: Split
    task: str
    repeat: Annotated[int, "from 0"]
    kind: OutcomeKind
    score: Annotated[float | None, "None where the result says nothing about the candidate"]
    seconds: Annotated[float, "what the task took"]
    tokens: Annotated[int, "prompt and completion, of the calls that were paid"]
    usd: float | None
    done: Annotated[int, "how many have a result now"]
    tasks: int


class Candidate(Common):
    """What the iteration's evaluation gave, or why there was none."""

    type: Literal["candidate"]
    candidate: Annotated[str | None, "None where the iteration has none"]
    parent: str | None
    mean: Annotated[float | None, "over real results; None where there are none"]
    coverage: Annotated[float, "share of tasks with a real result"]
    tasks: int
    passed: int
    by_type: Annotated[dict[str, float], "mean by type of task"]
    kinds: Annotated[dict[str, int], "results by kind of outcome"]
    failure: Failure | None
    best: Annotated[str | None, "the best candidate so far, this one included"]


class HeldOut(Common):
    """A candidate's result on the held-out tasks, in its own iteration; told again where it is asked for again."""

    type: Literal["heldout"]
    candidate: str
    mean: Annotated[float | None, "over real results; None where there are none"]
    coverage: Annotated[float, "share of held-out tasks with a real result"]
    tasks: Annotated[int, "tasks times repeats"]
    passed: int
    looks: Annotated[int, "how often the run had looked at held-out tasks by then, this look included"]


class Proposal(Common):
    """An edit is staged."""

    type: Literal["proposal"]
    parent: str
    name: str
    mode: Mode | None
    beliefs: Annotated[list[str], "ids of the beliefs at stake"]
    mechanism: str
    failure_mode: str


class Prediction(Common):
    """The prediction is sealed, before its candidate exists."""

    type: Literal["prediction"]
    digest: Annotated[str, "sha256 of its canonical form"]
    confidence: float
    mode: Mode | None
    beliefs: list[str]
    tasks: Annotated[list[str], "tasks that it is about"]
    types: Annotated[list[str], "types of tasks that it is about"]
    expected: Annotated[float, "change of the mean of its subset"]
    low: float
    high: float


class Grade(Common):
    """The prediction held against what happened; computed, never said by a model (but in `grading: paper`)."""

    type: Literal["grade"]
    candidate: str
    verdict: Verdict
    cause: Annotated[Cause | None, "of a miss"]
    subset_change: Annotated[float | None, "None where no task of the subset can be compared"]
    losses: Annotated[int, "tasks that were right on the parent and are wrong now"]
    bound: Annotated[int, "how many losses the prediction allowed"]


class Held(TypedDict):
    confidence: float
    status: Annotated[str, "hypothesis, confirmed or refuted"]


class _Change(TypedDict):
    iteration: int
    op: Annotated[str, "add, revise, merge or remove; of a person: add, veto, lift, pin or unpin"]
    id: str
    before: Held | None
    after: Held | None


class BeliefChange(_Change, total=False):
    merged: Annotated[list[str], "ids that went into this one; with `merge` only"]
    reason: Annotated[str, "a person's; may be empty"]


class Beliefs(Common):
    """The world model is updated."""

    type: Literal["beliefs"]
    changes: Annotated[list[BeliefChange], "empty where nothing was learned"]


class Decided(Common):
    """A person replied to a question, or changed beliefs between two rounds."""

    type: Literal["decided"]
    step: Annotated[str, "approve, afford or review; believe where nobody asked"]
    decision: Annotated[str, "approve, reject, edit, reviewed or changed"]
    reason: Annotated[str, "of a rejection; else it may be empty"]
    by: Annotated[str, "who, where it was said"]
    changes: Annotated[list[BeliefChange], "what they did to the beliefs"]


class RoleSpend(TypedDict):
    calls: Annotated[int, "made upstream"]
    cache_hits: int
    prompt_tokens: int
    completion_tokens: int
    usd: float | None
    seconds: Annotated[float, "sum over the calls"]


class Spend(Common):
    """What the whole run has spent, after each evaluation."""

    type: Literal["spend"]
    totals: Annotated[dict[str, RoleSpend], "by role"]


class Warned(Common):
    """Something beside the run went wrong; the run goes on."""

    type: Literal["warning"]
    about: Annotated[str, "such as `sink mlflow`"]
    message: str


class Unreadable(Common):
    """Made by a reader of the log in place of a line that a crash tore; never written."""

    type: Literal["unreadable"]
    line: Annotated[int, "from 1"]


class RunEnded(Common):
    """The graph is at its end, or was stopped in order between two nodes."""

    type: Literal["run_ended"]
    stop: Annotated[StopReason | Literal["drained"] | None, "`drained`: stopped in order; it can be resumed"]
    best: str | None
    mean: Annotated[float | None, "of the best, on train tasks: a fit score"]
    baseline: Annotated[float | None, "mean of the untouched scaffold"]


class RunFailed(Common):
    """An error ended the process; the run can be resumed."""

    type: Literal["run_failed"]
    error: Annotated[str, "class of the error"]
    message: str


_ALL: tuple[type[Common], ...] = (
    RunStarted, NodeStarted, NodeEnded, StepRefused, StepFailed, Evaluation, TaskDone, Candidate, HeldOut, Proposal,
    Prediction, Grade, Beliefs, Decided, Spend, Warned, Unreadable, RunEnded, RunFailed,
)  # fmt: skip

EventType = Literal[
    "run_started", "node_started", "node_ended", "step_refused", "step_failed", "evaluation", "task_done", "candidate",
    "heldout", "proposal", "prediction", "grade", "beliefs", "decided", "spend", "warning", "unreadable", "run_ended",
    "run_failed",
]  # fmt: skip

EVENT_TYPES: Mapping[str, type[Common]] = {get_args(get_type_hints(form)["type"])[0]: form for form in _ALL}
"""The form of each type of event, by its name."""
