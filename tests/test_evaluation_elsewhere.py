"""The executor where Linux's calls are missing: a worker from which they were taken away, as on macOS."""

from __future__ import annotations

import subprocess
import sys
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest

from bco_graph.config import Evaluation
from bco_graph.evaluation import LocalExecutor, Sandbox, sandbox, worker
from bco_graph.evaluation.sandbox import Launch
from bco_graph.protocols import RunResult
from tests.evaluation_stub import job, run_all, serve, write_scaffold

BARE = f"""
import asyncio, os, runpy, shutil, socket, subprocess, sys, tempfile
sys.platform = "darwin"
for module, name in [
    (os, "memfd_create"), (os, "pidfd_open"), (os, "waitid"), (os, "O_PATH"), (os, "unshare"), (os, "setns"),
    (socket, "SOCK_SEQPACKET"), (socket, "SOCK_CLOEXEC"), (asyncio, "PidfdChildWatcher"),
]:
    if hasattr(module, name):
        delattr(module, name)
runpy.run_path({worker.__file__!r}, run_name="__main__")
"""
AGENT = """
import os, signal, subprocess, sys, time

async def solve(task, target):
    kind = task.inputs["kind"]
    if kind == "ask":
        print("asking")
        return await target.chat("hello")
    if kind == "raise":
        raise RuntimeError("no")
    if kind == "killed":
        os.kill(os.getpid(), signal.SIGTERM)
    child = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"])
    with open(task.inputs["pids"], "a") as file:
        file.write(f"{child.pid} ")
    if kind == "hang":
        time.sleep(600)
    return kind
"""


@dataclass(frozen=True, slots=True)
class Elsewhere(Sandbox):
    program: str = ""

    def launch(self, *args: Any, **options: Any) -> Launch:
        launch = Sandbox.launch(self, *args, **options)
        return replace(launch, argv=[*launch.argv[:-1], self.program])


async def results(tmp_path: Path, *kinds: str, **options: Any) -> list[RunResult]:
    program = tmp_path / "bare.py"
    program.write_text(BARE, encoding="utf-8")
    socket_path = tmp_path / "gateway.sock"
    evaluation = Evaluation(concurrency=4, timeout_s=options.pop("timeout_s", 20.0), **options)
    executor = LocalExecutor(
        evaluation, socket_path=socket_path, sandbox=Elsewhere("none", "none", "as on macOS", program=str(program))
    )
    async with serve(socket_path):
        source = write_scaffold(tmp_path / "scaffold", AGENT)
        jobs = [job(f"t{n}", kind=kind, pids=str(tmp_path / "pids")) for n, kind in enumerate(kinds)]
        return await run_all(executor, source, jobs)


def left(tmp_path: Path) -> list[int]:
    pids = [int(pid) for pid in (tmp_path / "pids").read_text(encoding="utf-8").split()]
    return [pid for pid in pids if Path(f"/proc/{pid}/cmdline").exists() and Path(f"/proc/{pid}/cmdline").read_bytes()]


async def test_tasks_are_answered_crash_and_are_told_apart(tmp_path: Path) -> None:
    found = await results(tmp_path, *["ask"] * 12, "raise", "killed")
    answered = [(r.answer, r.stdout) for r in found if r.status == "answered"]
    assert answered == [("HELLO", "asking\n")] * 12
    assert {(r.status, r.error) for r in found if r.status != "answered"} == {
        ("crashed", "RuntimeError: no"),
        ("crashed", "the task's process was killed by SIGTERM before it answered"),
    }


async def test_a_limit_ends_a_task_and_its_children_and_so_does_an_answer(tmp_path: Path) -> None:
    answered, hung = sorted(await results(tmp_path, "leave", "hang", timeout_s=2.0), key=lambda r: r.status)
    assert (hung.status, answered.status, answered.answer) == ("timeout", "answered", "leave")
    assert len((tmp_path / "pids").read_text(encoding="utf-8").split()) == 2
    assert left(tmp_path) == []


async def test_nothing_is_left_in_the_temporary_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "temporary").mkdir()
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path / "temporary"))
    assert {r.status for r in await results(tmp_path, "ask", "raise")} == {"answered", "crashed"}
    assert list((tmp_path / "temporary").iterdir()) == []


def test_the_sandbox_says_that_there_is_none(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "platform", "darwin")
    found = sandbox.strongest.__wrapped__()
    assert (found.name, found.isolation) == ("none", "none")
    assert "Linux only, not on darwin" in found.describe()


SIBLINGS = f"""
import os, runpy, sys
worker = runpy.run_path({worker.__file__!r}, run_name="worker")
fork_sibling = worker["fork_sibling"]
if sys.argv[1] == "unknown":
    fork_sibling.__globals__["_SYS_CLONE"] = {{}}
worker["prctl"](36, 1)  # a subreaper
top = os.getpid()
ours, theirs = os.pipe()
if os.fork() == 0:
    if (pid := fork_sibling(0)) == 0:
        os._exit(7 if os.getppid() == top else 8)
    os.write(theirs, b"%d" % pid)
    os._exit(0)
print(os.waitstatus_to_exitcode(os.waitpid(int(os.read(ours, 100)), 0)[1]))
"""


@pytest.mark.parametrize("system_call", ["known", "unknown"])
def test_a_sibling_is_a_child_of_the_forkers_parent(system_call: str) -> None:
    command = [sys.executable, "-c", SIBLINGS, system_call]
    assert subprocess.run(command, capture_output=True, text=True, check=True).stdout == "7\n"
