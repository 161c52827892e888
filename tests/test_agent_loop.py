"""The whole loop with the `agent` proposer behind the gateway: a scripted model edits, predicts, grades and updates."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest

from bco_graph.config import Deployment
from bco_graph.driver import drive
from bco_graph.receipts import Receipts
from bco_graph.testing import Reply, ScriptedModelServer, ToolCall
from tests.toy import AGENT, GRADE, PREDICT, PROPOSE, SHORT, ToySuite, answer, toy_config

TRACE = "iterations/iter_000/traces/toy-train-0.json"
FIRST_BELIEF = {
    "op": "add", "kind": "execution", "claim": "It says too much.", "confidence": 0.6, "status": "hypothesis",
    "evidence_for": [{"path": TRACE}], "mass": 8, "reason": "all of them",
}  # fmt: skip
PLAINLY = SHORT.removeprefix("The word is: ")
MARKED = AGENT.replace("    reply =", "    target.trace('asked-alone')\n    reply =")

ACTS = {
    "the first beliefs": [ToolCall("read_file", {"path": TRACE}), ToolCall("submit", {"ops": [FIRST_BELIEF]})],
    "propose": [
        ToolCall("edit_file", {"path": "scaffold/prompt.md", "old": "{word}\n", "new": PLAINLY}),
        ToolCall("write_file", {"path": "scaffold/agent.py", "content": MARKED}),
        ToolCall("submit", PROPOSE),
    ],
    "predict": [ToolCall("submit", PREDICT)],
    "grade": [ToolCall("submit", GRADE)],
    "update the world model": [ToolCall("submit", {"ops": []})],
}  # fmt: skip


def next_act(body: dict[str, Any]) -> ToolCall:
    """The act that is due in the step that was asked for last, one act a reply."""
    step, acts = "", 0
    for message in body["messages"]:
        if found := re.search(r"^# Iteration \d+: (.+)$", str(message.get("content") or ""), flags=re.MULTILINE):
            step, acts = found[1], 0
        acts += message["role"] == "assistant"
    return ACTS[step][min(acts, len(ACTS[step]) - 1)]


def by_tools(body: dict[str, Any]) -> Reply:
    return Reply(None, tool_calls=[next_act(body)])


def by_json_lines(body: dict[str, Any]) -> Reply:
    assert "tools" not in body
    act = next_act(body)
    return Reply(json.dumps({"tool": act.name, "args": act.arguments}))


@pytest.mark.parametrize(("protocol", "model"), [("tools", by_tools), ("json", by_json_lines)])
async def test_a_model_that_edits_and_submits_improves_the_scaffold(tmp_path: Path, protocol: str, model: Any) -> None:
    with ScriptedModelServer({"toy-model": answer, "proposer-model": model}) as server:
        config = toy_config(tmp_path, server, iterations=1)
        proposer = Deployment.model_validate(server.deployment("proposer-model") | {"model_name": "proposer"})
        models = config.models.model_copy(update={"model_list": [*config.models.model_list, proposer]})
        chosen = config.proposer.model_copy(update={"kind": "agent", "protocol": protocol})
        roles = config.roles.model_copy(update={"proposer": "proposer"})
        config = config.model_copy(update={"models": models, "roles": roles, "proposer": chosen})
        ended = await drive(config, suite=ToySuite(tmp_path / "initial"))
        asked = len(server.requests_of("proposer-model"))
    assert ended.state["outcome"]["failure"] is None
    assert ended.state["best"] == {"id": "iter_001", "mean": 0.5}
    assert ended.state["grade"]["verdict"] == "held"
    assert asked == sum(len(acts) for acts in ACTS.values())
    receipts = Receipts(config.run_dir / "receipts.sqlite")
    spend = {row["role"]: row["calls"] for row in receipts.spend()}
    step = receipts.step(0, "update")
    receipts.close()
    assert spend == {"target": 16, "proposer": asked}
    assert step is not None
    assert step["trace_reads"] == 1
