"""The run folder: where everything of a run lies, who owns it, and what it was made with.

runs/NAME/
  run.json             resolved config, versions, prompt digests, target fingerprint, schema version
  LOCK                 held (flock) by the process that runs; says which
  receipts.sqlite      the truth: results, steps, calls, held-out accesses
  cache.sqlite         model responses by content
  checkpoints.sqlite   LangGraph's own
  candidates.git/      one commit per candidate
  events.jsonl         what happened, in order
  sinks/               ids of what sinks write to, and how far each has read the log
  workspace/           what the proposer sees, iterations/ among it
  iterations           -> workspace/iterations
  heldout/             rows of the held-out split; never in the workspace
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import shutil
import socket
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import IO, Any

from bco_graph.errors import RunExists, RunLocked, RunUnreadable
from bco_graph.state import Method, candidate_id
from bco_graph.strict_json import is_too_deep

RUN_SCHEMA_VERSION = 1
_SMALLEST_DATABASE = 512
DOCUMENTS: dict[Method, str | None] = {
    "bco": "world_model_calibration.md",
    "notes": "agent_notes.md",
    "vanilla": None,
}


@dataclass(frozen=True)
class RunFolder:
    root: Path

    @property
    def manifest(self) -> Path:
        return self.root / "run.json"

    @property
    def receipts(self) -> Path:
        return self.root / "receipts.sqlite"

    @property
    def checkpoints(self) -> Path:
        return self.root / "checkpoints.sqlite"

    @property
    def candidates(self) -> Path:
        return self.root / "candidates.git"

    @property
    def events(self) -> Path:
        return self.root / "events.jsonl"

    @property
    def workspace(self) -> Path:
        return self.root / "workspace"

    @property
    def heldout(self) -> Path:
        return self.root / "heldout"

    def iteration(self, number: int) -> Path:
        """The evidence of one iteration, made if it is not there."""
        folder = self.workspace / "iterations" / candidate_id(number)
        folder.mkdir(parents=True, exist_ok=True)
        return folder

    def exists(self) -> bool:
        return self.manifest.exists()

    def claim(self, *, fresh: bool, overwrite: bool) -> None:
        """Make the folders. Raises RunExists when a run is there and a `fresh` one is wanted without `overwrite`."""
        if fresh and self.exists() and not overwrite:
            raise RunExists(
                f"{self.root} already holds a run: continue it with `bco resume {self.root}`, give another name with "
                "`--name NAME`, or replace it with `--overwrite`"
            )
        if overwrite:
            _empty(self.root)
        (self.workspace / "iterations").mkdir(parents=True, exist_ok=True)
        self.show("iterations")

    def show(self, name: str) -> None:
        """Link what lies in the workspace at the top too. Raises RunUnreadable where something else has the name."""
        link = self.root / name
        if link.is_symlink():
            return
        if link.exists():
            raise RunUnreadable(
                f"{link} is no link to workspace/{name}, as in a copy that followed links: remove it, then go on "
                "(`cp -a` copies a run as it is)"
            )
        link.symlink_to(Path("workspace") / name)

    def write(self, manifest: dict[str, Any]) -> None:
        """Write run.json; the folder holds a run from then on."""
        text = json.dumps({"schema_version": RUN_SCHEMA_VERSION, **manifest}, indent=1, ensure_ascii=False)
        write_text(self.manifest, text + "\n", durable=True)

    def read(self) -> dict[str, Any]:
        """run.json, or RunUnreadable; nothing is changed."""
        try:
            manifest = json.loads(self.manifest.read_text(encoding="utf-8"))
        except FileNotFoundError as error:
            raise RunUnreadable(f"{self.root} holds no run (no run.json): `bco run CONFIG` makes one") from error
        except (OSError, ValueError, RecursionError) as error:
            raise RunUnreadable(f"{self.manifest} is torn or no JSON: {error}; it was left as it is") from error
        if is_too_deep(manifest):
            raise RunUnreadable(f"{self.manifest} is nested too deeply to be ours; it was left as it is")
        version = manifest.get("schema_version") if isinstance(manifest, dict) else None
        if not isinstance(version, int) or isinstance(version, bool):
            raise RunUnreadable(f"{self.manifest} has no schema_version: it was not written by bco-graph")
        if version > RUN_SCHEMA_VERSION:
            raise RunUnreadable(
                f"{self.manifest} has schema version {version}; this bco-graph reads up to {RUN_SCHEMA_VERSION}: "
                "upgrade it"
            )
        return dict(manifest)

    def require_receipts(self) -> None:
        """Raise RunUnreadable where a folder with a run has no receipts: an empty file would be taken for a start."""
        if not (self.receipts.exists() and self.receipts.stat().st_size):
            raise RunUnreadable(f"{self.receipts} is missing or empty although {self.root} holds a run: restore it")

    def lock(self) -> RunLock:
        """Own the folder until `release`; raises RunLocked at once when another process does."""
        return RunLock(self.root / "LOCK")


def below(root: Path, name: str) -> Path | None:
    """Where a path that a stranger names leads, links followed; None where nothing is there or it leaves `root`."""
    relative = PurePosixPath(name)
    if relative.is_absolute() or ".." in relative.parts:
        return None
    try:
        found = (root / relative).resolve(strict=True)
    except (OSError, RuntimeError, ValueError):
        return None  # missing, a loop of links, or no name that a file system takes
    return found if found.is_relative_to(root.resolve()) else None


class RunLock:
    """An exclusive flock: the system frees it when the owner dies, so a lock is never stale."""

    def __init__(self, path: Path) -> None:
        path.parent.mkdir(parents=True, exist_ok=True)
        self._file: IO[str] = path.open("a+", encoding="utf-8", errors="replace")
        try:
            fcntl.flock(self._file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            self._file.seek(0)
            owner = self._file.read().strip() or "an unknown process"
            self._file.close()
            raise RunLocked(f"{path.parent} is in use by {owner}: wait for it, or stop it") from None
        self._file.seek(0)
        self.owner_died = bool(self._file.read().strip())
        """Whether the owner before did not let go in order: it was killed."""
        self._file.truncate(0)
        self._file.write(f"process {os.getpid()} on {socket.gethostname()}\n")
        self._file.flush()

    def release(self) -> None:
        if not self._file.closed:
            with contextlib.suppress(OSError):
                self._file.truncate(0)
            self._file.close()


def _empty(root: Path) -> None:
    for path in root.iterdir() if root.exists() else ():
        if path.name == "LOCK":
            continue  # it is held by the caller
        if path.is_dir() and not path.is_symlink():
            shutil.rmtree(path)
        else:
            path.unlink()


def require_whole(database: Path) -> None:
    """Raise RunUnreadable where an SQLite file lost its end: SQLite would read on, or write over a very short one.

    With a write-ahead log beside it, SQLite itself makes the last page good.
    """
    size = database.stat().st_size if database.exists() else 0
    log = database.with_name(f"{database.name}-wal")
    if size == 0 or (log.exists() and log.stat().st_size):
        return
    with database.open("rb") as file:
        file.seek(16)
        page = int.from_bytes(file.read(2), "big") or 1
    # Bytes 16 and 17 hold the page size, 1 standing for 65,536 (https://www.sqlite.org/fileformat.html, 1.3.2).
    if size < _SMALLEST_DATABASE or size % (65536 if page == 1 else page):
        raise RunUnreadable(f"{database} is torn at {size} bytes; it was left as it is")


def write_text(path: Path, text: str, *, durable: bool = False) -> None:
    """Replace a file's whole text at once: a reader sees the old or the new, also after a crash of this process.

    `durable`: also after one of the machine. That costs a wait for the disk, which views of the receipts, a trace for
    each task among them, are spared.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    try:
        with temporary.open("w", encoding="utf-8", errors="surrogateescape", newline="") as file:
            file.write(text)
            if durable:
                file.flush()
                os.fsync(file.fileno())
        temporary.replace(path)
    except BaseException:
        temporary.unlink(missing_ok=True)
        raise
