"""A whole evaluation, from the command line to the receipts, against a bare aiohttp loop of the same calls, in one run.

1,449 tasks of one call of 50 ms, 64 at once: `bco run` of the untouched scaffold, in the sandbox, every row graded,
traced and on disk. One line of output: seconds of the bare loop, of the evaluation from its first task to its end, and
of the whole command, with the ratios of the last two to the first. Run it as
`python -m tests.bench.evaluation [isolation]`, with `candidate` (the default here) or `task`.
"""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import yaml

from bco_graph.events import Tail
from tests.bench.gateway_arms import server, timed

TASKS, AT_ONCE, DELAY_S = 1449, 64, 0.05
AGENT = 'async def solve(task, target):\n    return await target.chat(task.inputs["question"])\n'


def write(folder: Path, base: str, isolation: str) -> None:
    (folder / "scaffold").mkdir()
    (folder / "scaffold" / "agent.py").write_text(AGENT, encoding="utf-8")
    for split, count in (("train", TASKS), ("heldout", 1)):
        tasks = [
            {"id": f"{split}-{number}", "inputs": {"question": f"question {number} " + "x" * 400}, "gold": "ok"}
            for number in range(count)
        ]
        (folder / f"{split}.jsonl").write_text("".join(json.dumps(task) + "\n" for task in tasks), encoding="utf-8")
    params = {"model": "openai/m", "api_base": base, "api_key": "none"}
    config = {
        "name": "bench", "method": "vanilla", "iterations": 0, "suite": "jsonl",
        "suite_options": {"train": "train.jsonl", "heldout": "heldout.jsonl", "scaffold": "scaffold"},
        "models": {"model_list": [{"model_name": "m", "litellm_params": params}]}, "roles": {"target": "m"},
        "proposer": {"kind": "handoff"}, "evaluation": {"concurrency": AT_ONCE, "isolation": isolation},
    }  # fmt: skip
    (folder / "bco.yaml").write_text(yaml.safe_dump(config), encoding="utf-8")


def main() -> None:
    isolation = sys.argv[1] if len(sys.argv) > 1 else "candidate"
    bco = str(Path(sys.executable).parent / "bco")
    with server(DELAY_S) as base, tempfile.TemporaryDirectory() as scratch:
        folder = Path(scratch)
        write(folder, base, isolation)
        bare_before = timed(base, "none", 0, TASKS, AT_ONCE)
        started = time.perf_counter()
        command = [bco, "run", "bco.yaml", "--no-preflight", "--json"]
        done = subprocess.run(command, cwd=folder, capture_output=True, text=True, check=True)
        whole_s = time.perf_counter() - started
        bare_s = (bare_before + timed(base, "none", 0, TASKS, AT_ONCE)) / 2
        (baseline,) = json.loads(done.stdout)["candidates"]
        assert (baseline["mean"], baseline["coverage"]) == (1.0, 1.0), baseline
        events = list(Tail(folder / "runs" / "bench" / "events.jsonl").read())
    first = next(event["at"] for event in events if event["type"] == "evaluation")
    last = next(event["at"] for event in events if event["type"] == "candidate")
    figures = {"bare_s": bare_s, "evaluation_s": last - first, "command_s": whole_s}
    ratios = {"evaluation_ratio": (last - first) / bare_s, "command_ratio": whole_s / bare_s}
    print(json.dumps({"isolation": isolation} | {name: round(x, 2) for name, x in (figures | ratios).items()}))


if __name__ == "__main__":
    main()
