"""`bco verify` finds whatever in a run folder says something else than the stored rows."""

from __future__ import annotations

import asyncio
import json
import shutil
import sqlite3
from collections.abc import Callable
from pathlib import Path

import pytest

from bco_graph.driver import drive
from bco_graph.report.verify import verify
from bco_graph.run_folder import RunFolder
from bco_graph.testing import ScriptedModelServer
from tests.toy import SHORT, ScriptedProposer, ToySuite, answer, prompt_edit, toy_config


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("verify")
    with ScriptedModelServer({"toy-model": answer}) as server:
        config = toy_config(folder, server, iterations=1)
        proposer = ScriptedProposer({1: prompt_edit(SHORT, "asked-alone")})
        asyncio.run(drive(config, suite=ToySuite(folder / "initial"), proposer=proposer))
    return config.run_dir


@pytest.fixture
def run(finished: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(finished, tmp_path / "run", symlinks=True))


def test_a_run_that_nobody_touched_agrees_with_itself(run: Path) -> None:
    findings = verify(RunFolder(run))
    assert [finding["wrong"] for finding in findings] == [[]] * len(findings)
    checked = {finding["what"]: finding["checked"] for finding in findings}
    assert checked["sources of candidates"] == checked["outcomes"] == 2
    assert checked["computed grades"] == 1


def in_receipts(run: Path, table: str, change: Callable[[dict[str, object]], None], where: str) -> None:
    with sqlite3.connect(run / "receipts.sqlite") as db:
        (text,) = db.execute(f"select record from {table} where {where}").fetchone()
        record = json.loads(text)
        change(record)
        db.execute(f"update {table} set record=? where {where}", (json.dumps(record),))
    db.close()


def edit_text(path: Path, old: str, new: str) -> None:
    text = path.read_text(encoding="utf-8")
    assert old in text
    path.write_text(text.replace(old, new), encoding="utf-8")


def change_source(run: Path) -> None:
    edit_text(run / "workspace/iterations/iter_001/source/prompt.md", "only", "just")


def change_outcome(run: Path) -> None:
    in_receipts(run, "steps", lambda record: record.update(mean=0.9), "iteration=1 and step='evaluate'")


def change_row(run: Path) -> None:
    with sqlite3.connect(run / "receipts.sqlite") as db:
        db.execute("update results set score=1.0 where candidate='iter_000' and task='toy-train-0'")
    db.close()


def change_prediction(run: Path) -> None:
    edit_text(run / "workspace/iterations/iter_001/prediction.md", "+0.9", "+0.1")


def change_sealed(run: Path) -> None:
    def lower(record: dict[str, object]) -> None:
        record["result"]["content"]["confidence"] = 0.1  # type: ignore[index]

    in_receipts(run, "steps", lower, "iteration=1 and step='predict'")


def change_grade(run: Path) -> None:
    def better(record: dict[str, object]) -> None:
        record["computed"]["subset_change"] = 0.25  # type: ignore[index]

    in_receipts(run, "steps", better, "iteration=1 and step='graded'")


def change_document(run: Path) -> None:
    edit_text(run / "workspace/world_model_calibration.md", "conf:0.8", "conf:0.9")


def change_best(run: Path) -> None:
    edit_text(run / "events.jsonl", '"best":"iter_001"', '"best":"iter_000"')


def forget_candidate(run: Path) -> None:
    shutil.rmtree(run / "candidates.git" / "objects")


def measure_unseen(run: Path) -> None:
    with sqlite3.connect(run / "receipts.sqlite") as db:
        db.execute(
            "insert into results select 'heldout', candidate, task, repeat, type, kind, score, answer, note, error,"
            " seconds, calls, tokens, at from results where candidate='iter_001' and task='toy-train-0'"
        )
    db.close()


@pytest.mark.parametrize(
    ("change", "what", "said"),
    [
        (change_source, "sources of candidates", "iter_001: source/ differs"),
        (change_outcome, "outcomes", "mean: 0.9 stands, 0.5 is right"),
        (change_row, "outcomes", "passed: 0 stands, 1 is right"),
        (change_prediction, "seals of predictions", "prediction.md differs"),
        (change_sealed, "seals of predictions", "seal of the prediction"),
        (change_grade, "computed grades", "subset_change: 0.25 stands, 1.0 is right"),
        (change_document, "world model and history", "differs from what the receipts say"),
        (change_best, "best candidate", "iter_000"),
        (forget_candidate, "sources of candidates", "cannot be checked"),
        (measure_unseen, "held-out looks", "iter_001: held-out rows without a logged look"),
    ],
)
def test_a_change_is_found_where_it_was_made(run: Path, change: Callable[[Path], None], what: str, said: str) -> None:
    change(run)
    findings = {finding["what"]: finding["wrong"] for finding in verify(RunFolder(run))}
    assert any(said in wrong for wrong in findings[what]), findings
