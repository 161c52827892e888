"""What starting costs: `bco --help` and `import bco_graph`, against a bare interpreter, in one run.

One line of output: medians of wall seconds and their ratios, {"bare_s", "import_s", "help_s", "import_ratio", ...}.
"""

from __future__ import annotations

import json
import statistics
import subprocess
import sys
import time
from pathlib import Path

RUNS = 9
COMMANDS = {
    "bare": [sys.executable, "-c", "pass"],
    "import": [sys.executable, "-c", "import bco_graph"],
    "help": [str(Path(sys.executable).parent / "bco"), "--help"],
}


def wall(command: list[str]) -> float:
    began = time.perf_counter()
    subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
    return time.perf_counter() - began


def main() -> None:
    taken: dict[str, list[float]] = {name: [] for name in COMMANDS}
    for _ in range(RUNS):
        for name, command in COMMANDS.items():
            taken[name].append(wall(command))
    medians = {name: statistics.median(times) for name, times in taken.items()}
    figures = {f"{name}_s": round(value, 4) for name, value in medians.items()}
    ratios = {f"{name}_ratio": round(medians[name] / medians["bare"], 2) for name in ("import", "help")}
    print(json.dumps(figures | ratios))


if __name__ == "__main__":
    main()
