"""The candidate store: bytes as they are, and diffs that really lead from parent to candidate."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest

from bco_graph.candidates import CandidateStore
from bco_graph.errors import RunUnreadable

ODD = {
    "agent.py": b"async def solve(task, target):\n    return 1\n",
    "crlf.txt": b"\xef\xbb\xbfone\r\ntwo\r\n",
    "no_newline.md": b"last line",
    "data.bin": bytes(range(256)),
    ".gitignore": b"*\n",
    ".gitattributes": b"* text=auto eol=lf ident filter=lfs export-ignore\n",
    "id.txt": b"$Id$\n",
    "sub/dir/\xc3\xa9.txt".encode("latin-1").decode("utf-8"): "ü\n".encode(),
}


def lay(folder: Path, files: dict[str, bytes]) -> Path:
    for name, content in files.items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content)
    return folder


def read(folder: Path) -> dict[str, bytes]:
    return {p.relative_to(folder).as_posix(): p.read_bytes() for p in folder.rglob("*") if p.is_file()}


@pytest.fixture
def store(tmp_path: Path) -> CandidateStore:
    return CandidateStore(tmp_path / "candidates.git")


def test_every_byte_comes_back_whatever_ignore_and_attribute_files_say(store: CandidateStore, tmp_path: Path) -> None:
    tree = store.stage(lay(tmp_path / "in", ODD))
    store.checkout(tree, tmp_path / "out")
    assert read(tmp_path / "out") == ODD


def test_equal_sources_have_equal_trees_in_any_store(store: CandidateStore, tmp_path: Path) -> None:
    other = CandidateStore(tmp_path / "other.git")
    assert store.stage(lay(tmp_path / "a", ODD)) == other.stage(lay(tmp_path / "b", ODD))


def test_the_stored_diff_turns_the_parent_into_the_candidate(store: CandidateStore, tmp_path: Path) -> None:
    """Added, deleted, renamed and binary files among them."""
    changed = {k: v for k, v in ODD.items() if k not in ("id.txt", "no_newline.md")}
    changed |= {"renamed.md": ODD["no_newline.md"], "new/file.py": b"x = 1\n", "crlf.txt": b"\xef\xbb\xbfone\r\n2\r\n"}
    changed |= {"data.bin": bytes(reversed(range(256)))}
    old, new = store.stage(lay(tmp_path / "old", ODD)), store.stage(lay(tmp_path / "new", changed))
    patch = store.diff(old, new)
    (tmp_path / "p.patch").write_bytes(patch.encode("utf-8", "surrogateescape"))
    work = tmp_path / "work"
    store.checkout(old, work)
    subprocess.run(
        ["git", "apply", "--whitespace=nowarn", str(tmp_path / "p.patch")],
        cwd=work, check=True,
        env={"PATH": os.environ["PATH"], "HOME": os.devnull, "GIT_CEILING_DIRECTORIES": str(tmp_path)},
    )  # fmt: skip
    assert read(work) == changed


def test_one_changed_line_of_a_crlf_file_is_one_changed_line(store: CandidateStore, tmp_path: Path) -> None:
    old = store.stage(lay(tmp_path / "a", {"f.txt": b"\xef\xbb\xbfa\r\nb\r\nc"}))
    new = store.stage(lay(tmp_path / "b", {"f.txt": b"\xef\xbb\xbfa\r\nB\r\nc"}))
    lines = [line for line in store.diff(old, new).splitlines() if line[:1] in "+-" and line[:3] not in ("+++", "---")]
    assert len(lines) == 2


def test_candidates_keep_their_parent_and_their_order(store: CandidateStore, tmp_path: Path) -> None:
    trees = [store.stage(lay(tmp_path / str(i), {"a.txt": b"%d" % i})) for i in range(3)]
    store.admit(0, trees[0], None)
    store.admit(2, trees[1], "iter_000")
    store.admit(1000, trees[2], "iter_002")
    assert store.ids() == ["iter_000", "iter_002", "iter_1000"]
    assert store.tree("iter_002") == trees[1]
    log = subprocess.run(
        ["git", f"--git-dir={store.path}", "log", "--format=%s", "iter_1000"],
        check=True,
        capture_output=True,
        text=True,
    )
    assert log.stdout.split() == ["iter_1000", "iter_002", "iter_000"]


def test_admitting_again_is_nothing_and_another_tree_is_refused(store: CandidateStore, tmp_path: Path) -> None:
    first, second = (store.stage(lay(tmp_path / n, {"a.txt": n.encode()})) for n in ("x", "y"))
    assert store.admit(0, first, None) == store.admit(0, first, None) == "iter_000"
    with pytest.raises(RunUnreadable, match="another iter_000"):
        store.admit(0, second, None)


def test_nothing_of_the_person_s_git_config_counts(
    store: CandidateStore, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    config = tmp_path / "gitconfig"
    config.write_text(
        "[core]\n autocrlf = true\n[commit]\n gpgsign = true\n[diff]\n external = false\n", encoding="utf-8"
    )
    monkeypatch.setenv("GIT_CONFIG_GLOBAL", str(config))
    tree = store.stage(lay(tmp_path / "in", ODD))
    store.admit(0, tree, None)
    store.checkout(tree, tmp_path / "out")
    assert read(tmp_path / "out") == ODD


def test_a_relative_folder_will_do(store: CandidateStore, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    tree = CandidateStore(Path("candidates.git")).stage(lay(Path("in"), ODD))
    store.checkout(tree, Path("out"))
    assert read(tmp_path / "out") == ODD
