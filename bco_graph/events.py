"""What happens in a run, as small JSON events: one reducer for the log file, the stream and the terminal.

Every event has `v` (schema version, 1), `type` and `iteration`; the rest is by type:

run_started       name, method, iterations, tasks, sandbox, target, folder, candidates
node_started      node
node_ended        node, seconds
step_refused      step, reasons
step_failed       step, cause, reasons
evaluation        candidate, split, tasks, done (how many were there already)
task_done         candidate, split, task, kind, score, done, tasks, tokens, usd
candidate         candidate, parent, mean, coverage, passed, tasks, best
proposal          parent, name, mode, beliefs, mechanism, failure_mode
prediction        digest, confidence, mode, beliefs, tasks, types, expected, low, high
grade             candidate, verdict, cause, subset_change, losses, bound
beliefs           changes (op, id, confidence before and after)
spend             totals by role
run_ended         stop, best, mean, baseline
run_failed        error (class), message
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from bco_graph.receipts import dumps

EVENT_VERSION = 1
Event = dict[str, Any]


class Events:
    """Appends to events.jsonl, hands each event to the subscribers, and to the LangGraph stream inside a node."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._lock = threading.Lock()
        self._subscribers: list[Callable[[Event], None]] = []

    def subscribe(self, subscriber: Callable[[Event], None]) -> None:
        self._subscribers.append(subscriber)

    def emit(self, type: str, iteration: int, **facts: Any) -> None:
        event = {"v": EVENT_VERSION, "at": round(time.time(), 3), "type": type, "iteration": iteration, **facts}
        with self._lock, self._path.open("a", encoding="utf-8") as file:
            file.write(dumps(event) + "\n")
        for subscriber in self._subscribers:
            subscriber(event)
        _stream(event)


def _stream(event: Event) -> None:
    from langgraph.config import get_stream_writer

    try:
        writer = get_stream_writer()
    except (RuntimeError, KeyError):
        return  # outside of a graph
    writer(event)
