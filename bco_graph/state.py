"""The state that flows through the graph: plain JSON, one writer per key.

A checkpoint can be read without this package. Numbers are in the units their names say; scores, means and
coverage are in [0, 1], higher is better. Traces never enter the state: rows and sources are referenced by
candidate id and live in the run folder.

key            written by   holds
iteration      evaluate     number of the iteration last evaluated (0 is the untouched baseline)
stop           evaluate     why the run ended, or None while it goes on
outcome        evaluate     aggregate of the iteration's evaluation, or why there was none
best           evaluate     what `selection.rank` says over all candidates
proposal       propose      the staged edit, or why there is none; also approve and afford, for a person: another edit
                            in its place, or a rejection as its failure
prediction     predict      the sealed prediction (method `bco`)
grade          grade        verdict, cause, computed figures, the proposer's reading (method `bco`)
world_model    update       which document of the run folder stands: HEAD and HISTORY lie there (method `bco`); also
                            review, where a person changed it
refused_reply  approve,     why a person's last reply was not taken, so that the same is asked again; empty once one
               afford,      was (only where `ask` asks)
               review

All of it is bounded: nothing here grows with the number of iterations, for a checkpoint holds the whole of it.
"""

from __future__ import annotations

from typing import Any, Literal, NotRequired, TypeAlias, TypedDict

JSON: TypeAlias = Any
"""A value that `json.dumps(..., allow_nan=False)` takes and `json.loads` gives back unchanged."""

Method = Literal["bco", "vanilla", "notes"]
Split = Literal["train", "heldout"]
OutcomeKind = Literal["scored", "no_answer", "timeout", "context_overflow", "infra_error", "ungradeable"]
REAL_OUTCOMES: frozenset[str] = frozenset({"scored", "no_answer", "timeout", "context_overflow"})
"""Outcomes that are results of the scaffold; the others say nothing about it and enter no mean."""

Verdict = Literal["held", "refuted", "inert", "void", "undecided"]
NodeName = Literal["evaluate", "update", "propose", "predict", "grade"]
AskName = Literal["approve", "afford", "review"]
"""Nodes that ask a person; a graph has those that `ask` in the config names."""
Mode = Literal["probe", "act", "refine", "explore"]
Cause = Literal["not_wired", "behaviour_without_score", "surface_without_failure", "belief_wrong"]
StepName = Literal["propose", "predict", "grade", "update"]
StopReason = Literal["iterations", "budget", "failures"]
"""`iterations`: all were run; `budget`: a limit was met; `failures`: too many failed iterations in a row."""


REJECTED = "rejected"
"""Cause of the failure that a person's no to an edit makes."""


class Failure(TypedDict):
    """Why a step gave nothing. `cause` is `StepFailed.cause`, or `checks` for a refused candidate, or `budget`, or
    `rejected` by a person."""

    step: str
    cause: str
    reasons: list[str]


class Proposal(TypedDict):
    """The staged edit of one iteration. With `failure` set, the other text fields are empty."""

    iteration: int
    parent: str
    """Candidate id the edit was made on, such as `iter_002`."""
    name: str
    mode: Mode | None
    beliefs: list[str]
    """Ids of the beliefs at stake (method `bco`), such as `E3`."""
    failure_mode: str
    mechanism: str
    live_signature: str
    """Text that only this mechanism leaves in a trace: a literal, or a regular expression after `re:`."""
    tree: str
    """Git tree of the edited scaffold in the candidate store."""
    failure: Failure | None


class SealedPrediction(TypedDict):
    """The prediction as JSON with the sha256 of its canonical form, taken before the candidate existed."""

    iteration: int
    digest: str
    content: dict[str, JSON]
    failure: Failure | None


class Outcome(TypedDict):
    """What the evaluation of one iteration gave. `candidate` is None where the iteration has none."""

    iteration: int
    candidate: str | None
    parent: str | None
    mean: float | None
    """Mean score over real results; None where there is no real result."""
    coverage: float
    tasks: int
    passed: int
    by_type: dict[str, float]
    kinds: dict[str, int]
    """Count of rows per outcome kind."""
    failure: Failure | None


class Grade(TypedDict):
    """The computed grade with the proposer's reading of it beside."""

    iteration: int
    candidate: str
    verdict: Verdict
    cause: Cause | None
    computed: dict[str, JSON]
    reading: dict[str, JSON] | None
    differences: list[str]
    """Where the proposer's numbers differ from the computed ones; the computed stand."""
    failure: Failure | None


class CandidateSummary(TypedDict):
    """What the command line and the event of a start say of an evaluated candidate; no part of the state."""

    id: str
    parent: str | None
    mean: float | None
    coverage: float


class Best(TypedDict):
    id: str
    mean: float


class WorldModelReference(TypedDict):
    """The HEAD that the update of an iteration left, with how many beliefs and experiments it shows."""

    iteration: int
    beliefs: int
    experiments: int
    head: NotRequired[dict[str, JSON]]
    """Another HEAD, given from outside (`outside.change_world_model`): the next node records it, and goes by it."""


class BCOState(TypedDict, total=False):
    """All keys; extend this class to add your own to a graph that contains ours."""

    iteration: int
    stop: StopReason | None
    outcome: Outcome
    best: Best | None
    proposal: Proposal
    prediction: SealedPrediction
    grade: Grade
    world_model: WorldModelReference
    refused_reply: list[str]


class EvaluateUpdate(TypedDict):
    """An evaluation that a budget cut off gives `stop` alone: its iteration has not been evaluated."""

    iteration: NotRequired[int]
    stop: StopReason | None
    outcome: NotRequired[Outcome]
    best: NotRequired[Best | None]


class ProposeUpdate(TypedDict):
    proposal: Proposal


class PredictUpdate(TypedDict):
    prediction: SealedPrediction


class GradeUpdate(TypedDict):
    grade: Grade


class UpdateUpdate(TypedDict):
    world_model: WorldModelReference


class DecideUpdate(TypedDict):
    """approve and afford."""

    proposal: NotRequired[Proposal]
    refused_reply: list[str]


class ReviewUpdate(TypedDict):
    world_model: NotRequired[WorldModelReference]
    refused_reply: list[str]


def candidate_id(iteration: int) -> str:
    """`iter_007` for 7; past 999 the number simply grows."""
    return f"iter_{iteration:03d}"
