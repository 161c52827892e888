"""Parameters that an endpoint refuses: named in a clear error, or left out, on record, where the config says so."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass, field

from bco_graph.errors import ModelCallError, RequestRejected
from bco_graph.gateway.deployments import Deployed
from bco_graph.gateway.pinning import Pinned
from bco_graph.state import JSON

BY_SETTING = "litellm_settings.drop_params"
_NEVER_DROPPED = frozenset({
    "messages", "tools", "tool_choice", "response_format", "max_tokens", "max_completion_tokens",
})  # fmt: skip
"""Without these a request would say something else, or a reply would have no limit."""


@dataclass
class Dropping:
    """Remembers what each deployment refused, so that it is asked once."""

    _refused: dict[str, dict[str, str]] = field(default_factory=dict)

    def known(self, deployed: Deployed, pinned: Pinned, changes: dict[str, JSON]) -> Pinned:
        """The request without what is known to be refused; `changes` is added to."""
        for name, by in {**deployed.left_out, **self._refused.get(deployed.name, {})}.items():
            if name in pinned.request:
                pinned = _without(pinned, name, by, changes)
        return pinned

    def refused(self, deployed: Deployed, pinned: Pinned, error: RequestRejected) -> None:
        """Remember the parameter that an error names. Raises the error where it names none, and one that says what to
        do where the parameter may not be left out."""
        name = refused_parameter(error, pinned.request)
        if name is None:
            raise error
        if not deployed.drop_params or name in _NEVER_DROPPED:
            advice = "" if name in _NEVER_DROPPED else f", or set {BY_SETTING}: true to leave out what is refused"
            raise RequestRejected(
                f"the deployment {deployed.name!r} ({deployed.model}) does not take the parameter {name!r}: {error}; "
                f"take it out of its litellm_params or of what the caller asks{advice}",
                status=error.status,
                raw=error.raw,
            ) from error
        self._refused.setdefault(deployed.name, {})[name] = BY_SETTING


def _without(pinned: Pinned, name: str, by: str, changes: dict[str, JSON]) -> Pinned:
    changes[name] = {"asked": pinned.request[name], "by": by}
    return Pinned.of({key: value for key, value in pinned.request.items() if key != name}, pinned.changes)


def refused_parameter(error: ModelCallError, request: Mapping[str, JSON]) -> str | None:
    """The parameter of the request that a 400 or 422 is about: `error.param` of its body, else the first that its
    message names."""
    if error.status not in (400, 422):
        return None
    try:
        named = json.loads(error.raw)["error"]["param"]
    except (ValueError, KeyError, TypeError, RecursionError):
        named = None
    if isinstance(named, str) and named:
        name = re.split(r"[.\[]", named)[0]
        return name if name in request and name != "messages" else None
    found = {
        name: re.search(rf"(?<![\w-]){re.escape(name)}(?![\w-])", str(error)) for name in set(request) - {"messages"}
    }
    places = {name: match.start() for name, match in found.items() if match}
    return min(places, key=lambda name: places[name], default=None)
