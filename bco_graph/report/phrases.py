"""Parts of lines that the live view and the reports share: changes of beliefs, spend, reasons of a failure. Pure."""

from __future__ import annotations

from collections.abc import Mapping

from bco_graph.report.lines import Line, Part, fact
from bco_graph.report.wording import difference, one_line, tokens, usd
from bco_graph.state import JSON

VERDICT_STYLES = {"held": "green", "refuted": "red", "inert": "yellow", "void": "yellow", "undecided": "magenta"}
REASON_CHARACTERS = 1500
"""Shown of one reason of a failure; the whole is in the receipts."""


def reason_lines(reasons: list[str]) -> list[Line]:
    lines = []
    for reason in reasons:
        text = one_line(reason)
        left = len(text) - REASON_CHARACTERS
        shown = text if left <= 0 else f"{text[:REASON_CHARACTERS]} [... {left:,} characters more in the receipts]"
        lines.append(fact("", (f"- {shown}", "")))
    return lines


def belief_change(item: Mapping[str, JSON]) -> Part:
    """`+E4 0.50`, `-E1`, `E2 0.60 -> 0.75 confirmed`, `E3 and E5 into E3 0.70`; a status only where it is new."""
    name, before, after = item["id"], item["before"], item["after"]
    if after is None:
        return f"-{name}", "red"
    stated = f"{after['confidence']:.2f}"
    if item.get("merged"):
        return f"{' and '.join(item['merged'])} into {name} {stated}", "cyan"
    if before is None:
        return f"+{name} {stated}", "green"
    rise = difference(after["confidence"], before["confidence"])
    moved = f"{before['confidence']:.2f} -> {stated}" if rise else stated
    status = f" {after['status']}" if after["status"] != before["status"] else "" if rise else " reworded"
    return f"{name} {moved}{status}", direction(rise)


def decision_line(item: Mapping[str, JSON]) -> Line:
    """`by a person  approve: reject (Ada)  the reason  E1 0.70 -> 0.50 refuted`."""
    said = f"{item['step']}: {item['decision']}" + (f" ({one_line(item['by'])})" if item["by"] else "")
    reason = [(one_line(item["reason"]), "")] if item["reason"] else []
    return fact("a person", (said, "magenta"), *reason, *(belief_change(change) for change in item["changes"]))


def total(totals: dict[str, dict[str, JSON]]) -> tuple[int, float | None]:
    """Tokens and dollars of all roles of a `spend` event; dollars are None where one price is not known."""
    dollars = [spent["usd"] for spent in totals.values()]
    used = sum(spent["prompt_tokens"] + spent["completion_tokens"] for spent in totals.values())
    return used, None if None in dollars else sum(dollars)


def spend_parts(totals: dict[str, dict[str, JSON]]) -> list[Part]:
    return [
        (f"{role} {tokens(spent['prompt_tokens'] + spent['completion_tokens'])} tokens, {usd(spent['usd'])}", "")
        for role, spent in sorted(totals.items())
    ]


def direction(gain: float | None) -> str:
    shown = round(gain or 0.0, 3)
    return "green" if shown > 0 else "red" if shown < 0 else ""
