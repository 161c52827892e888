"""One thing of a run in full: an iteration, a belief, a prediction, a grade, the world model; two candidates' diff."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from bco_graph.config import nearest
from bco_graph.document import documents
from bco_graph.errors import ConfigError
from bco_graph.report.compare import diff
from bco_graph.report.patches import diff_stat
from bco_graph.report.reading import Reading, reading, some
from bco_graph.report.wording import difference
from bco_graph.run_folder import RunFolder
from bco_graph.state import JSON, candidate_id

if TYPE_CHECKING:
    from rich.console import RenderableType

__all__ = ["diff", "show"]

WORLD_MODEL = "world-model"


def show(folder: RunFolder, what: str) -> tuple[dict[str, JSON], RenderableType]:
    """The facts as JSON, and the same to print. `what`: `iter_003`, `E3`, `prediction iter_003`, `grade iter_003` or
    `world-model`. Raises ConfigError with the nearest name and what there is."""
    from bco_graph.report import views

    with reading(folder) as run:
        kind, _, name = " ".join(what.split()).rpartition(" ")
        if kind == "" and name == WORLD_MODEL:
            facts = _world_model(run)
            return facts, views.world_model_view(facts)
        if kind == "" and name in _beliefs(run):
            facts = _belief(run, name)
            return facts, views.belief_view(facts)
        if name in _iterations(run) and kind in ("", "prediction", "grade"):
            if kind == "prediction":
                facts = _prediction(run, name)
                return facts, views.prediction_view(facts)
            if kind == "grade":
                facts = _grade(run, name)
                return facts, views.grade_view(facts)
            facts = _candidate(run, name)
            return facts, views.candidate_view(facts)
        raise _unknown(run, what)


def _unknown(run: Reading, what: str) -> ConfigError:
    iterations, beliefs = list(_iterations(run)), list(_beliefs(run))
    names = [*iterations, *beliefs, *([WORLD_MODEL] if run.method == "bco" else [])]
    names += [f"{kind} {name}" for kind in ("prediction", "grade") for name in iterations]
    near = nearest(what, names)
    lines = [f"{run.folder.root} has nothing called {what!r}{near}; it can show", f"  {some(iterations)}"]
    if run.method == "bco":
        lines += [f"  {some(beliefs)}" if beliefs else "  no belief yet", f"  {WORLD_MODEL}"]
        lines += ["  prediction ITERATION, grade ITERATION, such as `prediction iter_001`"]
    return ConfigError("\n".join(lines))


def _iterations(run: Reading) -> dict[str, int]:
    """Every iteration that has begun, failed ones among them, by candidate id."""
    return {candidate_id(i): i for i, step, _ in run.receipts.steps() if step in ("propose", "evaluate")}


# -- an iteration --------------------------------------------------------------------------------------------------


def _candidate(run: Reading, name: str) -> dict[str, JSON]:
    iteration = _iterations(run)[name]
    proposed = run.step(iteration, "propose") or {}
    proposal, outcome = proposed.get("result"), run.step(iteration, "evaluate")
    predicted = (run.step(iteration, "predict") or {}).get("result")
    return {
        "id": name, "iteration": iteration, "proposal": proposal, "refusals": proposed.get("refusals", []),
        "diff": _diff_stat(run, proposal), "outcome": outcome and {**outcome, "by_type": _by_type(run, outcome)},
        "baseline": (run.step(0, "evaluate") or {}).get("mean"),
        "parent_mean": _parent(run, outcome).get("mean"), "best": run.best() == name,
        "prediction": predicted and {"digest": predicted["digest"], **predicted["content"]},
        "grade": run.step(iteration, "graded"), "failures": run.failures(iteration),
        "decisions": _decisions(run, iteration),
    }  # fmt: skip


def _diff_stat(run: Reading, proposal: Mapping[str, JSON] | None) -> list[JSON]:
    if proposal is None:
        return []
    store = run.store()
    tree = (run.step(proposal["iteration"], "approve") or {}).get("tree") or proposal["tree"]
    return list(diff_stat(store.diff(store.tree(proposal["parent"]), tree)))


def _decisions(run: Reading, iteration: int) -> list[JSON]:
    """What people replied to the questions of an iteration, in their order."""
    answers = {step: run.step(iteration, step) for step in ("approve", "afford", "review")}
    return [
        {"step": step, "decision": answer["decision"], "reason": answer.get("reason", ""), "by": answer["by"],
         "changes": (answer.get("change") or {}).get("changes", [])}
        for step, answer in answers.items() if answer and answer["decision"] != "within"
    ]  # fmt: skip


def _parent(run: Reading, outcome: Mapping[str, JSON] | None) -> dict[str, JSON]:
    if not outcome or not outcome["parent"]:
        return {}
    return run.step(int(outcome["parent"].removeprefix("iter_")), "evaluate") or {}


def _by_type(run: Reading, outcome: Mapping[str, JSON]) -> dict[str, JSON]:
    before, counts = _parent(run, outcome).get("by_type", {}), _tasks_by_type(run, outcome["candidate"])
    return {
        name: {
            "tasks": counts.get(name, 0), "mean": mean, "parent": before.get(name),
            "change": difference(mean, before.get(name)),
        }
        for name, mean in outcome["by_type"].items()
    }  # fmt: skip


def _tasks_by_type(run: Reading, candidate: str | None) -> dict[str, int]:
    counts: dict[str, set[str]] = {}
    for row in run.receipts.results("train", candidate or ""):
        counts.setdefault(row.type, set()).add(row.task)
    return {name: len(tasks) for name, tasks in counts.items()}


def _prediction(run: Reading, name: str) -> dict[str, JSON]:
    record = run.step(_iterations(run)[name], "predict")
    if record is None or record["result"] is None:
        raise ConfigError(f"{name} has no prediction: {_why_not(run, record)}")
    return {"id": name, **record["result"]}


def _grade(run: Reading, name: str) -> dict[str, JSON]:
    iteration = _iterations(run)[name]
    record = run.step(iteration, "graded")
    if record is None:
        raise ConfigError(f"{name} has no grade: {_why_not(run, run.step(iteration, 'evaluate'))}")
    predicted = (run.step(iteration, "predict") or {}).get("result")
    return {**record, "id": name, "prediction": predicted and predicted["content"]}


def _why_not(run: Reading, record: Mapping[str, JSON] | None) -> str:
    if run.method != "bco":
        return f"the method {run.method!r} makes none"
    if record and (failure := record.get("failure")):
        return f"step {failure['step']} failed ({failure['cause']}): {'; '.join(failure['reasons'])}"
    return "its iteration has not come so far, or is the baseline"


# -- the world model -----------------------------------------------------------------------------------------------


def _heads(run: Reading) -> list[tuple[int, dict[str, Any], list[dict[str, Any]]]]:
    """(iteration, HEAD after it, its changes), in the order of iterations."""
    return [(i, record["head"], record["changes"]) for i, record in documents(run.receipts)]


def _beliefs(run: Reading) -> dict[str, tuple[int, dict[str, Any]]]:
    """Every belief there ever was, by id: the last iteration whose HEAD had it, and how it stood there."""
    found = {belief["id"]: (i, belief) for i, head, _ in _heads(run) for belief in head["beliefs"]}
    return dict(sorted(found.items(), key=lambda item: (item[0][0], int(re.sub(r"\D", "", item[0])))))


def _world_model(run: Reading) -> dict[str, JSON]:
    if run.method != "bco":
        raise ConfigError(f"{run.folder.root} has no world model: its method is {run.method!r}")
    heads = _heads(run)
    if not heads:
        raise ConfigError(f"{run.folder.root} has no world model yet: the baseline's update has not been made")
    iteration, head, _ = heads[-1]
    document = run.folder.root / "world_model_calibration.md"
    return {"iteration": iteration, "head": head, "document": str(document)}


def _belief(run: Reading, name: str) -> dict[str, JSON]:
    heads = _heads(run)
    _, belief = _beliefs(run)[name]
    experiments = {
        (tried["candidate"], tried["edit"]): tried
        for _, head, _ in heads
        for tried in head["experiments"]
        if name in tried["beliefs"]
    }
    alive = any(held["id"] == name for held in heads[-1][1]["beliefs"])
    return {
        "id": name, "retired": not alive, "belief": belief, "experiments": list(experiments.values()),
        "history": [
            {**item, "iteration": i, "reason": item.get("reason", reason)}
            for i, _, changes in heads
            for item, reason in zip(changes, _reasons(run, i, len(changes)), strict=True)
            if name == item["id"] or name in item.get("merged", ())
        ],
    }  # fmt: skip


def _reasons(run: Reading, iteration: int, changes: int) -> list[str]:
    """Why each change was made, in the update's own words; empty where the submission is not that of the changes."""
    submission = (run.step(iteration, "update") or {}).get("submission") or {}
    ops = submission.get("ops", [])
    return [str(op.get("reason", "")) for op in ops] if len(ops) == changes else [""] * changes
