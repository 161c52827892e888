"""Where hostile candidates are run: the real executor, gateway and receipts, with canaries around them.

A `Range` holds what a candidate must not reach (files of a run, a suite and a home; a process with a key in its
environment; open ports), runs batches of candidates beside one that behaves, and says all that went wrong.
"""

from __future__ import annotations

import asyncio
import hashlib
import json
import os
import re
import secrets
import socket
import subprocess
import sysconfig
import tempfile
import time
from collections import Counter
from collections.abc import Awaitable, Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from bco_graph.config import Evaluation
from bco_graph.evaluation import LocalExecutor, Sandbox, worker
from bco_graph.evaluation.process import GRACE_S
from bco_graph.evaluation.service import Evaluator
from bco_graph.events import Events
from bco_graph.protocols import Caller, Interface, Job, RunResult, Score, Task
from bco_graph.state import JSON, Split
from bco_graph.testing import ScriptedModelServer
from tests.gateway_room import Room, knock, opened
from tests.hostile.candidates import PIECES, Candidate, generate

LIMIT_S, IMPORT_LIMIT_S = 1.0, 2.0
MEMORY_MB = 400
PATIENCE_S = 5.0
MEMORY_GROWTH_MB = 600
"""Of this process: answers of 4 MB, and requests of 20 MB, take many times that while they are parsed."""
AT_ONCE = 4
"""Hostile candidates at a time, of two tasks each."""
_ONE_SANDBOX = {"leave_for_the_next", "shared_memory_left"}
_OF_THE_USER = {
    "signals_around", "clocks_and_limits", "trace_others", "write_own_source", "write_canaries", "device_nodes",
}  # fmt: skip
ALLOWED = {
    ("bubblewrap", "task"): frozenset(PIECES),
    ("bubblewrap", "candidate"): frozenset(PIECES) - _ONE_SANDBOX,
    ("landlock", "none"): frozenset(PIECES) - {"shared_memory_left"} - _OF_THE_USER,
}
"""Pieces by what confines them: tasks in one sandbox may pass things on, and Landlock leaves this user's processes,
modes and owners of files, and System V's shared memory open."""
_MARKERS = re.compile(r"(?:canary|private|gold)-[0-9a-f]{16}|bco-[A-Za-z0-9_-]{32}")
_DID = re.compile(r"^@did (\w+)$", re.MULTILINE)
_BREACH = re.compile(r"^@breach .*$", re.MULTILINE)
_WATCHED = ("json", "asyncio")
_GOOD = """\
import os

async def solve(task, target):
    for place in ("/dev/shm", os.environ["HOME"], os.environ["TMPDIR"], "."):
        for _, _, names in os.walk(place):
            for name in names:
                if name.startswith(("left", "full")):
                    target.trace(f"{place} has {name}")
    return await target.chat(task.inputs["question"])
"""


def marker(kind: str) -> str:
    return f"{kind}-{secrets.token_hex(8)}"


@dataclass
class HostileSuite:
    """Gold that nobody can guess; answers of the target are right for the candidate that behaves."""

    interface: Interface = field(default_factory=Interface)
    golds: dict[str, str] = field(default_factory=dict)
    name: str = "hostile"

    def task(self, name: str, gold: str, **inputs: JSON) -> Task:
        self.golds[name] = gold
        return Task(name, "hostile", inputs)

    def tasks(self, split: Split) -> Sequence[Task]:
        return []

    def grade(self, task: Task, answer: JSON) -> Score:
        return Score(float(answer == self.golds[task.id]))

    def gold(self, task: Task) -> JSON:
        return self.golds[task.id]

    def initial_scaffold(self) -> Path:
        raise NotImplementedError

    def surface(self) -> str:
        return ""


@dataclass
class Recording:
    """An executor that keeps what the real one hands over."""

    inner: LocalExecutor
    results: list[RunResult] = field(default_factory=list)

    async def run(
        self,
        source: Path,
        interface: Interface,
        jobs: Sequence[Job],
        on_result: Callable[[RunResult], Awaitable[None]],
    ) -> None:
        async def keep(result: RunResult) -> None:
            self.results.append(result)
            await on_result(result)

        await self.inner.run(source, interface, jobs, keep)


@dataclass
class Range:
    """`faults` are sentences, each once and with the candidate's seed or the batch; empty when no harm was done."""

    folder: Path
    sandbox: Sandbox
    room: Room
    server: ScriptedModelServer
    canary: str
    decoy: subprocess.Popen[bytes]
    ports: list[int]
    abstract: str
    suite: HostileSuite = field(default_factory=HostileSuite)
    faults: dict[str, None] = field(default_factory=dict)
    statuses: dict[str, Counter[str]] = field(default_factory=dict)
    """By kind, how the rows of candidates with a piece of that kind ended."""
    did: Counter[str] = field(default_factory=Counter)
    longest_s: float = 0.0
    rows: int = 0
    good_rows: int = 0
    memory_mb: list[int] = field(default_factory=list)
    descriptors: list[int] = field(default_factory=list)
    _private: dict[str, str] = field(default_factory=dict)
    _batches: int = 0

    def _fault(self, sentence: str) -> None:
        self.faults[sentence] = None

    # -- what must stay as it is -------------------------------------------------------------------------------

    @property
    def canaries(self) -> list[str]:
        names = ("run/receipts.sqlite", "run/run.json", "suite/gold.json", "home/.ssh/id_ed25519", "home/.env")
        return [str(self.folder / "outside" / name) for name in names]

    def plant(self) -> None:
        """Write the canaries anew, the golds of this batch among them."""
        text = json.dumps({"key": self.canary, "golds": self.suite.golds})
        for path in map(Path, self.canaries):
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text, encoding="utf-8")

    def outside(self) -> dict[str, object]:
        """A picture of what no candidate may change."""
        picture: dict[str, object] = {}
        library = Path(sysconfig.get_path("stdlib"))
        packages = Path(sysconfig.get_path("purelib"))
        folders = [self.folder / "outside", self.folder / "sources", *(library / name for name in _WATCHED)]
        for path in [Path(worker.__file__), packages, *(file for folder in folders for file in folder.rglob("*"))]:
            facts = path.lstat()
            picture[str(path)] = (facts.st_ino, facts.st_mode, facts.st_uid, facts.st_size, facts.st_mtime_ns)
            if path.is_file() and path.is_relative_to(self.folder):
                picture[f"{path} holds"] = hashlib.sha256(path.read_bytes()).hexdigest()
        for place in ("/", "/etc", "/dev", "/run", str(Path.home())):
            picture[place] = sorted(os.listdir(place))
        picture["/dev/shm"] = sorted(name for name in os.listdir("/dev/shm") if name.startswith(("left", "full")))
        return picture

    # -- a batch -----------------------------------------------------------------------------------------------

    async def batch(self, candidates: Sequence[Candidate]) -> None:
        """Run them, `AT_ONCE` at a time, with one that behaves beside them; then look at everything."""
        self._batches += 1
        sources = {}
        for one in candidates:
            folder = self.folder / "sources" / str(one.seed)
            sources[one.seed] = one.write(folder, self.canaries)
            for number in range(2):
                self._private[f"{one.seed}-{number}"] = marker("private")
                self.suite.golds[f"{one.seed}-{number}"] = marker("gold")
        self.plant()
        before = self.outside()
        slots = asyncio.Semaphore(AT_ONCE)

        async def slot(one: Candidate) -> None:
            async with slots:
                await self._run(one, sources[one.seed])

        hostile = asyncio.gather(*(slot(one) for one in candidates))
        good = 0
        while not hostile.done() or not good:
            await self._run_good(f"{self._batches}-{good}")
            good += 1
        await hostile
        self._compare(before, self.outside())
        await asyncio.to_thread(self._look_around)

    async def shoot(self, seeds: Sequence[int], *, per_batch: int = 21) -> None:
        """Run the candidates of some seeds, without what this sandbox does not promise to stand."""
        allowed = ALLOWED[self.sandbox.name, self.sandbox.isolation]
        for start in range(0, len(seeds), per_batch):
            await self.batch([generate(seed, allowed) for seed in seeds[start : start + per_batch]])

    async def _run(self, one: Candidate, source: Path) -> None:
        name = f"hostile_{one.seed}"
        tasks = [
            self.suite.task(
                key, self.suite.golds[key], question=f"What of {key}?", secret=self._private[key], ports=self.ports,
                abstract=[self.abstract],
            )
            for key in (f"{one.seed}-0", f"{one.seed}-1")
        ]  # fmt: skip
        executor = Recording(self._executor(LIMIT_S, IMPORT_LIMIT_S))
        traces: list[dict[str, JSON]] = []
        began = time.monotonic()
        try:
            rows = await self._evaluator(executor).evaluate(
                "heldout", name, source, tasks, iteration=0, keep_trace=traces.append
            )
        except Exception as error:
            self._fault(f"{one.seed}: the evaluation raised {type(error).__name__}: {error}")
            return
        wall_s = time.monotonic() - began
        for result in executor.results:
            self._judge(one, result)
        if sorted(result.task_id for result in executor.results) != [task.id for task in tasks]:
            self._fault(f"{one.seed}: results of {[result.task_id for result in executor.results]}")
        if sorted(row.task for row in rows) != [task.id for task in tasks] or any(row.score for row in rows):
            self._fault(f"{one.seed}: rows {[(row.task, row.kind, row.score) for row in rows]}")
        for trace in traces:
            self._search(one, str(trace["task"]), json.dumps(trace, ensure_ascii=False))
        if wall_s > 2 * (LIMIT_S + IMPORT_LIMIT_S + GRACE_S):
            self._fault(f"{one.seed}: took {wall_s:.1f} s")

    def _judge(self, one: Candidate, result: RunResult) -> None:
        self.rows += 1
        self.longest_s = max(self.longest_s, result.seconds)
        for kind in one.kinds:
            self.statuses.setdefault(kind, Counter())[result.status] += 1
        said = result.stderr + result.stdout
        self.did.update(name for name in set(_DID.findall(said)) if name in PIECES)
        for breach in _BREACH.findall(said):
            self._fault(f"{one.seed}: {breach}")
        if result.seconds > max(LIMIT_S, IMPORT_LIMIT_S) + GRACE_S:
            self._fault(f"{one.seed}: a task took {result.seconds:.1f} s")
        if result.status == "broken" and self.sandbox.isolation == "task":
            self._fault(f"{one.seed}: passed itself off as a failure of ours: {result.error}")
        self._search(one, result.task_id, f"{result.error}\n{said}")
        for content in result.raw.values():
            self._search(one, result.task_id, content.decode("latin-1"))

    def _search(self, one: Candidate, task: str, text: str) -> None:
        """Markers that this row may not know: any but its task's own."""
        others = {self._token(one, name) for name in (f"{one.seed}-0", f"{one.seed}-1")}
        own = {self._private[task], self._token(one, task)}
        for found in sorted(set(_MARKERS.findall(text)) - own):
            if not found.startswith("bco-") or found in others:
                self._fault(f"{one.seed}: task {task} knows {found.partition('-')[0]} {found!r}")

    def _token(self, one: Candidate, task: str) -> str:
        return self.room.gateway.token(Caller("target", f"hostile_{one.seed}", task, 0))

    async def _run_good(self, name: str) -> None:
        source = self.folder / "good"
        source.mkdir(exist_ok=True)
        (source / "agent.py").write_text(_GOOD, encoding="utf-8")
        tasks = [
            self.suite.task(f"good-{name}-{n}", self.reply(f"Say {name} {n}."), question=f"Say {name} {n}.")
            for n in range(4)
        ]
        traces: list[dict[str, Any]] = []
        rows = await self._evaluator(Recording(self._executor(60.0, 60.0))).evaluate(
            "heldout", f"good_{name}", source, tasks, iteration=0, keep_trace=traces.append
        )
        self.good_rows += len(rows)
        if [row.score for row in rows] != [1.0] * 4:
            self._fault(f"the candidate that behaves was harmed: {[(row.kind, row.error) for row in rows]}")
        for trace in traces:
            if trace["events"]:
                self._fault(f"the candidate that behaves found {trace['events']}")
        for task in tasks:
            del self.suite.golds[task.id]

    def reply(self, question: str) -> str:
        return hashlib.sha256(f"{self.canary[::-1]} {question}".encode()).hexdigest()[:16]

    def answer(self, body: dict[str, JSON]) -> str:
        """The scripted target."""
        messages = body.get("messages")
        last = messages[-1] if isinstance(messages, list) and messages else None
        return self.reply(str(last.get("content")) if isinstance(last, dict) else "")

    def _executor(self, limit_s: float, import_timeout_s: float) -> LocalExecutor:
        evaluation = Evaluation(timeout_s=limit_s, concurrency=2, memory_mb=MEMORY_MB, max_trace_bytes=100_000)
        return LocalExecutor(
            evaluation, socket_path=self.room.gateway.socket_path, sandbox=self.sandbox,
            import_timeout_s=import_timeout_s, hide=[self.folder],
        )  # fmt: skip

    def _evaluator(self, executor: Recording) -> Evaluator:
        events = Events(self.folder / "events.jsonl")
        return Evaluator(self.suite, executor, self.room.receipts, events, self.room.gateway.token, 1)

    # -- afterwards --------------------------------------------------------------------------------------------

    def _compare(self, before: dict[str, object], after: dict[str, object]) -> None:
        for name in sorted(before.keys() | after.keys()):
            if before.get(name) != after.get(name):
                self._fault(f"batch {self._batches}: {name} was {before.get(name)}, is {after.get(name)}")

    def _look_around(self) -> None:
        # The kernel ends what is in a sandbox, which is not done at once.
        until = time.monotonic() + PATIENCE_S
        while (left := self._strangers()) and time.monotonic() < until:
            time.sleep(0.05)
        for pid in left:
            self._fault(f"batch {self._batches}: the process {pid} is left: {_command(pid)}")
        if self.decoy.poll() is not None:
            self._fault(f"batch {self._batches}: another process of this user was ended")
        folders = [path.name for path in Path(tempfile.gettempdir()).iterdir() if path.name.startswith("bco-run-")]
        if folders:
            self._fault(f"batch {self._batches}: {folders} are left")
        for door in ("unix", "tcp"):
            if (status := knock(self.room, {"messages": []}, "forged", door=door)[0]) != 401:
                self._fault(f"batch {self._batches}: {door} answers {status} to a forged token")
        for request in self.server.requests:
            text = json.dumps([request.body, dict(request.headers)])
            for found in _MARKERS.findall(text):
                if not found.startswith("private"):
                    self._fault(f"the target was sent {found}")
        for path in self.folder.glob("*"):
            if path.is_file() and self.canary.encode() in path.read_bytes():
                self._fault(f"batch {self._batches}: {path.name} holds the key")
        self.memory_mb.append(_memory_mb())
        self.descriptors.append(len(os.listdir("/proc/self/fd")))

    def _strangers(self) -> list[int]:
        return [pid for pid in worker.descendants(os.getpid()) if pid != self.decoy.pid]


def _command(pid: int) -> str:
    try:
        return Path(f"/proc/{pid}/cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace")
    except OSError:
        return "gone by now"


def _memory_mb() -> int:
    """Resident memory of this process."""
    return int(Path("/proc/self/statm").read_text(encoding="ascii").split()[1]) * os.sysconf("SC_PAGESIZE") >> 20


@contextmanager
def firing_range(folder: Path, sandbox: Sandbox) -> Iterator[Range]:
    """Whatever a candidate starts becomes this process's child when its parent ends, so that none can hide."""
    canary = marker("canary")
    with ExitStack() as stack:
        worker.prctl(36, 1)
        stack.callback(worker.prctl, 36, 0)
        os.environ["CANARY"] = canary
        stack.callback(os.environ.pop, "CANARY", None)
        made: list[Range] = []
        server = stack.enter_context(ScriptedModelServer({"target": lambda body: made[0].answer(body)}))
        room = stack.enter_context(opened(folder, server.deployment("target"), cache=False))
        decoy = subprocess.Popen(["sleep", "3600"], env={"CANARY": canary, "SOME_API_KEY": canary})
        stack.callback(decoy.wait)
        stack.callback(decoy.kill)
        listener = stack.enter_context(socket.create_server(("127.0.0.1", 0)))
        abstract = stack.enter_context(socket.socket(socket.AF_UNIX))
        name = marker("abstract")
        abstract.bind("\0" + name)
        abstract.listen()
        ports = [listener.getsockname()[1]]
        for url in (room.gateway.base_url, server.base_url):
            ports.append(int(url.removesuffix("/v1").rpartition(":")[2]))
        made.append(Range(folder, sandbox, room, server, canary, decoy, ports, name))
        yield made[0]
