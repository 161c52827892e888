"""What a run folder says: status, one thing in full, two candidates, several runs; folders made by the real stores."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
from collections.abc import Mapping, Sequence
from dataclasses import replace
from io import StringIO
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from bco_graph.calibration import SignatureHits, compute
from bco_graph.candidates import CandidateStore
from bco_graph.config import check_config
from bco_graph.errors import ConfigError, RunUnreadable
from bco_graph.evaluation.service import no_outcome, sum_up
from bco_graph.events import Events
from bco_graph.prediction import Prediction, build_prediction, render_prediction, seal
from bco_graph.receipts import CallRecord, Receipts, ResultRow
from bco_graph.report.patches import diff_stat
from bco_graph.report.reading import BLOCK_BYTES, last_run_event
from bco_graph.report.show import diff, show
from bco_graph.report.status import render_status, status
from bco_graph.report.table import table
from bco_graph.run_folder import RunFolder
from bco_graph.state import JSON, Failure, Grade, OutcomeKind, Proposal, Split, Verdict, candidate_id
from bco_graph.submissions import PredictSubmission
from bco_graph.world_model import Delta, Experiment, WorldModel, apply, record_experiment

TYPES = {"t0": "lookup", "t1": "lookup", "t2": "count", "t3": "count"}
PROMPT = "The word is: {word}\n"
Scores = Sequence[float | OutcomeKind]
"""One entry a task: its score, or the kind of an outcome that has none."""


class MadeRun:
    """A run folder written row by row through the stores that a run uses."""

    def __init__(self, root: Path, **changes: Any) -> None:
        self.folder = RunFolder(root)
        self.folder.claim(fresh=True, overwrite=False)
        self.config = check_config(
            {
                "name": root.name,
                "suite": "toy",
                "iterations": 2,
                "models": {"model_list": [{"model_name": "toy", "litellm_params": {"model": "openai/toy"}}]},
                "roles": {"target": "toy"},
                **changes,
            }
        )
        self.folder.write(
            {"name": root.name, "config": self.config.model_dump(mode="json"), "suite": {"name": "toy"},
             "fingerprint": {"model": "toy"}}
        )  # fmt: skip
        self.receipts = Receipts(self.folder.receipts)
        self.store = CandidateStore(self.folder.candidates)
        self.events = Events(self.folder.events)
        self.head = WorldModel()

    def results(self, split: Split, iteration: int, scores: Scores, repeat: int = 0) -> list[ResultRow]:
        rows = []
        for (task, type_), given in zip(TYPES.items(), scores, strict=True):
            kind: OutcomeKind = given if isinstance(given, str) else "scored"
            unreal = kind in ("infra_error", "ungradeable")
            score = None if unreal else given if isinstance(given, float) else 0.0
            row = ResultRow(
                split=split, candidate=candidate_id(iteration), task=task, repeat=repeat, type=type_, kind=kind,
                score=score, answer="x", note="the upstream is down" if unreal else "", error="", seconds=0.1,
                calls=1, tokens=15,
            )  # fmt: skip
            self.receipts.add_result(row)
            rows.append(row)
        return rows

    def evaluate(self, iteration: int, scores: Scores, parent: int | None = 0) -> None:
        """The rows and the outcome of a candidate; the baseline's source with it."""
        if iteration == 0:
            self.store.admit(0, self.stage({"prompt.md": PROMPT}), None)
        rows = self.results("train", iteration, scores)
        above = None if iteration == 0 or parent is None else candidate_id(parent)
        outcome = sum_up(iteration, candidate_id(iteration), above, rows)
        self.receipts.add_step(iteration, "evaluate", dict(outcome))

    def stage(self, files: Mapping[str, str | bytes]) -> str:
        scratch = self.folder.root / "scratch" / str(len(list(self.folder.root.glob("scratch/*"))))
        for name, content in files.items():
            (scratch / name).parent.mkdir(parents=True, exist_ok=True)
            (scratch / name).write_bytes(content.encode() if isinstance(content, str) else content)
        return self.store.stage(scratch)

    def propose(
        self, iteration: int, name: str, files: Mapping[str, str | bytes], *, parent: int = 0,
        beliefs: Sequence[str] = (), mechanism: str = "Ask for the word alone.",
    ) -> Proposal:  # fmt: skip
        """An accepted proposal whose edit became a candidate."""
        bco = self.config.method == "bco"
        proposal = Proposal(
            iteration=iteration, parent=candidate_id(parent), name=name, mode="probe" if bco else None,
            beliefs=list(beliefs), failure_mode="a sentence instead of a word" if bco else "", mechanism=mechanism,
            live_signature="asked once more" if bco else "", tree=self.stage(files), failure=None,
        )  # fmt: skip
        shown = ("parent", "name", "mechanism", *(("mode", "failure_mode", "beliefs", "live_signature") if bco else ()))
        submission = {key: proposal[key] for key in shown}  # type: ignore[literal-required]
        self.step(iteration, "propose", dict(proposal), submission, refusals=[["the parent is missing"]])
        self.store.admit(iteration, proposal["tree"], proposal["parent"])
        return proposal

    def step(
        self, iteration: int, step: str, result: JSON, submission: JSON, *, refusals: JSON = (), failure: JSON = None
    ) -> None:
        record = {"result": result, "submission": submission, "refusals": refusals, "trace_reads": None, "raw": ""}
        self.receipts.add_step(iteration, step, {**record, "failure": failure})

    def fail(self, iteration: int, step: str, cause: str, *reasons: str) -> None:
        """An iteration that ended without a candidate."""
        failure = Failure(step=step, cause=cause, reasons=list(reasons))
        if step in ("propose", "predict"):
            self.step(iteration, step, None, None, failure=dict(failure))
        self.receipts.add_step(iteration, "evaluate", dict(no_outcome(iteration, failure)))

    def predict(self, proposal: Proposal, **changes: Any) -> Prediction:
        submission: dict[str, Any] = {
            "base_why": "It is the only one.", "behavioural": "The answer is one word.", "confidence": 0.7,
            "subset": {"types": ["lookup"], "expected": 0.5, "low": 0.25, "high": 1.0}, "downside_bound": 0,
            "upside_types": ["lookup"], "net_effect": 0.25, "falsification": "Lookup stays where it was.", **changes,
        }  # fmt: skip
        prediction = build_prediction(proposal, PredictSubmission.model_validate(submission), attempts=0)
        result = {
            "content": prediction.to_json(),
            "digest": seal(prediction),
            "text": render_prediction(prediction),
        }
        self.step(proposal["iteration"], "predict", result, submission)
        return prediction

    def grade(self, prediction: Prediction, **changes: Any) -> Verdict:
        candidate = candidate_id(prediction.iteration)
        computed = compute(
            prediction, self.receipts.results("train", candidate), self.receipts.results("train", prediction.base),
            flipping=(), signature_hits=SignatureHits(2, 0), coverage_floor=0.9,
        )  # fmt: skip
        grade = Grade(
            iteration=prediction.iteration, candidate=candidate, verdict=computed.verdict, cause=None,
            computed=computed.to_json(), reading=None, differences=[], failure=None,
        )  # fmt: skip
        self.receipts.add_step(prediction.iteration, "graded", {**grade, **changes})
        return computed.verdict

    def update(self, iteration: int, *ops: Mapping[str, JSON], experiment: Experiment | None = None) -> None:
        delta = Delta.model_validate({"ops": list(ops)})
        applied = apply(self.head, delta, iteration=iteration, touched=None, evidence_exists=lambda path: True)
        self.head = record_experiment(applied.head, experiment) if experiment else applied.head
        document = {"head": self.head.to_json(), "changes": applied.changes, "history": "what was learned"}
        self.step(iteration, "update", document, delta.to_json())
        self.receipts.add_step(iteration, "document", document)

    def call(
        self, role: str, *, usd: float | None, cached: bool = False, key: str = "k", response: str = "{}",
        status: str = "ok",
    ) -> None:  # fmt: skip
        record = CallRecord(
            role=role, candidate="iter_000", task="t0", repeat=0, step="", deployment=f"{role}-deployment",
            model="toy", key=key, cached=cached, attempts=0 if cached else 1, status=status, prompt_tokens=1200,
            cached_tokens=0, completion_tokens=34, usd=usd, seconds=0.5, request="{}", response=response, changes={},
        )  # fmt: skip
        self.receipts.add_call(record)

    def close(self) -> RunFolder:
        self.receipts.close()
        return self.folder


def bco_run(root: Path) -> MadeRun:
    """Two iterations: one candidate that helps, and a proposal that was refused."""
    run = MadeRun(root)
    run.evaluate(0, [0.0, 1.0, "timeout", 1.0])
    evidence = [{"path": "iterations/iter_000/outcome.json", "locator": "rows 1-2"}]
    run.update(
        0,
        {"op": "add", "kind": "execution", "claim": "The target answers in sentences.", "conditions": "always",
         "confidence": 0.6, "evidence_for": evidence, "mass": 2, "reason": "Seen twice."},
        {"op": "add", "kind": "execution", "claim": "It cannot count.", "confidence": 0.4, "status": "refuted",
         "evidence_against": evidence, "mass": 1, "reason": "Seen once."},
    )  # fmt: skip
    files = {"prompt.md": PROMPT + "Reply with only the word.\n", "notes/new.txt": "a\nb\n"}
    proposal = run.propose(1, "only-the-word", files, beliefs=["E1"])
    prediction = run.predict(proposal)
    run.evaluate(1, [1.0, 1.0, "timeout", 1.0])
    run.grade(prediction)
    run.update(
        1,
        {"op": "revise", "id": "E1", "confidence": 0.75, "status": "confirmed", "reason": "The edit helped.",
         "add_evidence_for": [{"path": "iterations/iter_001/outcome.json"}]},
        {"op": "remove", "id": "E2", "evidence": evidence, "reason": "It was refuted."},
        experiment=Experiment(beliefs=("E1",), candidate="iter_001", edit="only-the-word", verdict="held", note="ok"),
    )  # fmt: skip
    run.fail(2, "propose", "refused", "scaffold/agent.py does not parse: line 3", "parent 'iter_9' is no candidate")
    run.update(2)
    run.call("target", usd=0.25)
    run.call("target", usd=0.25, cached=True)
    run.call("proposer", usd=None)
    return run


def rendered(renderable: Any, width: int = 80) -> str:
    file = StringIO()
    Console(file=file, width=width, highlight=False).print(renderable)
    return file.getvalue()


def facts_of(run: MadeRun, **options: Any) -> dict[str, Any]:
    facts = status(run.close(), **options)
    json.dumps(facts, allow_nan=False)
    return facts


# -- status --------------------------------------------------------------------------------------------------------


def test_a_finished_run_shows_best_beside_baseline_and_claims_nothing_beyond_train(tmp_path: Path) -> None:
    facts = facts_of(bco_run(tmp_path / "quick"))
    assert (facts["state"], facts["stop"]) == ("finished", "iterations")
    assert facts["baseline"]["train"] == {"mean": 0.5, "coverage": 1.0, "passed": 2, "tasks": 4}
    assert (facts["best"]["id"], facts["best"]["name"], facts["best"]["train"]["mean"]) == (
        "iter_001", "only-the-word", 0.75,
    )  # fmt: skip
    assert facts["change"] == {"train": 0.25, "heldout": None}
    assert (facts["claim"], facts["best"]["heldout"]) == ("fit score", None)
    assert "fit score" in rendered(render_status(facts))


def test_proposals_are_counted_by_how_far_they_came_and_failures_are_named(tmp_path: Path) -> None:
    run = bco_run(tmp_path / "quick")
    run.fail(3, "propose", "format", "the reply holds no JSON object")
    run.propose(4, "x", {"prompt.md": PROMPT + "x"})
    run.fail(4, "predict", "turns", "all 60 turns are used up")
    facts = facts_of(run)
    assert facts["proposals"] == {"made": 4, "parsed": 3, "applied": 2, "evaluated": 1}
    assert facts["iterations"] == {"done": 4, "planned": 2}
    assert [(f["iteration"], f["step"], f["cause"]) for f in facts["failures"]] == [
        (2, "propose", "refused"), (3, "propose", "format"), (4, "predict", "turns"),
    ]  # fmt: skip


def test_held_out_is_a_claim_only_where_baseline_and_best_both_are_measured(tmp_path: Path) -> None:
    run = bco_run(tmp_path / "quick")
    run.results("heldout", 1, [1.0, 1.0, 1.0, 0.0])
    run.receipts.log_heldout("iter_001", "a look")
    facts = status(run.folder)
    assert (facts["claim"], facts["best"]["heldout"]["mean"], facts["heldout_looks"]) == ("fit score", 0.75, 1)
    run.results("heldout", 0, [0.0, 1.0, 0.0, "infra_error"])
    facts = facts_of(run)
    assert facts["claim"] == "heldout"
    assert facts["baseline"]["heldout"]["mean"] == pytest.approx(1 / 3)
    assert facts["change"]["heldout"]["call"] == "undecided"
    text = rendered(render_status(facts))
    best, baseline = (next(line for line in text.splitlines() if name in line) for name in ("iter_001", "iter_000"))
    assert re.findall(r"\S+", best)[-2:] == ["0.750", "0.750"]
    assert baseline.endswith("0.333 (75% covered)")
    assert "fit score" not in text


def test_a_change_is_taken_over_the_tasks_that_both_have_results_on(tmp_path: Path) -> None:
    run = MadeRun(tmp_path / "quick", method="vanilla")
    run.evaluate(0, [0.0, 1.0, 1.0, "infra_error"])
    run.propose(1, "edit", {"prompt.md": PROMPT + "x"})
    run.evaluate(1, [1.0, 1.0, "infra_error", 1.0])
    run.receipts.add_step(9, "other", {"failure": None})
    assert status(run.folder)["best"] is None, "no candidate reaches the coverage floor"
    run.close()
    loose = MadeRun(tmp_path / "loose", method="vanilla", evaluation={"coverage_floor": 0.5})
    loose.evaluate(0, [0.0, 1.0, 1.0, "infra_error"])
    loose.propose(1, "edit", {"prompt.md": PROMPT + "x"})
    loose.evaluate(1, [1.0, 1.0, "infra_error", 1.0])
    facts = facts_of(loose)
    assert facts["change"]["train"] == 0.5
    assert "(75% covered)" in rendered(render_status(facts))


def test_spend_is_shown_by_role_with_hits_and_never_a_price_that_nobody_knows(tmp_path: Path) -> None:
    facts = facts_of(bco_run(tmp_path / "quick"))
    assert [(row["role"], row["calls"], row["cache_hits"], row["usd"]) for row in facts["spend"]] == [
        ("proposer", 1, 0, None), ("target", 1, 1, 0.25),
    ]  # fmt: skip
    lines = rendered(render_status(facts)).splitlines()
    assert any(line.split()[0] == "proposer" and line.endswith("unknown price") for line in lines if line.split())
    assert any(line.split()[0] == "target" and line.split()[-2:] == ["1.2k", "$0.25"] for line in lines if line.split())


HOLD = """\
import sys, time
from pathlib import Path
from bco_graph.run_folder import RunLock
lock = RunLock(Path(sys.argv[1]))
print("held", flush=True)
time.sleep(60)
"""


def test_a_run_is_running_while_its_process_lives_and_stopped_once_it_was_killed(tmp_path: Path) -> None:
    run = MadeRun(tmp_path / "quick")
    run.evaluate(0, [0.0, 1.0, 0.0, 1.0])
    folder = run.close()
    with subprocess.Popen(
        [sys.executable, "-c", HOLD, str(folder.root / "LOCK")], stdout=subprocess.PIPE, text=True
    ) as owner:
        assert owner.stdout is not None
        assert owner.stdout.readline() == "held\n"
        assert status(folder)["state"] == "running"
        os.kill(owner.pid, signal.SIGKILL)
        owner.wait()
    assert "process" in (folder.root / "LOCK").read_text(encoding="utf-8"), "a killed owner leaves its name"
    assert status(folder)["state"] == "stopped"
    folder.lock().release()


def test_an_awaited_step_is_named_with_where_it_is_awaited(tmp_path: Path) -> None:
    run = MadeRun(tmp_path / "quick")
    run.evaluate(0, [0.0, 1.0, 0.0, 1.0])
    facts = facts_of(run, awaited={"iteration": 1, "step": "propose", "workspace": "/runs/q/workspace", "more": "x"})
    assert facts["awaiting"] == {"iteration": 1, "step": "propose", "workspace": "/runs/q/workspace"}
    assert "awaiting step propose of iteration 1 in /runs/q/workspace" in rendered(render_status(facts))


def test_an_error_that_ended_the_run_makes_it_failed_until_it_is_resumed(tmp_path: Path) -> None:
    run = MadeRun(tmp_path / "quick")
    run.evaluate(0, [0.0, 1.0, 0.0, 1.0])
    run.events.emit("run_failed", 1, error="SuiteBroken", message="the grader raised")
    facts = status(run.folder)
    assert (facts["state"], facts["error"]) == ("failed", "SuiteBroken: the grader raised")
    run.events.emit("run_started", 1, name="quick")
    assert facts_of(run)["state"] == "stopped"


def test_a_baseline_without_any_real_result_is_a_failed_run_with_its_reason(tmp_path: Path) -> None:
    run = MadeRun(tmp_path / "quick")
    run.results("train", 0, ["infra_error"] * 4)
    facts = facts_of(run)
    assert (facts["state"], facts["best"], facts["baseline"]) == ("failed", None, None)
    assert "4 tried: the upstream is down" in facts["error"]
    assert "the upstream is down" in " ".join(rendered(render_status(facts)).split())


def test_the_stop_reason_follows_from_the_receipts_where_no_end_was_logged(tmp_path: Path) -> None:
    cut = MadeRun(tmp_path / "cut", iterations=1)
    cut.evaluate(0, [0.0, 1.0, 0.0, 1.0])
    cut.update(0)
    cut.propose(1, "edit", {"prompt.md": PROMPT + "x"})
    cut.evaluate(1, [1.0, 1.0, 0.0, 1.0])
    assert facts_of(cut)["state"] == "stopped", "the last update is not made"
    broke = MadeRun(tmp_path / "broke", method="vanilla", max_failures=2, iterations=9)
    broke.evaluate(0, [0.0, 1.0, 0.0, 1.0])
    broke.fail(1, "propose", "turns", "all turns are used up")
    assert status(broke.folder)["state"] == "stopped"
    broke.fail(2, "propose", "turns", "all turns are used up")
    facts = facts_of(broke)
    assert (facts["state"], facts["stop"]) == ("failed", "failures")


def test_the_logged_end_counts_before_what_the_receipts_suggest(tmp_path: Path) -> None:
    run = bco_run(tmp_path / "quick")
    run.events.emit("run_started", 0, name="quick")
    run.events.emit("run_ended", 2, stop="budget", best="iter_001", mean=0.75, baseline=0.5)
    facts = facts_of(run)
    assert (facts["state"], facts["stop"]) == ("stopped", "budget")


def test_the_last_event_of_a_run_is_found_behind_any_number_of_others(tmp_path: Path) -> None:
    events = Events(tmp_path / "events.jsonl")
    events.emit("run_started", 0, name="run_ended")
    events.emit("run_ended", 3, stop="iterations")
    for index in range(2000):
        events.emit("task_done", 3, task=f"task {index} of the held-out split", kind="scored")
    with (tmp_path / "events.jsonl").open("a", encoding="utf-8") as file:
        file.write('{"at":1,"iteration":4,"type":"run_st')
    found = last_run_event(tmp_path / "events.jsonl")
    assert found is not None
    assert (found["type"], found["stop"]) == ("run_ended", "iterations")
    assert last_run_event(tmp_path / "none.jsonl") is None


def test_the_last_event_of_a_run_is_found_where_blocks_meet(tmp_path: Path) -> None:
    path = tmp_path / "events.jsonl"
    for size in range(BLOCK_BYTES - 60, BLOCK_BYTES + 10, 5):
        path.write_text('{"type":"run_started"}\n{"at":1,"type":"run_ended","x":"é"}\n' + "x" * size, encoding="utf-8")
        assert (last_run_event(path) or {}).get("type") == "run_ended"


def test_a_folder_without_a_run_is_refused_and_left_as_it_is(tmp_path: Path) -> None:
    with pytest.raises(RunUnreadable, match=r"no run\.json"):
        status(RunFolder(tmp_path))
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("width", [34, 60, 80])
def test_nothing_is_printed_beyond_the_edge(tmp_path: Path, width: int) -> None:
    run = bco_run(tmp_path / ("quick" * 12))
    run.results("heldout", 0, [0.0, 1.0, 0.0, 1.0])
    run.results("heldout", 1, [0.0, 1.0, 0.0, 1.0])
    folder = run.close()
    views = [show(folder, what)[1] for what in ("iter_001", "E1", "world-model", "grade iter_001")]
    for view in [render_status(status(folder)), *views, table([folder])[1]]:
        assert max(len(line) for line in rendered(view, width).splitlines()) <= width


# -- show ----------------------------------------------------------------------------------------------------------


def test_a_candidate_is_shown_with_its_edit_its_outcome_by_type_and_what_was_predicted(tmp_path: Path) -> None:
    facts, view = show(bco_run(tmp_path / "quick").close(), "iter_001")
    json.dumps(facts, allow_nan=False)
    assert facts["diff"] == [
        {"path": "notes/new.txt", "how": "added", "added": 2, "removed": 0},
        {"path": "prompt.md", "how": "changed", "added": 1, "removed": 0},
    ]
    assert facts["outcome"]["by_type"]["lookup"] == {"tasks": 2, "mean": 1.0, "parent": 0.5, "change": 0.5}
    assert (facts["prediction"]["confidence"], facts["grade"]["verdict"], facts["best"]) == (0.7, "held", True)
    text = rendered(view)
    for expected in (
        "iter_001  probe  only-the-word  (on iter_000)  best so far",
        "Ask for the word alone.",
        "prompt.md +1 -0",
        "mean 0.750  3/4 passed  +0.250 on baseline",
        "the parent is missing",
        "held  subset +0.500 -> +0.500",
    ):
        assert expected in text
    assert re.search(r"lookup +2 +1\.000 +0\.500 +\+0\.500", text)


def test_a_failed_iteration_is_shown_with_every_reason(tmp_path: Path) -> None:
    facts, view = show(bco_run(tmp_path / "quick").close(), "iter_002")
    assert [failure["cause"] for failure in facts["failures"]] == ["refused"]
    text = " ".join(rendered(view).split())
    assert "step propose cause refused - scaffold/agent.py does not parse: line 3 - parent 'iter_9' is no" in text


def test_a_belief_is_shown_with_its_evidence_experiments_and_history(tmp_path: Path) -> None:
    facts, view = show(bco_run(tmp_path / "quick").close(), "E1")
    json.dumps(facts, allow_nan=False)
    assert [(item["iteration"], item["op"]) for item in facts["history"]] == [(0, "add"), (1, "revise")]
    text = rendered(view)
    for expected in (
        "E1  confirmed  confidence 0.75  execution",
        "- iterations/iter_000/outcome.json (rows 1-2)",
        "iter_001   held  E1  only-the-word",
        "iter_000   +E1 0.60  Seen twice.",
        "iter_001   E1 0.60 -> 0.75 confirmed  The edit helped.",
    ):
        assert expected in text
    assert not facts["retired"]


def test_a_removed_belief_can_still_be_looked_at(tmp_path: Path) -> None:
    facts, view = show(bco_run(tmp_path / "quick").close(), "E2")
    assert facts["retired"]
    text = rendered(view)
    assert "it is in the world model no more" in text
    assert "iter_001   -E2  It was refuted." in text


def test_the_world_model_lists_what_is_believed_now(tmp_path: Path) -> None:
    facts, view = show(bco_run(tmp_path / "quick").close(), "world-model")
    assert [belief["id"] for belief in facts["head"]["beliefs"]] == ["E1"]
    text = rendered(view)
    assert "The target answers in sentences." in text
    assert "It cannot count." not in text


def test_a_sealed_prediction_is_shown_as_it_was_written(tmp_path: Path) -> None:
    facts, view = show(bco_run(tmp_path / "quick").close(), "prediction iter_001")
    text = rendered(view)
    assert facts["digest"][:16] in text
    assert facts["text"].strip() in "\n".join(line.rstrip() for line in text.splitlines())


def test_a_grade_shows_computed_figures_beside_predicted_ones_and_the_reading(tmp_path: Path) -> None:
    run = MadeRun(tmp_path / "quick")
    run.evaluate(0, [0.0, 1.0, 0.0, 1.0])
    prediction = run.predict(run.propose(1, "edit", {"prompt.md": PROMPT + "x"}))
    run.evaluate(1, [0.0, 0.0, 0.0, 0.0])
    run.grade(
        prediction, cause="behaviour_without_score", differences=["subset_change: stated +0.500, computed -0.500"],
        reading={"behavioural_check": "It asked again.", "learned": "Asking is not enough.", "belief_update": ""},
    )  # fmt: skip
    text = rendered(show(run.close(), "grade iter_001")[1], width=100)
    for expected in (
        "refuted  subset +0.500 -> -0.500  2 tasks lost, at most 0 predicted",
        "t1, t3  at most 0 predicted",
        "blind spot t3",
        "0% of the named types improved",
        "It asked again.",
        "Asking is not enough.",
        "subset_change: stated +0.500, computed -0.500",
    ):
        assert expected in text


@pytest.mark.parametrize(
    ("what", "near"),
    [
        ("iter_01", "'iter_001'"),
        ("E12", "'E"),
        ("wrld-model", "'world-model'"),
        ("predicton iter_001", "'prediction"),
    ],
)
def test_an_unknown_name_gets_the_nearest_and_what_there_is(tmp_path: Path, what: str, near: str) -> None:
    with pytest.raises(ConfigError) as caught:
        show(bco_run(tmp_path / "quick").close(), what)
    message = str(caught.value)
    assert repr(what) in message
    assert f"did you mean {near}" in message
    assert "iter_000, iter_001, iter_002\n  E1, E2\n  world-model" in message


@pytest.mark.parametrize("what", ["prediction iter_001", "grade iter_001", "world-model"])
def test_what_a_method_does_not_have_is_refused_by_its_name(tmp_path: Path, what: str) -> None:
    run = MadeRun(tmp_path / "quick", method="vanilla")
    run.evaluate(0, [0.0, 1.0, 0.0, 1.0])
    run.propose(1, "edit", {"prompt.md": PROMPT + "x"})
    run.evaluate(1, [1.0, 1.0, 0.0, 1.0])
    with pytest.raises(ConfigError, match=r"vanilla"):
        show(run.close(), what)


def test_why_there_is_no_prediction_is_said(tmp_path: Path) -> None:
    run = bco_run(tmp_path / "quick")
    run.propose(3, "x", {"prompt.md": PROMPT + "x"})
    run.fail(3, "predict", "turns", "all 60 turns are used up")
    with pytest.raises(ConfigError, match=r"predict failed \(turns\): all 60 turns"):
        show(run.close(), "prediction iter_003")


def test_text_of_a_model_steers_neither_the_terminal_nor_the_markup(tmp_path: Path) -> None:
    run = MadeRun(tmp_path / "quick")
    run.evaluate(0, [0.0, 1.0, 0.0, 1.0])
    run.propose(1, "edit", {"prompt.md": PROMPT + "\x1b]0;title\x07\n"}, mechanism="[red]\x1b[2J gone\u202e [/nothing]")
    run.evaluate(1, [1.0, 1.0, 0.0, 1.0])
    folder = run.close()
    text = rendered(show(folder, "iter_001")[1])
    assert "[red]\\x1b[2J gone\\u202e [/nothing]" in text
    assert "\\x1b]0;title\\x07" in diff(folder, "iter_000", "iter_001")
    assert not re.search("[\x00-\x08\x0b-\x1f]", text + diff(folder, "iter_000", "iter_001"))


def test_names_in_tables_are_no_markup(tmp_path: Path) -> None:
    run = MadeRun(tmp_path / "quick", method="vanilla", name="x")
    run.receipts.add_result(replace(run.results("train", 0, [0.0] * 4)[0], task="t9", type="[red]odd[/] \x1b[2J"))
    run.receipts.add_step(0, "evaluate", dict(sum_up(0, "iter_000", None, run.receipts.results("train", "iter_000"))))
    assert "[red]odd[/] \\x1b[2J" in rendered(show(run.close(), "iter_000")[1])


# -- two candidates, several runs ----------------------------------------------------------------------------------


def test_a_diff_has_the_patch_and_the_tasks_that_moved_regressions_first(tmp_path: Path) -> None:
    run = MadeRun(tmp_path / "quick", method="vanilla")
    run.evaluate(0, [0.0, 1.0, 0.6, 1.0])
    run.propose(1, "edit", {"prompt.md": PROMPT + "Reply.\n"})
    run.evaluate(1, [1.0, "timeout", 0.7, "infra_error"])
    text = diff(run.close(), "iter_000", "iter_001")
    assert "+Reply." in text
    tail = text[text.index("3 shared train tasks") :].splitlines()
    assert tail[0] == "3 shared train tasks: 0.533 -> 0.567 (+0.033)"
    assert tail[1] == "1 pass -> fail, 1 fail -> pass, 1 better, 1 not comparable, 0 the same"
    assert [line.split("  ")[0] for line in tail[4:]] == ["pass -> fail", "fail -> pass", "better", "not comparable"]
    assert re.fullmatch(r"pass -> fail +t1 +lookup +1\.000 +0\.000 +timeout", tail[4])
    assert re.fullmatch(r"not comparable +t3 +count +1\.000 +no result +infra_error", tail[7])


def test_repeats_of_a_task_are_one_task_in_a_diff(tmp_path: Path) -> None:
    run = MadeRun(tmp_path / "quick", method="vanilla")
    run.evaluate(0, [0.0, 1.0, 0.0, 1.0])
    run.results("train", 0, [1.0, 1.0, 0.0, 1.0], repeat=1)
    run.propose(1, "edit", {"prompt.md": PROMPT})
    run.evaluate(1, [1.0, 1.0, 0.0, 1.0])
    run.results("train", 1, [1.0, 1.0, 0.0, 1.0], repeat=1)
    text = diff(run.close(), "iter_000", "iter_001")
    assert text.startswith("iter_000 and iter_001 have the same source.")
    assert "4 shared train tasks: 0.625 -> 0.750 (+0.125)\n1 better, 3 the same" in text


def test_a_diff_with_an_unknown_candidate_names_the_nearest(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"'iter_01' .*did you mean 'iter_001'.*there are: iter_000, iter_001"):
        diff(bco_run(tmp_path / "quick").close(), "iter_000", "iter_01")


def test_a_diff_stat_counts_content_that_looks_like_a_header_as_content(tmp_path: Path) -> None:
    run = MadeRun(tmp_path / "quick")
    old: dict[str, str | bytes] = {
        "a.md": "-- old\nsame\n",
        "b.bin": bytes(range(256)),
        "gone.txt": "x",
        "é ü.txt": "1\n",
    }
    new: dict[str, str | bytes] = {
        "a.md": "++ new\nsame\n@@ -1 +1 @@\ndiff --git a/x b/x",
        "b.bin": bytes(255),
        "é ü.txt": "1\n\n",
    }
    patch = run.store.diff(run.stage(old), run.stage(new))
    run.close()
    found = [(c["path"], c["how"], c["added"], c["removed"]) for c in diff_stat(patch)]
    assert found[:3] == [("a.md", "changed", 3, 1), ("b.bin", "changed", None, None), ("gone.txt", "removed", 0, 1)]
    assert found[3][1:] == ("changed", 1, 0)
    assert list(diff_stat("")) == []


def test_runs_stand_side_by_side_with_both_splits(tmp_path: Path) -> None:
    first = bco_run(tmp_path / "first")
    first.results("heldout", 0, [0.0, 1.0, 0.0, 0.0])
    first.results("heldout", 1, [1.0, 1.0, 0.0, 0.0])
    second = MadeRun(tmp_path / "second", method="vanilla")
    second.evaluate(0, [0.0, 1.0, 0.0, 1.0])
    facts, view = table([first.close(), second.close()])
    json.dumps(facts, allow_nan=False)
    assert facts["differs"] == []
    rows = [line.split() for line in rendered(view).splitlines()]
    assert ["first", "bco", "train", "0.500", "0.750", "+0.250", "2/2", "2.5k", "unknown"] in rows
    assert ["held-out", "0.250", "0.500", "+0.250"] in rows
    assert ["second", "vanilla", "train", "0.500", "0.500", "+0.000", "0/2", "0", "$0.00"] in rows
    assert "fit score" in rendered(view)


def test_runs_on_other_tasks_are_not_to_be_compared(tmp_path: Path) -> None:
    folders = [MadeRun(tmp_path / name).close() for name in ("a", "b")]
    manifest = folders[1].read()
    folders[1].write({**manifest, "suite": {"name": "other"}})
    facts, view = table(folders)
    assert facts["differs"] == ["tasks"]
    assert "these runs differ in tasks: compare no mean" in rendered(view)
