"""Runs on task files of one's own: a suite of JSON lines with a scaffold beside it."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import yaml

from bco_graph.testing import ScriptedModelServer
from tests.faults.play import write_config

ASKS = 'async def solve(task, target):\n    return await target.chat("say " + task.inputs["word"])\n'


def task(name: str, gold: Any, **inputs: Any) -> dict[str, Any]:
    return {"id": name, "type": "word", "inputs": {"word": name, **inputs}, "gold": gold}


def write_tasks(folder: Path, tasks: Sequence[Mapping[str, Any]], *, agent: str = ASKS) -> None:
    (folder / "initial").mkdir(exist_ok=True)
    (folder / "initial/agent.py").write_text(agent, encoding="utf-8")
    lines = "\n".join(json.dumps(item, ensure_ascii=False) for item in tasks)
    (folder / "train.jsonl").write_text(lines + "\n", encoding="utf-8")
    (folder / "heldout.jsonl").write_text(json.dumps(task("held", "held")) + "\n", encoding="utf-8")


def write_tasks_config(folder: Path, server: ScriptedModelServer, **changes: Any) -> None:
    """bco.yaml for the files of `write_tasks`, with no iteration but the baseline's unless `changes` say so."""
    write_config(folder, server, **{"iterations": 0, "suite": "jsonl", **changes})
    path = folder / "bco.yaml"
    config = yaml.safe_load(path.read_text(encoding="utf-8"))
    config["suite_options"] = {"train": "train.jsonl", "heldout": "heldout.jsonl", "scaffold": "initial"}
    path.write_text(yaml.safe_dump(config), encoding="utf-8")
