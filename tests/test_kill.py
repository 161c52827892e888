"""SIGKILL at thirty points over all five nodes of a run of four iterations, whose tasks end in every way they can.

Each killed run, resumed, ends as one that was never touched; it pays for nothing twice and leaves no process behind.
"""

from __future__ import annotations

import asyncio
import ctypes
import json
import os
import signal
import subprocess
import sys
import time
import zlib
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, get_args

import pytest
import yaml

from bco_graph.candidates import CandidateStore
from bco_graph.driver import drive
from bco_graph.export import export_recording
from bco_graph.receipts import Receipts
from bco_graph.report.verify import verify
from bco_graph.run_folder import RunFolder
from bco_graph.state import OutcomeKind
from bco_graph.testing import ScriptedModelServer
from tests.every_outcome import UNPAID, EveryOutcome, answer, sleepy_edit, word_of
from tests.toy import BOTH, NAIVE, PROPOSE, SHORT, ScriptedProposer, prompt_edit, toy_config

BCO = str(Path(sys.executable).parent / "bco")
AT_ONCE = 2
pytestmark = pytest.mark.timeout(1500)  # thirty runs and as many resumes
_PR_SET_CHILD_SUBREAPER = 36

Moment = tuple[str, str, int, int]
"""Event type, node (or `""`), iteration, and how many such events have been seen."""

NODES = ("propose", "predict", "evaluate", "grade", "update")
MOMENTS: list[Moment] = [
    *[("node_started", node, i, 1) for i in (1, 2, 3, 4) for node in NODES],
    *[("task_done", "", i, count) for i, count in [(0, 1), (0, 5), (0, 8), (1, 3), (2, 2), (2, 7), (3, 4), (4, 6)]],
    ("node_started", "update", 0, 1), ("node_ended", "evaluate", 0, 1),
]  # fmt: skip


@dataclass
class World:
    folder: Path
    server: ScriptedModelServer
    ends: dict[str, Any] = field(default_factory=dict)

    def run(self, name: str) -> RunFolder:
        return RunFolder(self.folder / "runs" / name)

    def paid(self, name: str) -> int:
        """Requests of a run that were answered; each run has a key of its own."""
        mine = [r for r in self.server.requests if r.headers.get("Authorization") == f"Bearer {key_of(name)}"]
        return sum(word_of(request.body) != UNPAID for request in mine)


@dataclass(frozen=True)
class End:
    """Everything of a run that a kill may not change."""

    rows: list[Any]
    trees: dict[str, str]
    steps: list[Any]
    document: str
    best: Any
    calls: int

    @classmethod
    def of(cls, world: World, name: str) -> End:
        run = world.run(name)
        receipts = Receipts(run.receipts)
        try:
            rows = [
                (r.candidate, r.task, r.repeat, r.kind, r.score, r.answer, r.calls) for r in receipts.results("train")
            ]
            steps = [(i, step) for i, step, _ in sorted(receipts.steps(), key=lambda found: found[:2])]
        finally:
            receipts.close()
        facts = world.ends[name]
        document = (run.root / "world_model_calibration.md").read_text(encoding="utf-8")
        return cls(rows, CandidateStore(run.candidates).trees(), steps, document, facts["best"], world.paid(name))


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> Iterator[World]:
    """The runs, killed and resumed, two at a time; orphans of theirs become children of this process."""
    folder = tmp_path_factory.mktemp("kill")
    ctypes.CDLL(None).prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
    try:
        with ScriptedModelServer({"toy-model": answer}) as server:
            record(folder, server)
            made = World(folder, server)
            made.ends["whole"] = finish(made, "whole")
            with ThreadPoolExecutor(2) as pool:
                list(pool.map(lambda moment: kill_and_resume(made, moment), MOMENTS))
            yield made
    finally:
        ctypes.CDLL(None).prctl(_PR_SET_CHILD_SUBREAPER, 0, 0, 0, 0)


def record(folder: Path, server: ScriptedModelServer) -> None:
    """Four iterations by a script, exported, so that the command line can replay them without a proposer's model."""
    made = toy_config(
        folder,
        server,
        iterations=4,
        name="made",
        evaluation={"concurrency": 4, "timeout_s": 1.0, "coverage_floor": 0.5},
    )
    edits = {1: prompt_edit(SHORT, "asked-alone"), 2: sleepy_edit, 3: prompt_edit(BOTH, "asked-alone"),
             4: prompt_edit(NAIVE + " ")}  # fmt: skip
    modes = {(i, "propose"): {**PROPOSE, "failure_mode": f"failure mode {i}"} for i in edits}
    asyncio.run(drive(made, suite=EveryOutcome(folder / "initial"), proposer=ScriptedProposer(edits, modes)))
    export_recording(RunFolder(made.run_dir), folder / "recording")


def config_of(world: World, name: str) -> Path:
    params = {"model": "openai/toy-model", "api_base": world.server.base_url, "api_key": key_of(name), "temperature": 0}
    config = {
        "name": name, "suite": f"{Path(__file__).with_name('every_outcome.py')}:EveryOutcome",
        "suite_options": {"scaffold": str(world.folder / "initial")}, "iterations": 4,
        "models": {"model_list": [{"model_name": "toy", "litellm_params": params}], "retries": 0},
        "roles": {"target": "toy"}, "proposer": {"kind": "replay", "recording": "recording"},
        "evaluation": {"concurrency": AT_ONCE, "timeout_s": 1.0, "coverage_floor": 0.5},
    }  # fmt: skip
    path = world.folder / f"{name}.yaml"
    path.write_text(yaml.safe_dump(config), encoding="utf-8")
    return path


def key_of(name: str) -> str:
    """Short enough to be taken for the placeholder that it is."""
    return f"run{zlib.crc32(name.encode()) % 10**6}"


def start(world: World, name: str) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [BCO, "run", config_of(world, name).name, "--no-preflight", "--json"],
        cwd=world.folder, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=environment(),
    )  # fmt: skip


def environment() -> dict[str, str]:
    """The suite's file imports from `tests`, which is no installed package."""
    return {**os.environ, "PYTHONPATH": str(Path(__file__).parents[1])}


def finish(world: World, name: str) -> Any:
    process = start(world, name)
    out, err = process.communicate()
    assert process.returncode == 0, out + err
    return json.loads(out)


def name_of(moment: Moment) -> str:
    kind, node, iteration, count = moment
    return "-".join([kind.replace("_", "-"), node or "task", str(iteration), str(count)])


def kill_and_resume(world: World, moment: Moment) -> None:
    name = name_of(moment)
    process = start(world, name)
    wait_for(moment, world.run(name).events, process)
    process.send_signal(signal.SIGKILL)
    process.communicate()
    done = subprocess.run(
        [BCO, "resume", f"runs/{name}", "--json"], cwd=world.folder, capture_output=True, text=True, check=False,
        env=environment(),
    )  # fmt: skip
    # It is judged by the test of this moment.
    world.ends[name] = json.loads(done.stdout) if done.returncode == 0 else done.stdout + done.stderr


def wait_for(moment: Moment, events: Path, process: subprocess.Popen[str]) -> None:
    """Until the log says so. On a machine so busy that the run ends first, there is nothing to kill."""
    kind, node, iteration, count = moment
    deadline = time.monotonic() + 120
    while time.monotonic() < deadline and process.poll() is None:
        text = events.read_text(encoding="utf-8") if events.exists() else ""
        seen = [json.loads(line) for line in text.splitlines(keepends=True) if line.endswith("\n")]
        alike = [e for e in seen if (e["type"], e.get("node", ""), e["iteration"]) == (kind, node, iteration)]
        if len(alike) >= count:
            return
        time.sleep(0.002)


def test_the_world_holds_every_outcome(world: World) -> None:
    kinds = {row[3] for row in End.of(world, "whole").rows}
    assert kinds == set(get_args(OutcomeKind))
    assert len(End.of(world, "whole").trees) == 5


@pytest.mark.parametrize("moment", MOMENTS, ids=name_of)
def test_a_run_killed_at_any_moment_ends_as_one_that_was_not(world: World, moment: Moment) -> None:
    name = name_of(moment)
    assert isinstance(world.ends[name], dict), world.ends[name]
    whole, killed = End.of(world, "whole"), End.of(world, name)
    assert killed.rows == whole.rows
    assert killed.trees == whole.trees
    assert killed.steps == whole.steps
    assert killed.best == whole.best
    assert killed.document == whole.document
    assert killed.calls <= whole.calls + AT_ONCE
    assert [finding for finding in verify(world.run(name)) if finding["wrong"]] == []


def test_no_killed_run_leaves_a_process_behind(world: World) -> None:
    deadline = time.monotonic() + 10
    while (left := children()) and time.monotonic() < deadline:
        time.sleep(0.1)
    assert left == []


def children() -> list[str]:
    """Command lines of this process's living children, what it inherited among them."""
    found = []
    for task in Path("/proc/self/task").iterdir():
        for pid in (task / "children").read_text(encoding="ascii").split():
            try:
                state = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8").rpartition(")")[2].split()[0]
                command = Path(f"/proc/{pid}/cmdline").read_text(encoding="utf-8").replace("\0", " ")
            except OSError:
                continue
            if state != "Z":
                found.append(command)
    return found
