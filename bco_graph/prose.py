r"""Free text, names and sections inside a run's Markdown documents, written so that they read back byte for byte.

Free text stays as it is, but for two things that would forge structure or be lost on disk:

- a line that starts like a heading gets a backslash in front of its `#`, as Markdown itself escapes it;
- a carriage return becomes `\r`, since text files are read with universal newlines; backslashes directly before
  an `r` or a carriage return are doubled, so that a typed `\r` stays apart from it.

Names in a list stand bare (`t1, t2`) where they can, else as JSON strings (`"a, b"`); an empty list is `none`.
Used by `prediction` and `distill`.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from bco_graph.errors import DocumentError

_HEADING_START = re.compile(r"^( {0,3}\\*)(?=#{1,6}(?:[ \t]|$))", re.MULTILINE)
_ESCAPED_START = re.compile(r"^( {0,3}\\*)\\(?=#{1,6}(?:[ \t]|$))", re.MULTILINE)
_RETURN = re.compile(r"(?<!\\)(?:(\\*)\r|(\\+)r)")
_ESCAPED_RETURN = re.compile(r"(?<!\\)(\\+)r")

NAME = r'(?:"(?:[^"\\]|\\.)*"|[^\s,;"()\[\]]+)'
"""One name of a list, as a regular expression without groups."""
NAMES = rf"{NAME}(?:, {NAME})*"
_NAME = re.compile(NAME)
_BARE = re.compile(r'[^\s,;"()\[\]]+')


def escape(text: str) -> str:
    """`text` without lines that look like headings and without carriage returns; `unescape` is its inverse."""
    return _HEADING_START.sub(r"\1\\", _RETURN.sub(_write_return, text))


def unescape(text: str) -> str:
    return _ESCAPED_RETURN.sub(_read_return, _ESCAPED_START.sub(r"\1", text))


def _write_return(match: re.Match[str]) -> str:
    if match[2] is None:
        return "\\" * (2 * len(match[1]) + 1) + "r"
    return "\\" * (2 * len(match[2])) + "r"


def _read_return(match: re.Match[str]) -> str:
    half, is_return = divmod(len(match[1]), 2)
    return "\\" * half + ("\r" if is_return else "r")


def render_names(names: Iterable[str]) -> str:
    return ", ".join(render_name(name) for name in names) or "none"


def render_name(name: str) -> str:
    return name if _BARE.fullmatch(name) and name != "none" else json.dumps(name, ensure_ascii=False)


def parse_names(text: str) -> list[str]:
    """The inverse of `render_names`. Raises ValueError for anything else."""
    if text == "none":
        return []
    if not re.fullmatch(NAMES, text):
        raise ValueError(f'{text!r} is no list of names: write `a, b`, or "a b" in double quotes, or `none`')
    return [json.loads(item) if item.startswith('"') else item for item in _NAME.findall(text)]


@dataclass(frozen=True, slots=True)
class Section:
    """One `## heading` of a document with the lines under it. `line` is the heading's, counted from 1."""

    heading: str
    line: int
    lines: Sequence[str]

    @property
    def body(self) -> str:
        return "\n".join(self.lines)

    @property
    def name(self) -> str:
        """The heading in lower case, without what follows in parentheses or after a dash."""
        return re.split(r" --? | – | — | \(", self.heading)[0].strip().lower()


def render_sections(title: str, sections: Iterable[tuple[str, str]]) -> str:
    """`# title`, then `## heading` with its body; bodies must be escaped."""
    return "\n".join([f"# {title}\n", *(f"## {heading}\n{body}\n" for heading, body in sections)])


def split_sections(text: str, *, source: str) -> tuple[str, dict[str, Section]]:
    """The title and the sections of a document that `render_sections` made, or that was written in its shape.

    Sections are by name, in their order. Only `## ` at the start of a line begins one, code fences or not. A blank
    line before a heading belongs to the layout, not to the body. Raises DocumentError where the title is missing,
    text stands before the first section, or a section stands twice.
    """
    lines = text.removeprefix("\ufeff").replace("\r\n", "\n").removesuffix("\n").split("\n")
    if not lines[0].startswith("# "):
        raise DocumentError(
            f"expected a title such as `# iter_016 prediction`, not {lines[0]!r}", line=1, source=source
        )
    starts = [index for index, line in enumerate(lines) if line.startswith("## ")]
    for index, line in enumerate(lines[1 : starts[0] if starts else None], start=2):
        if line.strip():
            raise DocumentError(f"expected a section `## ...`, not {line!r}", line=index, source=source)
    sections: dict[str, Section] = {}
    for start, end in zip(starts, [*starts, None][1:], strict=True):
        body = lines[start + 1 : end]
        if end is not None and body and body[-1] == "":
            body = body[:-1]
        section = Section(lines[start].removeprefix("## ").strip(), start + 1, body)
        if section.name in sections:
            raise DocumentError(f"the section {section.heading!r} stands twice", line=section.line, source=source)
        sections[section.name] = section
    return lines[0].removeprefix("# ").strip(), sections
