"""How an edit reaches a file: matching, where it may go, what it must keep, and the diff that is stored of it."""

from __future__ import annotations

import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from bco_graph.scaffold_tree import tree_digest
from bco_graph.testing import ToolCall
from tests.faults.play import BARE, TARGET, Act, Played, When, edit, models, play, submit, told, write
from tests.toy import AGENT, BOTH, NAIVE, SHORT, Edit, ScriptedProposer, ToySuite

BOM = b"\xef\xbb\xbf"
WINDOWS = BOM + b"# settings\r\nlimit = 1  \r\nword = 2\r\n"
NO_LAST_BREAK = b"first\nsecond"
TWINS = "# twice\nx = 1   \ny = 2\n# twice\n"


@pytest.fixture(scope="module")
def edited(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Played]:
    """One iteration whose model edits a file of Windows lines, a file without a last break, twins and odd names."""
    folder = tmp_path_factory.mktemp("edited")
    suite = ToySuite(folder / "initial")
    for name, content in [("win.cfg", WINDOWS), ("last.txt", NO_LAST_BREAK), ("twins.py", TWINS.encode())]:
        (suite.initial_scaffold() / name).write_bytes(content)
    acts: dict[When, list[Act]] = {
        (1, "propose"): [
            [edit("scaffold/twins.py", "x = 1\ny = 2", "x = 1\ny = 3")],
            [edit("scaffold/twins.py", "# twice", "# once")],
            [edit("python", "x = 1", "x = 2")],
            [write("python/../../python", "x = 2\n")],
            "    ```python\n    # scaffold/agent.py\n    x = 2\n    ```",
            [edit("scaffold/win.cfg", "word = 2\n", "word = 3\n")],
            [edit("scaffold/last.txt", "first\n", "First\n")],
            submit(BARE),
        ]
    }
    with models(acts) as server:
        yield play(folder, server, suite=suite)


def test_an_edit_off_by_blanks_is_applied_where_one_place_fits_and_refused_where_two_do(edited: Played) -> None:
    assert edited.source("iter_001", "twins.py").decode() == TWINS.replace("x = 1   ", "x = 1").replace(
        "y = 2", "y = 3"
    )
    applied, refused = (told(edited.asked(1, "propose")[number]) for number in (1, 2))
    assert "edited scaffold/twins.py at line 2 (matched but for trailing blanks)" in applied
    assert "2 places match `old` (lines 1, 4)" in refused
    assert "edited scaffold/twins.py at line 2" in refused


def test_how_many_edits_were_refused_is_on_the_record(edited: Played) -> None:
    with edited.receipts() as receipts:
        step = receipts.step(1, "propose")
    assert step is not None
    assert (step["notes"]["edits_applied"], step["notes"]["edits_refused"]) == (3, 3)


def test_the_tag_of_a_fence_is_never_taken_for_a_file(edited: Played) -> None:
    """A target is an explicit path inside the scaffold, or the model is told what is wrong with it."""
    assert "'python'" in edited.asked(1, "propose")[3]["messages"][-1]["content"]
    assert "refused" in edited.asked(1, "propose")[4]["messages"][-1]["content"]
    assert "calls no tool" in edited.asked(1, "propose")[5]["messages"][-1]["content"]
    source = edited.folder / "iterations/iter_001/source"
    assert sorted(path.name for path in source.rglob("*")) == [
        "agent.py", "last.txt", "prompt.md", "twins.py", "win.cfg"
    ]  # fmt: skip
    assert list(edited.folder.parent.parent.rglob("python")) == []
    assert edited.source("iter_001", "agent.py") == AGENT.encode()


def test_an_edit_keeps_line_ends_the_mark_at_the_start_and_a_missing_last_break(edited: Played) -> None:
    """One changed line is one changed line of the diff, and every other byte is as it was."""
    assert edited.source("iter_001", "win.cfg") == WINDOWS.replace(b"word = 2", b"word = 3")
    assert edited.source("iter_001", "last.txt") == b"First\nsecond"
    patch = (edited.folder / "iterations/iter_001/diff.patch").read_bytes()
    assert [line for line in patch.split(b"\n") if line.startswith((b"-w", b"+w", b"-f", b"+F"))] == [
        b"-first", b"+First", b"-word = 2\r", b"+word = 3\r"
    ]  # fmt: skip


@pytest.fixture(scope="module")
def four(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Played]:
    """Four candidates, each on the one before: a file is added, one is renamed, one edited, one deleted."""
    folder = tmp_path_factory.mktemp("four")

    def add(scaffold: Path) -> None:
        (scaffold / "data").mkdir()
        (scaffold / "data/words.bin").write_bytes(b"\x00\xff\r\nfig")
        (scaffold / "data/latin.txt").write_bytes("caf\xe9\n".encode("latin-1"))

    def rename(scaffold: Path) -> None:
        (scaffold / "data/words.bin").rename(scaffold / "words.dat")

    def change(scaffold: Path) -> None:
        (scaffold / "data/latin.txt").write_bytes("caf\xe9s\n".encode("latin-1"))
        (scaffold / "prompt.md").write_text(SHORT, encoding="utf-8")

    def delete(scaffold: Path) -> None:
        (scaffold / "words.dat").unlink()

    submissions = {(n, "propose"): {**BARE, "parent": f"iter_{n - 1:03d}"} for n in range(1, 5)}
    edits: dict[int, Edit] = {1: add}
    for n, step in [(2, rename), (3, change), (4, delete)]:
        edits[n] = on_source_of(folder / f"runs/toy/iterations/iter_{n - 1:03d}/source", step)
    with models() as server:
        yield play(folder, server, by=ScriptedProposer(edits, submissions), iterations=4)


def on_source_of(source: Path, then: Edit) -> Edit:
    def edit(scaffold: Path) -> None:
        shutil.rmtree(scaffold)
        shutil.copytree(source, scaffold)
        then(scaffold)

    return edit


def test_the_stored_diff_of_every_candidate_turns_its_parent_into_it(four: Played, tmp_path: Path) -> None:
    """Added, renamed, changed, deleted, binary and not UTF-8: never empty, never against another base."""
    assert [c["id"] for c in four.ended.candidates] == [f"iter_{n:03d}" for n in range(5)]
    iterations = four.folder / "iterations"
    for n in range(1, 5):
        work = tmp_path / str(n)
        subprocess.run(["cp", "-r", iterations / f"iter_{n - 1:03d}/source", work], check=True)
        patch = iterations / f"iter_{n:03d}/diff.patch"
        assert patch.stat().st_size > 0
        subprocess.run(["git", "apply", str(patch)], cwd=work, check=True, env={"PATH": "/usr/bin:/bin", "HOME": "/"})
        assert tree_digest(work) == tree_digest(iterations / f"iter_{n:03d}/source")


def test_an_edit_that_drops_a_placeholder_or_renames_the_entry_point_costs_no_target_call(tmp_path: Path) -> None:
    """The reason names the invariant; nothing is repaired behind the proposer's back."""
    acts: dict[When, list[Act]] = {
        (1, "propose"): [[write("prompt.md", "Say the word.\n"), *submit(BARE)]],
        (2, "propose"): [[write("agent.py", AGENT.replace("def solve", "def solves")), *submit(BARE)]],
        (3, "propose"): [[write("prompt.md", BOTH), *submit(BARE)]],
    }
    with models(acts) as server:
        run = play(tmp_path, server, iterations=3, max_failures=3, proposer={"max_refusals": 0})
        asked = len(server.requests_of(TARGET))
    assert asked == 16
    assert run.failures() == [(1, "propose", "refused"), (2, "propose", "refused")]
    reasons = [event["reasons"] for event in run.events if event["type"] == "step_failed"]
    assert "lacks the placeholder '{word}'" in reasons[0][0]
    assert "'agent.py:solve'" in reasons[1][0]
    assert "did you mean 'solves'" in reasons[1][0]
    assert run.ended.state["best"] == {"id": "iter_003", "mean": 1.0}
    assert run.source("iter_000", "prompt.md") == NAIVE.encode()


def test_an_edit_that_was_told_of_may_be_mended_within_the_bound_of_tries(tmp_path: Path) -> None:
    acts: dict[When, list[Act]] = {
        (1, "propose"): [
            [write("prompt.md", "Say the word.\n"), *submit(BARE)],
            [ToolCall("start_from", {}), write("prompt.md", SHORT), *submit(BARE)],
        ]
    }
    with models(acts) as server:
        run = play(tmp_path, server)
    assert run.ended.state["best"] == {"id": "iter_001", "mean": 0.5}
    assert run.source("iter_001", "prompt.md") == SHORT.encode()
