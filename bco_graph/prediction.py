"""The prediction: what an edit is staked on, written before its candidate exists (paper section 3, Listing 2). Pure.

`build_prediction` joins what the proposal states with what the predictor hands in, `check_prediction` says what is
wrong with it, `seal` is the digest that the receipt keeps. `render_prediction` and `parse_prediction` are inverse to
each other: `prediction.md` loses nothing. The authors' own files are read by `paper_prediction`.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass
from decimal import Decimal
from typing import Annotated, Any

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from bco_graph.config import nearest
from bco_graph.errors import DocumentError
from bco_graph.probability import Probability
from bco_graph.prose import (
    NAME,
    NAMES,
    Section,
    escape,
    parse_names,
    render_name,
    render_names,
    render_sections,
    split_sections,
    unescape,
)
from bco_graph.receipts import dumps
from bco_graph.state import JSON, Mode, Proposal, candidate_id
from bco_graph.submissions import Change, PredictSubmission

SOURCE = "prediction.md"
AUDIT_AFTER = 2
"""From this many earlier attempts on one failure mode, so from the third on, an assumption audit is due."""


class Sealed(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)


class PredictedSubset(Sealed):
    """`submissions.Subset`, frozen. Changes are of the subset's mean score against the parent, in [-1, 1]."""

    tasks: tuple[str, ...]
    types: tuple[str, ...]
    expected: Change
    low: Change
    high: Change


class Prediction(Sealed):
    """All that is sealed. Text is kept as it came; what a field means is said in `submissions` and `state`."""

    iteration: Annotated[int, Field(ge=0)]
    mode: Mode
    candidate: str
    """The edit's name; its candidate id follows from the iteration."""
    base: str
    """Candidate id of the parent."""
    base_why: str
    failure_mode: str
    attempts: Annotated[int, Field(ge=0)]
    """How many earlier candidates attacked this failure mode."""
    beliefs: tuple[str, ...]
    assumption_audit: str
    mechanism: str
    behavioural: str
    subset: PredictedSubset
    confidence: Probability
    downside_bound: Annotated[int, Field(ge=0)]
    upside_types: tuple[str, ...]
    downside_types: tuple[str, ...]
    net_effect: Change
    live_signature: str
    anchors: tuple[str, ...]
    falsification: str

    def to_json(self) -> dict[str, JSON]:
        return self.model_dump(mode="json")

    @classmethod
    def from_json(cls, content: Mapping[str, JSON]) -> Prediction:
        """Raises DocumentError that names the first wrong field."""
        try:
            return cls.model_validate(content)
        except ValidationError as error:
            raise DocumentError(_first_problem(error), source="sealed prediction") from error


def build_prediction(proposal: Proposal, submission: PredictSubmission, *, attempts: int) -> Prediction:
    """`attempts`: how many earlier candidates attacked the same failure mode. A proposal that failed has no mode
    and so no prediction: pydantic's ValidationError, a mistake of the caller."""
    stated = {key: proposal[key] for key in ("iteration", "mode", "failure_mode", "beliefs", "mechanism")}
    named = {"candidate": proposal["name"], "base": proposal["parent"], "live_signature": proposal["live_signature"]}
    return Prediction.model_validate({**stated, **named, **submission.model_dump(), "attempts": attempts})


def seal(prediction: Prediction) -> str:
    """sha256 (hex) of the canonical JSON."""
    return hashlib.sha256(dumps(prediction.to_json()).encode("utf-8")).hexdigest()


# -- checks ------------------------------------------------------------------------------------------------------


def check_prediction(
    prediction: Prediction,
    *,
    task_ids: Collection[str],
    types: Collection[str],
    belief_ids: Collection[str],
    stable_tasks: Collection[str],
    attempts: int,
) -> list[str]:
    """Reasons to refuse it, as sentences for the predictor; none when it is acceptable.

    `probe` and `act` need a belief at stake; `refine` and `explore` may go without, as long as a world model has
    nothing to stake.
    """
    subset, audit = prediction.subset, prediction.assumption_audit.strip()
    reasons = [
        *_unknown("subset.tasks: task", subset.tasks, task_ids),
        *_unknown("subset.types: type", subset.types, types),
        *_unknown("upside_types: type", prediction.upside_types, types),
        *_unknown("downside_types: type", prediction.downside_types, types),
        *_unknown("beliefs: belief", prediction.beliefs, belief_ids),
        *_unknown("anchors: task", prediction.anchors, task_ids),
        *_interval_faults(subset),
    ]
    if not subset.tasks and not subset.types:
        reasons.append("subset: it is empty; name the tasks or the types that the mechanism acts on")
    for name in sorted(set(prediction.upside_types) & set(prediction.downside_types)):
        reasons.append(f"type {name!r} is named as upside and as downside; decide for one, or for none")
    for task in prediction.anchors:
        if task in task_ids and task not in stable_tasks:
            reasons.append(f"anchors: task {task!r} is not stable (its scores flip); name a stable one, or none")
    if attempts >= AUDIT_AFTER and not audit:
        reasons.append(
            f"assumption_audit: missing; {attempts} earlier candidates attacked {prediction.failure_mode!r}: say"
            " which assumption beneath all of them may be false, and what speaks for it"
        )
    if not prediction.beliefs and prediction.mode in ("probe", "act"):
        reasons.append(f"beliefs: mode {prediction.mode!r} needs at least one belief at stake, such as E1")
    return reasons


def _unknown(what: str, names: Iterable[str], known: Collection[str]) -> list[str]:
    few = f"available: {', '.join(sorted(known)) or 'none'}" if len(known) <= 20 else f"there are {len(known)}"
    return [f"{what} {name!r} does not exist{nearest(name, known)}; {few}" for name in names if name not in known]


def _interval_faults(subset: PredictedSubset) -> list[str]:
    shown = f"low {subset.low:+g}, expected {subset.expected:+g}, high {subset.high:+g}"
    if subset.low > subset.expected:
        return [f"subset: low is above expected ({shown}); write low <= expected <= high"]
    if subset.expected > subset.high:
        return [f"subset: expected is above high ({shown}); write low <= expected <= high"]
    return []


# -- prediction.md -----------------------------------------------------------------------------------------------

Write = Callable[[Prediction], str]
Read = Callable[[str], dict[str, Any]]
"""The fields that a text holds; raises ValueError that says what was expected."""


@dataclass(frozen=True, slots=True)
class _Part:
    """A section of the document, or a line `- heading: ...` of its aggregate section."""

    heading: str
    write: Write
    read: Read

    @property
    def name(self) -> str:
        return Section(self.heading, 0, ()).name


def _text(heading: str, field: str) -> _Part:
    return _Part(heading, lambda p: escape(getattr(p, field)), lambda body: {field: unescape(body)})


def _names(heading: str, field: str) -> _Part:
    return _Part(heading, lambda p: render_names(getattr(p, field)), lambda body: {field: parse_names(body.strip())})


def _matched(pattern: str, body: str, expected: str) -> re.Match[str]:
    if match := re.fullmatch(pattern, body, re.DOTALL | re.ASCII):
        return match
    raise ValueError(f"expected {expected}, not {body if len(body) <= 80 else body[:80] + ' [...]'!r}")


def _number(text: str) -> float:
    return float(_matched(_NUMBER, text.strip(), "a number such as +0.05")[0].replace("−", "-"))


def _read_base(body: str) -> dict[str, Any]:
    match = _matched(rf"({NAME}) -- (.*)", body, "`iter_015 -- why it is the base`")
    return {"base": parse_names(match[1])[0], "base_why": unescape(match[2])}


def _read_failure_mode(body: str) -> dict[str, Any]:
    match = _matched(r"(.*)\n\(attempts so far: (\d+)\)", body, "the last line `(attempts so far: 0)`")
    return {"failure_mode": unescape(match[1]), "attempts": match[2]}


def _write_subset(prediction: Prediction) -> str:
    subset = prediction.subset
    parts = [f"{kind} {render_names(names)}" for kind in ("tasks", "types") if (names := getattr(subset, kind))]
    return "; ".join(parts) or "none"


def _read_subset(body: str) -> dict[str, Any]:
    pattern = rf"(?:tasks ({NAMES}))?(?:; )?(?:types ({NAMES}))?"
    match = _matched(pattern, "" if body == "none" else body, "`tasks a, b; types c`")
    return {"tasks": parse_names(match[1] or "none"), "types": parse_names(match[2] or "none")}


def _read_interval(body: str) -> dict[str, Any]:
    match = _matched(rf"\[({_NUMBER}), ?({_NUMBER})\]", body, "an interval such as [+0.02, +0.10]")
    return {"low": _number(match[1]), "high": _number(match[2])}


_NUMBER = r"[+\-−]?(?:\d+\.?\d*|\.\d+)(?:[eE][+-]?\d+)?"
_SUBSET_FIELDS = ("tasks", "types", "expected", "low", "high")
_LINES = (
    _Part("subset", _write_subset, _read_subset),
    _Part("expected", lambda p: f"{p.subset.expected:+}", lambda body: {"expected": _number(body)}),
    _Part("interval", lambda p: f"[{p.subset.low:+}, {p.subset.high:+}]", _read_interval),
    _Part("downside bound", lambda p: str(p.downside_bound), lambda body: {"downside_bound": body}),
    _names("upside types", "upside_types"),
    _names("downside types", "downside_types"),
    _Part("net effect", lambda p: f"{p.net_effect:+}", lambda body: {"net_effect": _number(body)}),
    _Part("confidence", lambda p: f"{Decimal(str(abs(p.confidence))):f}", lambda body: {"confidence": body}),
)
_AGGREGATE = "aggregate prediction"
_SECTIONS = (
    _Part("Mode", lambda p: p.mode, lambda body: {"mode": body.strip()}),
    _text("Candidate", "candidate"),
    _Part("Base", lambda p: f"{render_name(p.base)} -- {escape(p.base_why)}", _read_base),
    _Part(
        "Failure mode attacked",
        lambda p: f"{escape(p.failure_mode)}\n(attempts so far: {p.attempts})",
        _read_failure_mode,
    ),
    _names("Beliefs at stake", "beliefs"),
    _text("Assumption audit", "assumption_audit"),
    _text("Mechanism -- the behavioral change", "mechanism"),
    _text("Behavioral prediction (graded from traces)", "behavioural"),
    _Part(
        "Aggregate prediction (graded on the subset, de-noised)",
        lambda p: "\n".join(f"- {line.heading}: {line.write(p)}" for line in _LINES),
        lambda body: {},
    ),
    _text("Live signature", "live_signature"),
    _names("Anchors (stable tasks only)", "anchors"),
    _text("Falsification", "falsification"),
)


def render_prediction(prediction: Prediction) -> str:
    """prediction.md in the paper's shape. Free text is escaped as `prose` says."""
    title = f"{candidate_id(prediction.iteration)} prediction"
    return render_sections(title, ((part.heading, part.write(prediction)) for part in _SECTIONS))


def parse_prediction(text: str) -> Prediction:
    """The inverse of `render_prediction`. Raises DocumentError that names the line."""
    iteration, sections = open_prediction(text)
    known = {part.name: part for part in _SECTIONS}
    for section in sections.values():
        if section.name not in known:
            reason = f"unknown section {section.heading!r}{nearest(section.name, known)}; known: {', '.join(known)}"
            raise DocumentError(reason, line=section.line, source=SOURCE)
    if missing := [name for name in known if name not in sections]:
        raise DocumentError(f"missing section(s): {', '.join(missing)}", source=SOURCE)
    texts = [(known[name], section.line + 1, section.body) for name, section in sections.items()]
    content: dict[str, Any] = {"iteration": iteration}
    lines: dict[str, int] = {}
    for part, at, body in [*texts, *_aggregate_lines(sections[_AGGREGATE])]:
        try:
            found = part.read(body)
        except ValueError as error:
            raise DocumentError(str(error), line=at, source=SOURCE) from error
        content |= found
        lines |= dict.fromkeys(found, at)
    content["subset"] = {field: content.pop(field) for field in _SUBSET_FIELDS}
    try:
        return Prediction.model_validate(content)
    except ValidationError as error:
        wrong = lines.get(str(error.errors()[0]["loc"][-1]))
        raise DocumentError(_first_problem(error), line=wrong, source=SOURCE) from error


def open_prediction(text: str) -> tuple[int, dict[str, Section]]:
    """The iteration that the title names, and the sections by name. Raises DocumentError."""
    title, sections = split_sections(text, source=SOURCE)
    if not (number := re.fullmatch(r"iter_(\d{1,9}) prediction", title, re.ASCII)):
        raise DocumentError(f"expected the title `# iter_016 prediction`, not {title!r}", line=1, source=SOURCE)
    return int(number[1]), sections


def _aggregate_lines(section: Section) -> list[tuple[_Part, int, str]]:
    missing = {line.heading: line for line in _LINES}
    found = []
    for at, line in enumerate(section.lines, start=section.line + 1):
        if not line.strip():
            continue
        match = re.fullmatch(r"- ([a-z ]+): (.*)", line, re.DOTALL)
        part = missing.pop(match[1], None) if match else None
        if match is None or part is None:
            known = ", ".join(part.heading for part in _LINES)
            raise DocumentError(
                f"expected `- name: value`, each once, of {known}; not {line!r}", line=at, source=SOURCE
            )
        found.append((part, at, match[2]))
    if missing:
        raise DocumentError(f"missing line(s): {', '.join(missing)}", line=section.line, source=SOURCE)
    return found


def _first_problem(error: ValidationError) -> str:
    item = error.errors()[0]
    where = ".".join(str(part) for part in item["loc"])
    return f"{where}: {item['msg'].removeprefix('Value error, ')}, not {item['input']!r}"
