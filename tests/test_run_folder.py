"""The run folder: one owner, no overwriting by accident, nothing torn taken for nothing."""

from __future__ import annotations

import shutil
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from bco_graph.errors import RunExists, RunLocked, RunUnreadable
from bco_graph.run_folder import RunFolder, write_text


def made(root: Path) -> RunFolder:
    folder = RunFolder(root)
    folder.claim(fresh=True, overwrite=False)
    folder.write({"name": "r"})
    return folder


def snapshot(root: Path) -> dict[str, bytes]:
    return {str(p.relative_to(root)): p.read_bytes() for p in root.rglob("*") if p.is_file()}


def test_a_second_start_is_refused_with_the_three_ways_on_and_changes_nothing(tmp_path: Path) -> None:
    folder = made(tmp_path / "r")
    before = snapshot(folder.root)
    with pytest.raises(RunExists, match=r"bco resume .*--name NAME.*--overwrite"):
        folder.claim(fresh=True, overwrite=False)
    assert snapshot(folder.root) == before


def test_overwrite_empties_the_folder(tmp_path: Path) -> None:
    folder = made(tmp_path / "r")
    (folder.root / "old.txt").write_text("x", encoding="utf-8")
    folder.claim(fresh=True, overwrite=True)
    assert not (folder.root / "old.txt").exists()
    assert not folder.exists()


def test_the_iterations_are_seen_at_the_top_too(tmp_path: Path) -> None:
    folder = made(tmp_path / "r")
    folder.iteration(7)
    assert (folder.root / "iterations" / "iter_007").is_dir()


def test_a_copy_of_a_run_that_followed_links_is_refused_and_left_as_it_is(tmp_path: Path) -> None:
    made(tmp_path / "r").iteration(7)
    copied = RunFolder(shutil.copytree(tmp_path / "r", tmp_path / "copied"))
    before = snapshot(copied.root)
    with pytest.raises(RunUnreadable, match=r"iterations is no link to workspace/iterations.*remove it"):
        copied.claim(fresh=False, overwrite=False)
    assert snapshot(copied.root) == before


@pytest.mark.parametrize(
    "text",
    [
        "",
        "{",
        "[]",
        '{"schema_version": 1, "config": ' + "[" * 300 + "]" * 300 + "}",
        '{"schema_version": "1"}',
        '{"schema_version": true}',
        "\xff",
    ],
)
def test_a_torn_manifest_is_refused_and_left_as_it_is(tmp_path: Path, text: str) -> None:
    folder = made(tmp_path / "r")
    folder.manifest.write_bytes(text.encode("latin-1"))
    with pytest.raises(RunUnreadable):
        folder.read()
    assert folder.manifest.read_bytes() == text.encode("latin-1")


def test_a_newer_manifest_is_refused(tmp_path: Path) -> None:
    folder = made(tmp_path / "r")
    folder.manifest.write_text('{"schema_version": 2}', encoding="utf-8")
    with pytest.raises(RunUnreadable, match="upgrade"):
        folder.read()


HOLD = """
import sys, time
from pathlib import Path
from bco_graph.run_folder import RunFolder
lock = RunFolder(Path(sys.argv[1])).lock()
print("held", flush=True)
time.sleep(60)
"""


def test_a_second_process_is_refused_at_once_and_a_dead_owner_s_lock_is_free(tmp_path: Path) -> None:
    folder = made(tmp_path / "r")
    owner = subprocess.Popen([sys.executable, "-c", HOLD, str(folder.root)], stdout=subprocess.PIPE)
    assert owner.stdout is not None
    assert owner.stdout.readline() == b"held\n"
    try:
        with pytest.raises(RunLocked, match=f"process {owner.pid}"):
            folder.lock()
    finally:
        owner.send_signal(signal.SIGKILL)
        owner.wait()
        owner.stdout.close()
    folder.lock().release()


def test_a_failed_write_leaves_the_old_text_and_no_litter(tmp_path: Path) -> None:
    path = tmp_path / "f.txt"
    write_text(path, "old")
    with pytest.raises(UnicodeEncodeError):
        write_text(path, "\ud800new")
    assert list(tmp_path.iterdir()) == [path]
    assert path.read_text(encoding="utf-8") == "old"
