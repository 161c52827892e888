"""The page for LangGraph apps and its example do what they say, with a scripted model."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from bco_graph.config import load_config
from bco_graph.evaluation import LeakPatterns, check_candidate
from bco_graph.suites import load_suite
from bco_graph.testing import ScriptedModelServer

ROOT = Path(__file__).parents[1]
EXAMPLE = ROOT / "examples" / "langgraph_app"
PAGE = (ROOT / "docs" / "LANGGRAPH_APPS.md").read_text(encoding="utf-8")
BCO = str(Path(sys.executable).parent / "bco")


def bco(folder: Path, *args: str) -> str:
    done = subprocess.run([BCO, *args], cwd=folder, capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def answer(body: dict[str, Any]) -> str:
    """Works out the first two products of an order, misreads one page, else says what the handbook says of it."""
    prompt = body["messages"][-1]["content"]
    if "calculator" in prompt:
        return "CALC 2*27+1*34"
    return "nobody knows" if "batteries" in prompt.rpartition("Question:")[2] else "4 zones"


@pytest.fixture
def server() -> Iterator[ScriptedModelServer]:
    with ScriptedModelServer({"m": answer}) as started:
        yield started


def traces(run: Path) -> dict[str, Any]:
    found = [json.loads(path.read_text(encoding="utf-8")) for path in (run / "iterations/iter_000/traces").iterdir()]
    return {trace["task"]: trace for trace in found}


def run_example(folder: Path, server: ScriptedModelServer, *settings: str) -> None:
    """The baseline of the example, with the scripted model in place of the local one."""
    models = json.dumps([server.deployment("m")])
    own = ("iterations=0", f"models.model_list={models}", "roles.target=m", *settings)
    flags = [part for setting in own for part in ("--set", setting)]
    ran = json.loads(bco(folder, "run", str(EXAMPLE / "bco.yaml"), "--method", "vanilla", "--json", *flags))
    assert ran["stop"] == "iterations"


def test_the_example_runs_and_its_traces_show_each_node_and_tool(tmp_path: Path, server: ScriptedModelServer) -> None:
    run_example(tmp_path, server, f"runs={tmp_path}")
    found = traces(tmp_path / "langgraph_app")
    assert len(found) == 24
    order = found["train-order-01"]
    assert (order["answer"], order["score"]) == ("88", 1.0)
    assert [event.get("tool") or event["node"] for event in order["events"]] == [
        "route", "retrieve", "agent", "calculate", "tools", "check",
    ]  # fmt: skip
    assert order["events"][3] == {
        "tool": "calculate", "node": "tools", "input": {"sum": "2*27+1*34"}, "output": "88",
    }  # fmt: skip
    assert found["train-fact-01"]["score"] == 1.0
    again = found["train-fact-04"]
    assert [event["node"] for event in again["events"]][1:] == ["retrieve", "agent", "check"] * 2
    assert again["events"][-1]["update"] == {"answer": "nobody knows", "tries": 2}


def test_the_edit_made_by_hand_applies_and_gives_the_model_one_sentence(
    tmp_path: Path, server: ScriptedModelServer
) -> None:
    edited = Path(shutil.copytree(EXAMPLE / "app", tmp_path / "app", ignore=shutil.ignore_patterns("__pycache__")))
    patch = str(EXAMPLE / "by_hand.patch")
    subprocess.run(["git", "apply", patch], cwd=tmp_path, check=True, capture_output=True)
    suite = load_suite(load_config(EXAMPLE / "bco.yaml"))
    assert check_candidate(edited, suite.interface, LeakPatterns.build([], {})) == []
    scaffold, wanted = f"scaffold={edited}", "evaluation.train=3"
    ran = tmp_path / "runs/langgraph_app"
    run_example(tmp_path, server, f"runs={tmp_path}/runs", scaffold, wanted)
    (fact,) = (trace for trace in traces(ran).values() if trace["type"] == "fact")
    assert fact["events"][1]["update"] == {"passages": ["Corvane Mini: It waters up to 4 zones."]}
    assert [event["node"] for event in fact["events"]] == ["route", "retrieve", "agent", "check"]


def test_the_example_s_answers_stand_in_its_handbook() -> None:
    suite = load_suite(load_config(EXAMPLE / "bco.yaml"))
    handbook = " ".join(" ".join(page.read_text(encoding="utf-8").split()) for page in (EXAMPLE / "app/docs").iterdir())
    prices = {name.lower(): int(price) for name, price in re.findall(r"An? ([\w ]+?) costs (\d+) euro", handbook)}
    for split in ("train", "heldout"):
        tasks = suite.tasks(split)
        assert len(tasks) == 24
        for task in tasks:
            if task.type == "order":
                bought = re.findall(r"(\d+) ([\w ]+?)(?: and| cost)", task.inputs["question"].lower())
                total = sum(
                    int(count) * prices[name if name in prices else name.removesuffix("s")] for count, name in bought
                )
                assert suite.gold(task) == str(total), task
            else:
                assert f"{suite.gold(task)}" in handbook, task


def test_every_command_of_the_page_runs_on_the_app_of_the_page(tmp_path: Path, server: ScriptedModelServer) -> None:
    (app,) = re.findall(r"```python\n(.*?)```", PAGE, flags=re.DOTALL)
    commands = [
        line for block in re.findall(r"```console\n(.*?)```", PAGE, flags=re.DOTALL) for line in block.splitlines()
    ]
    (tmp_path / "my_app").mkdir()
    (tmp_path / "my_app" / "app.py").write_text(app, encoding="utf-8")
    config = tmp_path / "bco.yaml"
    assert [command.split()[1] for command in commands] == ["init", "doctor", "estimate", "run", "status"]
    said = {}
    for command in commands:
        if command == "bco doctor bco.yaml":
            raw = yaml.safe_load(config.read_text(encoding="utf-8"))
            raw |= {"roles": {"target": "m"}, "proposer": {"kind": "handoff"}}
            raw["models"]["model_list"] = [server.deployment("m")]
            config.write_text(yaml.safe_dump(raw), encoding="utf-8")
        said[command.split()[1]] = bco(tmp_path, *command.split()[1:])
    assert "waits for" in said["run"]
    assert "my_app-bco" in said["status"]
    assert [trace["answer"] for trace in traces(tmp_path / "runs/my_app-bco").values()] == ["4 zones"] * 2


def test_the_entry_of_the_page_is_taken_by_the_suite(tmp_path: Path) -> None:
    (block,) = re.findall(r"```yaml\n(.*?)```", PAGE, flags=re.DOTALL)
    (task,) = re.findall(r"^\{\"id\".*\}$", PAGE, flags=re.MULTILINE)
    for split in ("train", "heldout"):
        (tmp_path / f"{split}.jsonl").write_text(task.replace("sum-1", split), encoding="utf-8")
    options = yaml.safe_load(block)["suite_options"]
    raw = load_config(EXAMPLE / "bco.yaml").model_dump(mode="json") | {"base": str(tmp_path)}
    raw["suite_options"] = {"train": "train.jsonl", "heldout": "heldout.jsonl", "scaffold": "app", **options}
    suite = load_suite(type(load_config(EXAMPLE / "bco.yaml")).model_validate(raw))
    assert suite.interface.settings["recursion_limit"] == 20
