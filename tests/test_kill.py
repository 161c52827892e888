"""SIGKILL in any node: the resumed run ends as one that was never touched, and pays for nothing twice."""

from __future__ import annotations

import asyncio
import json
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import yaml

from bco_graph.driver import drive
from bco_graph.export import export_recording
from bco_graph.report.verify import verify
from bco_graph.run_folder import RunFolder
from bco_graph.testing import Reply, ScriptedModelServer
from tests.toy import SHORT, ScriptedProposer, ToySuite, answer, prompt_edit, toy_config

BCO = str(Path(sys.executable).parent / "bco")
AT_ONCE = 2


@dataclass
class World:
    folder: Path
    server: ScriptedModelServer
    calls: int
    """Target calls of a run that nobody kills."""
    means: list[float]

    def document(self, name: str) -> str:
        return (self.folder / "runs" / name / "world_model_calibration.md").read_text(encoding="utf-8")


def slow(body: dict[str, Any]) -> Reply:
    return Reply(answer(body).text, delay_s=0.05)


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> Iterator[World]:
    folder = tmp_path_factory.mktemp("kill")
    with ScriptedModelServer({"toy-model": slow}) as server:
        made = toy_config(folder, server, iterations=1, name="made")
        proposer = ScriptedProposer({1: prompt_edit(SHORT, "asked-alone")})
        asyncio.run(drive(made, suite=ToySuite(folder / "initial"), proposer=proposer))
        export_recording(RunFolder(made.run_dir), folder / "recording")
        params = {"model": "openai/toy-model", "api_base": server.base_url, "api_key": "none", "temperature": 0}
        config = {
            "name": "whole", "suite": f"{Path(__file__).with_name('toy.py')}:ToySuite",
            "suite_options": {"scaffold": str(folder / "initial")}, "iterations": 1,
            "models": {"model_list": [{"model_name": "toy", "litellm_params": params}], "retries": 0},
            "roles": {"target": "toy"}, "proposer": {"kind": "replay", "recording": "recording"},
            "evaluation": {"concurrency": AT_ONCE},
        }  # fmt: skip
        (folder / "bco.yaml").write_text(yaml.safe_dump(config), encoding="utf-8")
        before = len(server.requests)
        done = subprocess.run(
            [BCO, "run", "bco.yaml", "--json"], cwd=folder, capture_output=True, text=True, check=True
        )
        means = [candidate["mean"] for candidate in json.loads(done.stdout)["candidates"]]
        yield World(folder, server, len(server.requests) - before, means)


def kill_in(process: subprocess.Popen[str], events: Path, node: str, iteration: int) -> None:
    """SIGKILL as soon as the log says that the node has started, in the middle of its tasks if it has any.

    On a machine so busy that the run ends first, there is nothing to kill, and the resume finds a finished run.
    """
    deadline = time.monotonic() + 60
    while time.monotonic() < deadline and process.poll() is None:
        text = events.read_text(encoding="utf-8") if events.exists() else ""
        seen = [json.loads(line) for line in text.splitlines() if line.endswith("}")]
        started = any((e["type"], e.get("node"), e["iteration"]) == ("node_started", node, iteration) for e in seen)
        tasks = sum(e["type"] == "task_done" and e["iteration"] == iteration for e in seen)
        if started and (node != "evaluate" or tasks >= 3):
            break
        time.sleep(0.002)
    process.send_signal(signal.SIGKILL)
    process.communicate()


@pytest.mark.parametrize(
    ("node", "iteration"),
    [("evaluate", 0), ("update", 0), ("propose", 1), ("predict", 1), ("evaluate", 1), ("grade", 1), ("update", 1)],
)
def test_a_run_killed_in_a_node_ends_as_one_that_was_not(world: World, node: str, iteration: int) -> None:
    name = f"{node}-{iteration}"
    run = world.folder / "runs" / name
    before = len(world.server.requests)
    process = subprocess.Popen(
        [BCO, "run", "bco.yaml", "--name", name, "--json"],
        cwd=world.folder, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
    )  # fmt: skip
    kill_in(process, run / "events.jsonl", node, iteration)
    done = subprocess.run(
        [BCO, "resume", f"runs/{name}", "--json"], cwd=world.folder, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert [candidate["mean"] for candidate in json.loads(done.stdout)["candidates"]] == world.means
    assert len(world.server.requests) - before <= world.calls + AT_ONCE
    assert world.document(name) == world.document("whole")
    assert [finding["wrong"] for finding in verify(RunFolder(run)) if finding["wrong"]] == []
    left = subprocess.run(["pgrep", "-f", str(run)], capture_output=True, text=True, check=False)
    assert left.stdout == ""
