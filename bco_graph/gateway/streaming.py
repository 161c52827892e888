"""Replies that come in piece by piece, for the calls that somebody listens to: read, put together, told without keys.

What is recorded of such a call is what a plain one would have given. An endpoint that refuses to stream is asked
plainly from then on.
"""

from __future__ import annotations

import json
import re
from collections.abc import AsyncIterator, Callable, Mapping

from bco_graph.errors import RequestRejected
from bco_graph.gateway.replies import storable
from bco_graph.protocols import Hear
from bco_graph.redaction import Redactor, Rolling
from bco_graph.state import JSON

Take = Callable[[Mapping[str, JSON]], None]
"""Given what the first choice said last, as `Pieces.add` returns it."""
_ABOUT_STREAMS = re.compile(r"\bstream", re.IGNORECASE)
_REFUSED_PARAMETER = re.compile(r'"param"\s*:\s*"stream')
_WHOLE = frozenset({"role", "type", "id", "format", "index"})
"""Fields whose texts come whole, in one piece or again and again; of others, pieces are joined."""


def refuses_to_stream(error: RequestRejected) -> bool:
    """Whether an error is about streaming, by its message or the parameter that it names."""
    return bool(_ABOUT_STREAMS.search(str(error)) or _REFUSED_PARAMETER.search(error.raw))


class Hearing:
    """What the listener of one call is told: texts without the keys in use, from each attempt anew."""

    def __init__(self, hear: Hear, redactor: Redactor) -> None:
        self._hear, self._redactor = hear, redactor
        self._told = False
        self._texts: dict[tuple[int, str], Rolling] = {}

    def begin(self) -> None:
        """An attempt begins; what was told of one before it counts no more."""
        if self._told:
            self._say(None)
        self._told, self._texts = False, {}

    def take(self, delta: Mapping[str, JSON]) -> None:
        """What the model said last, as `Pieces.add` gives it."""
        told: dict[str, JSON] = {}
        if text := self._text(-1, "content").take(delta.get("content") or ""):
            told["content"] = text
        if calls := [call for raw in delta.get("tool_calls") or [] if len(call := self._call(raw)) > 1]:
            told["tool_calls"] = calls
        self._tell(told)

    def end(self) -> None:
        """The reply is whole: tell what was held back."""
        kept = {place: text.end() for place, text in self._texts.items()}
        told: dict[str, JSON] = {"content": text} if (text := kept.get((-1, "content"))) else {}
        calls = [
            {"index": at, **({"function": {name: text}} if name != "id" else {name: text})}
            for (at, name), text in kept.items()
            if text and at >= 0
        ]
        self._tell({**told, **({"tool_calls": calls} if calls else {})})

    def _call(self, raw: Mapping[str, JSON]) -> dict[str, JSON]:
        at, function = raw["index"], raw.get("function") or {}
        said = {
            name: self._text(at, name).take(text) for name, text in {"id": raw.get("id"), **function}.items() if text
        }
        if "arguments" in function:  # the name before them is whole
            said |= {name: said.get(name, "") + self._text(at, name).end() for name in ("id", "name")}
        said = {name: text for name, text in said.items() if text}
        call_id = {"id": said.pop("id")} if "id" in said else {}
        return {"index": at, **call_id, **({"function": said} if said else {})}

    def _text(self, at: int, name: str) -> Rolling:
        return self._texts.setdefault((at, name), self._redactor.rolling())

    def _tell(self, told: dict[str, JSON]) -> None:
        if told:
            self._told = True
            self._say(storable(told))

    def _say(self, told: dict[str, JSON] | None) -> None:
        try:
            self._hear(told)
        except Exception:  # whatever is wrong with who listens, or gone: the call is paid, and goes on
            self._hear = lambda _: None


class Pieces:
    """Puts the chunks of a streamed completion together to the one that a plain call would have given."""

    def __init__(self) -> None:
        self._head: dict[str, JSON] = {}
        self._choices: dict[int, dict[str, JSON]] = {}
        self._places: dict[int, list[JSON]] = {}
        """By choice, the index under which each of its tool calls goes."""

    def add(self, chunk: Mapping[str, JSON]) -> dict[str, JSON]:
        """Take in a chunk. Returns what it adds to the first choice: `content`, a text, and `tool_calls`, each with
        its position as `index`, and `id` and `function` as far as they came."""
        self._head |= {name: value for name, value in chunk.items() if name != "choices" and value is not None}
        told: dict[str, JSON] = {}
        choices = chunk.get("choices")
        for raw in choices if isinstance(choices, list) else []:
            choice, told_here = self._choice(raw) if isinstance(raw, Mapping) else ({}, {})
            told = told_here if choice.get("index") == 0 else told
        return told

    @property
    def ended(self) -> bool:
        """Whether a choice has its finish reason."""
        return any(choice["finish_reason"] for choice in self._choices.values())

    def whole(self) -> dict[str, JSON]:
        choices = [self._choices[index] for index in sorted(self._choices)]
        for message in (choice["message"] for choice in choices):
            if message.get("tool_calls") and not message.get("content"):
                message["content"] = None
        return {**self._head, "object": "chat.completion", "choices": choices}

    def _choice(self, raw: Mapping[str, JSON]) -> tuple[dict[str, JSON], dict[str, JSON]]:
        told_index = raw.get("index")
        index = told_index if isinstance(told_index, int) else 0
        choice = self._choices.setdefault(index, {"index": index, "finish_reason": None, "message": {}})
        choice["finish_reason"] = raw.get("finish_reason") or choice["finish_reason"]
        if raw.get("logprobs") is not None:
            choice["logprobs"] = _joined(choice.get("logprobs"), raw["logprobs"])
        delta = raw.get("delta")
        delta = delta if isinstance(delta, Mapping) else {}
        message = choice["message"]
        message |= {k: _joined(message.get(k), v, k) for k, v in delta.items() if k != "tool_calls" and v is not None}
        calls = delta.get("tool_calls")
        told = [self._call(index, message, call) for call in calls or [] if isinstance(call, Mapping)]
        return choice, {"content": _text(delta.get("content")), "tool_calls": told}

    def _call(self, choice: int, message: dict[str, JSON], raw: Mapping[str, JSON]) -> dict[str, JSON]:
        calls, places = message.setdefault("tool_calls", []), self._places.setdefault(choice, [])
        at = _position(calls, places, raw)
        if at == len(calls):
            calls.append({})
            places.append(raw.get("index"))
        call, function = calls[at], raw.get("function")
        call |= {k: _joined(call.get(k), v, k) for k, v in raw.items() if k not in ("index", "function")}
        told: dict[str, JSON] = {"index": at, "id": raw.get("id"), "function": {}}
        if isinstance(function, Mapping):
            held = call.setdefault("function", {})
            name = None if function.get("name") == held.get("name") else function.get("name")
            new = {**function, "name": name}
            held |= {k: _joined(held.get(k), v, k) for k, v in new.items() if v is not None}
            told["function"] = {k: _said(new[k]) for k in ("name", "arguments") if new.get(k) is not None}
        return told


def _position(calls: list[dict[str, JSON]], places: list[JSON], raw: Mapping[str, JSON]) -> int:
    """Which call a piece belongs to; a new one where its index or its id is new. Some endpoints give all calls one
    index, others none."""
    index, call_id, function = raw.get("index"), raw.get("id"), raw.get("function")
    named = isinstance(function, Mapping) and bool(function.get("name"))
    for at in range(len(calls) - 1, -1, -1):
        if index is not None and places[at] != index:
            continue
        held = calls[at].get("id")
        if call_id and held and call_id != held:
            continue
        another = index is None and not call_id and named and bool((calls[at].get("function") or {}).get("name"))
        return len(calls) if another else at
    return len(calls)


def _joined(held: JSON, new: JSON, name: str = "") -> JSON:
    """What was held of a field, and what came: texts one after the other, lists by the `index` of their items."""
    if new is None or (new == "" and held is not None):
        return held
    if held is None:
        return new
    if isinstance(held, str) and isinstance(new, str):
        return new if name in _WHOLE else held + new
    if isinstance(held, Mapping) and isinstance(new, Mapping):
        return {**held, **{key: _joined(held.get(key), value, key) for key, value in new.items()}}
    if isinstance(held, list) or isinstance(new, list):
        return _listed(held, new)
    return new


def _listed(held: JSON, new: JSON) -> list[JSON]:
    """Two lists as one; a text beside a list is a part of it, as in a message's content."""
    joined, more = (
        list(side) if isinstance(side, list) else [{"type": "text", "text": side}] if side else []
        for side in (held, new)
    )
    for item in more:
        if joined and _goes_on(joined[-1], item):
            joined[-1] = _joined(joined[-1], item)
        else:
            joined.append(item)
    return joined


def _goes_on(last: JSON, item: JSON) -> bool:
    both = isinstance(last, Mapping) and isinstance(item, Mapping)
    return both and item.get("index") is not None and all(last.get(k) == item.get(k) for k in ("index", "type"))


def _text(content: JSON) -> str:
    """Content as text; of a list of parts, its text parts."""
    if isinstance(content, list):
        return "".join(_said(part.get("text") or "") for part in content if isinstance(part, Mapping))
    return content if isinstance(content, str) else ""


def _said(value: JSON) -> str:
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)


async def events_in(bodies: AsyncIterator[bytes]) -> AsyncIterator[str]:
    """The data of each server-sent event of a body that comes in parts, the last one whether or not it was ended."""
    rest, said = b"", list[str]()
    async for body in bodies:
        *lines, rest = (rest + body).split(b"\n")
        for line in lines:
            text = line.decode("utf-8", "replace").rstrip("\r")
            if text.startswith("data:"):
                said.append(text.removeprefix("data:").removeprefix(" "))
            elif not text and said:
                yield "\n".join(said)
                said = []
    if rest.startswith(b"data:"):
        said.append(rest.decode("utf-8", "replace").removeprefix("data:").strip())
    if said:
        yield "\n".join(said)
