"""Opens a run folder for reading: its manifest, its receipts, and what both say together. Nothing is changed."""

from __future__ import annotations

import fcntl
import json
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

from bco_graph.candidates import CandidateStore
from bco_graph.config import check_config, nearest
from bco_graph.errors import ConfigError, RunUnreadable
from bco_graph.events import Event
from bco_graph.receipts import Receipts
from bco_graph.records import CandidateRecord, Records
from bco_graph.run_folder import RunFolder
from bco_graph.state import JSON

BLOCK_BYTES = 1 << 16


@dataclass(frozen=True)
class Reading:
    """`config` is the resolved config as JSON, as the run was made with it."""

    folder: RunFolder
    manifest: dict[str, Any]
    config: dict[str, Any]
    receipts: Receipts

    @cached_property
    def records(self) -> Records:
        return Records(self.receipts)

    @property
    def method(self) -> str:
        return str(self.config["method"])

    def candidates(self) -> dict[str, CandidateRecord]:
        """Evaluated candidates by id, in the order of iterations."""
        return {record["candidate"]: record for record in self.records.candidates()}

    def best(self) -> str | None:
        """By the one ranking function; the baseline takes part. None while nothing is eligible."""
        best = self.records.best(self.config["evaluation"]["coverage_floor"])
        return best["id"] if best else None

    def candidate(self, name: str) -> CandidateRecord:
        """The record of an evaluated candidate; raises ConfigError with the nearest id."""
        known = self.candidates()
        if name not in known:
            raise ConfigError(
                f"{name!r} is no evaluated candidate of {self.folder.root}{nearest(name, known)}; "
                f"there are: {some(list(known))}"
            )
        return known[name]

    def store(self) -> CandidateStore:
        if not self.folder.candidates.exists():
            raise RunUnreadable(f"{self.folder.root} has no candidate store ({self.folder.candidates.name})")
        return CandidateStore(self.folder.candidates)

    def failures(self, iteration: int | None = None) -> list[dict[str, JSON]]:
        """Each failed step once, in the order of iterations: iteration, step, cause, reasons."""
        found: dict[tuple[int, str], dict[str, JSON]] = {}
        for at, _, record in self.receipts.steps():
            if iteration in (None, at) and (failure := record.get("failure")):
                found.setdefault((at, failure["step"]), {"iteration": at, **failure})
        return list(found.values())

    def step(self, iteration: int, name: str) -> dict[str, JSON] | None:
        return self.receipts.step(iteration, name)


@contextmanager
def reading(folder: RunFolder) -> Iterator[Reading]:
    """Raises RunUnreadable where there is no run, or a torn or newer one."""
    manifest = folder.read()
    config = manifest.get("config")
    if not isinstance(config, dict):
        raise RunUnreadable(f"{folder.manifest} is torn: it has no config")
    folder.require_receipts()
    config = check_config(config, source=str(folder.manifest)).model_dump(mode="json")
    receipts = Receipts(folder.receipts)
    try:
        yield Reading(folder, manifest, config, receipts)
    finally:
        receipts.close()


def some(names: list[str], limit: int = 20) -> str:
    """The names for a message, the middle of a long list left out with its count."""
    if len(names) <= limit:
        return ", ".join(names) or "none"
    half = limit // 2
    return ", ".join([*names[:half], f"... ({len(names) - 2 * half} more)", *names[-half:]])


def is_running(folder: RunFolder) -> bool:
    """Whether a live process on this machine holds the run. A lock whose owner died is not held."""
    path = folder.root / "LOCK"
    try:
        with path.open(encoding="utf-8", errors="replace") as file:
            if not file.read().strip():
                return False  # let go in order; a run that starts now is not disturbed by a probe
            fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except FileNotFoundError:
        return False
    except OSError:
        return True
    return False


def last_run_event(path: Path) -> Event | None:
    """The last `run_started`, `run_ended` or `run_failed` of an event log, found from its end."""
    if not path.exists():
        return None
    with path.open("rb") as file:
        position = file.seek(0, 2)
        tail = b""
        while position > 0:
            size = min(BLOCK_BYTES, position)
            position -= size
            file.seek(position)
            lines = (file.read(size) + tail).split(b"\n")
            tail = lines[0]
            for line in reversed(lines[1:] if position else lines):
                if b'"type":"run_' in line and (event := _event(line)):
                    return event
    return None


def _event(line: bytes) -> Event | None:
    try:
        event = json.loads(line)
    except (ValueError, RecursionError):
        return None
    return event if isinstance(event, dict) and str(event.get("type", "")).startswith("run_") else None
