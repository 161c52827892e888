"""BCO inside somebody's graph: as a node, as a subgraph, node by node, with nodes and state of the caller's own."""

from __future__ import annotations

import asyncio
import operator
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated, Any, get_args

import pytest
from langgraph.checkpoint.memory import InMemorySaver
from langgraph.graph import START, StateGraph

from bco_graph import BCOState, bind, create_bco, nodes
from bco_graph.config import check_config
from bco_graph.errors import BcoError, ConfigError
from bco_graph.receipts import Receipts
from bco_graph.state import NodeName
from bco_graph.world_model import WorldModel
from tests.compose_room import App, Room, app, limits, wrong
from tests.toy import BOTH, SHORT, ScriptedProposer, prompt_edit


@pytest.fixture
def room(tmp_path: Path) -> Iterator[Room]:
    with Room(tmp_path) as made:
        yield made


@pytest.fixture
def run(room: Room) -> Any:
    return room.run


async def test_a_subgraph_shares_the_keys_that_the_parent_has_and_leaves_the_parent_s_own_alone(run: Any) -> None:
    handle = run()
    state = await app(handle).compile().ainvoke({"asked": ["improve it"]}, limits(handle.config))
    assert state["asked"] == ["improve it", "iter_002 has 1.0"]
    assert (state["stop"], state["outcome"]["mean"]) == ("iterations", 1.0)
    assert state.keys() == {"asked", "best", "stop", "outcome"}


async def test_a_parent_s_next_turn_finds_the_run_ended_and_pays_nothing(run: Any, room: Room) -> None:
    handle = run()
    graph = app(handle).compile(checkpointer=InMemorySaver())
    await graph.ainvoke({"asked": ["one"]}, limits(handle.config))
    paid, seen = len(room.server.requests), list(handle.open().proposer.performed)
    state = await graph.ainvoke({"asked": ["two"]}, limits(handle.config))
    assert state["asked"] == ["one", "iter_002 has 1.0", "two", "iter_002 has 1.0"]
    assert (len(room.server.requests), handle.open().proposer.performed) == (paid, seen)
    assert handle.open().candidates.ids() == ["iter_000", "iter_001", "iter_002"]


@pytest.mark.parametrize("method", ["bco", "vanilla"])
async def test_a_state_that_was_through_a_round_goes_on_with_the_next(run: Any, method: str) -> None:
    """As a parent with all of our keys hands it in, when it has more rounds to give."""
    first = run(iterations=1, method=method)
    state = await create_bco(first.config, handle=first).compile().ainvoke({}, limits(first.config))
    first.close()
    more = run(iterations=2, method=method)
    graph = create_bco(more.config, handle=more).compile()
    assert (await graph.ainvoke(state, limits(more.config)))["iteration"] == 1, "it had ended"
    state = await graph.ainvoke({**state, "stop": None}, limits(more.config))
    assert (state["iteration"], state["best"]["id"]) == (2, "iter_002")
    assert {step for step in more.open().proposer.performed if step[0] < 2} == set()
    assert wrong(more.folder) == []


async def test_a_plain_node_that_awaits_the_graph_does_it_too(run: Any) -> None:
    handle = run(iterations=1)
    inner = create_bco(handle.config, handle=handle).compile()

    async def improve(state: App) -> App:
        made = await inner.ainvoke({}, limits(handle.config))
        return {"best": made["best"]}

    graph = StateGraph(App)
    graph.add_node("improve", improve)
    graph.add_edge(START, "improve")
    state = await graph.compile(checkpointer=InMemorySaver()).ainvoke({"asked": ["x"]}, limits(handle.config))
    assert state == {"asked": ["x"], "best": {"id": "iter_001", "mean": 0.5}}


async def test_single_nodes_make_a_graph_of_one_s_own(run: Any) -> None:
    """One round and no more, with no prediction asked of anybody: the graph decides."""
    handle = run(method="vanilla", iterations=5)
    graph = StateGraph(BCOState)
    graph.add_node("measure", bind(nodes.evaluate, handle))
    graph.add_node("edit", bind(nodes.propose, handle))
    graph.add_node("again", bind(nodes.evaluate, handle))
    graph.add_edge(START, "measure")
    graph.add_edge("measure", "edit")
    graph.add_edge("edit", "again")
    state = await graph.compile().ainvoke({})
    assert (state["iteration"], state["stop"], state["best"]["id"]) == (1, None, "iter_001")
    assert wrong(handle.folder) == []


class Wider(BCOState, total=False):
    seen: Annotated[list[str], operator.add]
    budget_owner: str


async def test_a_wider_state_keeps_its_keys_and_its_reducers_work_on_what_an_own_node_adds(run: Any) -> None:
    async def evaluate(state: Wider, *, run: Any) -> Any:
        made = await nodes.evaluate(state, run=run)
        return {**made, "seen": [f"{made['outcome']['candidate']}"]}

    handle = run()
    graph = create_bco(handle.config, handle=handle, state_schema=Wider, nodes={"evaluate": evaluate}).compile()
    state = await graph.ainvoke({"budget_owner": "me", "seen": ["start"]}, limits(handle.config))
    assert state["seen"] == ["start", "iter_000", "iter_001", "iter_002"]
    assert state["budget_owner"] == "me"
    assert wrong(handle.folder) == []


async def shorter(state: BCOState, *, run: Any) -> Any:
    """A proposal without any model: it stages an edit of the best candidate."""
    iteration, parent = state["iteration"] + 1, (state.get("best") or {"id": "iter_000"})["id"]
    with run.source(run.candidates.tree(parent)) as source:
        prompt_edit(SHORT if iteration == 1 else BOTH, f"mark-{iteration}")(source)
        tree = run.candidates.stage(source)
    return {
        "proposal": {
            "iteration": iteration, "parent": parent, "name": f"own-{iteration}", "mode": "probe", "beliefs": ["E1"],
            "failure_mode": "long replies", "mechanism": "ask for less", "live_signature": f"mark-{iteration}",
            "tree": tree, "failure": None,
        }
    }  # fmt: skip


async def test_an_own_propose_takes_the_place_of_ours_and_leaves_all_that_readers_look_for(run: Any) -> None:
    proposer = ScriptedProposer({})
    handle = run(proposer)
    graph = create_bco(handle.config, handle=handle, nodes={"propose": shorter}).compile()
    state = await graph.ainvoke({}, limits(handle.config))
    assert state["best"] == {"id": "iter_002", "mean": 1.0}
    assert {step for _, step in proposer.performed} == {"update", "predict", "grade"}
    assert [record["name"] for record in handle.open().records.candidates()] == ["baseline", "own-1", "own-2"]
    folder = handle.folder / "iterations" / "iter_001"
    assert "+Reply with only the word." in (folder / "diff.patch").read_text(encoding="utf-8")
    assert wrong(handle.folder) == []


async def test_an_own_node_is_asked_once_in_an_iteration_also_when_it_has_to_run_again(run: Any) -> None:
    asked: list[int] = []

    async def counted(state: BCOState, *, run: Any) -> Any:
        asked.append(state["iteration"] + 1)
        return await shorter(state, run=run)

    handle = run(iterations=1)
    own = create_bco(handle.config, handle=handle, nodes={"propose": counted})
    for thread in ("1", "2"):  # a fresh start walks up to where the receipts end
        await own.compile(checkpointer=InMemorySaver()).ainvoke({}, limits(handle.config, thread))
    assert asked == [1]


async def test_an_own_propose_cannot_stage_past_the_checks(run: Any, room: Room) -> None:
    async def leak(state: BCOState, *, run: Any) -> Any:
        made = await shorter(state, run=run)
        with run.source(made["proposal"]["tree"]) as source:
            prompt_edit("The word is: {word}\n# toy-train-3\n")(source)
            made["proposal"]["tree"] = run.candidates.stage(source)
        return made

    handle = run(iterations=1)
    state = await create_bco(handle.config, handle=handle, nodes={"propose": leak}).compile().ainvoke({})
    assert state["outcome"]["failure"]["step"] == "propose"
    assert "holds a task id" in state["outcome"]["failure"]["reasons"][0]
    assert len(room.server.requests) == 8


async def test_an_own_propose_stakes_no_belief_that_is_not_there(run: Any, room: Room) -> None:
    async def guess(state: BCOState, *, run: Any) -> Any:
        made = await shorter(state, run=run)
        return {"proposal": {**made["proposal"], "beliefs": ["E9"]}}

    handle = run(iterations=1)
    state = await create_bco(handle.config, handle=handle, nodes={"propose": guess}).compile().ainvoke({})
    assert "belief 'E9' is not in the world model" in state["outcome"]["failure"]["reasons"][0]
    assert len(room.server.requests) == 8


async def test_an_own_update_writes_the_document_by_the_head_that_it_returns(run: Any) -> None:
    async def forgetful(state: BCOState, *, run: Any) -> Any:
        if state["iteration"] == 0:
            return await nodes.update(state, run=run)
        return {"world_model": {"iteration": 1, "beliefs": 0, "experiments": 0, "head": WorldModel().to_json()}}

    handle = run(iterations=1)
    graph = create_bco(handle.config, handle=handle, nodes={"update": forgetful}).compile()
    state = await graph.ainvoke({}, limits(handle.config))
    assert state["world_model"] == {"iteration": 1, "beliefs": 0, "experiments": 0}
    text = (handle.folder / "world_model_calibration.md").read_text(encoding="utf-8")
    assert "- remove E1 (hypothesis 0.6)" in text
    assert handle.open().document.head(1) == WorldModel()
    assert wrong(handle.folder) == []


async def test_own_predict_and_grade_leave_what_readers_look_for(run: Any) -> None:
    """Both give what ours gave in another run, so that nothing of ours writes their receipts."""
    first = run(iterations=1)
    known = await create_bco(first.config, handle=first).compile().ainvoke({})
    first.close()

    async def predict(state: BCOState, *, run: Any) -> Any:
        return {"prediction": known["prediction"]}

    async def grade(state: BCOState, *, run: Any) -> Any:
        return {"grade": known["grade"]}

    handle = run(iterations=1, name="again")
    graph = create_bco(handle.config, handle=handle, nodes={"predict": predict, "grade": grade}).compile()
    state = await graph.ainvoke({})
    assert {step for _, step in handle.open().proposer.performed} == {"update", "propose"}
    assert state["grade"]["verdict"] == "held"
    receipts = Receipts(handle.folder / "receipts.sqlite")
    assert {"predict", "graded"} <= {step for _, step, _ in receipts.steps()}
    receipts.close()
    for name in ("prediction.md", "grade.md"):
        theirs = (first.folder / "iterations/iter_001" / name).read_text(encoding="utf-8")
        assert (handle.folder / "iterations/iter_001" / name).read_text(encoding="utf-8") == theirs
    assert wrong(handle.folder) == []


def returns(update: Any) -> Any:
    async def node(state: BCOState, *, run: Any) -> Any:
        return update

    return node


@pytest.mark.parametrize(
    ("name", "update", "said"),
    [
        ("propose", None, "returned NoneType"),
        ("propose", {}, "did not return proposal"),
        ("propose", {"proposal": {"iteration": 1}}, "lacks some of: beliefs"),
        ("propose", {"proposl": {}}, r"the state does not have \(did you mean 'proposal'\?\)"),
        ("propose", {"outcome": {}}, "which another node writes"),
        ("evaluate", {"stop": None, "iteration": 0, "best": {"id": "x", "mean": {1, 2}}, "outcome": {}}, "lacks some"),
        ("update", {"world_model": {"iteration": 0, "beliefs": 0, "experiments": 0}}, "without its `head`"),
    ],
)
async def test_what_an_own_node_may_not_return_is_refused_in_words(run: Any, name: str, update: Any, said: str) -> None:
    handle = run(iterations=1)
    graph = create_bco(handle.config, handle=handle, nodes={name: returns(update)}).compile()  # type: ignore[dict-item]
    with pytest.raises(ConfigError, match=said):
        await graph.ainvoke({})


async def test_an_own_key_that_is_no_plain_json_is_refused(run: Any) -> None:
    async def propose(state: Wider, *, run: Any) -> Any:
        return {**await nodes.propose(state, run=run), "seen": {1, 2}}

    handle = run(iterations=1)
    graph = create_bco(handle.config, handle=handle, state_schema=Wider, nodes={"propose": propose}).compile()
    with pytest.raises(ConfigError, match="no plain JSON"):
        await graph.ainvoke({})


async def _propose(state: BCOState, *, run: Any) -> Any: ...


@pytest.mark.parametrize(
    ("own", "method", "said"),
    [
        ({"propse": _propose}, "bco", r"there is no node 'propse' \(did you mean 'propose'\?\); it has: propose"),
        ({"predict": _propose}, "vanilla", "method 'vanilla' has no node 'predict'; it has: propose, evaluate"),
        ({"propose": lambda state, run: None}, "bco", "is no async function"),
        ({"propose": operator.add}, "bco", "is no async function"),
        ({"propose": None}, "bco", "is no async function"),
    ],
)
def test_a_node_that_cannot_be_one_is_refused_when_the_graph_is_made(
    run: Any, own: Any, method: str, said: str
) -> None:
    handle = run(method=method)
    with pytest.raises(ConfigError, match=said):
        create_bco(handle.config, handle=handle, nodes=own)


async def test_a_node_that_the_config_names_is_found(tmp_path: Path, run: Any) -> None:
    text = (
        "import tests.test_compose as t\n\nasync def mine(state, *, run):\n    return await t.shorter(state, run=run)\n"
    )
    (tmp_path / "own.py").write_text(text, encoding="utf-8")
    handle = run(ScriptedProposer({}), iterations=1, nodes={"propose": f"{tmp_path}/own.py:mine"})
    state = await create_bco(handle.config, handle=handle).compile().ainvoke({})
    assert state["proposal"]["name"] == "own-1"


def test_a_node_that_the_config_names_wrongly_is_told_at_once(run: Any) -> None:
    with pytest.raises(ConfigError, match="unknown node 'mine'; installed: none; or give "):
        create_bco(run(nodes={"propose": "mine"}).config)
    with pytest.raises(ConfigError, match="propse"):
        run(nodes={"propse": "a:b"})


def test_bind_takes_nodes_of_the_loop_only(run: Any) -> None:
    with pytest.raises(ConfigError, match="'_propose' is no node of the loop"):
        bind(_propose, run())


def test_a_handle_and_what_it_already_says_exclude_each_other(run: Any, room: Room) -> None:
    handle = run()
    with pytest.raises(ConfigError, match="give them to RunHandle"):
        create_bco(handle.config, handle=handle, suite=room.suite)


# -- sync and async --------------------------------------------------------------------------------------------------


def test_sync_faces_work_without_a_loop(run: Any) -> None:
    handle = run(iterations=1)
    chunks = list(app(handle).compile().stream({"asked": ["x"]}, limits(handle.config), stream_mode="updates"))
    assert [node for chunk in chunks for node in chunk] == ["improve", "say"]


async def test_sync_faces_work_inside_a_running_loop_with_bco_as_a_subgraph(run: Any) -> None:
    """As in a notebook's cell."""
    handle = run(iterations=1)
    graph = app(handle).compile()
    assert graph.invoke({"asked": ["x"]}, limits(handle.config))["best"]["id"] == "iter_001"
    chunks = list(graph.stream({"asked": ["y"]}, limits(handle.config)))
    assert chunks[0]["improve"]["stop"] == "iterations"
    assert asyncio.get_running_loop().is_running()


async def test_async_faces_work_in_a_loop_of_another_thread_at_the_same_time(run: Any) -> None:
    one, two = run(iterations=1), run(iterations=1, name="two")
    graphs = [app(handle).compile() for handle in (one, two)]

    def in_a_thread() -> Any:
        return asyncio.run(graphs[1].ainvoke({"asked": ["y"]}, limits(two.config)))

    first, second = await asyncio.gather(
        graphs[0].ainvoke({"asked": ["x"]}, limits(one.config)), asyncio.to_thread(in_a_thread)
    )
    assert first["best"] == second["best"] == {"id": "iter_001", "mean": 0.5}


# -- manners ---------------------------------------------------------------------------------------------------------


def test_the_graph_is_uncompiled_and_its_options_are_keywords(run: Any) -> None:
    handle = run()
    assert isinstance(create_bco(handle.config, handle=handle), StateGraph)
    with pytest.raises(TypeError, match="positional"):
        create_bco(handle.config, handle)  # type: ignore[call-arg]


def test_what_is_drawn_is_the_loop(run: Any) -> None:
    drawn = create_bco(run().config).compile().get_graph()
    edges = {(edge.source, edge.target) for edge in drawn.edges}
    assert {("__start__", "evaluate"), ("__start__", "propose"), ("predict", "evaluate"), ("grade", "update")} <= edges
    assert ("update", "__end__") in edges
    assert set(drawn.nodes) == {"__start__", "__end__", *get_args(NodeName)}


def test_every_name_that_a_composer_needs_is_exported() -> None:
    import bco_graph

    wanted = {
        "create_bco", "recursion_limit", "bind", "RunHandle", "RunContext", "open_run", "fork_run", "Fork",
        "read_world_model", "change_world_model", "BCOState", "EvaluateUpdate", "ProposeUpdate", "PredictUpdate",
        "GradeUpdate",
        "UpdateUpdate", "WorldModelReference", "Suite", "Proposer", "Executor", "Sink", "Step", "StepResult", "Task",
        "Score", "Interface", "RunConfig", "load_config", "check_config", "BcoError", "StaleCheckpoint", "WorldModel",
        "Belief", "Evidence", "nodes",
    }  # fmt: skip
    assert wanted <= set(bco_graph.__all__)
    assert bco_graph.BcoError is BcoError
    assert bco_graph.check_config is check_config
