"""Reads the predictions that the paper's authors published, in their earlier shape. Pure."""

from __future__ import annotations

import re
from typing import TypedDict

from bco_graph.errors import DocumentError
from bco_graph.prediction import SOURCE, open_prediction
from bco_graph.prose import Section


class PaperPrediction(TypedDict):
    """A prediction of the paper's earlier protocol. Changes and pass rates are shares; `absolute` may be missing."""

    iteration: int
    candidate: str
    mechanism: str
    interval: tuple[float, float]
    absolute: tuple[float, float] | None
    falsification: str
    sections: dict[str, str]
    """The other sections, verbatim, by heading."""


_OUTCOME = "outcome prediction"
_TAKEN = ("candidate", "mechanism", "falsification")
_PASSRATE = re.compile(r"\s*[-*]\s+\**(?:train )?pass ?rate (?:Δ|∆|delta)\**\s*:\**(.*)", re.IGNORECASE)
_SIGNED = r"[+\-−–]?(?:\d+(?:\.\d*)?|\.\d+)"
_BRACKET = re.compile(rf"\s*\[\s*({_SIGNED})\s*,\s*({_SIGNED})\s*\]", re.ASCII)
_RANGE = re.compile(r"(?<![\d.])(\d?\.\d+)\s*[-–—]\s*~?(\d?\.\d+)", re.ASCII)


def read_paper_prediction(text: str) -> PaperPrediction:
    """Read a prediction in the paper's earlier shape, whose bet stands in one line such as
    `- Train passrate Δ: [+0.03, +0.07] (to ~0.56–0.60)`.

    Signs may be ASCII or Unicode, ranges may use any dash; the first decimal range after the bracket is the absolute
    interval. Raises DocumentError with the number of the line that cannot be read.
    """
    iteration, sections = open_prediction(text)
    if missing := [name for name in (*_TAKEN, _OUTCOME) if name not in sections]:
        raise DocumentError(f"missing section(s): {', '.join(missing)}", source=SOURCE)
    interval, absolute = _read_bet(sections[_OUTCOME])
    return PaperPrediction(
        iteration=iteration,
        candidate=sections["candidate"].body.strip(),
        mechanism=sections["mechanism"].body.strip(),
        interval=interval,
        absolute=absolute,
        falsification=sections["falsification"].body.strip(),
        sections={s.heading: s.body for name, s in sections.items() if name not in _TAKEN},
    )


def _read_bet(section: Section) -> tuple[tuple[float, float], tuple[float, float] | None]:
    found = [
        (at, match[1])
        for at, line in enumerate(section.lines, start=section.line + 1)
        if (match := _PASSRATE.fullmatch(line))
    ]
    if len(found) != 1:
        at = found[1][0] if found else section.line
        raise DocumentError(
            f"expected one line `- Train passrate Δ: [low, high]`, not {len(found)}", line=at, source=SOURCE
        )
    at, rest = found[0]
    bracket = _BRACKET.match(rest)
    bounds = [float(re.sub("[−–]", "-", bound)) for bound in bracket.groups()] if bracket else []
    if not bracket or bounds != sorted(bounds):
        raise DocumentError(
            f"expected an interval such as [+0.03, +0.07], not {rest.strip()!r}", line=at, source=SOURCE
        )
    low, high = bounds
    absolute = _RANGE.search(rest)
    return (low, high), (float(absolute[1]), float(absolute[2])) if absolute else None
