"""Where a run stands: from its folder alone, as JSON for programs and as a table for people."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from bco_graph.records import heldout_records
from bco_graph.report.lines import Part, fact, heading
from bco_graph.report.reading import Reading, is_running, last_run_event, reading
from bco_graph.report.wording import BASELINE, FIT_SCORE, STOPS, change, one_line, score, tokens, usd
from bco_graph.run_folder import RunFolder
from bco_graph.selection import compare, mean, scores_by_pair
from bco_graph.state import JSON

if TYPE_CHECKING:
    from rich.console import RenderableType

MEASURED = ("mean", "coverage", "passed", "tasks")


def status(folder: RunFolder, *, awaited: Mapping[str, JSON] | None = None) -> dict[str, JSON]:
    """`awaited` is what the run waits for from outside, if it does.

    `state` is one of: running, awaiting, finished (all iterations), stopped (a budget, a signal, a kill), failed
    (an error, or too many failed iterations). `claim` is `heldout` only where baseline and best both are measured
    there; else the means are a `fit score`. Money is None where a price is not known.
    """
    with reading(folder) as run:
        return {
            "run": str(folder.root), "name": run.config["name"], "method": run.method,
            "target": run.config["roles"]["target"], **_state(run, awaited), **_progress(run), **_standing(run),
            "spend": run.receipts.spend(), "heldout_looks": run.receipts.heldout_looks(),
        }  # fmt: skip


# -- how it goes ---------------------------------------------------------------------------------------------------


def _state(run: Reading, awaited: Mapping[str, JSON] | None) -> dict[str, JSON]:
    event = last_run_event(run.folder.events) or {}
    stop = event.get("stop") if event.get("type") == "run_ended" else _stop(run)
    error = f"{event['error']}: {event['message']}" if event.get("type") == "run_failed" else None
    facts: dict[str, JSON] = {"stop": stop, "error": error, "awaiting": None}
    if is_running(run.folder):
        return {"state": "running", **facts, "stop": None, "error": None}
    if awaited is not None:
        keys = ("iteration", "step", "workspace")
        return {"state": "awaiting", **facts, "awaiting": {key: awaited.get(key) for key in keys}}
    if dead := _dead_baseline(run):
        facts["error"] = error or dead
    if facts["error"] or stop == "failures":
        return {"state": "failed", **facts}
    return {"state": "finished" if stop == "iterations" else "stopped", **facts}


def _stop(run: Reading) -> str | None:
    """Why it ended, from the receipts alone: for a graph that somebody else drives, which logs no end."""
    outcomes = run.receipts.steps("evaluate")
    if not outcomes:
        return None
    iteration = outcomes[-1][0]
    if run.method == "bco" and run.step(iteration, "document") is None:
        return None
    if iteration >= run.config["iterations"]:
        return "iterations"
    recent = [outcome["failure"] for _, _, outcome in outcomes[-run.config["max_failures"] :]]
    if recent[-1] and recent[-1]["cause"] == "budget":
        return "budget"
    return "failures" if all(recent) else None  # the baseline is among the first ones, and no failure


def _dead_baseline(run: Reading) -> str | None:
    """What the baseline's rows say where none of them is a real result; None where it is not so, or not tried yet."""
    if run.step(0, "evaluate") is not None:
        return None
    rows = run.receipts.results("train", BASELINE)
    if not rows or any(row.score is not None for row in rows):
        return None
    notes = sorted({row.note or row.error for row in rows} - {""})
    return f"no task of the baseline has a real result, of {len(rows)} tried: {'; '.join(notes[:3])}"


def _progress(run: Reading) -> dict[str, JSON]:
    proposed = [record for _, _, record in run.receipts.steps("propose")]
    outcomes = [outcome for iteration, _, outcome in run.receipts.steps("evaluate") if iteration > 0]
    accepted = [record for record in proposed if record["result"] is not None]
    refused = [record for record in proposed if record["failure"] and record["failure"]["cause"] == "refused"]
    return {
        "iterations": {"done": len(outcomes), "planned": run.config["iterations"]},
        "proposals": {
            "made": len(proposed), "parsed": len(accepted) + len(refused), "applied": len(accepted),
            "evaluated": sum(outcome["candidate"] is not None for outcome in outcomes),
        },
        "failures": run.failures(),
    }  # fmt: skip


# -- what it found -------------------------------------------------------------------------------------------------


def _standing(run: Reading) -> dict[str, JSON]:
    """Baseline and best beside each other, on both splits; changes over the tasks that both have results on."""
    best = run.best()
    heldout = heldout_records(run.receipts)
    return {
        "baseline": _measured(run, BASELINE, heldout),
        "best": _measured(run, best, heldout) if best else None,
        "change": {"train": train_change(run, best), "heldout": heldout_change(run, best)},
        "claim": "heldout" if best and {best, BASELINE} <= heldout.keys() else FIT_SCORE,
    }  # fmt: skip


def _measured(run: Reading, name: str, heldout: Mapping[str, Mapping[str, JSON]]) -> dict[str, JSON] | None:
    record = run.candidates().get(name)
    if record is None:
        return None
    split = heldout.get(name)
    return {
        "id": name, "name": record["name"], "train": {key: record[key] for key in MEASURED},  # type: ignore[literal-required]
        "heldout": {key: split[key] for key in MEASURED} if split else None,
    }  # fmt: skip


def train_change(run: Reading, name: str | None) -> float | None:
    """Mean change against the baseline on the train tasks that both have a real result on, in [-1, 1]."""
    if name is None:
        return None
    before = scores_by_pair(run.receipts.results("train", BASELINE))
    after = scores_by_pair(run.receipts.results("train", name))
    changes = [now - was for pair, now in after.items() if now is not None and (was := before.get(pair)) is not None]
    return mean(changes) if changes else None


def heldout_change(run: Reading, name: str | None) -> dict[str, JSON] | None:
    """The paired comparison with the baseline on the held-out split; None where one of them is not measured there."""
    rows = {c: run.receipts.results("heldout", c) for c in (BASELINE, name) if c}
    if name is None or not all(rows.values()):
        return None
    found = compare(rows[BASELINE], rows[name], coverage_floor=run.config["evaluation"]["coverage_floor"])
    call = {"a_better": "baseline_better", "b_better": "best_better"}.get(found.call, found.call)
    return {
        "mean": found.difference, "low": found.low, "high": found.high, "shared": found.shared,
        "call": "no_difference" if name == BASELINE else call,
    }  # fmt: skip


# -- for people ----------------------------------------------------------------------------------------------------

_STATE_STYLES = {"running": "cyan", "awaiting": "yellow", "finished": "green", "stopped": "yellow", "failed": "red"}


def render_status(facts: Mapping[str, Any]) -> RenderableType:
    from bco_graph.report.layout import Lines, columns, stacked

    done, made = facts["iterations"], facts["proposals"]
    top = [
        heading((one_line(facts["name"]), "bold"), (f"method {facts['method']}", ""), (one_line(facts["run"]), "dim")),
        fact("state", (said_state(facts), _STATE_STYLES[facts["state"]])),
        fact("progress", (f"{done['done']} of {done['planned']} iterations", "")),
        fact("proposals", (", ".join(f"{number} {what}" for what, number in made.items()), "")),
        fact("failures", *_failure_parts(facts["failures"])),
        fact("target", (one_line(facts["target"]), "")),
        heading(("scores", "bold"), ("" if facts["baseline"] else "the baseline is not measured yet", "dim")),
    ]
    rows = _score_rows(facts)
    style = "" if facts["claim"] == "heldout" else "yellow"
    claim = [fact("claim", (_claim(facts), style))] if rows else []
    claim.append(fact("looks", (f"{facts['heldout_looks']} at held-out tasks", "")))
    spent = [
        [row["role"], one_line(row["deployment"]), f"{row['calls']:,}", f"{row['cache_hits']:,}",
         tokens(row["prompt_tokens"] + row["completion_tokens"]), usd(row["usd"])]
        for row in facts["spend"]
    ]  # fmt: skip
    return stacked(
        Lines(top),
        columns(("", "candidate", "name", *_SPLITS), rows, right=_SPLITS, wraps=("name",)) if rows else None,
        Lines([*claim, heading(("spend", "bold"), ("" if spent else "no model was called", "dim"))]),
        columns(_SPEND_HEADS, spent, right=_SPEND_HEADS[2:], wraps=("deployment",)) if spent else None,
    )


_SPLITS = ("train", "held-out")
_SPEND_HEADS = ("role", "deployment", "calls", "from cache", "tokens", "money")


def said_state(facts: Mapping[str, Any]) -> str:
    """The state in words, such as `stopped: a budget is used up`."""
    if waits := facts["awaiting"]:
        return f"awaiting step {waits['step']} of iteration {waits['iteration']} in {waits['workspace']}"
    if facts["error"]:
        return f"{facts['state']}: {one_line(facts['error'])}"
    if facts["state"] == "running":
        return "running"
    return f"{facts['state']}: {STOPS.get(facts['stop'], 'it was ended from outside')}"


def _failure_parts(failures: list[Mapping[str, Any]]) -> list[Part]:
    counts = Counter(f"{failure['step']} {failure['cause']}" for failure in failures)
    return [(f"{number} {kind}", "red") for kind, number in sorted(counts.items())] or [("none", "")]


def _claim(facts: Mapping[str, Any]) -> str:
    if facts["claim"] == "heldout":
        return "held-out: measured on tasks that were never searched on"
    return f"{FIT_SCORE}: nothing is said about tasks that the search did not see"


def _score_rows(facts: Mapping[str, Any]) -> list[list[str]]:
    best, baseline = facts["best"], facts["baseline"]
    rows = [
        [
            label,
            measured["id"],
            one_line(measured["name"]),
            said_mean(measured["train"]),
            said_mean(measured["heldout"]),
        ]
        for label, measured in (("best", best), ("baseline", baseline))
        if measured and not (label == "best" and measured["id"] == BASELINE)
    ]
    if best and best["id"] == BASELINE:
        return [*rows, ["best", "none", "no candidate beats the baseline", "", ""]]
    held = facts["change"]["heldout"]
    between = f"{change(held['mean'])} [{change(held['low'])}, {change(held['high'])}]" if held else ""
    call = held["call"].replace("_", " ") if held else ""
    return [*rows, ["change", "", call, change(facts["change"]["train"]), between]] if best else rows


def said_mean(measured: Mapping[str, Any] | None) -> str:
    """`0.425`, with the coverage where some tasks have no real result; empty where nothing was measured."""
    if measured is None:
        return ""
    mark = f" ({measured['coverage']:.0%} covered)" if measured["coverage"] < 1 else ""
    return score(measured["mean"]) + mark
