"""A run in somebody's LangGraph stream and callbacks: nodes, events, and what the proposer's model says."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any, TypedDict
from uuid import UUID

import pytest
from langchain_core.caches import InMemoryCache
from langchain_core.callbacks import BaseCallbackHandler
from langchain_core.globals import set_llm_cache
from langchain_core.messages import AIMessageChunk, BaseMessage
from langchain_core.runnables import RunnableConfig
from langgraph.graph import START, StateGraph

from bco_graph.binding import RunHandle
from bco_graph.config import Deployment, RunConfig
from bco_graph.errors import UpstreamUnavailable
from bco_graph.graph import create_bco, recursion_limit
from bco_graph.proposers.chat_face import complete
from bco_graph.protocols import Caller
from bco_graph.testing import Reply, ScriptedModelServer, ToolCall
from tests.gateway_room import Room, opened
from tests.proposer_contract import ScriptedCalls, calls, says
from tests.test_agent_loop import ACTS, by_json_lines, by_tools
from tests.toy import ToySuite, answer, toy_config

ORDER = ["evaluate", "update", "propose", "predict", "evaluate", "grade", "update"]
SAID = [(0, "update")] * 2 + [(1, "propose")] * 3 + [(1, "predict"), (1, "grade"), (1, "update")]
MODES: list[Any] = ["updates", "custom", "messages"]


@pytest.fixture
def server() -> Iterator[ScriptedModelServer]:
    with ScriptedModelServer({"toy-model": answer, "proposer-model": by_tools}) as started:
        yield started


def agent_config(tmp_path: Path, server: ScriptedModelServer, protocol: str = "tools") -> RunConfig:
    config = toy_config(tmp_path, server, iterations=1)
    proposer = Deployment.model_validate(server.deployment("proposer-model") | {"model_name": "proposer"})
    return config.model_copy(
        update={
            "models": config.models.model_copy(update={"model_list": [*config.models.model_list, proposer]}),
            "roles": config.roles.model_copy(update={"proposer": "proposer"}),
            "proposer": config.proposer.model_copy(update={"kind": "agent", "protocol": protocol}),
        }
    )


@pytest.fixture
def handle(tmp_path: Path, server: ScriptedModelServer) -> Iterator[RunHandle]:
    handle = RunHandle(agent_config(tmp_path, server), suite=ToySuite(tmp_path / "initial"))
    yield handle
    handle.close()


def limits(config: RunConfig) -> Any:
    return {"recursion_limit": recursion_limit(config)}


def check_messages(said: list[tuple[BaseMessage, dict[str, Any]]]) -> None:
    """One message for each reply of the proposer's model, below its node, with the call that it makes."""
    assert all(isinstance(message, AIMessageChunk) for message, _ in said)
    messages = joined(said)
    assert [(about["bco_iteration"], about["bco_step"]) for _, about in messages] == SAID
    assert [about["langgraph_node"] for _, about in messages] == [step for _, step in SAID]
    made = [(call["name"], call["args"]) for message, _ in messages for call in message.tool_calls]
    assert made == [(act.name, act.arguments) for acts in ACTS.values() for act in acts]
    assert all(message.usage_metadata for message, _ in messages)


def joined(said: list[Any]) -> list[tuple[AIMessageChunk, dict[str, Any]]]:
    """Chunks of one id as one message, in the order in which they began."""
    found: dict[str, tuple[AIMessageChunk, dict[str, Any]]] = {}
    for chunk, about in said:
        found[chunk.id] = (found[chunk.id][0] + chunk, about) if chunk.id in found else (chunk, about)
    return list(found.values())


async def test_a_run_is_streamed_as_updates_events_and_messages(handle: RunHandle) -> None:
    graph = create_bco(handle.config, handle=handle).compile()
    chunks: dict[str, list[Any]] = {mode: [] for mode in MODES}
    async for mode, chunk in graph.astream({}, limits(handle.config), stream_mode=MODES):
        chunks[mode].append(chunk)
    assert [node for chunk in chunks["updates"] for node in chunk] == ORDER
    log = (handle.folder / "events.jsonl").read_text(encoding="utf-8").splitlines()
    assert chunks["custom"] == [json.loads(line) for line in log]
    check_messages(chunks["messages"])
    assert len(chunks["messages"]) > len(SAID)


async def test_only_the_proposer_s_calls_are_streamed_and_only_where_somebody_listens(
    handle: RunHandle, server: ScriptedModelServer
) -> None:
    graph = create_bco(handle.config, handle=handle).compile()
    await graph.ainvoke({}, limits(handle.config) | {"callbacks": [Seen()]})
    assert not any("stream" in request.body for request in server.requests)


async def test_the_target_s_calls_are_not_streamed(handle: RunHandle, server: ScriptedModelServer) -> None:
    graph = create_bco(handle.config, handle=handle).compile()
    async for _ in graph.astream({}, limits(handle.config), stream_mode="messages"):
        pass
    streamed = {
        name: {"stream" in r.body for r in server.requests_of(name)} for name in ("toy-model", "proposer-model")
    }
    assert streamed == {"toy-model": {False}, "proposer-model": {True}}


async def test_the_chunks_of_a_subgraph_come_through_its_parent_below_its_namespace(handle: RunHandle) -> None:
    class App(TypedDict, total=False):
        request: str

    inner = create_bco(handle.config, handle=handle).compile()

    async def improve(state: App, config: RunnableConfig) -> App:
        await inner.ainvoke({}, {**config, **limits(handle.config)})
        return {}

    app = StateGraph(App)
    app.add_node("improve", improve)
    app.add_edge(START, "improve")
    chunks: dict[str, list[Any]] = {mode: [] for mode in MODES}
    async for space, mode, chunk in app.compile().astream({"request": "x"}, stream_mode=MODES, subgraphs=True):
        chunks[mode].append((space[0].partition(":")[0] if space else "", chunk))
    assert [(space, *chunk) for space, chunk in chunks["updates"]] == [
        *(("improve", node) for node in ORDER),
        ("", "improve"),
    ]
    assert {space for space, _ in chunks["custom"]} == {"improve"}
    assert chunks["custom"][-1][1]["type"] == "run_ended"
    assert {space for space, _ in chunks["messages"]} == {"improve"}
    check_messages([chunk for _, chunk in chunks["messages"]])


def test_a_synchronous_stream_has_the_messages_too(handle: RunHandle) -> None:
    graph = create_bco(handle.config, handle=handle).compile()
    said: Any = list(graph.stream({}, limits(handle.config), stream_mode="messages"))
    check_messages(said)


async def test_a_model_without_tool_calls_is_streamed_as_text(tmp_path: Path, server: ScriptedModelServer) -> None:
    server.script("proposer-model", by_json_lines)
    handle = RunHandle(agent_config(tmp_path, server, "json"), suite=ToySuite(tmp_path / "initial"))
    graph = create_bco(handle.config, handle=handle).compile()
    said: list[Any] = [chunk async for chunk in graph.astream({}, limits(handle.config), stream_mode="messages")]
    handle.close()
    texts = [json.loads(message.text)["tool"] for message, _ in joined(said)]
    assert texts == [act.name for acts in ACTS.values() for act in acts]


class Seen(BaseCallbackHandler):
    """What a tracer gets: the runs that began, with the name of the run that each is part of."""

    def __init__(self) -> None:
        self.names: dict[UUID, str] = {}
        self.nodes: list[str] = []
        self.models: list[tuple[str, int]] = []
        self.replies = self.errors = 0

    def on_chain_start(self, serialized: Any, inputs: Any, *, run_id: UUID, **more: Any) -> None:
        self.names[run_id] = more["name"]
        node = more["metadata"].get("langgraph_node")
        if node != START and more["name"] == node and self.names.get(more["parent_run_id"]) == "LangGraph":
            self.nodes.append(node)

    def on_chat_model_start(self, serialized: Any, messages: Any, *, run_id: UUID, **more: Any) -> None:
        self.models.append((more["metadata"]["langgraph_node"], len(messages[0])))

    def on_llm_end(self, response: Any, **more: Any) -> None:
        usage = response.generations[0][0].message.usage_metadata
        self.replies += usage["total_tokens"] == usage["input_tokens"] + usage["output_tokens"]

    def on_llm_error(self, error: BaseException, **more: Any) -> None:
        self.errors += 1


async def test_callbacks_see_the_runs_of_nodes_and_of_the_proposer_s_model(handle: RunHandle) -> None:
    """What LangSmith and every other tracer of LangChain builds on."""
    seen = Seen()
    graph = create_bco(handle.config, handle=handle).compile()
    await graph.ainvoke({}, limits(handle.config) | {"callbacks": [seen]})
    assert seen.nodes == ORDER
    assert [node for node, _ in seen.models] == [step for _, step in SAID]
    assert [count for node, count in seen.models if node == "propose"] == [2, 4, 6]
    assert seen.replies == len(SAID)


# -- one call ------------------------------------------------------------------------------------------------------

CALLER = Caller("proposer", step="3/propose")
ASKED: dict[str, Any] = {"messages": [{"role": "user", "content": "x"}]}


class Asking(TypedDict, total=False):
    nothing: str


class Shown(BaseCallbackHandler):
    def __init__(self) -> None:
        self.asked: list[BaseMessage] = []
        self.told: list[Any] = []

    def on_chat_model_start(self, serialized: Any, messages: Any, **more: Any) -> None:
        self.asked = messages[0]

    def on_llm_end(self, response: Any, **more: Any) -> None:
        self.told.append(response.generations[0][0].message)


async def shown(request: dict[str, Any], reply: Any) -> tuple[Shown, ScriptedCalls, Any]:
    """What callbacks of a graph see when one of its nodes makes the call; the graph takes no model itself."""
    handler, scripted = Shown(), ScriptedCalls(reply)
    got: list[Any] = []

    async def node(state: Asking) -> Asking:
        got.append(await complete(scripted, CALLER, request))
        return {}

    graph = StateGraph(Asking)
    graph.add_node("node", node)
    graph.add_edge(START, "node")
    await graph.compile().ainvoke({}, {"callbacks": [handler]})
    return handler, scripted, got[0]


async def test_the_request_and_the_reply_are_passed_on_as_they_are_whatever_is_shown() -> None:
    broken = {"id": "b", "type": "function", "function": {"name": "edit_file", "arguments": '{"path": '}, "extra": 1}
    request = {
        "messages": [
            {"role": "system", "content": "rules"},
            {"role": "user", "content": [{"type": "text", "text": "do it"}]},
            {"role": "assistant", "content": None, "tool_calls": [broken], "reasoning": "kept"},
            {"role": "tool", "tool_call_id": "b", "content": "refused"},
        ],
        "tools": [{"type": "function", "function": {"name": "edit_file"}}],
    }
    reply = calls(("submit", {"a": 1}), ("submit", "[1]"), ("submit", "no"))
    handler, scripted, got = await shown(request, reply)
    assert scripted.requests == [request]
    assert scripted.callers == [CALLER]
    assert got == reply
    assert [(message.type, message.text) for message in handler.asked] == [
        ("system", "rules"), ("human", "do it"), ("ai", ""), ("tool", "refused")
    ]  # fmt: skip
    assert [call["args"] for call in handler.asked[2].invalid_tool_calls] == ['{"path": ']  # type: ignore[attr-defined]
    assert [call["args"] for call in handler.told[0].tool_calls] == [{"a": 1}]
    assert [call["args"] for call in handler.told[0].invalid_tool_calls] == ["[1]", "no"]


@pytest.mark.parametrize(
    "reply",
    [
        {},
        {"choices": []},
        {"choices": [{"message": None}], "usage": {"prompt_tokens": "many"}},
        {"choices": [{"message": {"content": None, "tool_calls": [None, {"function": {"arguments": 3}}]}}]},
        says("x" * 10, usage=(0, 0)),
    ],
)
async def test_a_reply_of_any_shape_comes_through(reply: Any) -> None:
    _, _, got = await shown(ASKED, reply)
    assert got == reply


async def test_what_the_gateway_raises_comes_through_as_it_is() -> None:
    error = UpstreamUnavailable("no answer", status=503, raw="body")
    with pytest.raises(UpstreamUnavailable) as raised:
        await complete(ScriptedCalls(error), CALLER, ASKED)
    assert raised.value is error


async def test_a_cache_of_langchain_never_answers_in_place_of_the_gateway() -> None:
    scripted = ScriptedCalls(says("first"), says("second"))
    set_llm_cache(InMemoryCache())
    try:
        texts = [await complete(scripted, CALLER, ASKED) for _ in range(2)]
    finally:
        set_llm_cache(None)
    assert texts == [says("first"), says("second")]


# -- as it is said -------------------------------------------------------------------------------------------------

SLOW = Reply("one two three four", tool_calls=[ToolCall("submit", {"a": 1})], chunks=4, chunk_delay_s=0.05)


def slowly(body: dict[str, Any]) -> Reply:
    return replace(by_tools(body), text="I will do this.", chunks=5, chunk_delay_s=0.05)


@pytest.mark.parametrize("sync", [False, True], ids=["astream", "stream"])
async def test_the_first_chunk_arrives_before_the_reply_is_whole(
    handle: RunHandle, server: ScriptedModelServer, sync: bool
) -> None:
    server.script("proposer-model", slowly)
    graph = create_bco(handle.config, handle=handle).compile()
    came: list[tuple[float, Any]] = []

    def take() -> None:
        came.extend((time.monotonic(), c) for c in graph.stream({}, limits(handle.config), stream_mode="messages"))

    if sync:
        await asyncio.to_thread(take)
    else:
        async for chunk in graph.astream({}, limits(handle.config), stream_mode="messages"):
            came.append((time.monotonic(), chunk))
    check_messages([chunk for _, chunk in came])
    for message, _ in joined([chunk for _, chunk in came]):
        times = [at for at, (chunk, _) in came if chunk.id == message.id]
        assert message.text == "I will do this."
        assert times[-1] - times[0] > 0.2


@pytest.fixture
def talking() -> Iterator[ScriptedModelServer]:
    with ScriptedModelServer({"m": [SLOW]}) as started:
        yield started


@pytest.fixture
def room(tmp_path: Path, talking: ScriptedModelServer) -> Iterator[Room]:
    with opened(tmp_path, talking.deployment("m"), roles={"proposer": "m"}, retries=1) as started:
        yield started


def asking(room: Room, got: list[Any]) -> Any:
    """A graph of one node that makes the call as a proposer."""

    async def node(state: Asking) -> Asking:
        got.append(await complete(room.gateway, CALLER, ASKED))
        return {}

    graph = StateGraph(Asking)
    graph.add_node("node", node)
    graph.add_edge(START, "node")
    return graph.compile()


async def test_a_reply_from_the_cache_is_one_chunk(room: Room) -> None:
    got: list[Any] = []
    counts = []
    for _ in range(2):
        room.gateway.token(CALLER)  # the job begins again, so that its asking is the same one
        said = [chunk async for chunk in asking(room, got).astream({}, stream_mode="messages")]
        ((message, _),) = joined(said)
        assert (message.text, message.tool_calls[0]["args"]) == (SLOW.text, {"a": 1})
        counts.append(len(said))
    assert got[0] == got[1]
    assert counts[0] > 4
    assert counts[1] == 1


async def test_a_reply_that_broke_off_is_followed_by_one_of_another_id(
    room: Room, talking: ScriptedModelServer
) -> None:
    talking.script("m", [replace(SLOW, cut_after=3), SLOW])
    got: list[Any] = []
    seen = Runs()
    said = [c async for c in asking(room, got).astream({}, {"callbacks": [seen]}, stream_mode="messages")]
    broken, whole = [message for message, _ in joined(said)]
    assert (broken.text, broken.usage_metadata) == ("one two th"[: len(broken.text)], None)
    assert (whole.text, whole.usage_metadata is not None) == (SLOW.text, True)
    assert [chunk.id for chunk, _ in said] == sorted((chunk.id for chunk, _ in said), key=[broken.id, whole.id].index)
    assert (seen.errors, [message.text for message in seen.told]) == (1, [SLOW.text])
    assert got[0]["choices"][0]["message"]["content"] == SLOW.text


async def test_a_call_that_fails_in_mid_stream_raises_what_the_gateway_raises(
    room: Room, talking: ScriptedModelServer
) -> None:
    talking.script("m", [replace(SLOW, cut_after=3)])
    with pytest.raises(UpstreamUnavailable):
        _ = [chunk async for chunk in asking(room, []).astream({}, stream_mode="messages")]
    assert len(talking.requests) == 2


class Runs(Shown):
    errors = 0

    def on_llm_error(self, error: BaseException, **more: Any) -> None:
        self.errors += 1


class Tokens(BaseCallbackHandler):
    def __init__(self) -> None:
        self.tokens: list[str] = []

    def on_llm_new_token(self, token: Any, **more: Any) -> None:
        self.tokens.append(token)


async def test_a_callback_that_takes_tokens_gets_them(room: Room, talking: ScriptedModelServer) -> None:
    tokens = Tokens()
    await asking(room, []).ainvoke({}, {"callbacks": [tokens]})
    assert "".join(tokens.tokens) == SLOW.text
    assert len(tokens.tokens) > 4


async def test_who_leaves_the_stream_leaves_a_call_that_is_paid_and_recorded(room: Room) -> None:
    got: list[Any] = []
    async for _ in asking(room, got).astream({}, stream_mode="messages"):
        break
    await asyncio.to_thread(room.gateway.close)
    assert got == []
    assert room.receipts.spend()[0]["calls"] == 1
    assert room.ledger.totals()["proposer"]["completion_tokens"] == 5
