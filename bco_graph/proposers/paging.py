"""Large text for a model: a page of it, with a mark that says what was kept and how to read on."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path

from bco_graph.errors import ToolRefused

PAGE_CHARACTERS = 24_000
"""Characters of one tool result, the mark not counted."""


@dataclass
class Page:
    """Takes lines in order and keeps those from `start_line` on until the page is full.

    Only a line that is longer than a page is cut inside.
    """

    start_line: int = 1
    start_column: int = 1
    lines: int | None = None
    """At most this many lines; None: as many as fit."""
    kept: list[str] = field(default_factory=list)
    seen: int = 0
    room: int = PAGE_CHARACTERS
    next: tuple[int, int] | None = None
    """Line and column, from 1, at which the rest begins; None while nothing was left out."""

    def add(self, line: str) -> None:
        """`line` without its line break."""
        self.seen += 1
        if self.seen < self.start_line or self.next is not None:
            return
        full = bool(self.kept) and len(line) > self.room
        if full or (self.lines is not None and len(self.kept) >= self.lines):
            self.next = (self.seen, 1)
            return
        skipped = self.start_column - 1 if self.seen == self.start_line else 0
        kept = line[skipped : skipped + self.room]
        self.kept.append(kept)
        self.room -= len(kept) + 1
        if skipped + len(kept) < len(line):
            self.next = (self.seen, skipped + len(kept) + 1)

    def mark(self, total: str) -> str:
        """The visible mark of a cut, or nothing; `total` says how much there is."""
        if self.next is None:
            return ""
        size = sum(len(line.encode("utf-8", "replace")) + 1 for line in self.kept)
        line, column = self.next
        rest = f"start_line={line}" if column == 1 else f"start_line={line} and start_column={column}"
        return f"\n[cut: kept {size:,} bytes of {total}; the rest begins at {rest}]"


def page_of(lines: Iterable[str], *, start_line: int, unit: str) -> str:
    """A page of many short lines, such as matches; `unit` names one of them."""
    page, size = Page(start_line=start_line), 0
    for line in lines:
        page.add(line)
        size += len(line.encode("utf-8", "replace")) + 1
    if not page.seen:
        return f"(no {unit})"
    _check_start(page, f"{page.seen:,} {unit}(s)")
    return "\n".join(page.kept) + page.mark(f"{size:,} ({page.seen:,} {unit}(s))")


def page_of_file(path: Path, shown: str, *, start_line: int, start_column: int, lines: int | None) -> str:
    """A page of a text file under a head line: its size, its style, and which lines are shown.

    Line endings are shown as `\\n` and bytes that are not UTF-8 as `\ufffd`; the head says so. Raises ToolRefused for
    a binary file.
    """
    size = path.stat().st_size
    page = Page(start_line=start_line, start_column=start_column, lines=lines)
    style = set()
    with path.open("rb") as stream:
        for raw in stream:
            if b"\0" in raw:
                raise ToolRefused(f"{shown!r} is binary ({size:,} bytes): it cannot be shown as text")
            line = raw.removeprefix(b"\xef\xbb\xbf") if page.seen == 0 else raw
            style |= _style(raw, line)
            page.add(line.removesuffix(b"\n").removesuffix(b"\r").decode("utf-8", "replace"))
    _check_start(page, f"{page.seen:,} line(s)")
    last = page.start_line + len(page.kept) - 1
    which = f"lines {page.start_line}-{last} of {page.seen:,}" if page.kept else "empty"
    head = f"[{shown}: {size:,} bytes, {which}{''.join(f', {word}' for word in sorted(style))}]\n"
    return head + "\n".join(page.kept) + page.mark(f"{size:,}")


def _style(raw: bytes, line: bytes) -> set[str]:
    found = set()
    if raw.endswith(b"\r\n"):
        found.add("CRLF line endings")
    if len(line) < len(raw):
        found.add("a byte order mark")
    if not raw.endswith(b"\n"):
        found.add("no line break at its end")
    if "\ufffd" in line.decode("utf-8", "replace"):
        found.add("bytes that are not UTF-8 shown as \ufffd")
    return found


def _check_start(page: Page, total: str) -> None:
    if not page.kept and page.seen and page.start_line > page.seen:
        raise ToolRefused(f"start_line={page.start_line} is past the end: there are {total}")
