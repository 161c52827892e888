"""Feeds a sink from the event log, on a thread of its own, from where it stopped the last time.

The log is the queue: a sink that blocks holds nothing up and loses nothing, and one that is new to a run gets all of
it. How far a sink has come is kept beside the log, in `sinks/NAME.json`, with the ids of what it writes to.
"""

from __future__ import annotations

import atexit
import json
import logging
import threading
import time
from collections.abc import Mapping, Sequence
from pathlib import Path

from bco_graph.candidates import CandidateStore
from bco_graph.config import RunConfig
from bco_graph.events import Event, Events, Tail, View, reduce, repeated
from bco_graph.protocols import Sink, SinkRun
from bco_graph.run_folder import DOCUMENTS, RunFolder, write_text
from bco_graph.sinks.figures import settings
from bco_graph.state import candidate_id

PAUSE_S = 0.5
"""Between two looks at the log, so that the tasks of an evaluation go out together."""
CLOSE_S = 20.0
"""How long all sinks together may take when the run is closed."""


class Feed:
    """One sink of one opened run. `name` is its own within the run folder."""

    def __init__(self, name: str, sink: Sink, folder: RunFolder, config: RunConfig, events: Events) -> None:
        self.name = name
        self._sink = sink
        self._folder = folder
        self._config = config
        self._events = events
        self._kept = folder.root / "sinks" / f"{name}.json"
        self._wake, self._stopping, self._left = threading.Event(), threading.Event(), threading.Event()
        # A daemon: a sink that hangs does not keep the process from ending.
        self._thread = threading.Thread(target=self._run, name=f"bco-sink-{name}", daemon=True)

    def start(self) -> None:
        self._events.subscribe(self._on_event)
        self._thread.start()

    def _on_event(self, event: Event) -> None:
        self._wake.set()

    def stop(self) -> None:
        self._stopping.set()
        self._wake.set()

    def join(self, seconds: float) -> None:
        """Wait for the end, at most so long; then leave the sink behind, with a warning."""
        atexit.unregister(self._at_exit)
        self._thread.join(seconds)
        if self._thread.is_alive():
            self._left.set()
            self._warn("did not finish in time; what it lacks is sent when the run is opened again")

    def _at_exit(self) -> None:
        self.stop()
        self.join(CLOSE_S)

    def _warn(self, message: str) -> None:
        self._events.warn(f"sink {self.name.rpartition('-')[0]}", message)

    # -- on the thread -----------------------------------------------------------------------------------------

    def _run(self) -> None:
        try:
            self._feed()
        except (Exception, SystemExit) as error:
            # Whatever a library of somebody else's raises: it is beside the run, which goes on.
            if not self._left.is_set():
                self._warn(f"switched off after {type(error).__name__}: {error}")

    def _feed(self) -> None:
        for library in ("opentelemetry", "urllib3"):
            # Their tries and failures are not for the terminal: a failure becomes a warning of ours.
            logging.getLogger(library).addHandler(logging.NullHandler())
        ids, position = self._read()
        run = SinkRun(self._config.name, self._folder.root, settings(self._config), ids)
        ids = self._sink.open(run)
        # After the sink's library has put in its own hook, so that ours comes before it.
        atexit.register(self._at_exit)
        if position > _size(self._folder.events):
            position = 0  # the log is another one now
        self._write(ids, position)
        tail, view = Tail(self._folder.events), View()
        while not self._left.is_set():
            last_look = self._stopping.is_set()
            for event in tail.read():
                known = tail.position <= position or repeated(view, event)
                view = reduce(view, event)
                if not known:
                    self._sink.take(event, view)
            if tail.position > position:
                position = tail.position
                self._sink.flush()
                self._write(ids, position)
            if last_look:
                self._sink.close(view, artifacts(self._folder, view))
                return
            self._wake.wait()
            self._wake.clear()
            self._stopping.wait(PAUSE_S)

    def _read(self) -> tuple[Mapping[str, str], int]:
        try:
            kept = json.loads(self._kept.read_text(encoding="utf-8"))
        except FileNotFoundError:
            return {}, 0
        return kept["ids"], kept["position"]

    def _write(self, ids: Mapping[str, str], position: int) -> None:
        if not self._left.is_set():
            write_text(self._kept, json.dumps({"ids": dict(ids), "position": position}) + "\n", durable=True)


class Feeds:
    """All sinks of an opened run."""

    def __init__(self, feeds: Sequence[Feed] = ()) -> None:
        self._feeds = feeds

    @classmethod
    def started(cls, sinks: Mapping[str, Sink], folder: RunFolder, config: RunConfig, events: Events) -> Feeds:
        feeds = [Feed(name, sink, folder, config, events) for name, sink in sinks.items()]
        for feed in feeds:
            feed.start()
        return cls(feeds)

    def close(self, *, within_s: float = CLOSE_S) -> None:
        """Let every sink take what is in the log, and close it. Returns in about `within_s` seconds at most."""
        feeds, self._feeds = self._feeds, ()
        for feed in feeds:
            feed.stop()
        limit = time.monotonic() + within_s
        for feed in feeds:
            feed.join(max(0.0, limit - time.monotonic()))


def _size(path: Path) -> int:
    return path.stat().st_size if path.exists() else 0


def artifacts(folder: RunFolder, view: View) -> dict[str, str]:
    """The method's document, and what the best candidate changed in the untouched scaffold; by file name."""
    found = {
        name: (folder.root / name).read_text(encoding="utf-8", errors="replace")
        for name in DOCUMENTS.values()
        if name and (folder.root / name).exists()
    }
    if view.best not in (None, candidate_id(0)):
        store = CandidateStore(folder.candidates)
        found["best.diff"] = store.diff(store.tree(candidate_id(0)), store.tree(str(view.best)))
    return found
