"""`bco demo`: the whole loop on the quickstart suite, with the recorded steps of a proposer and a live target.

The proposer's steps are replayed; every score comes from the frozen model, in this process. With `recorded`, the
model's responses come from the recording too, so that no model and no compiler is needed; the run says so.
"""

from __future__ import annotations

import asyncio
import time
from pathlib import Path
from typing import Any

from rich.console import Console

from bco_graph.config import RunConfig, load_config
from bco_graph.console import drive_shown, measure_heldout
from bco_graph.errors import ConfigError
from bco_graph.gateway import local

EXAMPLE = Path(__file__).parent / "examples" / "quickstart"
RECORDING = EXAMPLE / "recorded" / "bco"
ITERATIONS = 3
"""Rounds of the demo: what fits into five minutes on two cores."""


def demo(runs: Path, *, recorded: bool, proposer: str | None, iterations: int | None, quiet: bool) -> dict[str, Any]:
    """Run it, measure held-out for baseline and best, and show what was learned. Replaces an earlier demo run."""
    console = Console(highlight=False, quiet=quiet)
    if not recorded and not local.available():
        console.print(r"llama-cpp-python or the model is not installed (extra \[local]): showing the recorded run" "\n")
        recorded = True
    config = _config(runs, proposer=proposer, iterations=iterations)
    if proposer is not None:
        _try_proposer(config)
    _introduce(console, recorded=recorded, proposer=proposer)
    started = time.monotonic()
    caches = {"extra_cache": RECORDING / "cache.sqlite", "offline": True} if recorded else {}
    facts, _ = drive_shown(config, quiet=quiet, overwrite=True, fresh=True, **caches)
    measured, table = asyncio.run(measure_heldout(config.run_dir, (), quiet=quiet, **caches))
    best = facts["best"]["id"] if facts["best"] else None
    _conclude(console, config, table, best, time.monotonic() - started)
    return {**facts, "heldout": measured, "seconds": round(time.monotonic() - started, 1), "recorded": recorded}


def _config(runs: Path, *, proposer: str | None, iterations: int | None) -> RunConfig:
    if not (EXAMPLE / "bco.yaml").is_file():
        raise ConfigError(f"the example is not installed: {EXAMPLE} is missing")
    overrides: dict[str, Any] = {"name": "demo", "runs": str(runs), "iterations": iterations or ITERATIONS}
    if proposer is None:
        return load_config(
            EXAMPLE / "bco.yaml",
            overrides={**overrides, "proposer.kind": "replay", "proposer.recording": str(RECORDING)},
        )
    config = load_config(EXAMPLE / "bco.yaml", overrides={**overrides, "proposer.kind": "agent"})
    raw = config.model_dump(mode="json")
    raw["models"]["model_list"].append({"model_name": "proposer", "litellm_params": {"model": proposer}})
    raw["roles"]["proposer"] = "proposer"
    return RunConfig.model_validate(raw)


def _try_proposer(config: RunConfig) -> None:
    """One cheap call first: a missing key is said at once and not after the baseline."""
    from bco_graph.doctor import examine_roles

    for check in asyncio.run(examine_roles(config)):
        if not check["ok"]:
            raise ConfigError(f"{check['what']}: {check['found']}")


def _introduce(console: Console, *, recorded: bool, proposer: str | None) -> None:
    who = f"the live model {proposer}" if proposer else "a recording of a run made by the book, replayed step by step"
    model = (
        "recorded responses of SmolLM2-135M (no model runs now)"
        if recorded
        else "SmolLM2-135M through llama.cpp, live in this process: every score is measured now"
    )
    console.print(f"[bold]proposer[/]  {who}\n[bold]target[/]    {model}\n")


def _conclude(console: Console, config: RunConfig, table: Any, best: str | None, seconds: float) -> None:
    from bco_graph.export import export_scaffold
    from bco_graph.report.show import show
    from bco_graph.run_folder import RunFolder

    folder = RunFolder(config.run_dir)
    scaffold = config.run_dir.with_name(f"{config.name}-best-scaffold")
    export_scaffold(folder, None, scaffold, overwrite=True)
    console.print()
    console.rule("train and held-out: the untouched baseline beside the best", align="left")
    console.print(table)
    console.rule("what the world model learned", align="left")
    console.print(show(folder, "world-model")[1])
    console.rule("the best scaffold", align="left")
    console.print(f"{best or 'iter_000'}, written to {scaffold}:")
    for path in sorted(path for path in scaffold.rglob("*") if path.is_file()):
        lines = len(path.read_text(encoding="utf-8", errors="replace").splitlines())
        console.print(f"  {path.relative_to(scaffold)}  {lines} lines")
    console.print(f"\n{seconds:.0f} s. To look further:")
    for command in ("show RUN iter_001", f"diff RUN iter_000 {best or 'iter_000'}", "show RUN E1", "status RUN"):
        console.print(f"  bco {command.replace('RUN', str(config.run_dir))}")
