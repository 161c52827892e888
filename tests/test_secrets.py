"""A key of the run, wherever a stranger says it: in no file of the run folder, no prompt, no event, no console."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml
from click.testing import CliRunner

from bco_graph.cli import main
from bco_graph.config import RunConfig
from bco_graph.driver import Ended, drive
from bco_graph.errors import ConfigError
from bco_graph.events import Event
from bco_graph.protocols import Step, StepResult, T
from bco_graph.receipts import Receipts
from bco_graph.redaction import MARK, Redactor, credentials_of, inline_keys
from bco_graph.report.verify import verify
from bco_graph.run_folder import RunFolder
from bco_graph.testing import Reply, ScriptedModelServer
from tests.toy import AGENT, BOTH, GRADE, PREDICT, PROPOSE, SHORT, ScriptedProposer, ToySuite, answer, update_for

KEY = "qz9-SECRET-marker-77-abcdef"
LOOKS_LIKE_ONE = "sk-proj-4f9aB77cD1e2F3a4B5c6D7e8F9a0"
SPELT = f"import sys\nKEY = {KEY[:9]!r} + {KEY[9:]!r}\n"
TELLS = SPELT + AGENT.replace(
    "    return reply\n",
    "    print(KEY)\n    print(KEY, file=sys.stderr)\n    target.trace({KEY: [KEY]})\n    target.trace('asked-alone')\n"
    "    if task.inputs['word'] == 'fig':\n        raise ValueError(KEY)\n"
    "    return KEY if task.inputs['word'] == 'oak' else reply\n",
)


@pytest.fixture(autouse=True)
def known_key(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TOY_MODEL_ACCESS", KEY)


def leaky(body: dict[str, Any]) -> Reply:
    """A target that echoes the key it was called with: in an answer, in an error's body."""
    prompt = body["messages"][-1]["content"]
    if "chestnut" in prompt:
        return Reply(f"wrong key {KEY}", status=500, code=KEY)
    if "sycamore" in prompt:
        return Reply(f"I was asked with {KEY}.")
    return answer(body)


@pytest.fixture
def server() -> Iterator[ScriptedModelServer]:
    with ScriptedModelServer({"toy-model": leaky}) as started:
        yield started


def raw_config(tmp_path: Path, server: ScriptedModelServer, **changes: Any) -> dict[str, Any]:
    params = {"model": "openai/toy-model", "api_base": server.base_url, "api_key": "os.environ/TOY_MODEL_ACCESS",
              "temperature": 0}  # fmt: skip
    return {
        "name": "toy", "suite": "tests.toy:ToySuite", "runs": str(tmp_path / "runs"), "iterations": 1,
        "suite_options": {"scaffold": str(tmp_path / "initial")},
        "models": {"model_list": [{"model_name": "toy", "litellm_params": params}], "retries": 0},
        "roles": {"target": "toy"}, "proposer": {"kind": "handoff"},
        "evaluation": {"concurrency": 4, "timeout_s": 20.0, "coverage_floor": 0.5}, **changes,
    }  # fmt: skip


def places(folder: Path, text: str = KEY) -> list[str]:
    """Files below a folder that hold a text, plain or as JSON writes it, git's packed objects among them."""
    found = [
        str(path.relative_to(folder))
        for path in folder.rglob("*")
        if path.is_file() and text.encode() in path.read_bytes()
    ]
    if (folder / "candidates.git").exists():
        git = ["git", f"--git-dir={folder / 'candidates.git'}", "cat-file", "--batch-all-objects", "--batch"]
        objects = subprocess.run(git, capture_output=True, check=True).stdout
        found += ["candidates.git"] if text.encode() in objects else []
    return found


async def driven(config: RunConfig, tmp_path: Path, **options: Any) -> tuple[Ended, list[Event]]:
    events: list[Event] = []
    ended = await drive(config, suite=ToySuite(tmp_path / "initial"), subscriber=events.append, **options)
    return ended, events


def checked(raw: dict[str, Any]) -> RunConfig:
    return RunConfig.model_validate(raw)


async def test_what_target_candidate_and_proposer_say_of_a_key_is_kept_nowhere(
    tmp_path: Path, server: ScriptedModelServer
) -> None:
    def edit(scaffold: Path) -> None:
        (scaffold / "prompt.md").write_text(SHORT, encoding="utf-8")
        (scaffold / "agent.py").write_text(TELLS, encoding="utf-8")

    def learned(step: Step[Any]) -> dict[str, Any]:
        delta = update_for(step)
        delta["ops"] = [{**op, "reason": f"by {KEY}"} | ({"claim": f"It knows {KEY}"} if op["op"] == "add" else {})
                        for op in delta["ops"]]  # fmt: skip
        return {**delta, "learned": KEY, "experiment_note": KEY}

    proposer = ScriptedProposer({1: edit}, {
        (0, "update"): learned,
        (1, "propose"): {**PROPOSE, "mechanism": f"say {KEY}", "failure_mode": f"f {KEY}"},
        (1, "predict"): {**PREDICT, "base_why": KEY, "behavioural": f"b {KEY}", "falsification": f"no {KEY}"},
        (1, "grade"): {**GRADE, "behavioural_check": f"saw {KEY}", "learned": KEY, "belief_update": KEY},
        (1, "update"): learned,
    })  # fmt: skip
    config = checked(raw_config(tmp_path, server))
    ended, events = await driven(config, tmp_path, proposer=proposer)
    assert ended.stop == "iterations"
    assert places(config.run_dir) == []
    assert [step for step, text in proposer.instructions.items() if KEY in text] == []
    assert KEY not in repr(events)
    assert [finding for finding in verify(RunFolder(config.run_dir)) if finding["wrong"]] == []
    receipts = Receipts(config.run_dir / "receipts.sqlite")
    rows = {row.task: row for row in receipts.results("train", "iter_001")}
    record = receipts.step(1, "propose")
    receipts.close()
    assert record is not None
    assert record["submission"]["mechanism"] == f"say {MARK}"
    assert rows["toy-train-1"].answer == MARK
    assert rows["toy-train-0"].error == f"ValueError: {MARK}"
    assert rows["toy-train-4"].kind == "infra_error"


async def test_an_edit_with_a_key_in_use_or_what_is_surely_one_is_refused_before_it_is_stored(
    tmp_path: Path, server: ScriptedModelServer
) -> None:
    def writes(key: str) -> Any:
        return lambda scaffold: (scaffold / "prompt.md").write_text(f"{BOTH}\n{key}\n", encoding="utf-8")

    proposer = ScriptedProposer({1: writes(KEY), 2: writes(LOOKS_LIKE_ONE)}, {(0, "update"): {"ops": []}, **{
        (number, "propose"): {**PROPOSE, "mode": "explore", "beliefs": []} for number in (1, 2)
    }})  # fmt: skip
    config = checked(raw_config(tmp_path, server, iterations=2))
    ended, events = await driven(config, tmp_path, proposer=proposer)
    assert [candidate["id"] for candidate in ended.candidates] == ["iter_000"]
    failed = [event for event in events if event["type"] == "step_failed"]
    assert [event["reasons"][0] for event in failed] == [
        "prompt.md, line 4: holds a credential; take it out, for the gateway holds the keys"
    ] * 2
    assert places(config.run_dir) == places(config.run_dir, LOOKS_LIKE_ONE) == []


async def test_an_edit_may_keep_what_looks_like_a_key_in_the_initial_scaffold(
    tmp_path: Path, server: ScriptedModelServer
) -> None:
    suite = ToySuite(tmp_path / "initial")
    (tmp_path / "initial" / "notes.md").write_text(f"never write {LOOKS_LIKE_ONE}\n", encoding="utf-8")
    edit = {1: lambda scaffold: (scaffold / "prompt.md").write_text(SHORT, encoding="utf-8")}
    config = checked(raw_config(tmp_path, server, method="vanilla"))
    ended = await drive(config, suite=suite, proposer=ScriptedProposer(edit))
    assert len(ended.candidates) == 2


COMMAND = f"""
import json, os, pathlib
key = os.environ["CODING_AGENT_KEY"]
print("I use", key)
step = pathlib.Path("STEP.md").read_text()
if "scaffold/" in step:
    pathlib.Path("scaffold/prompt.md").write_text({BOTH!r})
pathlib.Path("submission.json").write_text(json.dumps({{"parent": "iter_000", "name": "n", "mechanism": key, key: 1}}))
"""


async def test_what_a_coding_agent_hands_in_and_is_refused_for_holds_no_key_of_its_own(
    tmp_path: Path, server: ScriptedModelServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("CODING_AGENT_KEY", "agent-key-0123456789")
    proposer = {"kind": "command", "command": [sys.executable, "-c", COMMAND], "environment": ["CODING_AGENT_KEY"],
                "max_refusals": 1}  # fmt: skip
    config = checked(raw_config(tmp_path, server, method="vanilla", proposer=proposer))
    ended, events = await driven(config, tmp_path)
    (failed,) = [event for event in events if event["type"] == "step_failed"]
    assert f"{MARK}: unknown field" in failed["reasons"][0]
    assert ended.state["proposal"]["failure"]["reasons"] == failed["reasons"]
    assert places(config.run_dir, "agent-key-0123456789") == []


async def test_a_submission_of_a_person_leaves_no_key_in_checkpoints_or_workspace(
    tmp_path: Path, server: ScriptedModelServer
) -> None:
    config = checked(raw_config(tmp_path, server, method="vanilla"))
    waiting, _ = await driven(config, tmp_path)
    assert waiting.awaited is not None
    submission = {"parent": "iter_000", "name": "n", "mechanism": KEY, KEY: 1}
    refused, _ = await driven(config, tmp_path, answer=submission)
    assert refused.awaited is not None
    assert f"{MARK}: unknown field" in refused.awaited["refused"][0]
    (config.run_dir / "workspace" / "scaffold" / "prompt.md").write_text(BOTH, encoding="utf-8")
    (config.run_dir / "workspace" / "submission.json").write_text(
        f'{{"parent": "iter_000", "name": "n", "mechanism": "say {KEY}"}}', encoding="utf-8"
    )
    ended, _ = await driven(config, tmp_path, answer="ready")
    assert len(ended.candidates) == 2
    assert places(config.run_dir) == []


class Crashing:
    """A proposer whose own error tells the key, and is caused by another that does."""

    async def perform(self, step: Step[T]) -> StepResult[T]:
        try:
            raise KeyError(KEY)
        except KeyError as error:
            raise RuntimeError(f"cannot use {KEY}") from error


async def test_a_crash_tells_no_key(tmp_path: Path, server: ScriptedModelServer) -> None:
    config = checked(raw_config(tmp_path, server))
    with pytest.raises(RuntimeError) as crashed:
        await driven(config, tmp_path, proposer=Crashing())
    assert str(crashed.value) == f"cannot use {MARK}"
    assert repr(crashed.value.__cause__) == f"KeyError('{MARK}')"
    assert places(config.run_dir) == []


@pytest.mark.parametrize("as_json", [[], ["--json"]])
def test_the_command_line_tells_no_key_of_an_upstream_that_echoes_it(
    tmp_path: Path, server: ScriptedModelServer, as_json: list[str]
) -> None:
    server.script("toy-model", [Reply(f"the key {KEY} is wrong", status=401)])
    path = tmp_path / "bco.yaml"
    path.write_text(yaml.safe_dump(raw_config(tmp_path, server)), encoding="utf-8")
    told = CliRunner().invoke(main, ["run", str(path), *as_json])
    assert told.exit_code != 0
    assert "is wrong" in told.output
    assert KEY not in told.output
    assert places(tmp_path / "runs") == []


async def test_a_key_in_the_config_or_the_initial_scaffold_ends_a_run_before_it_is_made(
    tmp_path: Path, server: ScriptedModelServer
) -> None:
    raw = raw_config(tmp_path, server)
    raw["models"]["model_list"][0]["litellm_params"]["api_key"] = "inline-key-0123456789"
    with pytest.raises(ConfigError, match=r"litellm_params.api_key holds the key itself.*os.environ/NAME"):
        await driven(checked(raw), tmp_path)
    assert places(tmp_path / "runs", "inline-key-0123456789") == []
    suite = ToySuite(tmp_path / "initial")
    (tmp_path / "initial" / "prompt.md").write_text(f"{SHORT}{KEY}\n", encoding="utf-8")
    with pytest.raises(ConfigError, match=r"prompt.md, line 3: holds a credential"):
        await drive(checked(raw_config(tmp_path, server)), suite=suite)
    assert places(tmp_path / "runs") == []


def test_variables_that_are_named_like_credentials_are_known_and_short_values_are_words() -> None:
    assert credentials_of({"A_KEY": "k", "GH_TOKEN": "t", "PATH": "/bin", "db_password": "p"}) == ["k", "t", "p"]
    redactor = Redactor(["none", "longer-than-eight", "0123456789ab"])
    assert redactor.known("none of 0123456789ab, 0123456789a") == f"none of {MARK}, 0123456789a"
    assert redactor.plain({"0123456789ab": ["x0123456789ab"]}) == {MARK: [f"x{MARK}"]}
    assert inline_keys({"api_key": "none", "vertex_credentials": "/a/long/path/to/a/file.json"}) == []
    assert inline_keys({"extra_headers": {"Authorization": "Bearer 0123456789"}}) == ["extra_headers.Authorization"]


@pytest.mark.parametrize("ascii_only", [True, False])
def test_a_key_is_found_in_json_however_it_is_written_there(ascii_only: bool) -> None:
    key = 'qz9"SECRET\\marker-é-77'
    assert Redactor([key]).known(json.dumps([key], ensure_ascii=ascii_only)) == f'["{MARK}"]'


async def test_notes_with_a_key_are_refused(tmp_path: Path, server: ScriptedModelServer) -> None:
    def edit(scaffold: Path) -> None:
        (scaffold / "prompt.md").write_text(SHORT, encoding="utf-8")
        (scaffold.parent / "agent_notes.md").write_text(f"first\nuse {KEY}\n", encoding="utf-8")

    config = checked(raw_config(tmp_path, server, method="notes"))
    _, events = await driven(config, tmp_path, proposer=ScriptedProposer({1: edit}))
    (failed,) = [event for event in events if event["type"] == "step_failed"]
    assert failed["reasons"] == ["agent_notes.md, line 2: holds a credential; take it out"]
