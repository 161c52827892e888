"""One baseline for several runs: the rows and traces of iteration 0, taken from another run when all is equal."""

from __future__ import annotations

import shutil
from typing import Any

from bco_graph.candidates import CandidateStore
from bco_graph.errors import RunMismatch
from bco_graph.receipts import Receipts, dumps
from bco_graph.run_folder import RunFolder
from bco_graph.state import REAL_OUTCOMES, candidate_id


def copy_baseline(source: RunFolder, target: RunFolder, receipts: Receipts, tree: str) -> None:
    """Copy iteration 0 from `source`. Raises RunMismatch when scaffold, tasks, target or repeats differ."""
    differences = _differences(source.read(), target.read(), CandidateStore(source.candidates), tree)
    if differences:
        raise RunMismatch(
            f"the baseline of {source.root} cannot serve {target.root}:\n  "
            + "\n  ".join(differences)
            + "\nLeave --baseline out to measure it again"
        )
    theirs = Receipts(source.receipts)
    try:
        rows = theirs.results("train", candidate_id(0))
    finally:
        theirs.close()
    traces = source.iteration(0) / "traces"
    shutil.copytree(traces, target.iteration(0) / "traces", dirs_exist_ok=True)
    for row in rows:
        if row.kind in REAL_OUTCOMES:
            receipts.add_result(row)


def _differences(theirs: dict[str, Any], ours: dict[str, Any], store: CandidateStore, tree: str) -> list[str]:
    pairs = [
        ("target", theirs["fingerprint"], ours["fingerprint"]),
        ("suite", theirs["suite"]["name"], ours["suite"]["name"]),
        ("train tasks", theirs["suite"]["train"], ours["suite"]["train"]),
        ("grader and task files", theirs["suite"]["files"], ours["suite"]["files"]),
        ("repeats", theirs["config"]["evaluation"]["repeats"], ours["config"]["evaluation"]["repeats"]),
        (
            "time limit of a task",
            theirs["config"]["evaluation"]["timeout_s"],
            ours["config"]["evaluation"]["timeout_s"],
        ),
    ]
    found = [f"{label}: {dumps(old)} there, {dumps(new)} here" for label, old, new in pairs if old != new]
    if candidate_id(0) not in store.ids():
        return [*found, "it has not evaluated its baseline yet"]
    if store.tree(candidate_id(0)) != tree:
        found.append("initial scaffold: the two folders differ")
    return found
