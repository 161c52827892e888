"""The loop as a graph: what flows where, what is recorded, what stops it, what a second start pays for."""

from __future__ import annotations

import asyncio
import contextlib
import json
import shutil
import sqlite3
from pathlib import Path
from typing import Any

import pytest
from langgraph.checkpoint.memory import InMemorySaver

from bco_graph.binding import RunHandle
from bco_graph.config import RunConfig
from bco_graph.driver import Ended, drive
from bco_graph.errors import ConfigError, RunMismatch, StepFailed
from bco_graph.graph import create_bco, recursion_limit
from bco_graph.protocols import Step, StepResult, T
from bco_graph.receipts import Receipts
from bco_graph.report.verify import verify
from bco_graph.run_folder import RunFolder
from bco_graph.state import BCOState
from bco_graph.testing import Reply, ScriptedModelServer
from bco_graph.world_model import parse_document
from tests.toy import BOTH, NAIVE, SHORT, Edit, ScriptedProposer, ToySuite, answer, prompt_edit, toy_config, two_edits

MARK = "asked-alone"


async def play(config: RunConfig, suite: ToySuite, proposer: Any, **options: Any) -> tuple[Ended, list[Any]]:
    events: list[Any] = []
    ended = await drive(config, suite=suite, proposer=proposer, subscriber=events.append, **options)
    return ended, events


def believed(config: RunConfig) -> list[float]:
    """Confidences of the beliefs that the document holds."""
    document = parse_document((config.run_dir / "world_model_calibration.md").read_text(encoding="utf-8"))
    return [belief.confidence for belief in document.head.beliefs]


async def test_bco_improves_the_scaffold_and_keeps_its_beliefs(
    tmp_path: Path, server: ScriptedModelServer, suite: ToySuite
) -> None:
    config = toy_config(tmp_path, server)
    ended, events = await play(config, suite, two_edits())
    assert ended.stop == "iterations"
    assert [c["mean"] for c in ended.candidates] == [0.0, 0.5, 1.0]
    assert ended.state["best"] == {"id": "iter_002", "mean": 1.0}
    order = [event["node"] for event in events if event["type"] == "node_started"]
    assert order == ["evaluate", "update", *["propose", "predict", "evaluate", "grade", "update"] * 2]
    grades = [event["verdict"] for event in events if event["type"] == "grade"]
    assert grades == ["held", "held"]
    document = parse_document((config.run_dir / "world_model_calibration.md").read_text(encoding="utf-8"))
    assert [b.id for b in document.head.beliefs] == ["E1"]
    assert document.head.beliefs[0].confidence == pytest.approx(0.9)
    assert [e.candidate for e in document.head.experiments] == ["iter_001", "iter_002"]
    assert [record.iteration for record in document.history] == [0, 1, 2]
    assert ended.state["world_model"] == {"iteration": 2, "beliefs": 1, "experiments": 2}


async def test_the_evidence_of_an_iteration_is_complete_and_says_the_same_as_the_receipts(
    tmp_path: Path, server: ScriptedModelServer, suite: ToySuite
) -> None:
    config = toy_config(tmp_path, server, iterations=1)
    await play(config, suite, two_edits())
    folder = config.run_dir / "iterations" / "iter_001"
    names = {p.relative_to(folder).as_posix() for p in folder.rglob("*") if p.is_file()}
    assert {"proposal.json", "prediction.md", "diff.patch", "outcome.json", "grade.md", "source/prompt.md"} <= names
    assert {f"traces/toy-train-{i}.json" for i in range(8)} <= names
    trace = json.loads((folder / "traces/toy-train-0.json").read_text(encoding="utf-8"))
    assert (trace["answer"], trace["expected"], trace["events"], trace["score"]) == ("fig", "fig", [MARK], 1.0)
    assert trace["calls"][0]["request"]["messages"][0]["content"] == SHORT.replace("{word}", "fig")
    matrix = (config.run_dir / "workspace" / "task_score_matrix.csv").read_text(encoding="utf-8").splitlines()
    assert matrix[:2] == ["task,type,iter_000,iter_001", "toy-train-0,short,0,1"]
    assert "+Reply with only the word." in (folder / "diff.patch").read_text(encoding="utf-8")
    assert not any("heldout" in p.name for p in (config.run_dir / "workspace").rglob("*"))


@pytest.mark.parametrize("method", ["vanilla", "notes"])
async def test_vanilla_and_notes_have_two_nodes_and_no_world_model(
    tmp_path: Path, server: ScriptedModelServer, suite: ToySuite, method: str
) -> None:
    config = toy_config(tmp_path, server, method=method)
    proposer = ScriptedProposer({1: prompt_edit(SHORT), 2: prompt_edit(BOTH)})
    ended, events = await play(config, suite, proposer)
    order = [event["node"] for event in events if event["type"] == "node_started"]
    assert order == ["evaluate", *["propose", "evaluate"] * 2]
    assert ended.state["best"] == {"id": "iter_002", "mean": 1.0}
    assert not (config.run_dir / "world_model_calibration.md").exists()
    assert (config.run_dir / "agent_notes.md").exists() == (method == "notes")
    assert {step for _, step in proposer.performed} == {"propose"}


async def test_notes_are_carried_on_and_kept_in_the_receipts(
    tmp_path: Path, server: ScriptedModelServer, suite: ToySuite
) -> None:
    def edit(scaffold: Path) -> None:
        prompt_edit(SHORT)(scaffold)
        (scaffold.parent / "agent_notes.md").write_text("asking helps\n", encoding="utf-8")

    config = toy_config(tmp_path, server, method="notes", iterations=1)
    await play(config, suite, ScriptedProposer({1: edit}))
    receipts = Receipts(config.run_dir / "receipts.sqlite")
    record = receipts.step(1, "propose")
    receipts.close()
    assert record is not None
    assert record["result"]["notes"] == "asking helps\n"


async def test_a_failed_step_is_a_recorded_iteration_and_the_run_goes_on(
    tmp_path: Path, server: ScriptedModelServer, suite: ToySuite
) -> None:
    def nothing(step: Step[Any]) -> Any:
        raise StepFailed(step.name, cause="empty", reasons=["the reply was empty"])

    proposer = two_edits()
    proposer.submissions[(1, "propose")] = nothing
    proposer.submissions[(2, "propose")] = {**proposer.submissions[(2, "propose")], "parent": "iter_000"}
    config = toy_config(tmp_path, server)
    ended, events = await play(config, suite, proposer)
    assert ended.stop == "iterations"
    assert [c["id"] for c in ended.candidates] == ["iter_000", "iter_002"]
    failed = next(event for event in events if event["type"] == "step_failed")
    assert (failed["step"], failed["cause"], failed["reasons"]) == ("propose", "empty", ["the reply was empty"])
    assert (1, "predict") not in proposer.performed
    assert len(server.requests) == 16
    text = (config.run_dir / "world_model_calibration.md").read_text(encoding="utf-8")
    assert "No candidate: step propose failed (empty): the reply was empty" in text


async def test_failures_in_a_row_stop_the_run_and_nothing_is_spent_after(
    tmp_path: Path, server: ScriptedModelServer, suite: ToySuite
) -> None:
    config = toy_config(tmp_path, server, iterations=50, max_failures=3)
    ended, _ = await play(config, suite, ScriptedProposer({}))
    assert ended.stop == "failures"
    assert ended.state["iteration"] == 3
    assert len(server.requests) == 8
    assert ended.state["best"] == {"id": "iter_000", "mean": 0.0}


async def test_a_refused_update_leaves_the_document_as_it_was_and_is_on_the_record(
    tmp_path: Path, server: ScriptedModelServer, suite: ToySuite
) -> None:
    proposer = two_edits()
    unknown = {"op": "revise", "id": "E9", "confidence": 0.9, "reason": "x", "add_evidence_for": [{"path": "none"}]}
    proposer.submissions[(1, "update")] = {"ops": [unknown]}
    config = toy_config(tmp_path, server, iterations=1)
    _, events = await play(config, suite, proposer)
    assert believed(config) == [0.6]
    reasons = next(event for event in events if event["type"] == "step_failed")["reasons"]
    assert any("E9" in reason for reason in reasons)
    assert any("none" in reason for reason in reasons)
    assert "Update refused" in (config.run_dir / "world_model_calibration.md").read_text(encoding="utf-8")


async def test_a_mechanism_that_left_no_mark_moves_no_belief(
    tmp_path: Path, server: ScriptedModelServer, suite: ToySuite
) -> None:
    proposer = ScriptedProposer({1: prompt_edit(SHORT)})  # it helps, but its signature is in no trace
    config = toy_config(tmp_path, server, iterations=1)
    ended, _ = await play(config, suite, proposer)
    assert ended.state["grade"]["verdict"] == "void"
    assert ended.state["outcome"]["mean"] == 0.5
    assert "none: this outcome says nothing" in proposer.instructions[(1, "update")]
    assert believed(config) == [0.6]


@pytest.mark.parametrize(
    ("edit", "reason"),
    [
        (prompt_edit("no placeholder\n"), "{word}"),
        (lambda scaffold: (scaffold / "agent.py").write_text("def other(): ...\n", encoding="utf-8"), "solve"),
        (lambda scaffold: None, "the same as iter_000"),
        (prompt_edit("The word is: {word}\n# toy-train-3\n"), "line 2: holds a task id"),
        (lambda scaffold: (scaffold / "link").symlink_to("/etc/passwd"), "link"),
    ],
)
async def test_an_edit_that_breaks_an_invariant_costs_no_target_call(
    tmp_path: Path, server: ScriptedModelServer, suite: ToySuite, edit: Edit, reason: str
) -> None:
    ended, _ = await play(toy_config(tmp_path, server, iterations=1), suite, ScriptedProposer({1: edit}))
    assert ended.state["outcome"]["candidate"] is None
    assert any(reason in said for said in ended.state["outcome"]["failure"]["reasons"])
    assert len(server.requests) == 8


async def test_a_scaffold_that_never_calls_the_target_is_no_candidate(
    tmp_path: Path, server: ScriptedModelServer, suite: ToySuite
) -> None:
    def cheat(scaffold: Path) -> None:
        text = "async def solve(task, target):\n    return task.inputs['word'] or await target.chat('never')\n"
        (scaffold / "agent.py").write_text(text, encoding="utf-8")

    ended, _ = await play(toy_config(tmp_path, server, iterations=1), suite, ScriptedProposer({1: cheat}))
    assert "without ever calling the target" in ended.state["outcome"]["failure"]["reasons"][0]
    assert ended.state["best"] == {"id": "iter_000", "mean": 0.0}


async def test_a_run_goes_on_to_more_iterations_and_pays_only_for_them(
    tmp_path: Path, server: ScriptedModelServer, suite: ToySuite
) -> None:
    proposer = two_edits()
    await play(toy_config(tmp_path, server, iterations=1), suite, proposer)
    before, performed = len(server.requests), list(proposer.performed)
    ended, _ = await play(toy_config(tmp_path, server, iterations=2), suite, proposer)
    assert [c["mean"] for c in ended.candidates] == [0.0, 0.5, 1.0]
    assert len(server.requests) == before + 8
    assert proposer.performed[: len(performed)] == performed
    assert proposer.performed[len(performed) :] == [
        (2, "propose"), (2, "predict"), (2, "grade"), (2, "update")
    ]  # fmt: skip


async def test_a_budget_ends_the_run_before_the_call_that_would_pass_it_and_a_larger_one_goes_on(
    tmp_path: Path, server: ScriptedModelServer, suite: ToySuite
) -> None:
    proposer = two_edits()
    limited = toy_config(tmp_path, server, budget={"calls": 16, "reserve_heldout": False})
    ended, _ = await play(limited, suite, proposer)
    assert ended.stop == "budget"
    assert len(server.requests) == 16
    assert [c["mean"] for c in ended.candidates] == [0.0, 0.5]
    ended, _ = await play(toy_config(tmp_path, server, budget={"calls": 100}), suite, proposer)
    assert ended.stop == "iterations"
    assert [c["mean"] for c in ended.candidates] == [0.0, 0.5, 1.0]
    assert len(server.requests) == 24


@pytest.mark.parametrize("method", ["bco", "vanilla"])
async def test_an_evaluation_that_a_budget_cut_off_is_ended_first_when_there_is_a_larger_one(
    tmp_path: Path, server: ScriptedModelServer, suite: ToySuite, method: str
) -> None:
    proposer = two_edits()
    less = {"calls": 12, "reserve_heldout": False}
    ended, events = await play(toy_config(tmp_path, server, method=method, budget=less), suite, proposer)
    assert (ended.stop, len(server.requests), ended.state["iteration"]) == ("budget", 12, 0)
    assert [c["id"] for c in ended.candidates] == ["iter_000"]
    assert [event["stop"] for event in events if event["type"] == "run_ended"] == ["budget"]
    more = {"calls": 100, "reserve_heldout": False}
    config = toy_config(tmp_path, server, method=method, budget=more)
    ended, events = await play(config, suite, proposer)
    assert (ended.stop, [c["mean"] for c in ended.candidates]) == ("iterations", [0.0, 0.5, 1.0])
    assert [event["node"] for event in events if event["type"] == "node_started"][:1] == ["evaluate"]
    assert len(server.requests) == 24
    assert len(set(proposer.performed)) == len(proposer.performed)
    receipts = Receipts(config.run_dir / "receipts.sqlite")
    assert [iteration for iteration, _, _ in receipts.steps("evaluate")] == [0, 1, 2]
    receipts.close()
    assert [finding for finding in verify(RunFolder(config.run_dir)) if finding["wrong"]] == []


async def test_what_a_budget_left_at_the_coverage_floor_is_a_result(
    tmp_path: Path, server: ScriptedModelServer, suite: ToySuite
) -> None:
    less = {"calls": 12, "reserve_heldout": False}
    enough = {"coverage_floor": 0.5, "timeout_s": 20.0}
    ended, _ = await play(toy_config(tmp_path, server, budget=less, evaluation=enough), suite, two_edits())
    assert (ended.stop, ended.state["iteration"]) == ("budget", 1)
    assert [(c["id"], c["coverage"]) for c in ended.candidates] == [("iter_000", 1.0), ("iter_001", 0.5)]


@pytest.mark.parametrize("method", ["bco", "vanilla"])
async def test_a_baseline_that_a_budget_cut_off_is_ended_first(
    tmp_path: Path, server: ScriptedModelServer, suite: ToySuite, method: str
) -> None:
    less = {"tokens": 70, "reserve_heldout": False}
    concurrency = {"concurrency": 1, "timeout_s": 20.0}
    first = toy_config(tmp_path, server, method=method, budget=less, evaluation=concurrency)
    proposer = two_edits()
    ended, _ = await play(first, suite, proposer)
    assert (ended.stop, ended.candidates, proposer.performed) == ("budget", [], [])
    assert 0 < len(server.requests) < 8
    ended, _ = await play(toy_config(tmp_path, server, method=method), suite, proposer)
    assert (ended.stop, [c["mean"] for c in ended.candidates]) == ("iterations", [0.0, 0.5, 1.0])
    assert len(server.requests) == 24


class Interrupted(ScriptedProposer):
    """Fails at one step, the first time, with what no one catches."""

    def __init__(self, inner: ScriptedProposer, at: tuple[int, str]) -> None:
        super().__init__(inner.edits, inner.submissions)
        self.at: tuple[int, str] | None = at

    async def perform(self, step: Step[T]) -> StepResult[T]:
        if (step.iteration, step.name) == self.at:
            self.at = None
            raise ConnectionResetError("the process died here")
        return await super().perform(step)


@pytest.mark.parametrize("at", [(0, "update"), (1, "propose"), (1, "predict"), (1, "grade"), (1, "update")])
async def test_a_run_that_died_in_a_step_ends_as_one_that_did_not(
    tmp_path: Path, server: ScriptedModelServer, suite: ToySuite, at: tuple[int, str]
) -> None:
    config = toy_config(tmp_path, server)
    proposer = Interrupted(two_edits(), at)
    with pytest.raises(ConnectionResetError):
        await play(config, suite, proposer)
    ended, _ = await play(config, suite, proposer)
    assert [c["mean"] for c in ended.candidates] == [0.0, 0.5, 1.0]
    assert len(server.requests) == 24
    assert sorted(set(proposer.performed)) == sorted(proposer.performed)


async def test_a_run_is_not_continued_with_another_target(
    tmp_path: Path, server: ScriptedModelServer, suite: ToySuite
) -> None:
    await play(toy_config(tmp_path, server, iterations=0), suite, ScriptedProposer({}))
    params = {"model": "openai/other", "api_base": server.base_url, "api_key": "none", "temperature": 0}
    models = {"model_list": [{"model_name": "toy", "litellm_params": params}]}
    with pytest.raises(RunMismatch, match=r"target: .*toy-model.*other"):
        await play(toy_config(tmp_path, server, iterations=1, models=models), suite, ScriptedProposer({}))


async def test_another_run_s_baseline_is_reused_without_a_call_and_only_where_all_is_equal(
    tmp_path: Path, server: ScriptedModelServer, suite: ToySuite
) -> None:
    first = toy_config(tmp_path, server, iterations=0)
    await play(first, suite, ScriptedProposer({}))
    second = toy_config(tmp_path, server, iterations=0, name="vanilla", method="vanilla")
    ended, _ = await play(second, suite, ScriptedProposer({}), baseline=first.run_dir)
    assert len(server.requests) == 8
    assert ended.candidates[0]["mean"] == 0.0
    assert (second.run_dir / "iterations/iter_000/traces/toy-train-0.json").exists()
    (suite.initial_scaffold() / "prompt.md").write_text(SHORT, encoding="utf-8")
    third = toy_config(tmp_path, server, iterations=0, name="other")
    with pytest.raises(RunMismatch, match="initial scaffold"):
        await play(third, suite, ScriptedProposer({}), baseline=first.run_dir)


async def test_upstream_faults_are_no_zeros_and_leave_the_candidate_undecided(
    tmp_path: Path, server: ScriptedModelServer, suite: ToySuite
) -> None:
    """Half of the tasks of the candidate fail upstream; its mean is over the rest, and the baseline stays best."""

    def flaky(body: dict[str, Any]) -> Reply:
        text = body["messages"][-1]["content"]
        if "only the word" in text and any(word in text for word in ("chestnut", "sycamore", "hornbeam", "tamarind")):
            return Reply("rate limit", status=429)
        return answer(body)

    server.script("toy-model", flaky)
    ended, _ = await play(toy_config(tmp_path, server, iterations=1), suite, two_edits())
    outcome = ended.state["outcome"]
    assert (outcome["mean"], outcome["coverage"], outcome["kinds"]) == (1.0, 0.5, {"infra_error": 4, "scored": 4})
    assert ended.state["grade"]["verdict"] == "undecided"
    assert ended.state["best"] == {"id": "iter_000", "mean": 0.0}


async def test_answers_that_read_like_faults_are_graded_as_answers(
    tmp_path: Path, server: ScriptedModelServer, suite: ToySuite
) -> None:
    server.script("toy-model", lambda body: Reply("rate limit exceeded 429 timeout"))
    ended, _ = await play(toy_config(tmp_path, server, iterations=0), suite, ScriptedProposer({}))
    assert (ended.state["outcome"]["coverage"], ended.state["outcome"]["kinds"]) == (1.0, {"scored": 8})


def test_the_graph_can_be_invoked_synchronously_also_inside_a_running_loop(
    tmp_path: Path, server: ScriptedModelServer, suite: ToySuite
) -> None:
    config = toy_config(tmp_path, server)
    handle = RunHandle(config, suite=suite, proposer=two_edits())
    graph = create_bco(config, handle=handle).compile(checkpointer=InMemorySaver())
    thread: Any = {"configurable": {"thread_id": "1"}, "recursion_limit": recursion_limit(config)}

    async def as_in_a_notebook() -> Any:
        return graph.invoke({}, thread)

    state = asyncio.run(as_in_a_notebook())
    handle.close()
    assert state["best"] == {"id": "iter_002", "mean": 1.0}


async def test_events_stream_through_the_graph_as_custom_chunks(
    tmp_path: Path, server: ScriptedModelServer, suite: ToySuite
) -> None:
    config = toy_config(tmp_path, server, iterations=1)
    handle = RunHandle(config, suite=suite, proposer=two_edits())
    graph = create_bco(config, handle=handle).compile()
    seen = [chunk async for chunk in graph.astream({}, stream_mode="custom")]
    handle.close()
    assert {"task_done", "proposal", "prediction", "grade", "beliefs"} <= {event["type"] for event in seen}
    assert all(event["v"] == 1 for event in seen)


def test_every_state_key_has_one_writer_and_every_written_key_is_a_state_key() -> None:
    from typing import get_args, get_type_hints

    from bco_graph import nodes, state

    def keys(node: str) -> set[str]:
        return set(get_type_hints(get_type_hints(getattr(nodes, node))["return"]))

    written: dict[str, str] = {}
    for name in get_args(state.NodeName):
        for key in keys(name):
            assert written.setdefault(key, name) == name
    assert set(written) == set(get_type_hints(state.BCOState)) - {"refused_reply"}
    asking = {name: keys(name) for name in get_args(state.AskName)}
    by_a_person = {"proposal", "refused_reply"}
    assert asking == {
        "approve": by_a_person, "afford": by_a_person, "review": {"world_model", "refused_reply"},
    }  # fmt: skip
    assert {*written.values(), *asking} == set(nodes.__all__)


class Wider(BCOState, total=False):
    mine: str


async def test_a_wider_state_keeps_its_own_keys(tmp_path: Path, server: ScriptedModelServer, suite: ToySuite) -> None:
    config = toy_config(tmp_path, server, iterations=0)
    handle = RunHandle(config, suite=suite, proposer=ScriptedProposer({}))
    graph = create_bco(config, handle=handle, state_schema=Wider).compile()
    state = await graph.ainvoke({"mine": "kept"})
    handle.close()
    assert state["mine"] == "kept"
    assert NAIVE


async def test_a_broken_initial_scaffold_is_refused_before_anything_is_paid(
    tmp_path: Path, server: ScriptedModelServer, suite: ToySuite
) -> None:
    agent = suite.initial_scaffold() / "agent.py"
    agent.write_text("import no_such_module\n" + agent.read_text(encoding="utf-8"), encoding="utf-8")
    with pytest.raises(ConfigError, match=r"initial scaffold .*\n.*no_such_module"):
        await play(toy_config(tmp_path, server), suite, two_edits())
    assert server.requests == []


async def test_a_run_whose_newest_checkpoints_were_not_written_goes_on_from_the_results_that_were(
    tmp_path: Path, server: ScriptedModelServer, suite: ToySuite
) -> None:
    """A kill between the writes of a node and the checkpoint after it, for each node of the last round."""
    config = toy_config(tmp_path, server)
    proposer = two_edits()
    ended, _ = await play(config, suite, proposer)
    kept = shutil.copytree(config.run_dir, tmp_path / "kept", symlinks=True)
    with contextlib.closing(sqlite3.connect(kept / "checkpoints.sqlite")) as db:
        names = [name for (name,) in db.execute("SELECT checkpoint_id FROM checkpoints ORDER BY checkpoint_id")]
    paid, performed = len(server.requests), len(proposer.performed)
    for last in names[-6:-1]:  # at the nodes propose, predict, evaluate, grade, update
        shutil.rmtree(config.run_dir)
        shutil.copytree(kept, config.run_dir, symlinks=True)
        (config.run_dir / "LOCK").write_text("process 1 on another machine\n", encoding="utf-8")
        with contextlib.closing(sqlite3.connect(config.run_dir / "checkpoints.sqlite")) as db, db:
            for table in ("checkpoints", "writes"):
                db.execute(f"DELETE FROM {table} WHERE checkpoint_id > ?", (last,))
        again, _ = await play(config, suite, proposer)
        assert (again.stop, again.state, again.candidates) == (ended.stop, ended.state, ended.candidates)
        assert (len(server.requests), len(proposer.performed)) == (paid, performed)
        assert [finding for finding in verify(RunFolder(config.run_dir)) if finding["wrong"]] == []
