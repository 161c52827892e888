"""What a graph did on a task, as JSON of a bounded length: node updates and tool calls."""

from __future__ import annotations

import dataclasses
import datetime
import decimal
import enum
import json
import math
import pathlib
import uuid
from collections.abc import Mapping, Sequence
from typing import Any

from langchain_core.callbacks import BaseCallbackHandler
from langchain_core.messages import AIMessage, BaseMessage, ToolMessage
from pydantic import BaseModel

Json = Any

MAX_EVENT_CHARS = 30_000
_ROOMS = ((8_000, 200), (1_000, 40), (200, 10))
"""Characters of a text and items of a list that are kept, tried in turn until an event is short enough."""
_MAX_DEPTH = 30


def node_event(space: Sequence[str], chunk: Mapping[str, Any]) -> Json:
    """`path` are the nodes whose subgraphs the node is in, from the outermost."""
    event: dict[str, Json] = {"node": chunk["name"], "path": [part.partition(":")[0] for part in space]}
    if chunk["error"] is not None:
        error = chunk["error"]
        return short(event, {"error": f"{type(error).__name__}: {error}" if isinstance(error, Exception) else error})
    return short(event, {"update": chunk["result"]})


class ToolTrace(BaseCallbackHandler):
    """Records each call of a LangChain tool, however a node makes it."""

    def __init__(self, target: Any) -> None:
        self._target = target
        self._started: dict[uuid.UUID, dict[str, Json]] = {}

    def on_tool_start(
        self,
        serialized: Any,
        input_str: str,
        *,
        run_id: uuid.UUID,
        metadata: Any = None,
        inputs: Any = None,
        **kwargs: Any,
    ) -> None:
        name = kwargs.get("name") or (serialized or {}).get("name")
        given = input_str if inputs is None else inputs
        node = (metadata or {}).get("langgraph_node")
        self._started[run_id] = {"tool": name, "node": node, **short({}, {"input": given})}

    def on_tool_end(self, output: Any, *, run_id: uuid.UUID, **kwargs: Any) -> None:
        said = output.content if isinstance(output, ToolMessage) else output
        self._target.trace(short(self._started.pop(run_id), {"output": said}))

    def on_tool_error(self, error: BaseException, *, run_id: uuid.UUID, **kwargs: Any) -> None:
        self._target.trace(short(self._started.pop(run_id), {"error": f"{type(error).__name__}: {error}"}))


def short(event: dict[str, Json], more: dict[str, Any]) -> dict[str, Json]:
    """The event with more values, as JSON of a bounded length; cuts are marked."""
    for room in _ROOMS:
        shown = {**event, **plain(more, *room)}
        size = len(json.dumps(shown, ensure_ascii=False))
        if size <= MAX_EVENT_CHARS:
            return shown
    return {**event, "cut": f"left out: {', '.join(more)}, {size} characters even when cut"}


def plain(value: Any, chars: int | None = None, items: int | None = None, depth: int = 0) -> Json:
    """A value as JSON; messages as role, text and tool calls. What has no form in JSON is named by its type."""

    def inner(value: Any) -> Json:
        return plain(value, chars, items, depth + 1)

    if value is None or isinstance(value, bool | int):
        return value
    if isinstance(value, float):
        return value if math.isfinite(value) else str(value)
    if isinstance(value, str):
        return _cut_text(str(value), chars)
    if depth > _MAX_DEPTH:
        return f"<{type(value).__name__}, more than {_MAX_DEPTH} levels deep>"
    if isinstance(value, BaseMessage):
        return {key: inner(item) for key, item in _message_fields(value).items()}
    if isinstance(value, BaseModel):
        return {name: inner(getattr(value, name)) for name in type(value).model_fields}
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return {field.name: inner(getattr(value, field.name)) for field in dataclasses.fields(value)}
    if isinstance(value, Mapping):
        return {str(key): inner(item) for key, item in value.items()}
    if isinstance(value, list | tuple | set | frozenset):
        return _cut_list([inner(item) for item in value], items)
    if isinstance(value, enum.Enum):
        return inner(value.value)
    if isinstance(value, datetime.date | datetime.time | decimal.Decimal | uuid.UUID | pathlib.PurePath):
        return str(value)
    return f"<{type(value).__name__}>"


def _message_fields(message: BaseMessage) -> dict[str, Any]:
    found: dict[str, Any] = {"type": message.type, "content": message.content}
    if isinstance(message, AIMessage):
        found |= {"tool_calls": [{"name": call["name"], "args": call["args"]} for call in message.tool_calls]}
        found |= {"invalid_tool_calls": message.invalid_tool_calls}
    if isinstance(message, ToolMessage):
        found |= {"status": "error" if message.status == "error" else None}
    found |= {"name": message.name}
    return {key: value for key, value in found.items() if key in ("type", "content") or value}


def _cut_text(text: str, chars: int | None) -> str:
    if chars is None or len(text) <= chars:
        return text
    half = chars // 2
    return f"{text[:half]} [... kept {2 * half} of {len(text)} characters ...] {text[-half:]}"


def _cut_list(values: list[Json], items: int | None) -> list[Json]:
    if items is None or len(values) <= items:
        return values
    half = items // 2
    return [*values[:half], f"[... kept {2 * half} of {len(values)} items ...]", *values[-half:]]
