"""OpenTelemetry's own objects: spans of one trace, kept until they are exported together."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from opentelemetry.context import Context
from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace import ReadableSpan, SpanProcessor, TracerProvider
from opentelemetry.sdk.trace.export import SpanExporter, SpanExportResult
from opentelemetry.sdk.trace.id_generator import RandomIdGenerator
from opentelemetry.sdk.trace.sampling import ALWAYS_ON
from opentelemetry.trace import Span, Status, StatusCode, format_trace_id, set_span_in_context

BATCH = 512
"""Spans sent at once."""


def new_trace_id() -> str:
    return format_trace_id(RandomIdGenerator().generate_trace_id())


class _OneTrace(RandomIdGenerator):
    def __init__(self, trace_id: int) -> None:
        self._trace_id = trace_id

    def generate_trace_id(self) -> int:
        return self._trace_id


class _Ended(SpanProcessor):
    def __init__(self) -> None:
        self.spans: list[ReadableSpan] = []

    def on_end(self, span: ReadableSpan) -> None:
        self.spans.append(span)


class Tracing:
    """Starts spans of one trace. Times are in nanoseconds since the epoch; nothing process-wide is set."""

    def __init__(self, trace_id: str, service: str, exporter: SpanExporter) -> None:
        self._exporter = exporter
        self._ended = _Ended()
        self._provider = TracerProvider(
            sampler=ALWAYS_ON, resource=Resource.create({"service.name": service}), shutdown_on_exit=False,
            id_generator=_OneTrace(int(trace_id, 16)),
        )  # fmt: skip
        self._provider.add_span_processor(self._ended)
        self._tracer = self._provider.get_tracer("bco_graph")

    def start(self, name: str, parent: Span | None, at_ns: int, attributes: Mapping[str, Any]) -> Span:
        context = Context() if parent is None else set_span_in_context(parent, Context())
        return self._tracer.start_span(name, context=context, start_time=at_ns, attributes=dict(attributes))

    def failed(self, span: Span, why: str) -> None:
        span.set_status(Status(StatusCode.ERROR, why))

    def export(self) -> None:
        """Send every span that has ended. Raises ConnectionError where the collector does not take them."""
        while spans := self._ended.spans[:BATCH]:
            if self._exporter.export(spans) is not SpanExportResult.SUCCESS:
                raise ConnectionError("the collector took no spans")
            del self._ended.spans[: len(spans)]

    def close(self) -> None:
        self._provider.shutdown()
        self._exporter.shutdown()
