"""LangGraph apps as scaffolds: run by the real executor against the gateway and a scripted model."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from bco_graph.config import Evaluation
from bco_graph.evaluation import LeakPatterns, LocalExecutor, check_candidate
from bco_graph.evaluation.service import Evaluator
from bco_graph.events import Events
from bco_graph.protocols import Interface, Score, Task
from bco_graph.receipts import ResultRow
from bco_graph.state import JSON, Split
from bco_graph.testing import Reply, ScriptedModelServer, ToolCall
from tests.gateway_room import Room, opened

ASK = {"messages": [{"role": "user", "content": "{question}"}]}
SETTINGS: dict[str, Any] = {"input": ASK, "output": "messages.-1.content"}

HEAD = """
from typing import Annotated, Literal
from typing_extensions import TypedDict
from langchain_core.messages import AIMessage, HumanMessage, SystemMessage
from langchain_core.tools import tool
from langgraph.graph import END, START, MessagesState, StateGraph
from langgraph.prebuilt import ToolNode, tools_condition
from langgraph.types import Command, interrupt
from pydantic import BaseModel


class State(TypedDict, total=False):
    question: str
    answer: str


def chain(*nodes, schema=State, **options):
    graph = StateGraph(schema)
    for name, node in nodes:
        graph.add_node(name, node)
    for one, two in zip([START, *(name for name, _ in nodes)], [*(name for name, _ in nodes), END]):
        graph.add_edge(one, two)
    return graph.compile(**options)

"""
ONE_NODE = """
def build(model):
    async def say(state):
        return {"answer": (await model.ainvoke(state["question"])).content}
    return chain(("say", say))
"""
STATE = {"input": {"question": "{question}"}, "output": "answer"}


class OneTask:
    """A suite of one task, right when the answer is 42."""

    name = "one"

    def __init__(self, settings: Mapping[str, Any], inputs: Mapping[str, Any]) -> None:
        self.interface = Interface(entry="app.py:build", kind="graph", settings=settings)
        self._task = Task("t1", "sum", inputs)

    def tasks(self, split: Split) -> Sequence[Task]:
        return [self._task]

    def grade(self, task: Task, answer: JSON) -> Score:
        return Score(float(str(answer) == "42"))

    def gold(self, task: Task) -> JSON:
        return "42"

    def initial_scaffold(self) -> Path:
        raise NotImplementedError

    def surface(self) -> str:
        return ""


@dataclass
class Bench:
    """Runs an app on one task, as a run does; `row` and `trace` are what it left."""

    folder: Path
    room: Room
    server: ScriptedModelServer
    sandbox: str = "auto"

    def app(self, code: str) -> Path:
        source = self.folder / "app"
        source.mkdir(exist_ok=True)
        (source / "app.py").write_text(HEAD + code, encoding="utf-8")
        return source

    def run(
        self, code: str, settings: Mapping[str, Any], *, timeout_s: float = 30.0, **inputs: Any
    ) -> tuple[ResultRow, dict[str, Any]]:
        suite = OneTask(settings, inputs or {"question": "six times seven?"})
        evaluation = Evaluation.model_validate({"timeout_s": timeout_s, "sandbox": self.sandbox})
        executor = LocalExecutor(evaluation, socket_path=self.room.gateway.socket_path)
        events = Events(self.folder / "events.jsonl")
        evaluator = Evaluator(suite, executor, self.room.receipts, events, self.room.gateway.token, 1)
        traces: list[dict[str, Any]] = []
        rows = asyncio.run(
            evaluator.evaluate(
                "train", "iter_000", self.app(code), suite.tasks("train"), iteration=0, keep_trace=traces.append
            )
        )
        return rows[0], traces[0]

    def problems(self, code: str) -> list[str]:
        suite = OneTask(SETTINGS, {"question": "q"})
        leaks = LeakPatterns.build([], {})
        return check_candidate(self.app(code), suite.interface, leaks)

    @property
    def asked(self) -> list[dict[str, Any]]:
        return [request.body for request in self.server.requests]


@pytest.fixture
def server() -> Iterator[ScriptedModelServer]:
    with ScriptedModelServer({"m": ["42"]}) as started:
        yield started


@pytest.fixture
def bench(tmp_path: Path, server: ScriptedModelServer) -> Iterator[Bench]:
    with opened(tmp_path / "run", server.deployment("m", max_tokens=100)) as room:
        yield Bench(tmp_path, room, server)


AGENT = """
@tool
def multiply(a: int, b: int) -> int:
    "Multiply two whole numbers."
    return a * b

def build(model):
    bound = model.bind_tools([multiply])
    async def agent(state):
        said = [SystemMessage("Use tools."), *state["messages"]]
        return {"messages": [await bound.ainvoke(said, stop=["\\n\\n"])]}
    graph = StateGraph(MessagesState)
    graph.add_node("agent", agent)
    graph.add_node("tools", ToolNode([multiply]))
    graph.add_edge(START, "agent")
    graph.add_conditional_edges("agent", tools_condition)
    graph.add_edge("tools", "agent")
    return graph
"""


def test_an_agent_with_tools_is_run_to_its_answer_and_every_step_is_traced(bench: Bench) -> None:
    call = ToolCall("multiply", {"a": 6, "b": 7}, id="c1")
    bench.server.script("m", [Reply(None, tool_calls=[call]), "42"])
    row, trace = bench.run(AGENT, SETTINGS)
    assert (row.kind, row.score, row.answer, row.calls) == ("scored", 1.0, "42", 2)
    called = {"type": "ai", "content": "", "tool_calls": [{"name": "multiply", "args": {"a": 6, "b": 7}}]}
    returned = {"type": "tool", "content": "42", "name": "multiply"}
    assert trace["events"] == [
        {"node": "agent", "path": [], "update": {"messages": [called]}},
        {"tool": "multiply", "node": "tools", "input": {"a": 6, "b": 7}, "output": "42"},
        {"node": "tools", "path": [], "update": {"messages": [returned]}},
        {"node": "agent", "path": [], "update": {"messages": [{"type": "ai", "content": "42"}]}},
    ]
    first, second = bench.asked
    assert [tool["function"]["name"] for tool in first["tools"]] == ["multiply"]
    assert first["stop"] == ["\n\n"]
    assert [message["role"] for message in second["messages"]] == ["system", "user", "assistant", "tool"]
    assert second["messages"][2]["tool_calls"][0]["function"] == {"name": "multiply", "arguments": '{"a": 6, "b": 7}'}
    assert second["messages"][3]["tool_call_id"] == "c1"
