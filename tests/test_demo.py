"""The recorded run is whole, honest and replayable: `bco demo --recorded` needs no model and shows the same figures."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import Path

import pytest

from bco_graph.demo import EXAMPLE, ITERATIONS, RECORDING

ROOT = Path(__file__).parents[1]
BCO = Path(sys.executable).parent / "bco"


def test_the_recorded_demo_shows_the_figures_that_are_written_down(tmp_path: Path) -> None:
    done = subprocess.run(
        [BCO, "demo", "--recorded", "--json"], cwd=tmp_path, capture_output=True, text=True, timeout=120, check=True
    )
    facts = json.loads(done.stdout)
    written = json.loads((EXAMPLE / "recorded" / "figures.json").read_text(encoding="utf-8"))["bco"]
    assert facts["recorded"] is True
    means = {candidate["id"]: candidate["mean"] for candidate in facts["candidates"]}
    expected = {name: row["train"] for name, row in written.items() if int(name[5:]) <= ITERATIONS}
    assert means == pytest.approx(expected, abs=1e-4)
    measured = {row["candidate"]: row["heldout"] for row in facts["heldout"]["candidates"]}
    assert measured["iter_000"] == pytest.approx(written["iter_000"]["heldout"], abs=1e-4)
    assert len(measured) == 2


def test_the_demo_says_what_is_live_and_what_is_recorded(tmp_path: Path) -> None:
    done = subprocess.run(
        [BCO, "demo", "--recorded"], cwd=tmp_path, capture_output=True, text=True, timeout=120, check=True
    )
    said = " ".join(done.stdout.split())
    assert "replayed step by step" in said
    assert "recorded responses of SmolLM2-135M" in said
    assert "what the world model learned" in said
    assert "E1 confirmed" in said
    best = tmp_path / "runs" / "demo-best-scaffold"
    assert {"agent.py", "prompt.md"} <= {path.name for path in best.iterdir()}


def test_the_recording_holds_no_key_and_no_path_of_a_machine() -> None:
    files = [path for path in (EXAMPLE / "recorded").rglob("*") if path.is_file()]
    assert len(files) > 20
    for path in files:
        content = path.read_bytes()
        assert not re.search(rb"sk-[A-Za-z0-9]{20}|/root/|/home/|/tmp/", content), path


def test_no_recorded_scaffold_holds_anything_of_the_task_set() -> None:
    from bco_graph.benchmarks.quickstart import QuickstartSuite
    from bco_graph.evaluation import LeakPatterns

    suite = QuickstartSuite()
    tasks = [*suite.tasks("train"), *suite.tasks("heldout")]
    leaks = LeakPatterns.build(tasks, {task.id: suite.gold(task) for task in tasks}, allow=suite.initial_scaffold())
    sources = sorted(RECORDING.parent.glob("*/iter_*/source"))
    assert len(sources) >= 12
    assert [problem for source in sources for problem in leaks.scan(source)] == []
