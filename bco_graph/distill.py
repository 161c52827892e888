"""The distill block: one graded prediction as HISTORY keeps it (paper Listing 3). Pure.

`render_distill` and `parse_distill` are inverse to each other. The reader also takes the blocks that the authors
published: `Aggregate check (self)`, and the earlier protocol's `Outcome mismatch` and `Unresolved`, with an arrow and
a timestamp in the heading.
"""

from __future__ import annotations

import re
from typing import Annotated, Literal

from pydantic import AfterValidator, BaseModel, ConfigDict, StringConstraints

from bco_graph.calibration import Computed
from bco_graph.config import nearest
from bco_graph.errors import DocumentError
from bco_graph.prediction import Prediction
from bco_graph.prose import escape, render_names, unescape
from bco_graph.state import Cause, Grade, Verdict

SOURCE = "distill block"
CAUSES: dict[Cause, str] = {
    "not_wired": "the mechanism was not wired in",
    "behaviour_without_score": "behaviour changed, the score did not",
    "surface_without_failure": "the surface changed, the failure did not",
    "belief_wrong": "the belief was wrong",
}
"""What can be behind a missed prediction (paper, appendix on the protocol)."""
VERDICTS: tuple[Verdict, ...] = ("held", "refuted", "inert", "void", "undecided")

Id = Annotated[str, StringConstraints(pattern=r"^[A-Za-z0-9_.-]+$")]
Stamp = Annotated[str, StringConstraints(pattern=r"^[^\r\n]*$")]
Value = Annotated[str, AfterValidator(str.strip)]
"""Text of any number of lines; blanks around it are not kept."""


class Distill(BaseModel):
    """One block. An empty value is a line that the block does not have."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    parent: Id
    candidate: Id
    stamp: Stamp = ""
    """Time in the heading, in the authors' blocks."""
    mode: Value = ""
    behavioural: Value = ""
    aggregate: Value = ""
    aggregate_by: Literal["computed", "self"] = "computed"
    """Who worked out the numbers: the program, or the proposer itself (`grading: paper`, and the authors' blocks)."""
    unstable: Value = ""
    blind_spots: Value = ""
    verdict: Verdict | None = None
    cause: Cause | None = None
    learned: Value = ""
    belief_update: Value = ""
    outcome_mismatch: Value = ""
    unresolved: Value = ""


def distill_of(
    prediction: Prediction, computed: Computed, grade: Grade, *, grading: Literal["computed", "paper"] = "computed"
) -> Distill:
    """The block of a grade. In `paper` the proposer's own numbers stand in it instead of the computed ones."""
    reading = grade["reading"] or {}
    failure = grade["failure"]
    behavioural = reading.get("behavioural_check", "")
    if not behavioural and failure:
        behavioural = f"none: step {failure['step']} failed ({failure['cause']})"
    own = grading == "paper" and bool(reading)
    said_unstable = [task for task in reading.get("unstable", ()) if task not in computed.unstable]
    return Distill(
        parent=prediction.base,
        candidate=grade["candidate"],
        mode=prediction.mode,
        behavioural=behavioural,
        aggregate=_own_figures(reading["numbers"]) if own else figures_line(prediction, computed),
        aggregate_by="self" if own else "computed",
        unstable=render_names(computed.unstable)
        + (f"; by the proposer's reading also {render_names(said_unstable)}" if said_unstable else ""),
        blind_spots=render_names(computed.blind_spots),
        verdict=grade["verdict"],
        cause=grade["cause"],
        learned=reading.get("learned", ""),
        belief_update=reading.get("belief_update", ""),
    )


def figures_line(prediction: Prediction, computed: Computed) -> str:
    """The computed figures in words: what was predicted beside what came."""
    subset = prediction.subset
    interval = f"[{subset.low:+.3g}, {subset.high:+.3g}]"
    parts = [
        f"subset {_change(computed.subset_change)} over {computed.subset_n} stable of {computed.subset_tasks} tasks,"
        f" predicted {subset.expected:+.3g} in {interval}",
        f"overall {_change(computed.overall_change)} over {computed.shared} shared tasks, predicted"
        f" {prediction.net_effect:+.3g}",
        f"regressions {len(computed.regressions)}, bound {prediction.downside_bound}",
        f"breakthroughs {len(computed.breakthroughs)}",
        f"upside types hit {_share(computed.upside_hit_rate)}, base rate {_share(computed.upside_base_rate)}",
        f"downside precision {_share(computed.downside_precision)}, recall {_share(computed.downside_recall)},"
        f" base rate {_share(computed.downside_base_rate)}",
        f"live signature in {computed.signature_tasks} tasks"
        + ("" if computed.signature_distinctive else ", and in the parent's traces too"),
        f"coverage {computed.coverage:.3g}, parent {computed.parent_coverage:.3g}",
    ]
    return "; ".join(parts)


def _own_figures(numbers: dict[str, float | None]) -> str:
    """`submissions.OwnNumbers` as JSON."""
    regressions = numbers["regressions"]
    return (
        f"subset {_change(numbers['subset_change'])}; overall {_change(numbers['overall_change'])};"
        f" regressions {'not stated' if regressions is None else regressions}"
    )


def _change(value: float | None) -> str:
    return "unknown" if value is None else f"{value:+.3f}"


def _share(value: float | None) -> str:
    return "none" if value is None else f"{value:.2f}"


# -- text --------------------------------------------------------------------------------------------------------

_LABELS = {
    "mode": "Mode",
    "behavioural": "Behavioral check (self)",
    "aggregate": "Aggregate check",
    "unstable": "Unstable (excluded)",
    "blind_spots": "Blind-spot regressions",
    "verdict": "Verdict",
    "cause": "Cause",
    "learned": "What was learned",
    "outcome_mismatch": "Outcome mismatch",
    "unresolved": "Unresolved",
    "belief_update": "Belief update",
}
"""Field -> label, in the order of the block."""
_PLAIN = {re.sub(r" \(.*", "", label): field for field, label in _LABELS.items()}
_FIELD = {label.lower(): field for label, field in _PLAIN.items()}
_HEADING = re.compile(r"#{2,3} ([A-Za-z0-9_.-]+) (?:->|→) ([A-Za-z0-9_.-]+) distill(?: \(([^\r\n]*)\))?[ \t]*")
_ITEM = re.compile(r"- ([^:(]+?)(?: \(([^)]*)\))?:(?: (.*))?")


def distill_text(prediction: Prediction, grade: Grade, *, grading: Literal["computed", "paper"]) -> str:
    """The block of a grade that stands in the state or the receipts, as text."""
    return render_distill(distill_of(prediction, Computed.model_validate(grade["computed"]), grade, grading=grading))


def render_distill(distill: Distill) -> str:
    """Markdown in the paper's shape. Lines of a value after its first are indented by two blanks."""
    stamp = f" ({distill.stamp})" if distill.stamp else ""
    lines = [f"## {distill.parent} -> {distill.candidate} distill{stamp}"]
    for field, label in _LABELS.items():
        value = getattr(distill, field)
        if field == "cause" and value:
            value = f"{value} -- {CAUSES[distill.cause]}" if distill.cause else ""
        if field == "aggregate":
            label = f"{label} ({distill.aggregate_by})"
        if value:
            first, *rest = escape(value).split("\n")
            lines += [f"- {label}: {first}", *(f"  {line}" if line else "" for line in rest)]
    return "\n".join(lines) + "\n"


def parse_distill(text: str) -> Distill:
    """Read one block. Raises DocumentError that names the line."""
    lines = text.replace("\r\n", "\n").split("\n")
    start = next((index for index, line in enumerate(lines) if line.strip()), 0)
    if not (heading := _HEADING.fullmatch(lines[start])):
        reason = f"expected `## iter_015 -> iter_016 distill`, not {lines[start]!r}"
        raise DocumentError(reason, line=start + 1, source=SOURCE)
    values: dict[str, str] = {}
    by: Literal["computed", "self"] = "computed"
    for at, label, note, value in _items(lines, start + 1):
        field = _FIELD.get(label.lower().replace("behavioural", "behavioral"))
        if field is None or field in values:
            reason = f"the line {label!r} stands twice" if field else f"unknown line {label!r}{nearest(label, _PLAIN)}"
            raise DocumentError(f"{reason}; known: {', '.join(_PLAIN)}", line=at, source=SOURCE)
        values[field] = unescape(value).strip()
        if field == "aggregate" and note == "self":
            by = "self"
        if field in ("verdict", "cause"):
            values[field] = _word(field, values[field], at)
    return Distill.model_validate(
        {"parent": heading[1], "candidate": heading[2], "stamp": heading[3] or "", "aggregate_by": by, **values}
    )


def _items(lines: list[str], start: int) -> list[tuple[int, str, str, str]]:
    """(line number, label, what stands in parentheses after it, value) of each item of the block."""
    items: list[tuple[int, str, str, list[str]]] = []
    for at, line in enumerate(lines[start:], start=start + 1):
        if match := _ITEM.fullmatch(line):
            items.append((at, match[1], match[2] or "", [match[3] or ""]))
        elif items and (line.startswith("  ") or not line.strip()):
            items[-1][3].append(line[2:])
        elif line.strip():
            raise DocumentError(f"expected `- Label: value`, or two blanks before it: {line!r}", line=at, source=SOURCE)
    return [(at, label, note, "\n".join(value)) for at, label, note, value in items]


def _word(field: str, text: str, line: int) -> str:
    """A verdict or a cause: the whole of a fixed word, a cause's label after it or not; never a word in a sentence."""
    known = VERDICTS if field == "verdict" else tuple(CAUSES)
    word, _, label = text.partition(" -- ")
    if word not in known or (label and label not in CAUSES.values()):
        raise DocumentError(f"expected a {field}, one of {', '.join(known)}; not {text!r}", line=line, source=SOURCE)
    return word
