"""Several runs side by side: what each method found, on which split, and what it cost."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from bco_graph.report.reading import reading
from bco_graph.report.status import status
from bco_graph.report.wording import FIT_SCORE, change, one_line, score, tokens, usd
from bco_graph.run_folder import RunFolder
from bco_graph.state import JSON

if TYPE_CHECKING:
    from rich.console import RenderableType

_HEADS = ("run", "method", "split", "base", "best", "change", "done", "tokens", "money")
_SHARED = (("target", "fingerprint"), ("tasks", "suite"))


def table(folders: Sequence[RunFolder]) -> tuple[dict[str, JSON], RenderableType]:
    """The status of each run, with `differs`: what they do not share, so that their means cannot be compared."""
    facts: dict[str, JSON] = {"runs": [status(folder) for folder in folders], "differs": _differs(folders)}
    return facts, _view(facts)


def _differs(folders: Sequence[RunFolder]) -> list[str]:
    manifests = []
    for folder in folders:
        with reading(folder) as run:
            manifests.append(run.manifest)
    return [label for label, key in _SHARED if any(m.get(key) != manifests[0].get(key) for m in manifests)]


def _view(facts: Mapping[str, Any]) -> RenderableType:
    from bco_graph.report.layout import Lines, columns, stacked
    from bco_graph.report.lines import fact

    rows = [row for run in facts["runs"] for row in _rows(run)]
    notes = []
    if facts["differs"]:
        what = " and ".join(facts["differs"])
        notes.append(
            fact("note", (f"these runs differ in {what}: compare no mean of one with one of another", "yellow"))
        )
    if any(run["claim"] != "heldout" for run in facts["runs"]):
        notes.append(fact("note", (f"a mean on train is a {FIT_SCORE}: it claims nothing about other tasks", "dim")))
    return stacked(columns(_HEADS, rows, right=_HEADS[3:], wraps=("run",), indent=0), Lines(notes))


def _rows(run: Mapping[str, Any]) -> list[list[str]]:
    done = f"{run['iterations']['done']}/{run['iterations']['planned']}"
    spent = sum(row["prompt_tokens"] + row["completion_tokens"] for row in run["spend"])
    dollars = [row["usd"] for row in run["spend"]]
    cost = [tokens(spent), "unknown" if None in dollars else usd(sum(dollars))]
    rows = [[one_line(run["name"]), run["method"], "train", *_means(run, "train"), done, *cost]]
    return [*rows, ["", "", "held-out", *_means(run, "heldout"), "", "", ""]] if run["claim"] == "heldout" else rows


def _means(run: Mapping[str, Any], split: str) -> list[str]:
    """Baseline, best and change on one split."""
    moved = run["change"][split]
    moved = moved["mean"] if isinstance(moved, Mapping) else moved
    measured = [run[which][split] if run[which] else None for which in ("baseline", "best")]
    return [*(score(item["mean"]) if item else "" for item in measured), "" if moved is None else change(moved)]
