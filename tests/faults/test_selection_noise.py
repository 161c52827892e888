"""Which candidate is called best: on what both have results for, by one rule at every end, never by noise."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine, Iterator
from pathlib import Path
from typing import Any

import pytest

from bco_graph.config import check_config
from bco_graph.driver import drive
from bco_graph.errors import StepFailed
from bco_graph.protocols import Step, StepResult, T
from bco_graph.scaffold_tree import tree_digest
from bco_graph.testing import Reply
from tests.faults.play import BARE, Played, bco, models, play, raw_config, receipts_of
from tests.faults.tasks import task, write_tasks, write_tasks_config
from tests.toy import BOTH, SHORT, Edit, ScriptedProposer, ToySuite, answer, kind, prompt_edit

GOOD, WORSE = prompt_edit(SHORT), prompt_edit("Never mind. The word is: {word}\n")


def starting_with(folder: Path, prompt: str) -> ToySuite:
    suite = ToySuite(folder / "initial")
    (suite.initial_scaffold() / "prompt.md").write_text(prompt, encoding="utf-8")
    return suite


def test_a_candidate_with_results_on_the_easy_half_only_does_not_win(tmp_path: Path) -> None:
    """The seed has 0.5, all on the easy words; the candidate has 1.0 where the hard ones were lost upstream."""

    def flaky(body: dict[str, Any]) -> Reply:
        text = str(body["messages"][-1]["content"])
        word = text.partition("The word is: ")[2].split()[0]
        return Reply("rate limit", status=429) if "all letters" in text and kind(word) == "long" else answer(body)

    with models(target=flaky) as server:
        run = play(tmp_path, server, suite=starting_with(tmp_path, SHORT), by=ScriptedProposer({1: prompt_edit(BOTH)}))
    outcome = run.ended.state["outcome"]
    assert (outcome["mean"], outcome["coverage"]) == (1.0, 0.5)
    assert run.ended.state["best"] == {"id": "iter_000", "mean": 0.5}
    status = bco(tmp_path, "status", "runs/toy", "--json").json
    assert (status["best"]["id"], status["change"]["train"]) == ("iter_000", 0.0)


# -- one rule at every end -------------------------------------------------------------------------------------


def fails(step: Step[Any]) -> Any:
    raise StepFailed(step.name, cause="empty", reasons=["the reply was empty"])


def breaks(step: Step[Any]) -> Any:
    raise ConnectionResetError("the process died here")


ENDS: dict[str, tuple[dict[str, Any], Any]] = {
    "iterations": ({"iterations": 2}, None),
    "budget": ({"iterations": 9, "budget": {"calls": 24, "reserve_heldout": False}}, fails),
    "failures": ({"iterations": 9, "max_failures": 1}, fails),
    "an error": ({"iterations": 9}, breaks),
    "Ctrl-C": ({"iterations": 9}, None),
}


class Pausing(ScriptedProposer):
    """Waits at the third iteration where it has nothing to play there."""

    def __init__(self, *given: Any) -> None:
        super().__init__(*given)
        self.paused = asyncio.Event()

    async def perform(self, step: Step[T]) -> StepResult[T]:
        if step.iteration == 3 and self.submissions[3, "propose"] is None:
            self.paused.set()
            await asyncio.Event().wait()
        return await super().perform(step)


async def interrupted(driven: Coroutine[Any, Any, Any], proposer: Pausing) -> None:
    """As Ctrl-C does it: the main task is cancelled, here while a step is waited for."""
    task = asyncio.create_task(driven)
    await proposer.paused.wait()
    task.cancel()
    await task


@pytest.mark.parametrize("how", ENDS)
def test_the_best_is_the_same_at_every_end_and_follows_from_the_rows(tmp_path: Path, how: str) -> None:
    """The second candidate is worse than the first, and the last: neither the last nor a lucky single row is best."""
    changes, at_three = ENDS[how]
    proposer = Pausing({1: GOOD, 2: WORSE}, {(n, "propose"): BARE for n in (1, 2)} | {(3, "propose"): at_three})
    with models() as server:
        config = check_config(raw_config(tmp_path, server, runs=str(tmp_path / "runs"), **changes))
        driven = drive(config, suite=ToySuite(tmp_path / "initial"), proposer=proposer)
        try:
            asyncio.run(interrupted(driven, proposer) if how == "Ctrl-C" else driven)
        except (ConnectionResetError, asyncio.CancelledError):
            assert how in ("an error", "Ctrl-C")
    status = bco(tmp_path, "status", "runs/toy", "--json").json
    with receipts_of(tmp_path / "runs/toy") as receipts:
        rows = receipts.results("train")
    means = {
        name: sum(row.score or 0.0 for row in rows if row.candidate == name) / 8
        for name in ("iter_000", "iter_001", "iter_002")
    }
    assert means == {"iter_000": 0.0, "iter_001": 0.5, "iter_002": 0.0}
    assert (status["best"]["id"], status["best"]["train"]["mean"]) == ("iter_001", 0.5)
    bco(tmp_path, "export", "runs/toy", "best")
    assert tree_digest(tmp_path / "best") == tree_digest(tmp_path / "runs/toy/iterations/iter_001/source")
    assert (tmp_path / "best/prompt.md").read_text(encoding="utf-8") == SHORT


# -- zero, missing, failed -------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def cheated(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Played]:
    """A candidate that crashes on import, one that answers without the model, one that only comments, then the end."""

    def crashes(scaffold: Path) -> None:
        (scaffold / "agent.py").write_text("raise SystemExit(1)\n", encoding="utf-8")

    def cheats(scaffold: Path) -> None:
        text = "async def solve(task, target):\n    return task.inputs['word'] or await target.chat('never')\n"
        (scaffold / "agent.py").write_text(text, encoding="utf-8")

    def comments(scaffold: Path) -> None:
        agent = scaffold / "agent.py"
        agent.write_text("# the same\n" + agent.read_text(encoding="utf-8"), encoding="utf-8")

    submissions = {(n, "propose"): {**BARE, "parent": parent} for n, parent in PARENTS.items()}
    edits: dict[int, Edit] = {1: crashes, 2: cheats, 3: GOOD, 4: GOOD, 5: comments}
    with models() as server:
        yield play(
            tmp_path_factory.mktemp("cheated"), server, by=ScriptedProposer(edits, submissions), iterations=5,
            max_failures=9,
        )  # fmt: skip


PARENTS = {1: "iter_000", 2: "iter_000", 3: "iter_001", 4: "iter_002", 5: "iter_000"}


def test_a_candidate_that_crashes_or_cheats_is_nobodys_parent(cheated: Played) -> None:
    """What has no result that counts cannot be built on, though its source was stored."""
    assert [c["id"] for c in cheated.ended.candidates] == ["iter_000", "iter_005"]
    failed = {e["iteration"]: " ".join(e["reasons"]) for e in cheated.events if e["type"] == "step_failed"}
    assert "is no evaluated candidate" in failed[3]
    assert "is no evaluated candidate" in failed[4]
    with cheated.receipts() as receipts:
        cheat = receipts.step(2, "evaluate")
    assert cheat is not None
    assert "without ever calling the target" in cheat["failure"]["reasons"][0]


def test_an_exact_tie_keeps_the_earlier_candidate_and_a_zero_is_a_score(cheated: Played) -> None:
    status = bco(cheated.folder.parent.parent, "status", "runs/toy", "--json").json
    assert cheated.ended.state["best"] == {"id": "iter_000", "mean": 0.0}
    assert status["best"]["train"] == {"mean": 0.0, "coverage": 1.0, "passed": 0, "tasks": 8}
    assert cheated.ended.candidates[-1]["mean"] == 0.0


# -- determinism -----------------------------------------------------------------------------------------------


def test_the_same_script_gives_the_same_candidates_rows_and_documents(tmp_path: Path) -> None:
    """Nothing in a decision comes from a clock, a global random state or the order in which tasks happened to end."""
    seen = []
    for name in ("a", "b"):
        edits = {1: prompt_edit(SHORT, "asked-alone"), 2: prompt_edit(BOTH, "asked-alone")}
        with models() as server:
            folder = tmp_path / name
            run = play(folder, server, method="bco", iterations=2, by=ScriptedProposer(edits))
        with run.receipts() as receipts:
            rows = [(row.candidate, row.task, row.kind, row.score, row.answer) for row in receipts.results("train")]
            outcomes = [record for _, _, record in receipts.steps("evaluate")]
        trees = [tree_digest(path) for path in sorted((run.folder / "iterations").glob("*/source"))]
        document = (run.folder / "world_model_calibration.md").read_bytes()
        seen.append((rows, outcomes, trees, document))
    assert seen[0] == seen[1]


def test_an_empty_answer_never_equals_a_value(tmp_path: Path) -> None:
    """Gold 0 and an answer of nothing, of white space, of NaN: misses; the words null and NaN are words."""
    agent = (
        "async def solve(task, target):\n    await target.chat('x')\n"
        "    return {'none': None, 'blank': ' \\n', 'nan': float('nan'), 'zero': 0, 'text': '0', 'null': 'null'}"
        "[task.inputs['word']]\n"
    )
    write_tasks(tmp_path, [task(word, 0) for word in ("none", "blank", "nan", "zero", "text", "null")], agent=agent)
    with models(target=lambda body: "ok") as server:
        write_tasks_config(tmp_path, server)
        bco(tmp_path, "run", "bco.yaml", "--no-preflight")
    with receipts_of(tmp_path / "runs/toy") as receipts:
        rows = {row.task: (row.kind, row.score) for row in receipts.results("train")}
    missed = ("no_answer", 0.0)
    assert rows == {
        "none": missed, "blank": missed, "nan": missed, "zero": ("scored", 1.0), "text": ("scored", 1.0),
        "null": ("scored", 0.0),
    }  # fmt: skip
