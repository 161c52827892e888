"""Add, Revise, Merge, Remove: what the proposer hands in at the update step (paper section 3.3)."""

from __future__ import annotations

from typing import Annotated, Literal, TypeAlias

from pydantic import Field, StringConstraints

from bco_graph.submissions import Text
from bco_graph.world_model.values import BeliefKind, BeliefStatus, Confidence, Evidence, Mass, Prose, Value

Conditions = Annotated[str, StringConstraints(strip_whitespace=True, max_length=20_000)]


class Add(Value):
    """A new belief. The program gives the next free id of its kind unless `id` names one that was never used."""

    op: Literal["add"]
    id: str | None = None
    kind: BeliefKind
    claim: Text
    conditions: Conditions = ""
    confidence: Confidence
    status: BeliefStatus = "hypothesis"
    evidence_for: tuple[Evidence, ...] = ()
    evidence_against: tuple[Evidence, ...] = ()
    mass: Mass = 0
    reason: Text


class Revise(Value):
    """What is given changes, the rest stays. Evidence is added; name again what is there if the change rests on it."""

    op: Literal["revise"]
    id: str
    claim: Text | None = None
    conditions: Conditions | None = None
    confidence: Confidence | None = None
    status: BeliefStatus | None = None
    mass: Mass | None = None
    add_evidence_for: tuple[Evidence, ...] = ()
    add_evidence_against: tuple[Evidence, ...] = ()
    reason: Text


class Merge(Value):
    """Makes one belief of two or more: `into`, or else the first of `ids`, stays.

    It gets the evidence of all and what is given here; its own claim, conditions, confidence and status stand where
    nothing is given, as does the largest mass. `evidence` shows that they say the same; it is kept in HISTORY.
    """

    op: Literal["merge"]
    ids: tuple[str, ...]
    into: str | None = None
    claim: Text | None = None
    conditions: Conditions | None = None
    confidence: Confidence | None = None
    status: BeliefStatus | None = None
    mass: Mass | None = None
    evidence: tuple[Evidence, ...] = ()
    reason: Text


class Remove(Value):
    """Takes out a belief that an earlier update has refuted; HISTORY keeps it, with `evidence`."""

    op: Literal["remove"]
    id: str
    evidence: tuple[Evidence, ...] = ()
    reason: Text


Op: TypeAlias = Annotated[Add | Revise | Merge | Remove, Field(discriminator="op")]


class Delta(Value):
    """What the proposer hands in at the update step; `ops` is empty where nothing was learned about any belief."""

    ops: list[Op]
    experiment_note: Prose = ""
    learned: Prose = ""


def named(op: Op) -> tuple[str, ...]:
    """The ids that an operation names, the one that stays first; none for an Add that leaves its id to the program."""
    match op:
        case Add():
            return (op.id,) if op.id is not None else ()
        case Merge():
            return op.ids if op.into is None else (op.into, *(name for name in op.ids if name != op.into))
        case _:
            return (op.id,)


def cited(op: Op) -> tuple[Evidence, ...]:
    """The evidence that an operation names."""
    match op:
        case Add():
            return op.evidence_for + op.evidence_against
        case Revise():
            return op.add_evidence_for + op.add_evidence_against
        case _:
            return op.evidence
