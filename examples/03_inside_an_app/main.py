"""BCO inside a LangGraph app: a subgraph that shares keys with its parent, streams through it, and remembers its run.

python main.py        # no key: both models are scripts on this machine
"""

import asyncio
import operator
import re
import sys
from pathlib import Path
from typing import Annotated, TypedDict

from langgraph.checkpoint.memory import InMemorySaver
from langgraph.graph import START, StateGraph

from bco_graph import create_bco, recursion_limit
from bco_graph.testing import Reply, ScriptedModelServer, ToolCall

sys.path.insert(0, str(Path(__file__).parents[1] / "06_own_suite"))
from main import Capitals, config_for, model


class App(TypedDict, total=False):
    messages: Annotated[list[str], operator.add]  # the app's own
    best: dict  # shared with BCOState, as are `stop` and `outcome`
    stop: str | None
    outcome: dict


def answer(state: App) -> App:
    best = state["best"]
    return {"messages": [f"best is {best['id']} with {best['mean']:.2f} ({state['stop']})"]}


BELIEF = {
    "op": "add", "kind": "execution", "claim": "The model wraps its answer in a sentence unless told not to.",
    "confidence": 0.6, "status": "hypothesis", "mass": 5, "reason": "all traces end so",
    "evidence_for": [{"path": "iterations/iter_000/traces/train-0.json"}],
}  # fmt: skip
STEPS = {
    "the first beliefs": [ToolCall("submit", {"ops": [BELIEF]})],
    "propose": [
        ToolCall("edit_file", {"path": "scaffold/prompt.md", "old": "?", "new": "? Answer in one word."}),
        ToolCall("edit_file", {"path": "scaffold/agent.py", "old": "    return",
                               "new": "    target.trace('one-word')\n    return"}),
        ToolCall("submit", {"parent": "iter_000", "name": "one-word", "mechanism": "The prompt asks for one word.",
                            "mode": "probe", "failure_mode": "a sentence", "beliefs": ["E1"],
                            "live_signature": "one-word"}),
    ],
    "predict": [ToolCall("submit", {"base_why": "the only one", "behavioural": "single words", "confidence": 0.8,
                                    "subset": {"types": ["europe"], "expected": 1.0, "low": 0.5, "high": 1.0},
                                    "downside_bound": 0, "upside_types": ["europe"], "net_effect": 0.9,
                                    "falsification": "still sentences"})],
    "grade": [ToolCall("submit", {"behavioural_check": "single words", "behaviour_changed": "yes", "verdict": "held",
                                  "cause": "belief_wrong", "learned": "it obeys"})],
    "update the world model": [ToolCall("submit", {"ops": []})],
}  # fmt: skip


def proposer(body: dict) -> Reply:
    """One tool call a reply, of the step that was asked for last."""
    step, done = "", 0
    for message in body["messages"]:
        if found := re.search(r"^# Iteration \d+: (.+)$", str(message.get("content") or ""), flags=re.MULTILINE):
            step, done = found[1], 0
        done += message["role"] == "assistant"
    return Reply(None, tool_calls=[STEPS[step][done]])


async def main() -> None:
    with ScriptedModelServer({"frozen": model, "coder": proposer}) as server:
        models = {"model_list": [server.deployment("frozen", temperature=0), server.deployment("coder")]}
        roles = {"target": "frozen", "proposer": "coder"}
        config = config_for(
            server, name="inside-an-app", method="bco", iterations=1, models=models, roles=roles,
            proposer={"kind": "agent"},
        )  # fmt: skip
        app = StateGraph(App)
        app.add_node("improve", create_bco(config, suite=Capitals()).compile())
        app.add_node("answer", answer)
        app.add_edge(START, "improve")
        app.add_edge("improve", "answer")
        graph = app.compile(checkpointer=InMemorySaver())
        thread = {"configurable": {"thread_id": "1"}, "recursion_limit": recursion_limit(config)}
        chunks = graph.astream(
            {"messages": ["improve the agent"]}, thread, stream_mode=["updates", "custom"], subgraphs=True
        )
        async for below, mode, chunk in chunks:
            if mode == "custom" and chunk["type"] in ("candidate", "grade"):
                print(chunk["type"], chunk["candidate"], chunk.get("mean", chunk.get("verdict")))
            elif mode == "updates" and not below and "answer" in chunk:
                print(chunk["answer"]["messages"][0])
        paid = len(server.requests)
        state = await graph.ainvoke({"messages": ["and now?"]}, thread)  # the run has ended: nothing is paid again
        print(state["messages"][-1], "- model calls of the second turn:", len(server.requests) - paid)


if __name__ == "__main__":
    asyncio.run(main())
