"""What it costs to resume a long run: from opening its folder until its next round begins.

    python tests/bench/resume.py [ROUNDS]      (1,000 by default; a few minutes, most of them to make the run)

The resumed process is a new one; its imports are not counted. One line of output, seconds by wall and by processor.
"""

from __future__ import annotations

import asyncio
import json
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from bco_graph.events import Event
from tests.bench.many_rounds import cpu_s, play

TASKS = 40


def resumed(folder: Path, rounds: int) -> dict[str, float]:
    """Seconds until the node of the next round begins, and until its proposer is asked."""
    began, used = time.perf_counter(), cpu_s()
    figures: dict[str, float] = {}

    def on_event(event: Event) -> None:
        for name, type_ in (("begun", "node_started"), ("proposed", "proposal")):
            if event["type"] == type_ and f"{name}_s" not in figures:
                figures[f"{name}_s"] = round(time.perf_counter() - began, 3)
                figures[f"{name}_cpu_s"] = round(cpu_s() - used, 3)

    asyncio.run(play(folder, rounds + 1, tasks=TASKS, on_event=on_event))
    return figures


def main() -> None:
    rounds = int(sys.argv[1]) if len(sys.argv) > 1 else 1000
    with tempfile.TemporaryDirectory() as scratch:
        asyncio.run(play(Path(scratch), rounds, tasks=TASKS))
        command = [sys.executable, __file__, str(rounds), scratch]
        figures = json.loads(subprocess.run(command, check=True, capture_output=True, text=True).stdout)
    print(json.dumps({"rounds": rounds, "tasks": TASKS, **figures}))


if __name__ == "__main__":
    if len(sys.argv) > 2:
        print(json.dumps(resumed(Path(sys.argv[2]), int(sys.argv[1]))))
    else:
        main()
