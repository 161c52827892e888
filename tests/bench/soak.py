"""What grows with the number of rounds: checkpoints, the run folder, the controller's memory.

    python tests/bench/soak.py [ROUNDS TASKS]      (200 rounds of 20 tasks by default)

One line of output. `checkpoint_ratio`: the last checkpoint's size to that of the second round's last one.
`folder_ratio`: what the last third of the rounds added to the folder, to what the second third added.
`heap_kb_per_round`: what Python holds more after the last round than half-way, for each round between.
"""

from __future__ import annotations

import asyncio
import gc
import json
import sqlite3
import sys
import tempfile
import tracemalloc
from pathlib import Path

from bco_graph.events import Event
from tests.bench.many_rounds import ends_a_round, play

TRACE_BYTES = 20_000


def folder_bytes(folder: Path) -> int:
    """What is in the folder; of a database its pages, for its journal comes and goes."""
    files = [path for path in folder.rglob("*") if path.is_file() and not path.is_symlink()]
    databases = [path for path in files if path.suffix == ".sqlite"]
    plain = sum(path.stat().st_size for path in files if ".sqlite" not in path.name)
    return plain + sum(page_bytes(path) for path in databases)


def page_bytes(path: Path) -> int:
    database = sqlite3.connect(path)
    pages, size = (database.execute(f"pragma {name}").fetchone()[0] for name in ("page_count", "page_size"))
    database.close()
    return int(pages * size)


def last_checkpoints(run: Path) -> dict[int, int]:
    """Size of the last checkpoint of each round: the update node's, the first of which is superstep 2."""
    database = sqlite3.connect(run / "checkpoints.sqlite")
    rows = database.execute("select metadata, length(checkpoint) from checkpoints").fetchall()
    database.close()
    sizes = {json.loads(metadata)["step"]: size for metadata, size in rows}
    return {(step - 2) // 5: size for step, size in sizes.items() if step >= 2 and (step - 2) % 5 == 0}


def main() -> None:
    rounds, tasks = (int(given) for given in sys.argv[1:] or (200, 20))
    heap: dict[int, float] = {}
    on_disk: dict[int, int] = {}
    with tempfile.TemporaryDirectory() as scratch:

        def on_event(event: Event) -> None:
            number = event["iteration"]
            if ends_a_round(event) and number in (rounds // 3, rounds // 2, 2 * rounds // 3, rounds):
                gc.collect()
                heap[number] = tracemalloc.get_traced_memory()[0] / 1000
                on_disk[number] = folder_bytes(Path(scratch) / "numbers")

        tracemalloc.start()
        run = asyncio.run(play(Path(scratch), rounds, tasks=tasks, trace_bytes=TRACE_BYTES, on_event=on_event))
        sizes = last_checkpoints(run)
    thirds = [on_disk[at] for at in (rounds // 3, 2 * rounds // 3, rounds)]
    half = rounds // 2
    figures = {
        "checkpoint_bytes": sizes[rounds], "checkpoint_ratio": round(sizes[rounds] / sizes[2], 3),
        "folder_mb": round(thirds[2] / 1e6, 1),
        "folder_ratio": round((thirds[2] - thirds[1]) / (thirds[1] - thirds[0]), 3),
        "heap_mb": round(heap[rounds] / 1000, 1),
        "heap_kb_per_round": round((heap[rounds] - heap[half]) / (rounds - half), 2),
    }  # fmt: skip
    print(json.dumps({"rounds": rounds, "tasks": tasks, **figures}))


if __name__ == "__main__":
    main()
