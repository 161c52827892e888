"""Code that runs when a scaffold is imported: it decides its own answers, and nothing of another task."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from bco_graph.protocols import RunResult
from tests.evaluation_stub import executor_for, job, run_all, write_scaffold
from tests.test_evaluation_lifecycle import MODES, NO_SOCKET, needs_sandbox

LIMIT_S = 1.0


async def _run(tmp_path: Path, agent: str, mode: str, tasks: int = 3, *, concurrency: int = 1) -> list[RunResult]:
    needs_sandbox(mode)
    source = write_scaffold(tmp_path / "scaffold", agent)
    executor = executor_for(NO_SOCKET, sandbox=mode, timeout_s=LIMIT_S, concurrency=concurrency)
    results = await run_all(executor, source, [job(f"t{number}", word=f"word-{number}") for number in range(tasks)])
    return sorted(results, key=lambda result: result.task_id)


FORGING = """
import json, os, threading, time

def forge():
    time.sleep(0.15)  # until there are jobs
    while True:
        for number in range(1, 4):
            result = {"job": number, "status": "answered", "answer": "forged", "error": "", "seconds": 0.0,
                      "stdout": "", "stderr": "", "events": []}
            for handle in range(1, 64):
                try:
                    os.write(handle, json.dumps(result).encode() + b"\\n")
                except OSError:
                    pass
        time.sleep(0.05)

def solve(task, target):
    time.sleep(0.5)
    return "honest"

threading.Thread(target=forge, daemon=True).start()
"""


@MODES
async def test_no_result_can_be_written_for_another_task(tmp_path: Path, mode: str) -> None:
    # What it writes to its own pipe spoils its own answer; what it might write elsewhere would be taken.
    results = await _run(tmp_path, FORGING, mode, concurrency=2)
    assert "forged" not in [result.answer for result in results]


COLLECTING = """
import gc, mmap, os, socket, sys, threading

memory = mmap.mmap(-1, 4096)
here, there = socket.socketpair()
here.setblocking(False)
seen = []

def listen(name):
    with socket.socket(socket.AF_UNIX) as server:
        server.bind("\\0" + name)
        server.listen()
        while True:
            seen.append(server.accept()[0].recv(100).decode())

threading.Thread(target=listen, args=("collector",), daemon=True).start()

def received():
    try:
        return here.recv(4096).decode()
    except BlockingIOError:
        return ""

def solve(task, target):
    word = task.inputs["word"]
    found = {text for text in [memory[:].rstrip(b"\\0").decode(), received(), *seen] if text}
    found |= {str(value) for value in gc.get_objects() if type(value) is dict and word not in str(value)
              and str(value.get("word", "")).startswith("word-")}
    memory[: len(word)] = word.encode()
    there.send(word.encode())
    return sorted(found - {word})
"""


@MODES
async def test_what_a_task_leaves_in_what_the_import_made_reaches_no_other(tmp_path: Path, mode: str) -> None:
    results = await _run(tmp_path, COLLECTING, mode)
    assert [(result.answer, result.error) for result in results] == [([], "")] * 3


UNSTOPPABLE = """
import os, signal, threading, time

for number in (signal.SIGTERM, signal.SIGINT, signal.SIGCHLD, signal.SIGALRM):
    signal.signal(number, signal.SIG_IGN)
time.monotonic = lambda: 0.0
os.kill = os.killpg = os.waitid = lambda *_: None
if os.fork() == 0:
    os.setsid()
    if os.fork():
        os._exit(0)
    while True:
        pass

def solve(task, target):
    while True:
        pass
"""


@MODES
async def test_nothing_done_by_the_import_puts_off_a_limit(tmp_path: Path, mode: str) -> None:
    results = await _run(tmp_path, UNSTOPPABLE, mode, tasks=2)
    assert [result.status for result in results] == ["timeout", "timeout"]
    assert all(LIMIT_S <= result.seconds < LIMIT_S + 3 for result in results)


LOOKING = """
import os

def parent(pid):
    return int(open(f"/proc/{pid}/stat").read().rpartition(")")[2].split()[1])

def solve(task, target):
    worker = parent(os.getppid())
    try:
        return len(open(f"/proc/{worker}/mem", "rb").read(0))
    except PermissionError:
        return f"refused, and it is {open(f'/proc/{worker}/comm').read().strip()}"
"""


@pytest.mark.parametrize("isolation", ["candidate", "none"])
async def test_the_memory_of_the_worker_is_closed_where_it_can_be_seen(tmp_path: Path, isolation: str) -> None:
    needs_sandbox("required")
    source = write_scaffold(tmp_path / "scaffold", LOOKING)
    mode: dict[str, Any] = (
        {"sandbox": "off"} if isolation == "none" else {"sandbox": "required", "isolation": isolation}
    )
    (result,) = await run_all(executor_for(NO_SOCKET, **mode), source, [job("t")])
    assert str(result.answer).startswith("refused, and it is python"), result


@pytest.mark.parametrize("said", ['{"answer": NaN}', '{"answer": 1e999}', "[" * 100_000, '{"answer": "\\ud800"}'])
async def test_what_cannot_be_handed_on_is_the_tasks_own_failure(tmp_path: Path, said: str) -> None:
    agent = f"""
import os
def solve(task, target):
    if task.inputs["word"] == "word-1":
        for handle in range(3, 64):
            try:
                os.write(handle, {said!r}.encode() + b"\\n")
            except OSError:
                pass
        os._exit(1)
    return "fine"
"""
    results = await _run(tmp_path, agent, "off")
    assert [result.status for result in results[::2]] == ["answered", "answered"]
    assert results[1].status in ("crashed", "answered")
