"""A handbook assistant: route -> retrieve -> agent -> (tools) -> check -> (retrieve again | END)."""

from __future__ import annotations

import re
from pathlib import Path
from string import Template
from typing import Literal

from langchain_core.language_models import BaseChatModel
from langchain_core.messages import HumanMessage
from langchain_core.tools import tool
from langgraph.graph import END, START, StateGraph
from retrieval import search
from typing_extensions import TypedDict

PROMPTS = {
    kind: Template((Path(__file__).parent / "prompts" / f"{kind}.md").read_text(encoding="utf-8"))
    for kind in ("fact", "order")
}
MAX_TRIES = 2


class State(TypedDict, total=False):
    question: str
    kind: str
    tries: int
    passages: list[str]
    draft: str
    answer: str


@tool
def calculate(sum: str) -> str:
    """Work out a sum of products of whole numbers, such as 2*10+1*5."""
    products = [[int(number) for number in part.split("*")] for part in sum.split("+")]
    total = 0
    for factors in products:
        product = 1
        for factor in factors:
            product *= factor
        total += product
    return str(total)


def route(state: State) -> State:
    is_order = re.search(r"\b(cost|pay|price|euro)\b", state["question"].lower())
    return {"kind": "order" if is_order else "fact", "tries": 0}


def retrieve(state: State) -> State:
    return {"passages": search(state["question"], skip=state["tries"])}


def after_agent(state: State) -> Literal["tools", "check"]:
    return "tools" if state["draft"].startswith("CALC ") else "check"


def tools(state: State) -> State:
    found = re.match(r"CALC ([0-9]+(?:\*[0-9]+)?(?:\+[0-9]+(?:\*[0-9]+)?)*)", state["draft"].replace(" * ", "*"))
    return {"draft": calculate.invoke({"sum": found[1]}) if found else "I cannot work that out"}


def check(state: State) -> State:
    """Takes the first line as the answer; an answer that the handbook does not hold is tried again."""
    answer = (state["draft"].strip().splitlines() or [""])[0].strip()
    return {"answer": answer, "tries": state["tries"] + 1}


def after_check(state: State) -> str:
    grounded = state["kind"] == "order" or state["answer"].lower() in " ".join(state["passages"]).lower()
    return END if grounded or state["tries"] >= MAX_TRIES else "retrieve"


def build(model: BaseChatModel) -> StateGraph:
    async def agent(state: State) -> State:
        passages = "\n".join(state["passages"])
        prompt = PROMPTS[state["kind"]].substitute(passages=passages, question=state["question"])
        reply = await model.ainvoke([HumanMessage(prompt)], max_tokens=32)
        return {"draft": str(reply.content).strip()}

    graph = StateGraph(State)
    for node in (route, retrieve, agent, tools, check):
        graph.add_node(node.__name__, node)
    graph.add_edge(START, "route")
    graph.add_edge("route", "retrieve")
    graph.add_edge("retrieve", "agent")
    graph.add_conditional_edges("agent", after_agent)
    graph.add_edge("tools", "check")
    graph.add_conditional_edges("check", after_check, ["retrieve", END])
    return graph
