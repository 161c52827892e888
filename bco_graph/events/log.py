"""The event log: what is emitted goes to events.jsonl, to subscribers and into the LangGraph stream; and its reader."""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from bco_graph.events.schema import EVENT_VERSION, Event, EventType
from bco_graph.events.view import View, reduce
from bco_graph.receipts import dumps


class Events:
    """Appends to events.jsonl, hands each event to the subscribers, and to the LangGraph stream inside a node.

    `view` is where the run stands by the events of this process. Safe to use from several threads.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self.view = View()
        self._lock = threading.Lock()
        self._subscribers: list[Callable[[Event], None]] = []
        self._unstreamed: list[Event] = []
        self._unheard: list[Event] = []
        _end_torn_line(path)

    def subscribe(self, subscriber: Callable[[Event], None]) -> None:
        """Hand over each event from now on; the first one also gets the warnings of the time before the run started."""
        self._subscribers.append(subscriber)
        with self._lock:
            unheard, self._unheard = self._unheard, []
        for event in unheard:
            subscriber(event)

    def emit(self, type: EventType, iteration: int, **facts: Any) -> None:
        event = self._tell(type, iteration, facts)
        with self._lock:
            waiting, self._unstreamed = self._unstreamed, []
        for streamed in (*waiting, event):
            _stream(streamed)

    def warn(self, about: str, message: str) -> None:
        """Say that something beside the run went wrong, from any thread; it enters the stream before the next event."""
        event = self._tell("warning", self.view.iteration, {"about": about, "message": message})
        with self._lock:
            self._unstreamed.append(event)
            if not self._subscribers and not self.view.name:
                self._unheard.append(event)

    def _tell(self, type: EventType, iteration: int, facts: dict[str, Any]) -> Event:
        event = {"v": EVENT_VERSION, "at": round(time.time(), 3), "type": type, "iteration": iteration, **facts}
        with self._lock, self.path.open("a", encoding="utf-8") as file:
            file.write(dumps(event) + "\n")
            self.view = reduce(self.view, event)
        for subscriber in self._subscribers:
            subscriber(event)
        return event


def _end_torn_line(path: Path) -> None:
    """A line that a crash tore gets its end, so that the next event is not lost with it."""
    if not path.exists() or path.stat().st_size == 0:
        return
    with path.open("rb+") as file:
        file.seek(-1, 2)
        if file.read(1) != b"\n":
            file.write(b"\n")


def _stream(event: Event) -> None:
    from langgraph.config import get_stream_writer

    try:
        writer = get_stream_writer()
    except (RuntimeError, KeyError):
        return  # outside of a graph
    writer(event)


class Tail:
    """What was appended to the log since the last look; from the beginning where it was replaced.

    A last line without its newline is still being written and waits for the rest. A torn line becomes an event
    `unreadable`. `position` is how many bytes the events so far took, the one that was yielded last included.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        self._restart()

    def _restart(self) -> None:
        self.position = 0
        self._offset, self._rest, self._line = 0, b"", 0

    def read(self) -> Iterator[Event]:
        if not self._path.exists():
            return
        if self._path.stat().st_size < self._offset:
            self._restart()
        with self._path.open("rb") as file:
            file.seek(self._offset)
            for raw in file:
                self._offset += len(raw)
                self._rest += raw
                if raw.endswith(b"\n"):
                    self._line += 1
                    whole, self._rest = self._rest, b""
                    self.position = self._offset
                    yield self._parse(whole)

    def _parse(self, raw: bytes) -> Event:
        try:
            event = json.loads(raw)
        except (ValueError, RecursionError):
            event = None
        if isinstance(event, dict) and isinstance(event.get("type"), str):
            return event
        return {"v": EVENT_VERSION, "at": time.time(), "type": "unreadable", "iteration": 0, "line": self._line}
