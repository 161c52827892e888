"""One running worker as the controller sees it: jobs in, results out, and what its end means."""

from __future__ import annotations

import asyncio
import base64
import contextlib
import json
import signal
import time
from asyncio.subprocess import PIPE, Process
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, NoReturn

from bco_graph.config import Evaluation
from bco_graph.evaluation import worker
from bco_graph.evaluation.sandbox import Launch
from bco_graph.gateway.replies import storable
from bco_graph.protocols import Interface, Job, RunResult, RunStatus
from bco_graph.state import JSON

GRACE_S = 15.0
"""How long after a task's limit a worker may take to hand in the result; the run then counts as broken."""
CLOSING_S = 5.0
IMPORT_OUTPUT_BYTES = 20_000
"""Kept of what the import of a scaffold prints; shown with each job when the worker fails."""


class NotStarted(Exception):
    """No worker can run the candidate's jobs; `status` and the message are what each of them ends with."""

    def __init__(self, status: RunStatus, error: str, *, stderr: str = "", seconds: float = 0.0) -> None:
        super().__init__(error)
        self.status: RunStatus = status
        self.stderr = stderr
        self.seconds = seconds

    def result(self, job: Job) -> RunResult:
        return failed(job, self.status, str(self), seconds=self.seconds, stderr=self.stderr)


class WorkerDied(NotStarted):
    """The worker ended before it began the job; another one may run it."""


@dataclass
class _Waiting:
    job: Job
    result: asyncio.Future[RunResult]
    begun: bool = False


@dataclass
class WorkerProcess:
    """Made by `start`. After `kill`, or its own end, it takes no more jobs."""

    process: Process
    stdin: asyncio.StreamWriter
    stdout: asyncio.StreamReader
    limit_s: float
    alive: bool = True
    end: NotStarted | None = None
    """Why it ended by itself; None while it lives, and when we ended it in order."""
    _output: worker.KeptBytes = field(default_factory=lambda: worker.KeptBytes(IMPORT_OUTPUT_BYTES))
    _waiting: dict[int, _Waiting] = field(default_factory=dict)
    _count: int = 0
    _readers: list[asyncio.Task[None]] = field(default_factory=list)

    @classmethod
    async def start(
        cls, launch: Launch, interface: Interface, evaluation: Evaluation, *, import_timeout_s: float
    ) -> WorkerProcess:
        """Start a worker and wait until it has imported the scaffold. Raises NotStarted, with the process gone."""
        try:
            process = await asyncio.create_subprocess_exec(
                *launch.argv, env=launch.environment, cwd=launch.cwd, stdin=PIPE, stdout=PIPE, stderr=PIPE,
                limit=_longest_line(evaluation), start_new_session=True,
            )  # fmt: skip
        except OSError as error:
            raise NotStarted("broken", f"the worker cannot be started: {error}") from error
        assert process.stdin is not None
        assert process.stdout is not None
        started = cls(process, process.stdin, process.stdout, evaluation.timeout_s)
        started._readers.append(asyncio.create_task(started._keep_output()))
        try:
            hello = _hello(launch, interface, evaluation, import_timeout_s)
            await started._handshake(hello, interface.entry, import_timeout_s)
        except BaseException:
            started.kill()
            await started.wait()
            raise
        started._readers.append(asyncio.create_task(started._receive()))
        return started

    async def run(self, job: Job) -> RunResult:
        """The job's result, whatever happens to the worker. Raises WorkerDied when the job was not begun."""
        if not self.alive:
            raise WorkerDied("broken", "the worker has ended")
        self._count += 1
        number = self._count
        waiting = self._waiting[number] = _Waiting(job, asyncio.get_running_loop().create_future())
        self._send({"job": number, "inputs": dict(job.task.inputs), "repeat": job.repeat, "token": job.token})
        try:
            return await asyncio.wait_for(waiting.result, self.limit_s + GRACE_S)
        except TimeoutError:
            error = f"the worker gave no result within {GRACE_S:g} s of a task's limit and was killed"
            self.end = self.end or NotStarted("broken", error)
            self.kill()
            return failed(job, "broken", error, seconds=self.limit_s + GRACE_S)
        finally:
            del self._waiting[number]

    def kill(self) -> None:
        """Kill the worker and all that it started, at once."""
        self.alive = False
        if self.process.returncode is None:
            worker.kill_tree(self.process.pid)

    async def close(self) -> None:
        """Let the worker end by itself, which ends its tasks, or else kill it."""
        self.alive = False
        self.stdin.close()
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(self.process.wait(), CLOSING_S)
        self.kill()
        await self.wait()

    async def wait(self) -> None:
        """Until the killed or closed process is gone and its pipes are read to their end."""
        await self.process.wait()
        self.stdin.close()
        await asyncio.gather(*self._readers, return_exceptions=True)
        with contextlib.suppress(ValueError):
            while await self.stdout.read(1 << 16):
                pass

    def _send(self, message: Mapping[str, JSON]) -> None:
        # Not drained: what is in flight is bounded by the concurrency, and `_receive` sees a worker that died.
        self.stdin.write(json.dumps(message, allow_nan=False).encode() + b"\n")

    async def _keep_output(self) -> None:
        assert self.process.stderr is not None
        while chunk := await self.process.stderr.read(1 << 16):
            self._output.add(chunk)

    async def _handshake(self, settings: Mapping[str, JSON], entry: str, import_timeout_s: float) -> None:
        """Raises NotStarted: `broken` before the import of the scaffold began, then what the scaffold did."""
        began = time.monotonic()
        self._send(settings)
        hello: Mapping[str, JSON] = {}
        with contextlib.suppress(TimeoutError):
            hello = await asyncio.wait_for(self._line(), GRACE_S)
        if hello.get("hello") is not True:
            await self._refuse("broken", "the worker did not start", began)
        try:
            said = await asyncio.wait_for(self._line(), import_timeout_s + GRACE_S)
        except TimeoutError:
            error = f"importing what {entry} imports took longer than the limit of {import_timeout_s:g} s for an import"
            await self._refuse("timeout", error, began)
        if "failed" in said:
            self._output.add(said["printed"].encode())
            await self._refuse(said["failed"]["status"], said["failed"]["error"], began)
        if "fault" in said:
            await self._refuse("broken", said["fault"], began)
        if said.get("ready") is not True:
            await self._refuse("crashed", f"importing {entry} ended the worker", began)

    async def _refuse(self, status: RunStatus, error: str, began: float) -> NoReturn:
        await self._end(patience_s=0.0 if status == "timeout" else 1.0)
        await asyncio.gather(*self._readers)
        if self.process.returncode and status != "timeout":
            error += f" ({_ending(self.process.returncode)})"
        raise NotStarted(status, error, stderr=self._output.text(), seconds=time.monotonic() - began)

    async def _end(self, *, patience_s: float) -> None:
        """Let an ending process end, so that its own exit status is seen; then kill what is left."""
        self.alive = False
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(self.process.wait(), patience_s)
        self.kill()
        await self.process.wait()

    async def _receive(self) -> None:
        while message := await self._line():
            number = message.get("job")
            waiting = self._waiting.get(number) if isinstance(number, int) else None
            if waiting is None:
                if "fault" in message and self.end is None:
                    self.end = NotStarted("broken", str(message["fault"]))
                break
            if message.get("started") is True:
                waiting.begun = True
            elif not waiting.result.done():
                waiting.result.set_result(_read_result(waiting.job, message))
        await self._end(patience_s=1.0)
        code = self.process.returncode or 0
        error = f"the candidate's worker process ended while tasks ran ({_ending(code)})"
        self.end = self.end or NotStarted("crashed", error, stderr=self._output.text())
        for waiting in self._waiting.values():
            if waiting.result.done():
                continue
            if waiting.begun:
                waiting.result.set_result(self.end.result(waiting.job))
            else:
                waiting.result.set_exception(WorkerDied(self.end.status, str(self.end)))

    async def _line(self) -> dict[str, Any]:
        """The next message; empty at the end, and for what is no message."""
        try:
            message = json.loads(await self.stdout.readline())
        except (ValueError, RecursionError):
            return {}
        return message if isinstance(message, dict) else {}


def failed(job: Job, status: RunStatus, error: str, *, seconds: float = 0.0, stderr: str = "") -> RunResult:
    return RunResult(job.task.id, job.repeat, status, None, error, seconds, stderr=stderr)


def _hello(launch: Launch, interface: Interface, evaluation: Evaluation, import_timeout_s: float) -> dict[str, JSON]:
    return {
        "entry": interface.entry, "kind": interface.kind, "graph": dict(interface.settings),
        "scaffold": launch.scaffold, "socket": launch.socket, "work": launch.work,
        "keep": launch.keep, "isolation": launch.isolation,
        "landlock": None if launch.landlock is None else dict(launch.landlock), "memory_mb": evaluation.memory_mb,
        "timeout_s": evaluation.timeout_s,
        "import_timeout_s": import_timeout_s, "max_trace_bytes": evaluation.max_trace_bytes,
    }  # fmt: skip


def _longest_line(evaluation: Evaluation) -> int:
    """A byte takes up to 6 in JSON and 2 in base64: two streams, the events, the answer, and room for the rest."""
    return 18 * evaluation.max_trace_bytes + 3 * worker.MAX_ANSWER_BYTES


def _read_result(job: Job, message: Mapping[str, Any]) -> RunResult:
    message = storable(message)
    return RunResult(
        job.task.id, job.repeat, message["status"], message.get("answer"), message["error"], message["seconds"],
        message["stdout"], message["stderr"], message["events"],
        {name: base64.b64decode(content) for name, content in message["raw"].items()},
    )  # fmt: skip


def _ending(code: int) -> str:
    """What an exit status says; a sandbox reports a signal as 128 more than its number."""
    number = -code if code < 0 else code - 128
    if number in list(signal.Signals):
        return f"killed by {signal.Signals(number).name}"
    return f"exit status {code}"
