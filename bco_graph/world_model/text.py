"""The world model as Markdown (paper Listing 1): its form, its escapes, and writing it; `parse` reads it.

    ## Beliefs                                    one belief a block; a line that begins with a blank goes on with it
    [E3] claim
         | conf:0.96 | status:confirmed | marks:human, pinned
         | when:conditions
         | evidence:path/a.json (locator); path/b.json; [kept 2/5]
         | against:path/c.json
         | mass:~3
    Retired ids: E1, V2
    ## Experiments
    Folded: 4 older experiments, whole in History.
    - E3 (iter_004): edit -> held (note)
    ## Calibration                                drawn by the program, no part of the document: reading skips it
    ## History
    ### iter_003 -> iter_004 distill              then Markdown up to the next record

The escapes are Markdown's own. In a field, a backslash before punctuation takes its meaning away (`\\|`), a backslash
at the end of a line is a newline, and `&#13;` stands for a character that cannot stand raw. A line that merely
continues (the paper wraps at 85 columns) is joined by a blank, or by nothing at a `/`. In the preamble and in records,
text stays as it is but for a backslash before a line that would open a section, a record or a belief, and `&#13;` for
a carriage return.
"""

from __future__ import annotations

import re
from collections.abc import Sequence

from bco_graph.world_model.values import (
    RECORD_HEADING,
    Belief,
    Document,
    Evidence,
    Experiment,
    HistoryRecord,
    WorldModel,
)

SECTIONS = ("Beliefs", "Experiments", "Calibration", "History")
SECTION_HEADING = rf"## ({'|'.join(SECTIONS)})[ \t]*"
BELIEF_OPENING = r"\[([EV][0-9]+)\](.*)"
KEPT_MARK = r"\[kept ([0-9]{1,9})/([0-9]{1,9})\]"
"""Stands last in an evidence list that compaction shortened: entries shown, entries there were."""

_INDENT = " " * 5
_STRUCTURE = re.compile(rf"\\*(?:{SECTION_HEADING}|{RECORD_HEADING}|{BELIEF_OPENING})")
_ESCAPED = re.compile(r"\\([!-/:-@\[-`{-~])|\\(\n)|&#([0-9]{1,7});")
_UNSAFE = re.compile("[\x00-\x1f\x7f\x85\u2028\u2029]")
"""In a field: controls, and separators that some readers take for newlines."""


def escape_field(text: str, also: str = "") -> str:
    """`text` so that it can stand in a field; the characters of `also` get a backslash too."""
    body, tail = (text[:-1], "&#10;") if text.endswith("\n") else (text, "")
    return f"\\\n{_INDENT}".join(_escape_line(line, also) for line in body.split("\n")) + tail


def _escape_line(line: str, also: str) -> str:
    marked = re.sub(rf"[\\|{re.escape(also)}]|&(?=#[0-9]+;)", r"\\\g<0>", line)
    marked = _UNSAFE.sub(lambda match: f"&#{ord(match[0])};", marked)
    if marked.startswith(" "):
        marked = "&#32;" + marked[1:]
    return marked[:-1] + "&#32;" if marked.endswith(" ") else marked


def unescape_field(text: str) -> str:
    return _ESCAPED.sub(_meant, text)


def _meant(match: re.Match[str]) -> str:
    if match[3] is None:
        return match[1] or match[2]
    code = int(match[3])
    return match[0] if code > 0x10FFFF or 0xD800 <= code < 0xE000 else chr(code)


def split_field(text: str, separator: str) -> list[str]:
    """Parts of escaped text between separators that no backslash precedes and, for `;`, no parenthesis encloses."""
    parts, start, depth = [], 0, 0
    for match in re.finditer(rf"\\.|&#[0-9]{{1,7}};|[(){separator}]", text, re.DOTALL):
        if match[0] == separator and not (depth and separator == ";"):
            parts.append(text[start : match.start()])
            start = match.end()
        depth = max(0, depth + {"(": 1, ")": -1}.get(match[0], 0))
    return [*parts, text[start:]]


def escape_lines(text: str) -> str:
    """Raw Markdown so that none of its lines is taken for structure."""
    text = re.sub("&(?=(?:amp;)*#13;)", "&amp;", text).replace("\r", "&#13;")
    return "\n".join("\\" + line if _STRUCTURE.fullmatch(line) else line for line in text.split("\n"))


def unescape_lines(lines: Sequence[str]) -> str:
    text = "\n".join(line[1:] if line.startswith("\\") and _STRUCTURE.fullmatch(line) else line for line in lines)
    return re.sub("&amp;(?=(?:amp;)*#13;)", "&", text.replace("&#13;", "\r"))


def render_document(document: Document, *, calibration_block: str | None = None) -> str:
    """The whole file. A document that is all history, in the earlier form, gets no empty sections put into it."""
    parts = [escape_lines(document.preamble)] if document.preamble else []
    records = [render_record(record) for record in document.history]
    if calibration_block is None and all_history(document):
        return "\n\n".join([*parts, *records]) + "\n"
    parts.append(render_head(document.head))
    if calibration_block is not None:
        parts.append(f"## Calibration\n{escape_lines(calibration_block)}")
    return "\n\n".join([*parts, "## History", *records]) + "\n"


def all_history(document: Document) -> bool:
    """Whether this is a document of the earlier protocol: no HEAD, and every record a section of its own."""
    level_two = all(record.heading.startswith("## ") for record in document.history)
    return document.head == WorldModel() and bool(document.history) and level_two


def render_record(record: HistoryRecord) -> str:
    return f"{record.heading}\n{escape_lines(record.text)}"


def render_head(head: WorldModel) -> str:
    """The sections Beliefs and Experiments: what the token budget is about."""
    beliefs = [f"{render_belief(belief)}\n" for belief in head.beliefs]
    if head.retired:
        beliefs.append(f"Retired ids: {', '.join(head.retired)}\n")
    experiments = [f"Folded: {head.folded} older experiments, whole in History."] if head.folded else []
    experiments += [render_experiment(experiment) for experiment in head.experiments]
    return "\n".join(["## Beliefs", *(beliefs or [""]), "## Experiments", *experiments])


def render_belief(belief: Belief) -> str:
    """The block of one belief, without a newline at its end."""
    marks = f" | marks:{', '.join(belief.marks)}" if belief.marks else ""
    fields = [f"conf:{_decimal(belief.confidence)} | status:{belief.status}{marks}"]
    if belief.conditions:
        fields.append(f"when:{escape_field(belief.conditions)}")
    if belief.evidence_for or belief.older_for:
        fields.append(f"evidence:{_render_evidence(belief.evidence_for, belief.older_for)}")
    if belief.evidence_against or belief.older_against:
        fields.append(f"against:{_render_evidence(belief.evidence_against, belief.older_against)}")
    fields.append(f"mass:~{_decimal(belief.mass)}")
    return f"[{belief.id}] {escape_field(belief.claim)}" + "".join(f"\n{_INDENT}| {field}" for field in fields)


def _render_evidence(entries: Sequence[Evidence], older: int) -> str:
    shown = [render_entry(entry) for entry in entries]
    if older:
        shown.append(f"[kept {len(entries)}/{len(entries) + older}]")
    return "; ".join(shown)


def render_entry(entry: Evidence) -> str:
    """`path` or `path (locator)`."""
    path = escape_field(entry.path, also=";()")
    if re.fullmatch(KEPT_MARK, path):
        path = "\\" + path
    return f"{path} ({escape_field(entry.locator, also=';()')})" if entry.locator else path


def render_experiment(experiment: Experiment) -> str:
    """The line of one experiment; more than one only where its note has newlines."""
    names = ", ".join(experiment.beliefs) or "none"
    where = f" ({experiment.candidate})" if experiment.candidate else ""
    edit = " " + escape_field(experiment.edit).replace("->", "-\\>") if experiment.edit else ""
    note = f" ({escape_field(experiment.note)})" if experiment.note else ""
    return f"- {names}{where}:{edit} -> {experiment.verdict}{note}"


def _decimal(number: float) -> str:
    """All digits of a confidence or mass, without an exponent; `0.6`, `3`."""
    return f"{number:.6f}".rstrip("0").rstrip(".")
