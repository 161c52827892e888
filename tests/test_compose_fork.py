"""Time travel: an old checkpoint is refused in its folder, a fork goes another way, a changed belief is recorded."""

from __future__ import annotations

import asyncio
import hashlib
import json
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from langgraph.checkpoint.memory import InMemorySaver
from langgraph.graph import START, StateGraph
from langgraph.types import Command, StateSnapshot

from bco_graph import RunHandle, change_world_model, create_bco, fork_run, nodes, read_world_model
from bco_graph.driver import drive
from bco_graph.errors import ConfigError, DocumentError, RunExists, RunUnreadable, StaleCheckpoint
from bco_graph.receipts import Receipts
from bco_graph.state import BCOState
from bco_graph.testing import ScriptedModelServer
from bco_graph.world_model import WorldModel, parse_document
from tests.compose_room import Room, handed_in, limits, wrong
from tests.test_agent_loop import by_tools
from tests.test_stream import agent_config
from tests.toy import BOTH, PROPOSE, ScriptedProposer, ToySuite, answer, prompt_edit, toy_config, two_edits

BCO = str(Path(sys.executable).parent / "bco")


@dataclass(frozen=True)
class Original:
    """A run of two rounds that has ended, with its checkpoints, and its folder's digest from then."""

    room: Room
    saver: InMemorySaver
    folder: Path
    digest: str
    history: list[StateSnapshot]

    def after(self, iteration: int) -> StateSnapshot:
        """The snapshot after a round: its next node proposes the round after it."""
        found = (s for s in self.history if s.values.get("iteration") == iteration and s.next == ("propose",))
        return next(found)

    def graph(self, handle: RunHandle) -> Any:
        return create_bco(handle.config, handle=handle).compile(checkpointer=self.saver)


@pytest.fixture(scope="module")
def original(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Original]:
    with Room(tmp_path_factory.mktemp("fork")) as room:
        handle, saver = room.run(), InMemorySaver()
        graph = create_bco(handle.config, handle=handle).compile(checkpointer=saver)
        graph.invoke({}, limits(handle.config))
        handle.close()
        folder, history = handle.folder.resolve(), list(graph.get_state_history(limits(handle.config)))
        yield Original(room, saver, folder, digest(folder), history)


@pytest.fixture
def room(tmp_path: Path) -> Iterator[Room]:
    with Room(tmp_path) as made:
        yield made


def another_way() -> ScriptedProposer:
    """The second round solves all words at once, from the untouched scaffold."""
    edit = {**PROPOSE, "parent": "iter_000", "name": "at-once", "live_signature": "at-once"}
    return ScriptedProposer({2: prompt_edit(BOTH + "\n", "at-once")}, {(2, "propose"): edit})


def digest(folder: Path) -> str:
    """Of every name and byte below a folder, links as links."""
    found = hashlib.sha256()
    for path in sorted(folder.rglob("*")):
        found.update(str(path.relative_to(folder)).encode() + b"\0")
        if path.is_symlink():
            found.update(str(path.readlink()).encode())
        elif path.is_file():
            found.update(path.read_bytes())
    return found.hexdigest()


def doubted(head: WorldModel, confidence: float = 0.2) -> WorldModel:
    """Somebody does not believe the first belief."""
    first = head.beliefs[0].model_copy(update={"confidence": confidence})
    return head.model_copy(update={"beliefs": (first, *head.beliefs[1:])})


def bco(*args: str) -> str:
    return subprocess.run([BCO, *args], capture_output=True, text=True, check=True).stdout


# -- an old checkpoint -------------------------------------------------------------------------------------------------


async def test_an_old_checkpoint_is_refused_with_what_to_do_and_nothing_is_paid_or_recorded(room: Room) -> None:
    handle, saver = room.run(), InMemorySaver()
    graph = create_bco(handle.config, handle=handle).compile(checkpointer=saver)
    await graph.ainvoke({}, limits(handle.config))
    history = [s async for s in graph.aget_state_history(limits(handle.config))]
    old = next(s for s in history if s.values.get("iteration") == 1 and s.next == ("propose",))
    performed, before = list(handle.open().proposer.performed), digest(handle.folder)  # type: ignore[attr-defined]
    with pytest.raises(StaleCheckpoint, match=r"bco fork \S+/runs/toy NAME --at iter_001"):
        await graph.ainvoke(None, old.config)
    assert handle.open().proposer.performed == performed  # type: ignore[attr-defined]
    assert digest(handle.folder) == before


async def test_a_process_that_comes_later_refuses_every_old_checkpoint(original: Original) -> None:
    handle = original.room.run()
    graph = original.graph(handle)
    olds = [s for s in original.history if s.next and "iteration" in s.values]
    assert {s.next[0] for s in olds} == {"propose", "predict", "evaluate", "grade", "update"}
    for old in olds:
        with pytest.raises(StaleCheckpoint, match="has left behind"):
            await graph.ainvoke(None, old.config)
    handle.close()
    assert wrong(original.folder) == []


async def test_a_state_that_was_changed_at_an_old_checkpoint_is_refused(original: Original) -> None:
    handle = original.room.run()
    graph = original.graph(handle)
    changed = await graph.aupdate_state(original.after(1).config, {"best": {"id": "iter_000", "mean": 0.0}})
    with pytest.raises(StaleCheckpoint, match=r"'propose' was started for iter_002"):
        await graph.ainvoke(None, changed)
    handle.close()


async def test_a_belief_that_is_changed_where_rounds_were_run_on_the_old_one_is_refused(original: Original) -> None:
    handle = original.room.run()
    state = original.after(0).values
    given = {**state, **change_world_model(state, doubted(read_world_model(original.folder)))}
    with pytest.raises(StaleCheckpoint):
        await create_bco(handle.config, handle=handle).compile().ainvoke(given, limits(handle.config))
    assert handle.open().receipts.changes() == []
    handle.close()


async def test_a_fresh_start_finds_its_place_by_the_receipts_and_is_no_fork(original: Original) -> None:
    proposer, paid = two_edits(), len(original.room.server.requests)
    handle = original.room.run(proposer)
    state = await original.graph(handle).ainvoke({}, limits(handle.config, "another"))
    handle.close()
    assert (state["iteration"], state["best"]["id"]) == (2, "iter_002")
    assert (len(original.room.server.requests), proposer.performed) == (paid, [])


class Died(Exception):
    pass


class Dying(ScriptedProposer):
    def __init__(self, at: tuple[int, str]) -> None:
        inner = two_edits()
        super().__init__(inner.edits, inner.submissions)
        self.at: Any = at

    async def perform(self, step: Any) -> Any:
        if (step.iteration, step.name) == self.at:
            self.at = None
            raise Died
        return await super().perform(step)


@pytest.mark.parametrize(("durability", "at"), [("sync", "predict"), ("async", "grade"), ("exit", "grade")])
async def test_what_a_crash_leaves_is_no_fork(room: Room, durability: Any, at: str) -> None:
    proposer, saver = Dying((2, at)), InMemorySaver()
    handle = room.run(proposer)
    graph = create_bco(handle.config, handle=handle).compile(checkpointer=saver)
    with pytest.raises(Died):
        await graph.ainvoke({}, limits(handle.config), durability=durability)
    handle.close()
    handle = room.run(proposer)
    graph = create_bco(handle.config, handle=handle).compile(checkpointer=saver)
    state = await graph.ainvoke(None, limits(handle.config), durability=durability)
    assert (state["iteration"], state["best"]["id"]) == (2, "iter_002")
    assert len(set(proposer.performed)) == len(proposer.performed)


class Unlucky(Exception):
    pass


@pytest.mark.parametrize("writes", ["kept", "lost"])
async def test_checkpoints_that_lag_behind_are_no_fork(room: Room, writes: str) -> None:
    """What a SIGKILL leaves: the checkpoint after `propose` lost, its writes kept or not; `predict` had ended."""
    proposer, saver, lucky = two_edits(), InMemorySaver(), [False, True]

    async def evaluate(state: Any, *, run: Any) -> Any:
        if state.get("iteration") == 1 and not lucky.pop(0):
            raise Unlucky
        return await nodes.evaluate(state, run=run)

    own: Any = {"evaluate": evaluate}
    handle = room.run(proposer)
    graph = create_bco(handle.config, handle=handle, nodes=own).compile(checkpointer=saver)
    with pytest.raises(Unlucky):
        await graph.ainvoke({}, limits(handle.config))
    handle.close()
    history = [s async for s in graph.aget_state_history(limits(handle.config))]
    lost = {s.config["configurable"]["checkpoint_id"] for s in history if s.next in (("predict",), ("evaluate",))}
    before = next(s.config["configurable"]["checkpoint_id"] for s in history if s.next == ("propose",))
    for name in [name for name in saver.storage["1"][""] if name in lost and name > before]:
        del saver.storage["1"][""][name]
    if writes == "lost":
        saver.writes.pop(("1", "", before))
    (handle.folder / "LOCK").write_text("process 1 on another machine\n", encoding="utf-8")
    handle = room.run(proposer)
    graph = create_bco(handle.config, handle=handle, nodes=own).compile(checkpointer=saver)
    state = await graph.ainvoke(None, limits(handle.config))
    assert (state["iteration"], state["best"]["id"]) == (2, "iter_002")
    assert len(set(proposer.performed)) == len(proposer.performed)
    assert wrong(handle.folder) == []


async def test_not_even_a_kill_explains_a_checkpoint_that_is_rounds_old(original: Original) -> None:
    (original.folder / "LOCK").write_text("process 1 on another machine\n", encoding="utf-8")
    handle = original.room.run()
    old = next(s for s in original.history if s.next == ("update",) and s.values["iteration"] == 0)
    with pytest.raises(StaleCheckpoint):
        await original.graph(handle).ainvoke(None, old.config)
    handle.close()


# -- a fork ------------------------------------------------------------------------------------------------------------


async def test_a_fork_goes_another_way_and_the_original_keeps_every_byte(original: Original) -> None:
    paid = len(original.room.server.requests)
    forked = fork_run(original.folder, "other", at="iter_001")
    assert wrong(forked.folder) == []
    proposer = another_way()
    end = await drive(forked.config, suite=original.room.suite, proposer=proposer)
    assert (end.stop, [c["mean"] for c in end.candidates]) == ("iterations", [0.0, 0.5, 1.0])
    assert proposer.performed == [(2, "propose"), (2, "predict"), (2, "grade"), (2, "update")]
    assert len(original.room.server.requests) == paid + 8, "the new candidate's tasks, and no more"
    assert (wrong(original.folder), wrong(forked.folder)) == ([], [])
    table = (forked.folder / "workspace" / "candidates.csv").read_text(encoding="utf-8")
    assert "at-once" in table
    assert "all-letters" not in table
    origin = json.loads((forked.folder / "forked_from.json").read_text(encoding="utf-8"))
    assert origin == {"run": str(original.folder), "at": "iter_001"}


def test_forking_reads_the_original_only(room: Room) -> None:
    handle = room.run()
    create_bco(handle.config, handle=handle).compile().invoke({}, limits(handle.config))
    live = fork_run(handle.folder, "live", at=1)
    handle.close()
    before = digest(handle.folder)
    assert live.state == fork_run(handle.folder, "still", at=1).state
    assert digest(handle.folder) == before
    assert (wrong(live.folder), sorted(p.name for p in handle.folder.parent.iterdir())) == (
        [],
        ["live", "still", "toy"],
    )


def test_nothing_of_a_later_round_is_in_a_fork(original: Original) -> None:
    forked = fork_run(original.folder, "cut", at=1)
    words = [b"iter_002", b"all-letters", b"asked-all"]
    for path in forked.folder.rglob("*"):
        inside = path.relative_to(forked.folder).parts
        if path.is_file() and inside[0] not in ("candidates.git", "cache.sqlite"):
            assert [word for word in words if word in path.read_bytes()] == [], path
    receipts = Receipts(forked.folder / "receipts.sqlite")
    assert {iteration for iteration, _, _ in receipts.steps()} == {0, 1}
    assert {row.candidate for row in receipts.results("train")} == {"iter_000", "iter_001"}
    assert receipts.spend()[0]["calls"] == 16
    receipts.close()
    matrix = (forked.folder / "workspace/task_score_matrix.csv").read_text(encoding="utf-8").splitlines()
    assert matrix[:2] == ["task,type,iter_000,iter_001", "toy-train-0,short,0,1"]


@pytest.mark.parametrize("method", ["bco", "vanilla", "notes"])
async def test_first_and_last_round_of_every_method_can_be_forked(room: Room, method: str) -> None:
    handle = room.run(method=method, iterations=1)
    await create_bco(handle.config, handle=handle).compile().ainvoke({}, limits(handle.config))
    handle.close()
    for at in (0, 1):
        forked = fork_run(handle.folder, f"at-{at}", at=at)
        config = forked.config.model_copy(update={"iterations": at + 1})
        end = await drive(config, suite=room.suite, proposer=ScriptedProposer({}))
        assert (end.stop, end.state["iteration"]) == ("iterations", at + 1)
        assert [c["id"] for c in end.candidates] == [f"iter_00{number}" for number in range(at + 1)]
        assert wrong(forked.folder) == []


def test_the_state_of_a_fork_is_the_graph_s_own_at_that_round(original: Original) -> None:
    assert fork_run(original.folder, "same-state", at=1).state == original.after(1).values


def test_a_fork_of_a_run_that_was_killed_leaves_its_log_of_writes_alone(tmp_path: Path, original: Original) -> None:
    """What a killed process left in the write-ahead log is read, and stays there."""
    code = (
        "import asyncio, os, signal, sys\n"
        "from pathlib import Path\n"
        "from bco_graph.driver import drive\n"
        "from tests.compose_room import Room\nfrom tests.toy import two_edits\n"
        "from tests.toy import toy_config\n"
        "proposer = two_edits()\n"
        "proposer.submissions[(2, 'predict')] = lambda step: os.kill(os.getpid(), signal.SIGKILL)\n"
        "with Room(Path(sys.argv[1])) as room:\n"
        "    asyncio.run(drive(toy_config(room.folder, room.server), suite=room.suite, proposer=proposer))\n"
    )
    subprocess.run([sys.executable, "-c", code, str(tmp_path)], cwd=Path(__file__).parents[1], check=False)
    folder = tmp_path / "runs" / "toy"
    assert (folder / "receipts.sqlite-wal").stat().st_size
    before = digest(folder)
    forked = fork_run(folder, "other", at="iter_001")
    assert digest(folder) == before
    assert wrong(forked.folder) == []


def test_a_round_that_has_not_ended_a_name_that_is_taken_and_no_run_are_refused(
    tmp_path: Path, original: Original
) -> None:
    there = sorted(path.name for path in original.folder.parent.iterdir())
    with pytest.raises(ConfigError, match=r"cannot fork at 'iter_003': rounds that have ended: iter_000 to iter_002"):
        fork_run(original.folder, "new", at="iter_003")
    with pytest.raises(RunExists, match="give the fork another name"):
        fork_run(original.folder, "toy", at=1)
    with pytest.raises(ConfigError, match="name"):
        fork_run(original.folder, "../out", at=1)
    with pytest.raises(RunUnreadable, match="holds no run"):
        fork_run(tmp_path, "new", at=1)
    assert sorted(path.name for path in original.folder.parent.iterdir()) == there


def test_the_command_forks_and_says_how_to_go_on(original: Original) -> None:
    said = bco("fork", str(original.folder), "by-command", "--at", "iter_001")
    made = original.folder.parent / "by-command"
    assert f"bco resume {made}" in said.replace("\n", "")
    assert json.loads(bco("status", str(made), "--json"))["best"]["id"] == "iter_001"


async def test_a_fork_s_proposer_is_asked_anew_and_its_target_is_not_paid_again(tmp_path: Path) -> None:
    """With a model as the proposer the responses of the original's later rounds lie in the cache."""
    with ScriptedModelServer({"toy-model": answer, "proposer-model": by_tools}) as server:
        config, toy = agent_config(tmp_path, server), ToySuite(tmp_path / "initial")
        handle = RunHandle(config, suite=toy)
        await create_bco(config, handle=handle).compile().ainvoke({}, limits(config))
        handle.close()
        forked = fork_run(handle.folder, "other", at="iter_000")
        proposed, paid = len(server.requests_of("proposer-model")), len(server.requests_of("toy-model"))
        other = RunHandle(forked.config, suite=toy)
        state = await create_bco(forked.config, handle=other).compile().ainvoke(forked.state, limits(config))
        other.close()
        assert state["iteration"] == 1
        assert len(server.requests_of("proposer-model")) == proposed + 6, "propose, predict, grade, update"
        assert len(server.requests_of("toy-model")) == paid, "the same edit: its answers are known"
    assert wrong(forked.folder) == []


# -- a belief that is changed from outside -----------------------------------------------------------------------------


async def test_a_belief_changed_at_a_round_is_what_the_fork_goes_by_and_history_says_so(original: Original) -> None:
    forked = fork_run(original.folder, "doubted", at=1)
    head, proposer = read_world_model(forked.folder), another_way()
    assert head.beliefs[0].confidence == 0.8
    handle = original.room.handle(forked.config, proposer)
    graph = create_bco(forked.config, handle=handle).compile(checkpointer=InMemorySaver())
    thread, changed = limits(forked.config, "fork"), change_world_model(forked.state, doubted(head))
    await graph.aupdate_state(thread, {**forked.state, **changed}, as_node="update")
    state = await graph.ainvoke(None, thread)
    handle.close()
    assert state["world_model"] == {"iteration": 2, "beliefs": 1, "experiments": 2}
    assert "- E1 (hypothesis, confidence 0.2)" in proposer.instructions[(2, "predict")]
    document = parse_document((forked.folder / "world_model_calibration.md").read_text(encoding="utf-8"))
    assert [record.heading for record in document.history] == [
        "### iter_000 distill", "### iter_000 -> iter_001 distill", "### iter_001 changed from outside",
        "### iter_000 -> iter_002 distill",
    ]  # fmt: skip
    assert "- revise E1 (hypothesis 0.8 -> hypothesis 0.2)\n  was: [E1]" in document.history[2].text
    assert wrong(forked.folder) == []
    assert read_world_model(forked.folder, 1) == doubted(head)
    assert "0.2" in await asyncio.to_thread(bco, "show", str(forked.folder), "E1")


async def test_a_belief_may_be_changed_more_than_once_where_no_later_round_has_begun(room: Room) -> None:
    """No fork is needed: the graph waits before it proposes."""
    proposer = two_edits()
    handle = room.run(proposer)
    graph = create_bco(handle.config, handle=handle).compile(checkpointer=InMemorySaver(), interrupt_before=["propose"])
    thread = limits(handle.config)
    await graph.ainvoke({}, thread)
    head = read_world_model(handle.folder)
    for confidence in (0.3, 0.1):
        state = (await graph.aget_state(thread)).values
        await graph.aupdate_state(thread, change_world_model(state, doubted(head, confidence)), as_node="update")
    await graph.ainvoke(None, thread)
    assert "confidence 0.1" in proposer.instructions[(1, "predict")]
    assert [record["head"]["beliefs"][0]["confidence"] for _, _, record in handle.open().receipts.changes()] == [0.1]
    assert wrong(handle.folder) == []


async def test_a_head_that_the_document_could_not_hold_is_refused_and_not_recorded(original: Original) -> None:
    forked = fork_run(original.folder, "broken", at=1)
    handle, head = original.room.handle(forked.config), read_world_model(forked.folder)
    bare = head.beliefs[0].model_copy(update={"evidence_for": ()})
    graph = create_bco(forked.config, handle=handle).compile()
    for given, said in [
        ({"beliefs": [{"id": "E1"}]}, "kind"),
        ({**head.to_json(), "more": 1}, "more"),
        (head.model_copy(update={"beliefs": (bare,)}).to_json(), "'E1' has no evidence"),
    ]:
        reference: Any = {**forked.state["world_model"], "head": given}
        with pytest.raises(DocumentError, match=said):
            await graph.ainvoke({**forked.state, "world_model": reference}, limits(forked.config))
    assert handle.open().receipts.changes() == []
    handle.close()


# -- through a parent --------------------------------------------------------------------------------------------------


class Whole(BCOState, total=False):
    """A parent that has all of our keys."""

    asked: str


def parent_of(handle: RunHandle) -> Any:
    graph = StateGraph(Whole)
    graph.add_node("improve", create_bco(handle.config, handle=handle).compile())
    graph.add_edge(START, "improve")
    return graph.compile(checkpointer=InMemorySaver())


async def test_a_parent_goes_on_from_the_state_of_a_fork_with_a_belief_changed(original: Original) -> None:
    forked = fork_run(original.folder, "through-a-parent", at=1)
    proposer = another_way()
    handle = original.room.handle(forked.config, proposer)
    changed = change_world_model(forked.state, doubted(read_world_model(forked.folder)))
    state = await parent_of(handle).ainvoke({"asked": "x", **forked.state, **changed}, limits(forked.config))
    handle.close()
    assert (state["asked"], state["iteration"], state["best"]["id"]) == ("x", 2, "iter_002")
    assert "confidence 0.2" in proposer.instructions[(2, "predict")]
    assert wrong(forked.folder) == []


async def test_a_parent_that_travels_back_to_before_the_run_is_given_the_run_and_pays_nothing(room: Room) -> None:
    """There it had not begun: the folder says where it stands."""
    proposer = two_edits()
    handle = room.run(proposer)
    parent, thread = parent_of(handle), limits(handle.config)
    first = await parent.ainvoke({"asked": "x"}, thread)
    paid, performed = len(room.server.requests), list(proposer.performed)
    start = [s async for s in parent.aget_state_history(thread) if s.next == ("improve",)][-1]
    again = await parent.ainvoke(None, start.config)
    assert again == first
    assert (len(room.server.requests), proposer.performed) == (paid, performed)


async def test_a_belief_is_changed_inside_of_the_subgraph_while_it_waits_for_a_step(room: Room) -> None:
    handle = RunHandle(toy_config(room.folder, room.server, iterations=1), suite=room.suite)
    parent, thread = parent_of(handle), limits(handle.config)
    state = await parent.ainvoke({"asked": "x"}, thread)
    state = await parent.ainvoke(Command(resume=handed_in(state)), thread)
    inner = (await parent.aget_state(thread, subgraphs=True)).tasks[0].state
    assert inner.next == ("propose",)
    head = read_world_model(handle.folder)
    await parent.aupdate_state(inner.config, change_world_model(inner.values, doubted(head)), as_node="update")
    state = await parent.ainvoke(None, thread)
    while "__interrupt__" in state:
        state = await parent.ainvoke(Command(resume=handed_in(state)), thread)
    handle.close()
    assert (state["iteration"], state["stop"], state["grade"]["verdict"]) == (1, "iterations", "held")
    text = (handle.folder / "world_model_calibration.md").read_text(encoding="utf-8")
    assert "### iter_000 changed from outside\n- revise E1 (hypothesis 0.6 -> hypothesis 0.2)" in text
    assert wrong(handle.folder) == []
