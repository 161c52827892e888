"""A CLI in the workspace: what it is given, how it ends, what it may touch, what is kept of what it printed."""

from __future__ import annotations

import json
import os
import sys
import time
from pathlib import Path
from typing import Any

import pytest
from pydantic import BaseModel

from bco_graph.config import ProposerConfig
from bco_graph.errors import ConfigError, StepFailed
from bco_graph.proposers.command import CommandProposer
from bco_graph.proposers.running import run_program
from bco_graph.proposers.tree import snapshot
from bco_graph.protocols import Caller, Step, StepResult
from bco_graph.state import Method, StepName


class Form(BaseModel):
    word: str


SUBMIT = 'open("submission.json", "w").write(\'{"word": "blue"}\')\n'


@pytest.fixture
def workspace(tmp_path: Path) -> Path:
    root = tmp_path / "workspace"
    for path in ("SKILL.md", "scaffold/agent.py", "iterations/iter_000/traces/t1.json", "agent_notes.md"):
        (root / path).parent.mkdir(parents=True, exist_ok=True)
        (root / path).write_text(f"{path}\n", encoding="utf-8")
    return root


def make_step(workspace: Path, name: StepName = "propose", method: Method = "bco") -> Step[str]:
    def accept(model: BaseModel) -> str:
        assert isinstance(model, Form)
        return model.word

    return Step(name, 3, method, workspace, "Name a colour.", Form, accept)


def proposer(code: str, *arguments: str, environ: dict[str, str] | None = None, **config: Any) -> CommandProposer:
    command = [sys.executable, "-S", "-c", code, *arguments]
    settings = ProposerConfig(kind="command", command=command, **({"timeout_s": 20.0, "max_refusals": 1} | config))
    return CommandProposer(
        settings, gateway_url="http://127.0.0.1:9/v1", token_for=lambda caller: f"token-of-{caller.step}",
        environ={"PATH": os.environ["PATH"], **(environ or {})},
    )  # fmt: skip


async def run(workspace: Path, code: str, *arguments: str, **config: Any) -> StepResult[str]:
    return await proposer(code, *arguments, **config).perform(make_step(workspace))


async def failure(workspace: Path, code: str, *arguments: str, **config: Any) -> StepFailed:
    with pytest.raises(StepFailed) as caught:
        await run(workspace, code, *arguments, **config)
    return caught.value


async def test_placeholders_are_filled_in_as_whole_words_without_a_shell(workspace: Path) -> None:
    code = "import json, sys\nprint(json.dumps(sys.argv[1:]))\n" + SUBMIT
    words = ["{prompt_file}", "--at={gateway}", "{token}", "$HOME; '{workspace}'", '{"json": {"a": 1}}', "{other}"]
    result = await run(workspace, code, *words)
    assert json.loads(result.notes["output"]) == [
        str(workspace / "STEP.md"), "--at=http://127.0.0.1:9/v1", "[token]", f"$HOME; '{workspace}'",
        '{"json": {"a": 1}}', "{other}",
    ]  # fmt: skip


async def test_the_token_is_the_steps_own(workspace: Path) -> None:
    callers: list[Caller] = []
    config = ProposerConfig(kind="command", command=[sys.executable, "-S", "-c", SUBMIT])

    def token_for(caller: Caller) -> str:
        callers.append(caller)
        return "t"

    await CommandProposer(config, gateway_url="", token_for=token_for).perform(make_step(workspace))
    assert callers == [Caller(role="proposer", step="3/propose")]


async def test_only_listed_variables_are_seen_and_their_values_are_not_kept(workspace: Path) -> None:
    environ = {"HOME": "/home/x", "LANG": "C", "TERM": "dumb", "MY_KEY": "sk-very-secret", "OTHER": "hidden"}
    code = "import os\nprint(sorted(os.environ))\nprint(os.environ['MY_KEY'])\n" + SUBMIT
    result = await run(workspace, code, environ=environ, environment=["MY_KEY"])
    seen, key = result.notes["output"].splitlines()
    assert {"PATH", "HOME", "LANG", "TERM", "MY_KEY"} <= set(json.loads(seen.replace("'", '"')))
    assert "OTHER" not in seen
    assert key == "[MY_KEY]"


async def test_a_second_run_has_the_reasons_and_not_the_old_submission(workspace: Path) -> None:
    code = (
        "import os\n"
        "os.remove('STEP.md')\n"
        "if os.path.exists('REFUSED.md'):\n"
        "    print(open('REFUSED.md').read(), os.path.exists('submission.json'))\n"
        f"    {SUBMIT}"
        "else:\n"
        "    open('submission.json', 'w').write('{}')\n"
    )
    result = await run(workspace, code)
    assert "- word: missing; it is required (string)" in result.notes["output"]
    assert result.notes["output"].rstrip().endswith("False")
    assert len(result.refusals) == 1
    assert not {"STEP.md", "REFUSED.md", "submission.json"} & set(snapshot(workspace))


async def test_a_stale_submission_is_not_taken_for_the_steps(workspace: Path) -> None:
    (workspace / "submission.json").write_text('{"word": "old"}', encoding="utf-8")
    error = await failure(workspace, "pass", max_refusals=0)
    assert error.cause == "refused"
    assert "submission.json was not written" in error.reasons[0]


async def test_a_command_that_fails_without_a_submission_tells_its_last_line(workspace: Path) -> None:
    code = "print('banner ' * 20_000)\nraise SystemExit('Boom-42')"
    error = await failure(workspace, code)
    assert error.cause == "command"
    assert "exit code 1" in error.reasons[0]
    assert "Boom-42" in error.reasons[0]
    assert error.raw.startswith("banner")
    assert "[cut: kept 32,000 of 140,009 bytes, head and tail]" in error.raw
    assert error.raw.rstrip().endswith("Boom-42")


async def test_a_submission_counts_though_the_command_ends_with_an_error(workspace: Path) -> None:
    result = await run(workspace, SUBMIT + "raise SystemExit(3)")
    assert (result.value, result.notes["exit_code"]) == ("blue", 3)


async def test_unconfined_the_limit_kills_the_whole_group_even_where_it_ignores_signals(workspace: Path) -> None:
    code = (
        "import os, signal, subprocess, sys, time\n"
        "signal.signal(signal.SIGTERM, signal.SIG_IGN)\n"
        "child = subprocess.Popen([sys.executable, '-S', '-c', 'import time; time.sleep(60)'])\n"
        "print(child.pid, flush=True)\n"
        "time.sleep(60)\n"
    )
    started = time.monotonic()
    error = await failure(workspace, code, timeout_s=1.0, sandbox="off")
    assert error.cause == "timeout"
    assert "limit of 1 s (proposer.timeout_s)" in error.reasons[0]
    assert time.monotonic() - started < 10
    assert dies(int(error.raw))


async def test_unconfined_what_a_finished_command_left_running_is_killed(workspace: Path) -> None:
    code = (
        "import subprocess, sys\n"
        "print(subprocess.Popen([sys.executable, '-S', '-c', 'import time; time.sleep(60)']).pid)\n"
    )
    result = await run(workspace, code + SUBMIT, sandbox="off")
    assert dies(int(result.notes["output"]))


def dies(pid: int) -> bool:
    """Whether a process is dead within two seconds, reaped or not: a kill takes a moment to arrive."""
    for _ in range(200):
        try:
            status = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8")
        except (FileNotFoundError, ProcessLookupError):
            return True
        if status.rsplit(")", 1)[1].split()[0] == "Z":
            return True
        time.sleep(0.01)
    return False


async def test_tries_share_the_limit(workspace: Path) -> None:
    code = "import time\ntime.sleep(0.7)\nopen('submission.json', 'w').write('{}')"
    error = await failure(workspace, code, timeout_s=1.2, max_refusals=20)
    assert error.cause == "timeout"


@pytest.mark.parametrize(
    ("code", "path"),
    [
        ("open('iterations/iter_000/traces/t1.json', 'a').write('x')", "iterations/iter_000/traces/t1.json"),
        ("import os; os.remove('SKILL.md')", "SKILL.md"),
        ("open('agent_notes.md', 'w').write('mine')", "agent_notes.md"),
        ("import shutil, os; shutil.rmtree('scaffold'); os.symlink('/', 'scaffold')", "scaffold/"),
        (
            "import os; p='SKILL.md'; s=os.stat(p); open(p, 'r+').write('Skill'); os.utime(p, ns=(s.st_atime_ns, "
            "s.st_mtime_ns))",
            "SKILL.md",
        ),
    ],
)
async def test_unconfined_altered_evidence_fails_the_step(workspace: Path, code: str, path: str) -> None:
    error = await failure(workspace, code + "\n" + SUBMIT, sandbox="off")
    assert error.cause == "tampered"
    assert error.reasons == [f"the command changed or removed what it may only read: {path}"]


async def test_touching_a_file_without_changing_it_is_no_tampering(workspace: Path) -> None:
    assert (await run(workspace, "import os; os.utime('SKILL.md')\n" + SUBMIT, sandbox="off")).value == "blue"


async def test_what_is_writable_is_so_by_step_and_method(workspace: Path) -> None:
    notes = proposer("open('agent_notes.md', 'w').write('mine'); open('scaffold/new.py', 'w').write('x')\n" + SUBMIT)
    await notes.perform(make_step(workspace, method="notes"))
    assert (workspace / "agent_notes.md").read_text(encoding="utf-8") == "mine"
    assert (workspace / "scaffold/new.py").exists()
    code = "open('scaffold/agent.py', 'w').write('x')\n" + SUBMIT
    with pytest.raises(StepFailed, match=r"tampered.*scaffold/agent\.py"):
        await proposer(code, sandbox="off").perform(make_step(workspace, "predict"))
    with pytest.raises(StepFailed, match="Read-only file system"):
        await proposer(code).perform(make_step(workspace, "predict"))


@pytest.mark.parametrize("sandbox", ["auto", "off"])
async def test_files_added_elsewhere_are_removed_and_named(workspace: Path, sandbox: str) -> None:
    before = set(snapshot(workspace))
    code = "import os; os.makedirs('scratch/deep'); open('scratch/deep/a.py', 'w'); open('b.txt', 'w')\n"
    result = await run(workspace, code + SUBMIT, sandbox=sandbox)
    assert result.notes["removed"] == ["b.txt", "scratch", "scratch/deep", "scratch/deep/a.py"]
    assert set(snapshot(workspace)) == before
    assert not (workspace / "scratch").exists()


@pytest.mark.parametrize(
    ("code", "why"),
    [
        ("import os; os.symlink('SKILL.md', 'submission.json')", "no regular file"),
        ("open('submission.json', 'wb').write(b'{\"word\": \"\\xff\"}')", "not UTF-8"),
        ("open('submission.json', 'wb').truncate(5_000_000)", "holds 5,000,000 bytes"),
    ],
)
async def test_a_submission_file_that_cannot_be_read_is_refused(workspace: Path, code: str, why: str) -> None:
    assert why in (await failure(workspace, code, max_refusals=0)).reasons[0]


@pytest.mark.parametrize(
    ("command", "environment", "why"),
    [
        ([], [], "proposer.command must hold the argv"),
        (["python3", "{promt}"], [], r"unknown field \{promt\} \(did you mean 'prompt'\?\)"),
        (["no-such-cli-anywhere"], [], "not on PATH"),
        (["python3"], ["NO_SUCH_KEY"], "'NO_SUCH_KEY', which the environment does not have"),
    ],
)
def test_a_command_that_cannot_work_is_refused_at_the_start(
    command: list[str], environment: list[str], why: str
) -> None:
    config = ProposerConfig(kind="command", command=command, environment=environment)
    with pytest.raises(ConfigError, match=why):
        CommandProposer(config, gateway_url="", token_for=lambda _: "", environ={"PATH": os.environ["PATH"]})


async def test_a_program_that_cannot_be_started_fails_the_step(workspace: Path) -> None:
    config = ProposerConfig(kind="command", command=["./absent"])
    with pytest.raises(StepFailed, match=r"cannot start './absent': No such file"):
        await CommandProposer(config, gateway_url="", token_for=lambda _: "").perform(make_step(workspace))


async def test_a_secret_across_the_cut_leaves_no_part_of_itself(tmp_path: Path) -> None:
    secret = "sk-" + "0123456789abcdef" * 4
    code = f"import sys\nsys.stdout.write('x' * (8_000 - 30) + {secret!r} + 'y' * 200_000 + {secret!r} + 'z' * 23_990)"
    ended = await run_program(
        [sys.executable, "-S", "-c", code], cwd=tmp_path, environment={}, timeout_s=20, secrets={"KEY": secret}
    )
    assert "0123456789" not in ended.output
    assert "abcdef" not in ended.output
    assert "xxx[KEY]yyy" in ended.output
