"""Many rounds in one run: no step limit, no growing state, a document within its budget, nothing lost on disk."""

from __future__ import annotations

import asyncio
import sqlite3
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from langgraph.checkpoint.sqlite.aio import AsyncSqliteSaver
from langgraph.errors import GraphRecursionError

from bco_graph.binding import RunHandle
from bco_graph.config import check_config
from bco_graph.document import document_of
from bco_graph.driver import THREAD, drive
from bco_graph.graph import create_bco
from bco_graph.protocols import Step
from bco_graph.world_model import estimate_tokens, lint, render_head
from tests.faults.play import Played, models, play, raw_config
from tests.toy import AGENT, BOTH, PREDICT, PROPOSE, SHORT, Edit, ScriptedProposer, ToySuite, prompt_edit

ROUNDS = 8
TOKEN_BUDGET = 2_000
TRACE_BYTES = 100_000


def noisy(number: int) -> Edit:
    """An edit of its own in each round, that prints much and leaves the mark of its round."""

    def edit(scaffold: Path) -> None:
        lines = f"    target.trace('mark-{number:02d}.')\n    print('x' * {TRACE_BYTES})\n    reply ="
        (scaffold / "agent.py").write_text(AGENT.replace("    reply =", lines), encoding="utf-8")
        (scaffold / "prompt.md").write_text(SHORT + "\n" * number, encoding="utf-8")

    return edit


def belief(number: int) -> dict[str, Any]:
    return {
        "op": "add", "kind": "execution", "claim": f"Claim {number}: " + "it holds " * 220, "confidence": 0.6,
        "status": "hypothesis", "mass": 1, "reason": "seen",
        "evidence_for": [{"path": f"iterations/iter_{number:03d}/traces/toy-train-0.json"}],
    }  # fmt: skip


def learns(step: Step[Any]) -> dict[str, Any]:
    return {"ops": [belief(step.iteration)], "learned": f"lesson {step.iteration}"}


@pytest.fixture(scope="module")
def long(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Played]:
    submissions: dict[tuple[int, str], Any] = {(number, "update"): learns for number in range(ROUNDS + 1)}
    for number in range(1, ROUNDS + 1):
        submissions[number, "propose"] = {
            **PROPOSE, "beliefs": [f"E{number}"], "failure_mode": f"mode {number}",
            "live_signature": f"mark-{number:02d}.",
        }  # fmt: skip
        submissions[number, "predict"] = PREDICT
    proposer = ScriptedProposer({number: noisy(number) for number in range(1, ROUNDS + 1)}, submissions)
    with models() as server:
        yield play(
            tmp_path_factory.mktemp("long"), server, by=proposer, method="bco", iterations=ROUNDS,
            evaluation={"train": 2}, world_model={"token_budget": TOKEN_BUDGET},
        )  # fmt: skip


def test_many_rounds_end_where_they_should_in_one_go(long: Played) -> None:
    assert (long.ended.stop, long.ended.state["iteration"]) == ("iterations", ROUNDS)
    assert len(long.ended.candidates) == ROUNDS + 1
    assert long.failures() == []


def test_the_document_stays_in_its_budget_with_every_belief_and_history_keeps_the_whole(long: Played) -> None:
    with long.receipts() as receipts:
        document = document_of(receipts)
    assert estimate_tokens(render_head(document.head)) <= TOKEN_BUDGET
    assert [b.id for b in document.head.beliefs] == [f"E{number}" for number in range(1, ROUNDS + 2)]
    assert lint(document) == []
    text = (long.folder / "world_model_calibration.md").read_text(encoding="utf-8")
    whole = text.replace("\\\n     ", "")
    for number in range(ROUNDS + 1):
        assert f"Claim {number}: " + "it holds " * 219 in whole
        assert f"lesson {number}" in text


def test_a_checkpoint_does_not_grow_with_what_was_before_it(long: Played) -> None:
    """Traces and history are in the state by reference: with the document full, a round adds a line."""
    database = sqlite3.connect(long.folder / "checkpoints.sqlite")
    sizes = [row[0] for row in database.execute("select length(checkpoint) from checkpoints order by rowid")]
    database.close()
    half = len(sizes) // 2
    assert max(sizes[half:]) < 1.2 * sizes[half]
    assert max(sizes) < 8 * TOKEN_BUDGET


def test_a_step_limit_from_outside_leaves_a_run_that_goes_on_and_pays_nothing_twice(tmp_path: Path) -> None:
    """Whoever invokes the graph with the library's own limit set too low keeps all that was done."""
    with models() as server:
        config = check_config(raw_config(tmp_path, server, runs=str(tmp_path / "runs"), iterations=2))
        proposer = ScriptedProposer({1: prompt_edit(SHORT), 2: prompt_edit(BOTH)})
        suite = ToySuite(tmp_path / "initial")

        handle = RunHandle(config, suite=suite, proposer=proposer)

        async def too_few_steps() -> None:
            folder = handle.open().folder
            async with AsyncSqliteSaver.from_conn_string(str(folder.checkpoints)) as saver:
                graph = create_bco(config, handle=handle).compile(checkpointer=saver)
                await graph.ainvoke({}, {"configurable": {"thread_id": THREAD}, "recursion_limit": 3})

        with pytest.raises(GraphRecursionError):
            asyncio.run(too_few_steps())
        handle.close()
        ended = asyncio.run(drive(config, suite=suite, proposer=proposer))
        asked = len(server.requests)
    assert ended.stop == "iterations"
    assert [candidate["mean"] for candidate in ended.candidates] == [0.0, 0.5, 1.0]
    assert asked == 24
    assert proposer.performed == [(1, "propose"), (2, "propose")]
