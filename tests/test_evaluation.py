"""What a candidate's process can and cannot do, and what its end is called; with and without a sandbox."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from bco_graph.evaluation import landlock, pick_sandbox
from bco_graph.protocols import Job, RunResult
from bco_graph.scaffold_tree import tree_digest
from tests.evaluation_stub import StubGateway, executor_for, job, run_all, serve, write_scaffold

LIMIT_S = 1.5
KEPT_BYTES = 4_000

AGENT = '''
import asyncio, os, signal, socket, subprocess, sys, threading, time
from pathlib import Path

HERE = Path(__file__).parent
print("printed by the import")

async def solve(task, target):
    return await KINDS[task.inputs["kind"]](task, target)

def say(text):
    return [{"role": "user", "content": text}]

async def chat(task, target):
    return await target.chat(say("hello"), max_tokens=7, temperature=0.5)

async def raw(task, target):
    return (await target.complete(say("hello"), stop=["x"]))["usage"]["total_tokens"]

async def many(task, target):
    return await asyncio.gather(*(target.chat(say("slow")) for _ in range(10)))

async def nothing(task, target):
    return await target.chat(say("nothing"))

async def caught(task, target):
    try:
        await target.chat(say("fail 503"))
    except target.TargetError as error:
        return [type(error).__name__, error.status, error.kind]

async def uncaught(task, target):
    await target.chat(say("fail 429"))

async def boom(task, target):
    print("banner " * 20_000)
    raise RuntimeError("Boom-42")

async def segfault(task, target):
    os.kill(os.getpid(), signal.SIGSEGV)

async def status(task, target):
    os._exit(139)

async def leave(task, target):
    sys.exit("enough")

async def busy(task, target):
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    print("the right answer")
    target.trace("before the limit")
    while True:
        pass

def beat(socket_path):
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    while True:
        with socket.socket(socket.AF_UNIX) as line:
            line.connect(socket_path)
            line.sendall(b"GET /beat HTTP/1.1\\r\\n\\r\\n")
        time.sleep(0.02)

def daemon(target):
    """A grandchild that left its session and its parent."""
    if os.fork() == 0:
        os.setsid()
        if os.fork() == 0:
            beat(target._socket_path)
        os._exit(0)
    os.wait()

async def left_behind(task, target):
    daemon(target)
    time.sleep(0.3)
    return "done"

async def hanging_child(task, target):
    daemon(target)
    time.sleep(60)

async def flood(task, target):
    print("first words")
    sys.stdout.write("x" * 1_000_000)
    sys.stderr.write("\\nlast words")
    for number in range(20_000):
        target.trace(number)
    sys.stdout.write("\\u00e9" * KEPT)
    print("last words")
    return "ok"

KEPT = 4_000

async def bytes_out(task, target):
    sys.stdout.buffer.write(b"\\xff\\xfe then text\\n")
    sys.stdout.buffer.flush()
    print("lone \\udcff surrogate")
    return "right"

async def environment(task, target):
    own = dict(os.environ)
    texts = [str(own)]
    for path in Path("/proc").glob("[0-9]*/environ"):
        try:
            texts.append(path.read_text(errors="replace"))
        except OSError:
            pass
    own["leaked"] = any("SECRET_X" in text for text in texts[: None if task.inputs["sandboxed"] else 1])
    return own

async def network(task, target):
    if task.inputs["may_listen"]:
        with socket.socket() as listening:
            listening.bind(("127.0.0.1", 0))
    try:
        socket.create_connection(("127.0.0.1", task.inputs["port"]), timeout=2).close()
    except OSError as error:
        return type(error).__name__
    return "connected"

async def write_source(task, target):
    places = [HERE / "agent.py", HERE / "new.txt", Path("/new.txt"), Path("/dev/new"), Path(sys.prefix) / "new"]
    places += [Path("/proc/sys/kernel/core_pattern"), Path("/usr/new")]
    written = []
    for place in places:
        try:
            place.open("a").close()
            written.append(str(place))
        except OSError:
            pass
    return written

async def survive(task, target):
    places = [Path("mark"), Path.home() / "mark", Path(os.environ["TMPDIR"]) / "mark"]
    places += map(Path, task.inputs["places"])
    found = [str(place) for place in places if place.exists()]
    for place in places:
        place.write_text("was here")
    return found

async def secrets(task, target):
    seen = [path for path in task.inputs["paths"] if Path(path).exists()]
    try:
        import bco_graph.errors
        seen.append("bco_graph")
    except ImportError:
        pass
    others = []
    for path in Path("/proc").glob("[0-9]*"):
        try:
            (path / "mem").open("rb").close()
            others.append(path.name)
        except OSError:
            pass
    status = Path("/proc/self/status").read_text()
    capabilities = status.partition("CapEff:")[2].split()[0]
    return [seen, set(others) - {os.readlink("/proc/self")} == set(), int(capabilities, 16)]

async def capabilities(task, target):
    import ctypes, struct
    header, held = struct.pack("=Ii", 0x20080522, 0), ctypes.create_string_buffer(24)
    assert ctypes.CDLL(None).capget(header, held) == 0
    return held.raw.count(0)

async def not_json(task, target):
    return {1, 2}

async def nan(task, target):
    return float("nan")

async def huge(task, target):
    return "x" * 5_000_000

async def repeat_number(task, target):
    return [task.repeat, sorted(task.inputs)]

async def forged(task, target):
    """Tries to call its own failure ours, through every handle that it has."""
    for handle in range(3, 60):
        try:
            os.write(handle, b'{"fault": "infrastructure"}\\n')
        except OSError:
            pass
    os._exit(1)

async def killed_parent(task, target):
    parent = os.getppid()
    if parent > 1:
        os.kill(parent, signal.SIGKILL)
        time.sleep(60)
    raise RuntimeError("the parent is out of reach")

async def threads(task, target):
    threading.Thread(target=time.sleep, args=(60,)).start()
    return "not waited for"

async def multiprocess(task, target):
    import multiprocessing
    with multiprocessing.get_context("fork").Pool(2) as pool:
        return pool.map(abs, [-1, -2])

async def subprocesses(task, target):
    return subprocess.run([sys.executable, "-c", "print(6 * 7)"], capture_output=True, text=True).stdout.strip()

async def nested(task, target):
    value = []
    for _ in range(100_000):
        value = [value]
    return value

KINDS = dict(globals())
'''

KINDS = (
    *("chat", "raw", "many", "nothing", "caught", "uncaught", "boom", "segfault", "status", "leave", "busy"),
    *("left_behind", "hanging_child", "flood", "bytes_out", "not_json", "nan", "huge", "nested"),
    *("repeat_number", "forged", "killed_parent", "threads", "subprocesses", "capabilities"),
)


@dataclass
class Evaluated:
    results: dict[tuple[str, int], RunResult]
    gateway: StubGateway
    mode: str
    beats_after: int
    unchanged: bool

    def of(self, kind: str, repeat: int = 0) -> RunResult:
        return self.results[kind, repeat]


def _jobs(port: int, folder: Path, *, mode: str) -> list[Job]:
    places = ["/tmp/mark", "/dev/shm/mark"] if mode == "required" else []
    jobs = [job(kind) for kind in KINDS]
    jobs += [job("environment", sandboxed=mode != "off")]
    jobs += [job("survive", repeat=repeat, places=places) for repeat in range(3)]
    if mode != "off":
        jobs += [job("network", port=port, may_listen=mode == "required"), job("write_source")]
    if mode != "landlock":  # which refuses /dev/shm
        jobs += [job("multiprocess")]
    if mode == "required":
        paths = [path for path in ("/home", "/var") if not sys.prefix.startswith(f"{path}/")]
        jobs += [job("secrets", paths=[__file__, str(folder), "/etc/passwd", "/sys", *paths])]
    return jobs


async def _evaluate(folder: Path, mode: str) -> Evaluated:
    source = write_scaffold(folder / "scaffold", AGENT)
    before = tree_digest(source)
    server = await asyncio.start_server(lambda _, writer: writer.close(), "127.0.0.1", 0)
    port = server.sockets[0].getsockname()[1]
    async with server, serve(folder / "gw.sock") as gateway:
        executor = executor_for(
            folder / "gw.sock", sandbox=mode, timeout_s=LIMIT_S, concurrency=6, max_trace_bytes=KEPT_BYTES
        )
        jobs = _jobs(port, folder, mode=mode)
        results = await run_all(executor, source, jobs)
        beats = gateway.beats
        await asyncio.sleep(0.2)
    assert len(results) == len(jobs)
    by_name = {(result.task_id, result.repeat): result for result in results}
    return Evaluated(by_name, gateway, mode, gateway.beats - beats, tree_digest(source) == before)


@pytest.fixture(scope="module", params=["required", "landlock", "off"])
def done(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Evaluated]:
    if request.param == "required" and pick_sandbox("auto").isolation != "task":
        pytest.skip(f"no full sandbox here: {pick_sandbox('auto').describe()}")
    if request.param == "landlock" and landlock.abi() < landlock.SCOPE_ABI:
        pytest.skip(f"the kernel's Landlock has ABI {landlock.abi()}")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("SECRET_X", "SECRET_X")
        yield asyncio.run(_evaluate(tmp_path_factory.mktemp("run"), request.param))


def test_every_job_has_one_result_and_the_source_is_as_before(done: Evaluated) -> None:
    assert set(KINDS) <= {kind for kind, _ in done.results}
    assert done.unchanged


def test_the_target_answers_with_the_parameters_and_the_jobs_own_token(done: Evaluated) -> None:
    assert (done.of("chat").status, done.of("chat").answer, done.of("chat").error) == ("answered", "HELLO", "")
    sent = dict(done.gateway.requests)["bearer key-chat-0"]
    assert sent == {
        "model": "target", "messages": [{"role": "user", "content": "hello"}], "max_tokens": 7, "temperature": 0.5
    }  # fmt: skip
    assert done.of("raw").answer == 3
    assert dict(done.gateway.requests)["bearer key-raw-0"]["stop"] == ["x"]
    assert done.of("nothing").answer == ""


def test_calls_within_a_task_run_at_the_same_time(done: Evaluated) -> None:
    assert done.of("many").answer == ["SLOW"] * 10
    assert done.gateway.most_at_once >= 10


def test_a_refused_call_is_an_exception_with_a_status(done: Evaluated) -> None:
    assert done.of("caught").answer == ["TargetError", 503, "UpstreamUnavailable"]
    assert done.of("uncaught").status == "crashed"
    assert "TargetError: HTTP 429: try later" in done.of("uncaught").error


def test_an_exception_is_named_and_its_traceback_is_kept(done: Evaluated) -> None:
    boom = done.of("boom")
    assert (boom.status, boom.answer, boom.error) == ("crashed", None, "RuntimeError: Boom-42")
    assert "Traceback" in boom.stderr
    assert "Boom-42" in boom.stderr
    assert len(boom.stdout.encode()) < KEPT_BYTES + 100


def test_every_way_out_has_its_name(done: Evaluated) -> None:
    assert done.of("segfault").error == "the task's process was killed by SIGSEGV before it answered"
    assert done.of("status").error == "the task's process exited with status 139 before it answered"
    assert done.of("leave").error == "SystemExit: enough"
    assert {done.of(kind).status for kind in ("segfault", "status", "leave")} == {"crashed"}


def test_a_busy_loop_that_ignores_sigterm_ends_at_its_limit(done: Evaluated) -> None:
    busy = done.of("busy")
    assert busy.status == "timeout"
    assert LIMIT_S <= busy.seconds < LIMIT_S + 1.5
    assert f"evaluation.timeout_s = {LIMIT_S} s struck after {busy.seconds:.2f} s" in busy.error
    assert "the right answer" in busy.stdout
    assert busy.events == ["before the limit"]


def test_nothing_that_a_task_started_outlives_it(done: Evaluated) -> None:
    assert done.of("left_behind").answer == "done"
    assert done.of("hanging_child").status == "timeout"
    assert done.gateway.beats > 0
    assert done.beats_after == 0


def test_output_is_cut_in_the_middle_with_both_sizes(done: Evaluated) -> None:
    flood = done.of("flood")
    assert flood.stdout.startswith("printed by the import\nfirst words")
    assert flood.stdout.endswith("last words\n")
    total = 1_000_000 + 2 * KEPT_BYTES + len("printed by the import\nfirst words\nlast words\n")
    assert f" of {total} bytes ...]" in flood.stdout
    assert "\ufffd" not in flood.stdout
    assert flood.stderr.endswith("last words")
    cut = [event for event in flood.events if isinstance(event, dict)]
    assert len(cut) == 1
    assert cut[0]["cut"].endswith("of 20000 events")
    assert flood.events[0] == 0
    assert flood.events[-1] == 19_999


def test_bytes_that_are_no_text_do_not_spoil_the_answer(done: Evaluated) -> None:
    assert done.of("bytes_out").answer == "right"
    assert done.of("bytes_out").raw == {
        "stdout": b"printed by the import\n\xff\xfe then text\nlone \\udcff surrogate\n"
    }
    assert done.of("chat").raw == {}
    assert done.of("bytes_out").stdout == "printed by the import\n\ufffd\ufffd then text\nlone \\udcff surrogate\n"


def test_only_the_named_variables_are_there(done: Evaluated) -> None:
    variables: dict[str, Any] = done.of("environment").answer
    assert not variables.pop("leaked")
    assert set(variables) == {"PATH", "LANG", "HOME", "TMPDIR", "PYTHONHASHSEED"}
    assert variables["LANG"] == "C.UTF-8"
    assert variables["PYTHONHASHSEED"] == "0"


def test_an_answer_that_is_no_json_is_a_crash_that_says_so(done: Evaluated) -> None:
    assert done.of("not_json").error == "the answer is not JSON: TypeError: Object of type set is not JSON serializable"
    assert "not JSON" in done.of("nan").error
    assert "not JSON" in done.of("nested").error
    assert "at most 4000000" in done.of("huge").error
    assert {done.of(kind).status for kind in ("not_json", "nan", "nested", "huge")} == {"crashed"}


def test_a_task_shows_its_inputs_and_its_repeat_only(done: Evaluated) -> None:
    assert done.of("repeat_number").answer == [0, ["kind"]]


def test_a_candidate_cannot_call_its_own_failure_ours(done: Evaluated) -> None:
    assert done.of("forged").status == "crashed"


def test_a_task_that_kills_its_parent_harms_itself_only(done: Evaluated) -> None:
    assert done.of("killed_parent").status == "crashed"
    assert done.of("killed_parent").seconds < LIMIT_S


def test_threads_and_processes_work_and_are_not_waited_for(done: Evaluated) -> None:
    assert done.of("threads").answer == "not waited for"
    assert done.of("subprocesses").answer == "42"


def test_nothing_survives_from_one_repeat_to_the_next(done: Evaluated) -> None:
    assert [done.of("survive", repeat).answer for repeat in range(3)] == [[], [], []]


@pytest.mark.parametrize("done", ["required", "landlock"], indirect=True)
def test_a_sandboxed_task_has_no_network_and_writes_nowhere_else(done: Evaluated) -> None:
    refusal = {"required": "ConnectionRefusedError", "landlock": "PermissionError"}
    assert done.of("network").answer == refusal[done.mode]
    assert done.of("write_source").answer == []


@pytest.mark.parametrize("done", ["required", "off"], indirect=True)
def test_the_locks_of_multiprocessing_work(done: Evaluated) -> None:
    assert done.of("multiprocess").answer == [1, 2]


@pytest.mark.parametrize("done", ["required"], indirect=True)
def test_a_sandboxed_task_sees_no_file_variable_or_package_of_ours(done: Evaluated) -> None:
    seen, alone, capabilities = done.of("secrets").answer
    assert seen == []
    assert alone
    assert capabilities == 0


def test_a_task_has_no_capabilities(done: Evaluated) -> None:
    assert done.of("capabilities").answer == 24


def test_no_folder_of_a_run_is_left(done: Evaluated) -> None:
    folders = {result.answer["HOME"] for result in done.results.values() if result.task_id == "environment"}
    assert not any(Path(folder).exists() for folder in folders)
