"""What a delta does to the HEAD (paper section 3.3): all of its operations or none.

A refusal lists every problem of every operation. Each belief is named by at most one operation, so that their order
does not matter.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import dataclass
from pathlib import PurePosixPath, PureWindowsPath
from typing import Any

from bco_graph.errors import SubmissionRefused
from bco_graph.state import JSON
from bco_graph.world_model.ops import Add, Delta, Merge, Op, Remove, Revise, cited, named
from bco_graph.world_model.values import LETTERS, Belief, BeliefKind, Evidence, WorldModel

EVEN = 0.5
"""A refuted belief is held with at most this confidence, a confirmed one with at least this."""


@dataclass(frozen=True, slots=True)
class Applied:
    """`changes` and `replaced` have one entry an operation, in order.

    A change is plain JSON: iteration, op, id, `before` and `after` (confidence and status; None where there is no such
    belief), for a merge also `merged`, the ids that went. `replaced` holds the beliefs as they were before it.
    """

    head: WorldModel
    changes: list[dict[str, JSON]]
    replaced: list[tuple[Belief, ...]]


def apply(
    head: WorldModel,
    delta: Delta,
    *,
    iteration: int,
    touched: Collection[str] | None,
    evidence_exists: Callable[[str], bool],
) -> Applied:
    """The HEAD after all of `delta`; `head` itself is not changed. Beliefs that no operation names stay as they are.

    `touched` are the ids that the outcome addressed; no other belief may change (None: all may, for the baseline).
    What a person vetoed may not change either, and what one pinned stays, with its claim and conditions.
    `evidence_exists` is asked about each path that stays inside the run. Raises SubmissionRefused with every problem of
    every operation.
    """
    ids = _assigned(head, delta)
    counts = Counter(name for op in delta.ops for name in set(named(op)))
    reasons = []
    for number, (op, name) in enumerate(zip(delta.ops, ids, strict=True), 1):
        problems = _name_problems(head, op) or [
            *_reach_problems(head, op, touched), *_kept_problems(head, op, name), *_result_problems(head, op, name)
        ]  # fmt: skip
        problems += [
            f"{repeated!r} is named by another operation too: say all about a belief in one"
            for repeated in dict.fromkeys(named(op))
            if counts[repeated] > 1
        ]
        problems += _evidence_problems(op, evidence_exists)
        reasons += [f"operation {number} ({op.op}): {problem}" for problem in problems]
    if reasons:
        raise SubmissionRefused(reasons)
    return _carry_out(head, delta, ids, iteration)


def _assigned(head: WorldModel, delta: Delta) -> list[str]:
    """The id that each operation leaves a belief under, or takes one from."""
    given = {op.id for op in delta.ops if isinstance(op, Add) and op.id is not None and _well_formed(op.id)}
    taken = set(head.used_ids) | given
    ids = []
    for op in delta.ops:
        if names := named(op):
            ids.append(names[0])
        elif isinstance(op, Add):
            letter = LETTERS[op.kind]
            ids.append(f"{letter}{1 + max((int(name[1:]) for name in taken if name[0] == letter), default=0)}")
            taken.add(ids[-1])
        else:
            ids.append("")
    return ids


def _well_formed(name: str) -> bool:
    return re.fullmatch("[EV][1-9][0-9]{0,4}", name) is not None


def _name_problems(head: WorldModel, op: Op) -> list[str]:
    names = named(op)
    if isinstance(op, Add):
        return [problem for name in names for problem in new_id_problems(head, op.kind, name)]
    problems = [unknown(head, name) for name in dict.fromkeys(names) if not head.find(name)]
    if isinstance(op, Merge):
        if len(set(op.ids)) < len(op.ids):
            problems.append(f"ids {list(op.ids)} name a belief twice")
        if len(set(names)) < 2:
            problems.append(f"ids {list(op.ids)}: a merge needs two beliefs or more")
        if len({name[:1] for name in names}) > 1:
            problems.append(f"ids {list(names)}: execution and evaluation beliefs cannot be merged with one another")
    return problems


def assigned_id(head: WorldModel, op: Add) -> str:
    """The id that one new belief gets: its own, else the next of its kind."""
    return _assigned(head, Delta(ops=[op]))[0]


def new_id_problems(head: WorldModel, kind: BeliefKind, name: str) -> list[str]:
    if not _well_formed(name) or name[0] != LETTERS[kind]:
        return [f"id {name!r} is not of kind {kind!r}: expected {LETTERS[kind]} and a number, or no id at all"]
    if name in head.used_ids:
        return [f"id {name!r} has been used: ids are never used twice; leave it out to get the next"]
    return []


def unknown(head: WorldModel, name: str) -> str:
    if name in head.retired:
        return f"belief {name!r} was merged or removed; HISTORY holds it"
    return f"there is no belief {name!r}; there are {_listed(belief.id for belief in head.beliefs)}"


def _reach_problems(head: WorldModel, op: Op, touched: Collection[str] | None) -> list[str]:
    if isinstance(op, Add):
        return []
    vetoed = [name for name in named(op) if _found(head, name).vetoed]
    problems = [f"{name!r} was vetoed by a person and may not change: only a person lifts that" for name in vetoed]
    if touched is not None:
        allowed = f"this outcome addressed {_listed(sorted(touched))}; all others stay as they are"
        problems += [f"{name!r} may not change: {allowed}" for name in named(op) if name not in touched]
    return problems


def _kept_problems(head: WorldModel, op: Op, name: str) -> list[str]:
    """What an operation may not do to beliefs that a person pinned."""
    pinned = [] if isinstance(op, Add) else [old for member in named(op) if (old := _found(head, member)).pinned]
    after = _after(head, op, name)
    problems = []
    for old in pinned:
        if after is None or old.id != name:
            problems.append(f"{old.id!r} was pinned by a person: it cannot be removed, nor merged into another")
        elif (after.claim, after.conditions) != (old.claim, old.conditions):
            problems.append(f"{old.id!r} was pinned by a person: its claim and conditions stay as they are")
    return problems


def _result_problems(head: WorldModel, op: Op, name: str) -> list[str]:
    before, after = head.find(name), _after(head, op, name)
    if after is None:
        status = before.status if before else ""
        return [] if status == "refuted" else [f"{name!r} is {status!r}: only what is already 'refuted' can be removed"]
    if after == before and not isinstance(op, Merge):
        return [f"nothing of {name!r} would change"]
    return strains(after)


def strains(belief: Belief) -> list[str]:
    """Where status and confidence of a belief do not go together, as sentences."""
    found = []
    if belief.status == "refuted" and belief.confidence > EVEN:
        found.append(f"{belief.id!r} is refuted and yet held with confidence {belief.confidence:g}, above {EVEN:g}")
    if belief.vetoed and belief.status != "refuted":
        found.append(f"{belief.id!r} is vetoed and yet {belief.status}, not refuted")
    if belief.status == "confirmed" and belief.confidence < EVEN:
        found.append(f"{belief.id!r} is confirmed and yet held with confidence {belief.confidence:g}, below {EVEN:g}")
    return found


def _evidence_problems(op: Op, evidence_exists: Callable[[str], bool]) -> list[str]:
    entries = cited(op)
    if not entries:
        fields = [name for name in type(op).model_fields if "evidence" in name]
        return [f"no evidence is named: give the path of a file that shows it in {_listed(fields, 'or')}"]
    return path_problems(entries, evidence_exists)


def path_problems(entries: Sequence[Evidence], evidence_exists: Callable[[str], bool]) -> list[str]:
    """Paths that leave the run or lead to no file, as sentences."""
    problems = []
    for path in dict.fromkeys(entry.path for entry in entries):
        if leaves_the_run(path):
            problems.append(f"evidence {path!r} is no path inside the run: expected a relative one without '..'")
        elif not evidence_exists(path):
            problems.append(f"evidence {path!r} does not exist: name a file that you have opened in this run")
    return problems


def leaves_the_run(path: str) -> bool:
    """Whether an evidence path is absolute (anywhere), climbs by `..` or holds a NUL."""
    windows = PureWindowsPath(path)
    absolute = PurePosixPath(path).is_absolute() or bool(windows.drive or windows.root)
    return absolute or ".." in windows.parts or "\0" in path


def _after(head: WorldModel, op: Op, name: str) -> Belief | None:
    """The belief that an operation leaves under `name`; None where it leaves none."""
    match op:
        case Remove():
            return None
        case Add():
            return new_belief(op, name)
        case Revise():
            old = _found(head, name)
            evidence = {
                "evidence_for": _union(old.evidence_for, op.add_evidence_for),
                "evidence_against": _union(old.evidence_against, op.add_evidence_against),
            }
            return old.model_copy(update=_given(op) | evidence)
        case Merge():
            members = [_found(head, member) for member in named(op)]
            carried = {
                "mass": max(member.mass for member in members),
                "evidence_for": _union(*(member.evidence_for for member in members)),
                "evidence_against": _union(*(member.evidence_against for member in members)),
                "older_for": sum(member.older_for for member in members),
                "older_against": sum(member.older_against for member in members),
            }
            return members[0].model_copy(update=carried | _given(op))


def new_belief(op: Add, name: str) -> Belief:
    given = {field: getattr(op, field) for field in Belief.model_fields if field in Add.model_fields}
    evidence = {"evidence_for": _union(op.evidence_for), "evidence_against": _union(op.evidence_against)}
    return Belief.model_validate({**given, **evidence, "id": name})


def _given(op: Revise | Merge) -> dict[str, Any]:
    fields = ("claim", "conditions", "confidence", "status", "mass")
    return {name: getattr(op, name) for name in fields if getattr(op, name) is not None}


def _union(*lists: Sequence[Evidence]) -> tuple[Evidence, ...]:
    return tuple(dict.fromkeys(entry for entries in lists for entry in entries))


def _found(head: WorldModel, name: str) -> Belief:
    return next(belief for belief in head.beliefs if belief.id == name)


def _carry_out(head: WorldModel, delta: Delta, ids: Sequence[str], iteration: int) -> Applied:
    beliefs = {belief.id: belief for belief in head.beliefs}
    retired = list(head.retired)
    changes: list[dict[str, JSON]] = []
    replaced: list[tuple[Belief, ...]] = []
    for op, name in zip(delta.ops, ids, strict=True):
        before = () if isinstance(op, Add) else tuple(_found(head, member) for member in named(op))
        after = _after(head, op, name)
        gone = [belief.id for belief in before if after is None or belief.id != name]
        for member in gone:
            del beliefs[member]
        retired += gone
        if after:
            beliefs[name] = after
        change = {
            "iteration": iteration,
            "op": op.op,
            "id": name,
            "before": held(before[:1]),
            "after": held((after,)),
        }
        changes.append(change | ({"merged": gone} if isinstance(op, Merge) else {}))
        replaced.append(before)
    new = head.model_copy(update={"beliefs": tuple(beliefs.values()), "retired": tuple(retired)})
    return Applied(new, changes, replaced)


def held(belief: Sequence[Belief | None]) -> JSON:
    return {"confidence": belief[0].confidence, "status": belief[0].status} if belief and belief[0] else None


def _listed(names: Iterable[str], last: str = "and") -> str:
    *most, end = list(names) or ["none"]
    return f"{', '.join(most)} {last} {end}" if most else end
