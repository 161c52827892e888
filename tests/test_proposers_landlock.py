"""A CLI under Landlock, where there is no bubblewrap: what it sees, what it can write, whom it reaches."""

from __future__ import annotations

import asyncio
import json
import logging
import os
from pathlib import Path
from typing import Any

import pytest

from bco_graph.config import ProposerConfig
from bco_graph.errors import ConfigError, StepFailed
from bco_graph.evaluation import Sandbox, landlock
from bco_graph.proposers import jail
from bco_graph.proposers.command import CommandProposer
from tests.test_proposers_command import SUBMIT
from tests.test_proposers_jail import ASK, FORBIDDEN, changes_nothing, gateway, perform, run_folder, seen

__all__ = ["run_folder"]  # a fixture
pytestmark = pytest.mark.skipif(landlock.abi() < landlock.SCOPE_ABI, reason="the kernel's Landlock is too old")


@pytest.fixture(autouse=True)
def without_bubblewrap(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(jail, "strongest", lambda: Sandbox("landlock", "none", "bwrap is not on PATH"))


async def test_nothing_of_the_run_but_the_workspace_is_read_and_no_other_run_or_file_of_the_user(
    run_folder: Path,
) -> None:
    home, workspace = run_folder.parents[1], run_folder / "workspace"
    outside = [run_folder / "receipts.sqlite", run_folder / "heldout", run_folder.parent / "other", home / ".ssh"]
    outside += [Path(__file__), Path(jail.__file__), Path("/etc/shadow"), Path("/proc/self/environ"), run_folder, home]
    found = await seen(run_folder, *outside, workspace / "SKILL.md", workspace / "iterations")
    assert found[: len(outside)] == ["PermissionError"] * len(outside)
    assert found[len(outside) :] == ["SKILL.md\n", ["iter_000"]]


@pytest.mark.parametrize(
    "code",
    [
        *FORBIDDEN,
        "import os; os.truncate('SKILL.md', 0)",
        "import os; os.replace('submission.json', 'SKILL.md')",
        "open('new', 'w')",
        "import os; os.link('SKILL.md', 'scaffold/SKILL.md')",
        "import os, pathlib; open(pathlib.Path(os.getcwd()).parents[2] / 'new', 'w')",
    ],
)
async def test_evidence_and_system_cannot_be_changed(run_folder: Path, code: str) -> None:
    await changes_nothing(run_folder, code)


async def test_edits_and_results_are_kept_and_home_is_thrown_away(run_folder: Path) -> None:
    code = """
import os, tempfile
open("scaffold/new.py", "w").write("new")
open("scaffold/agent.tmp", "w").write("edited")
os.replace("scaffold/agent.tmp", "scaffold/agent.py")
open("agent_notes.md", "w").write("mine")
open("submission.json", "w").write('{"word": "blue"}')
open(os.path.expanduser("~/cache"), "w").write("x")
open(tempfile.mkstemp()[1], "w").write("x")
"""
    result = await perform(run_folder, code, method="notes")
    workspace = run_folder / "workspace"
    assert result.value == "blue"
    kept = [workspace / path for path in ("scaffold/new.py", "scaffold/agent.py", "agent_notes.md")]
    assert [path.read_text(encoding="utf-8") for path in kept] == ["new", "edited", "mine"]
    assert not (run_folder.parents[1] / "cache").exists()
    assert sorted(path.name for path in workspace.iterdir()) == [
        "SKILL.md", "agent_notes.md", "iterations", "scaffold",
    ]  # fmt: skip


async def test_a_step_that_edits_nothing_cannot_write_the_scaffold(run_folder: Path) -> None:
    with pytest.raises(StepFailed, match="PermissionError"):
        await perform(run_folder, f"open('scaffold/new.py', 'w')\n{SUBMIT}", step="predict")


async def test_no_submission_is_none(run_folder: Path) -> None:
    with pytest.raises(StepFailed, match=r"wrote no submission\.json"):
        await perform(run_folder, "raise SystemExit(3)")
    assert not (run_folder / "workspace" / "submission.json").exists()


async def test_what_the_command_started_does_not_outlive_it_nor_its_limit(run_folder: Path, tmp_path: Path) -> None:
    beat = run_folder / "workspace" / "scaffold" / "beat"
    code = f"""
import os, sys, time
if os.fork() == 0:
    os.setsid()
    if os.fork() == 0:
        while True:
            open({str(beat)!r}, "a").write("x")
            time.sleep(0.01)
    os._exit(0)
os.wait()
while not os.path.exists({str(beat)!r}):
    time.sleep(0.01)
time.sleep(float(sys.argv[1]))
{SUBMIT}"""
    await perform(run_folder, code, "0")
    size = beat.stat().st_size
    await asyncio.sleep(0.2)
    assert beat.stat().st_size == size
    with pytest.raises(StepFailed, match="killed at the step's limit"):
        await perform(run_folder, code, "60", timeout_s=2.0)
    size = beat.stat().st_size
    await asyncio.sleep(0.2)
    assert beat.stat().st_size == size


@pytest.mark.parametrize(("network", "other"), [(False, "PermissionError"), (True, "connected")])
async def test_the_gateway_is_reached_by_its_url_and_another_port_with_network_only(
    run_folder: Path, tmp_path: Path, network: bool, other: str
) -> None:
    listening = await asyncio.start_server(lambda _, writer: writer.close(), "127.0.0.1", 0)
    async with listening, gateway(tmp_path) as (_, port):
        words = ["{gateway}", str(listening.sockets[0].getsockname()[1])]
        result = await perform(run_folder, ASK + SUBMIT, *words, port=port, network=network)
    assert result.notes["output"].split() == ["/v1/models", other]


async def test_readable_paths_are_found_in_home_and_not_written(run_folder: Path) -> None:
    home = run_folder.parents[1]
    (home / ".cli").mkdir()
    (home / ".cli" / "config").write_text("mine", encoding="utf-8")
    code = "import json, os\nprint(json.dumps([open(os.path.expanduser('~/.cli/config')).read()]))\n"
    result = await perform(run_folder, code + SUBMIT, readable=[str(home / ".cli")])
    assert json.loads(result.notes["output"]) == ["mine"]
    with pytest.raises(StepFailed, match="PermissionError"):
        await perform(run_folder, code.replace("config')", "config'), 'w'"), readable=[str(home / ".cli")])


async def test_a_readable_folder_around_the_run_does_not_show_the_run(run_folder: Path) -> None:
    found = await seen(run_folder, run_folder / "receipts.sqlite", readable=[str(run_folder.parents[1])])
    assert found == ["PermissionError"]


async def test_a_program_that_is_not_there_is_named(run_folder: Path) -> None:
    with pytest.raises(StepFailed, match=r"cannot start './absent': No such file"):
        await perform(run_folder, "", command=["./absent"])


def test_auto_says_what_is_left_open_and_required_refuses(caplog: pytest.LogCaptureFixture) -> None:
    def make(**config: Any) -> CommandProposer:
        settings = ProposerConfig.model_validate({"kind": "command", "command": ["sh"], **config})
        return CommandProposer(settings, gateway_url="http://127.0.0.1:9/v1", token_for=str, environ=dict(os.environ))

    with caplog.at_level(logging.WARNING):
        make()
    assert "Landlock" in caplog.text
    assert "Unix sockets that have a path" in caplog.text
    with pytest.raises(ConfigError, match=r"less than bubblewrap: bwrap is not on PATH"):
        make(sandbox="required")
