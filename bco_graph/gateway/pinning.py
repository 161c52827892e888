"""The request that is sent: the frozen model and its parameters, whatever the caller asked for.

For the target, a scaffold decides what it says (messages, tools, the form of the reply, where to stop) and may ask
for a shorter reply than the deployment allows; everything else is the deployment's, and what the deployment does not
name is left out. For the other roles, the deployment's parameters win and the rest passes, but to a model that was
given in code with parameters of its own.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from bco_graph.errors import RequestRejected
from bco_graph.gateway.deployments import Deployed
from bco_graph.gateway.replies import quoted, storable
from bco_graph.receipts import dumps
from bco_graph.state import JSON

_SAID = frozenset({"messages", "tools", "tool_choice", "parallel_tool_calls", "response_format", "stop"})
_LENGTHS = ("max_tokens", "max_completion_tokens")
_MOST_TOKENS = 1_000_000_000
_OURS = frozenset({"model", "stream", "stream_options", *_LENGTHS})


@dataclass(frozen=True, slots=True)
class Pinned:
    """`request` is what goes upstream, without a model; `changes` maps a field to what was asked and what is sent
    (no `sent`: the field was left out). Both are strict JSON that can be stored.

    A request is written as JSON once, for its key, its receipt and the wire: `before` and `after` are the texts of
    the fields whose names sort before and after "model".
    """

    request: dict[str, JSON]
    changes: dict[str, JSON]
    before: str
    after: str

    @classmethod
    def of(cls, request: dict[str, JSON], changes: dict[str, JSON]) -> Pinned:
        """Raises ValueError for NaN, infinities and lone surrogates."""
        before = dumps({name: value for name, value in request.items() if name < "model"})
        after = dumps({name: value for name, value in request.items() if name > "model"})
        f"{before}{after}{dumps(changes) if changes else ''}".encode()  # raises for a lone surrogate
        return cls(request, changes, before, after)

    def text(self, model: str | None = None) -> str:
        """The request as `dumps` writes it, with this model in it (None: without one)."""
        named = "" if model is None else f'"model":{quoted(model)}'
        return f"{{{','.join(part for part in (self.before[1:-1], named, self.after[1:-1]) if part)}}}"

    @property
    def max_tokens(self) -> int | None:
        return self.request.get("max_tokens") or self.request.get("max_completion_tokens")


def pin(deployed: Deployed, asked: Mapping[str, JSON]) -> Pinned:
    """`asked` is parsed JSON. Raises RequestRejected where it has no messages or no usable length."""
    try:
        return _pinned(deployed, asked)
    except ValueError:  # what strict JSON cannot say is rare: it is looked for only where writing it failed
        return _pinned(deployed, storable(asked))


def _pinned(deployed: Deployed, asked: Mapping[str, JSON]) -> Pinned:
    _check_messages(asked.get("messages"))
    frozen = deployed.role == "target" or deployed.lane == "chat_model"
    request: dict[str, JSON] = {}
    changes: dict[str, JSON] = {}
    for name, value in asked.items():
        if name in _OURS or value is None:
            continue
        if name in deployed.parameters:
            if value != deployed.parameters[name]:
                changes[name] = {"asked": value, "sent": deployed.parameters[name]}
        elif name in _SAID or not frozen:
            request[name] = value
        else:
            changes[name] = {"asked": value}
    request |= {name: value for name, value in deployed.parameters.items() if name not in _LENGTHS}
    _pin_length(deployed, asked, request, changes)
    if asked.get("model") not in (None, "", deployed.name, deployed.role, deployed.model):
        changes["model"] = {"asked": asked["model"], "sent": deployed.model}
    return Pinned.of(request, changes)


def _check_messages(messages: JSON) -> None:
    if not isinstance(messages, list) or not messages or not all(isinstance(item, Mapping) for item in messages):
        raise RequestRejected(
            "the request needs 'messages', a list of at least one object such as "
            f"{{'role': 'user', 'content': '...'}}, not {str(messages)[:200]!r}",
            status=400,
        )


def _shown(value: JSON) -> str:
    text = repr(value)
    return text if len(text) <= 40 else f"{text[:40]}…"


def _pin_length(
    deployed: Deployed, asked: Mapping[str, JSON], request: dict[str, JSON], changes: dict[str, JSON]
) -> None:
    """The smaller of what the deployment allows and what the caller asks, under the deployment's name for it."""
    wanted = {name: asked[name] for name in _LENGTHS if asked.get(name) is not None}
    for name, value in wanted.items():
        if not isinstance(value, int) or isinstance(value, bool) or not 1 <= value <= _MOST_TOKENS:
            raise RequestRejected(f"{name} is {_shown(value)}; expected a number of tokens, at least 1", status=400)
    allowed = {name: deployed.parameters[name] for name in _LENGTHS if name in deployed.parameters}
    if not wanted and not allowed:
        return
    name = next(iter(allowed or wanted))
    request[name] = min([*wanted.values(), *allowed.values()])
    for asked_name, value in wanted.items():
        if (asked_name, value) != (name, request[name]):
            changes[asked_name] = {"asked": value, "sent": request[name]}
