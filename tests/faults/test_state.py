"""What is on disk: finished rows are never rewritten, ids are text, a newer version is left alone."""

from __future__ import annotations

import sqlite3
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from bco_graph.testing import Reply, ScriptedModelServer
from tests.faults.play import PROPOSER, bco, digest, models, receipts_of
from tests.faults.tasks import task, write_tasks, write_tasks_config

ECHO = """\
async def solve(task, target):
    await target.chat("say " + task.inputs["word"])
    return {key: value for key, value in task.inputs.items() if key != "word"} or task.inputs["word"]
"""
ODD: dict[str, Any] = {
    "long": "é\u2028\u0085\x7f𝄞 " * 1_000, "large": 2**60 + 1, "small": -(2**63), "tiny": 1e-17,
    "deep": {"a": [{"b": [[], {}, None, True, "01"]}]}, "": "an empty key",
}  # fmt: skip
IDS = ["1", "01", "1.0", "a/b", "a%2Fb", "é"]


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Path, ScriptedModelServer]]:
    """The baseline of tasks with odd inputs and odd ids, in a run that dies at its first proposal."""
    folder = tmp_path_factory.mktemp("state")
    write_tasks(folder, [task("odd", "x", **ODD), *(task(name, name) for name in IDS)], agent=ECHO)
    with models(target=lambda body: "ok") as server:
        server.script(PROPOSER, lambda body: Reply("no such key", status=401))
        write_tasks_config(folder, server, iterations=2, max_failures=2)
        said = bco(folder, "run", "bco.yaml", "--no-preflight", code=1)
        assert "AuthenticationFailed" in said.text
        yield folder, server


def stored(folder: Path) -> list[tuple[Any, ...]]:
    database = sqlite3.connect(folder / "runs/toy/receipts.sqlite")
    rows = database.execute("select * from results order by task").fetchall()
    database.close()
    return rows


def test_values_of_any_size_and_kind_come_back_and_finished_rows_stay_to_the_byte(
    run: tuple[Path, ScriptedModelServer],
) -> None:
    """Five kilobytes, characters that end lines elsewhere, whole numbers past 2**53: none is thinned on a resume."""
    folder, server = run
    before = stored(folder)
    server.script(PROPOSER, lambda body: "I will not.")
    bco(folder, "resume", "runs/toy", code=1)
    assert stored(folder) == before
    with receipts_of(folder / "runs/toy") as receipts:
        answers = {row.task: row.answer for row in receipts.results("train", "iter_000")}
    assert answers["odd"] == ODD
    assert len(before) == 1 + len(IDS)


def test_ids_that_look_like_the_same_number_or_path_are_different_tasks(run: tuple[Path, ScriptedModelServer]) -> None:
    folder, _ = run
    with receipts_of(folder / "runs/toy") as receipts:
        scores = {row.task: row.score for row in receipts.results("train", "iter_000")}
    assert scores == {"odd": 0.0, **dict.fromkeys(IDS, 1.0)}
    traces = folder / "runs/toy/workspace/iterations/iter_000/traces"
    assert len(list(traces.iterdir())) == 1 + len(IDS)
    matrix = (folder / "runs/toy/workspace/task_score_matrix.csv").read_text(encoding="utf-8").splitlines()
    assert [line.split(",")[0] for line in matrix[1:]] == ["odd", *IDS]


@pytest.mark.parametrize("where", ["receipts", "manifest"])
def test_a_run_of_a_newer_version_is_refused_by_every_command_and_not_touched(
    run: tuple[Path, ScriptedModelServer], where: str
) -> None:
    folder, server = run
    newer = folder / "runs" / f"newer-{where}"
    subprocess.run(["cp", "-a", folder / "runs/toy", newer], check=True)
    if where == "receipts":
        database = sqlite3.connect(newer / "receipts.sqlite")
        database.execute("update meta set value = '2' where key = 'schema_version'")
        database.commit()
        database.close()
    else:
        manifest = newer / "run.json"
        text = manifest.read_text(encoding="utf-8").replace('"schema_version": 1', '"schema_version": 2')
        manifest.write_text(text, encoding="utf-8")
    before, asked = digest(newer), len(server.requests)
    for command in (["resume"], ["status"], ["verify"], ["heldout"], ["show", "iter_000"], ["export", "out"]):
        name, *rest = command
        said = bco(folder, name, f"runs/{newer.name}", *rest, code=1)
        assert "schema version 2" in said.text
        assert "upgrade it" in said.text
    after = digest(newer)
    for name in ("events.jsonl", *(key for key in after if key.endswith(("-wal", "-shm")))):
        before.pop(name, None), after.pop(name, None)
    assert after == before
    assert len(server.requests) == asked
