"""What a person should hear of once: settings left out, parameters changed, another model that answered, drift."""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from bco_graph.receipts import dumps
from bco_graph.state import JSON

Tell = Callable[[str, str], None]
"""Takes what a warning is about, and its text."""

_NO_PARAMETERS = frozenset({"retries", "usage"})


@dataclass
class Notices:
    """Thread-safe. What is said before somebody listens waits for the first who does."""

    _said: set[tuple[str, ...]] = field(default_factory=set)
    _waiting: list[tuple[str, str]] = field(default_factory=list)
    _tell: Tell | None = None
    _prints: dict[tuple[str, str], str] = field(default_factory=dict)
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def listen(self, tell: Tell) -> None:
        with self._lock:
            self._tell = tell
            waiting, self._waiting = self._waiting, []
        for notice in waiting:
            tell(*notice)

    def say(self, about: str, message: str, *key: str) -> None:
        """Once for each `about` and key; without a key, once for each message."""
        with self._lock:
            if (mark := (about, *(key or (message,)))) in self._said:
                return
            self._said.add(mark)
            tell = self._tell
            if tell is None:
                self._waiting.append((about, message))
        if tell is not None:
            tell(about, message)

    def changed(self, deployment: str, changes: Mapping[str, Mapping[str, JSON]]) -> None:
        """Say of each parameter that was sent otherwise than asked, or not at all; the receipts have each case."""
        for name, change in changes.items():
            if name in _NO_PARAMETERS:
                continue
            sent = f"sent was {_short(change['sent'])}" if "sent" in change else "it was left out"
            by = f" ({change['by']})" if "by" in change else ""
            about = f"deployment {deployment}"
            self.say(about, f"{name}: asked was {_short(change.get('asked'))}, {sent}{by}", name)

    def answered(self, deployment: str, model: str, asked: str, fingerprint: JSON) -> None:
        """Say where another model than the deployment's answered, and where a model is no longer what it was."""
        about = f"deployment {deployment}"
        if model != asked:
            self.say(about, f"{model} answered in place of {asked}: the run's model is not one frozen model", model)
        if not isinstance(fingerprint, str):
            return
        before = self._prints.get((deployment, model))
        self._prints[deployment, model] = fingerprint
        if before not in (None, fingerprint):
            self.say("drift", f"{model} of {about}: system_fingerprint was {before}, now {fingerprint}", fingerprint)


def _short(value: JSON) -> str:
    text = dumps(value)
    return text if len(text) <= 60 else f"{text[:60]}..."
