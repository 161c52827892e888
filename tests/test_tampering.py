"""What decides a score may not change while a run lasts: grader, gold and task files are hashed around evaluations."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from bco_graph.config import RunConfig, check_config
from bco_graph.driver import drive
from bco_graph.errors import RunMismatch, Tampered
from bco_graph.receipts import Receipts
from bco_graph.run_folder import RunFolder
from bco_graph.testing import Reply, ScriptedModelServer
from tests.toy import ScriptedProposer, toy_config

TASK = '{"id": "%s", "inputs": {"word": "%s"}, "gold": "%s"}\n'
AGENT = 'async def solve(task, target):\n    return await target.chat(task.inputs["word"])\n'


@pytest.fixture
def server() -> Iterator[ScriptedModelServer]:
    with ScriptedModelServer({"toy-model": lambda body: Reply(body["messages"][-1]["content"])}) as server:
        yield server


def own_tasks(folder: Path, server: ScriptedModelServer) -> RunConfig:
    """A run on tasks from files, as `bco init --folder` would write it."""
    (folder / "scaffold").mkdir(parents=True)
    (folder / "scaffold" / "agent.py").write_text(AGENT, encoding="utf-8")
    for split, words in (("train", ["oak", "elm"]), ("heldout", ["yew"])):
        lines = "".join(TASK % (f"{split}-{word}", word, word) for word in words)
        (folder / f"{split}.jsonl").write_text(lines, encoding="utf-8")
    options = {"train": "train.jsonl", "heldout": "heldout.jsonl", "scaffold": "scaffold", "base": str(folder)}
    raw = toy_config(folder, server, method="vanilla", iterations=0).model_dump()
    return check_config({**raw, "suite": "jsonl", "suite_options": options, "base": str(folder)})


def rows(config: RunConfig) -> list[Any]:
    receipts = Receipts(RunFolder(config.run_dir).receipts)
    try:
        return list(receipts.results("train"))
    finally:
        receipts.close()


async def test_a_task_file_that_changes_during_an_evaluation_stops_the_run_and_voids_its_rows(
    tmp_path: Path, server: ScriptedModelServer
) -> None:
    config = own_tasks(tmp_path, server)
    path = tmp_path / "train.jsonl"
    untouched = path.read_text(encoding="utf-8")

    def change(body: dict[str, Any]) -> Reply:
        path.write_text(untouched + TASK % ("more", "ash", "ash"), encoding="utf-8")
        return Reply("oak")

    server.script("toy-model", change)
    with pytest.raises(Tampered, match=r"iter_000.*train\.jsonl"):
        await drive(config, proposer=ScriptedProposer({}))
    assert rows(config) == []
    path.write_text(untouched, encoding="utf-8")
    server.script("toy-model", lambda body: Reply(body["messages"][-1]["content"]))
    ended = await drive(config, proposer=ScriptedProposer({}))
    assert ended.stop == "iterations"
    assert {row.kind for row in rows(config)} == {"scored"}


async def test_a_run_is_not_continued_with_another_task_file(tmp_path: Path, server: ScriptedModelServer) -> None:
    config = own_tasks(tmp_path, server)
    await drive(config, proposer=ScriptedProposer({}))
    path = tmp_path / "heldout.jsonl"
    path.write_text(path.read_text(encoding="utf-8") + "\n", encoding="utf-8")
    with pytest.raises(RunMismatch, match="suite"):
        await drive(config, proposer=ScriptedProposer({}))
