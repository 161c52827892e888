"""A line for a person, before it is fitted to a console: headings and facts. Pure; `layout` renders them."""

from __future__ import annotations

from dataclasses import dataclass

from bco_graph.report.wording import one_line

Part = tuple[str, str]
"""Text and its style, in rich's words (`bold`, `red`); an empty style is plain."""


@dataclass(frozen=True, slots=True)
class Line:
    """A heading (no label) or a fact. Parts stand two blanks apart; a new row begins between parts where it can.

    `whole`: goes on in the next row where it is too long, instead of being cut.
    """

    label: str | None
    parts: tuple[Part, ...]
    whole: bool = False


def heading(*parts: Part) -> Line:
    return Line(None, tuple(part for part in parts if part[0]))


def fact(label: str, *parts: Part) -> Line:
    return Line(label, tuple(part for part in parts if part[0]), whole=True)


def prose(label: str, text: str, style: str = "") -> Line:
    """One row of somebody's own words, cut at the edge."""
    return Line(label, ((one_line(text), style),))
