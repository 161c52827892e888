"""A thousand hostile candidates, beside one that behaves: what they did, and how their rows ended.

    nice -n 10 python tests/bench/hostile.py [COUNT ISOLATION FIRST_SEED]      (1000 task 0 by default)

ISOLATION is `task`, `candidate` or `landlock`. One line of output: rows by kind of hostile code and status (a candidate
with two kinds counts in both), how many of the pieces were begun, the longest task, resident memory and open handles of
this process after the first and the last batch, and the faults, of which there should be none.
"""

from __future__ import annotations

import asyncio
import json
import logging
import sys
import tempfile
import time
from pathlib import Path

from bco_graph.evaluation import Sandbox
from tests.hostile.range import firing_range

SANDBOXES = {
    "task": Sandbox("bubblewrap", "task"),
    "candidate": Sandbox("bubblewrap", "candidate"),
    "landlock": Sandbox("landlock", "none"),
}


def main() -> None:
    count, isolation, first = (sys.argv[1:] + ["1000", "task", "0"][len(sys.argv) - 1 :])[:3]
    # The HTTP server reports each broken request with a traceback.
    logging.getLogger("aiohttp.server").setLevel(logging.CRITICAL)
    began = time.monotonic()
    with tempfile.TemporaryDirectory() as scratch:
        (Path(scratch) / "temporary").mkdir()
        tempfile.tempdir = str(Path(scratch) / "temporary")
        with firing_range(Path(scratch) / "range", SANDBOXES[isolation]) as range_:
            asyncio.run(range_.shoot(range(int(first), int(first) + int(count))))
    figures = {
        "candidates": int(count), "isolation": isolation, "minutes": round((time.monotonic() - began) / 60, 1),
        "rows": range_.rows, "rows_of_the_one_that_behaves": range_.good_rows,
        "by_kind": {kind: dict(statuses) for kind, statuses in sorted(range_.statuses.items())},
        "pieces_begun": len(range_.did), "times_begun": sum(range_.did.values()),
        "longest_s": round(range_.longest_s, 2),
        "memory_mb": [range_.memory_mb[0], max(range_.memory_mb), range_.memory_mb[-1]],
        "handles": [range_.descriptors[0], max(range_.descriptors), range_.descriptors[-1]],
        "faults": list(range_.faults),
    }  # fmt: skip
    print(json.dumps(figures))


if __name__ == "__main__":
    main()
