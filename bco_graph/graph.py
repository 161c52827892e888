"""The graph: five nodes, three that ask a person, and every edge. Whoever reads only this file can draw the system.

bco       START -> evaluate(x0) -> update -> propose -> predict -> evaluate -> grade -> update -> (propose | END)
vanilla   START -> evaluate(x0) -> propose -> evaluate -> (propose | END)
notes     the same as vanilla; its one document is a file that the proposer edits

Where `ask` in the config says so, a person is asked between two nodes, and again while the reply is of no use:

          propose -> [approve] -> predict -> [afford] -> evaluate -> grade -> [review] -> update

A state that has been through a round, as a parent graph hands it in, enters at propose.
"""

from __future__ import annotations

from collections.abc import Hashable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, cast

from langgraph.graph import START, StateGraph

from bco_graph.asking import asked_before_evaluation
from bco_graph.binding import Node, RunHandle, bind
from bco_graph.config import RunConfig
from bco_graph.errors import ConfigError
from bco_graph.nodes import afford, approve, evaluate, grade, predict, propose, review, update
from bco_graph.own_nodes import own_nodes
from bco_graph.proposers.replay import require_what_is_recorded
from bco_graph.protocols import Proposer, Role, Suite
from bco_graph.state import AskName, BCOState, NodeName

if TYPE_CHECKING:
    from langchain_core.language_models import BaseChatModel


def create_bco(
    config: RunConfig,
    *,
    suite: Suite | None = None,
    proposer: Proposer | None = None,
    target: str | None = None,
    models: Mapping[Role, BaseChatModel] | None = None,
    nodes: Mapping[NodeName, Node] | None = None,
    state_schema: type[BCOState] = BCOState,
    handle: RunHandle | None = None,
) -> StateGraph[Any, Any, Any, Any]:
    """The uncompiled graph of a run; the caller compiles it and owns checkpointer and store.

        config = load_config("bco.yaml")
        graph = create_bco(config).compile(checkpointer=InMemorySaver())
        thread = {"configurable": {"thread_id": "1"}, "recursion_limit": recursion_limit(config)}
        state = await graph.ainvoke({}, thread)  # invoke, stream and astream as well
        state["best"], state["stop"]

    The run folder is opened by the first node that runs, and continued where it exists: `{}` as input starts the run,
    or finds its place by the receipts. A state that a parent graph hands in goes on where it stands; one with `stop`
    set has ended.

    `suite` and `proposer` take the place of what the config names; `target` names another deployment of
    `models.model_list`; `models` are LangChain chat models that play a role, such as `{"target": ChatOpenAI(...)}`.
    `nodes` are async functions `(state, *, run)` in the place of ours, by name, such as `{"propose": my_propose}`;
    `state_schema` is a TypedDict that extends BCOState by keys of your own, with your own reducers. With a `handle`,
    which holds the opened run and closes it, everything of the run is said there. Raises ConfigError.
    """
    if handle and any(given is not None for given in (suite, proposer, target, models)):
        raise ConfigError("create_bco: `handle` brings suite, proposer, target and models: give them to RunHandle")
    run = handle or RunHandle(config, suite=suite, proposer=proposer, target=target, models=models)
    ours = NODES if config.method == "bco" else {name: NODES[name] for name in WITHOUT_BELIEFS}
    own = own_nodes(config, cast("Mapping[str, Node]", nodes or {}), state_schema, known=ours)
    if config.proposer.kind == "replay" and config.proposer.recording and proposer is None:
        require_what_is_recorded(Path(config.proposer.recording), config, own)
    graph = StateGraph(state_schema)
    for name, node in ours.items():
        graph.add_node(name, bind(own.get(name, node), run))
    asks = asked_by(config)
    for question, node in asks.items():
        graph.add_node(question, bind(node, run))

    def first(*names: NodeName | AskName) -> str:
        return next(name for name in names if name in graph.nodes)

    def replied(question: AskName, then: str) -> None:
        if question in asks:
            ways: dict[Hashable, str] = {"again": question, "failed": "evaluate", "staged": then}
            graph.add_conditional_edges(question, after_reply, ways)

    graph.add_conditional_edges(START, enter)
    staged: dict[Hashable, str] = {"failed": "evaluate", "staged": first("approve", "predict", "afford", "evaluate")}
    graph.add_conditional_edges("propose", after_propose, staged)
    replied("approve", first("predict", "afford", "evaluate"))
    replied("afford", "evaluate")
    if config.method != "bco":
        graph.add_conditional_edges("evaluate", next_round)
        return graph
    graph.add_edge("predict", first("afford", "evaluate"))
    graph.add_conditional_edges("evaluate", after_evaluate)
    graph.add_edge("grade", first("review", "update"))
    replied("review", "update")
    graph.add_conditional_edges("update", next_round)
    return graph


NODES: Mapping[NodeName, Node] = {
    "propose": propose, "predict": predict, "evaluate": evaluate, "grade": grade, "update": update,
}  # fmt: skip
WITHOUT_BELIEFS: tuple[NodeName, ...] = ("propose", "evaluate")
ASKS: Mapping[AskName, Node] = {"approve": approve, "afford": afford, "review": review}


def asked_by(config: RunConfig) -> dict[AskName, Node]:
    """The nodes that ask a person, as the config wants them."""
    wanted = {*asked_before_evaluation(config.ask), *(["review"] if config.ask.grade else [])}
    return {name: node for name, node in ASKS.items() if name in wanted}


def enter(state: BCOState) -> Literal["propose", "evaluate", "__end__"]:
    """A fresh state starts with the baseline; one that was here before, as in a parent's next turn, goes on."""
    return next_round({"stop": None, **state})


def after_propose(state: BCOState) -> Literal["failed", "staged"]:
    """A failed proposal goes straight to where iterations are recorded."""
    return "failed" if state["proposal"]["failure"] else "staged"


def after_reply(state: BCOState) -> Literal["again", "failed", "staged"]:
    """A reply that was not taken is asked for again; an edit that was rejected has failed."""
    return "again" if state["refused_reply"] else after_propose(state)


def after_evaluate(state: BCOState) -> Literal["grade", "update", "__end__"]:
    """The baseline, and an iteration without a candidate, have no prediction to grade."""
    if _cut_off(state):
        return "__end__"
    baseline = state["iteration"] == 0
    return "update" if baseline or state["outcome"]["candidate"] is None else "grade"


def next_round(state: BCOState) -> Literal["propose", "evaluate", "__end__"]:
    """A run that goes on first ends the evaluation that a budget cut off."""
    if state["stop"]:
        return "__end__"
    return "evaluate" if _cut_off(state) else "propose"


def _cut_off(state: BCOState) -> bool:
    """Whether the evaluation of the baseline or of the staged edit has not come to its end."""
    return "iteration" not in state or ("proposal" in state and state["proposal"]["iteration"] > state["iteration"])


def recursion_limit(config: RunConfig) -> int:
    """Supersteps that the rounds can take at most, with room to spare."""
    return 8 * config.iterations + 25
