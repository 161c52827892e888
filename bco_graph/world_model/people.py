"""What people do to the beliefs: add, veto, lift a veto, pin, unpin; all of a list or none.

A person's word is a source of its own, so that what they add needs no evidence; all else holds as for the proposer:
ids are never used twice, confidence lies in [0, 1], paths lead into the run.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Annotated, Literal, Self, get_args

from pydantic import Field, StringConstraints, model_validator

from bco_graph.errors import SubmissionRefused
from bco_graph.sections import nearest
from bco_graph.state import JSON, candidate_id
from bco_graph.submissions import Text
from bco_graph.world_model.delta import (
    EVEN,
    Applied,
    assigned_id,
    held,
    new_belief,
    new_id_problems,
    path_problems,
    strains,
    unknown,
)
from bco_graph.world_model.ops import Add, Conditions
from bco_graph.world_model.text import render_belief
from bco_graph.world_model.values import (
    Belief,
    BeliefKind,
    BeliefStatus,
    Confidence,
    Evidence,
    HistoryRecord,
    Mass,
    Value,
    WorldModel,
)

Person = Annotated[str, StringConstraints(strip_whitespace=True, max_length=200, pattern=r"^[^\r\n]*$")]
"""A name, or whatever else tells people apart; empty: not said."""
Reason = Annotated[str, StringConstraints(strip_whitespace=True, max_length=20_000)]
Act = Literal["add", "veto", "lift", "pin", "unpin"]
ACTS: tuple[Act, ...] = get_args(Act)


class HumanBelief(Value):
    """A belief in a person's own words; it is marked as human, and graded like any other."""

    id: str | None = None
    """None: the next free one of its kind."""
    kind: BeliefKind = "execution"
    claim: Text
    conditions: Conditions = ""
    confidence: Confidence
    status: BeliefStatus = "hypothesis"
    evidence_for: tuple[Evidence, ...] = ()
    evidence_against: tuple[Evidence, ...] = ()
    mass: Mass = 0
    pinned: bool = False


class HumanChange(Value):
    """Exactly one of `add`, `veto`, `lift`, `pin` and `unpin`, all but the first with a belief's id. A veto wants a
    reason."""

    add: HumanBelief | None = None
    veto: str | None = Field(None, description="refuted by a person: no edit may stake it, no operation changes it")
    lift: str | None = Field(None, description="takes a veto back: the belief is a hypothesis again")
    pin: str | None = Field(None, description="it is not merged away or removed, and its claim stays")
    unpin: str | None = None
    reason: Reason = ""

    @model_validator(mode="after")
    def _says_one_thing(self) -> Self:
        given = [act for act in ACTS if getattr(self, act) is not None]
        if len(given) != 1:
            said = f"here are {' and '.join(given)}" if given else "here is none"
            raise ValueError(f"one of {', '.join(ACTS)} is expected, and {said}")
        if given == ["veto"] and not self.reason:
            raise ValueError("a veto needs a reason: HISTORY keeps it for whoever thinks of the same")
        return self

    @property
    def act(self) -> Act:
        return next(act for act in ACTS if getattr(self, act) is not None)


def apply_human(
    head: WorldModel, changes: Sequence[HumanChange], *, iteration: int, evidence_exists: Callable[[str], bool]
) -> Applied:
    """The HEAD after all of `changes`, one after the other; `head` itself is not changed. Confidence of what is vetoed
    falls to 0.5 where it was above. Raises SubmissionRefused with every problem of every change."""
    reasons: list[str] = []
    made: list[dict[str, JSON]] = []
    replaced: list[tuple[Belief, ...]] = []
    for number, change in enumerate(changes, 1):
        old, new, problems = _changed(head, change, evidence_exists)
        reasons += [f"change {number} ({change.act}): {problem}" for problem in problems]
        if new is None or problems:
            continue
        beliefs = [new if belief is old else belief for belief in head.beliefs] + ([] if old else [new])
        head = head.model_copy(update={"beliefs": tuple(beliefs)})
        was = () if old is None else (old,)
        made.append(
            {"iteration": iteration, "op": change.act, "id": new.id, "before": held(was), "after": held((new,)),
             "reason": change.reason}
        )  # fmt: skip
        replaced.append(was)
    if reasons:
        raise SubmissionRefused(reasons)
    return Applied(head, made, replaced)


def _changed(
    head: WorldModel, change: HumanChange, evidence_exists: Callable[[str], bool]
) -> tuple[Belief | None, Belief | None, list[str]]:
    """The belief before and after, with what is wrong."""
    if change.add is not None:
        return None, *_added(head, change.add, evidence_exists)
    name = getattr(change, change.act)
    old = head.find(name)
    if old is None:
        return None, None, [unknown(head, name)]
    wanted = {"veto": ("vetoed", True), "lift": ("vetoed", False), "pin": ("pinned", True), "unpin": ("pinned", False)}
    mark, on = wanted[change.act]
    if getattr(old, mark) is on:
        return old, None, [f"{name!r} is {mark} already" if on else f"{name!r} is not {mark}"]
    update: dict[str, JSON] = {mark: on}
    if change.act == "veto":
        update |= {"status": "refuted", "confidence": min(old.confidence, EVEN)}
    elif change.act == "lift":
        update["status"] = "hypothesis"
    return old, old.model_copy(update=update), []


def _added(
    head: WorldModel, given: HumanBelief, evidence_exists: Callable[[str], bool]
) -> tuple[Belief | None, list[str]]:
    op = Add(op="add", reason="a person's word", **given.model_dump(exclude={"pinned"}))
    name = assigned_id(head, op)
    problems = new_id_problems(head, op.kind, name)
    problems += path_problems(op.evidence_for + op.evidence_against, evidence_exists)
    if problems:
        return None, problems
    belief = new_belief(op, name).model_copy(update={"origin": "human", "pinned": given.pinned})
    return belief, strains(belief)


def human_record(
    iteration: int, applied: Applied, changes: Iterable[HumanChange], *, by: str, removed_text: str = ""
) -> HistoryRecord:
    """What HISTORY keeps of it: a line a change, what the belief was beneath. `by` may be empty."""
    lines = [
        _line(made, change, old) for made, change, old in zip(applied.changes, changes, applied.replaced, strict=True)
    ]
    said = f" ({by})" if by else ""
    gone = f"\n\nCompacted away:\n{removed_text}" if removed_text else ""
    heading = f"### {candidate_id(iteration)} changed by a person{said}"
    return HistoryRecord(iteration=iteration, heading=heading, text="\n".join(lines) + gone)


def _line(made: dict[str, JSON], change: HumanChange, old: tuple[Belief, ...]) -> str:
    states = " -> ".join(f"{at['status']} {at['confidence']:g}" for at in (made["before"], made["after"]) if at)
    why = f": {' '.join(change.reason.split())}" if change.reason else ""
    return f"- {change.act} {made['id']} ({states}){why}" + "".join(f"\n  was: {render_belief(was)}" for was in old)


def wrong_stakes(beliefs: Sequence[Belief], staked: Sequence[str]) -> list[str]:
    """Why an edit may not stake some beliefs: they are unknown, or a person has vetoed them."""
    known = {belief.id: belief for belief in beliefs}
    unknown = [name for name in staked if name not in known]
    reasons = [f"belief {name!r} is not in the world model{nearest(name, known)}" for name in unknown]
    vetoed = [name for name in staked if name in known and known[name].vetoed]
    return reasons + [
        f"belief {name!r} was vetoed by a person: no edit may stake it; HISTORY says why" for name in vetoed
    ]
