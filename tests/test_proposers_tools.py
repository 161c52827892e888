"""The tools: pages with visible cuts, paths that stay inside, writes only where the step allows."""

from __future__ import annotations

import os
import re
import time
from pathlib import Path
from typing import Any

import pytest
from pydantic import BaseModel

from bco_graph.errors import ToolRefused
from bco_graph.proposers.tools import TOOLS, Toolbox
from bco_graph.proposers.tree import snapshot
from bco_graph.proposers.workspace import Workspace
from bco_graph.protocols import Step
from bco_graph.state import Method, StepName


@pytest.fixture
def root(tmp_path: Path) -> Path:
    root = tmp_path / "workspace"
    for path, text in {
        "scaffold/agent.py": b"x = 1\n",
        "scaffold/lib/tool.py": b"t = 1\n",
        "agent_notes.md": b"",
        "iterations/iter_000/source/agent.py": b"x = 0\n",
        "iterations/iter_000/traces/t1.json": b'{"answer": "fig"}\n',
    }.items():
        (root / path).parent.mkdir(parents=True, exist_ok=True)
        (root / path).write_bytes(text)
    (tmp_path / "secret.txt").write_text("gold", encoding="utf-8")
    return root


def toolbox(root: Path, name: StepName = "propose", method: Method = "bco", *, search_limit_s: float = 20.0) -> Toolbox:
    step: Step[Any] = Step(name, 1, method, root, "", BaseModel, lambda model: model)
    return Toolbox(Workspace(step), frozenset(TOOLS), search_limit_s=search_limit_s)


async def refusal(tools: Toolbox, name: str, **arguments: Any) -> str:
    with pytest.raises(ToolRefused) as caught:
        await tools.call(name, arguments)
    return str(caught.value)


# -- reading -------------------------------------------------------------------------------------------------


async def test_a_long_file_is_cut_with_both_sizes_and_can_be_read_to_its_end(root: Path) -> None:
    text = "".join(f"line {number} of many\n" for number in range(5000)) + "needle\n"
    (root / "iterations/iter_000/traces/long.json").write_text(text, encoding="utf-8")
    tools, start, seen = toolbox(root), 1, ""
    for _ in range(20):
        page = await tools.call("read_file", {"path": "iterations/iter_000/traces/long.json", "start_line": start})
        seen += page.split("\n", 1)[1].split("\n[cut:")[0] + "\n"
        cut = re.search(r"\[cut: kept [\d,]+ bytes of ([\d,]+); the rest begins at start_line=(\d+)\]", page)
        if cut is None:
            break
        assert cut[1] == f"{len(text):,}"
        start = int(cut[2])
    assert seen == text
    assert tools.counts.trace_reads > 1


async def test_one_line_of_a_megabyte_can_be_read_on_by_column(root: Path) -> None:
    (root / "one.json").write_text("a" * 100_000 + "needle", encoding="utf-8")
    page = await toolbox(root).call("read_file", {"path": "one.json"})
    assert page.endswith("[cut: kept 24,001 bytes of 100,006; the rest begins at start_line=1 and start_column=24001]")
    rest = await toolbox(root).call("read_file", {"path": "one.json", "start_column": 100_001})
    assert rest.endswith("\nneedle")


async def test_a_page_says_how_the_file_is_written(root: Path) -> None:
    (root / "odd.txt").write_bytes(b"\xef\xbb\xbfone\r\ntwo \xff")
    page = await toolbox(root).call("read_file", {"path": "odd.txt", "lines": 5})
    assert page == (
        "[odd.txt: 13 bytes, lines 1-2 of 2, CRLF line endings, a byte order mark, bytes that are not UTF-8 shown as "
        "\ufffd, no line break at its end]\none\ntwo \ufffd"
    )


async def test_lines_asked_for_are_lines_given_and_the_rest_is_marked(root: Path) -> None:
    (root / "abc.txt").write_text("a\nb\nc\n", encoding="utf-8")
    page = await toolbox(root).call("read_file", {"path": "abc.txt", "start_line": 2, "lines": 1})
    assert page == ("[abc.txt: 6 bytes, lines 2-2 of 3]\nb\n[cut: kept 2 bytes of 6; the rest begins at start_line=3]")
    assert "past the end: there are 3 line(s)" in await refusal(
        toolbox(root), "read_file", path="abc.txt", start_line=9
    )


async def test_a_binary_file_is_named_as_such(root: Path) -> None:
    (root / "image.png").write_bytes(b"\x89PNG\0\0")
    assert "is binary (6 bytes)" in await refusal(toolbox(root), "read_file", path="image.png")


async def test_a_folder_is_listed_in_order_to_the_depth_asked_for(root: Path) -> None:
    listed = await toolbox(root).call("list_files", {"path": "scaffold", "depth": 2})
    assert listed == "agent.py  6\nlib/\n  tool.py  6"


async def test_a_search_finds_lines_in_a_fixed_order_and_counts_them(root: Path) -> None:
    (root / "wide.txt").write_text("b" * 1000 + "x = 7" + "b" * 1000, encoding="utf-8")
    found = await toolbox(root).call("search", {"pattern": r"x = \d"})
    assert found.split("\n")[1:3] == ["iterations/iter_000/source/agent.py:1: x = 0", "scaffold/agent.py:1: x = 1"]
    assert re.fullmatch(r"wide.txt:1: …b{120}x = 7b{120}… \[line of 2,005 characters\]", found.split("\n")[0])
    assert found.endswith("[3 matching line(s) in 6 file(s) searched]")


async def test_a_search_in_one_file_and_one_that_finds_nothing(root: Path) -> None:
    found = await toolbox(root).call("search", {"pattern": "x", "path": "scaffold/agent.py"})
    assert found.startswith("scaffold/agent.py:1: x = 1\n")
    assert "(no match)" in await toolbox(root).call("search", {"pattern": "absent"})


async def test_a_pattern_that_is_no_regular_expression_is_shown_as_plain_text(root: Path) -> None:
    assert r"as plain text it is 'f\\('" in await refusal(toolbox(root), "search", pattern="f(")


async def test_a_search_that_does_not_end_is_killed(root: Path) -> None:
    (root / "evil.txt").write_text("a" * 60 + "!", encoding="utf-8")
    started = time.monotonic()
    assert "took longer than 0.5 s" in await refusal(toolbox(root, search_limit_s=0.5), "search", pattern="(a+)+$")
    assert time.monotonic() - started < 5


# -- paths ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "path", ["../secret.txt", "/etc/passwd", "~/x", "scaffold/../../secret.txt", "a\\b", "a\nb", " "]
)
async def test_paths_that_leave_or_mean_nothing_are_refused(root: Path, path: str) -> None:
    for name, more in (("read_file", {}), ("write_file", {"content": "x"}), ("list_files", {})):
        assert repr(path) in await refusal(toolbox(root), name, path=path, **more)


async def test_links_that_leave_the_workspace_are_not_followed(root: Path) -> None:
    (root / "scaffold/link").symlink_to("../../secret.txt")
    (root / "scaffold/out").symlink_to("../..")
    tools = toolbox(root)
    assert "leads out of the workspace" in await refusal(tools, "read_file", path="scaffold/link")
    assert "leads out" in await refusal(tools, "read_file", path="scaffold/out/secret.txt")
    assert "symbolic link" in await refusal(tools, "write_file", path="scaffold/link", content="x")
    assert "symbolic link" in await refusal(tools, "write_file", path="scaffold/out/secret.txt", content="x")
    assert "gold" not in await tools.call("search", {"pattern": "gold|x"})
    assert (root.parent / "secret.txt").read_text(encoding="utf-8") == "gold"


async def test_a_write_never_goes_through_a_hard_link_into_the_evidence(root: Path) -> None:
    (root / "scaffold/agent.py").unlink()
    os.link(root / "iterations/iter_000/source/agent.py", root / "scaffold/agent.py")
    await toolbox(root).call("edit_file", {"path": "scaffold/agent.py", "old": "x = 0", "new": "x = 5"})
    assert (root / "iterations/iter_000/source/agent.py").read_bytes() == b"x = 0\n"


async def test_a_missing_file_names_the_nearest_and_what_is_there(root: Path) -> None:
    told = await refusal(toolbox(root), "edit_file", path="scaffold/agnet.py", old="x", new="y")
    assert "'scaffold' holds (did you mean 'agent.py'?): agent.py, lib/; write_file creates a file" in told
    told = await refusal(toolbox(root), "read_file", path="iteration/iter_000/outcome.json")
    assert "'.' holds (did you mean 'iterations/'?)" in told


async def test_writes_outside_of_the_scaffold_are_refused_with_what_was_meant(root: Path) -> None:
    tools = toolbox(root)
    assert "(did you mean 'scaffold/agent.py'?)" in await refusal(tools, "write_file", path="agent.py", content="x")
    assert "writes below scaffold/ only" in await refusal(tools, "write_file", path="python", content="x")
    for path in ("iterations/iter_000/source/agent.py", "agent_notes.md", "scaffold"):
        assert "writes below scaffold/ only" in await refusal(tools, "write_file", path=path, content="x")
    assert not (root / "python").exists()


async def test_the_notes_are_written_in_the_method_that_has_them(root: Path) -> None:
    await toolbox(root, method="notes").call("write_file", {"path": "agent_notes.md", "content": "seen\n"})
    assert (root / "agent_notes.md").read_bytes() == b"seen\n"


@pytest.mark.parametrize("name", [".git/config", "__pycache__/a.pyc", "a /b.py", "end.", "x" * 201])
async def test_names_that_no_candidate_keeps_are_refused(root: Path, name: str) -> None:
    assert "scaffold/" in await refusal(toolbox(root), "write_file", path=f"scaffold/{name}", content="x")


# -- writing -------------------------------------------------------------------------------------------------


async def test_a_file_is_written_byte_for_byte_and_keeps_its_mode(root: Path) -> None:
    (root / "scaffold/agent.py").chmod(0o755)
    text = "````\r\n```python\nnaïve\n```"
    assert await toolbox(root).call("write_file", {"path": "./scaffold/agent.py", "content": text}) == (
        "replaced 6 bytes of ./scaffold/agent.py: 26 bytes"
    )
    assert (root / "scaffold/agent.py").read_bytes() == text.encode()
    assert (root / "scaffold/agent.py").stat().st_mode & 0o777 == 0o755
    assert {path.split("/")[0] for path in snapshot(root)} == {"agent_notes.md", "iterations", "scaffold"}


async def test_a_file_with_content_is_never_emptied_by_a_write(root: Path) -> None:
    assert "holds 6 bytes and would be emptied" in await refusal(
        toolbox(root), "write_file", path="scaffold/agent.py", content=""
    )
    await toolbox(root).call("write_file", {"path": "scaffold/pkg/__init__.py", "content": ""})
    assert (root / "scaffold/pkg/__init__.py").read_bytes() == b""


async def test_what_the_operating_system_refuses_is_told(root: Path) -> None:
    deep = "scaffold/" + "/".join(["d" * 200] * 25)
    assert "File name too long" in await refusal(toolbox(root), "write_file", path=deep, content="x")


async def test_a_file_in_the_way_of_a_folder_is_named(root: Path) -> None:
    told = await refusal(toolbox(root), "write_file", path="scaffold/agent.py/x.py", content="x")
    assert "'scaffold/agent.py' is a file, not a folder" in told
    assert "is a folder" in await refusal(toolbox(root), "write_file", path="scaffold/lib", content="x")


async def test_the_last_file_of_a_folder_takes_the_folder_with_it(root: Path) -> None:
    await toolbox(root).call("delete_file", {"path": "scaffold/lib/tool.py"})
    assert not (root / "scaffold/lib").exists()
    await toolbox(root).call("delete_file", {"path": "scaffold/agent.py"})
    assert (root / "scaffold").is_dir()


async def test_start_from_makes_the_scaffold_equal_a_candidate_or_what_the_step_began_with(root: Path) -> None:
    tools = toolbox(root)
    await tools.call("write_file", {"path": "scaffold/new.py", "content": "n"})
    await tools.call("start_from", {"candidate": "iter_000"})
    assert list(snapshot(root / "scaffold")) == ["agent.py"]
    assert (root / "scaffold/agent.py").read_bytes() == b"x = 0\n"
    await tools.call("start_from", {})
    assert list(snapshot(root / "scaffold")) == ["agent.py", "lib/tool.py"]
    assert (root / "scaffold/agent.py").read_bytes() == b"x = 1\n"


async def test_start_from_an_unknown_candidate_changes_nothing(root: Path) -> None:
    told = await refusal(toolbox(root), "start_from", candidate="iter_007")
    assert "'iterations' holds (did you mean 'iter_000/'?)" in told
    assert (root / "scaffold/agent.py").read_bytes() == b"x = 1\n"
    assert "pattern" in await refusal(toolbox(root), "start_from", candidate="../iter_000")


async def test_arguments_are_checked_with_the_nearest_name(root: Path) -> None:
    told = await refusal(toolbox(root), "read_file", path="a", start_lines=3)
    assert "start_lines: unknown field (did you mean 'start_line'?)" in told
    assert "did you mean 'read_file'?" in await refusal(toolbox(root), "readfile", path="a")
