"""A recorded run given again: exact sources, recorded submissions, and a plain word where something is missing."""

from __future__ import annotations

from pathlib import Path

import pytest
from pydantic import BaseModel

from bco_graph.errors import ConfigError, StepFailed
from bco_graph.proposers.replay import ReplayProposer, write_recording
from bco_graph.proposers.tree import snapshot
from bco_graph.protocols import Step
from bco_graph.state import StepName


class Form(BaseModel):
    word: str


def make_step(workspace: Path, name: StepName, iteration: int) -> Step[str]:
    def accept(model: BaseModel) -> str:
        assert isinstance(model, Form)
        return model.word

    return Step(name, iteration, "bco", workspace, "", Form, accept)


@pytest.fixture
def workspace(tmp_path: Path) -> Path:
    scaffold = tmp_path / "workspace/scaffold"
    (scaffold / "old").mkdir(parents=True)
    (scaffold / "old/gone.py").write_text("old", encoding="utf-8")
    (scaffold / "agent.py").write_text("old", encoding="utf-8")
    return tmp_path / "workspace"


@pytest.fixture
def source(tmp_path: Path) -> Path:
    source = tmp_path / "source"
    (source / "lib").mkdir(parents=True)
    (source / "agent.py").write_bytes(b"\xef\xbb\xbfnew\r\n")
    (source / "lib/run.sh").write_text("#!/bin/sh\n", encoding="utf-8")
    (source / "lib/run.sh").chmod(0o755)
    (source / "link.py").symlink_to("agent.py")
    return source


async def test_what_was_recorded_is_played_back_step_by_step(tmp_path: Path, workspace: Path, source: Path) -> None:
    steps: list[tuple[int, StepName, dict[str, str]]] = [
        (0, "update", {"word": "start"}),
        (1, "propose", {"word": "naïve"}),
        (1, "predict", {"word": "up"}),
    ]
    write_recording(tmp_path / "rec", steps, lambda iteration: source)
    replay = ReplayProposer(tmp_path / "rec")
    for iteration, name, submission in steps:
        result = await replay.perform(make_step(workspace, name, iteration))
        assert (result.value, result.submission) == (submission["word"], submission)
    assert snapshot(workspace / "scaffold") == snapshot(source)
    assert not (workspace / "scaffold/old").exists()


@pytest.mark.parametrize(("name", "missing"), [("grade", "iter_001/grade.json"), ("propose", "iter_001/source")])
async def test_a_step_that_was_not_recorded_fails_as_missing(
    tmp_path: Path, workspace: Path, name: StepName, missing: str
) -> None:
    write_recording(tmp_path / "rec", [(1, "propose", {"word": "x"})], lambda iteration: None)
    before = snapshot(workspace)
    with pytest.raises(StepFailed, match=missing) as caught:
        await ReplayProposer(tmp_path / "rec").perform(make_step(workspace, name, 1))
    assert caught.value.cause == "missing"
    assert snapshot(workspace) == before


async def test_a_file_of_another_form_is_refused_by_its_name(tmp_path: Path, workspace: Path) -> None:
    (tmp_path / "rec/iter_001").mkdir(parents=True)
    (tmp_path / "rec/iter_001/grade.json").write_text('{"word": "x"}', encoding="utf-8")
    with pytest.raises(StepFailed, match=r"iter_001/grade\.json: the file is not of the form"):
        await ReplayProposer(tmp_path / "rec").perform(make_step(workspace, "grade", 1))


def test_a_recording_is_not_written_over_another_nor_read_from_nowhere(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("", encoding="utf-8")
    with pytest.raises(ConfigError, match="not empty"):
        write_recording(tmp_path, [], lambda iteration: None)
    with pytest.raises(ConfigError, match="no folder"):
        ReplayProposer(tmp_path / "absent")
