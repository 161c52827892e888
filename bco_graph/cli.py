"""The command line: parses and calls, no logic. Everything heavy is imported by the command that needs it."""

from __future__ import annotations

import asyncio
import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import click

from bco_graph import __version__
from bco_graph.errors import BcoError, ConfigError

CONFIG = click.Path(dir_okay=False, path_type=Path)
RUN = click.Path(file_okay=False, path_type=Path)


class _Group(click.Group):
    """Turns our errors into one message and a truthful exit code; Ctrl-C into 130 and what to type next."""

    def invoke(self, ctx: click.Context) -> Any:
        try:
            return super().invoke(ctx)
        except BcoError as error:
            _fail(error, 2 if isinstance(error, ConfigError) else 1)
        except (KeyboardInterrupt, asyncio.CancelledError):
            where = ctx.meta.get("run")
            click.echo(f"\nstopped; continue with: bco resume {where}" if where else "\nstopped", err=True)
            sys.exit(130)


def _fail(error: BcoError, code: int) -> None:
    if "--json" in sys.argv:
        click.echo(json.dumps({"error": type(error).__name__, "message": str(error)}))
    else:
        click.secho(f"{type(error).__name__}: {error}", fg="red", err=True)
    sys.exit(code)


def _json(command: Callable[..., Any]) -> Callable[..., Any]:
    return click.option("--json", "as_json", is_flag=True, help="Print one JSON object instead.")(command)


def _settings(command: Callable[..., Any]) -> Callable[..., Any]:
    said = "Another value for a key of the config, such as budget.tokens=1000000; may be given again."
    return click.option("--set", "settings", multiple=True, metavar="KEY=VALUE", help=said)(command)


def _print(as_json: bool, facts: Any, shown: Any) -> None:
    if as_json:
        click.echo(json.dumps(facts, ensure_ascii=False))
        return
    from rich.console import Console

    Console(highlight=False).print(shown if shown is not None else facts)


@click.group(cls=_Group, context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100})
@click.version_option(__version__, prog_name="bco")
def main() -> None:
    """Improve an agent's scaffold around a frozen model by Belief-Calibrated Optimization."""


@main.command()
@click.argument("path", type=CONFIG, default="bco.yaml")
@click.option("--suite", default=None, help="Start from an installed suite, such as quickstart.")
@click.option("--folder", type=RUN, default=None, help="Start from a scaffold folder with tasks as JSON lines.")
@click.option("--langgraph", metavar="FILE.py:ATTR", default=None, help="Start from a LangGraph app: build(model).")
@click.option("--method", type=click.Choice(["bco", "vanilla", "notes"]), default="bco", show_default=True)
@_json
def init(path: Path, suite: str | None, folder: Path | None, langgraph: str | None, method: str, as_json: bool) -> None:
    """Write a commented bco.yaml."""
    from bco_graph.starting import write_app_config, write_config

    if langgraph is None:
        wrote = write_config(path, suite=suite, folder=folder, method=method)
        _print(as_json, {"wrote": str(wrote)}, f"wrote {path}")
        return
    if suite:
        raise ConfigError("--suite and --langgraph exclude each other: an app brings tasks of its own")
    started = write_app_config(path, langgraph, folder=folder, method=method)
    _print(as_json, started.facts(), started.render())


@main.command()
@click.argument("config", type=CONFIG)
@_json
def doctor(config: Path, as_json: bool) -> None:
    """Check every role, the sandbox and the disk, with one cheap call each."""
    from bco_graph.config import load_config
    from bco_graph.doctor import examine, render_checks

    checks = asyncio.run(examine(load_config(config)))
    _print(as_json, {"checks": checks}, render_checks(checks))
    sys.exit(0 if all(check["ok"] for check in checks) else 1)


@main.command()
@click.argument("config", type=CONFIG)
@click.option("--calls-per-task", type=click.IntRange(1), default=1, show_default=True)
@_json
def estimate(config: Path, calls_per_task: int, as_json: bool) -> None:
    """Implied calls, tokens and worst-case spend, before anything is paid."""
    from bco_graph.config import load_config
    from bco_graph.estimate import estimate as work_out
    from bco_graph.estimate import render_estimate

    facts = work_out(load_config(config), calls_per_task=calls_per_task)
    _print(as_json, facts, render_estimate(facts))


@main.command()
@click.argument("config", type=CONFIG)
@click.option("--name", default=None, help="Name of the run folder.")
@click.option("--method", type=click.Choice(["bco", "vanilla", "notes"]), default=None)
@click.option("--iterations", type=click.IntRange(0), default=None)
@click.option("--target", default=None, help="Another deployment of models.model_list for the frozen target.")
@click.option("--proposer", default=None, help="Another deployment of models.model_list for the proposer.")
@click.option("--baseline", type=RUN, default=None, help="Reuse the iteration 0 of this run.")
@click.option("--overwrite", is_flag=True, help="Replace a run of the same name.")
@click.option("--no-preflight", is_flag=True, help="Do not ask each role's model for one word first.")
@_settings
@_json
@click.pass_context
def run(
    ctx: click.Context, /, config: Path, target: str | None, baseline: Path | None, overwrite: bool,
    no_preflight: bool, as_json: bool, **given: Any,
) -> None:  # fmt: skip
    """Start a run."""
    from bco_graph.config import load_config, parse_settings

    proposer, settings = given.pop("proposer"), given.pop("settings")
    overrides = parse_settings(settings) | {key: value for key, value in given.items() if value is not None}
    overrides |= {"roles.target": target} if target else {}
    overrides |= {"roles.proposer": proposer} if proposer else {}
    loaded = load_config(config, overrides=overrides)
    _go(ctx, loaded, as_json, fresh=True, overwrite=overwrite, baseline=baseline, preflight=not no_preflight)


@main.command()
@click.argument("folder", type=RUN, metavar="RUN")
@click.option("--iterations", type=click.IntRange(0), default=None, help="Go on to this many iterations.")
@_settings
@_json
@click.pass_context
def resume(ctx: click.Context, folder: Path, iterations: int | None, settings: tuple[str, ...], as_json: bool) -> None:
    """Continue a run from where it stopped; nothing that is finished is paid again."""
    from bco_graph.config import parse_settings
    from bco_graph.driver import stored_config

    overrides = parse_settings(settings) | ({} if iterations is None else {"iterations": iterations})
    _go(ctx, stored_config(folder, overrides=overrides), as_json)


@main.command()
@click.argument("folder", type=RUN, metavar="RUN")
@click.argument("name")
@click.option("--at", required=True, metavar="iter_NNN", help="The round after whose end the two part.")
@_json
def fork(folder: Path, name: str, at: str, as_json: bool) -> None:
    """Make the run NAME beside RUN, as that was at the end of a round; `bco resume` then goes another way."""
    from bco_graph.fork import fork_run

    made = fork_run(folder, name, at=at)
    _print(as_json, {"folder": str(made.folder), "at": at}, f"wrote {made.folder}: bco resume {made.folder}")


@main.command()
@click.argument("folder", type=RUN, metavar="RUN")
@_json
def step(folder: Path, as_json: bool) -> None:
    """Show what a run waits for, and where: a step of the proposer `handoff`, or a question of `ask`."""
    from bco_graph.console import render_awaited
    from bco_graph.driver import awaited

    waiting = asyncio.run(awaited(folder))
    _print(as_json, {"awaited": waiting}, render_awaited(folder, waiting))


@main.command()
@click.argument("folder", type=RUN, metavar="RUN")
@click.option("--file", "file", type=CONFIG, default=None, help="The submission; default: workspace/submission.json.")
@_json
@click.pass_context
def submit(ctx: click.Context, folder: Path, file: Path | None, as_json: bool) -> None:
    """Hand in the awaited step, or reply to a question, and go on until the next one."""
    from bco_graph.console import read_submission
    from bco_graph.driver import stored_config

    answer = asyncio.run(read_submission(folder, file))
    _go(ctx, stored_config(folder), as_json, answer=answer)


@main.command()
@click.argument("folder", type=RUN, metavar="RUN")
@click.option("--reject", metavar="REASON", default=None, help="Give the edit up; the proposer is told why.")
@click.option("--edit", is_flag=True, help="Take what you made of workspace/scaffold/ instead.")
@click.option("--by", default="", help="Who says so, for the record.")
@_json
@click.pass_context
def approve(ctx: click.Context, folder: Path, reject: str | None, edit: bool, by: str, as_json: bool) -> None:
    """Say yes to what a run asks (an edit, an evaluation, a grade), and go on until the next question."""
    from bco_graph.console import reply_for
    from bco_graph.driver import stored_config

    answer = asyncio.run(reply_for(folder, reject=reject, edit=edit, by=by))
    _go(ctx, stored_config(folder), as_json, answer=answer)


@main.command()
@click.argument("folder", type=RUN, metavar="RUN")
@click.argument("act", type=click.Choice(["add", "veto", "lift", "pin", "unpin"]))
@click.argument("what", metavar="CLAIM|ID")
@click.option("--confidence", type=click.FloatRange(0, 1), default=None, help="Of an added belief; required there.")
@click.option("--kind", type=click.Choice(["execution", "evaluation"]), default=None, help="Of an added belief.")
@click.option("--conditions", default=None, help="Under which an added belief holds.")
@click.option("--mass", type=click.FloatRange(0), default=None, help="Failures that an added belief explains.")
@click.option("--reason", default="", help="Kept in HISTORY; a veto wants one.")
@click.option("--by", default="", help="Who says so, for the record.")
@_json
def believe(folder: Path, act: str, what: str, as_json: bool, **given: Any) -> None:
    """Add, veto, lift, pin or unpin a belief of a run that stands still."""
    from bco_graph.console import change_beliefs

    made = change_beliefs(folder, act, what, **given)
    (change,) = made["changes"]
    said = f"{act} {change['id']}: {change['after']['status']}, confidence {change['after']['confidence']:g}"
    _print(as_json, {"change": change, "head": made["head"]}, said)


@main.command()
@click.argument("folder", type=RUN, metavar="RUN")
@_json
def status(folder: Path, as_json: bool) -> None:
    """Where a run stands."""
    from bco_graph.driver import awaited
    from bco_graph.report.status import render_status
    from bco_graph.report.status import status as read_status
    from bco_graph.run_folder import RunFolder

    facts = read_status(RunFolder(folder), awaited=asyncio.run(awaited(folder)))
    _print(as_json, facts, render_status(facts))


@main.command()
@click.argument("folder", type=RUN, metavar="RUN")
def watch(folder: Path) -> None:
    """Follow a run that another process drives."""
    from bco_graph.console import watch as follow

    follow(folder)


@main.command()
@click.argument("folder", type=RUN, metavar="RUN")
@click.argument("what", nargs=-1, required=True)
@_json
def show(folder: Path, what: tuple[str, ...], as_json: bool) -> None:
    """Show iter_003, a belief (E3), `prediction iter_003`, `grade iter_003` or world-model."""
    from bco_graph.report.show import show as look
    from bco_graph.run_folder import RunFolder

    facts, shown = look(RunFolder(folder), " ".join(what))
    _print(as_json, facts, shown)


@main.command()
@click.argument("folder", type=RUN, metavar="RUN")
@click.argument("candidates", nargs=-1)
@_json
@click.pass_context
def heldout(ctx: click.Context, folder: Path, candidates: tuple[str, ...], as_json: bool) -> None:
    """Measure baseline and best (or the named candidates) on the held-out split; every look is logged."""
    from bco_graph.console import measure_heldout

    ctx.meta["run"] = folder
    facts, shown = asyncio.run(measure_heldout(folder, candidates, quiet=as_json))
    _print(as_json, facts, shown)


@main.command()
@click.argument("folder", type=RUN, metavar="RUN")
@_json
def verify(folder: Path, as_json: bool) -> None:
    """Work every figure out again from the stored rows, and compare."""
    from bco_graph.report.verify import render_findings
    from bco_graph.report.verify import verify as check
    from bco_graph.run_folder import RunFolder

    findings = check(RunFolder(folder))
    _print(as_json, {"findings": findings}, render_findings(findings))
    sys.exit(1 if any(finding["wrong"] for finding in findings) else 0)


@main.command()
@click.argument("folder", type=RUN, metavar="RUN")
@click.argument("a")
@click.argument("b")
@_json
def diff(folder: Path, a: str, b: str, as_json: bool) -> None:
    """Source and task differences of two candidates."""
    from bco_graph.report.show import diff as compare
    from bco_graph.run_folder import RunFolder

    text = compare(RunFolder(folder), a, b)
    click.echo(json.dumps({"diff": text}) if as_json else text)


@main.command()
@click.argument("folder", type=RUN, metavar="RUN")
@click.argument("dest", type=click.Path(path_type=Path))
@click.option("--candidate", default=None, help="Instead of the best.")
@click.option("--recording", is_flag=True, help="The proposer's steps and the target's responses, for replay.")
@click.option("--overwrite", is_flag=True)
@_json
def export(folder: Path, dest: Path, candidate: str | None, recording: bool, overwrite: bool, as_json: bool) -> None:
    """Write the best scaffold, byte for byte, or a recording of the run."""
    from bco_graph.export import export_recording, export_scaffold, render_recording
    from bco_graph.run_folder import RunFolder

    if recording:
        facts = export_recording(RunFolder(folder), dest)
        _print(as_json, facts, render_recording(facts))
        return
    facts = export_scaffold(RunFolder(folder), candidate, dest, overwrite=overwrite)
    _print(as_json, facts, f"wrote {dest}")


@main.command()
@click.option("--recorded", is_flag=True, help="Recorded model responses too: no model, no compiler, no key.")
@click.option("--proposer", default=None, metavar="MODEL", help="A live proposer, such as anthropic/claude-opus-5.")
@click.option("--iterations", type=click.IntRange(0), default=None)
@click.option("--runs", type=RUN, default="runs", show_default=True, help="Where the run folder goes.")
@_json
@click.pass_context
def demo(
    ctx: click.Context, recorded: bool, proposer: str | None, iterations: int | None, runs: Path, as_json: bool
) -> None:
    """The whole loop on the quickstart suite, with a real frozen model in this process."""
    from bco_graph.demo import demo as play

    ctx.meta["run"] = runs / "demo"
    facts = play(runs, recorded=recorded, proposer=proposer, iterations=iterations, quiet=as_json)
    if as_json:
        click.echo(json.dumps(facts, ensure_ascii=False))


def _go(ctx: click.Context, config: Any, as_json: bool, **options: Any) -> None:
    from bco_graph.console import drive_shown

    ctx.meta["run"] = config.run_dir
    facts, code = drive_shown(config, quiet=as_json, **options)
    if as_json:
        click.echo(json.dumps(facts, ensure_ascii=False))
    sys.exit(code)
