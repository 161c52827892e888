"""`bco verify`: every figure of a run worked out again from its receipts and candidates, and compared with what stands.

The receipts are the truth; what is checked is that nothing else says something different: sources, outcomes, seals,
grades, the document and its history, the best candidate, held-out looks.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any, TypedDict

from bco_graph.config import check_config
from bco_graph.document import document_of, document_text, documents, shows_calibration
from bco_graph.errors import BcoError
from bco_graph.evaluation.service import sum_up
from bco_graph.prediction import Prediction, render_prediction, seal
from bco_graph.receipts import dumps
from bco_graph.records import staged_tree
from bco_graph.report.reading import Reading, reading
from bco_graph.run_folder import RunFolder
from bco_graph.scaffold_tree import tree_digest
from bco_graph.scratch import scratch
from bco_graph.signature import signature_hits
from bco_graph.state import candidate_id
from bco_graph.world_model import lint


class Finding(TypedDict):
    """One thing that was checked. `wrong` says each difference; empty when all agrees."""

    what: str
    checked: int
    wrong: list[str]


def verify(folder: RunFolder) -> list[Finding]:
    """Every check, also after one has failed. Raises RunUnreadable where there is nothing to check."""
    with reading(folder) as run:
        return [_finding(what, check, run) for what, check in _CHECKS.items()]


def _finding(what: str, check: Callable[[Reading], Iterator[str | None]], run: Reading) -> Finding:
    results: list[str | None] = []
    try:
        results.extend(check(run))
    except (BcoError, OSError, ValueError, KeyError) as error:
        results.append(f"cannot be checked: {type(error).__name__}: {error}")
    return Finding(what=what, checked=len(results), wrong=[result for result in results if result])


def _sources(run: Reading) -> Iterator[str | None]:
    """A candidate's commit is the tree that was proposed, and `source/` shows it byte for byte."""
    store = run.store()
    for name, record in run.candidates().items():
        tree = store.tree(name)
        if record["iteration"] > 0 and staged_tree(run.receipts, record["iteration"]) != tree:
            yield f"{name}: the commit holds another tree than was proposed, or put in its place by a person"
            continue
        with scratch("verify") as apart:
            store.checkout(tree, apart / "tree")
            same = tree_digest(apart / "tree") == tree_digest(_iteration(run, record["iteration"]) / "source")
        yield None if same else f"{name}: source/ differs from the commit"


def _outcomes(run: Reading) -> Iterator[str | None]:
    for iteration, _, stored in run.receipts.steps("evaluate"):
        if stored["candidate"] is None:
            continue
        rows = run.receipts.results("train", stored["candidate"])
        again = sum_up(iteration, stored["candidate"], stored["parent"], rows)
        yield _same(f"{stored['candidate']}: outcome", stored, dict(again))


def _best(run: Reading) -> Iterator[str | None]:
    """The best that the event log last named is what the ranking function says now."""
    last: str | None = None
    for line in run.folder.events.read_text(encoding="utf-8").splitlines():
        event = json.loads(line)
        last = event["best"] if event["type"] == "candidate" else last
    yield _same("best candidate", last, run.best())


def _seals(run: Reading) -> Iterator[str | None]:
    for iteration, _, record in run.receipts.steps("predict"):
        if record["result"] is None:
            continue
        prediction = Prediction.from_json(record["result"]["content"])
        name = candidate_id(iteration)
        yield _same(f"{name}: seal of the prediction", record["result"]["digest"], seal(prediction))
        shown = (_iteration(run, iteration) / "prediction.md").read_text(encoding="utf-8")
        yield None if shown == render_prediction(prediction) else f"{name}: prediction.md differs from what was sealed"


def _grades(run: Reading) -> Iterator[str | None]:
    predictions = {i: r["result"]["content"] for i, _, r in run.receipts.steps("predict") if r["result"]}
    for iteration, _, grade in run.receipts.steps("graded"):
        prediction = Prediction.from_json(predictions[iteration])
        again = run.records.computed_grade(
            prediction,
            grade["candidate"],
            iteration,
            hits=partial(_hits, run, prediction.live_signature),
            coverage_floor=run.config["evaluation"]["coverage_floor"],
        )
        yield _same(f"{grade['candidate']}: computed grade", grade["computed"], again.to_json())


def _hits(run: Reading, signature: str, candidate: str) -> int | None:
    return signature_hits(signature, run.folder.workspace / "iterations" / candidate / "traces")


def _document(run: Reading) -> Iterator[str | None]:
    """The document is what the receipts say, lints clean, and has a record in HISTORY for each iteration."""
    if run.method != "bco":
        return
    config = check_config(run.config)
    shown = (run.folder.workspace / "world_model_calibration.md").read_text(encoding="utf-8")
    expected = document_text(run.receipts, calibration=shows_calibration(config))
    yield None if shown == expected else "world_model_calibration.md differs from what the receipts say"
    document = document_of(run.receipts)
    yield from (f"world model: {problem}" for problem in lint(document))
    documented = [record.iteration for record in document.history]
    yield _same("HISTORY: iterations", documented, [i for i, _ in documents(run.receipts)])


def _decisions(run: Reading) -> Iterator[str | None]:
    """What people decided is what came of it: no candidate of a rejected edit, beliefs changed as they were told."""
    for iteration, step, answer in run.receipts.steps():
        outcome = run.step(iteration, "evaluate")
        if step in ("approve", "afford") and answer["failure"] and outcome:
            rejected = outcome["candidate"] is None and outcome["failure"] == answer["failure"]
            yield (
                None
                if rejected
                else f"{candidate_id(iteration)}: a person rejected it in {step}, and it has an outcome"
            )
        elif step in ("approve", "afford", "review"):
            made = step != "review" or answer["change"] in (None, *(record for _, _, record in run.receipts.changes()))
            yield None if made else f"{candidate_id(iteration)}: the change of its review is not in the document"


def _heldout(run: Reading) -> Iterator[str | None]:
    """Nothing was measured on the held-out split without a look that was written down first."""
    measured = {row.candidate for row in run.receipts.results("heldout")}
    logged = set(run.receipts.heldout_candidates())
    for name in sorted(measured):
        yield None if name in logged else f"{name}: held-out rows without a logged look"


_CHECKS: dict[str, Callable[[Reading], Iterator[str | None]]] = {
    "sources of candidates": _sources,
    "outcomes": _outcomes,
    "best candidate": _best,
    "seals of predictions": _seals,
    "computed grades": _grades,
    "world model and history": _document,
    "decisions of people": _decisions,
    "held-out looks": _heldout,
}


def _same(what: str, stands: Any, again: Any) -> str | None:
    if dumps(stands) == dumps(again):
        return None
    if isinstance(stands, dict) and isinstance(again, dict):
        keys = sorted(key for key in stands.keys() | again.keys() if stands.get(key) != again.get(key))
        shown = "; ".join(f"{key}: {dumps(stands.get(key))} stands, {dumps(again.get(key))} is right" for key in keys)
        return f"{what}: {shown}"
    return f"{what}: {dumps(stands)} stands, {dumps(again)} is right"


def _iteration(run: Reading, number: int) -> Path:
    return run.folder.workspace / "iterations" / candidate_id(number)


def render_findings(findings: list[Finding]) -> Any:
    from rich.table import Table

    table = Table(box=None, show_header=False, padding=(0, 2, 0, 0))
    for finding in findings:
        wrong = finding["wrong"]
        mark = "[red]no[/]" if wrong else "[green]ok[/]"
        table.add_row(mark, finding["what"], "\n".join(wrong) or f"{finding['checked']} checked")
    return table
