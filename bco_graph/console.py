"""What the commands do with a run and a terminal: drive it with a live view, say what is awaited, follow, measure."""

from __future__ import annotations

import asyncio
import signal
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

from bco_graph.config import RunConfig
from bco_graph.driver import Ended, awaited, drive, stored_config
from bco_graph.errors import ConfigError, RunError
from bco_graph.opening import open_run
from bco_graph.report.reading import is_running
from bco_graph.run_folder import RunFolder
from bco_graph.state import JSON
from bco_graph.strict_json import read_object
from bco_graph.terminal import RunView, follow


def drive_shown(config: RunConfig, *, quiet: bool, answer: JSON = None, **options: Any) -> tuple[dict[str, Any], int]:
    """Drive a run with the live view; returns the facts of its end and the exit code (1: it failed, or what was
    handed in was refused; 143: SIGTERM ended it)."""
    view = RunView(Console(highlight=False), quiet=quiet)
    with view:
        ended = asyncio.run(drive(config, answer=answer, subscriber=view, **options))
    if ended.awaited is not None and not quiet:
        Console(highlight=False).print(render_awaited(config.run_dir, ended.awaited))
    refused = ended.awaited is not None and bool(ended.awaited.get("refused"))
    code = 128 + signal.SIGTERM if ended.stop == "drained" else int(ended.stop == "failures" or refused)
    return _facts(config, ended), code


def _facts(config: RunConfig, ended: Ended) -> dict[str, Any]:
    state = ended.state
    return {
        "run": str(config.run_dir), "stop": ended.stop, "awaited": ended.awaited, "iteration": state.get("iteration"),
        "best": state.get("best"), "candidates": ended.candidates,
    }  # fmt: skip


def render_awaited(folder: Path, waiting: dict[str, JSON] | None) -> str:
    if waiting is None:
        return f"{folder} waits for nothing"
    refused = waiting.get("refused") or []
    lines = [
        f"iteration {waiting['iteration']} waits for step [bold]{waiting['step']}[/] in {waiting['workspace']}",
        f"  read    {waiting['instructions']}",
        f"  write   {Path(str(waiting['workspace'])) / 'submission.json'}",
        f"  then    bco submit {folder}",
    ]
    if refused:
        lines += ["[yellow]the last submission was refused:[/]", *(f"  - {reason}" for reason in refused)]
    return "\n".join(lines)


async def read_submission(folder: Path, file: Path | None) -> JSON:
    """The submission that answers what the run waits for. Raises RunError when it waits for nothing."""
    waiting = await awaited(folder)
    if waiting is None:
        raise RunError(f"{folder} waits for no submission; `bco status {folder}` says where it stands")
    path = file or Path(str(waiting["workspace"])) / "submission.json"
    try:
        return read_object(path.read_text(encoding="utf-8"))
    except OSError as error:
        reason = f"cannot be read ({error.strerror}): write the submission of step {waiting['step']!r} into it"
        raise ConfigError(f"{path} {reason}") from error
    except UnicodeDecodeError as error:
        raise ConfigError(f"{path} is not UTF-8: {error.reason} at byte {error.start}") from error
    except ValueError as error:
        raise ConfigError(f"{path} is {error}") from error


def watch(folder: Path) -> None:
    """Show a run's events from its start and as they come, until it ends or nobody drives it any more."""
    run = RunFolder(folder)
    run.read()
    with RunView(Console(highlight=False)) as view:
        follow(run.events, view, stop=lambda: not is_running(run))


async def measure_heldout(
    folder: Path, candidates: tuple[str, ...], *, quiet: bool, **options: Any
) -> tuple[dict[str, Any], Any]:
    """Held-out outcomes beside the train means, as facts and as a table."""
    from bco_graph.studies.heldout import chosen, heldout

    config = stored_config(folder)
    run = open_run(config, **options)
    view = RunView(Console(highlight=False), quiet=quiet)
    try:
        run.events.subscribe(view)
        train = {record["candidate"]: record for record in run.records.candidates()}
        best = run.records.best(run.config.evaluation.coverage_floor)
        best_id = best["id"] if best else None
        with view:
            measured = await heldout(run, candidates or chosen(run, best_id), reason="bco heldout")
        looks = run.receipts.heldout_looks()
    finally:
        run.close()
    rows = [
        {"candidate": name, "name": train[name]["name"] if name in train else "", "best": name == best_id,
         "train": train[name]["mean"] if name in train else None, "heldout": outcome["mean"],
         "coverage": outcome["coverage"], "tasks": outcome["tasks"]}
        for name, outcome in measured.items()
    ]  # fmt: skip
    return {"candidates": rows, "looks": looks}, _heldout_table(rows, looks)


def _heldout_table(rows: list[dict[str, Any]], looks: int) -> Table:
    table = Table(box=None, padding=(0, 2, 0, 0), caption=f"held-out looks so far: {looks}", caption_justify="left")
    for column in ("candidate", "name", "train", "held-out", "coverage"):
        table.add_column(column, justify="left" if column in ("candidate", "name") else "right")
    for row in rows:
        train = "" if row["train"] is None else f"{row['train']:.3f}"
        measured = "none" if row["heldout"] is None else f"{row['heldout']:.3f}"
        name = row["candidate"] + (" (best)" if row["best"] else "")
        table.add_row(name, row["name"], train, measured, f"{row['coverage']:.2f}")
    return table
