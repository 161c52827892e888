"""Chat completions as they come back: made whole, made storable, counted, and told as server-sent events."""

from __future__ import annotations

import functools
import json
import math
from collections.abc import Mapping
from dataclasses import dataclass

from bco_graph.receipts import dumps
from bco_graph.state import JSON


def storable(value: JSON) -> JSON:
    """The value as strict JSON that SQLite takes: lone surrogates become U+FFFD, NaN and infinities null."""
    if isinstance(value, str):
        try:
            value.encode()
        except UnicodeEncodeError:
            return value.encode("utf-16", "surrogatepass").decode("utf-16", "replace")
        return value
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, Mapping):
        return {storable(str(key)): storable(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [storable(item) for item in value]
    return value


@functools.lru_cache(maxsize=256)
def quoted(name: str) -> str:
    """A name that comes again and again as JSON text."""
    return dumps(name)


def whole(raw: Mapping[str, JSON]) -> dict[str, JSON]:
    """A completion that callers can index: `choices[0].message` is always there, its content possibly None.

    Empty choices, a null message and null content are answers without text, not faults: they come out as content
    None with the finish reason that the model gave, or `empty`. Fields that are null are left out, content apart.
    """
    choices = [_choice(choice, index) for index, choice in enumerate(raw.get("choices") or [])]
    kept = {key: value for key, value in raw.items() if key not in ("choices", "usage") and value is not None}
    return {
        **kept,
        "object": "chat.completion",
        "choices": choices or [_choice({"finish_reason": "empty"}, 0)],
        "usage": _without_nulls(_mapping(raw.get("usage"))),
    }


def _choice(choice: Mapping[str, JSON], index: int) -> dict[str, JSON]:
    message = dict(choice.get("message") or {})
    calls = message.get("tool_calls")
    message["tool_calls"] = [call for call in calls if isinstance(call, Mapping)] if isinstance(calls, list) else None
    said = {key: value for key, value in message.items() if value is not None and value != {} and value != []}
    extra = {key: value for key, value in choice.items() if key == "logprobs" and value is not None}
    return {
        **extra,
        "index": index,
        "finish_reason": choice.get("finish_reason") or "empty",
        "message": {**said, "role": "assistant", "content": message.get("content")},
    }


def _without_nulls(value: JSON) -> JSON:
    if isinstance(value, Mapping):
        return {key: _without_nulls(item) for key, item in value.items() if item is not None}
    return value


@dataclass(frozen=True, slots=True)
class Usage:
    """Tokens of one completion. `prompt` includes `cached` and `written`, `completion` includes `reasoning`."""

    prompt: int
    completion: int
    cached: int = 0
    written: int = 0
    reasoning: int = 0


NO_USAGE = Usage(0, 0)
_MOST_TOKENS = 1_000_000_000
"""More than any call has; a larger count is no measurement."""


def usage_of(reply: Mapping[str, JSON]) -> Usage | None:
    """The usage that a completion reports, or None where it reports none that can be."""
    usage = _mapping(reply.get("usage"))
    prompt, completion = _count(usage.get("prompt_tokens")), _count(usage.get("completion_tokens"))
    if (prompt == 0 and completion == 0) or max(prompt, completion) > _MOST_TOKENS:
        return None
    details, answer = _mapping(usage.get("prompt_tokens_details")), _mapping(usage.get("completion_tokens_details"))
    return Usage(
        prompt,
        completion,
        min(prompt, _count(details.get("cached_tokens"))),
        min(prompt, _count(details.get("cache_creation_tokens"))),
        min(completion, _count(answer.get("reasoning_tokens"))),
    )


def _count(value: JSON) -> int:
    return value if isinstance(value, int) and not isinstance(value, bool) and value > 0 else 0


def _mapping(value: JSON) -> Mapping[str, JSON]:
    return value if isinstance(value, Mapping) else {}


def text_bytes(request: Mapping[str, JSON]) -> int:
    """UTF-8 bytes of what a request makes the model read: texts and tools, pictures not."""
    return sum(_message_bytes(message) for message in request["messages"]) + _json_bytes(request.get("tools"))


def _message_bytes(message: Mapping[str, JSON]) -> int:
    content = message.get("content")
    parts = content if isinstance(content, list) else [{"text": content}]
    texts = [part.get("text") for part in parts if isinstance(part, Mapping)]
    said = sum(len(text.encode()) for text in texts if isinstance(text, str))
    return said + _json_bytes(message.get("tool_calls"))


def _json_bytes(value: JSON) -> int:
    return len(json.dumps(value, ensure_ascii=False).encode()) if value else 0


def estimated_tokens(byte_count: int) -> int:
    """About 4 bytes a token, in English text and code."""
    return (byte_count + 3) // 4


def events(reply: Mapping[str, JSON], *, usage: bool) -> bytes:
    """A whole completion as the server-sent events that a streaming client waits for."""
    head = {key: reply[key] for key in ("id", "created", "model") if key in reply}
    head["object"] = "chat.completion.chunk"
    chunks: list[dict[str, JSON]] = []
    for choice in reply["choices"]:
        calls = [{"index": position, **call} for position, call in enumerate(choice["message"].get("tool_calls") or [])]
        delta = {**choice["message"], **({"tool_calls": calls} if calls else {})}
        told = {"logprobs": choice["logprobs"]} if "logprobs" in choice else {}
        chunks.append({**head, "choices": [{"index": choice["index"], "delta": delta, **told, "finish_reason": None}]})
        end = {"index": choice["index"], "delta": {}, "finish_reason": choice["finish_reason"]}
        chunks.append({**head, "choices": [end]})
    if usage:
        chunks.append({**head, "choices": [], "usage": reply["usage"]})
    lines = [json.dumps(chunk, ensure_ascii=False) for chunk in chunks]
    return "".join(f"data: {line}\n\n" for line in [*lines, "[DONE]"]).encode()
