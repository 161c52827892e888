"""A LangGraph app as a scaffold: its graph, built with a chat model of the target, is run on a task and traced.

The worker loads this folder, which lies beside it, for scaffolds of kind `graph`: it may import langgraph and
langchain-core, and nothing else of ours.

    build(model) -> StateGraph | compiled graph     in a process for each task; the model takes no calls meanwhile
    task.inputs -> `input`, filled in -> the graph -> its final state -> `output` -> the answer
    target.trace <- {"node", "path", "update" | "error"} for each node, {"tool", "node", "input", "output" | "error"}
"""

from __future__ import annotations

import contextlib
import inspect
import json
import re
import typing
from collections.abc import Awaitable, Callable, Mapping
from typing import Any

from langgraph.graph import StateGraph
from langgraph.pregel import Pregel
from pydantic.errors import PydanticUserError

from .model import TargetModel
from .trace import ToolTrace, node_event, plain

_FIELD = re.compile(r"\{\{|\}\}|\{([^{}]+)\}")

Json = Any
Solve = Callable[[Any, Any], Awaitable[Json]]


class Settings(typing.TypedDict, total=False):
    """`input` and `output` are required, but for `describe`."""

    input: Json
    """What the graph gets: any JSON value. `{name}` in its texts is the task's input of that name; a text that is
    nothing else becomes the input as it is, of whatever type. `{{` and `}}` stand for the braces."""
    output: str
    """Where the answer lies in the final state: keys, attributes and positions, such as `messages.-1.content`."""
    recursion_limit: int
    """Supersteps of one task; left out: the graph's own."""
    describe: bool
    """Run nothing: answer with the graph's nodes and the schemas of its input and output."""


def wrap(factory: Any, settings: Settings, *, where: str) -> Solve:
    """`solve(task, target)` for the graph that `factory` builds. Raises TypeError for what is no such factory,
    LookupError for incomplete settings, and whatever the app or LangGraph's own check of the graph raises."""
    if not settings.get("describe") and (missing := [key for key in ("input", "output") if key not in settings]):
        raise LookupError(f"the interface's settings for the graph {where} lack: {', '.join(missing)}")
    model = TargetModel()
    graph = _build(factory, model, where)

    async def describe(_task: Any, _target: Any) -> Json:
        return {"nodes": sorted(graph.nodes), "input": _schema(graph, "input"), "output": _schema(graph, "output")}

    async def solve(task: Any, target: Any) -> Json:
        model.connect(target)
        given = filled(settings["input"], task.inputs)
        state = await _run(graph, given, target, settings.get("recursion_limit"))
        return plain(picked(state, settings["output"]))

    return describe if settings.get("describe") else solve


def _build(factory: Any, model: TargetModel, where: str) -> Pregel[Any, Any, Any, Any]:
    if isinstance(factory, StateGraph | Pregel):
        raise TypeError(
            f"{where} is a graph that the import built around a model of its own, which cannot be reached from a "
            "candidate's process: make it a function, `def build(model): ... return graph`, that uses `model` where "
            "the app made its chat model"
        )
    if not callable(factory):
        raise TypeError(f"{where} is {_kind_of(factory)}; expected a function, `def build(model): ... return graph`")
    try:
        inspect.signature(factory).bind(None)
    except TypeError:
        shown = f"{getattr(factory, '__name__', where)}{inspect.signature(factory)}"
        raise TypeError(f"{where}: {shown} does not take one positional argument (model)") from None
    built = factory(model)
    if inspect.iscoroutine(built):
        built.close()
        raise TypeError(f"{where} is async: make it a plain function that returns the graph")
    graph = built.compile() if isinstance(built, StateGraph) else built
    if not isinstance(graph, Pregel):
        raise TypeError(f"{where} returned {_kind_of(built)}; expected a StateGraph or a compiled graph")
    return graph


def _kind_of(value: Any) -> str:
    return "None" if value is None else f"a value of type {type(value).__name__}"


def _schema(graph: Pregel[Any, Any, Any, Any], face: str) -> Json:
    try:
        return getattr(graph, f"get_{face}_jsonschema")()
    except PydanticUserError:
        # Such as `typing.TypedDict` before Python 3.12, and types that have no schema: the names are there.
        state = getattr(graph.builder, f"{face}_schema")  # type: ignore[attr-defined]  # a StateGraph's
        return {"properties": {name: {} for name in state.__annotations__}}


# A task


async def _run(graph: Pregel[Any, Any, Any, Any], given: Json, target: Any, recursion_limit: int | None) -> Json:
    """The final state, all of it. Raises what a node raises, and RuntimeError where the graph waits for a person."""
    # A graph that brings a checkpointer asks for a thread; no task sees another's.
    config: Any = {"callbacks": [ToolTrace(target)], "configurable": {"thread_id": "task"}}
    if recursion_limit is not None:
        config["recursion_limit"] = recursion_limit
    state: Json = None
    asked: list[Json] | None = None
    stream = graph.astream(given, config, stream_mode=["tasks", "updates", "values"], subgraphs=True)
    async with contextlib.aclosing(typing.cast(Any, stream)) as chunks:
        async for space, mode, chunk in chunks:
            if mode == "tasks" and "result" in chunk:
                target.trace(node_event(space, chunk))
            elif not space and mode == "values":
                state = chunk
            elif not space and mode == "updates" and "__interrupt__" in chunk:
                asked = [plain(item.value, chars=200, items=10) for item in chunk["__interrupt__"]]
    if asked is not None:
        raise RuntimeError(
            f"the graph stopped to ask a person ({json.dumps(asked, ensure_ascii=False)}), and in a task there is "
            "nobody: let a node decide, or build the graph without interrupts"
        )
    return state


# Mapping in and out


def filled(template: Json, inputs: Mapping[str, Json]) -> Json:
    """The template with a task's inputs in it. Raises LookupError for one that the task does not have."""
    if isinstance(template, Mapping):
        return {key: filled(value, inputs) for key, value in template.items()}
    if isinstance(template, list):
        return [filled(value, inputs) for value in template]
    if not isinstance(template, str):
        return template

    def value_of(name: str) -> Json:
        if name not in inputs:
            raise LookupError(f"entry.input: the task has no input {name!r}; it has: {', '.join(sorted(inputs))}")
        return inputs[name]

    def text_of(match: re.Match[str]) -> str:
        if match[1] is None:
            return match[0][0]
        value = value_of(match[1])
        return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)

    whole = _FIELD.fullmatch(template)
    return value_of(whole[1]) if whole and whole[1] is not None else _FIELD.sub(text_of, template)


def picked(state: Any, path: str) -> Any:
    """What lies at a path of a state. Raises LookupError that says what there is instead."""
    value = state
    for depth, step in enumerate(path.split(".")):
        place = ".".join(path.split(".")[:depth]) or "the final state"
        if isinstance(value, Mapping):
            if step not in value:
                raise LookupError(f"entry.output {path!r}: {place} has no {step!r}; it has: {', '.join(value)}")
            value = value[step]
        elif isinstance(value, list | tuple):
            try:
                value = value[int(step)]
            except (ValueError, IndexError):
                raise LookupError(
                    f"entry.output {path!r}: {place} has no {step!r}; it is a list of {len(value)}"
                ) from None
        elif step.startswith("_") or not hasattr(value, step):
            raise LookupError(f"entry.output {path!r}: {place} has no {step!r}; it is {_kind_of(value)}")
        else:
            value = getattr(value, step)
    return value
