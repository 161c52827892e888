"""Fits lines and tables to a console: never wider than it is, cuts marked, strangers' text never taken for markup.

With `terminal`, the only module of the reports that imports rich; whoever renders something imports it then.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

from rich.cells import cell_len, set_cell_size
from rich.console import Console, ConsoleOptions, Group, RenderableType, RenderResult
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from bco_graph.report.lines import Line
from bco_graph.report.wording import visible

LABEL_CELLS = 13
"""Indent, label and gap before a fact."""
NARROWEST = 4
"""Cells below which nothing is indented or hung any more."""


def is_utf8(console: Console) -> bool:
    return console.encoding.lower().replace("-", "").startswith("utf")


@dataclass(frozen=True)
class Lines:
    """Renders headings, each after an empty row, and facts, each below its label."""

    lines: Sequence[Line]

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        for line in self.lines:
            if line.label is None:
                yield Text()
            for row in _fitted(line, console, options.max_width):
                row.no_wrap, row.overflow = True, "crop"
                yield row


@dataclass(frozen=True)
class Block:
    """Text of many rows as it is, control characters written out; long rows are wrapped."""

    text: str

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        for row in visible(self.text.expandtabs(4)).rstrip("\n").split("\n"):
            yield Text(_encodable(row, console))


def _fitted(line: Line, console: Console, width: int) -> Iterator[Text]:
    parts = [Text(_encodable(text, console), style) for text, style in line.parts]
    if line.label is None:
        yield _cut(Text("  ").join(parts), width, console)
        return
    indent = min(LABEL_CELLS, width // 3)
    label = f"  {line.label}"[: max(0, indent - 1)].ljust(indent)
    room = width - indent
    rows = _packed(parts, room, console) if line.whole else [_cut(Text("  ").join(parts), room, console)]
    for index, row in enumerate(rows):
        row.rstrip()
        yield Text.assemble((label, "dim") if index == 0 else " " * indent, row)


def _packed(parts: Iterable[Text], cells: int, console: Console) -> list[Text]:
    """Rows of at most so many cells: as many whole parts as fit; a part that is longer is wrapped at blanks."""
    rows: list[Text] = []
    for part in parts:
        if rows and rows[-1].cell_len + 2 + part.cell_len <= cells:
            rows[-1] = Text.assemble(rows[-1], "  ", part)
        else:
            rows += _wrapped(part, cells, console)
    return rows


def _wrapped(part: Text, cells: int, console: Console) -> list[Text]:
    """Its rows; those of an item that begins with `- ` hang below its text."""
    if not part.plain.startswith("- ") or cells < NARROWEST:
        return list(part.wrap(console, max(1, cells)))
    rows = part[2:].wrap(console, cells - 2)
    return [Text.assemble("- " if index == 0 else "  ", row) for index, row in enumerate(rows)]


def _cut(text: Text, cells: int, console: Console) -> Text:
    """The text, or its beginning with a mark, in at most so many cells."""
    if text.cell_len <= cells:
        return text
    mark = "…" if is_utf8(console) else "..."
    kept = set_cell_size(text.plain, max(0, cells - cell_len(mark))).rstrip()
    return text[: len(kept)].append(mark)


def _encodable(text: str, console: Console) -> str:
    return text.encode(console.encoding, errors="replace").decode(console.encoding)


def columns(
    heads: Sequence[str],
    rows: Iterable[Sequence[str]],
    *,
    right: Sequence[str] = (),
    wraps: Sequence[str] = (),
    indent: int = 2,
) -> RenderableType:
    """A table without rules. Columns of `right` hold figures; only those of `wraps` give way on a narrow console."""
    table = Table(box=None, padding=(0, 2, 0, 0), header_style="dim", pad_edge=False)
    for head in heads:
        table.add_column(head, justify="right" if head in right else "left", no_wrap=head not in wraps, overflow="fold")
    for row in rows:
        table.add_row(*(Text(visible(cell)) for cell in row))
    return Padding(table, (0, 0, 0, indent), expand=False)


def stacked(*parts: RenderableType | None) -> Group:
    return Group(*(part for part in parts if part is not None))
