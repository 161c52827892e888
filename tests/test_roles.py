"""The roles beside target and proposer: a judge that helps the grader, a predictor that says what an edit will do."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest

from bco_graph.config import RunConfig, check_config
from bco_graph.driver import drive
from bco_graph.errors import ConfigError
from bco_graph.events import Event
from bco_graph.receipts import Receipts, ResultRow
from bco_graph.testing import Reply, ScriptedModelServer
from tests.test_agent_loop import by_tools
from tests.toy import ScriptedProposer, ToySuite, answer, toy_config

AGENT = 'async def solve(task, target):\n    return await target.chat(task.inputs["word"])\n'
VERDICTS = {
    "oak": "It names the tree.\nVERDICT: CORRECT",
    "elm": "It names another tree.\nVERDICT: INCORRECT",
    "ash": "The answer is correct.",
    "fig": "VERDICT: CORRECT or VERDICT: INCORRECT",
}


def deployment(server: ScriptedModelServer, name: str) -> dict[str, Any]:
    params = {"model": f"openai/{name}", "api_base": server.base_url, "api_key": "none"}
    return {"model_name": name, "litellm_params": params}


def judged(folder: Path, server: ScriptedModelServer, **changes: Any) -> RunConfig:
    (folder / "scaffold").mkdir(parents=True)
    (folder / "scaffold" / "agent.py").write_text(AGENT, encoding="utf-8")
    for split, words in (("train", VERDICTS), ("heldout", ["yew"])):
        tasks = [{"id": f"t-{word}", "inputs": {"word": word}, "gold": f"the {word}"} for word in words]
        (folder / f"{split}.jsonl").write_text("".join(json.dumps(task) + "\n" for task in tasks), encoding="utf-8")
    raw = toy_config(folder, server, method="vanilla", iterations=0).model_dump()
    options = {"train": "train.jsonl", "heldout": "heldout.jsonl", "scaffold": "scaffold", "match": "judge"}
    listed = [deployment(server, "toy-model"), deployment(server, "judge-model")]
    return check_config(
        {**raw, "suite": "jsonl", "suite_options": options, "base": str(folder),
         "models": {"model_list": listed, "retries": 0}, "roles": {"target": "toy-model", "judge": "judge-model"},
         **changes}
    )  # fmt: skip


def verdict(body: dict[str, Any]) -> Reply:
    found = re.search(r'"word": "(\w+)"', body["messages"][0]["content"])
    return Reply(VERDICTS[found[1] if found else ""])


def rows(config: RunConfig) -> dict[str, ResultRow]:
    receipts = Receipts(config.run_dir / "receipts.sqlite")
    try:
        return {row.task.removeprefix("t-"): row for row in receipts.results("train")}
    finally:
        receipts.close()


async def test_a_judges_verdict_is_its_last_line_or_none_at_all(tmp_path: Path) -> None:
    with ScriptedModelServer({"toy-model": lambda body: Reply("VERDICT: CORRECT"), "judge-model": verdict}) as server:
        config = judged(tmp_path, server)
        await drive(config, proposer=ScriptedProposer({}))
        asked = server.requests_of("judge-model")
    found = rows(config)
    assert {word: row.score for word, row in found.items()} == {"oak": 1.0, "elm": 0.0, "ash": None, "fig": None}
    assert found["oak"].note == "It names the tree."
    assert found["ash"].kind == "ungradeable"
    assert "no verdict: 'The answer is correct.'" in found["ash"].note
    assert all("the oak" in r.body["messages"][0]["content"] for r in asked if '"oak"' in str(r.body["messages"]))


async def test_a_judge_that_cannot_be_reached_leaves_no_score(tmp_path: Path) -> None:
    def flaky(body: dict[str, Any]) -> Reply:
        return Reply("no", status=503) if '"elm"' in body["messages"][0]["content"] else verdict(body)

    with ScriptedModelServer({"toy-model": lambda body: Reply("a tree"), "judge-model": flaky}) as server:
        config = judged(tmp_path, server)
        await drive(config, proposer=ScriptedProposer({}))
    assert (rows(config)["elm"].kind, rows(config)["elm"].score) == ("infra_error", None)
    assert "the judge gave no answer" in rows(config)["elm"].note
    assert rows(config)["oak"].kind == "scored"


async def test_a_suite_that_needs_a_judge_is_refused_without_one(tmp_path: Path) -> None:
    with ScriptedModelServer({}) as server:
        config = judged(tmp_path, server, roles={"target": "toy-model"})
        with pytest.raises(ConfigError, match=r"graded by a model: roles\.judge must name its deployment"):
            await drive(config, proposer=ScriptedProposer({}))
    assert not config.run_dir.exists()


async def test_a_role_that_nothing_asks_is_told(tmp_path: Path) -> None:
    events: list[Event] = []
    with ScriptedModelServer({"toy-model": answer}) as server:
        config = toy_config(tmp_path, server, iterations=0, roles={"target": "toy", "judge": "toy"})
        suite = ToySuite(tmp_path / "initial")
        await drive(config, suite=suite, proposer=ScriptedProposer({}), subscriber=events.append)
    told = [event["message"] for event in events if event["type"] == "warning"]
    assert any("roles.judge names 'toy', but nothing in this run asks it" in message for message in told)


async def test_a_predictor_predicts_in_the_proposers_place_and_knows_nothing_of_its_conversation(
    tmp_path: Path,
) -> None:
    models = {"toy-model": answer, "proposer-model": by_tools, "predictor-model": by_tools}
    with ScriptedModelServer(models) as server:
        listed = [deployment(server, name) for name in ("toy-model", "proposer-model", "predictor-model")]
        roles = {"target": "toy-model", "proposer": "proposer-model", "predictor": "predictor-model"}
        config = toy_config(
            tmp_path, server, iterations=1, models={"model_list": listed, "retries": 0}, roles=roles,
            proposer={"kind": "agent", "protocol": "tools"},
        )  # fmt: skip
        ended = await drive(config, suite=ToySuite(tmp_path / "initial"))
        asked = server.requests_of("predictor-model")
        proposed = server.requests_of("proposer-model")
    assert ended.state["prediction"]["failure"] is None
    assert len(asked) == 1
    assert "Iteration 1: predict" in str(asked[0].body["messages"])
    assert "Iteration 1: propose" not in str(asked[0].body["messages"])
    assert not any("Iteration 1: predict" in str(request.body["messages"]) for request in proposed)
