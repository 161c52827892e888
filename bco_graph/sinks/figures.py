"""What a run measures, as plain numbers by name, for systems that draw curves over the iterations."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, cast

from bco_graph.calibration import CalibrationRecord, calibration_scores
from bco_graph.config import RunConfig
from bco_graph.events import Event, View
from bco_graph.state import JSON, Verdict

SHOWN: dict[str, Any] = {
    "name": True, "method": True, "iterations": True, "suite": True, "grading": True, "max_failures": True,
    "roles": True, "proposer": {"kind", "max_refusals", "max_turns", "max_tokens", "protocol"},
    "evaluation": True, "budget": True, "world_model": True,
}  # fmt: skip
"""Parts of the config that are shown to other systems: no deployment, no command, no path."""


def settings(config: RunConfig) -> dict[str, JSON]:
    """Plain values by dotted key, such as `roles.target`."""
    return dict(_flat(config.model_dump(mode="json", include=SHOWN), ""))


def _flat(section: Mapping[str, JSON], prefix: str) -> Iterator[tuple[str, JSON]]:
    for key, value in section.items():
        if isinstance(value, dict):
            yield from _flat(value, f"{prefix}{key}.")
        else:
            yield f"{prefix}{key}", value


def figures(event: Event, view: View) -> dict[str, float]:
    """The numbers that an event adds to its iteration; `view` is where the run stands after it.

    After an evaluation `mean`, `coverage`, `best` and `passed`, and `spend/...` in calls, tokens and USD of the whole
    run; after a grade `held` (1 or 0), `subset_change` and `brier`, over all graded predictions so far; after an update
    `beliefs`, how many there are; after a look at the held-out tasks `heldout/mean`, `heldout/coverage` and
    `heldout/looks`, in the iteration of the candidate. What is not known is left out.
    """
    found = _FIGURES[event["type"]](event, view) if event["type"] in _FIGURES else {}
    return {name: float(value) for name, value in found.items() if value is not None}


def _candidate(event: Event, view: View) -> dict[str, Any]:
    best = view.means.get(view.best) if view.best else None
    if event["candidate"] is None:
        return {"best": best}
    return {"mean": event["mean"], "coverage": event["coverage"], "passed": event["passed"], "best": best}


def _heldout(event: Event, view: View) -> dict[str, Any]:
    return {f"heldout/{key}": event[key] for key in ("mean", "coverage", "looks")}


def _spend(event: Event, view: View) -> dict[str, Any]:
    totals = event["totals"].values()
    prices = [role["usd"] for role in totals]
    return {
        "spend/calls": sum(role["calls"] for role in totals),
        "spend/tokens": sum(role["prompt_tokens"] + role["completion_tokens"] for role in totals),
        "spend/usd": None if None in prices else sum(prices),
    }


def _grade(event: Event, view: View) -> dict[str, Any]:
    held = {"held": 1.0, "refuted": 0.0, "inert": 0.0}.get(event["verdict"])
    graded = [(each.confidence, each.verdict) for each in view.forecasts.values() if each.verdict is not None]
    scores = calibration_scores([CalibrationRecord(stated, cast(Verdict, verdict)) for stated, verdict in graded])
    return {"held": held, "subset_change": event["subset_change"], "brier": scores.brier}


def _beliefs(event: Event, view: View) -> dict[str, Any]:
    return {"beliefs": len(view.beliefs)}


_FIGURES = {
    "candidate": _candidate, "heldout": _heldout, "spend": _spend, "grade": _grade, "beliefs": _beliefs,
}  # fmt: skip
