"""How each in-process model is spoken to: its prompt, where it stops, what of a request it takes."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from bco_graph.errors import RequestRejected
from bco_graph.state import JSON

SAMPLING = ("temperature", "top_p", "top_k", "min_p", "seed", "frequency_penalty", "presence_penalty")
_TAKEN = frozenset({"messages", "max_tokens", "max_completion_tokens", "stop", "response_format", "n", *SAMPLING})

Message = tuple[str, str]
"""Role and text."""


@dataclass(frozen=True)
class Kind:
    """How one model is spoken to. `max_window` is what it was trained for, in tokens."""

    max_window: int
    render: Callable[[Any, Sequence[Message]], str]
    stop: tuple[str, ...]


def refuse_unknown(name: str, request: Mapping[str, JSON]) -> None:
    """Raises RequestRejected for what would otherwise be ignored: tools, reasoning_effort, n > 1 and the like."""
    asked = {key for key, value in request.items() if value is not None and value != []}
    unknown = sorted(asked - _TAKEN)
    if unknown or request.get("n") not in (None, 1):
        what = ", ".join(unknown) or "n > 1"
        raise RequestRejected(f"local/{name} does not take {what}; it takes {', '.join(sorted(_TAKEN))}", status=400)


def message_of(message: Mapping[str, JSON]) -> Message:
    """A message of a request, its text parts joined; raises RequestRejected for pictures and sounds."""
    content = message.get("content") or ""
    if isinstance(content, list):
        if any(not isinstance(part, Mapping) or part.get("type", "text") != "text" for part in content):
            raise RequestRejected("models in this process read text only", status=400)
        content = "\n".join(str(part.get("text", "")) for part in content)
    return str(message.get("role", "user")), str(content)


def _chat(llama: Any, messages: Sequence[Message]) -> str:
    """SmolLM2's own template, as its file carries it."""
    from llama_cpp.llama_chat_format import Jinja2ChatFormatter

    formatter = Jinja2ChatFormatter(
        template=llama.metadata["tokenizer.chat_template"], bos_token="<|im_start|>", eos_token="<|im_end|>"
    )
    shown: list[Any] = [{"role": role, "content": content} for role, content in messages]
    return str(formatter(messages=shown).prompt)


def _questions(_: Any, messages: Sequence[Message]) -> str:
    """Plain text for a model that knows no chat. Of three forms tried, this one gave the shortest, best answers."""
    names = {"user": "Question: ", "assistant": "Answer: "}
    return "\n\n".join(names.get(role, "") + content for role, content in messages) + "\nAnswer:"


def stops_of(stop: JSON) -> list[str]:
    """Raises RequestRejected for what is neither a text nor a list."""
    if stop is not None and not isinstance(stop, str | list):
        raise RequestRejected(f"stop is {str(stop)[:80]!r}; expected a text or a list of texts", status=400)
    return [stop] if isinstance(stop, str) else [str(item) for item in stop or []]


def grammar_of(llama_cpp: Any, response_format: JSON) -> Any:
    """A grammar that holds the reply to JSON, or to a JSON schema, where the request asks for one."""
    asked = response_format if isinstance(response_format, Mapping) else {"type": response_format or "text"}
    kind = asked.get("type", "text")
    if kind == "text":
        return None
    named = asked.get("json_schema")
    schema: JSON = (named.get("schema") if isinstance(named, Mapping) else None) if kind == "json_schema" else None
    if kind == "json_object":
        schema = asked.get("schema") or {"type": "object"}
    if not isinstance(schema, Mapping):
        raise RequestRejected(
            f"response_format is {kind!r}; expected text, json_object or json_schema with a schema", status=400
        )
    return llama_cpp.LlamaGrammar.from_json_schema(json.dumps(schema), verbose=False)


KINDS: Mapping[str, Kind] = {
    "smollm2-135m": Kind(8192, _chat, ("<|im_end|>",)),
    "gemma3-270m": Kind(32768, _questions, ("\n",)),
}
