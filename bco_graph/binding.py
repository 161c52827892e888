"""Binds the nodes to a run: one async core, a thin sync face, the run folder opened by the first node that runs."""

from __future__ import annotations

import atexit
import threading
import time
from collections.abc import Awaitable, Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast, get_args

from langchain_core.runnables import RunnableLambda

from bco_graph.apart import await_apart, run_apart
from bco_graph.config import RunConfig, nearest
from bco_graph.errors import ConfigError
from bco_graph.opening import open_run
from bco_graph.outside import take_over
from bco_graph.places import LAST, Places, iteration_of
from bco_graph.protocols import Proposer, Suite
from bco_graph.runtime import RunContext
from bco_graph.state import AskName, NodeName, candidate_id

if TYPE_CHECKING:
    from langchain_core.runnables import Runnable

Node = Callable[..., Awaitable[Any]]


class RunHandle:
    """A run that is opened when it is first needed and closed once; safe to share between threads.

    With `apart`, each of its nodes runs in a thread with a loop of its own, whoever calls, so that an async caller's
    loop goes on while a node reads and writes; the first one opens the run there. Without it, async callers have the
    nodes in their own loop, where nodes and proposers of theirs may share what is bound to it.
    """

    def __init__(
        self,
        config: RunConfig,
        *,
        suite: Suite | None = None,
        proposer: Proposer | None = None,
        target: str | None = None,
        apart: bool = False,
        **options: Any,
    ) -> None:
        self.config = config
        self.apart = apart
        self._how: dict[str, Any] = {"suite": suite, "proposer": proposer, "target": target, **options}
        self._run: RunContext | None = None
        self._lock = threading.Lock()
        self.places = Places()

    def open(self) -> RunContext:
        with self._lock:
            if self._run is None:
                self._run = open_run(self.config, **self._how)
                atexit.register(self.close)
            return self._run

    def close(self) -> None:
        with self._lock:
            run, self._run = self._run, None
        if run is not None:
            atexit.unregister(self.close)
            run.close()

    @property
    def folder(self) -> Path:
        return self.config.run_dir


def begin(run: RunContext, iteration: int) -> None:
    """Say once in a process, and again after an end, that the run goes on at an iteration."""
    if run.events.view.name and not run.events.view.ended:
        return
    run.events.emit(
        "run_started", iteration, name=run.config.name, method=run.config.method, iterations=run.config.iterations,
        tasks=len(run.tasks), target=run.config.roles.target, sandbox=run.executor.sandbox.describe(),
        folder=str(run.config.run_dir), candidates=run.records.summaries(),
    )  # fmt: skip


def end(run: RunContext, state: Mapping[str, Any], stop: str | None) -> None:
    """Say that the run is at its end, with the best beside the untouched baseline."""
    best = state.get("best")
    baseline = next((c for c in run.records.summaries() if c["id"] == candidate_id(0)), None)
    run.events.emit(
        "run_ended", state.get("iteration", 0), stop=stop, best=best["id"] if best else None,
        mean=best["mean"] if best else None, baseline=baseline["mean"] if baseline else None,
    )  # fmt: skip


def bind(node: Node, handle: RunHandle) -> Runnable[Any, Any]:
    """The node as LangGraph takes it, for `ainvoke` and `astream` as well as `invoke` and `stream`.

    `node` is one of `bco_graph.nodes`, or a function of the same name and signature. It raises StaleCheckpoint when it
    is started from a checkpoint that the run has left behind.
    """
    name = _name_of(node)

    async def run_here(state: Any) -> Any:
        run = handle.open()
        handle.places.enter(run, name, state)
        take_over(run, name, state)
        iteration = iteration_of(name, state)
        started = time.monotonic()
        begin(run, iteration)
        run.events.emit("node_started", iteration, node=name)
        try:
            update = await node(state, run=run)
        except Exception as error:
            run.gateway.redactor.scrub(error)
            raise
        run.events.emit("node_ended", iteration, node=name, seconds=round(time.monotonic() - started, 3))
        after = {**state, **update}
        cut_off = name == "evaluate" and "outcome" not in update
        if after.get("stop") and (name == LAST[run.config.method] or cut_off):
            end(run, after, after["stop"])
        return update

    def run_sync(state: Any) -> Any:
        return run_apart(run_here(state), name=f"bco-{name}")

    async def run_async(state: Any) -> Any:
        return await await_apart(run_here(state), name=f"bco-{name}")

    return RunnableLambda(run_sync, afunc=run_async if handle.apart else run_here, name=name)


def _name_of(node: Node) -> NodeName | AskName:
    name = getattr(node, "__name__", repr(node))
    if name not in (*get_args(NodeName), *get_args(AskName)):
        raise ConfigError(
            f"{name!r} is no node of the loop{nearest(name, get_args(NodeName))}; nodes are: "
            f"{', '.join(get_args(NodeName))}; to put a function of your own in the place of one, "
            "give create_bco nodes={NAME: function}"
        )
    return cast(NodeName | AskName, name)
