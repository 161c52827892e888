"""LangGraph's own server, offline: `langgraph dev` runs the loop, and its SDK drives it like any other graph."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
import time
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml
from langgraph.pregel.remote import RemoteGraph
from langgraph.types import Command
from langgraph_sdk import get_client

from bco_graph.testing import ScriptedModelServer
from tests.test_agent_loop import by_tools
from tests.test_stream import ORDER
from tests.toy import BOTH, SHORT, answer, prompt_edit

LANGGRAPH = Path(sys.executable).parent / "langgraph"
OFFLINE = {"LANGGRAPH_CLI_NO_ANALYTICS": "1", "LANGGRAPH_NO_VERSION_CHECK": "true", "LANGSMITH_TRACING": "false"}
SUBMISSION = {"parent": "iter_000", "name": "alone", "mechanism": "The prompt asks for the word alone."}
MANY = 30
"""Rounds enough to pass the 25 supersteps that LangGraph allows by default."""


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """A folder with bco.yaml and langgraph.json, served; `url` in it is where."""
    folder = tmp_path_factory.mktemp("server")
    with ScriptedModelServer({"toy-model": answer, "proposer-model": by_tools}) as models:
        write(folder, models)
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            port = free.getsockname()[1]
        log = (folder / "log").open("w")
        process = subprocess.Popen(
            [LANGGRAPH, "dev", "--no-browser", "--no-reload", "--port", str(port)],
            cwd=folder, stdout=log, stderr=subprocess.STDOUT, env={**os.environ, **OFFLINE},
        )  # fmt: skip
        try:
            url = f"http://127.0.0.1:{port}"
            wait_until_up(url, process, folder / "log")
            (folder / "url").write_text(url, encoding="utf-8")
            yield folder
        finally:
            process.terminate()
            process.wait(20)
            log.close()


def write(folder: Path, models: ScriptedModelServer) -> None:
    params = {"model": "openai/toy-model", "api_base": models.base_url, "api_key": "none", "temperature": 0}
    config = {
        "name": "served", "suite": f"{Path(__file__).with_name('toy.py')}:ToySuite", "method": "vanilla",
        "suite_options": {"scaffold": str(folder / "initial")}, "iterations": 3,
        "models": {"model_list": [{"model_name": "toy", "litellm_params": params}], "retries": 0},
        "roles": {"target": "toy"}, "proposer": {"kind": "handoff"},
    }  # fmt: skip
    (folder / "bco.yaml").write_text(yaml.safe_dump(config), encoding="utf-8")
    many = {**config, "iterations": MANY, "max_failures": MANY, "proposer": {"kind": "command", "command": ["false"]}}
    (folder / "many.yaml").write_text(yaml.safe_dump(many), encoding="utf-8")
    deployments = [
        {"model_name": name, "litellm_params": params | {"model": f"openai/{name}-model"}}
        for name in ("toy", "proposer")
    ]
    whole = {
        **config, "method": "bco", "iterations": 1, "models": {"model_list": deployments, "retries": 0},
        "roles": {"target": "toy", "proposer": "proposer"}, "proposer": {"kind": "agent"},
    }  # fmt: skip
    (folder / "whole.yaml").write_text(yaml.safe_dump(whole), encoding="utf-8")
    graphs = {"bco": "bco_graph.server:graph"}
    for name in ("many", "whole"):
        code = f"from bco_graph.server import graph_of\n\ngraph = graph_of('{name}.yaml')\n"
        (folder / f"{name}.py").write_text(code, encoding="utf-8")
        graphs[name] = f"./{name}.py:graph"
    (folder / "langgraph.json").write_text(json.dumps({"dependencies": ["."], "graphs": graphs}), encoding="utf-8")


def wait_until_up(url: str, process: subprocess.Popen[bytes], log: Path) -> None:
    deadline = time.monotonic() + 120
    while time.monotonic() < deadline and process.poll() is None:
        try:
            with urllib.request.urlopen(f"{url}/ok", timeout=2):
                return
        except OSError:
            time.sleep(0.2)
    raise AssertionError(log.read_text(encoding="utf-8")[-4000:])


def url_of(place: Path) -> str:
    return (place / "url").read_text(encoding="utf-8")


async def test_the_server_shows_the_schemas_of_the_state(place: Path) -> None:
    async with get_client(url=url_of(place)) as client:
        (assistant,) = await client.assistants.search(graph_id="bco")
        schemas = await client.assistants.get_schemas(assistant["assistant_id"])
    state = schemas["state_schema"]
    assert state
    assert {"iteration", "best", "outcome", "world_model"} <= set(state["properties"])


async def test_a_run_is_streamed_interrupted_and_resumed_by_the_sdk(place: Path) -> None:
    async with get_client(url=url_of(place)) as client:
        thread = (await client.threads.create())["thread_id"]
        modes: Any = ["updates", "custom"]
        parts = [part async for part in client.runs.stream(thread, "bco", input={}, stream_mode=modes)]
        assert [part for part in parts if part.event == "error"] == []
        assert [part.data["type"] for part in parts if part.event == "custom"].count("task_done") == 8
        assert [node for part in parts if part.event == "updates" for node in part.data] == [
            "evaluate",
            "__interrupt__",
        ]
        waiting = (await client.threads.get_state(thread))["tasks"][0]["interrupts"][0]["value"]
        assert (waiting["step"], waiting["iteration"]) == ("propose", 1)
        prompt_edit(BOTH, "asked-alone")(Path(waiting["workspace"]) / "scaffold")
        await client.runs.wait(thread, "bco", command={"resume": SUBMISSION})
        values: Any = (await client.threads.get_state(thread))["values"]
    assert values["best"] == {"id": "iter_001", "mean": 1.0}
    assert (place / "runs" / f"served-{thread}" / "run.json").exists()


async def test_all_five_nodes_with_a_proposer_s_model_run_in_the_server_and_are_streamed(place: Path) -> None:
    async with get_client(url=url_of(place)) as client:
        thread = (await client.threads.create())["thread_id"]
        modes: Any = ["updates", "custom", "messages-tuple"]
        parts = [part async for part in client.runs.stream(thread, "whole", input={}, stream_mode=modes)]
    assert [node for part in parts if part.event == "updates" for node in part.data] == ORDER
    log = (place / "runs" / f"served-{thread}" / "events.jsonl").read_text(encoding="utf-8").splitlines()
    assert [part.data for part in parts if part.event == "custom"] == [json.loads(line) for line in log]
    said = {part.data[1]["langgraph_node"] for part in parts if part.event == "messages"}
    assert said == {"update", "propose", "predict", "grade"}


async def test_a_run_that_is_cancelled_lets_go_of_its_folder_and_goes_on(place: Path) -> None:
    async with get_client(url=url_of(place)) as client:
        thread = (await client.threads.create())["thread_id"]
        begun: Any = None
        async for part in client.runs.stream(thread, "whole", input={}, stream_mode=["custom"]):
            if part.event == "metadata":
                begun = part.data["run_id"]
            if part.event == "custom" and part.data["type"] == "task_done":
                await client.runs.cancel(thread, begun, wait=True)
                break
        parts = [part async for part in client.runs.stream(thread, "whole", input={}, stream_mode="custom")]
    assert [part for part in parts if part.event == "error"] == []
    assert [part.data["stop"] for part in parts if part.event == "custom" and part.data["type"] == "run_ended"]


async def test_a_remote_graph_is_driven_like_a_local_one(place: Path) -> None:
    async with get_client(url=url_of(place)) as client:
        remote = RemoteGraph("bco", client=client)
        config: Any = {"configurable": {"thread_id": (await client.threads.create())["thread_id"]}}
        state = await remote.ainvoke({}, config)
        waiting = state["__interrupt__"][0]["value"]
        prompt_edit(SHORT, "asked-alone")(Path(waiting["workspace"]) / "scaffold")
        state = await remote.ainvoke(Command(resume=SUBMISSION), config)
    assert state["best"] == {"id": "iter_001", "mean": 0.5}
    assert state["__interrupt__"][0]["value"]["iteration"] == 2


async def test_a_thread_that_the_server_has_lost_goes_on_from_the_receipts_of_its_run(place: Path) -> None:
    async with get_client(url=url_of(place)) as client:
        thread = (await client.threads.create())["thread_id"]
        await client.runs.wait(thread, "bco", input={})
        await client.threads.delete(thread)
        await client.threads.create(thread_id=thread)
        parts = [part async for part in client.runs.stream(thread, "bco", input={}, stream_mode="custom")]
        waiting = (await client.threads.get_state(thread))["tasks"][0]["interrupts"][0]["value"]
    assert "task_done" not in [part.data["type"] for part in parts if part.event == "custom"]
    assert (waiting["step"], waiting["iteration"]) == ("propose", 1)


async def test_many_rounds_pass_the_limit_of_supersteps_that_the_server_has_by_default(place: Path) -> None:
    async with get_client(url=url_of(place)) as client:
        thread = (await client.threads.create())["thread_id"]
        values: Any = await client.runs.wait(thread, "many", input={})
    assert (values["iteration"], values["stop"]) == (MANY, "failures")
