"""The executor as a whole: imports that go wrong, workers that die, runs that are broken off."""

from __future__ import annotations

import asyncio
import ensurepip
import os
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
import venv
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pydantic
import pytest

import bco_graph
from bco_graph.config import Evaluation
from bco_graph.errors import ConfigError
from bco_graph.evaluation import LocalExecutor, Sandbox, landlock, pick_sandbox
from bco_graph.evaluation.sandbox import Launch
from bco_graph.protocols import Executor, Interface, RunResult
from tests.evaluation_stub import StubGateway, executor_for, job, run_all, serve, write_scaffold

ECHO = """
async def solve(task, target):
    return await target.chat([{"role": "user", "content": task.inputs["kind"]}])
"""
BEATING = """
import os, socket, time
def solve(task, target):
    if os.fork() == 0:
        os.setsid()
    while True:
        with socket.socket(socket.AF_UNIX) as line:
            line.connect(target._socket_path)
            line.sendall(b"GET /beat HTTP/1.1\\r\\n\\r\\n")
        time.sleep(0.02)
"""
NO_SOCKET = Path("/nonexistent/gateway.sock")
MODES = pytest.mark.parametrize("mode", ["required", "landlock", "off"])


@pytest.fixture(autouse=True)
def temporary(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Where the executor makes its folders, so that a test sees what is left."""
    folder = tmp_path / "temporary"
    folder.mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(folder))
    return folder


def needs_sandbox(mode: str) -> None:
    if mode == "required" and pick_sandbox("auto").name != "bubblewrap":
        pytest.skip(f"no sandbox here: {pick_sandbox('auto').reason}")
    if mode == "landlock" and landlock.abi() < landlock.SCOPE_ABI:
        pytest.skip(f"the kernel's Landlock has ABI {landlock.abi()}")


async def _results(tmp_path: Path, agent: str, *, mode: str = "auto", import_timeout_s: float = 20) -> list[RunResult]:
    source = write_scaffold(tmp_path / "scaffold", agent)
    executor = executor_for(NO_SOCKET, sandbox=mode, import_timeout_s=import_timeout_s)
    return await run_all(executor, source, [job(f"t{number}") for number in range(3)])


@MODES
async def test_64_jobs_at_8_give_64_answers_and_at_most_8_run_at_once(tmp_path: Path, mode: str) -> None:
    needs_sandbox(mode)
    source = write_scaffold(tmp_path / "scaffold", ECHO)
    running: set[str] = set()
    most = 0
    async with serve(tmp_path / "gw.sock") as gateway:
        executor: Executor = executor_for(tmp_path / "gw.sock", sandbox=mode, concurrency=8)
        answers: dict[str, str] = {}

        async def grade(result: RunResult) -> None:
            nonlocal most
            running.add(result.task_id)
            most = max(most, len(running))
            await asyncio.sleep(0.01)
            running.discard(result.task_id)
            answers[result.task_id] = result.answer

        await executor.run(source, Interface(), [job(f"t{number}") for number in range(64)], grade)
    assert answers == {f"t{number}": f"T{number}" for number in range(64)}
    assert 1 < most <= 8
    assert len(gateway.requests) == 64


@pytest.mark.parametrize(
    ("agent", "error"),
    [
        ("import nowhere_to_be_found", "ModuleNotFoundError: No module named 'nowhere_to_be_found'"),
        ("raise SystemExit(3)", "SystemExit: 3"),
        ("import os; print('dying words'); os._exit(0)", "ended the process"),
        ("import os, signal; print('dying words'); os.kill(os.getpid(), signal.SIGSEGV)", "killed by SIGSEGV"),
        ("x = 1", "agent.py has no function 'solve'"),
        ("def solve(task): pass", "solve(task) does not take two positional arguments (task, target)"),
        ("import os; print('dying words'); os.closerange(3, 200)", "ended the process"),
        ("import os; os._exit(7)", "ended the process: the task's process exited with status 7"),
    ],
)
async def test_an_import_that_fails_is_the_crash_of_every_job(tmp_path: Path, agent: str, error: str) -> None:
    results = await _results(tmp_path, agent)
    assert sorted(result.task_id for result in results) == ["t0", "t1", "t2"]
    assert {result.status for result in results} == {"crashed"}
    assert error in results[0].error
    assert "importing agent.py:solve" in results[0].error
    assert "dying words" not in agent or "dying words" in results[0].stderr


@MODES
async def test_an_import_that_hangs_ends_at_the_limit(tmp_path: Path, mode: str) -> None:
    needs_sandbox(mode)
    began = time.monotonic()
    results = await _results(tmp_path, "import time\ntime.sleep(60)", mode=mode, import_timeout_s=0.6)
    assert {result.status for result in results} == {"timeout"}
    assert results[0].error == "importing agent.py:solve took longer than the limit of 0.6 s for an import"
    assert time.monotonic() - began < 5


async def test_a_file_that_hides_behind_an_installed_module_is_named(tmp_path: Path) -> None:
    source = write_scaffold(tmp_path / "scaffold", ECHO)
    (source / "agent.py").rename(source / "json.py")
    problems = executor_for(NO_SOCKET).import_problems(source, Interface(entry="json.py:solve"))
    assert "json.py is hidden by the module 'json'" in problems[0]


async def test_a_scaffold_of_several_files_and_a_plain_function_works(tmp_path: Path) -> None:
    source = write_scaffold(tmp_path / "scaffold", "")
    (source / "pkg").mkdir()
    (source / "pkg" / "inner.py").write_text("from words import WORD\ndef solve(task, target): return WORD\n", "utf-8")
    (source / "words.py").write_text("WORD = 'naïve'\n", encoding="utf-8")
    executor = executor_for(NO_SOCKET)
    results: list[RunResult] = []

    async def keep(result: RunResult) -> None:
        results.append(result)

    await executor.run(source, Interface(entry="pkg/inner.py:solve"), [job("t")], keep)
    assert [result.answer for result in results] == ["naïve"]
    assert executor.import_problems(source, Interface(entry="pkg/inner.py:solve")) == []


WORKER_OF_A_TASK = """
import os, signal, time

def parent(pid):
    return int(open(f"/proc/{pid}/stat").read().rpartition(")")[2].split()[1])

def stop(number):
    os.kill(parent(os.getppid()), number)  # the guard's parent
"""


async def test_a_worker_that_dies_is_replaced_once(tmp_path: Path) -> None:
    dies = """
def solve(task, target):
    if task.inputs["kind"] != "t0":
        stop(signal.SIGKILL)
        time.sleep(20)
"""
    source = write_scaffold(tmp_path / "scaffold", WORKER_OF_A_TASK + dies)
    executor = executor_for(NO_SOCKET, sandbox="off", concurrency=1)
    results = await run_all(executor, source, [job(f"t{number}") for number in range(5)])
    by_name = {result.task_id: result for result in results}
    assert len(results) == 5
    assert by_name["t0"].status == "answered"
    assert [by_name[f"t{number}"].status for number in (1, 2, 3, 4)] == ["crashed"] * 4
    assert "worker process ended while tasks ran (killed by SIGKILL)" in by_name["t1"].error
    assert by_name["t1"].seconds < 5


class _Unstartable(Sandbox):
    def launch(self, folder: Path, socket_path: Path, *, hide: Sequence[Path] = ()) -> Launch:
        whole = super().launch(folder, socket_path, hide=hide)
        return replace(whole, argv=[self.reason])


@pytest.mark.parametrize("program", ["/nonexistent/program", "/bin/true"])
async def test_a_worker_that_cannot_start_says_nothing_about_the_candidate(tmp_path: Path, program: str) -> None:
    source = write_scaffold(tmp_path / "scaffold", ECHO)
    sandbox = _Unstartable("none", "none", program)
    executor = LocalExecutor(Evaluation(), socket_path=NO_SOCKET, sandbox=sandbox)
    results = await run_all(executor, source, [job("t0"), job("t1")])
    assert [result.status for result in results] == ["broken", "broken"]


async def test_a_source_that_is_no_scaffold_crashes_every_job_with_the_reason(tmp_path: Path) -> None:
    source = write_scaffold(tmp_path / "scaffold", ECHO)
    (source / "link").symlink_to("/etc/passwd")
    results = await run_all(executor_for(NO_SOCKET), source, [job("t0")])
    assert results[0].status == "crashed"
    assert "link: is a symbolic link" in results[0].error


def is_empty(folder: Path) -> bool:
    return not any(folder.iterdir())


@asynccontextmanager
async def beating(tmp_path: Path, mode: str) -> AsyncIterator[tuple[StubGateway, LocalExecutor, Path]]:
    needs_sandbox(mode)
    source = write_scaffold(tmp_path / "scaffold", BEATING)
    async with serve(tmp_path / "gw.sock") as gateway:
        yield gateway, executor_for(tmp_path / "gw.sock", sandbox=mode), source
        beats = gateway.beats
        assert beats > 0
        await asyncio.sleep(0.2)
        assert gateway.beats == beats


@MODES
async def test_a_cancelled_run_leaves_no_process_and_no_folder(tmp_path: Path, mode: str, temporary: Path) -> None:
    async with beating(tmp_path, mode) as (gateway, executor, source):
        run = asyncio.create_task(run_all(executor, source, [job("a"), job("b"), job("c")]))
        await asyncio.wait_for(gateway.beating.wait(), 20)
        run.cancel()
        began = time.monotonic()
        with pytest.raises(asyncio.CancelledError):
            await run
        assert time.monotonic() - began < 5
        assert is_empty(temporary)


LEAVING = """
import os, socket, time
def solve(task, target):
    if os.fork() == 0:
        if os.fork() == 0:
            os.setsid()
            while True:
                with socket.socket(socket.AF_UNIX) as line:
                    line.connect(target._socket_path)
                    line.sendall(b"GET /beat HTTP/1.1\\r\\n\\r\\n")
                time.sleep(0.02)
        os._exit(0)
    os.wait()
    time.sleep(0.5)
    if task.inputs["kind"] == "kills its guard" and os.getppid() > 1:
        os.kill(os.getppid(), 9)
        time.sleep(20)
"""


@MODES
@pytest.mark.parametrize("kind", ["ends in order", "kills its guard"])
async def test_what_a_task_left_behind_is_dead_when_its_result_is_there(tmp_path: Path, mode: str, kind: str) -> None:
    needs_sandbox(mode)
    source = write_scaffold(tmp_path / "scaffold", LEAVING)
    beats = []
    async with serve(tmp_path / "gw.sock") as gateway:

        async def listen(result: RunResult) -> None:
            await asyncio.sleep(0.05)
            beats.append(gateway.beats)
            await asyncio.sleep(0.2)
            beats.append(gateway.beats)

        executor = executor_for(tmp_path / "gw.sock", sandbox=mode)
        await executor.run(source, Interface(), [job(kind)], listen)
    assert beats[0] == beats[1] > 0


async def test_a_job_that_a_dying_worker_never_took_runs_in_the_next_one(tmp_path: Path) -> None:
    deaf = """
def solve(task, target):
    if task.inputs["kind"] == "kills":
        time.sleep(0.5)
        stop(signal.SIGSTOP)
        time.sleep(1)
        stop(signal.SIGKILL)
        time.sleep(20)
    return "done"
"""
    source = write_scaffold(tmp_path / "scaffold", WORKER_OF_A_TASK + deaf)
    results: dict[str, RunResult] = {}

    async def keep(result: RunResult) -> None:
        results[result.task_id] = result
        if result.task_id == "before":
            await asyncio.sleep(1)  # the worker is stopped now: the next job waits in its pipe

    executor = executor_for(NO_SOCKET, sandbox="off", concurrency=2)
    await executor.run(source, Interface(), [job("kills"), job("before"), job("after")], keep)
    assert {name: result.status for name, result in results.items()} == {
        "before": "answered", "kills": "crashed", "after": "answered"
    }  # fmt: skip


async def test_what_the_receiver_raises_ends_the_run(tmp_path: Path, temporary: Path) -> None:
    source = write_scaffold(tmp_path / "scaffold", "import time\ndef solve(task, target): time.sleep(task.inputs['s'])")
    grading = asyncio.Event()

    async def refuse(result: RunResult) -> None:
        if result.task_id == "never graded":
            grading.set()
            await asyncio.Event().wait()
        await grading.wait()
        raise ConfigError(f"not {result.task_id}")

    began = time.monotonic()
    jobs = [job("never graded", s=0), job("quick", s=0.1), job("slow", s=15)]
    with pytest.raises(ConfigError, match="not quick"):
        await executor_for(NO_SOCKET).run(source, Interface(), jobs, refuse)
    assert time.monotonic() - began < 10
    assert is_empty(temporary)


CONTROLLER = """
import asyncio, sys
from pathlib import Path
from typing import Any
from tests.evaluation_stub import executor_for, job, run_all
folder = Path(sys.argv[1])
asyncio.run(run_all(executor_for(folder / "gw.sock", sandbox=sys.argv[2]), folder / "scaffold", [job("a"), job("b")]))
"""


@MODES
async def test_a_killed_controller_takes_its_candidates_with_it(tmp_path: Path, mode: str) -> None:
    async with beating(tmp_path, mode) as (gateway, _, _):
        controller = await asyncio.create_subprocess_exec(
            sys.executable, "-c", CONTROLLER, str(tmp_path), mode, cwd=Path(__file__).parents[1],
            env={**os.environ, "TMPDIR": str(tmp_path / "temporary")},
        )  # fmt: skip
        await asyncio.wait_for(gateway.beating.wait(), 20)
        controller.send_signal(signal.SIGKILL)
        await controller.wait()
        await asyncio.sleep(0.5)


def test_it_works_in_the_loop_of_any_thread(tmp_path: Path) -> None:
    source = write_scaffold(tmp_path / "scaffold", "def solve(task, target): return 1")

    async def both() -> list[list[RunResult]]:
        executor = executor_for(NO_SOCKET)
        return await asyncio.gather(*(run_all(executor, source, [job("t")]) for _ in range(2)))

    async def outer() -> list[list[RunResult]]:
        return await asyncio.to_thread(asyncio.run, both())

    assert [[result.answer for result in results] for results in asyncio.run(outer())] == [[1], [1]]


async def test_a_hidden_folder_is_empty_in_the_sandbox(tmp_path: Path) -> None:
    needs_sandbox("required")
    folder = Path(ensurepip.__file__).parent
    agent = f"import os\ndef solve(task, target): return os.listdir({str(folder)!r})"
    source = write_scaffold(tmp_path / "scaffold", agent)
    within = next(path for path in folder.iterdir() if path.is_dir())
    executor = LocalExecutor(Evaluation(), socket_path=NO_SOCKET, hide=[within, folder])
    assert [result.answer for result in await run_all(executor, source, [job("t")])] == [[]]


async def test_under_landlock_a_hidden_folder_shows_names_only_and_what_lies_beside_it_is_read(tmp_path: Path) -> None:
    needs_sandbox("landlock")
    folder = Path(ensurepip.__file__).parent
    agent = f"""
import colorsys, os
def solve(task, target):
    try:
        open({str(folder / "__init__.py")!r})
    except PermissionError:
        return os.listdir({str(folder)!r}) != []
"""
    source = write_scaffold(tmp_path / "scaffold", agent)
    sandbox = Sandbox("landlock", "none")
    executor = LocalExecutor(Evaluation(), socket_path=NO_SOCKET, hide=[folder], sandbox=sandbox)
    assert [result.answer for result in await run_all(executor, source, [job("t")])] == [True]


VENV = """
import asyncio, sys
from pathlib import Path
from typing import Any
from tests.evaluation_stub import executor_for, job, run_all
folder = Path(sys.argv[1])
results = asyncio.run(run_all(executor_for(folder / "none", sandbox="required"), folder / "scaffold", [job("a")]))
print(results[0].error or results[0].answer)
"""
IN_VENV = """
import sys
def solve(task, target):
    import colorsys  # not imported before: the installation must still be there
    try:
        import bco_graph.errors
    except ImportError as error:
        return [sys.prefix, str(error)]
"""


def test_an_environment_below_tmp_is_seen_but_for_our_package(tmp_path: Path) -> None:
    needs_sandbox("required")
    write_scaffold(tmp_path / "scaffold", IN_VENV)
    venv.create(tmp_path / "venv", symlinks=True)
    site = next((tmp_path / "venv" / "lib").glob("python*")) / "site-packages"
    shutil.copytree(Path(bco_graph.__file__).parent, site / "bco_graph")
    paths = [str(Path(pydantic.__file__).parents[1]), str(tmp_path / "tests_only")]
    shutil.copytree(Path(__file__).parent, tmp_path / "tests_only" / "tests")
    done = subprocess.run(
        [tmp_path / "venv" / "bin" / "python", "-c", VENV, str(tmp_path)],
        env={"PATH": os.environ["PATH"], "PYTHONPATH": os.pathsep.join(paths)}, capture_output=True, text=True,
        check=False, cwd=tmp_path,
    )  # fmt: skip
    assert done.stdout == f"[{str(tmp_path / 'venv')!r}, \"No module named 'bco_graph.errors'\"]\n", done.stderr


def _without_bubblewrap(tmp_path: Path, script: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-c", "import logging; logging.basicConfig()\n" + script],
        env={**os.environ, "PATH": str(tmp_path)}, capture_output=True, text=True, check=False,
        cwd=Path(__file__).parents[1],
    )  # fmt: skip


def test_a_python_that_was_started_by_a_path_with_dots_finds_the_same_sandbox(tmp_path: Path) -> None:
    script = "from bco_graph.evaluation import pick_sandbox; print(pick_sandbox().describe())"
    said = {
        subprocess.run([path, "-c", script], cwd=tmp_path, capture_output=True, text=True, check=True).stdout
        for path in (sys.executable, os.path.relpath(sys.executable, tmp_path))
    }
    assert len(said) == 1


def test_where_there_is_no_bubblewrap_required_refuses_and_auto_says_what_there_is(tmp_path: Path) -> None:
    needs_sandbox("landlock")
    script = (
        "from bco_graph.evaluation import pick_sandbox\n"
        "print(pick_sandbox('auto').describe())\n"
        "pick_sandbox('required')\n"
    )
    done = _without_bubblewrap(tmp_path, script)
    assert done.stdout.startswith("Landlock for each task, which leaves open Unix sockets that have a path, UDP and")
    assert "WARNING:bco_graph.evaluation.sandbox:sandbox: Landlock" in done.stderr
    refusal = (
        "ConfigError: evaluation.sandbox is required with evaluation.isolation 'task', and here there is only Land"
    )
    assert refusal in done.stderr
    assert "bwrap of bubblewrap is not on PATH" in done.stderr


@pytest.mark.parametrize("isolation", ["task", "candidate"])
def test_the_isolation_of_the_config_is_what_is_used(isolation: str) -> None:
    needs_sandbox("required")
    assert executor_for(NO_SOCKET, sandbox="required", isolation=isolation).sandbox.isolation == isolation


PEEKING = """
import os, signal, socket, subprocess
from pathlib import Path
from typing import Any

def attempt(action):
    try:
        action()
    except OSError as error:
        return type(error).__name__
    return "done"

def solve(task, target):
    given = task.inputs
    abstract = socket.socket(socket.AF_UNIX)
    mine = Path("mine.txt")
    mine.write_text("written here")
    shell = subprocess.run(["cat", given["secret"]], capture_output=True)
    return {
        "own folder": mine.read_text(),
        "secret": attempt(lambda: Path(given["secret"]).read_text()),
        "secret of a child": shell.returncode,
        "folder": attempt(lambda: os.listdir(Path(given["secret"]).parent)),
        "other task": attempt(lambda: [list(path.iterdir()) for path in Path(given["others"]).glob("task-*/work")]),
        "our package": attempt(lambda: Path(given["package"]).read_text()),
        "emptied": attempt(lambda: os.truncate(given["secret"], 0)),
        "removed": attempt(lambda: os.unlink(given["secret"])),
        "made beside": attempt(lambda: Path(given["secret"]).with_name("new").touch()),
        "abstract socket": attempt(lambda: abstract.connect("\\0" + given["abstract"])),
        "signal": attempt(lambda: os.kill(given["pid"], 0)),
        "memory": attempt(lambda: open(f"/proc/{given['pid']}/mem", "rb")),
    }
"""


async def test_landlock_refuses_files_tcp_abstract_sockets_and_signals_of_others(tmp_path: Path) -> None:
    needs_sandbox("landlock")
    secret = tmp_path / "home" / "run" / "receipts.sqlite"
    secret.parent.mkdir(parents=True)
    secret.write_text("gold")
    source = write_scaffold(tmp_path / "scaffold", PEEKING)
    name = f"bco-test-{os.getpid()}"
    with socket.socket(socket.AF_UNIX) as listening:
        listening.bind("\0" + name)
        listening.listen()
        inputs: dict[str, Any] = {"secret": str(secret), "abstract": name, "pid": os.getpid(), "others": str(tmp_path)}
        inputs["package"] = str(Path(bco_graph.__file__))
        (result,) = await run_all(executor_for(NO_SOCKET, sandbox="landlock"), source, [job("t", **inputs)])
    assert result.error == ""
    found = result.answer
    assert found.pop("own folder") == "written here"
    assert found.pop("secret of a child") == 1
    assert found.pop("other task") == "done"  # none is found: the folder cannot be listed
    assert set(found.values()) == {"PermissionError"}, found
    assert secret.read_text() == "gold"


async def test_a_process_that_takes_too_much_memory_is_its_own_failure(tmp_path: Path) -> None:
    hog = """
def solve(task, target):
    taken = bytearray((600 if task.inputs["kind"] == "hog" else 10) << 20)
    return len(taken) >> 20
"""
    source = write_scaffold(tmp_path / "scaffold", hog)
    results = await run_all(executor_for(NO_SOCKET, memory_mb=400), source, [job("hog"), job("modest")])
    by_name = {result.task_id: result for result in results}
    assert (by_name["hog"].status, by_name["hog"].error) == ("crashed", "MemoryError")
    assert by_name["modest"].answer == 10


@dataclass(frozen=True)
class _Described:
    sandbox: Sandbox
    text: str


@pytest.mark.parametrize(
    "case",
    [
        _Described(Sandbox("bubblewrap", "task"), "namespaces of its own for each task"),
        _Described(Sandbox("bubblewrap", "candidate", "unshare: refused"), "share one /tmp (unshare: refused)"),
        _Described(Sandbox("landlock", "none", "no bwrap"), "UDP and names and sizes of files (no bwrap)"),
        _Described(pick_sandbox("off"), "evaluation.sandbox is off"),
    ],
)
def test_a_sandbox_says_what_it_is(case: _Described) -> None:
    assert case.text in case.sandbox.describe()


async def test_one_sandbox_for_all_tasks_confines_too(tmp_path: Path) -> None:
    needs_sandbox("required")
    agent = """
import os, subprocess, sys
def solve(task, target):
    subprocess.Popen(["setsid", "sleep", "60"])
    open("mark", "w").close()
    return [os.getcwd(), os.access("/scaffold", os.W_OK)]
"""
    source = write_scaffold(tmp_path / "scaffold", agent)
    executor = LocalExecutor(Evaluation(), socket_path=NO_SOCKET, sandbox=Sandbox("bubblewrap", "candidate"))
    results = await run_all(executor, source, [job(f"t{number}") for number in range(3)])
    assert sorted(result.answer[0] for result in results) == [f"/tmp/task-{number}/work" for number in (1, 2, 3)]
    assert {result.answer[1] for result in results} == {False}
