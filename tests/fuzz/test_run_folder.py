"""A run folder whose files were torn or edited: refused in our own words, and left as it is."""

from __future__ import annotations

import asyncio
import json
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from bco_graph.config import RunConfig
from bco_graph.driver import awaited, drive, stored_config
from bco_graph.errors import BcoError, RunUnreadable
from bco_graph.opening import open_run
from bco_graph.receipts import Receipts
from bco_graph.report.reading import is_running, last_run_event, reading
from bco_graph.run_folder import RunFolder
from bco_graph.testing import ScriptedModelServer
from tests.fuzz.strategies import FUZZ, SLOW, as_text, broken, broken_bytes, cuts, refused_or
from tests.toy import SHORT, ScriptedProposer, ToySuite, answer, prompt_edit, toy_config


@pytest.fixture(scope="module")
def server() -> Iterator[ScriptedModelServer]:
    with ScriptedModelServer({"toy-model": answer}) as started:
        yield started


@pytest.fixture(scope="module")
def made(server: ScriptedModelServer, tmp_path_factory: pytest.TempPathFactory) -> RunConfig:
    """A finished run of one iteration."""
    root = tmp_path_factory.mktemp("made")
    config = toy_config(root, server, iterations=1, method="vanilla")
    asyncio.run(drive(config, suite=ToySuite(root / "initial"), proposer=ScriptedProposer({1: prompt_edit(SHORT)})))
    return config


def read_manifest(folder: RunFolder) -> None:
    folder.read()
    refused_or(BcoError, lambda: stored_config(folder.root))
    with reading(folder) as run:
        assert run.method


def torn(made: RunConfig, folder: Path, name: str, content: bytes) -> RunFolder:
    """The run with one file replaced."""
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir()
    for file in ("run.json", "receipts.sqlite", "checkpoints.sqlite", "events.jsonl"):
        if (made.run_dir / file).exists():
            shutil.copy(made.run_dir / file, folder / file)
    (folder / name).write_bytes(content)
    return RunFolder(folder)


@FUZZ
@given(st.data())
def test_a_run_json_of_any_bytes_is_refused_or_read_and_left_alone(
    made: RunConfig, tmp_path_factory: pytest.TempPathFactory, data: st.DataObject
) -> None:
    whole = (made.run_dir / "run.json").read_bytes()
    shapes = broken(json.loads(whole)).map(lambda value: as_text(value).encode())
    content = data.draw(st.one_of(shapes, broken_bytes(whole), st.sampled_from([b"", b"\xff", b"[" * 5000, b"[]"])))
    folder = torn(made, tmp_path_factory.mktemp("torn") / "run", "run.json", content)
    refused_or(BcoError, lambda: read_manifest(folder))
    assert folder.manifest.read_bytes() == content


@pytest.mark.parametrize("lost", ["fingerprint", "suite", "config"])
def test_a_run_whose_manifest_lost_a_part_is_not_gone_on_with(made: RunConfig, tmp_path: Path, lost: str) -> None:
    manifest = json.loads((made.run_dir / "run.json").read_bytes())
    del manifest[lost]
    folder = torn(made, tmp_path / made.name, "run.json", as_text(manifest).encode())
    config = made.model_copy(update={"runs": str(tmp_path)})
    with pytest.raises(RunUnreadable, match=lost):
        open_run(config, suite=ToySuite(tmp_path / "initial"), proposer=ScriptedProposer({}))
    assert json.loads(folder.manifest.read_bytes()) == manifest


def test_a_run_json_cut_off_anywhere_is_refused(made: RunConfig, tmp_path: Path) -> None:
    *cut, _ = cuts((made.run_dir / "run.json").read_text(encoding="utf-8").rstrip())
    folder = RunFolder(tmp_path)
    for text in cut[::7]:
        folder.manifest.write_text(text, encoding="utf-8")
        with pytest.raises(RunUnreadable):
            folder.read()


def all_of(path: Path) -> None:
    receipts = Receipts(path)
    try:
        reads: list[Callable[[], Any]] = [
            receipts.steps, receipts.spend, receipts.heldout_candidates, receipts.heldout_looks, receipts.last_call,
            lambda: receipts.results("train"), lambda: receipts.calls_of("iter_000", "toy-train-0", 0),
            lambda: list(receipts.responses(["target"])), lambda: receipts.step(1, "propose"),
        ]  # fmt: skip
        for read in reads:
            refused_or(RunUnreadable, read)
    finally:
        receipts.close()


@SLOW
@given(st.data())
def test_receipts_of_any_bytes_are_refused_or_read(
    made: RunConfig, tmp_path_factory: pytest.TempPathFactory, data: st.DataObject
) -> None:
    content = data.draw(broken_bytes((made.run_dir / "receipts.sqlite").read_bytes(), most=40))
    folder = torn(made, tmp_path_factory.mktemp("torn") / "run", "receipts.sqlite", content)
    refused_or(RunUnreadable, lambda: all_of(folder.receipts))


@SLOW
@given(st.data())
def test_checkpoints_of_any_bytes_are_refused_or_read(
    made: RunConfig, tmp_path_factory: pytest.TempPathFactory, data: st.DataObject
) -> None:
    content = data.draw(broken_bytes((made.run_dir / "checkpoints.sqlite").read_bytes(), most=40))
    folder = torn(made, tmp_path_factory.mktemp("torn") / "run", "checkpoints.sqlite", content)
    refused_or(BcoError, lambda: asyncio.run(awaited(folder.root)))


@FUZZ
@given(st.binary(max_size=60), st.sampled_from(["events.jsonl", "LOCK"]))
@example(b'{"type":"run_ended","x":' + b"[" * 5000 + b"\n", "events.jsonl")
@example(b"\xff\xfe\n", "LOCK")
def test_a_log_and_a_lock_of_any_bytes_are_passed_over(
    tmp_path_factory: pytest.TempPathFactory, content: bytes, name: str
) -> None:
    folder = RunFolder(tmp_path_factory.mktemp("torn"))
    (folder.root / name).write_bytes(content)
    last_run_event(folder.events)
    assert is_running(folder) is False
    folder.lock().release()


def test_a_run_without_its_checkpoints_finds_its_place_by_the_receipts_and_pays_nothing(
    made: RunConfig, server: ScriptedModelServer, tmp_path: Path
) -> None:
    """What the message about torn checkpoints advises."""
    shutil.copytree(made.run_dir, tmp_path / "runs" / made.name, symlinks=True)
    config = made.model_copy(update={"runs": str(tmp_path / "runs")})
    for file in config.run_dir.glob("checkpoints.sqlite*"):
        file.unlink()
    asked = len(server.requests)
    ended = asyncio.run(drive(config, suite=ToySuite(tmp_path / "initial"), proposer=ScriptedProposer({})))
    assert ended.stop == "iterations"
    assert ended.state["best"] == {"id": "iter_001", "mean": 0.5}
    assert len(server.requests) == asked
