"""Where a run stands, from its events alone: one pure function for the terminal, for `bco watch` and for the sinks."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from bco_graph.events.schema import Event


@dataclass(frozen=True, slots=True)
class Work:
    """An evaluation under way. `since` is in seconds since the epoch; `tokens` and `usd` are of its tasks so far."""

    candidate: str
    split: str
    tasks: int
    done: int
    done_before: int
    since: float
    tokens: int = 0
    usd: float | None = 0.0


@dataclass(frozen=True, slots=True)
class Forecast:
    """A sealed prediction: what it stated and, once it is graded, the verdict."""

    confidence: float
    verdict: str | None = None


@dataclass(frozen=True, slots=True)
class HeldOutMean:
    """A candidate on the held-out tasks. `looks` counts those of the whole run, up to this one."""

    mean: float | None
    coverage: float
    tasks: int
    looks: int


@dataclass(frozen=True, slots=True)
class View:
    """All that is known of a run; the empty one is where `reduce` starts."""

    name: str = ""
    """Empty before the first `run_started`."""
    method: str = ""
    iterations: int = 0
    iteration: int = 0
    node: str | None = None
    node_since: float = 0.0
    """Seconds since the epoch."""
    work: Work | None = None
    means: Mapping[str, float | None] = field(default_factory=dict)
    """Mean score by candidate."""
    best: str | None = None
    heldout: Mapping[str, HeldOutMean] = field(default_factory=dict)
    """By candidate, of those that were measured there."""
    spend: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    """Totals by role, as the last `spend` event had them."""
    beliefs: Mapping[str, float] = field(default_factory=dict)
    """Confidence by belief that the world model holds."""
    forecasts: Mapping[int, Forecast] = field(default_factory=dict)
    """By iteration."""
    ended: bool = False
    stop: str | None = None
    error: str | None = None
    warnings: tuple[str, ...] = ()
    told_of: int = -1
    told: frozenset[str] = frozenset()
    """Types that the iteration `told_of`, the newest, has said of those that an iteration has once."""


ONCE = frozenset({"proposal", "prediction", "candidate", "grade", "beliefs", "spend"})
"""Types of which an iteration has one; a node that runs again after a kill repeats them."""


def repeated(view: View, event: Event) -> bool:
    """Whether the event was told before: a sink takes it once, whatever a resumed run says again."""
    iteration, kind = event["iteration"], event["type"]
    if kind == "heldout":
        return view.heldout.get(event["candidate"]) == _held_out_mean(event)
    return kind in ONCE and (iteration < view.told_of or (iteration == view.told_of and kind in view.told))


def reduce(view: View, event: Event) -> View:
    """The view after one more event. Pure; a type that is not known, as newer versions may write, changes nothing."""
    kind = event["type"]
    reducer = _REDUCERS.get(kind)
    if reducer is None:
        return view
    changed, iteration = reducer(view, event), event["iteration"]
    if kind in ONCE and iteration >= view.told_of:
        earlier = view.told if iteration == view.told_of else frozenset()
        changed = replace(changed, told_of=iteration, told=earlier | {kind})
    return changed if changed.iteration == iteration else replace(changed, iteration=iteration)


def _run_started(view: View, event: Event) -> View:
    earlier = {candidate["id"]: candidate["mean"] for candidate in event.get("candidates", [])}
    return replace(
        view, name=event.get("name", ""), method=event.get("method", ""), iterations=event.get("iterations", 0),
        node=None, work=None, means={**view.means, **earlier}, ended=False, stop=None, error=None,
    )  # fmt: skip


def _node_started(view: View, event: Event) -> View:
    return replace(view, node=event["node"], node_since=event["at"], work=None)


def _node_ended(view: View, event: Event) -> View:
    return replace(view, node=None, work=None)


def _evaluation(view: View, event: Event) -> View:
    done = event["done"]
    if done >= event["tasks"]:
        return replace(view, work=None)
    work = Work(event["candidate"], event["split"], event["tasks"], done, done, event["at"])
    return replace(view, work=work)


def _task_done(view: View, event: Event) -> View:
    work = view.work
    if work is None or event["done"] >= work.tasks:
        return replace(view, work=None)
    cost = event.get("usd", 0.0)
    return replace(
        view,
        work=replace(
            work,
            done=event["done"],
            tokens=work.tokens + event.get("tokens", 0),
            usd=None if work.usd is None or cost is None else work.usd + cost,
        ),
    )


def _candidate(view: View, event: Event) -> View:
    made = {event["candidate"]: event["mean"]} if event["candidate"] is not None else {}
    return replace(view, means={**view.means, **made}, best=event["best"])


def _heldout(view: View, event: Event) -> View:
    return replace(view, heldout={**view.heldout, event["candidate"]: _held_out_mean(event)}, work=None)


def _held_out_mean(event: Event) -> HeldOutMean:
    return HeldOutMean(event["mean"], event["coverage"], event["tasks"], event["looks"])


def _prediction(view: View, event: Event) -> View:
    forecast = view.forecasts.get(event["iteration"], Forecast(event["confidence"]))
    return replace(
        view, forecasts={**view.forecasts, event["iteration"]: replace(forecast, confidence=event["confidence"])}
    )


def _grade(view: View, event: Event) -> View:
    forecast = view.forecasts.get(event["iteration"])
    if forecast is None:
        return view
    return replace(view, forecasts={**view.forecasts, event["iteration"]: replace(forecast, verdict=event["verdict"])})


def _beliefs(view: View, event: Event) -> View:
    held = dict(view.beliefs)
    for change in event["changes"]:
        for gone in (change["id"], *change.get("merged", ())):
            held.pop(gone, None)
        if change["after"] is not None:
            held[change["id"]] = change["after"]["confidence"]
    return replace(view, beliefs=held)


def _spend(view: View, event: Event) -> View:
    return replace(view, spend=event["totals"])


def _warning(view: View, event: Event) -> View:
    return replace(view, warnings=(*view.warnings, f"{event['about']}: {event['message']}"))


def _run_ended(view: View, event: Event) -> View:
    return replace(view, ended=True, stop=event.get("stop"), best=event.get("best"), node=None, work=None)


def _run_failed(view: View, event: Event) -> View:
    return replace(view, ended=True, error=f"{event['error']}: {event['message']}", node=None, work=None)


def _nothing(view: View, event: Event) -> View:
    return view


_REDUCERS: Mapping[str, Callable[[View, Event], View]] = {
    "run_started": _run_started,
    "node_started": _node_started,
    "node_ended": _node_ended,
    "evaluation": _evaluation,
    "task_done": _task_done,
    "candidate": _candidate,
    "heldout": _heldout,
    "proposal": _nothing,
    "prediction": _prediction,
    "grade": _grade,
    "beliefs": _beliefs,
    "decided": _beliefs,
    "spend": _spend,
    "warning": _warning,
    "run_ended": _run_ended,
    "run_failed": _run_failed,
}
