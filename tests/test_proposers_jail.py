"""A CLI in its jail: what it sees of the machine, what it can write, whom it reaches."""

from __future__ import annotations

import asyncio
import json
import logging
import os
import stat
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from bco_graph.config import ProposerConfig
from bco_graph.errors import ConfigError, StepFailed
from bco_graph.evaluation import Sandbox, pick_sandbox
from bco_graph.proposers import jail
from bco_graph.proposers.command import CommandProposer
from bco_graph.proposers.tree import snapshot
from bco_graph.protocols import StepResult
from bco_graph.state import Method, StepName
from tests.test_proposers_command import SUBMIT, make_step

pytestmark = pytest.mark.skipif(pick_sandbox("auto").name != "bubblewrap", reason="bubblewrap does not work here")

READ = """
import json, os, sys
def look(path):
    try:
        return os.listdir(path) if os.path.isdir(path) else open(path).read()
    except OSError as error:
        return type(error).__name__
print(json.dumps([look(path) for path in json.loads(sys.argv[1])]))
"""


@pytest.fixture
def run_folder(tmp_path: Path) -> Path:
    """A run with a workspace, beside another run, below a home folder."""
    root = tmp_path / "home" / "runs" / "this"
    for path in ("receipts.sqlite", "heldout/rows.json", "../other/receipts.sqlite", "../../.ssh/id"):
        (root / path).parent.mkdir(parents=True, exist_ok=True)
        (root / path).write_text("secret", encoding="utf-8")
    for path in ("SKILL.md", "scaffold/agent.py", "iterations/iter_000/traces/t1.json", "agent_notes.md"):
        (root / "workspace" / path).parent.mkdir(parents=True, exist_ok=True)
        (root / "workspace" / path).write_text(f"{path}\n", encoding="utf-8")
    return root


async def perform(
    run_folder: Path,
    code: str,
    *arguments: str,
    step: StepName = "propose",
    method: Method = "bco",
    socket: Path | None = None,
    port: int = 9,
    path: str = "",
    **config: Any,
) -> StepResult[str]:
    settings = {"kind": "command", "command": [sys.executable, "-S", "-c", code, *arguments], "timeout_s": 20.0}
    proposer = CommandProposer(
        ProposerConfig.model_validate({**settings, "max_refusals": 0, **config}),
        gateway_url=f"http://127.0.0.1:{port}/v1", token_for=lambda _: "token", gateway_socket=socket,
        environ={"PATH": path or os.environ["PATH"], "HOME": str(run_folder.parents[1])},
    )  # fmt: skip
    return await proposer.perform(make_step(run_folder / "workspace", step, method))


async def seen(run_folder: Path, *paths: Path, **config: Any) -> list[Any]:
    result = await perform(run_folder, READ + SUBMIT, json.dumps([str(path) for path in paths]), **config)
    found: list[Any] = json.loads(result.notes["output"])
    return found


async def test_nothing_of_the_run_but_the_workspace_is_seen_and_no_other_run_or_file_of_the_user(
    run_folder: Path,
) -> None:
    home, workspace = run_folder.parents[1], run_folder / "workspace"
    outside = [run_folder / "receipts.sqlite", run_folder / "heldout", run_folder.parent / "other", home / ".ssh"]
    outside += [Path(__file__), Path(sys.modules["bco_graph"].__file__ or "").parent / "cli.py", Path("/etc/shadow")]
    found = await seen(run_folder, *outside, run_folder, home, workspace / "SKILL.md", workspace / "iterations")
    assert found[: len(outside)] == ["FileNotFoundError"] * len(outside)
    assert found[len(outside) :] == [["workspace"], ["runs"], "SKILL.md\n", ["iter_000"]]


FORBIDDEN = [
    "open('iterations/iter_000/traces/t1.json', 'a').write('x')",
    "import os; os.remove('SKILL.md')",
    "open('iterations/new', 'w')",
    "import shutil; shutil.rmtree('iterations')",
    "import os; os.rename('scaffold', 'elsewhere')",
    "open('/usr/new', 'w')",
]


async def changes_nothing(run_folder: Path, code: str) -> None:
    before = snapshot(run_folder)
    with pytest.raises(StepFailed, match="exit code 1"):
        await perform(run_folder, f"{code}\n{SUBMIT}")
    after = snapshot(run_folder)
    assert after.pop("workspace/STEP.md")
    assert after == before


@pytest.mark.parametrize(
    "code",
    [
        *FORBIDDEN,
        "import os; open('new', 'w').write('x'); os.replace('new', 'SKILL.md')",
        "import os; os.chmod('SKILL.md', 0o777)",
        "import subprocess; subprocess.run(['mount', '-o', 'remount,rw', '/usr'], check=True)",
    ],
)
async def test_evidence_and_system_cannot_be_changed(run_folder: Path, code: str) -> None:
    await changes_nothing(run_folder, code)
    assert stat.S_IMODE((run_folder / "workspace" / "SKILL.md").stat().st_mode) != 0o777


async def test_edits_and_results_are_kept_however_they_are_written(run_folder: Path) -> None:
    code = """
import os
open("scaffold/new.py", "w").write("new")
open("scaffold/agent.py", "w").write("edited")
for name, text in (("agent_notes.md", "mine"), ("submission.json", '{"word": "blue"}')):
    open(name + ".tmp", "w").write(text)
    os.replace(name + ".tmp", name)
open(os.path.expanduser("~/cache"), "w").write("x")
open("/tmp/scratch", "w").write("x")
"""
    result = await perform(run_folder, code, method="notes")
    workspace = run_folder / "workspace"
    assert result.value == "blue"
    kept = [workspace / path for path in ("scaffold/new.py", "scaffold/agent.py", "agent_notes.md")]
    assert [path.read_text(encoding="utf-8") for path in kept] == ["new", "edited", "mine"]
    assert not (run_folder.parents[1] / "cache").exists()
    assert not [name for name in snapshot(run_folder) if name.startswith(".jail-")]


async def test_a_refused_submission_is_mended_in_a_second_run(run_folder: Path) -> None:
    code = """
import os
refused = os.path.exists("REFUSED.md")
print("word: missing" in open("REFUSED.md").read() if refused else "first run", os.path.exists("submission.json"))
os.remove("STEP.md")
open("submission.json", "w").write('{"word": "blue"}' if refused else "{}")
"""
    result = await perform(run_folder, code, max_refusals=1)
    assert (result.value, result.notes["output"]) == ("blue", "True False\n")


async def test_a_script_that_the_command_names_is_seen(run_folder: Path, tmp_path: Path) -> None:
    script = tmp_path / "elsewhere" / "agent.py"
    script.parent.mkdir()
    script.write_text(SUBMIT, encoding="utf-8")
    assert (await perform(run_folder, "", command=[sys.executable, str(script)])).value == "blue"


async def test_notes_are_no_part_of_another_method(run_folder: Path) -> None:
    with pytest.raises(StepFailed, match="Read-only file system"):
        await perform(run_folder, "open('agent_notes.md', 'w')\n" + SUBMIT)


async def test_what_the_command_started_does_not_outlive_it(run_folder: Path) -> None:
    code = """
import os, time
if os.fork() == 0:
    os.setsid()
    while True:
        open("scaffold/beat", "a").write("x")
        time.sleep(0.01)
time.sleep(0.2)
"""
    await perform(run_folder, code + SUBMIT)
    beat = run_folder / "workspace" / "scaffold" / "beat"
    size = beat.stat().st_size
    await asyncio.sleep(0.2)
    assert beat.stat().st_size == size > 0


@asynccontextmanager
async def gateway(folder: Path) -> AsyncIterator[tuple[Path, int]]:
    """One server on a Unix socket and on a port, as a gateway is; it answers with the path that was asked for."""

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        asked = (await reader.readuntil(b"\r\n\r\n")).split()[1]
        writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n" % len(asked) + asked)
        writer.close()

    unix = await asyncio.start_unix_server(answer, folder / "g.sock")
    tcp = await asyncio.start_server(answer, "127.0.0.1", 0)
    async with unix, tcp:
        yield folder / "g.sock", tcp.sockets[0].getsockname()[1]


ASK = """
import socket, sys, urllib.request
print(urllib.request.urlopen(sys.argv[1] + "/models", timeout=5).read().decode())
try:
    socket.create_connection(("127.0.0.1", int(sys.argv[2])), timeout=2)
    print("connected")
except OSError as error:
    print(type(error).__name__)
"""


@pytest.mark.parametrize(("network", "other"), [(False, "ConnectionRefusedError"), (True, "connected")])
async def test_the_gateway_is_reached_by_its_url_and_another_port_with_network_only(
    run_folder: Path, tmp_path: Path, network: bool, other: str
) -> None:
    listening = await asyncio.start_server(lambda _, writer: writer.close(), "127.0.0.1", 0)
    async with listening, gateway(tmp_path) as (socket, port):
        words = ["{gateway}", str(listening.sockets[0].getsockname()[1])]
        result = await perform(run_folder, ASK + SUBMIT, *words, socket=socket, port=port, network=network)
    assert result.notes["output"].split() == ["/v1/models", other]


async def test_readable_paths_are_read_and_not_written(run_folder: Path, tmp_path: Path) -> None:
    login = run_folder.parents[1] / ".cli" / "login"
    login.parent.mkdir()
    login.write_text("mine", encoding="utf-8")
    assert await seen(run_folder, login) == ["FileNotFoundError"]
    assert await seen(run_folder, login, readable=[str(login.parent)]) == ["mine"]
    with pytest.raises(StepFailed, match="Read-only"):
        await perform(run_folder, f"open({str(login)!r}, 'w')", readable=[str(login.parent)])
    with pytest.raises(ConfigError, match=r"proposer\.readable names .*nowhere, which does not exist"):
        await perform(run_folder, SUBMIT, readable=[str(tmp_path / "nowhere")])


async def test_a_readable_folder_around_the_run_does_not_show_the_run(run_folder: Path) -> None:
    around = run_folder.parents[1]
    found = await seen(run_folder, run_folder / "receipts.sqlite", around / ".ssh" / "id", readable=[str(around)])
    assert found == ["FileNotFoundError", "secret"]


async def test_a_cli_that_path_reaches_by_a_link_finds_what_lies_beside_it(run_folder: Path, tmp_path: Path) -> None:
    package = tmp_path / "opt" / "lib" / "cli"
    package.mkdir(parents=True)
    (package / "words.txt").write_text("beside", encoding="utf-8")
    (package / "cli.sh").write_text(
        '#!/bin/sh\ncat "$(dirname "$(readlink -f "$0")")/words.txt"\necho \'{"word": "blue"}\' > submission.json\n'
    )
    (package / "cli.sh").chmod(0o755)
    (tmp_path / "opt" / "bin").mkdir()
    (tmp_path / "opt" / "bin" / "some-cli").symlink_to("../lib/cli/cli.sh")
    path = f"{tmp_path / 'opt' / 'bin'}:/usr/bin:/bin"
    result = await perform(run_folder, "", path=path, command=["env", "A=b", "some-cli"])
    assert result.notes["output"] == "beside"


async def test_a_program_that_is_not_there_is_named(run_folder: Path) -> None:
    with pytest.raises(StepFailed, match=r"cannot start './absent': No such file"):
        await perform(run_folder, "", command=["./absent"])


async def test_what_a_killed_run_left_of_its_jail_is_removed(run_folder: Path) -> None:
    (run_folder / ".jail-old" / "SKILL.md").mkdir(parents=True)
    await perform(run_folder, SUBMIT)
    assert not (run_folder / ".jail-old").exists()


def test_where_nothing_confines_required_refuses_and_auto_warns(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(jail, "strongest", lambda: Sandbox("none", "none", "bwrap is not on PATH; no Landlock"))
    with caplog.at_level(logging.WARNING):
        CommandProposer(ProposerConfig(kind="command", command=["sh"]), gateway_url="", token_for=str)
    assert "the proposer's command is not confined" in caplog.text
    required = ProposerConfig(kind="command", command=["sh"], sandbox="required")
    with pytest.raises(ConfigError, match=r"proposer\.sandbox is required and .* bwrap is not on PATH"):
        CommandProposer(required, gateway_url="", token_for=str)


@pytest.mark.skipif(os.getuid() != 0, reason="only root can become another user")
def test_a_folder_on_path_that_the_user_may_not_look_at_is_passed_over(tmp_path: Path) -> None:
    (tmp_path / "bin").mkdir()
    tmp_path.chmod(0o700)
    pid = os.fork()
    if pid == 0:
        try:
            os.setgroups([])
            os.setgid(65534)
            os.setuid(65534)
            found = jail._programs(["sh"], f"{tmp_path}/bin:/usr/bin", "/nonexistent")
            os._exit(0 if Path(tmp_path, "bin") not in found else 3)
        except BaseException:
            os._exit(4)
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0
