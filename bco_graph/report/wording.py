"""How figures and strangers' text are worded, the same in the live view and in the reports. Pure, plain text."""

from __future__ import annotations

import re
from typing import Any

BASELINE = "iter_000"
FIT_SCORE = "fit score"
"""A mean on the tasks that the search saw: it claims nothing about other tasks."""

STOPS = {
    "iterations": "all iterations were run",
    "budget": "a budget is used up",
    "failures": "too many failed iterations in a row",
    "drained": "SIGTERM, after the node under way had ended",
}

_UNSHOWABLE = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\u200e\u200f\u2028\u2029\u202a-\u202e\u2066-\u2069\ud800-\udfff]")
"""Controls, direction marks that can reorder a line, and what UTF-8 cannot hold; tab and newline may stay."""


def visible(text: str) -> str:
    """Text with what could steer a terminal written out, such as `\\x1b`; tabs and newlines stay."""
    return _UNSHOWABLE.sub(lambda match: ascii(match[0])[1:-1], text)


def one_line(text: Any) -> str:
    return visible(" ".join(str(text).split()))


def score(value: float | None) -> str:
    """A mean in [0, 1]."""
    return "none" if value is None else f"{value:.3f}"


def change(value: float | None) -> str:
    """A change of a mean in [-1, 1], always signed; a change that rounds to nothing is `+0.000`."""
    return "none" if value is None else f"{round(value, 3) + 0.0:+.3f}"


def difference(value: float | None, other: float | None) -> float | None:
    """`value - other`, or None where one of them is missing."""
    return None if value is None or other is None else value - other


def tokens(count: int) -> str:
    """`950`, `12.3k`, `4.57M`."""
    if count < 1_000:
        return str(count)
    return f"{count / 1_000:.1f}k" if count < 999_950 else f"{count / 1_000_000:.2f}M"


def usd(amount: float | None) -> str:
    """`$1.25`; up to four digits below ten cents, so that small sums are not shown as nothing."""
    if amount is None:
        return "unknown price"
    if amount >= 0.1 or amount == 0:
        return f"${amount:,.2f}"
    digits = f"{amount:.4f}".rstrip("0")
    return f"${digits.ljust(4, '0')}" if float(digits) else "below $0.0001"


def duration(seconds: float) -> str:
    """`0:08`, `1:02:03`."""
    minutes, rest = divmod(round(max(0.0, seconds)), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02}:{rest:02}" if hours else f"{minutes}:{rest:02}"


def count(number: int, noun: str) -> str:
    """`1 task`, `2 tasks`."""
    return f"{number:,} {noun}{'' if number == 1 else 's'}"


def kinds(counts: dict[str, int], *, less: tuple[str, ...] = ("scored",)) -> str:
    """`3 timeout, 1 infra_error`: how many rows had which outcome, `less` some kinds."""
    return ", ".join(f"{number} {kind}" for kind, number in sorted(counts.items()) if kind not in less)


def interval(expected: float, low: float, high: float) -> str:
    return f"{change(expected)} [{change(low)}, {change(high)}]"


def over_bound(losses: int | None, bound: int | None) -> str:
    """Said only where more tasks were lost than the prediction allowed, since that alone can refute it."""
    if losses is None or bound is None or losses <= bound:
        return ""
    return f"{count(losses, 'task')} lost, at most {bound} predicted"


def subset(tasks: list[str], types: list[str], *, names: int = 3) -> str:
    """What a prediction is about: up to `names` types by name, tasks by number."""
    shown = [one_line(name) for name in types] if len(types) <= names else [count(len(types), "type")]
    return ", ".join([*shown, *([count(len(tasks), "task")] if tasks else [])])
