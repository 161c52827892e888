"""Forking a run: a folder of its own that holds the run up to the end of one round, from where it can go another way.

The receipts are keyed by iteration, so two ways cannot share a folder. A fork has the rows, steps, calls, candidates
and evidence of the rounds before, as they are, and none of what came later; the cache of responses comes along, less
what the proposer was told later, so that the fork's proposer is asked anew and no target call is paid twice. Looks at
the held-out split are all kept: they have happened.
"""

from __future__ import annotations

import csv
import json
import shutil
import sqlite3
import tempfile
from collections.abc import Iterator
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

from langgraph.checkpoint.sqlite import SqliteSaver

from bco_graph.candidates import CandidateStore
from bco_graph.config import RunConfig, check_config
from bco_graph.document import RunDocument, document_text, reference_to, shows_calibration
from bco_graph.driver import THREAD, stored_config
from bco_graph.errors import ConfigError, RunExists
from bco_graph.events import Tail
from bco_graph.evidence import EvidenceSurface, write_json
from bco_graph.graph import create_bco
from bco_graph.places import DONE, LAST
from bco_graph.protocols import Task
from bco_graph.receipts import Receipts, dumps
from bco_graph.records import Records, staged_tree
from bco_graph.report.reading import is_running
from bco_graph.run_folder import DOCUMENTS, RunFolder, require_whole, write_text
from bco_graph.state import BCOState, Proposal, SealedPrediction, candidate_id


@dataclass(frozen=True)
class Fork:
    """A run that stands at the end of a round. `state` is the graph's state there, for a graph with a checkpointer of
    the caller's: as input, or by `update_state`; `bco resume` finds it in the folder."""

    folder: Path
    config: RunConfig
    state: BCOState


def fork_run(folder: Path | str, name: str, *, at: str | int) -> Fork:
    """Make the run `name` beside a run's folder, as that was when the round `at` (`iter_003`, or 3) had ended.

    The original is read only, and may be running. Raises ConfigError for a round that has not ended, RunExists,
    RunUnreadable.
    """
    source = RunFolder(Path(folder).resolve())
    config = stored_config(source.root)
    config = check_config({**config.model_dump(mode="json"), "name": name}, source="the name of the fork")
    made = RunFolder(config.run_dir.resolve())
    if made.root.exists():
        raise RunExists(f"{made.root} is there already: give the fork another name")
    source.require_receipts()
    making = Path(tempfile.mkdtemp(prefix=f".{name}.", dir=made.root.parent))
    try:
        state = _make(source, RunFolder(making), config, at)
        making.chmod(0o755)
        making.rename(made.root)
    except BaseException:
        shutil.rmtree(making, ignore_errors=True)
        raise
    return Fork(made.root, config, state)


def _make(source: RunFolder, target: RunFolder, config: RunConfig, at: str | int) -> BCOState:
    target.claim(fresh=True, overwrite=False)
    running = is_running(source)
    _copy_database(source.receipts, target.receipts, running=running)
    receipts = Receipts(target.receipts)
    try:
        iteration = _ended_round(receipts, config, at)
        later = _forget_later(target.receipts, iteration)
    finally:
        receipts.close()
    if (source.root / "cache.sqlite").exists():
        _copy_database(source.root / "cache.sqlite", target.root / "cache.sqlite", running=running)
        _forget_responses(target.root / "cache.sqlite", later)
    receipts = Receipts(target.receipts)
    try:
        _copy_evidence(source, target, config, receipts, iteration)
        state = _state(receipts, config, iteration)
    finally:
        receipts.close()
    _write_events(source, target, iteration)
    _write_checkpoint(target, config, state)
    write_json(target.root / "forked_from.json", {"run": str(source.root), "at": candidate_id(iteration)})
    manifest = source.read()
    target.write({**manifest, "name": config.name, "config": config.model_dump(mode="json")})
    return state


# -- receipts and responses --------------------------------------------------------------------------------------------


def _copy_database(source: Path, target: Path, *, running: bool) -> None:
    """A live one through SQLite; else byte by byte, since merely opening it would change what a kill left behind."""
    require_whole(source)
    if running:
        with (
            closing(sqlite3.connect(f"{source.as_uri()}?mode=ro", uri=True)) as there,
            closing(sqlite3.connect(target)) as here,
        ):
            there.backup(here)
        return
    for suffix in ("", "-wal"):
        if (path := Path(f"{source}{suffix}")).exists():
            shutil.copyfile(path, f"{target}{suffix}")


def _ended_round(receipts: Receipts, config: RunConfig, at: str | int) -> int:
    last = DONE[LAST[config.method]]
    ended = [iteration for iteration, _, _ in receipts.steps(last)]
    names = {candidate_id(iteration): iteration for iteration in ended}
    found = names.get(at if isinstance(at, str) else candidate_id(at))
    if found is None:
        shown = f"{next(iter(names))} to {next(reversed(names))}" if names else "none"
        raise ConfigError(f"cannot fork at {at!r}: rounds that have ended: {shown}")
    return found


_CALL_ITERATION = """case when candidate like 'iter\\_%' escape '\\' then cast(substr(candidate, 6) as integer)
 when instr(step, '/') then cast(substr(step, 1, instr(step, '/') - 1) as integer) else 0 end"""


def _forget_later(receipts: Path, iteration: int) -> list[str]:
    """Drop every record past a round; returns the keys of what only a later proposer was told."""
    with closing(sqlite3.connect(receipts)) as db, db:
        told = "select key from calls where role='proposer' and"
        keys = db.execute(
            f"{told} {_CALL_ITERATION} > ? except {told} {_CALL_ITERATION} <= ?", (iteration, iteration)
        ).fetchall()
        db.execute(f"delete from calls where {_CALL_ITERATION} > ?", (iteration,))
        db.execute("delete from results where cast(substr(candidate, 6) as integer) > ?", (iteration,))
        for table in ("steps", "changes"):
            db.execute(f"delete from {table} where iteration > ?", (iteration,))
        # A change of the very round was made on the way that the original took.
        db.execute("delete from changes where iteration = ?", (iteration,))
        db.execute("delete from places")
    with closing(sqlite3.connect(receipts)) as db:
        db.execute("vacuum")  # what was deleted is no longer in the file either
    return [key for (key,) in keys]


def _forget_responses(cache: Path, keys: list[str]) -> None:
    with closing(sqlite3.connect(cache)) as db, db:
        db.executemany("delete from cache where key=?", [(key,) for key in keys])


# -- candidates and evidence -------------------------------------------------------------------------------------------


def _copy_evidence(source: RunFolder, target: RunFolder, config: RunConfig, receipts: Receipts, iteration: int) -> None:
    """Candidates and evidence up to a round; tables and document drawn anew, so that nothing later shows through."""
    shutil.copytree(source.candidates, target.candidates, symlinks=True)
    store = CandidateStore(target.candidates)
    store.forget_after(iteration)
    for number in range(iteration + 1):
        there = source.workspace / "iterations" / candidate_id(number)
        if there.exists():
            shutil.copytree(there, target.workspace / "iterations" / there.name, symlinks=True)
    _copy_heldout(source, target, receipts)
    evidence = EvidenceSurface(target, config.method, store, receipts)
    evidence.write_skill((source.workspace / "SKILL.md").read_text(encoding="utf-8"))
    candidates = Records(receipts).candidates()
    evidence.write_scores(_tasks(source), [record["candidate"] for record in candidates])
    evidence.write_candidates(candidates)
    if DOCUMENTS[config.method]:
        evidence.write_document(_document(receipts, config))


def _copy_heldout(source: RunFolder, target: RunFolder, receipts: Receipts) -> None:
    for name in {row.candidate for row in receipts.results("heldout")}:
        target.heldout.mkdir(exist_ok=True)
        if (source.heldout / name).exists():
            shutil.copytree(source.heldout / name, target.heldout / name)
        if (source.heldout / f"{name}.json").exists():
            shutil.copyfile(source.heldout / f"{name}.json", target.heldout / f"{name}.json")


def _tasks(source: RunFolder) -> list[Task]:
    """Ids and types in the order of the suite, as the original's table has them."""
    with (source.workspace / "task_score_matrix.csv").open(encoding="utf-8", newline="") as file:
        return [Task(row["task"], row["type"], {}) for row in csv.DictReader(file)]


def _document(receipts: Receipts, config: RunConfig) -> str:
    if config.method == "bco":
        return document_text(receipts, calibration=shows_calibration(config))
    results = [record["result"] for _, _, record in receipts.steps("propose") if record["result"]]
    return str(results[-1]["notes"]) if results else ""


# -- where it stands ---------------------------------------------------------------------------------------------------


def _state(receipts: Receipts, config: RunConfig, iteration: int) -> BCOState:
    outcome = receipts.step(iteration, "evaluate")
    state: dict[str, Any] = {
        "iteration": iteration,
        "stop": "iterations" if iteration >= config.iterations else None,
        "outcome": outcome,
        "best": Records(receipts).best(config.evaluation.coverage_floor),
    }
    for key, made in _of_the_round(receipts, config, iteration):
        state[key] = made
    return cast(BCOState, state)


def _of_the_round(receipts: Receipts, config: RunConfig, iteration: int) -> Iterator[tuple[str, Any]]:
    """What its nodes left, but for those that failed."""
    proposed = (receipts.step(iteration, "propose") or {}).get("result")
    if proposed and (tree := staged_tree(receipts, iteration)):
        yield "proposal", {key: proposed[key] for key in Proposal.__annotations__} | {"tree": tree}
    predicted = (receipts.step(iteration, "predict") or {}).get("result")
    if predicted:
        digest, content = predicted["digest"], predicted["content"]
        yield "prediction", SealedPrediction(iteration=iteration, digest=digest, content=content, failure=None)
    if graded := receipts.step(iteration, "graded"):
        yield "grade", graded
    if config.method == "bco":
        yield "world_model", reference_to(iteration, RunDocument(receipts).head(iteration))


def _write_events(source: RunFolder, target: RunFolder, iteration: int) -> None:
    """What happened until the first event of a later round."""
    lines = []
    for event in Tail(source.events).read():
        if event["iteration"] > iteration:
            break
        lines.append(dumps(event) + "\n")
    write_text(target.events, "".join(lines))


def _write_checkpoint(target: RunFolder, config: RunConfig, state: BCOState) -> None:
    thread: Any = {"configurable": {"thread_id": THREAD}}
    with SqliteSaver.from_conn_string(str(target.checkpoints)) as saver:
        graph = create_bco(config).compile(checkpointer=saver)
        graph.update_state(thread, json.loads(dumps(state)), as_node=LAST[config.method])
