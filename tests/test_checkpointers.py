"""One contract for the checkpointers that people use, each of them in the parent of a BCO subgraph."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from langgraph.checkpoint.memory import InMemorySaver
from langgraph.checkpoint.postgres import PostgresSaver
from langgraph.checkpoint.postgres.aio import AsyncPostgresSaver
from langgraph.checkpoint.sqlite import SqliteSaver
from langgraph.checkpoint.sqlite.aio import AsyncSqliteSaver
from langgraph.types import Command

from bco_graph import RunHandle
from tests import postgres
from tests.compose_room import Room, app, handed_in, limits, wrong
from tests.toy import ToySuite, toy_config, two_edits

KINDS = ["memory", "sqlite", "sqlite-async", "postgres", "postgres-async"]


@dataclass(frozen=True)
class Saving:
    """A kind of checkpointer and where its checkpoints lie; opened by each process, or part of one, that needs it."""

    kind: str
    where: str
    memory: InMemorySaver

    @asynccontextmanager
    async def opened(self) -> AsyncIterator[Any]:
        if self.kind == "memory":
            yield self.memory
        elif self.kind == "sqlite":
            with SqliteSaver.from_conn_string(self.where) as saver:
                yield saver
        elif self.kind == "sqlite-async":
            async with AsyncSqliteSaver.from_conn_string(self.where) as asynchronous:
                yield asynchronous
        elif self.kind == "postgres":
            with PostgresSaver.from_conn_string(self.where) as there:
                there.setup()
                yield there
        else:
            async with AsyncPostgresSaver.from_conn_string(self.where) as elsewhere:
                await elsewhere.setup()
                yield elsewhere

    async def invoke(self, handle: RunHandle, given: Any, thread: str) -> Any:
        """One invocation of the parent by the face that the checkpointer has, with the graph compiled anew: a sync one
        writes each checkpoint before the next node starts, the others write it beside that node."""
        async with self.opened() as saver:
            graph = app(handle).compile(checkpointer=saver)
            if self.kind in ("sqlite", "postgres"):
                return graph.invoke(given, limits(handle.config, thread), durability="sync")
            return await graph.ainvoke(given, limits(handle.config, thread))


@pytest.fixture(scope="module")
def database() -> Iterator[Callable[[], str]]:
    """Starts the server when a test first needs it."""
    running: list[Any] = []

    def where() -> str:
        if not running:
            programs = postgres.binaries()
            if programs is None:
                pytest.skip("no PostgreSQL server below /usr/lib/postgresql: apt-get install postgresql")
            running.append(postgres.server(programs))
            running.append(running[0].__enter__())
        return str(running[1])

    yield where
    if running:
        running[0].__exit__(None, None, None)


@pytest.fixture(params=KINDS)
def saving(request: pytest.FixtureRequest, tmp_path: Path, database: Callable[[], str]) -> Saving:
    kind = str(request.param)
    where = database() if kind.startswith("postgres") else str(tmp_path / "checkpoints.sqlite")
    return Saving(kind, where, InMemorySaver())


@pytest.fixture
def room(tmp_path: Path) -> Iterator[Room]:
    with Room(tmp_path) as made:
        yield made


async def test_a_run_whose_steps_are_handed_in_through_the_parent_ends_as_it_should(room: Room, saving: Saving) -> None:
    """Each step is answered by a graph, a handle and a checkpointer that are opened for it, as by its own process."""
    config = toy_config(room.folder, room.server, iterations=1)
    asked: list[tuple[int, str]] = []
    given: Any = {"asked": ["improve it"]}
    while True:
        handle = RunHandle(config, suite=room.suite)
        state = await saving.invoke(handle, given, "handed-in-" + saving.kind)
        handle.close()
        if "__interrupt__" not in state:
            break
        (awaited,) = state["__interrupt__"]
        asked.append((awaited.value["iteration"], awaited.value["step"]))
        given = Command(resume=handed_in(state))
    assert asked == [(0, "update"), (1, "propose"), (1, "predict"), (1, "grade"), (1, "update")]
    assert state["asked"] == ["improve it", "iter_001 has 0.5"]
    assert state["outcome"]["mean"] == 0.5
    assert len(room.server.requests) == 16
    assert wrong(config.run_dir) == []


def killed_parent(kind: str, where: str, folder: str, base_url: str) -> None:
    """The same parent in a process that dies by SIGKILL in the second round's `predict`."""
    import asyncio
    import os

    proposer = two_edits()
    proposer.submissions[(2, "predict")] = lambda step: os.kill(os.getpid(), signal.SIGKILL)
    config = toy_config(Path(folder), SimpleNamespace(base_url=base_url))  # type: ignore[arg-type]
    handle = RunHandle(config, suite=ToySuite(Path(folder) / "initial"), proposer=proposer)
    asyncio.run(Saving(kind, where, InMemorySaver()).invoke(handle, {"asked": ["improve it"]}, f"killed-{kind}"))


async def test_a_kill_inside_of_the_subgraph_is_resumed_at_its_round_and_nothing_is_paid_twice(
    room: Room, saving: Saving
) -> None:
    """Checkpoints in memory die with their process: the run then finds its place by the receipts, from the start."""
    code = "import sys; from tests.test_checkpointers import killed_parent; killed_parent(*sys.argv[1:])"
    done = subprocess.run(  # noqa: ASYNC221
        [sys.executable, "-c", code, saving.kind, saving.where, str(room.folder), room.server.base_url],
        cwd=Path(__file__).parents[1], capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.returncode == -signal.SIGKILL, done.stderr
    assert len(room.server.requests) == 16
    proposer = two_edits()
    handle = room.run(proposer)
    seen = len((handle.folder / "events.jsonl").read_text(encoding="utf-8").splitlines())
    given = {"asked": ["improve it"]} if saving.kind == "memory" else None
    state = await saving.invoke(handle, given, f"killed-{saving.kind}")
    assert state["asked"] == ["improve it", "iter_002 has 1.0"]
    assert proposer.performed == [(2, "predict"), (2, "grade"), (2, "update")]
    assert len(room.server.requests) == 24
    if saving.kind != "memory":
        lines = (handle.folder / "events.jsonl").read_text(encoding="utf-8").splitlines()[seen:]
        nodes = [(e["iteration"], e["node"]) for e in map(json.loads, lines) if e["type"] == "node_started"]
        assert nodes[-4:] == [(2, "predict"), (2, "evaluate"), (2, "grade"), (2, "update")]
        assert nodes[0] > (1, ""), "no further back than such checkpoints lag"
        assert saving.kind.endswith("async") or len(nodes) == 4
    assert wrong(handle.folder) == []
