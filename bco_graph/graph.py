"""The graph: five nodes and every edge. Whoever reads only this file can draw the system.

bco       START -> evaluate(x0) -> update -> propose -> predict -> evaluate -> grade -> update -> (propose | END)
vanilla   START -> evaluate(x0) -> propose -> evaluate -> (propose | END)
notes     the same as vanilla; its one document is a file that the proposer edits
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Literal

from langgraph.graph import START, StateGraph

from bco_graph.binding import RunHandle, bind
from bco_graph.config import RunConfig
from bco_graph.nodes import evaluate, grade, predict, propose, update
from bco_graph.protocols import Proposer, Role, Suite
from bco_graph.state import BCOState

if TYPE_CHECKING:
    from langchain_core.language_models import BaseChatModel


def create_bco(
    config: RunConfig,
    *,
    suite: Suite | None = None,
    proposer: Proposer | None = None,
    target: str | None = None,
    models: Mapping[Role, BaseChatModel] | None = None,
    state_schema: type[BCOState] = BCOState,
    handle: RunHandle | None = None,
) -> StateGraph[Any, Any, Any, Any]:
    """The uncompiled graph of a run; the caller compiles it and owns checkpointer and store.

    `suite` and `proposer` take the place of what the config names; `target` names another deployment of
    `models.model_list`; `models` are LangChain chat models that play a role, such as `{"target": ChatOpenAI(...)}`.
    The run folder is opened by the first node that runs, and continued where it exists. The graph takes `{}` as input;
    give `recursion_limit=recursion_limit(config)` when it is invoked.
    """
    run = handle or RunHandle(config, suite=suite, proposer=proposer, target=target, models=models)
    graph = StateGraph(state_schema)
    graph.add_node("evaluate", bind(evaluate, run))
    graph.add_node("propose", bind(propose, run))
    graph.add_edge(START, "evaluate")
    if config.method != "bco":
        graph.add_edge("propose", "evaluate")
        graph.add_conditional_edges("evaluate", next_round)
        return graph
    graph.add_node("predict", bind(predict, run))
    graph.add_node("grade", bind(grade, run))
    graph.add_node("update", bind(update, run))
    graph.add_conditional_edges("propose", after_propose)
    graph.add_edge("predict", "evaluate")
    graph.add_conditional_edges("evaluate", after_evaluate)
    graph.add_edge("grade", "update")
    graph.add_conditional_edges("update", next_round)
    return graph


def after_propose(state: BCOState) -> Literal["predict", "evaluate"]:
    """A failed proposal goes straight to where iterations are recorded."""
    return "evaluate" if state["proposal"]["failure"] else "predict"


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
    return "outcome" not in state or ("proposal" in state and state["proposal"]["iteration"] > state["iteration"])


def recursion_limit(config: RunConfig) -> int:
    """Supersteps that the rounds can take at most, with room to spare."""
    return 5 * config.iterations + 25
