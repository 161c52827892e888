"""Every numbered example runs offline, warns of nothing, and says what it says; the page of examples lists them all."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

EXAMPLES = Path(__file__).parents[1] / "examples"
SAYS = {
    "01_offline": [
        "iter_000: 0 of 8 right, by type {'product': 0.0, 'sum': 0.0}",
        "  sealed before the evaluation: ['sum'] +0.9, confidence 0.8",
        "  graded from the stored rows: held, +1.0", "  graded from the stored rows: inert, +0.0",
        "held-out, iter_000: 0 of 4 right", "held-out, iter_001: 2 of 4 right",
        "E2 refuted at 0.1: Asked to check its work, the target multiplies right.",
    ],
    "02_improve_a_langgraph_app": [
        "iter_000: mean 0.00, look_up -> ask: 'That would be room B12, on the left.'",
        "iter_001: mean 1.00, look_up -> ask -> tidy: 'B12'",
    ],
    "03_inside_an_app": [
        "candidate iter_000 0.0", "candidate iter_001 1.0", "grade iter_001 held",
        "best is iter_001 with 1.00 (iterations) - model calls of the second turn: 0",
    ],
    "04_swap_the_target": [
        "small: 0 of 5 right", "the same run on another target is refused", "large, in a run of its own: 5 of 5 right",
        "another target's baseline is refused", "its own is taken: 5 of 5 right, 0 model calls",
        "a chat model in code: 5 of 5 right",
    ],
    "05_approve_by_hand": [
        "  the person: reject Say it as a request", "  the person: edit", "iter_002: held", "best: iter_002 with 1.00",
        "E1 pinned: The model wraps", "E2 human, pinned: A name in two words",
    ],
    "06_own_suite": ["baseline: 0 of 5 right, by type {'europe': 0.0, 'south america': 0.0}"],
    "07_own_node": ["iter_000: 0.00, best iter_000", "iter_001: 0.00, best iter_000", "iter_002: 1.00, best iter_002"],
    "08_stream_to_a_sink": [
        "bco run to-a-sink mean 0.50", "  iteration 1 mean 0.50 brier 0.04", "    predict",
        "tasks: 24 spans in the collector, 24 events in the stream; best iter_001",
    ],
}  # fmt: skip
"""How lines of each example's output begin."""


@pytest.mark.parametrize("main", sorted(EXAMPLES.glob("[0-9]*/main.py")), ids=lambda main: main.parent.name)
def test_an_example_runs_and_says_what_it_says(main: Path, tmp_path: Path) -> None:
    assert "python main.py" in main.with_name("README.md").read_text(encoding="utf-8")
    done = subprocess.run(
        [sys.executable, "-W", "error", main],
        cwd=tmp_path, capture_output=True, text=True, timeout=120, check=False,
        env={**os.environ, "PYTHONDONTWRITEBYTECODE": "1"},
    )  # fmt: skip
    assert (done.returncode, done.stderr) == (0, ""), done.stdout + done.stderr
    lines = done.stdout.splitlines()
    assert [said for said in SAYS[main.parent.name] if not any(line.startswith(said) for line in lines)] == [], lines


def test_the_page_of_examples_lists_every_folder_in_order() -> None:
    listed = re.findall(r"^\| \[(\w+)\]\(\1\) \| .+ \|$", (EXAMPLES / "README.md").read_text(encoding="utf-8"), re.M)
    there = [path.name for path in EXAMPLES.iterdir() if path.is_dir() and path.name != "__pycache__"]
    assert listed == [*sorted(name for name in there if name[0].isdigit()), "quickstart", "langgraph_app"]
    assert sorted(listed) == sorted(there)
