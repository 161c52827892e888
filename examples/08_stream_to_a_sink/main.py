"""A run's events in two places at once: spans in an OpenTelemetry collector, and the LangGraph stream.

python main.py        # no key; needs the extra `otel`. The collector stands below, on this machine
"""

import asyncio
import sys
import threading
from collections import Counter
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest

from bco_graph import RunHandle, View, create_bco, recursion_limit, reduce

sys.path.insert(0, str(Path(__file__).parents[1] / "01_offline"))
from main import config_for, server

SPANS: list = []


class Collector(BaseHTTPRequestHandler):
    """Takes spans as any OTLP collector does; yours is Jaeger, Tempo, Langfuse, or what you have."""

    def do_POST(self) -> None:
        request = ExportTraceServiceRequest.FromString(self.rfile.read(int(self.headers["Content-Length"])))
        for resource in request.resource_spans:
            SPANS.extend(span for scope in resource.scope_spans for span in scope.spans)
        self.send_response(200)
        self.send_header("Content-Length", "0")
        self.end_headers()

    def log_message(self, *_) -> None:
        pass


def show(parent: bytes = b"", depth: int = 0) -> None:
    """The tree of spans, without those of single tasks."""
    below = [span for span in SPANS if span.parent_span_id == parent]
    for span in sorted(below, key=lambda span: span.start_time_unix_nano):
        if not span.name.startswith("task "):
            told = {one.key.removeprefix("bco."): one.value for one in span.attributes}
            figures = [f"{key} {told[key].double_value:.2f}" for key in ("mean", "brier") if key in told]
            print("  " * depth + " ".join([span.name, *figures]))
            show(span.span_id, depth + 1)


async def main() -> None:
    collector = ThreadingHTTPServer(("127.0.0.1", 0), Collector)
    threading.Thread(target=collector.serve_forever, daemon=True).start()
    sink = {"kind": "otel", "endpoint": f"http://127.0.0.1:{collector.server_port}/v1/traces"}
    seen: Counter[str] = Counter()
    view = View()
    with server() as models:
        config = config_for(models, name="to-a-sink", sinks=[sink])  # in bco.yaml: sinks: [{kind: otel, ...}]
        handle = RunHandle(config)
        graph = create_bco(config, handle=handle).compile()
        async for event in graph.astream({}, {"recursion_limit": recursion_limit(config)}, stream_mode="custom"):
            seen[event["type"]] += 1
            view = reduce(view, event)  # where the run stands after this event; a sink of your own is told the same
        handle.close()  # sinks get what is left
    collector.shutdown()
    collector.server_close()
    show()
    tasks = sum(span.name.startswith("task ") for span in SPANS)
    print(f"tasks: {tasks} spans in the collector, {seen['task_done']} events in the stream; best {view.best}")


if __name__ == "__main__":
    asyncio.run(main())
