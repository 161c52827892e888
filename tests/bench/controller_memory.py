"""What the controller holds while 1,449 tasks end with traces of 100 KB each: peak resident memory beyond the start.

    python tests/bench/controller_memory.py [TASKS]

The tasks are those of one evaluation, in the executor, with calls through the gateway. One line of output; `beyond_mb`
counts from the first task on, when everything is imported and opened.
"""

from __future__ import annotations

import asyncio
import json
import os
import resource
import sys
import tempfile
from pathlib import Path

from bco_graph.events import Event
from tests.bench.many_rounds import play

TRACE_BYTES = 100_000


def resident_mb() -> float:
    pages = int(Path("/proc/self/statm").read_text(encoding="ascii").split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE") / 1e6


def main() -> None:
    tasks = int(sys.argv[1]) if len(sys.argv) > 1 else 1449
    at_start: list[float] = []

    def on_event(event: Event) -> None:
        if event["type"] == "evaluation":
            at_start.append(resident_mb())

    with tempfile.TemporaryDirectory() as scratch:
        run = asyncio.run(play(Path(scratch), 0, tasks=tasks, here=False, trace_bytes=TRACE_BYTES, on_event=on_event))
        on_disk = sum(path.stat().st_size for path in (run / "workspace" / "iterations").rglob("*.json"))
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024 / 1e6
    figures = {"start_mb": at_start[0], "peak_mb": peak, "beyond_mb": peak - at_start[0], "traces_mb": on_disk / 1e6}
    print(json.dumps({"tasks": tasks} | {name: round(value, 1) for name, value in figures.items()}))


if __name__ == "__main__":
    main()
