"""Responses by content: one SQLite file that can be exported, shipped and read without this package.

The key is the sha256 of what decides an answer: model, endpoint, the request as it is sent, the repeat, and the how
many-eth time one caller asks the same within one repeat. Errors are never stored.
"""

from __future__ import annotations

import hashlib
import sqlite3
import threading
import time
from collections.abc import Iterable, Sequence
from pathlib import Path

from bco_graph.errors import RunUnreadable
from bco_graph.gateway.replies import quoted

_TABLE = "create table if not exists cache (key text primary key, response text not null, model text not null, at real)"


def cache_key(model: str, endpoint: str, request: str, repeat: int, asking: int = 0) -> str:
    """64 hexadecimal digits. `request` is its JSON text as `dumps` writes it; `asking` counts from 0.

    What is hashed is the text that `dumps` would make of all of them together.
    """
    head = f'{{"asking":{asking},' if asking else "{"
    where = f'"endpoint":{quoted(endpoint)},"model":{quoted(model)}'
    return hashlib.sha256(f'{head}{where},"repeat":{repeat},"request":{request}}}'.encode()).hexdigest()


class ResponseCache:
    """Thread-safe. `extra` is a second file, only read, that is asked where the first has no answer."""

    def __init__(self, path: Path, *, extra: Path | None = None) -> None:
        self._lock = threading.Lock()
        self._own = _open(path, "rwc", "pragma journal_mode=wal", "pragma synchronous=normal", _TABLE)
        self._read = _open(path, "rw")  # a connection of its own: who looks up does not wait for a write
        self._extra = (
            None if extra is None else _open(extra, "ro", "select key, response, model, at from cache limit 1")
        )

    def get(self, key: str) -> str | None:
        """The stored response as JSON text."""
        try:
            for db in (self._read, self._extra):
                row = db and db.execute("select response from cache where key=?", (key,)).fetchone()
                if row:
                    return str(row[0])
        except sqlite3.DatabaseError as error:
            raise RunUnreadable(f"the responses in cache.sqlite cannot be read: {error}; delete the file") from error
        return None

    def put(self, rows: Sequence[tuple[str, str, str]]) -> None:
        """Store responses, (key, response, model) each, durably and under one commit; the first under a key stays."""
        at = time.time()
        with self._lock:
            self._own.execute("begin")
            self._own.executemany("insert or ignore into cache values (?,?,?,?)", [(*row, at) for row in rows])
            self._own.execute("commit")

    def close(self) -> None:
        with self._lock:
            self._read.close()
            self._own.close()
            if self._extra is not None:
                self._extra.close()


def write_responses(path: Path, rows: Iterable[tuple[str, str, str, float]]) -> int:
    """Make a file of recorded responses, (key, response, model, at) each, for `extra`; returns how many. Equal rows in
    equal order give equal bytes. `path` is not there yet."""
    db = sqlite3.connect(path, isolation_level=None)
    try:
        db.execute(_TABLE)
        db.execute("begin")
        count = db.executemany("insert into cache (key, response, model, at) values (?,?,?,?)", rows).rowcount
        db.execute("commit")
    finally:
        db.close()
    return max(0, count)


def _open(path: Path, mode: str, *statements: str) -> sqlite3.Connection:
    """A file that is only read is opened without locks, so that it may lie in a folder that cannot be written;
    not while another process still has rows of it in a write-ahead log."""
    uri = "file:" + str(path.absolute()).replace("%", "%25").replace("?", "%3f").replace("#", "%23") + f"?mode={mode}"
    if mode == "ro" and not path.with_name(path.name + "-wal").exists():
        uri += "&immutable=1"
    try:
        db = sqlite3.connect(uri, uri=True, check_same_thread=False, isolation_level=None)
    except sqlite3.DatabaseError as error:
        raise RunUnreadable(f"cannot open the recorded responses {str(path)!r}: {error}") from error
    try:
        for statement in statements:
            db.execute(statement)
    except sqlite3.DatabaseError as error:
        db.close()
        raise RunUnreadable(f"{str(path)!r} holds no recorded responses: {error}; it was left as it is") from error
    return db
