"""Work in a thread and a loop of its own: as if it were the caller's, while the caller's loop goes on."""

from __future__ import annotations

import asyncio
import contextlib
import contextvars
import json
import sys
import threading
import time
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import yaml
from langgraph.checkpoint.memory import InMemorySaver
from langgraph.errors import GraphDrained, GraphInterrupt
from langgraph.runtime import RunControl
from langgraph.types import Command, Interrupt

from bco_graph.apart import await_apart, run_apart
from bco_graph.binding import RunHandle
from bco_graph.graph import create_bco
from bco_graph.nodes import evaluate
from bco_graph.runtime import RunContext
from bco_graph.server import graph_of
from bco_graph.state import BCOState, EvaluateUpdate
from bco_graph.testing import ScriptedModelServer
from tests.compose_room import handed_in, limits
from tests.test_agent_loop import by_tools
from tests.test_stream import MODES, ORDER, SAID, Seen, agent_config
from tests.toy import ToySuite, answer, toy_config, two_edits

FORM = contextvars.ContextVar("form", default="")
BLOCKED_S, GAP_S = 3.0, 1.0


@contextlib.asynccontextmanager
async def heartbeat() -> AsyncIterator[Callable[[], float]]:
    """Ticks in the caller's loop; gives the longest time between two ticks so far, in seconds."""
    ticks = [time.monotonic()]

    async def tick() -> None:
        while True:
            await asyncio.sleep(0.02)
            ticks.append(time.monotonic())

    task = asyncio.create_task(tick())
    try:
        yield lambda: max(after - before for before, after in zip(ticks, [*ticks[1:], time.monotonic()], strict=True))
    finally:
        task.cancel()


# -- one piece of work ---------------------------------------------------------------------------------------------


async def test_work_has_the_caller_s_context_and_a_thread_and_a_loop_of_its_own() -> None:
    async def work() -> tuple[str, bool, str]:
        await asyncio.sleep(0)
        return FORM.get(), asyncio.get_running_loop() is caller, threading.current_thread().name

    caller = asyncio.get_running_loop()
    FORM.set("the caller's")
    value, same_loop, thread = await await_apart(work(), name="bco-work")
    assert (value, same_loop) == ("the caller's", False)
    assert thread.startswith("bco-work")


async def test_the_caller_s_loop_goes_on_while_the_work_blocks() -> None:
    async def work() -> str:
        time.sleep(BLOCKED_S)  # noqa: ASYNC251  # what is tested
        return "done"

    async with heartbeat() as longest:
        assert await await_apart(work()) == "done"
        assert longest() < GAP_S


class Stopped(BaseException):
    pass


@pytest.mark.parametrize(
    "error", [GraphInterrupt([Interrupt(value="?")]), TimeoutError("late"), ValueError("no"), Stopped()], ids=repr
)
async def test_what_the_work_raises_is_raised_as_it_is(error: BaseException) -> None:
    async def work() -> None:
        raise error

    with pytest.raises(type(error)) as raised:
        await await_apart(work())
    assert raised.value is error


class Work:
    """Waits until it is cancelled, and takes a while to end, or ends as it is told."""

    def __init__(self, end: BaseException | str | None = None) -> None:
        self.begun, self.ended, self.end = threading.Event(), False, end

    async def __call__(self) -> str:
        self.begun.set()
        try:
            await asyncio.sleep(60)
        except asyncio.CancelledError:
            if isinstance(self.end, BaseException):
                raise self.end from None
            if self.end is None:
                raise
        finally:
            time.sleep(0.2)  # noqa: ASYNC251  # what its end takes
            self.ended = True
        return str(self.end)

    async def wait_until_begun(self) -> None:
        assert await asyncio.to_thread(self.begun.wait, 20)


@pytest.mark.parametrize("times", [1, 3])
async def test_cancelling_cancels_the_work_and_waits_for_its_end(times: int) -> None:
    work = Work()
    task = asyncio.create_task(await_apart(work()))
    await work.wait_until_begun()
    for _ in range(times):
        task.cancel()
        await asyncio.sleep(0.01)
    with pytest.raises(asyncio.CancelledError):
        await task
    assert work.ended


async def test_work_that_is_cancelled_as_soon_as_it_was_given_ends_as_well() -> None:
    for _ in range(50):
        task = asyncio.create_task(await_apart(asyncio.sleep(60)))
        await asyncio.sleep(0)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await asyncio.wait_for(task, 20)


@pytest.mark.parametrize(("end", "raised"), [("done", asyncio.CancelledError), (ValueError("no"), ValueError)])
async def test_a_cancellation_is_lost_to_no_result_and_hides_no_error(end: Any, raised: type[BaseException]) -> None:
    work = Work(end)
    task = asyncio.create_task(await_apart(work()))
    await work.wait_until_begun()
    task.cancel()
    with pytest.raises(raised):
        await task


async def test_work_that_cancels_itself_is_cancelled_for_the_caller_too() -> None:
    async def work() -> None:
        raise asyncio.CancelledError

    with pytest.raises(asyncio.CancelledError):
        await await_apart(work())


def test_work_whose_caller_s_loop_is_given_up_is_cancelled() -> None:
    work = Work()
    waiting = await_apart(work())
    loop = asyncio.new_event_loop()
    loop.run_until_complete(asyncio.wait({loop.create_task(waiting)}, timeout=0.2))
    loop.close()
    waiting.close()
    assert work.begun.is_set()
    deadline = time.monotonic() + 20
    while not work.ended and time.monotonic() < deadline:
        time.sleep(0.01)
    assert work.ended


@pytest.mark.parametrize("name", ["_skip", "blockbuster_skip"])
async def test_a_guard_against_blocking_calls_lets_those_threads_alone_and_still_guards_the_caller(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Both forms that `blockbuster` has had; tests/test_server.py has the one that is installed guard a real server."""
    module, local = ModuleType("blockbuster.blockbuster"), threading.local()
    variable = contextvars.ContextVar("skip", default=False)
    setattr(module, name, local if name == "_skip" else variable)
    monkeypatch.setitem(sys.modules, "blockbuster.blockbuster", module)

    async def skips() -> bool:
        return bool(getattr(local, "value", False) or variable.get())

    assert await await_apart(skips())
    assert run_apart(skips())
    assert not await skips()


# -- a run ---------------------------------------------------------------------------------------------------------

SLOW = f"""\
import time
from pathlib import Path

from tests.toy import ToySuite

class Slow(ToySuite):
    def tasks(self, split):
        self.blocks("tasks") if split == "train" else None
        return super().tasks(split)

    def gold(self, task):
        self.blocks("gold") if task.id == "toy-train-0" else None
        return super().gold(task)

    def blocks(self, what):
        time.sleep({BLOCKED_S})
        with Path(__file__).with_name("blocked").open("a") as file:
            file.write(what + chr(10))
"""


async def test_an_application_s_loop_goes_on_while_the_server_s_graph_opens_a_run_evaluates_and_closes_it(
    tmp_path: Path, server: ScriptedModelServer
) -> None:
    (tmp_path / "slow.py").write_text(SLOW, encoding="utf-8")
    params = server.deployment("toy-model")["litellm_params"]
    config = {
        "name": "served", "suite": "./slow.py:Slow", "suite_options": {"scaffold": str(tmp_path / "initial")},
        "method": "vanilla", "iterations": 1, "runs": str(tmp_path / "runs"), "roles": {"target": "toy"},
        "models": {"model_list": [{"model_name": "toy", "litellm_params": params}]}, "proposer": {"kind": "handoff"},
    }  # fmt: skip
    (tmp_path / "bco.yaml").write_text(yaml.safe_dump(config), encoding="utf-8")
    thread: Any = {"configurable": {"thread_id": "1"}}
    async with heartbeat() as longest:
        async with graph_of(str(tmp_path / "bco.yaml"))(thread) as graph:
            state = await graph.ainvoke({}, thread)
        assert longest() < GAP_S
    assert state["outcome"]["mean"] == 0.0
    blocked = (tmp_path / "blocked").read_text(encoding="utf-8").split()
    assert {"tasks", "gold"} <= set(blocked)


@pytest.fixture
def handle(tmp_path: Path, server: ScriptedModelServer, suite: ToySuite) -> Any:
    made = RunHandle(toy_config(tmp_path, server, iterations=1), suite=suite, proposer=two_edits(), apart=True)
    yield made
    made.close()


async def test_nodes_apart_take_the_replies_to_their_interrupts(handle: RunHandle, suite: ToySuite) -> None:
    asking = RunHandle(handle.config, suite=suite, apart=True)
    graph = create_bco(asking.config, handle=asking).compile(checkpointer=InMemorySaver())
    state, asked = await graph.ainvoke({}, limits(asking.config)), []
    while "__interrupt__" in state:
        asked.append(state["__interrupt__"][0].value["step"])
        state = await graph.ainvoke(Command(resume=handed_in(state)), limits(asking.config))
    asking.close()
    assert asked == ["update", "propose", "predict", "grade", "update"]
    assert state["best"] == {"id": "iter_001", "mean": 0.5}


async def test_nodes_apart_are_streamed_and_called_back_like_others(tmp_path: Path) -> None:
    chunks: dict[str, list[Any]] = {mode: [] for mode in MODES}
    seen = Seen()
    with ScriptedModelServer({"toy-model": answer, "proposer-model": by_tools}) as models:
        handle = RunHandle(agent_config(tmp_path, models), suite=ToySuite(tmp_path / "initial"), apart=True)
        graph = create_bco(handle.config, handle=handle).compile()
        given: Any = limits(handle.config) | {"callbacks": [seen]}
        async for mode, chunk in graph.astream({}, given, stream_mode=MODES):
            chunks[mode].append(chunk)
        await asyncio.to_thread(handle.close)
    assert [node for chunk in chunks["updates"] for node in chunk] == ORDER == seen.nodes
    log = (handle.folder / "events.jsonl").read_text(encoding="utf-8").splitlines()
    assert chunks["custom"] == [json.loads(line) for line in log]
    assert {about["langgraph_node"] for _, about in chunks["messages"]} == {"update", "propose", "predict", "grade"}
    assert seen.replies == len(seen.models) == len(SAID)


async def test_a_run_apart_that_is_drained_ends_after_the_node_under_way_and_goes_on(handle: RunHandle) -> None:
    graph = create_bco(handle.config, handle=handle).compile(checkpointer=InMemorySaver())
    control = RunControl()
    handle.open().events.subscribe(
        lambda event: control.request_drain("enough") if event["type"] == "task_done" else None
    )
    with pytest.raises(GraphDrained):
        await graph.ainvoke({}, limits(handle.config), control=control)
    state = await graph.aget_state(limits(handle.config))
    assert (state.values["outcome"]["coverage"], state.next) == (1.0, ("update",))
    ended = await graph.ainvoke(None, limits(handle.config))
    assert ended["stop"] == "iterations"


async def test_a_node_apart_that_is_cancelled_has_ended_when_its_caller_has_and_keeps_what_was_paid(
    handle: RunHandle, server: ScriptedModelServer
) -> None:
    ended: list[str] = []

    async def evaluating(state: BCOState, *, run: RunContext) -> EvaluateUpdate:
        try:
            return await evaluate(state, run=run)
        finally:
            time.sleep(0.3)  # noqa: ASYNC251  # what its end takes
            ended.append("evaluate")

    evaluating.__name__ = "evaluate"
    graph = create_bco(handle.config, handle=handle, nodes={"evaluate": evaluating})
    compiled, done = graph.compile(checkpointer=InMemorySaver()), threading.Event()
    handle.open().events.subscribe(lambda event: done.set() if event["type"] == "task_done" else None)
    task = asyncio.create_task(compiled.ainvoke({}, limits(handle.config)))
    assert await asyncio.to_thread(done.wait, 60)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert ended == ["evaluate"]
    assert (await compiled.ainvoke(None, limits(handle.config)))["stop"] == "iterations"
    assert len(server.requests) == 16
