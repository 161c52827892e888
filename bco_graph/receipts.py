"""The truth of a run: one SQLite file with a durable row per paid step, model call and task result.

Everything else in a run folder can be drawn from these rows and the candidate store. Values are strict JSON text
(no NaN, no pickle). A row, once written, is never changed: a second write of the same key raises.
"""

from __future__ import annotations

import json
import sqlite3
import threading
import time
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

from bco_graph.errors import RunUnreadable
from bco_graph.run_folder import require_whole
from bco_graph.state import JSON, REAL_OUTCOMES, OutcomeKind, Split

SCHEMA_VERSION = 1

_SCHEMA = """
create table if not exists meta (key text primary key, value text not null);
create table if not exists results (
  split text not null, candidate text not null, task text not null, repeat integer not null,
  type text not null, kind text not null, score real, answer text not null, note text not null,
  error text not null, seconds real not null, calls integer not null, tokens integer not null, at real not null,
  primary key (split, candidate, task, repeat)) without rowid;
create table if not exists steps (
  iteration integer not null, step text not null, record text not null, at real not null,
  primary key (iteration, step)) without rowid;
create table if not exists calls (
  id integer primary key, role text not null, candidate text not null, task text not null,
  repeat integer not null, step text not null, deployment text not null, model text not null,
  key text not null, cached integer not null, attempts integer not null, status text not null,
  prompt_tokens integer not null, cached_tokens integer not null, completion_tokens integer not null,
  usd real, seconds real not null, request text not null, response text not null, changes text not null,
  at real not null);
create index if not exists calls_by_job on calls (candidate, task, repeat);
create index if not exists calls_by_role on calls
  (role, deployment, cached, attempts, prompt_tokens, completion_tokens, usd, seconds);
create table if not exists heldout (
  id integer primary key, candidate text not null, reason text not null, at real not null);
create table if not exists changes (
  id integer primary key, iteration integer not null, record text not null, at real not null);
create table if not exists places (
  iteration integer not null, node text not null, checkpoint text not null,
  primary key (iteration, node)) without rowid;
"""


@dataclass(frozen=True, slots=True)
class ResultRow:
    """One (candidate, task, repeat). `score` in [0, 1], or None where the kind is not a real result."""

    split: Split
    candidate: str
    task: str
    repeat: int
    type: str
    kind: OutcomeKind
    score: float | None
    answer: JSON
    note: str
    error: str
    seconds: float
    calls: int
    tokens: int


@dataclass(frozen=True, slots=True)
class CallRecord:
    """One logical model call, retries included. `usd` is None where no price is known.

    `request` is what was sent upstream after pinning, `response` what came back (or the error's text), both raw
    JSON text; `changes` is what pinning altered. `key` is the content hash that the cache uses.
    """

    role: str
    candidate: str
    task: str
    repeat: int
    step: str
    deployment: str
    model: str
    key: str
    cached: bool
    attempts: int
    status: str
    """`ok`, or the name of the error class."""
    prompt_tokens: int
    cached_tokens: int
    completion_tokens: int
    usd: float | None
    seconds: float
    request: str
    response: str
    changes: Mapping[str, JSON]


class Receipts:
    """Thread-safe. Each write is committed before the method returns."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._lock = threading.RLock()
        require_whole(path)
        try:
            self._db = sqlite3.connect(path, check_same_thread=False, isolation_level=None)
            self._db.execute("pragma journal_mode=wal")
            self._db.execute("pragma synchronous=normal")
            self._db.executescript(_SCHEMA)
            self._db.execute("insert or ignore into meta values ('schema_version', ?)", (str(SCHEMA_VERSION),))
            version = int(self._one("select value from meta where key='schema_version'")[0])
        except (sqlite3.DatabaseError, ValueError) as error:
            raise RunUnreadable(f"{path} is not readable as receipts: {error}; it was left as it is") from error
        if version > SCHEMA_VERSION:
            raise RunUnreadable(
                f"{path} has schema version {version}; this bco-graph reads up to {SCHEMA_VERSION}: upgrade it"
            )

    def close(self) -> None:
        with self._lock:
            self._db.close()

    @contextmanager
    def _write(self) -> Iterator[sqlite3.Connection]:
        with self._lock:
            self._db.execute("begin immediate")
            try:
                yield self._db
            except BaseException:
                self._db.execute("rollback")
                raise
            self._db.execute("commit")

    def _one(self, sql: str, *args: Any) -> Any:
        return next(iter(self._all(sql, *args)), None)

    def _all(self, sql: str, *args: Any) -> list[Any]:
        try:
            with self._lock:
                return self._db.execute(sql, args).fetchall()
        except sqlite3.DatabaseError as error:
            raise RunUnreadable(f"{self.path} cannot be read: {error}; it was left as it is") from error

    # -- results ---------------------------------------------------------------------------------------------

    def add_result(self, row: ResultRow) -> None:
        with self._write() as db:
            db.execute(
                "insert into results values (?,?,?,?,?,?,?,?,?,?,?,?,?,?)",
                (row.split, row.candidate, row.task, row.repeat, row.type, row.kind, row.score, dumps(row.answer),
                 row.note, row.error, row.seconds, row.calls, row.tokens, time.time()),
            )  # fmt: skip

    def drop_unreal_results(self, split: Split, candidate: str) -> int:
        """Forget rows that say nothing about the scaffold, so that an evaluation that goes on retries them."""
        with self._write() as db:
            return db.execute(
                "delete from results where split=? and candidate=? and kind in ('infra_error','ungradeable')",
                (split, candidate),
            ).rowcount

    def drop_results(self, split: Split, candidate: str) -> None:
        """Forget rows that are void."""
        with self._write() as db:
            db.execute("delete from results where split=? and candidate=?", (split, candidate))

    def results(self, split: Split, candidate: str | None = None) -> list[ResultRow]:
        """Rows in the order of (candidate, task, repeat)."""
        where, args = ("", ()) if candidate is None else (" and candidate=?", (candidate,))
        rows = self._all(
            "select split, candidate, task, repeat, type, kind, score, answer, note, error, seconds, calls, tokens"
            f" from results where split=?{where} order by candidate, task, repeat",
            split,
            *args,
        )
        return [_result(row) for row in rows]

    def scores(self, split: Split, candidate: str) -> list[tuple[str, float]]:
        """Task and score of each real result of a candidate, in the order of (task, repeat)."""
        rows = self._all(
            "select task, kind, score from results where split=? and candidate=? order by task, repeat",
            split,
            candidate,
        )
        return [(task, score) for task, kind, score in rows if kind in REAL_OUTCOMES]

    # -- steps -----------------------------------------------------------------------------------------------

    def add_step(self, iteration: int, step: str, record: Mapping[str, JSON]) -> None:
        with self._write() as db:
            db.execute("insert into steps values (?,?,?,?)", (iteration, step, dumps(record), time.time()))

    def step(self, iteration: int, step: str) -> dict[str, JSON] | None:
        """The record of a finished step; a node that runs again after a kill returns this and pays nothing."""
        row = self._one("select record from steps where iteration=? and step=?", iteration, step)
        return None if row is None else dict(_parsed(row[0]))

    def steps(self, step: str | None = None) -> list[tuple[int, str, dict[str, JSON]]]:
        """(iteration, step, record) in the order of iterations."""
        where, args = ("", ()) if step is None else (" where step=?", (step,))
        rows = self._all(f"select iteration, step, record from steps{where} order by iteration, at", *args)
        return [(row[0], row[1], _parsed(row[2])) for row in rows]

    def last_iteration(self) -> int:
        """The newest iteration with a finished step; -1 before the first."""
        return int(self._one("select coalesce(max(iteration), -1) from steps")[0])

    def steps_after(self, iteration: int, step: str) -> Iterator[tuple[int, dict[str, JSON]]]:
        """(iteration, record) of one step past an iteration, in order; one record at a time is held."""
        sql = "select iteration, record from steps where iteration>? and step=? order by iteration limit 1"
        while (row := self._one(sql, iteration, step)) is not None:
            iteration = row[0]
            yield iteration, _parsed(row[1])

    # -- the document from outside, and where nodes ran ----------------------------------------------------------

    def add_change(self, iteration: int, record: Mapping[str, JSON]) -> None:
        """Another HEAD than the update of an iteration left, given from outside of the loop after it."""
        with self._write() as db:
            db.execute("insert into changes values (null,?,?,?)", (iteration, dumps(record), time.time()))

    def changes(self, *, after: int = 0) -> list[tuple[int, int, dict[str, JSON]]]:
        """(number, iteration, record) of the changes with a number above `after`, in the order they were made."""
        rows = self._all("select id, iteration, record from changes where id>? order by id", after)
        return [(row[0], row[1], _parsed(row[2])) for row in rows]

    def step_before_change(self, number: int, steps: Collection[str]) -> tuple[int, str] | None:
        """(iteration, step) of the one of some steps that was recorded last before a change."""
        marks = ",".join("?" * len(steps))
        sql = (
            "select s.iteration, s.step from steps s, changes c where c.id=? and s.at<=c.at and s.step in"
            f" ({marks}) order by s.at desc, s.iteration desc limit 1"
        )
        row = self._one(sql, number, *steps)
        return None if row is None else (int(row[0]), str(row[1]))

    def last_change(self, iteration: int) -> dict[str, JSON] | None:
        row = self._one("select record from changes where iteration=? order by id desc limit 1", iteration)
        return None if row is None else dict(_parsed(row[0]))

    def set_place(self, iteration: int, node: str, checkpoint: str) -> None:
        """From which of LangGraph's checkpoints a node was started last."""
        with self._write() as db:
            db.execute("insert or replace into places values (?,?,?)", (iteration, node, checkpoint))

    def place(self, iteration: int, node: str) -> str | None:
        row = self._one("select checkpoint from places where iteration=? and node=?", iteration, node)
        return None if row is None else str(row[0])

    # -- calls -----------------------------------------------------------------------------------------------

    def add_call(self, call: CallRecord) -> None:
        self.add_calls([call])

    def add_calls(self, calls: Sequence[CallRecord]) -> None:
        """Several calls under one commit, in their order."""
        at = time.time()
        rows = [
            (call.role, call.candidate, call.task, call.repeat, call.step, call.deployment, call.model, call.key,
             call.cached, call.attempts, call.status, call.prompt_tokens, call.cached_tokens, call.completion_tokens,
             call.usd, call.seconds, call.request, call.response, dumps(call.changes), at)
            for call in calls
        ]  # fmt: skip
        with self._write() as db:
            db.executemany(f"insert into calls values (null{',?' * 20})", rows)

    def last_call(self) -> int:
        """Number of the newest call; 0 before the first."""
        return int(self._one("select coalesce(max(id), 0) from calls")[0])

    def calls_of(self, candidate: str, task: str, repeat: int, *, after: int = 0) -> list[CallRecord]:
        """The target's calls of one job with a number above `after`, in the order they ended."""
        rows = self._all(
            "select role, candidate, task, repeat, step, deployment, model, key, cached, attempts, status,"
            " prompt_tokens, cached_tokens, completion_tokens, usd, seconds, request, response, changes"
            " from calls where candidate=? and task=? and repeat=? and role='target' and id>? order by id",
            candidate,
            task,
            repeat,
            after,
        )
        return [_call(row) for row in rows]

    def responses(self, roles: Collection[str]) -> Iterator[tuple[str, str, str, float]]:
        """(key, response, model, at) of the first answer to each request of some roles, in the order of keys."""
        marks = ",".join("?" * len(roles))
        rows = self._all(
            "select key, response, model, at from calls where id in (select min(id) from calls where status='ok'"
            f" and key<>'' and role in ({marks}) group by key) order by key",
            *roles,
        )
        return iter(rows)

    def spend(self) -> list[dict[str, JSON]]:
        """Per role and deployment: calls made upstream (not those refused unsent), cache hits, tokens, money (None: no
        price known)."""
        rows = self._all(
            "select role, deployment, sum((1-cached)*(attempts>0)), sum(cached), sum((1-cached)*prompt_tokens),"
            " sum((1-cached)*completion_tokens),"
            " case when count(*)=count(usd) then sum((1-cached)*usd) end, sum((1-cached)*seconds)"
            " from calls group by role, deployment order by role, deployment"
        )
        keys = (
            "role",
            "deployment",
            "calls",
            "cache_hits",
            "prompt_tokens",
            "completion_tokens",
            "usd",
            "seconds",
        )
        return [dict(zip(keys, row, strict=True)) for row in rows]

    # -- held-out accesses -----------------------------------------------------------------------------------

    def log_heldout(self, candidate: str, reason: str) -> int:
        """Write the access before it happens; returns how many there have been, this one included."""
        with self._write() as db:
            db.execute("insert into heldout values (null,?,?,?)", (candidate, reason, time.time()))
            return int(db.execute("select count(*) from heldout").fetchone()[0])

    def heldout_candidates(self) -> list[str]:
        """Candidates with a logged access, in the order of the accesses."""
        return [row[0] for row in self._all("select candidate from heldout order by id")]

    def heldout_looks(self, *, until: str | None = None) -> int:
        """How many accesses there have been; with `until`, up to the last one of that candidate."""
        if until is None:
            return int(self._one("select count(*) from heldout")[0])
        sql = "select count(*) from heldout where id <= (select max(id) from heldout where candidate=?)"
        return int(self._one(sql, until)[0])


def _result(row: tuple[Any, ...]) -> ResultRow:
    return ResultRow(*(*row[:7], _parsed(row[7]), *row[8:]))


def _call(row: tuple[Any, ...]) -> CallRecord:
    named = dict(zip((f.name for f in fields(CallRecord)), row, strict=True))
    return CallRecord(**named | {"cached": bool(named["cached"]), "changes": _parsed(named["changes"])})


def _parsed(text: str) -> Any:
    try:
        return json.loads(text)
    except (ValueError, TypeError) as error:
        raise RunUnreadable(f"a record of the receipts is torn: {error}; it was left as it is") from error


def dumps(value: JSON) -> str:
    """Strict JSON text: no NaN, keys in order, non-ASCII as it is."""
    return json.dumps(value, ensure_ascii=False, allow_nan=False, sort_keys=True, separators=(",", ":"))
