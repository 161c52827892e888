"""Other systems that get a run's events: MLflow, Weights & Biases, OpenTelemetry, and whatever is installed beside.

want                                     open
the seam                                 protocols.Sink
how a sink is fed from the event log     feed.py
what is measured in an iteration         figures.py
one system each                          mlflow.py, wandb.py, otel.py
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Sequence
from importlib.metadata import entry_points
from importlib.util import find_spec
from typing import Any

from bco_graph.errors import ConfigError, MissingExtra
from bco_graph.protocols import Sink
from bco_graph.receipts import dumps
from bco_graph.sections import Section
from bco_graph.sink_sections import SINK_GROUP, MlflowSink, OtelSink, OtherSink, WandbSink
from bco_graph.sinks.feed import Feed, Feeds

__all__ = ["Feed", "Feeds", "make_sinks"]

_NEEDS = {
    "mlflow": ("mlflow",),
    "wandb": ("wandb",),
    "otel": ("opentelemetry.sdk", "opentelemetry.exporter.otlp.proto.http"),
}
"""What the extra of each kind installs; looked for, and imported on the sink's own thread."""


def make_sinks(sections: Sequence[MlflowSink | WandbSink | OtelSink | OtherSink]) -> dict[str, Sink]:
    """Each sink by a name that stays the same as long as its section does. Nothing is opened yet.

    Raises MissingExtra, and ConfigError for an installed sink that does not take its options.
    """
    return {_name(section): _make(section) for section in sections}


def _name(section: Any) -> str:
    digest = hashlib.sha256(dumps(section.model_dump(mode="json")).encode()).hexdigest()[:8]
    return f"{section.kind}-{digest}"


def _make(section: Section) -> Sink:
    if isinstance(section, OtherSink):
        return _stranger(section)
    kind, factory = _ours(section)
    if not all(_installed(module) for module in _NEEDS[kind]):
        raise MissingExtra(f"a sink of kind {kind!r}", extra=kind)
    return factory()


def _ours(section: Section) -> tuple[str, Callable[[], Sink]]:
    if isinstance(section, MlflowSink):
        from bco_graph.sinks.mlflow import ToMlflow

        return "mlflow", lambda: ToMlflow(section)
    if isinstance(section, WandbSink):
        from bco_graph.sinks.wandb import ToWandb

        return "wandb", lambda: ToWandb(section)
    assert isinstance(section, OtelSink)
    from bco_graph.sinks.otel import ToOtel

    return "otel", lambda: ToOtel(section)


def _installed(module: str) -> bool:
    try:
        return find_spec(module) is not None
    except ModuleNotFoundError:
        return False


def _stranger(section: OtherSink) -> Sink:
    factory = next(point for point in entry_points(group=SINK_GROUP) if point.name == section.kind).load()
    try:
        sink = factory(**section.options)
    except TypeError as error:
        raise ConfigError(f"sink {section.kind!r} does not take the options {section.options}: {error}") from error
    if not isinstance(sink, Sink):
        raise ConfigError(f"sink {section.kind!r} lacks a method of bco_graph.Sink")
    return sink
