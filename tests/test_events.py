"""The event schema: what runs emit is of it, its page says the same, and a view is made of events alone."""

from __future__ import annotations

import ast
import asyncio
import contextvars
import json
import os
import types
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated, Any, Literal, TypedDict, Union, get_args, get_origin, get_type_hints, is_typeddict

import pytest
from langgraph.graph import START, StateGraph

import bco_graph
from bco_graph import nodes
from bco_graph.binding import RunHandle
from bco_graph.driver import drive
from bco_graph.errors import SuiteBroken
from bco_graph.events import EVENT_TYPES, Event, Events, EventType, Tail, View, event_faults, reduce, repeated
from bco_graph.events.schema import Common
from bco_graph.graph import create_bco
from bco_graph.opening import open_run
from bco_graph.protocols import Score, Task
from bco_graph.state import JSON, Method
from bco_graph.studies.heldout import heldout
from bco_graph.testing import ScriptedModelServer
from bco_graph.world_model import parse_document
from tests.toy import SHORT, ScriptedProposer, ToySuite, prompt_edit, toy_config, two_edits

PAGE = Path(__file__).parents[1] / "docs" / "EVENTS.md"


def logged(folder: Path) -> list[Event]:
    return [json.loads(line) for line in (folder / "events.jsonl").read_text(encoding="utf-8").splitlines()]


def faults(events: list[Event]) -> list[str]:
    return [fault for event in events for fault in event_faults(event)]


# -- what runs emit ------------------------------------------------------------------------------------------------

RUN = {"run_started", "run_ended", "node_started", "node_ended", "evaluation", "task_done", "candidate", "spend"}


@pytest.mark.parametrize(
    ("method", "expected"),
    [
        ("bco", RUN | {"proposal", "prediction", "grade", "beliefs"}),
        ("vanilla", RUN | {"proposal"}),
        ("notes", RUN | {"proposal"}),
    ],
)
async def test_every_event_of_a_run_is_of_the_schema(
    tmp_path: Path, server: ScriptedModelServer, suite: ToySuite, method: Method, expected: set[str]
) -> None:
    config = toy_config(tmp_path, server, method=method)
    proposer = two_edits() if method == "bco" else ScriptedProposer({1: prompt_edit(SHORT)})
    await drive(config, suite=suite, proposer=proposer)
    run = open_run(config, suite=suite, proposer=proposer)
    await heldout(run, ["iter_000"], reason="test")
    run.close()
    events = logged(config.run_dir)
    assert faults(events) == []
    assert {event["type"] for event in events} - {"step_failed"} == expected | {"heldout"}
    assert {event["split"] for event in events if event["type"] == "task_done"} == {"train", "heldout"}


async def test_held_out_results_are_told_with_their_looks_and_an_unpaid_repetition_is_known_as_one(
    tmp_path: Path, server: ScriptedModelServer, suite: ToySuite
) -> None:
    config = toy_config(tmp_path, server)
    await drive(config, suite=suite, proposer=two_edits())
    for names in (["iter_000", "iter_002"], ["iter_000"], ["iter_001"]):
        run = open_run(config, suite=suite, proposer=two_edits())
        await heldout(run, names, reason="test")
        run.close()
    log = logged(config.run_dir)
    told = [e for e in log if e["type"] == "heldout"]
    assert [(e["candidate"], e["iteration"], e["mean"], e["coverage"], e["looks"]) for e in told] == [
        ("iter_000", 0, 0.0, 1.0, 1), ("iter_002", 2, 1.0, 1.0, 2), ("iter_000", 0, 0.0, 1.0, 1),
        ("iter_001", 1, 0.5, 1.0, 3),
    ]  # fmt: skip
    assert {(e["tasks"], e["passed"]) for e in told} == {(4, 0), (4, 4), (4, 2)}
    assert [repeated(seen(log[: log.index(e)]), e) for e in told[:2]] == [False, False]
    assert repeated(seen(told[:2]), told[2])
    assert not repeated(seen(told[:2]), {**told[2], "looks": 3})
    view = seen(log)
    assert {name: (held.mean, held.looks) for name, held in view.heldout.items()} == {
        "iter_000": (0.0, 1), "iter_001": (0.5, 3), "iter_002": (1.0, 2),
    }  # fmt: skip
    assert (view.ended, view.stop, view.best) == (True, "iterations", "iter_002")


class BrokenAfterTheBaseline(ToySuite):
    def grade(self, task: Task, answer: JSON) -> Score:
        if answer == task.inputs["word"]:
            raise ValueError("the grader is broken")
        return super().grade(task, answer)


async def test_what_goes_wrong_is_of_the_schema_too(tmp_path: Path, server: ScriptedModelServer) -> None:
    config = toy_config(tmp_path, server, iterations=3)
    proposer = two_edits()
    proposer.submissions[(1, "propose")] = {**proposer.submissions[(2, "propose")], "parent": "iter_999"}
    proposer.edits[2] = prompt_edit(SHORT)
    proposer.submissions[(2, "propose")]["parent"] = "iter_000"
    with pytest.raises(SuiteBroken):
        await drive(config, suite=BrokenAfterTheBaseline(tmp_path / "initial"), proposer=proposer)
    events = logged(config.run_dir)
    assert faults(events) == []
    assert {"step_failed", "run_failed"} <= {event["type"] for event in events}
    assert (
        next(e for e in events if e["type"] == "candidate" and e["candidate"] is None)["failure"]["step"] == "propose"
    )


def test_the_code_emits_each_type_and_no_other() -> None:
    package = Path(bco_graph.__file__).parent
    emitted = {
        node.args[0].value
        for path in [*package.rglob("*.py"), *(package.parent / "nodes").rglob("*.py")]
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8")))
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr in ("emit", "_tell")
        if node.args and isinstance(node.args[0], ast.Constant)
    }
    assert emitted == set(EVENT_TYPES) - {"unreadable"}
    assert set(EVENT_TYPES) == set(get_args(EventType))


# -- the check -----------------------------------------------------------------------------------------------------

SPENT = {"calls": 1, "cache_hits": 0, "prompt_tokens": 2, "completion_tokens": 3, "usd": None, "seconds": 0.5}


def event(type: str, iteration: int = 1, at: float = 1000.0, **facts: Any) -> Event:
    return {"v": 1, "at": at, "type": type, "iteration": iteration, **facts}


@pytest.mark.parametrize(
    ("wrong", "expected"),
    [
        (event("weather"), "no known event"),
        ("text", "no known event"),
        ({**event("node_started", node="grade"), "v": 2}, "v: 2 instead of 1"),
        (event("node_started"), "node_started.node: missing"),
        (event("node_started", node="grade", extra=1), "node_started.extra: not in the schema"),
        (event("node_started", node=None), "node_started.node: None is no str"),
        (event("unreadable", line=True), "unreadable.line: True is no int"),
        (event("unreadable", line=1.0), "unreadable.line: 1.0 is no int"),
        (event("node_ended", node="grade", seconds=True), "node_ended.seconds: True is no float"),
        (event("spend", totals={"target": {**SPENT, "usd": "1"}}), "spend.totals['target'].usd: '1' is none of"),
        (event("spend", totals={"target": {**SPENT, "extra": 1}}), "spend.totals['target'].extra: not in the schema"),
        (event("spend", totals=[]), "spend.totals: [] is no"),
        (event("step_refused", step="grade", reasons=["x", 1]), "step_refused.reasons[1]: 1 is no str"),
        (event("run_ended", stop="boredom", best=None, mean=None, baseline=None), "run_ended.stop: 'boredom'"),
        (
            event("beliefs", changes=[{"iteration": 1, "op": "add", "id": "E1", "before": None, "after": {"x": 1}}]),
            "beliefs.changes[0].after.confidence: missing",
        ),
    ],
)
def test_what_is_not_of_the_schema_is_named(wrong: Any, expected: str) -> None:
    assert event_faults(wrong)[0].startswith(expected)


@pytest.mark.parametrize(
    "right",
    [
        event("spend", totals={"target": {**SPENT, "usd": 0}}),
        event("run_ended", stop=None, best=None, mean=None, baseline=1),
        event("warning", about="sink mlflow", message="x"),
        event("beliefs", changes=[
            {"iteration": 1, "op": "merge", "id": "E1", "before": {"confidence": 0.5, "status": "hypothesis"},
             "after": {"confidence": 1, "status": "confirmed"}, "merged": ["E2"]},
        ]),
    ],
)  # fmt: skip
def test_what_is_of_the_schema_has_no_fault(right: Event) -> None:
    assert event_faults(right) == []


# -- the page ------------------------------------------------------------------------------------------------------


def said(kind: Any) -> str:
    """A type as the page shows it, in JSON's words."""
    if is_typeddict(kind):
        fields = get_type_hints(kind, include_extras=True)
        optional = kind.__optional_keys__
        return "{" + ", ".join(f"{key}{'?' if key in optional else ''}: {said(of)}" for key, of in fields.items()) + "}"
    origin, inner = get_origin(kind), get_args(kind)
    if origin is Annotated:
        return said(inner[0])
    if origin is Literal:
        return " or ".join(f"`{value}`" for value in inner)
    if origin is list:
        return f"list of {said(inner[0])}"
    if origin is dict:
        return f"object of {said(inner[1])}"
    if origin in (Union, types.UnionType):
        return " or ".join(dict.fromkeys(said(option) for option in inner))
    return {str: "text", int: "integer", float: "number", type(None): "null"}[kind]


def fields_table() -> str:
    lines = ["Every event: " + ", ".join(f"`{key}` ({note})" for key, note in notes(Common)), ""]
    for name, form in EVENT_TYPES.items():
        lines += [f"### {name}", "", " ".join(str(form.__doc__).split()), ""]
        own = {key: of for key, of in hints(form).items() if key not in hints(Common) and key != "type"}
        told = dict(notes(form))
        lines += ["| field | is | |", "| --- | --- | --- |"] if own else []
        lines += [f"| `{key}` | {said(of)} | {told.get(key, '')} |" for key, of in own.items()]
        lines.append("")
    return "\n".join(lines).rstrip()


def hints(form: Any) -> dict[str, Any]:
    return get_type_hints(form, include_extras=True)


def notes(form: Any) -> Iterator[tuple[str, str]]:
    for key, kind in hints(form).items():
        if get_origin(kind) is Annotated:
            yield key, get_args(kind)[1]


def updates_table() -> str:
    lines = ["| node | keys of its update |", "| --- | --- |"]
    for name in ("propose", "approve", "predict", "afford", "evaluate", "grade", "review", "update"):
        written = get_type_hints(get_type_hints(getattr(nodes, name))["return"])
        lines.append(f"| `{name}` | {', '.join(f'`{key}`' for key in written)} |")
    return "\n".join(lines)


def test_the_page_says_what_the_schema_says() -> None:
    page = PAGE.read_text(encoding="utf-8")
    for mark, table in (("updates", updates_table()), ("events", fields_table())):
        before, _, rest = page.partition(f"<!-- {mark} -->\n")
        _, _, after = rest.partition(f"<!-- /{mark} -->\n")
        page = f"{before}<!-- {mark} -->\n\n{table}\n\n<!-- /{mark} -->\n{after}"
    if os.environ.get("BCO_WRITE_GOLDENS") == "1":
        PAGE.write_text(page, encoding="utf-8")
    assert page == PAGE.read_text(encoding="utf-8"), (
        "if the change is meant: BCO_WRITE_GOLDENS=1 pytest tests/test_events.py"
    )


# -- the view ------------------------------------------------------------------------------------------------------


def seen(events: list[Event], view: View | None = None) -> View:
    view = view or View()
    for item in events:
        view = reduce(view, item)
    return view


async def test_the_view_of_a_run_is_where_it_stands(
    tmp_path: Path, server: ScriptedModelServer, suite: ToySuite
) -> None:
    config = toy_config(tmp_path, server)
    ended = await drive(config, suite=suite, proposer=two_edits())
    view = seen(logged(config.run_dir))
    assert (view.name, view.method, view.iterations, view.iteration) == ("toy", "bco", 2, 2)
    assert (view.best, view.stop, view.ended, view.node, view.work) == ("iter_002", "iterations", True, None, None)
    assert view.means == {c["id"]: c["mean"] for c in ended.candidates}
    document = parse_document((config.run_dir / "world_model_calibration.md").read_text(encoding="utf-8"))
    assert view.beliefs == {belief.id: belief.confidence for belief in document.head.beliefs}
    assert {i: (f.confidence, f.verdict) for i, f in view.forecasts.items()} == {1: (0.8, "held"), 2: (0.8, "held")}
    assert view.spend["target"]["calls"] == len(server.requests)


def test_a_node_and_its_evaluation_are_under_way_until_they_end() -> None:
    started = event("node_started", node="evaluate")
    begun = event("evaluation", at=1001.0, candidate="iter_001", split="train", tasks=3, done=1)
    facts: dict[str, Any] = {
        "candidate": "iter_001",
        "split": "train",
        "task": "t",
        "repeat": 0,
        "kind": "scored",
        "score": 1.0,
    }
    second = event("task_done", **facts, seconds=1.0, tokens=7, usd=0.5, done=2, tasks=3)
    view = seen([started, begun, second])
    assert (view.node, view.node_since) == ("evaluate", 1000.0)
    work = view.work
    assert work is not None
    assert (work.done, work.done_before, work.tasks, work.since, work.tokens, work.usd) == (2, 1, 3, 1001.0, 7, 0.5)
    unpriced = reduce(view, {**second, "usd": None}).work
    assert unpriced is not None
    assert unpriced.usd is None
    assert reduce(view, {**second, "done": 3}).work is None
    assert reduce(view, event("node_ended", node="evaluate", seconds=1.0)).node is None
    assert view.work == work


def test_an_evaluation_with_nothing_to_do_is_not_under_way() -> None:
    assert seen([event("evaluation", candidate="iter_001", split="heldout", tasks=3, done=3)]).work is None


def test_beliefs_come_move_merge_and_go() -> None:
    def change(op: str, name: str, after: float | None, **more: Any) -> dict[str, Any]:
        held = None if after is None else {"confidence": after, "status": "hypothesis"}
        return {"iteration": 1, "op": op, "id": name, "before": None, "after": held, **more}

    added = event("beliefs", changes=[change("add", name, 0.5) for name in ("E1", "E2", "E3")])
    moved = event("beliefs", 2, changes=[change("merge", "E1", 0.7, merged=["E2"]), change("remove", "E3", None)])
    assert seen([added]).beliefs == {"E1": 0.5, "E2": 0.5, "E3": 0.5}
    assert seen([added, moved]).beliefs == {"E1": 0.7}


def test_what_an_iteration_says_once_is_known_as_repeated_and_tasks_are_not() -> None:
    spend, node = event("spend", totals={}), event("node_started", node="grade")
    view = seen([spend, node])
    assert repeated(view, spend)
    assert not repeated(view, {**spend, "iteration": 2})
    assert not repeated(view, {**spend, "type": "grade"})
    assert not repeated(view, node)
    later = seen([event("candidate", 2, candidate=None, best=None), {**spend, "iteration": 0}], view)
    assert [repeated(later, item) for item in (spend, {**spend, "iteration": 2}, node)] == [True, False, False]


def test_a_run_that_goes_on_has_not_ended() -> None:
    failed = event("run_failed", error="SuiteBroken", message="x")
    assert (seen([failed]).ended, seen([failed]).error) == (True, "SuiteBroken: x")
    again = seen([failed, event("run_started", name="toy", candidates=[{"id": "iter_000", "mean": 0.5}])])
    assert (again.ended, again.error, again.means) == (False, None, {"iter_000": 0.5})


def test_unknown_types_and_readers_marks_change_nothing() -> None:
    assert seen([event("weather", wind="north"), event("unreadable", line=3)]) == View()


# -- the log and the stream ----------------------------------------------------------------------------------------


async def test_a_graph_that_somebody_else_drives_streams_what_the_log_holds(
    tmp_path: Path, server: ScriptedModelServer, suite: ToySuite
) -> None:
    config = toy_config(tmp_path, server, iterations=1)
    handle = RunHandle(config, suite=suite, proposer=two_edits())
    graph = create_bco(config, handle=handle).compile()
    streamed = [chunk async for chunk in graph.astream({}, stream_mode="custom")]
    handle.close()
    assert streamed == logged(config.run_dir)
    assert (streamed[0]["type"], streamed[-1]["type"]) == ("run_started", "run_ended")
    assert [e["type"] for e in streamed].count("run_started") == 1


async def test_a_run_that_goes_on_in_another_process_says_so_once_and_ends_once(
    tmp_path: Path, server: ScriptedModelServer, suite: ToySuite
) -> None:
    for iterations in (1, 1, 2):
        config = toy_config(tmp_path, server, iterations=iterations)
        await drive(config, suite=suite, proposer=two_edits())
    ends = [(e["type"], e["iteration"]) for e in logged(config.run_dir) if e["type"].startswith("run_")]
    assert ends == [
        ("run_started", 0), ("run_ended", 1), ("run_started", 1), ("run_ended", 1), ("run_started", 2), ("run_ended", 2)
    ]  # fmt: skip


def test_a_line_that_a_crash_tore_does_not_take_the_next_event_with_it(tmp_path: Path) -> None:
    path = tmp_path / "events.jsonl"
    path.write_text('{"v":1,"ty', encoding="utf-8")
    Events(path).emit("node_started", 1, node="grade")
    Events(path).emit("node_ended", 1, node="grade", seconds=0.1)
    tail = Tail(path)
    read = list(tail.read())
    assert [item["type"] for item in read] == ["unreadable", "node_started", "node_ended"]
    assert faults(read) == []
    assert tail.position == path.stat().st_size


async def test_a_warning_of_another_thread_enters_the_stream_before_the_next_event(tmp_path: Path) -> None:
    class State(TypedDict, total=False):
        nothing: str

    events = Events(tmp_path / "events.jsonl")

    async def node(state: State) -> State:
        events.emit("node_started", 1, node="grade")
        await asyncio.to_thread(contextvars.Context().run, events.warn, "sink mlflow", "no route")
        events.emit("node_ended", 1, node="grade", seconds=0.1)
        events.emit("node_started", 1, node="update")
        return {}

    graph = StateGraph(State)
    graph.add_node("node", node)
    graph.add_edge(START, "node")
    streamed = [chunk async for chunk in graph.compile().astream({}, stream_mode="custom")]
    assert streamed == logged(tmp_path)
    assert [chunk["type"] for chunk in streamed] == ["node_started", "warning", "node_ended", "node_started"]


def test_a_warning_of_another_thread_is_logged_and_shown_at_once(tmp_path: Path) -> None:
    events, told = Events(tmp_path / "events.jsonl"), list[Event]()
    events.subscribe(told.append)
    events.warn("sink mlflow", "no route")
    assert told == logged(tmp_path)
    assert faults(told) == []
    assert events.view.warnings == ("sink mlflow: no route",)
