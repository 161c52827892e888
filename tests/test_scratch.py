"""Temporary folders: what a killed process left is removed by the next one, what a living one has is not."""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest

from bco_graph.evaluation.worker import remove_tree
from bco_graph.scratch import Scratch, scratch, sweep

OWNER = """
import sys
from bco_graph.scratch import Scratch
made = Scratch.make("run")
(made.path / "locked").mkdir()
(made.path / "locked" / "file").touch()
(made.path / "locked").chmod(0o500)
print(made.path, flush=True)
sys.stdin.read()
"""


@pytest.fixture(autouse=True)
def temporary(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    return tmp_path


def test_the_folder_of_a_killed_process_is_removed_and_that_of_a_living_one_stays(temporary: Path) -> None:
    owner = subprocess.Popen(
        [sys.executable, "-c", OWNER], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
        env={**os.environ, "TMPDIR": str(temporary)}, cwd=Path(__file__).parents[1],
    )  # fmt: skip
    assert owner.stdout is not None
    folder = Path(owner.stdout.readline().strip())
    assert folder.parent == temporary
    sweep(remove_tree)
    assert (folder / "locked" / "file").exists()
    owner.kill()
    owner.communicate()
    assert folder.exists()
    sweep(remove_tree)
    assert not folder.exists()


def test_a_folder_of_ours_is_gone_after_its_block_and_swept_by_nobody_before(temporary: Path) -> None:
    with scratch("source") as folder:
        sweep()
        assert folder.is_dir()
        assert folder.stat().st_mode & 0o777 == 0o700
    assert list(temporary.iterdir()) == []


def test_folders_of_others_are_left_alone(temporary: Path) -> None:
    stranger = temporary / "bco-something"
    stranger.mkdir()
    sweep()
    assert stranger.is_dir()
    made = Scratch.make("run", within=str(temporary))
    made.remove()
    assert list(temporary.iterdir()) == [stranger]
