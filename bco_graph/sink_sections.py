"""The entries of `sinks:` in bco.yaml: which other systems get a run's events, and how they are reached."""

from __future__ import annotations

from importlib.metadata import entry_points
from typing import Annotated, Any, Literal

from pydantic import BeforeValidator, Discriminator, Field, Tag

from bco_graph.sections import Name, PlainUrl, Section, nearest


class MlflowSink(Section):
    """Metrics, params and artifacts to MLflow; the extra `mlflow`."""

    kind: Literal["mlflow"]
    tracking_uri: PlainUrl | None = None
    """None: what mlflow takes itself, MLFLOW_TRACKING_URI first. Credentials stay in its own variables."""
    experiment: Name = "bco-graph"


class WandbSink(Section):
    """Metrics, config and artifacts to Weights & Biases; the extra `wandb`. Its key is WANDB_API_KEY, or a login."""

    kind: Literal["wandb"]
    project: Name = "bco-graph"
    entity: Name | None = None
    mode: Literal["online", "offline"] = "online"
    """`offline`: into the run folder's `sinks/wandb`, for `wandb sync`."""


class OtelSink(Section):
    """Spans over OTLP/HTTP; the extra `otel`. Headers are OTEL_EXPORTER_OTLP_HEADERS."""

    kind: Literal["otel"]
    endpoint: PlainUrl | None = None
    """The whole URL for traces; None: OTEL_EXPORTER_OTLP_ENDPOINT, else http://localhost:4318/v1/traces."""
    service: Name = "bco-graph"


class OtherSink(Section):
    """An installed sink of somebody else's; `options` are its factory's keyword arguments."""

    kind: Name
    options: dict[str, Any] = Field(default_factory=dict)


SINK_GROUP = "bco_graph.sinks"
"""Entry points of sinks."""
SINKS: dict[str, type[Section]] = {"mlflow": MlflowSink, "wandb": WandbSink, "otel": OtelSink}
"""The sections of our own sinks, by kind."""


def _sink_tag(given: Any) -> str:
    kind = given.get("kind") if isinstance(given, dict) else getattr(given, "kind", None)
    return kind if kind in SINKS else "other"


def _known_sink(given: Any) -> Any:
    kind = given.get("kind") if isinstance(given, dict) else None
    if isinstance(kind, str) and kind not in SINKS:
        known = [*SINKS, *sorted(point.name for point in entry_points(group=SINK_GROUP))]
        if kind not in known:
            where = f"others are installed as entry points of the group {SINK_GROUP!r}"
            raise ValueError(f"unknown kind of sink {kind!r}{nearest(kind, known)}; known: {', '.join(known)}; {where}")
    return given


Sink = Annotated[
    Annotated[MlflowSink, Tag("mlflow")]
    | Annotated[WandbSink, Tag("wandb")]
    | Annotated[OtelSink, Tag("otel")]
    | Annotated[OtherSink, Tag("other")],
    Discriminator(_sink_tag),
    BeforeValidator(_known_sink),
]
