"""What the commands do with a run and a terminal: drive it with a live view, say what is awaited, follow, measure."""

from __future__ import annotations

import asyncio
import signal
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any, get_args

from rich.console import Console
from rich.markup import escape
from rich.table import Table

from bco_graph.asking import ReviewReply, read_reply
from bco_graph.believing import believe
from bco_graph.config import RunConfig
from bco_graph.driver import Ended, awaited, drive, stored_config
from bco_graph.errors import ConfigError, RunError
from bco_graph.opening import open_run
from bco_graph.redaction import Redactor
from bco_graph.report.reading import is_running
from bco_graph.report.wording import one_line, tokens, usd
from bco_graph.run_folder import RunFolder
from bco_graph.state import JSON, AskName
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
    if waiting["step"] in get_args(AskName):
        lines = [f"iteration {waiting['iteration']} asks a person: [bold]{waiting['step']}[/]"]
        lines += [escape(f"  {label:8}{text}") for label, text in _QUESTIONS[waiting["step"]](folder, waiting)]
    else:
        lines = [
            f"iteration {waiting['iteration']} waits for step [bold]{waiting['step']}[/] in {waiting['workspace']}",
            f"  read    {waiting['instructions']}",
            f"  write   {Path(str(waiting['workspace'])) / 'submission.json'}",
            f"  then    bco submit {folder}",
        ]
    if refused:
        lines += ["[yellow]what was handed in last was refused:[/]", *(escape(f"  - {reason}") for reason in refused)]
    return "\n".join(lines)


def _approve(folder: Path, waiting: dict[str, JSON]) -> Iterator[tuple[str, str]]:
    workspace = Path(str(waiting["workspace"]))
    yield from _edit(waiting)
    yield "diff", str(workspace / waiting["diff_file"])
    yield "then", f"bco approve {folder}, or with --reject 'REASON'"
    yield "or", f"change {workspace / 'scaffold'} and bco approve {folder} --edit"


def _afford(folder: Path, waiting: dict[str, JSON]) -> Iterator[tuple[str, str]]:
    expected = waiting["expected"]
    cost = "no price is known" if expected["usd"] is None else usd(expected["usd"])
    yield from _edit(waiting)
    yield "takes", f"{expected['calls']:.0f} calls, {tokens(round(expected['tokens']))} tokens, {cost}, by the baseline"
    yield "then", f"bco approve {folder}, or with --reject 'REASON'"


def _review(folder: Path, waiting: dict[str, JSON]) -> Iterator[tuple[str, str]]:
    grade = Path(str(waiting["workspace"])) / "iterations" / str(waiting["candidate"]) / "grade.md"
    yield "grade", f"{waiting['candidate']} is {waiting['verdict']}: {grade}"
    yield "then", f"bco approve {folder}, which leaves the beliefs to the proposer"
    yield "or", f'bco submit {folder} --file FILE, with {{"beliefs": [...]}}: docs/ASK.md'


def _edit(waiting: dict[str, JSON]) -> Iterator[tuple[str, str]]:
    proposal = waiting["proposal"]
    yield "edit", f"{proposal['name']} on {proposal['parent']}: {one_line(proposal['mechanism'])}"


_QUESTIONS: Mapping[str, Callable[[Path, dict[str, JSON]], Iterator[tuple[str, str]]]] = {
    "approve": _approve, "afford": _afford, "review": _review,
}  # fmt: skip


async def reply_for(folder: Path, *, reject: str | None, edit: bool, by: str) -> dict[str, JSON]:
    """The reply of `bco approve` to the question that the run asks. Raises RunError where it asks none."""
    waiting = await awaited(folder)
    step = waiting["step"] if waiting else None
    if step not in get_args(AskName):
        way = (
            f"it waits for step {step!r}: bco submit {folder}" if step else f"bco status {folder} says where it stands"
        )
        raise RunError(f"{folder} asks nobody to approve anything; {way}")
    if reject is not None and edit:
        raise ConfigError("--reject and --edit exclude each other")
    if step == "review":
        if reject is not None or edit:
            raise ConfigError(f"a grade cannot be rejected or edited: bco submit {folder} --file FILE changes beliefs")
        return {"beliefs": [], "by": by}
    if reject is None:
        return {"decision": "edit" if edit else "approve", "by": by}
    return {"decision": "reject", "reason": reject, "by": by}


def change_beliefs(folder: Path, act: str, what: str, *, by: str, reason: str, **given: Any) -> dict[str, JSON]:
    """`bco believe`: one change by a person. `given` are the options of an added belief, None where left out."""
    options = {name: value for name, value in given.items() if value is not None}
    if act != "add" and options:
        named = ", ".join(f"--{name}" for name in options)
        raise ConfigError(f"{named}: only for a belief that is added, and here is {act!r}")
    change = {act: {"claim": what, **options} if act == "add" else what, "reason": reason}
    reply = read_reply({"beliefs": [change], "by": by}, ReviewReply, Redactor())
    return believe(folder, reply.beliefs, by=reply.by)


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
