"""What may be in a scaffold."""

from __future__ import annotations

import os
import socket
from collections.abc import Callable
from pathlib import Path

import pytest

from bco_graph import scaffold_tree
from bco_graph.errors import CandidateRefused, ConfigError
from bco_graph.scaffold_tree import copy_tree, files, scan_tree, tree_digest


@pytest.fixture
def root(tmp_path: Path) -> Path:
    folder = tmp_path / "scaffold"
    (folder / "prompts").mkdir(parents=True)
    (folder / "agent.py").write_bytes(b"def solve(task, target): ...\r\n")
    (folder / "prompts" / "main.md").write_bytes(b"\xef\xbb\xbfno final newline \xff")
    return folder


def _socket_at(path: Path) -> None:
    with socket.socket(socket.AF_UNIX) as listening:
        listening.bind(os.path.relpath(path))


def _loop(path: Path) -> None:
    path.symlink_to(path.name)


def _hard_link(path: Path) -> None:
    other = path.with_name("other")
    other.write_text("x", encoding="utf-8")
    path.hardlink_to(other)


REFUSED: dict[str, tuple[str, Callable[[Path], object]]] = {
    "dangling": ("is a symbolic link", lambda path: path.symlink_to("nowhere")),
    "loop": ("is a symbolic link", _loop),
    "passwd": ("is a symbolic link", lambda path: path.symlink_to("/etc/passwd")),
    "folder": ("is a symbolic link", lambda path: path.symlink_to("/etc", target_is_directory=True)),
    "pipe": ("is a named pipe", lambda path: os.mkfifo(path)),
    "socket": ("is a socket", _socket_at),
    "hard": ("has 2 hard links", _hard_link),
    ".git": ("belongs to git", lambda path: path.mkdir()),
    ".GIT": ("belongs to git", lambda path: path.mkdir()),
    "git~1": ("belongs to git", lambda path: path.touch()),
    "nul.txt": ("a device on Windows", lambda path: path.touch()),
    "Com1": ("a device on Windows", lambda path: path.touch()),
    "dot.": ("ends with a space or a dot", lambda path: path.touch()),
    "blank ": ("ends with a space or a dot", lambda path: path.touch()),
    "a:b": ("its name holds one of", lambda path: path.touch()),
    "a\\b": ("its name holds one of", lambda path: path.touch()),
    "line\nbreak": ("control or invisible character", lambda path: path.touch()),
    "rtl\u202egpj": ("control or invisible character", lambda path: path.touch()),
    "AGENT.py": ("differs from", lambda path: path.touch()),
    "bad\udcff": ("its name is not UTF-8", lambda path: path.touch()),
}


def test_plain_files_are_listed_by_portable_paths(root: Path) -> None:
    assert scan_tree(root) == []
    assert files(root) == ["agent.py", "prompts/main.md"]


@pytest.mark.parametrize("name", REFUSED)
def test_what_is_not_portable_or_not_plain_is_refused(
    root: Path, name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    reason, make = REFUSED[name]
    make(root / "prompts" / name if name != "AGENT.py" else root / name)
    problems = scan_tree(root)
    assert problems
    assert all(reason in problem for problem in problems)
    for refused in (files, tree_digest, lambda folder: copy_tree(folder, tmp_path / "copy")):
        with pytest.raises(CandidateRefused, match=reason):
            refused(root)
    assert not (tmp_path / "copy").exists()


def test_one_message_lists_all_problems(root: Path) -> None:
    for name in ("dangling", "pipe", ".git", "nul.txt"):
        REFUSED[name][1](root / name)
    with pytest.raises(CandidateRefused) as caught:
        files(root)
    assert len(caught.value.reasons) == 4
    assert [reason.partition(":")[0] for reason in caught.value.reasons] == [".git", "dangling", "nul.txt", "pipe"]


def test_a_repository_inside_is_one_problem(root: Path) -> None:
    (root / ".git" / "objects").mkdir(parents=True)
    (root / ".git" / "objects" / "nul").touch()
    assert len(scan_tree(root)) == 1


def test_caches_of_tools_are_left_out(root: Path, tmp_path: Path) -> None:
    before = tree_digest(root)
    (root / "__pycache__").mkdir()
    (root / "__pycache__" / "agent.cpython-311.pyc").touch()
    (root / ".pytest_cache").mkdir()
    (root / "prompts" / ".DS_Store").touch()
    (root / "old.pyc").symlink_to("/etc/passwd")
    assert files(root) == ["agent.py", "prompts/main.md"]
    assert tree_digest(root) == before
    copy_tree(root, tmp_path / "copy")
    assert not (tmp_path / "copy" / "old.pyc").exists()


def test_a_file_named_like_a_cache_folder_is_kept(root: Path) -> None:
    (root / "__pycache__").touch()
    assert "__pycache__" in files(root)


def test_a_copy_has_the_same_bytes_and_the_same_digest(root: Path, tmp_path: Path) -> None:
    (root / "run.sh").touch()
    (root / "run.sh").chmod(0o755)
    (root / "empty").mkdir()
    copy_tree(root, tmp_path / "copy")
    assert files(tmp_path / "copy") == files(root)
    for path in files(root):
        assert (tmp_path / "copy" / path).read_bytes() == (root / path).read_bytes()
    assert os.access(tmp_path / "copy" / "run.sh", os.X_OK)
    assert tree_digest(tmp_path / "copy") == tree_digest(root)


def test_the_digest_sees_bytes_names_and_the_executable_bit(root: Path) -> None:
    digests = {tree_digest(root)}
    (root / "agent.py").chmod(0o755)
    digests.add(tree_digest(root))
    (root / "agent.py").rename(root / "agent2.py")
    digests.add(tree_digest(root))
    (root / "agent2.py").write_bytes(b"def solve(task, target): ...\n")
    digests.add(tree_digest(root))
    (root / "agent2.py").touch()
    (root / "agent2.py").chmod(0o700)
    digests.add(tree_digest(root))
    assert len(digests) == 4


def test_a_target_that_holds_something_is_not_mixed_with(root: Path, tmp_path: Path) -> None:
    (tmp_path / "copy").mkdir()
    (tmp_path / "copy" / "old").touch()
    with pytest.raises(ConfigError, match="not empty"):
        copy_tree(root, tmp_path / "copy")


@pytest.mark.parametrize("make", [lambda path: None, lambda path: path.touch(), lambda path: path.symlink_to("/etc")])
def test_a_root_that_is_no_folder_is_refused(tmp_path: Path, make: Callable[[Path], object]) -> None:
    make(tmp_path / "root")
    assert len(scan_tree(tmp_path / "root")) == 1


def test_too_many_files_and_too_many_bytes_are_refused(root: Path) -> None:
    with (root / "large").open("wb") as file:
        file.truncate(scaffold_tree.MAX_BYTES)
    assert scan_tree(root) == ["20,000,051 bytes in all; at most 20,000,000 are admitted"]
    (root / "large").unlink()
    for number in range(scaffold_tree.MAX_FILES - 1):
        (root / f"f{number}").touch()
    assert scan_tree(root) == ["more than 2,000 files (at least 2,001)"]
