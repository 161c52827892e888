"""LangGraph apps as scaffolds: run by the real executor against the gateway and a scripted model."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from bco_graph.config import Evaluation
from bco_graph.evaluation import LeakPatterns, LocalExecutor, check_candidate
from bco_graph.evaluation.graph_entry import filled, picked, wrap
from bco_graph.evaluation.graph_entry.trace import MAX_EVENT_CHARS, plain, short
from bco_graph.evaluation.service import Evaluator
from bco_graph.events import Events
from bco_graph.protocols import Interface, Score, Task
from bco_graph.receipts import ResultRow
from bco_graph.state import JSON, Split
from bco_graph.testing import Reply, ScriptedModelServer, ToolCall
from tests.gateway_room import opened

HEAD = """
import copy
import time
from typing import TypedDict
from langchain_core.messages import SystemMessage
from langchain_core.tools import tool
from langgraph.graph import END, START, MessagesState, StateGraph
from langgraph.prebuilt import ToolNode, tools_condition
from langgraph.types import Command, interrupt
from pydantic import BaseModel

"""


@dataclass
class Apps:
    """A suite of one task for each input `kind`; every answer is right."""

    settings: Mapping[str, Any]
    kinds: Sequence[str]
    name: str = "apps"
    interface: Interface = field(init=False)

    def __post_init__(self) -> None:
        self.interface = Interface(entry="app.py:build", kind="graph", settings=self.settings)

    def tasks(self, split: Split) -> Sequence[Task]:
        return [Task(kind, kind, {"kind": kind}) for kind in self.kinds]

    def grade(self, task: Task, answer: JSON) -> Score:
        return Score(1.0)

    def gold(self, task: Task) -> JSON:
        return "42"

    def initial_scaffold(self) -> Path:
        raise NotImplementedError

    def surface(self) -> str:
        return ""


@dataclass
class Ran:
    rows: dict[str, ResultRow]
    traces: dict[str, dict[str, Any]]
    requests: list[dict[str, Any]]

    def events(self, kind: str) -> list[Any]:
        return list(self.traces[kind]["events"])

    def requests_of(self, kind: str) -> list[dict[str, Any]]:
        """Those whose first word from a user is the task's kind."""
        return [request for request in self.requests if asked(request).split()[0] == kind]


def asked(body: Mapping[str, Any]) -> str:
    return str(next(message["content"] for message in body["messages"] if message["role"] == "user"))


def write_app(folder: Path, code: str) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "app.py").write_text(HEAD + code, encoding="utf-8")
    return folder


def run_app(folder: Path, code: str, suite: Apps, script: Any, *, timeout_s: float = 60.0) -> Ran:
    """Evaluate an app on every task, as a run does."""
    source = write_app(folder / "app", code)
    with (
        ScriptedModelServer({"m": script}) as server,
        opened(folder / "run", server.deployment("m", max_tokens=100)) as room,
    ):
        executor = LocalExecutor(Evaluation(timeout_s=timeout_s), socket_path=room.gateway.socket_path)
        events = Events(folder / "events.jsonl")
        evaluator = Evaluator(suite, executor, room.receipts, events, room.gateway.token, 1)
        traces: list[dict[str, Any]] = []
        tasks = suite.tasks("train")
        rows = asyncio.run(
            evaluator.evaluate("train", "iter_000", source, tasks, iteration=0, keep_trace=traces.append)
        )
        return Ran(
            {row.task: row for row in rows},
            {trace["task"]: trace for trace in traces},
            [request.body for request in server.requests],
        )


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


def test_an_agent_with_tools_is_run_to_its_answer_and_every_step_is_traced(tmp_path: Path) -> None:
    script = [Reply(None, tool_calls=[ToolCall("multiply", {"a": 6, "b": 7}, id="c1")]), "42"]
    settings = {"input": {"messages": [{"role": "user", "content": "{kind}"}]}, "output": "messages.-1.content"}
    ran = run_app(tmp_path, AGENT, Apps(settings, ["agent"]), script)
    row = ran.rows["agent"]
    assert (row.kind, row.score, row.answer, row.calls) == ("scored", 1.0, "42", 2)
    called = {"type": "ai", "content": "", "tool_calls": [{"name": "multiply", "args": {"a": 6, "b": 7}}]}
    returned = {"type": "tool", "content": "42", "name": "multiply"}
    assert ran.events("agent") == [
        {"node": "agent", "path": [], "update": {"messages": [called]}},
        {"tool": "multiply", "node": "tools", "input": {"a": 6, "b": 7}, "output": "42"},
        {"node": "tools", "path": [], "update": {"messages": [returned]}},
        {"node": "agent", "path": [], "update": {"messages": [{"type": "ai", "content": "42"}]}},
    ]
    first, second = ran.requests
    assert [tool["function"]["name"] for tool in first["tools"]] == ["multiply"]
    assert first["stop"] == ["\n\n"]
    assert [message["role"] for message in second["messages"]] == ["system", "user", "assistant", "tool"]
    assert second["messages"][2]["tool_calls"][0]["function"] == {"name": "multiply", "arguments": '{"a": 6, "b": 7}'}
    assert second["messages"][3]["tool_call_id"] == "c1"


# --- one app of many parts, of which each task takes one

PARTS = """
class State(TypedDict, total=False):
    kind: str
    answer: object

class Sum(BaseModel):
    value: int

@tool
def look(name: str) -> str:
    "Look it up."
    raise KeyError(name)

def chain(*nodes, **options):
    graph = StateGraph(State)
    for name, node in nodes:
        graph.add_node(name, node)
    names = [START, *(name for name, _ in nodes), END]
    for one, two in zip(names, names[1:]):
        graph.add_edge(one, two)
    return graph.compile(**options)

def build(model):
    copied = copy.deepcopy(model)
    graph = StateGraph(State)

    def part(run):
        graph.add_node(run.__name__, run)
        graph.add_edge(run.__name__, END)
        return run

    @part
    def sync(state):
        return {"answer": copied.invoke("sync").content}

    @part
    async def blocking(state):
        return {"answer": model.invoke("blocking").content}

    @part
    async def streaming(state):
        return {"answer": "".join([part.content async for part in model.astream("streaming")])}

    @part
    async def by_tool(state):
        return {"answer": (await model.with_structured_output(Sum).ainvoke("by_tool")).value}

    @part
    async def by_form(state):
        asks = model.with_structured_output(Sum, method="json_schema")
        raw = model.with_structured_output(Sum, method="json_schema", include_raw=True)
        broken = await raw.ainvoke("by_form broken")
        return {"answer": [(await asks.ainvoke("by_form")).value, broken["parsed"], broken["raw"].content]}

    @part
    async def choices(state):
        for choice in ("any", True, "auto", "look", None):
            await model.bind_tools([look], tool_choice=choice).ainvoke(f"choices {choice}")
        return {"answer": "asked"}

    @part
    async def facts(state):
        got = await model.ainvoke("facts")
        return {"answer": [got.usage_metadata, got.invalid_tool_calls[0]["name"], got.response_metadata]}

    @part
    def bad_tool(state):
        look.invoke({"name": "lamp"})

    @part
    def ask(state):
        return {"answer": interrupt("which one?")}

    @part
    def wait(state):
        time.sleep(60)

    @part
    def plain(state):
        return {"answer": model.invoke("plain").content}

    @part
    def swallow(state):
        try:
            return {"answer": model.invoke("swallow").content}
        except Exception:
            return {"answer": "42"}

    @part
    def nothing(state):
        return None

    @part
    def again(state):
        return Command(goto="again", update={"answer": 1})

    def boom(state):
        raise RuntimeError("Boom-42")

    graph.add_node("inner", chain(("fine", lambda state: {"answer": "so far"}), ("boom", boom)))
    graph.add_node("sub_ask", chain(("ask", ask)))
    graph.add_conditional_edges(START, lambda state: state["kind"])
    return graph
"""
SETTINGS: dict[str, Any] = {"input": {"kind": "{kind}"}, "output": "answer", "recursion_limit": 5}
KINDS = [
    "sync", "blocking", "streaming", "by_tool", "by_form", "choices", "facts", "bad_tool", "ask", "plain",
    "swallow", "nothing", "again", "inner", "sub_ask",
]  # fmt: skip


def script(body: dict[str, Any]) -> Reply | str:
    kind, *rest = asked(body).split()
    replies: dict[str, Reply | str] = {
        "by_tool": Reply(None, tool_calls=[ToolCall("Sum", {"value": 42})]),
        "by_form": "no JSON" if rest else '{"value": 42}',
        "facts": Reply(None, tool_calls=[ToolCall("f", "{broken")]),
        "plain": Reply("too long", status=400, code="context_length_exceeded"),
        "swallow": Reply("overloaded", status=503),
    }
    return replies.get(kind, "42")


@pytest.fixture(scope="module")
def ran(tmp_path_factory: pytest.TempPathFactory) -> Ran:
    return run_app(tmp_path_factory.mktemp("parts"), PARTS, Apps(SETTINGS, KINDS), script)


@pytest.mark.parametrize("kind", ["sync", "blocking", "streaming"])
def test_nodes_may_be_sync_or_async_and_call_either_face_of_the_model(ran: Ran, kind: str) -> None:
    assert (ran.rows[kind].answer, ran.rows[kind].error) == ("42", "")


def test_structured_output_comes_by_a_tool_or_by_a_response_format(ran: Ran) -> None:
    assert ran.rows["by_tool"].answer == 42
    assert ran.rows["by_form"].answer == [42, None, "no JSON"]
    assert ran.requests_of("by_tool")[0]["tool_choice"] == "required"
    form = ran.requests_of("by_form")[0]["response_format"]
    assert form["json_schema"]["schema"]["properties"]["value"]["type"] == "integer"


def test_a_choice_of_tool_reaches_the_model_in_its_own_words(ran: Ran) -> None:
    named = {"type": "function", "function": {"name": "look"}}
    sent = {asked(request).split()[1]: request.get("tool_choice") for request in ran.requests_of("choices")}
    assert sent == {"any": "required", "True": "required", "auto": "auto", "look": named, "None": None}


def test_usage_and_broken_tool_calls_are_on_the_message(ran: Ran) -> None:
    usage = {"input_tokens": 10, "output_tokens": 5, "total_tokens": 15}
    assert ran.rows["facts"].answer[:2] == [usage, "f"]
    assert ran.rows["facts"].answer[2]["finish_reason"] == "tool_calls"


def test_a_node_that_raises_is_named_in_the_trace_with_what_came_before(ran: Ran) -> None:
    assert (ran.rows["inner"].kind, ran.rows["inner"].error) == ("no_answer", "RuntimeError: Boom-42")
    assert ran.events("inner") == [
        {"node": "fine", "path": ["inner"], "update": {"answer": "so far"}},
        {"node": "boom", "path": ["inner"], "error": "RuntimeError: Boom-42"},
        {"node": "inner", "path": [], "error": "RuntimeError: Boom-42"},
    ]


def test_a_tool_that_raises_is_traced_with_what_it_was_given(ran: Ran) -> None:
    first, second = ran.events("bad_tool")
    assert first == {"tool": "look", "node": "bad_tool", "input": {"name": "lamp"}, "error": "KeyError: 'lamp'"}
    assert second["error"] == "KeyError: 'lamp'"


@pytest.mark.parametrize("kind", ["ask", "sub_ask"])
def test_an_app_that_asks_a_person_has_no_answer_and_says_why(ran: Ran, kind: str) -> None:
    assert ran.rows[kind].kind == "no_answer"
    assert 'stopped to ask a person (["which one?"])' in ran.rows[kind].error


def test_a_loop_ends_at_the_recursion_limit_that_the_config_sets(ran: Ran) -> None:
    assert ran.rows["again"].kind == "no_answer"
    assert "Recursion limit of 5" in ran.rows["again"].error
    assert ran.events("again") == [{"node": "again", "path": [], "update": {"answer": 1}}] * 5


def test_a_node_that_never_ends_is_stopped_by_the_task_s_limit(tmp_path: Path) -> None:
    ran = run_app(tmp_path, PARTS, Apps(SETTINGS, ["wait"]), script, timeout_s=2.0)
    assert (ran.rows["wait"].kind, ran.rows["wait"].score) == ("timeout", 0.0)


def test_an_overflow_of_the_window_is_the_app_s_own_result(ran: Ran) -> None:
    assert ran.rows["plain"].kind == "context_overflow"
    assert "TargetError: HTTP 400" in ran.rows["plain"].error


def test_a_dead_model_says_nothing_about_an_app_that_swallows_the_error(ran: Ran) -> None:
    assert (ran.rows["swallow"].kind, ran.rows["swallow"].score) == ("infra_error", None)


def test_a_final_state_without_the_answer_says_what_it_has(ran: Ran) -> None:
    assert ran.rows["nothing"].kind == "no_answer"
    assert "entry.output 'answer': the final state has no 'answer'; it has: kind" in ran.rows["nothing"].error


# --- what is refused before anything is paid


def problems(folder: Path, code: str) -> list[str]:
    suite = Apps({"input": {}, "output": "x"}, ["k"])
    return check_candidate(write_app(folder, code), suite.interface, LeakPatterns.build([], {}))


@pytest.mark.parametrize(
    ("code", "reason"),
    [
        ("def make(model):\n    return model\n", "defines no 'build'"),
        (
            "def build():\n    return None\n",
            r"build\(\) does not take one positional argument.*declares build\(model\)",
        ),
        ("def build(model, task):\n    return model\n", r"build\(model, task\) does not take one positional argument"),
        ("def build(model):\n    return StateGraph(dict)\n", "build never uses 'model'.*target is asked"),
    ],
)
def test_a_factory_that_cannot_be_right_is_refused_unrun(tmp_path: Path, code: str, reason: str) -> None:
    (said,) = problems(tmp_path / "app", code)
    assert re.search(reason, said)


def test_a_graph_that_does_not_compile_is_refused_with_langgraph_s_reason(tmp_path: Path) -> None:
    said = problems(tmp_path / "app", AGENT.replace('add_edge(START, "agent")', 'add_edge(START, "agents")'))
    assert len(said) == 1
    assert "'agents'" in said[0] or "`agents`" in said[0]


def test_a_model_called_while_the_graph_is_built_is_refused(tmp_path: Path) -> None:
    said = problems(tmp_path / "app", AGENT.replace("    bound =", '    model.invoke("hi")\n    bound ='))
    assert "the model was called while the graph was built" in said[0]


def graph() -> Any:
    from langgraph.graph import START, StateGraph

    made: Any = StateGraph(dict)
    made.add_node("one", lambda state: state)
    made.add_edge(START, "one")
    return made


async def later(model: Any) -> Any:
    return graph()


@pytest.mark.parametrize(
    ("factory", "reason"),
    [
        (graph(), "is a graph that the import built around a model of its own.*def build\\(model\\)"),
        (graph().compile(), "is a graph that the import built around a model of its own"),
        (None, "is None; expected a function"),
        (later, "is async: make it a plain function"),
        (lambda model: None, "returned None; expected a StateGraph"),
        (lambda model: model, "returned a value of type TargetModel"),
        (lambda: graph(), "does not take one positional argument"),
    ],
)
def test_what_is_no_graph_factory_is_refused_with_what_to_change(factory: Any, reason: str) -> None:
    with pytest.raises(TypeError, match=f"app.py:build.*{reason}"):
        wrap(factory, {"input": {}, "output": "x"}, where="app.py:build")


def test_an_interface_that_does_not_say_what_goes_in_or_comes_out_is_refused() -> None:
    with pytest.raises(LookupError, match=r"app\.py:build lack: output"):
        wrap(lambda model: graph(), {"input": {}}, where="app.py:build")


class Recorder:
    """A target that keeps what is traced and gives no replies."""

    def __init__(self) -> None:
        self.events: list[Any] = []

    def trace(self, event: Any) -> None:
        self.events.append(event)


async def test_a_graph_that_was_compiled_to_stop_for_a_person_has_no_answer() -> None:
    made = graph()
    made.add_node("two", lambda state: {"answer": 42})
    made.add_edge("one", "two")
    stopping = wrap(lambda model: made.compile(interrupt_before=["two"]), {"input": {"q": 1}, "output": "q"}, where="a")
    target = Recorder()
    with pytest.raises(RuntimeError, match="stopped to ask a person"):
        await stopping(Task("t", "x", {}), target)
    assert [event["node"] for event in target.events] == ["one"]


async def test_a_graph_that_brings_a_checkpointer_is_given_a_thread() -> None:
    from langgraph.checkpoint.memory import InMemorySaver

    keeping = wrap(
        lambda model: graph().compile(checkpointer=InMemorySaver()), {"input": {"q": "{q}"}, "output": "q"}, where="a"
    )
    assert await keeping(Task("t", "x", {"q": 3}), Recorder()) == 3


# --- mapping


@pytest.mark.parametrize(
    ("template", "given"),
    [
        ("{n}", 3),
        ("{list}", ["a", "b"]),
        ("n is {n}, {text}", "n is 3, hi"),
        ("of {list}", 'of ["a", "b"]'),
        ("{{n}} {n}", "{n} 3"),
        ({"deep": [{"x": "{text}"}, 1, None]}, {"deep": [{"x": "hi"}, 1, None]}),
    ],
)
def test_a_template_takes_inputs_whole_or_as_text(template: Any, given: Any) -> None:
    assert filled(template, {"n": 3, "text": "hi", "list": ["a", "b"]}) == given


def test_an_input_that_a_task_lacks_is_named_with_those_it_has() -> None:
    with pytest.raises(LookupError, match="no input 'question'; it has: n, text"):
        filled({"q": "{question}"}, {"text": "hi", "n": 3})


@pytest.mark.parametrize(
    ("path", "reason"),
    [
        ("b", "the final state has no 'b'; it has: a, task"),
        ("a.2", "a has no '2'; it is a list of 1"),
        ("a.x", "a has no 'x'; it is a list of 1"),
        ("task.ids", "task has no 'ids'; it is a value of type Task"),
        ("task.__class__", "task has no '__class__'"),
    ],
)
def test_a_path_that_leads_nowhere_says_where_it_ends(path: str, reason: str) -> None:
    with pytest.raises(LookupError, match=reason):
        picked({"a": [1], "task": Task("t", "x", {})}, path)


def test_a_path_goes_through_keys_positions_and_attributes() -> None:
    assert picked({"a": [1, {"b": Task("t", "x", {})}]}, "a.-1.b.id") == "t"


# --- the trace


def test_a_long_update_is_cut_with_marks_until_it_is_short() -> None:
    event = short({"node": "n"}, {"update": {"text": "x" * 50_000, "many": list(range(1_000))}})
    assert "[... kept 8000 of 50000 characters ...]" in event["update"]["text"]
    assert event["update"]["many"][100] == "[... kept 200 of 1000 items ...]"
    wide = short({"node": "n"}, {"update": {str(key): "y" * 300 for key in range(500)}})
    assert wide["node"] == "n"
    assert "update" in wide["cut"]
    narrow = short({"node": "n"}, {"update": [["z" * 900] * 150] * 150})
    assert len(str(narrow)) <= MAX_EVENT_CHARS + 1_000


def test_values_without_a_form_in_json_are_named_by_their_type() -> None:
    loop: list[Any] = []
    loop.append(loop)
    assert plain({"a": object(), 1: float("nan"), "s": {1}, "t": Task("t", "x", {})}) == {
        "a": "<object>", "1": "nan", "s": [1], "t": {"id": "t", "type": "x", "inputs": {}},
    }  # fmt: skip
    assert "levels deep" in str(plain(loop))
