"""Reading the world model's Markdown; the form is described in `text`.

Reads what `render_document` writes, the paper's Listing 1, and the earlier documents that are all history. Every line
is taken over or refused with its number; only the Calibration block, which the program draws anew, is passed over.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, TypeVar, get_args

from pydantic import ValidationError

from bco_graph.errors import DocumentError
from bco_graph.state import Verdict
from bco_graph.world_model.text import (
    BELIEF_OPENING,
    KEPT_MARK,
    SECTION_HEADING,
    SECTIONS,
    split_field,
    unescape_field,
    unescape_lines,
)
from bco_graph.world_model.values import (
    LETTERS,
    MARKS,
    Belief,
    Document,
    Evidence,
    Experiment,
    HistoryRecord,
    Value,
    WorldModel,
    first_problem,
    heading_iteration,
)

V = TypeVar("V", bound=Value)

_FIELDS = ("conf", "status", "marks", "when", "evidence", "against", "mass")
_FIELD = re.compile(rf"[ \t]*({'|'.join(_FIELDS)}):(.*)", re.DOTALL)
_MASS = re.compile(r"~?([0-9]+(?:\.[0-9]+)?)")
_ENTRY = re.compile(r"((?:\\.|[^\\()])*?)(?:[ \t]*\((.*)\))?", re.DOTALL)
_RETIRED = re.compile(r"Retired ids: (.*)")
_FOLDED = re.compile(r"Folded: ([0-9]{1,9}) older experiments, whole in History\.")
_VERDICTS = get_args(Verdict)
_EXPERIMENT = re.compile(
    r"- (none|[EV][0-9]+(?:, ?[EV][0-9]+)*)(?: \(([A-Za-z0-9._-]+)\))?:(.*?)[ \t]->[ \t]+"
    rf"({'|'.join(_VERDICTS)})(?:[ \t]+\((.*)\))?",
    re.DOTALL | re.IGNORECASE,
)
_HARD_BREAK = re.compile(r"(?<!\\)(?:\\\\)*\\\Z")
"""An odd number of backslashes at the end: the newline after them is meant."""

_KINDS = {letter: kind for kind, letter in LETTERS.items()}


@dataclass(slots=True)
class _Region:
    """The lines under one heading; `name` is a section, `record`, or `preamble` (line 0, no heading)."""

    name: str
    line: int
    heading: str
    lines: list[tuple[int, str]] = field(default_factory=list)


@dataclass(slots=True)
class _Piece:
    """Escaped text that may run over several lines, with the line it begins on."""

    line: int
    text: str

    def go_on(self, more: str) -> None:
        """Join a continuation: a newline after a hard break, nothing at a `/`, else a blank."""
        if _HARD_BREAK.search(self.text):
            self.text += "\n" + more
        elif re.search(r"\S/\Z", self.text) or re.match(r"/\S", more):
            self.text += more
        else:
            self.text += " " + more


def parse_document(text: str, *, source: str = "document") -> Document:
    """The document that `text` holds; `source` names it in errors. CRLF and CR count as newlines.

    Raises DocumentError with the line that cannot be read, and for a section that is missing, double or out of place.
    """
    try:
        return _document(_regions(text))
    except DocumentError as error:
        raise DocumentError(error.reason, line=error.line, source=source) from error


def _regions(text: str) -> list[_Region]:
    regions = [_Region("preamble", 0, "")]
    for number, line in enumerate(re.split(r"\r\n|\r|\n", text), 1):
        if section := re.fullmatch(SECTION_HEADING, line):
            regions.append(_Region(section[1], number, line))
        elif heading_iteration(line) is not None:
            regions.append(_Region("record", number, line))
        else:
            regions[-1].lines.append((number, line))
    return regions


def _document(regions: list[_Region]) -> Document:
    sections = _sections(regions)
    records = [region for region in regions if region.name == "record"]
    head = WorldModel()
    if sections or not records or any(not region.heading.startswith("## ") for region in records):
        for name in ("Beliefs", "Experiments"):
            if name not in sections:
                raise DocumentError(f"the section '## {name}' is missing; a document holds {', '.join(SECTIONS)}")
        head = _head(sections["Beliefs"], sections["Experiments"])
        _refuse_text(sections.get("History"))
    history = tuple(
        HistoryRecord(iteration=heading_iteration(region.heading) or 0, heading=region.heading, text=_raw(region))
        for region in records
    )
    return Document(preamble=_preamble(regions[0]), head=head, history=history)


def _sections(regions: list[_Region]) -> dict[str, _Region]:
    """The sections by name: each at most once, in the order of `SECTIONS`, before any record."""
    order = ("preamble", *SECTIONS, "record")
    found: dict[str, _Region] = {}
    previous = regions[0]
    for region in regions[1:]:
        if region.name in found:
            first = found[region.name].line
            raise DocumentError(f"a second section {region.heading!r}; the first is on line {first}", line=region.line)
        if order.index(region.name) < order.index(previous.name):
            reason = (
                f"{region.heading!r} comes too late: it belongs before {previous.heading!r} on line {previous.line}"
            )
            raise DocumentError(reason, line=region.line)
        if region.name != "record":
            found[region.name] = region
        previous = region
    return found


def _preamble(region: _Region) -> str:
    for number, line in region.lines:
        if re.fullmatch(BELIEF_OPENING, line):
            raise DocumentError(f"the belief {line!r} stands outside of a section '## Beliefs'", line=number)
    return _raw(region)


def _refuse_text(history: _Region | None) -> None:
    for number, line in history.lines if history else ():
        if line.strip():
            expected = "expected a heading such as '### iter_001 -> iter_002 distill' first"
            raise DocumentError(f"{line!r} belongs to no record: {expected}", line=number)


def _raw(region: _Region) -> str:
    """Text under a heading, less the blank line (at the end of a file: the newline) that parts it from what follows."""
    lines = [line for _, line in region.lines]
    return unescape_lines(lines[:-1] if lines and not lines[-1] else lines)


def _head(beliefs: _Region, experiments: _Region) -> WorldModel:
    read: dict[str, Belief] = {}
    retired: tuple[str, ...] | None = None
    for block in _blocks(beliefs):
        number, text = block[0]
        if (match := _RETIRED.fullmatch(text)) and retired is None and len(block) == 1:
            retired = tuple(name.strip() for name in match[1].split(","))
            continue
        belief = _belief(block)
        if belief.id in read:
            raise DocumentError(f"a second belief {belief.id!r}; ids are used once", line=number)
        read[belief.id] = belief
    folded, lines = _experiments(experiments)
    given = {"beliefs": tuple(read.values()), "experiments": lines, "retired": retired or (), "folded": folded}
    return _made(WorldModel, given, beliefs.line)


def _blocks(region: _Region) -> list[list[tuple[int, str]]]:
    """Lines that begin at the margin, each with the lines that go on with it; blank lines only part blocks."""
    blocks: list[list[tuple[int, str]]] = []
    for number, line in region.lines:
        if not line.strip(" \t"):
            continue
        if line[0] not in " \t|":
            blocks.append([])
        elif not blocks:
            raise DocumentError(f"{line!r} goes on with nothing: no entry came before it", line=number)
        blocks[-1].append((number, line.strip(" \t")))
    return blocks


def _belief(block: list[tuple[int, str]]) -> Belief:
    number, first = block[0]
    opening = re.fullmatch(BELIEF_OPENING, first)
    if not opening:
        raise DocumentError(f"{first!r} is no belief: expected '[E1] claim', or a blank to go on with one", line=number)
    claim, *pieces = _pieces([(number, opening[2]), *block[1:]])
    fields = _fields(pieces)
    for name in ("conf", "status", "mass"):
        if name not in fields:
            raise DocumentError(f"belief {opening[1]!r} has no '| {name}:'", line=number)
    mass = _MASS.fullmatch(fields["mass"].text)
    if not mass:
        reason = f"mass {fields['mass'].text!r} is no number of failures: expected '~3'"
        raise DocumentError(reason, line=fields["mass"].line)
    given: dict[str, Any] = {
        "id": opening[1],
        "kind": _KINDS[opening[1][0]],
        "claim": unescape_field(claim.text.strip(" \t")),
        "confidence": fields["conf"].text,
        "status": fields["status"].text.lower(),
        "mass": float(mass[1]),
    }
    if "when" in fields:
        given["conditions"] = unescape_field(fields["when"].text)
    for key, side in (("evidence", "for"), ("against", "against")):
        if key in fields:
            given[f"evidence_{side}"], given[f"older_{side}"] = _evidence(fields[key])
    return _made(Belief, given | _marks(fields.get("marks")), number)


def _marks(piece: _Piece | None) -> dict[str, Any]:
    names = [name.strip() for name in piece.text.split(",")] if piece else []
    for name in names:
        if piece and (name not in MARKS or names.count(name) > 1):
            raise DocumentError(f"{piece.text!r} are no marks: expected some of {', '.join(MARKS)}", line=piece.line)
    return {
        "origin": "human" if "human" in names else "proposer", "pinned": "pinned" in names,
        "vetoed": "vetoed" in names,
    }  # fmt: skip


def _pieces(block: list[tuple[int, str]]) -> list[_Piece]:
    """The claim and then each field: a `|` that no backslash precedes begins a new piece."""
    pieces: list[_Piece] = []
    for number, line in block:
        on, *new = split_field(line, "|")
        if not pieces:
            pieces.append(_Piece(number, on))
        elif on:
            pieces[-1].go_on(on.rstrip(" \t") if new else on)
        pieces += [_Piece(number, text) for text in new]
    return pieces


def _fields(pieces: Sequence[_Piece]) -> dict[str, _Piece]:
    fields: dict[str, _Piece] = {}
    for piece in pieces:
        match = _FIELD.fullmatch(piece.text)
        if not match:
            expected = f"expected one of {', '.join(_FIELDS)} with a colon; write \\| for a pipe in text"
            raise DocumentError(f"'|{piece.text}' is no field: {expected}", line=piece.line)
        if match[1] in fields:
            raise DocumentError(f"a second field {match[1]!r} in one belief", line=piece.line)
        fields[match[1]] = _Piece(piece.line, match[2].strip(" \t"))
    return fields


def _evidence(piece: _Piece) -> tuple[tuple[Evidence, ...], int]:
    """The entries, and how many older ones the mark at their end says there were."""
    items = [item.strip(" \t") for item in split_field(piece.text, ";")] if piece.text else []
    older = 0
    if items and (mark := re.fullmatch(KEPT_MARK, items[-1])):
        items.pop()
        older = int(mark[2]) - len(items)
        if int(mark[1]) != len(items) or older < 1:
            raise DocumentError(f"the mark {mark[0]!r} stands after {len(items)} entries", line=piece.line)
    return tuple(_entry(item, piece.line) for item in items), older


def _entry(item: str, line: int) -> Evidence:
    match = _ENTRY.fullmatch(item)
    if not match:
        raise DocumentError(f"{item!r} is no evidence: expected 'path' or 'path (locator)'", line=line)
    given = {"path": unescape_field(match[1]), "locator": unescape_field(match[2] or "")}
    return _made(Evidence, given, line)


def _experiments(region: _Region) -> tuple[int, tuple[Experiment, ...]]:
    folded = 0
    read: list[Experiment] = []
    for block in _blocks(region):
        number, first = block[0]
        if (match := _FOLDED.fullmatch(first)) and not read and not folded and len(block) == 1:
            folded = int(match[1])
            continue
        piece = _Piece(number, first)
        for _, line in block[1:]:
            piece.go_on(line)
        read.append(_experiment(piece))
    return folded, tuple(read)


def _experiment(piece: _Piece) -> Experiment:
    match = _EXPERIMENT.fullmatch(piece.text)
    if not match:
        expected = f"expected '- E1: edit -> verdict (note)' with one of {', '.join(_VERDICTS)}"
        raise DocumentError(f"{piece.text!r} is no experiment: {expected}", line=piece.line)
    names = () if match[1] == "none" else tuple(re.split(", ?", match[1]))
    given = {
        "beliefs": names,
        "candidate": match[2] or "",
        "edit": unescape_field(match[3]),
        "verdict": match[4].lower(),
        "note": unescape_field(match[5] or ""),
    }
    return _made(Experiment, given, piece.line)


def _made(cls: type[V], given: dict[str, Any], line: int) -> V:
    try:
        return cls.model_validate(given)
    except ValidationError as error:
        raise DocumentError(first_problem(error), line=line) from error
