"""docs/COOKBOOK.md does what it says: its blocks run, one after the other, in one folder, with scripted models."""

from __future__ import annotations

import json
import re
import shlex
from collections.abc import Iterator
from pathlib import Path
from typing import Any, get_args

import pytest
import yaml
from click.testing import CliRunner

from bco_graph.cli import main
from bco_graph.config import check_config, load_config
from bco_graph.state import Split
from bco_graph.testing import Reply, ScriptedModelServer
from tests.test_agent_loop import by_tools
from tests.toy import BOTH, ToySuite, answer

PAGE = (Path(__file__).parents[1] / "docs" / "COOKBOOK.md").read_text(encoding="utf-8")
BLOCKS: list[tuple[str, str]] = re.findall(r"^```(\w+)\n(.*?)^```", PAGE, flags=re.MULTILINE | re.DOTALL)
SHOWN = [yaml.safe_load(block) for language, block in BLOCKS if language == "yaml"]


def large(body: dict[str, Any]) -> Any:
    """A model that needs not be asked for a word alone."""
    prompt = body["messages"][-1]["content"]
    return answer({"messages": [{"content": prompt + BOTH}]})


def coder(body: dict[str, Any]) -> Reply:
    """The proposer's model; `bco doctor`, and a run before its first call, ask it for one word."""
    return by_tools(body) if "tools" in body else Reply("ok")


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """The folder of the page, with its models on a scripted server."""
    suite = ToySuite(tmp_path / "scaffold")
    for split in get_args(Split):
        tasks = [
            {"id": task.id, "type": task.type, "inputs": dict(task.inputs), "gold": suite.gold(task)}
            for task in suite.tasks(split)
        ]
        lines = "".join(json.dumps(task) + "\n" for task in tasks)
        (tmp_path / f"{split}.jsonl").write_text(lines, encoding="utf-8")
    with ScriptedModelServer({"frozen": answer, "large": large, "coder": coder}) as server:
        raw = {
            "name": "cook", "iterations": 1, "suite": "jsonl", **SHOWN[0],
            "suite_options": {"train": "train.jsonl", "heldout": "heldout.jsonl", "scaffold": "scaffold"},
        }  # fmt: skip
        text = yaml.safe_dump(raw).replace("http://127.0.0.1:8000/v1", server.base_url)
        (tmp_path / "bco.yaml").write_text(text, encoding="utf-8")
        monkeypatch.chdir(tmp_path)
        yield tmp_path


def bco(line: str) -> str:
    program, *arguments = shlex.split(line)
    assert program == "bco", line
    done = CliRunner().invoke(main, arguments)
    assert done.exit_code == 0, f"{line}\n{done.output}"
    return done.output


def test_the_page_runs_from_top_to_end(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    names: dict[str, Any] = {}
    said: dict[str, str] = {}
    for number, (language, block) in enumerate(BLOCKS, 1):
        if language == "python":
            exec(compile(block, f"COOKBOOK.md, block {number}", "exec", dont_inherit=True), names)
        elif language == "console":
            said |= {line: bco(line) for line in block.splitlines()}
    assert "iter_000 0.0\niter_001 0.5\n" in capsys.readouterr().out
    assert "iter_001" in said["bco heldout runs/first"]
    assert "0.500" in said["bco watch runs/streamed"]
    assert "only the word" in (folder / "best-scaffold" / "prompt.md").read_text(encoding="utf-8")
    state = json.loads(bco("bco status runs/on-large --json"))
    assert (state["target"], state["best"]["train"]["mean"]) == ("large", 1.0)


def test_every_block_is_of_a_kind_that_is_tried() -> None:
    assert {language for language, _ in BLOCKS} == {"yaml", "console", "python"}


def test_the_settings_that_the_page_shows_load(folder: Path) -> None:
    raw = load_config("bco.yaml").model_dump(mode="json")
    for shown in SHOWN:
        check_config({**raw, **shown})
