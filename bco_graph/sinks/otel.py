"""A run as spans over OTLP: run > iteration > node > task.

A run is one trace, also over several processes; each process that drives it has a `run` span of its own. A span is sent
when it has ended, so that tasks show up while their node is still at work.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from bco_graph.events import Event, View
from bco_graph.protocols import SinkRun
from bco_graph.sink_sections import OtelSink
from bco_graph.sinks.figures import figures

if TYPE_CHECKING:
    from opentelemetry.sdk.trace.export import SpanExporter
    from opentelemetry.trace import Span

TIMEOUT_S = 10.0
"""For sending some spans, tries included."""


class ToOtel:
    """`exporter` takes the place of OTLP over HTTP."""

    def __init__(self, section: OtelSink, *, exporter: SpanExporter | None = None) -> None:
        self._section = section
        self._exporter = exporter
        self._open: list[tuple[str, Span]] = []
        """What is under way, outermost first: a key of it, and its span."""
        self._at = 0

    def open(self, run: SinkRun) -> Mapping[str, str]:
        from bco_graph.sinks.spans import Tracing, new_trace_id

        trace = run.ids.get("trace_id") or new_trace_id()
        self._exporter = self._exporter or self._over_http()
        self._tracing = Tracing(trace, self._section.service, self._exporter)
        self._run = run
        return {"trace_id": trace}

    def _over_http(self) -> SpanExporter:
        from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter

        return OTLPSpanExporter(endpoint=self._section.endpoint, timeout=TIMEOUT_S)

    def take(self, event: Event, view: View) -> None:
        kind = event["type"]
        if kind == "run_started":
            self._end(0)  # of a process that was killed, at the last that is known of it
        self._at = round(event["at"] * 1e9)
        self._enter(event)
        if kind == "node_started":
            self._begin(f"node {event['node']}", event["node"], {"bco.node": event["node"]})
        elif kind == "node_ended":
            self._end(2)
        elif kind == "task_done":
            self._task(event)
        else:
            self._describe(event, view)

    def _enter(self, event: Event) -> None:
        """Open the run's span, and the iteration's; end what came before and is over."""
        if not self._open:
            settings = {f"bco.{key}": value for key, value in self._run.settings.items() if value is not None}
            self._begin("run", f"bco run {self._run.name}", settings)
        if event["type"] in _OF_THE_RUN:
            return
        heldout = event["type"] == "heldout" or event.get("split") == "heldout"
        key = f"held-out {event['candidate']}" if heldout else f"iteration {event['iteration']}"
        if len(self._open) == 1 or self._open[1][0] != key:
            self._end(1)
            self._begin(key, key, {"bco.iteration": event["iteration"]})
        elif event["type"] == "node_started":
            self._end(2)  # the node before it has no end: it waited for somebody

    def _begin(self, key: str, name: str, attributes: Mapping[str, Any]) -> None:
        parent = self._open[-1][1] if self._open else None
        self._open.append((key, self._tracing.start(name, parent, self._at, attributes)))

    def _end(self, depth: int) -> None:
        """End what is under way below a depth, the innermost first."""
        while len(self._open) > depth:
            self._open.pop()[1].end(self._at)

    def _task(self, event: Event) -> None:
        keys = ("candidate", "split", "repeat", "kind", "score", "tokens", "usd")
        attributes = {f"bco.{key}": event[key] for key in keys if event[key] is not None}
        started = self._at - round(event["seconds"] * 1e9)
        self._tracing.start(f"task {event['task']}", self._open[-1][1], started, attributes).end(self._at)

    def _describe(self, event: Event, view: View) -> None:
        """What else happened is said on the span that it is about."""
        kind, run = event["type"], self._open[0][1]
        facts = {f"bco.{key}": event[key] for key in _TOLD.get(kind, ()) if event[key] is not None}
        if kind in _OF_THE_RUN:
            run.set_attributes(facts)
            if kind == "run_failed":
                self._tracing.failed(run, f"{event['error']}: {event['message']}")
            elif kind == "warning":
                run.add_event(kind, {"about": event["about"], "message": event["message"]}, self._at)
            return
        if kind in ("step_refused", "step_failed"):
            told: dict[str, Any] = {key: event[key] for key in ("step", "cause", "reasons") if key in event}
            self._open[-1][1].add_event(kind, told, self._at)
            return
        about = self._open[1][1]
        about.set_attributes({**facts, **{f"bco.{key}": value for key, value in figures(event, view).items()}})
        if kind == "candidate" and (failure := event["failure"]):
            self._tracing.failed(about, f"step {failure['step']}: {failure['cause']}")

    def flush(self) -> None:
        self._tracing.export()

    def close(self, view: View, artifacts: Mapping[str, str]) -> None:
        self._end(0)
        self._tracing.export()
        self._tracing.close()


_OF_THE_RUN = frozenset({"run_started", "run_ended", "run_failed", "warning", "unreadable"})
"""Events that are about no iteration."""
_TOLD: Mapping[str, Sequence[str]] = {
    "candidate": ("candidate", "parent"),
    "heldout": ("candidate", "tasks", "passed"),
    "proposal": ("name", "mode", "beliefs", "mechanism"),
    "prediction": ("confidence", "expected", "low", "high", "digest"),
    "grade": ("verdict", "cause"),
    "run_ended": ("stop", "best", "mean", "baseline"),
}
"""Fields that become attributes beside the figures, by type of event."""
