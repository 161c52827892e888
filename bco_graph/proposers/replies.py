"""Two ways in which a model calls tools: the protocol's own tool calls, or one JSON object a reply.

A dialect makes the request, reads the reply into calls, and writes reply and results into the conversation. A reply
that calls nothing is `empty` or `prose`; what it may mean otherwise is never guessed.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal, Protocol

from pydantic import BaseModel

from bco_graph import prompts
from bco_graph.errors import ToolRefused
from bco_graph.proposers.conversation import Conversation
from bco_graph.proposers.tools import SUBMIT, definitions
from bco_graph.state import JSON
from bco_graph.strict_json import read_object


@dataclass(frozen=True, slots=True)
class Call:
    """`arguments` as the model wrote them: text of a JSON object, or the object."""

    id: str
    name: str
    arguments: str | Mapping[str, JSON]

    def parsed(self) -> Mapping[str, JSON]:
        """Raises ToolRefused where the arguments are not one JSON object."""
        if not isinstance(self.arguments, str):
            return self.arguments
        try:
            return read_object(self.arguments) if self.arguments.strip() else {}
        except ValueError as error:
            raise ToolRefused(f"the arguments are {error}") from error


@dataclass(frozen=True, slots=True)
class Reply:
    """One reply, read. With `kind` `calls` there is at least one call; `problem` says what is wrong otherwise."""

    kind: Literal["calls", "empty", "prose"]
    finish: str
    message: Mapping[str, JSON] = field(default_factory=dict)
    calls: Sequence[Call] = ()
    problem: str = ""


class Dialect(Protocol):
    def system(self, tools: frozenset[str]) -> str:
        """The fixed text at the start of a conversation."""

    def request(self, conversation: Conversation, tools: frozenset[str], schema: type[BaseModel]) -> dict[str, JSON]:
        """A chat-completions request, less the model."""

    def read(self, answer: Mapping[str, JSON]) -> Reply: ...

    def record(self, conversation: Conversation, reply: Reply, results: Sequence[str]) -> None:
        """Append the reply, then one result per call in the order of the calls."""


class ToolCalls:
    """The protocol's own tool calls. `submit` carries the step's form as its parameters."""

    def system(self, tools: frozenset[str]) -> str:
        return prompts.render("agent_system")

    def request(self, conversation: Conversation, tools: frozenset[str], schema: type[BaseModel]) -> dict[str, JSON]:
        submit = {
            "name": SUBMIT,
            "description": "Hand in the step's result. The step ends when it is accepted.",
            "parameters": schema.model_json_schema(),
        }
        functions = [*definitions(tools), submit]
        return {
            "messages": list(conversation.messages),
            "tools": [{"type": "function", "function": function} for function in functions],
        }

    def read(self, answer: Mapping[str, JSON]) -> Reply:
        message, finish = message_of(answer)
        calls = [_call(position, raw) for position, raw in enumerate(_raw_calls(message))]
        if calls:
            return Reply("calls", finish, message, calls)
        if finish == "length" or not text_of(message).strip():
            return Reply("empty", finish, message)
        problem = f"That reply calls no tool, so nothing was done. Call a tool; `{SUBMIT}` hands in the result."
        return Reply("prose", finish, message, problem=problem)

    def record(self, conversation: Conversation, reply: Reply, results: Sequence[str]) -> None:
        calls = [
            {**_rest(raw), "id": call.id, "type": "function",
             "function": {"name": call.name, "arguments": _echo(call.arguments)}}
            for raw, call in zip(_raw_calls(reply.message), reply.calls, strict=True)
        ]  # fmt: skip
        kept = {key: value for key, value in reply.message.items() if value is not None and key not in _DROPPED}
        message = {"content": None, **kept, "role": "assistant"}
        conversation.add({**message, "tool_calls": calls} if calls else message)
        for call, result in zip(reply.calls, results, strict=True):
            conversation.add_result({"role": "tool", "tool_call_id": call.id, "content": result})


_DROPPED = frozenset({"tool_calls", "function_call", "audio", "annotations", "refusal"})
"""Fields of a reply that endpoints do not take back; others, such as a reasoning block, some insist on."""


class JsonLines:
    """One JSON object `{"tool": ..., "args": {...}}` a reply, for a deployment without tool calls."""

    def system(self, tools: frozenset[str]) -> str:
        submit = {
            "name": SUBMIT,
            "description": "Hand in the step's result. The step ends when it is accepted.",
            "parameters": {"type": "object", "description": "the object that the step's schema describes"},
        }
        listed = "\n".join(json.dumps(tool, ensure_ascii=False) for tool in [*definitions(tools), submit])
        return prompts.render("agent_system") + "\n" + prompts.render("agent_json_protocol", tools=listed)

    def request(self, conversation: Conversation, tools: frozenset[str], schema: type[BaseModel]) -> dict[str, JSON]:
        return {"messages": list(conversation.messages)}

    def read(self, answer: Mapping[str, JSON]) -> Reply:
        message, finish = message_of(answer)
        text = text_of(message).strip()
        try:
            call = _json_call(unfence(text))
        except ValueError as error:
            if finish == "length" or not text:
                return Reply("empty", finish, message)
            problem = f"That reply was not carried out: it is {error}. Reply with one object "
            return Reply(
                "prose", finish, message, problem=problem + '{"tool": "NAME", "args": {...}} and nothing else.'
            )
        return Reply("calls", finish, message, [call])

    def record(self, conversation: Conversation, reply: Reply, results: Sequence[str]) -> None:
        conversation.add({"role": "assistant", "content": text_of(reply.message)})
        for call, result in zip(reply.calls, results, strict=True):
            conversation.add_result({"role": "user", "content": f"Result of {call.name}:\n{result}"})


def _json_call(text: str) -> Call:
    found = read_object(text)
    if unknown := found.keys() - {"tool", "args"}:
        raise ValueError(f"an object with the unknown key {min(unknown)!r}")
    name, arguments = found.get("tool"), found.get("args", {})
    if not isinstance(name, str):
        raise ValueError("an object whose `tool` is missing or no text")
    if not isinstance(arguments, dict):
        raise ValueError("an object whose `args` is no object")
    return Call("", name, arguments)


_FENCE = re.compile(r"(?P<fence>`{3,}|~{3,})[^\n`]*\n(?P<inner>.*)\n[ \t]*(?P<end>`{3,}|~{3,})", re.DOTALL)


def unfence(text: str) -> str:
    """The inside of a fenced block that is all of `text`, else `text`.

    The closing fence is of the same kind and at least as long as the opening one, as in CommonMark, and is the last
    line; shorter fences inside are content.
    """
    found = _FENCE.fullmatch(text.strip())
    if found is None or found["end"][0] != found["fence"][0] or len(found["end"]) < len(found["fence"]):
        return text
    return found["inner"]


# -- reading an answer that may lack anything ----------------------------------------------------------------


def message_of(answer: Mapping[str, JSON]) -> tuple[dict[str, JSON], str]:
    """The first choice's message ({} where there is none) and finish reason (`no choice` where there is none)."""
    choices = answer.get("choices")
    choice = choices[0] if isinstance(choices, list) and choices else None
    if not isinstance(choice, dict):
        return {}, "no choice"
    message = choice.get("message")
    return (message if isinstance(message, dict) else {}), str(choice.get("finish_reason") or "not given")


def text_of(message: Mapping[str, JSON]) -> str:
    """The content as text; of a list of parts, its text parts."""
    content = message.get("content")
    if isinstance(content, list):
        return "".join(str(part.get("text") or "") for part in content if isinstance(part, dict))
    return content if isinstance(content, str) else ""


def _raw_calls(message: Mapping[str, JSON]) -> list[JSON]:
    calls = message.get("tool_calls")
    return calls if isinstance(calls, list) else []


def _call(position: int, raw: JSON) -> Call:
    """A call as it came; one without a function becomes a call of the tool '' and is refused as unknown."""
    raw = raw if isinstance(raw, dict) else {}
    function = raw.get("function")
    function = function if isinstance(function, dict) else {}
    arguments = function.get("arguments")
    return Call(
        id=str(raw.get("id") or f"call_{position}"),
        name=str(function.get("name") or ""),
        arguments=arguments if isinstance(arguments, str | dict) else "",
    )


def _rest(raw: JSON) -> dict[str, JSON]:
    """What a provider hung on a call, such as a signature that must come back."""
    return {key: value for key, value in raw.items() if value is not None} if isinstance(raw, dict) else {}


def _echo(arguments: str | Mapping[str, JSON]) -> str:
    """Arguments as they go back in the history. Endpoints parse them, so broken ones go back as an empty object;
    the result says what was wrong with them."""
    if not isinstance(arguments, str):
        return json.dumps(arguments, ensure_ascii=False)
    try:
        json.loads(arguments)
    except (ValueError, RecursionError):
        return "{}"
    return arguments
