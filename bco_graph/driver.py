"""Drives a run's graph from the command line: with SQLite checkpoints, resumable, one thread id.

`run` and `resume` end in one of four ways: the graph is at its end (`stop` says why), it was drained at a node's end
(SIGTERM), a step is awaited from outside (proposer `handoff`), or an error left the run as it was, to be resumed.
"""

from __future__ import annotations

import asyncio
import signal
import sqlite3
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from langgraph.checkpoint.sqlite.aio import AsyncSqliteSaver
from langgraph.errors import GraphDrained
from langgraph.runtime import RunControl
from langgraph.types import Command

from bco_graph.binding import RunHandle, begin, end
from bco_graph.config import RunConfig, check_config, with_overrides
from bco_graph.errors import ConfigError, RunError, RunUnreadable
from bco_graph.events import Event
from bco_graph.graph import create_bco, recursion_limit
from bco_graph.places import LAST
from bco_graph.run_folder import RunFolder
from bco_graph.state import JSON, CandidateSummary, StopReason

THREAD = "run"


@dataclass(frozen=True)
class Ended:
    """How driving a run ended. `awaited` is what an interrupt asks for; `state` is the graph's last state.

    `stop` is `drained` where SIGTERM ended it between two nodes: it goes on from there.
    """

    stop: StopReason | Literal["drained"] | None
    awaited: dict[str, JSON] | None
    state: dict[str, Any]
    candidates: list[CandidateSummary]


async def drive(
    config: RunConfig,
    *,
    answer: JSON = None,
    subscriber: Callable[[Event], None] | None = None,
    **options: Any,
) -> Ended:
    """Start the run, or continue it from its last checkpoint; `answer` resumes what it awaits.

    `options` go to `open_run`. SIGTERM ends it when the node under way has ended; a second one, like Ctrl-C, at once.
    Nothing paid for is lost either way.
    """
    handle = RunHandle(config, **options)
    try:
        run = handle.open()
        if subscriber:
            run.events.subscribe(subscriber)
        async with _compiled(config, run.folder, handle) as (graph, thread):
            with _sigterm_drains() as control:
                return await _drive(graph, thread, run, answer, control)
    finally:
        handle.close()


async def _drive(graph: Any, thread: dict[str, Any], run: Any, answer: JSON, control: RunControl) -> Ended:
    config = run.config
    await _extend(graph, thread, config, await graph.aget_state(thread))
    snapshot = await graph.aget_state(thread)
    if snapshot.values and not snapshot.tasks and snapshot.values.get("stop") is None:
        raise ConfigError(
            f"{run.folder.root} waits at a node that the graph of this config does not have: leave `ask` as it was "
            "until its question is answered (`bco step` shows it)"
        )
    begin(run, _reached(snapshot))
    answer = run.gateway.redactor.plain(answer)
    given: Any = Command(resume=answer) if answer is not None else (None if snapshot.values or snapshot.tasks else {})
    drained = False
    try:
        await graph.ainvoke(given, thread, control=control)
    except GraphDrained:
        drained = True
    except Exception as error:
        run.events.emit("run_failed", _reached(snapshot), error=type(error).__name__, message=str(error))
        raise
    snapshot = await graph.aget_state(thread)
    ended = Ended(
        stop="drained" if drained else snapshot.values.get("stop") if not snapshot.tasks else None,
        awaited=_awaited(snapshot),
        state=dict(snapshot.values),
        candidates=run.records.summaries(),
    )
    if ended.awaited is None and not run.events.view.ended:
        end(run, ended.state, ended.stop)
    return ended


def _reached(snapshot: Any) -> int:
    """The iteration that is worked on next; that of the last one where the run has ended.

    Places are read from `tasks`: `next` leaves out a node whose result was written before the checkpoint after it,
    which is where a kill may find it.
    """
    iteration = int(snapshot.values.get("iteration", -1))
    names = {task.name for task in snapshot.tasks}
    still_open = (not names and iteration >= 0) or {"grade", "review", "update"} & names
    return iteration if still_open else iteration + 1


async def _extend(graph: Any, thread: dict[str, Any], config: RunConfig, snapshot: Any) -> None:
    """A run that has ended goes on when what ended it no longer holds: more iterations, or another try."""
    stop = snapshot.values.get("stop")
    if snapshot.tasks or stop is None:
        return
    if stop == "iterations" and snapshot.values["iteration"] >= config.iterations:
        return
    await graph.aupdate_state(thread, {"stop": None}, as_node=LAST[config.method])


def _awaited(snapshot: Any) -> dict[str, JSON] | None:
    for task in snapshot.tasks:
        for interrupt in task.interrupts:
            return dict(interrupt.value)
    return None


@asynccontextmanager
async def _compiled(
    config: RunConfig, folder: RunFolder, handle: RunHandle
) -> AsyncIterator[tuple[Any, dict[str, Any]]]:
    thread: Any = {"configurable": {"thread_id": THREAD}, "recursion_limit": recursion_limit(config)}
    try:
        async with AsyncSqliteSaver.from_conn_string(str(folder.checkpoints)) as saver:
            graph = create_bco(config, handle=handle).compile(checkpointer=saver)
            try:
                await graph.aget_state(thread)
            except (ValueError, TypeError, KeyError, AttributeError, IndexError) as error:
                raise _torn(folder, error) from error
            yield graph, thread
    except sqlite3.DatabaseError as error:
        raise _torn(folder, error) from error


def _torn(folder: RunFolder, error: Exception) -> RunUnreadable:
    return RunUnreadable(
        f"{folder.checkpoints} is torn: {type(error).__name__}: {error}; it was left as it is. Move it away and "
        "`bco resume`: the receipts hold all that was paid for, and the run finds its place by them"
    )


@contextmanager
def _sigterm_drains() -> Iterator[RunControl]:
    """The first SIGTERM ends the graph after the node under way, the second cancels it."""
    control, loop, task = RunControl(), asyncio.get_running_loop(), asyncio.current_task()

    def asked() -> None:
        if control.drain_requested and task:
            task.cancel()
        control.request_drain("SIGTERM")

    try:
        loop.add_signal_handler(signal.SIGTERM, asked)
    except (RuntimeError, ValueError, NotImplementedError):
        yield control  # not the main thread: signals are the caller's
        return
    try:
        yield control
    finally:
        loop.remove_signal_handler(signal.SIGTERM)


def stored_config(folder: Path, *, overrides: dict[str, Any] | None = None) -> RunConfig:
    """The config that a run folder was made with. `overrides` maps dotted keys, such as `budget.tokens`, to values."""
    raw = RunFolder(folder).read().get("config")
    if not isinstance(raw, dict):
        raise RunError(f"{folder}/run.json holds no config")
    config = check_config(with_overrides(raw, overrides or {}), source=f"{folder}/run.json")
    return config.model_copy(update={"runs": str(folder.parent), "name": folder.name})


async def awaited(folder: Path) -> dict[str, JSON] | None:
    """What a run waits for from outside, or None. Reads the checkpoint only."""
    config = stored_config(folder)
    if not RunFolder(folder).checkpoints.exists():
        return None
    async with _compiled(config, RunFolder(folder), RunHandle(config)) as (graph, thread):
        return _awaited(await graph.aget_state(thread))
