"""What a round of all five nodes costs, and whether the last costs more than the tenth: 40 tasks, everything on disk.

    python tests/bench/round.py [ROUNDS]      (1,000 by default; a few minutes)

Proposer and model answer at once. One line of output: medians of ten rounds in milliseconds, by wall and by processor
(children included: git), of the loop alone; `whole_*` with candidates in the executor that call the model through the
gateway. `ratio` is that of processor times, the last ten rounds to the ten from the tenth on.
"""

from __future__ import annotations

import asyncio
import json
import statistics
import sys
import tempfile
import time
from itertools import pairwise
from pathlib import Path

from bco_graph.events import Event
from tests.bench.many_rounds import cpu_s, ends_a_round, play

TASKS, WHOLE_ROUNDS = 40, 12


def timed(rounds: int, *, here: bool) -> tuple[list[float], list[float]]:
    """Milliseconds of each round, by wall and by processor."""
    walls, cpus = [time.perf_counter()], [cpu_s()]

    def on_event(event: Event) -> None:
        if ends_a_round(event):
            walls.append(time.perf_counter())
            cpus.append(cpu_s())

    with tempfile.TemporaryDirectory() as scratch:
        asyncio.run(play(Path(scratch), rounds, tasks=TASKS, here=here, on_event=on_event))
    wall, cpu = ([1000 * (b - a) for a, b in pairwise(times)] for times in (walls, cpus))
    return wall[1:], cpu[1:]  # the first is the baseline


def main() -> None:
    rounds = int(sys.argv[1]) if len(sys.argv) > 1 else 1000
    wall, cpu = timed(rounds, here=True)
    whole_wall, whole_cpu = timed(WHOLE_ROUNDS, here=False)
    parts = {"tenth": slice(9, 19), "last": slice(-10, None)}
    figures = {f"{name}_ms": round(statistics.median(wall[part]), 1) for name, part in parts.items()}
    figures |= {f"{name}_cpu_ms": round(statistics.median(cpu[part]), 1) for name, part in parts.items()}
    ratio = statistics.mean(cpu[parts["last"]]) / statistics.mean(cpu[parts["tenth"]])
    whole = {"whole_ms": statistics.median(whole_wall[2:]), "whole_cpu_ms": statistics.median(whole_cpu[2:])}
    print(
        json.dumps(
            {"rounds": rounds, "tasks": TASKS, **figures, "ratio": round(ratio, 3)}
            | {name: round(value, 1) for name, value in whole.items()}
        )
    )


if __name__ == "__main__":
    main()
