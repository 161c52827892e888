"""The executor of one machine: a worker for the candidate, jobs at the configured concurrency, one result each."""

from __future__ import annotations

import asyncio
import contextlib
from collections import deque
from collections.abc import Awaitable, Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from bco_graph.apart import run_apart
from bco_graph.config import Evaluation
from bco_graph.errors import CandidateRefused
from bco_graph.evaluation.process import NotStarted, WorkerDied, WorkerProcess
from bco_graph.evaluation.sandbox import Launch, Sandbox, pick_sandbox
from bco_graph.evaluation.worker import remove_tree
from bco_graph.protocols import Interface, Job, RunResult
from bco_graph.scaffold_tree import copy_tree
from bco_graph.scratch import Scratch

IMPORT_TIMEOUT_S = 30.0
MAX_RESTARTS = 1
"""A second death of a candidate's worker ends all of its remaining jobs."""


class LocalExecutor:
    """Implements `protocols.Executor`. Usable from any thread's event loop, for several runs at once.

    `socket_path` is the gateway's Unix socket, the only way out for a sandboxed candidate. `hide` are folders that a
    sandboxed candidate must not see although they lie where Python or the system does, such as a suite's own package;
    ours is always hidden. `import_timeout_s` bounds the import of a scaffold, which happens once for all its jobs.
    Raises ConfigError when the config requires a sandbox and there is none.
    """

    def __init__(
        self,
        evaluation: Evaluation,
        *,
        socket_path: Path,
        hide: Sequence[Path] = (),
        sandbox: Sandbox | None = None,
        import_timeout_s: float = IMPORT_TIMEOUT_S,
    ) -> None:
        self.evaluation = evaluation
        self.socket_path = socket_path
        self.hide = tuple(hide)
        self.sandbox = sandbox or pick_sandbox(evaluation.sandbox, evaluation.isolation)
        self.import_timeout_s = import_timeout_s

    async def run(
        self,
        source: Path,
        interface: Interface,
        jobs: Sequence[Job],
        on_result: Callable[[RunResult], Awaitable[None]],
    ) -> None:
        """Run every job once; each is handed over exactly once, whatever the candidate or the worker does.

        `on_result` is awaited in the job's own slot: while it grades, the slot starts no other job. What it raises
        ends the run. However the run ends, no process and no file of it is left.
        """
        waiting = deque(jobs)
        with self._workers(source, interface) as workers:

            async def slot() -> None:
                while waiting:
                    await on_result(await workers.run(waiting.popleft()))

            slots = [asyncio.create_task(slot()) for _ in range(min(self.evaluation.concurrency, len(jobs)))]
            try:
                await asyncio.gather(*slots)
                await workers.close()
            finally:
                workers.kill()
                for task in slots:
                    task.cancel()
                await asyncio.gather(*slots, return_exceptions=True)
                await workers.wait()

    def import_problems(self, source: Path, interface: Interface) -> list[str]:
        """Import the scaffold as `run` would, without a job; why that fails, or an empty list. Blocks meanwhile."""

        async def attempt() -> list[str]:
            with self._workers(source, interface) as workers:
                try:
                    await workers.ready()
                except NotStarted as error:
                    return [str(error)]
                finally:
                    workers.kill()
                    await workers.wait()
            return []

        return run_apart(attempt())

    @contextlib.contextmanager
    def _workers(self, source: Path, interface: Interface) -> Iterator[_Workers]:
        """Workers on a copy of the source, so that what is run is exactly what was admitted."""
        scratch = Scratch.make("run")
        folder = scratch.path
        workers = _Workers(interface, self.evaluation, self.import_timeout_s)
        try:
            (folder / "work").mkdir()
            copy_tree(source, folder / "scaffold")
            workers.launch = self.sandbox.launch(folder, self.socket_path, hide=self.hide)
        except CandidateRefused as error:
            workers.refusal = NotStarted("crashed", str(error))
        except OSError as error:
            workers.refusal = NotStarted("broken", f"the source cannot be copied for the run: {error}")
        try:
            yield workers
        finally:
            workers.kill()
            scratch.remove(remove_tree)


@dataclass
class _Workers:
    """The worker of a run, and the one that replaces it if it dies."""

    interface: Interface
    evaluation: Evaluation
    import_timeout_s: float
    launch: Launch | None = None
    refusal: NotStarted | None = None
    _started: list[WorkerProcess] = field(default_factory=list)
    _lock: asyncio.Lock = field(default_factory=asyncio.Lock)

    async def run(self, job: Job) -> RunResult:
        while True:
            try:
                worker = await self.ready()
                return await worker.run(job)
            except WorkerDied:
                continue
            except NotStarted as error:
                return error.result(job)

    async def ready(self) -> WorkerProcess:
        """A worker that takes jobs. Raises NotStarted, the same one to every job, when there is none to be had."""
        async with self._lock:
            if self._started and self._started[-1].alive:
                return self._started[-1]
            if self._started:
                # Why it ended is known a while after that it did.
                await self._started[-1].wait()
            if len(self._started) > MAX_RESTARTS:
                self.refusal = self._started[-1].end
            if self.refusal is not None:
                raise self.refusal
            assert self.launch is not None
            try:
                worker = await WorkerProcess.start(
                    self.launch, self.interface, self.evaluation, import_timeout_s=self.import_timeout_s
                )
            except NotStarted as error:
                self.refusal = error
                raise
            self._started.append(worker)
            return worker

    def kill(self) -> None:
        for worker in self._started:
            worker.kill()

    async def close(self) -> None:
        for worker in self._started:
            await worker.close()

    async def wait(self) -> None:
        for worker in self._started:
            await worker.wait()
