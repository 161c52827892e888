"""LangChain chat models given in code: both ways of the translation, failures, identity, money."""

from __future__ import annotations

import asyncio
import json
import threading
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from langchain_core.callbacks import AsyncCallbackHandler
from langchain_core.language_models import BaseChatModel
from langchain_core.language_models.fake_chat_models import GenericFakeChatModel
from langchain_core.messages import AIMessage, BaseMessage, HumanMessage, SystemMessage, ToolMessage
from langchain_core.outputs import ChatGeneration, ChatResult
from langchain_core.runnables import Runnable, RunnableLambda
from pydantic import Field, SecretStr

from bco_graph.config import check_config
from bco_graph.errors import (
    AuthenticationFailed,
    ConfigError,
    ContextOverflow,
    ModelCallError,
    RequestRejected,
    UpstreamUnavailable,
)
from bco_graph.graph import create_bco, recursion_limit
from bco_graph.protocols import Caller
from tests.gateway_room import JOB, knock, opened, says, text
from tests.toy import BOTH, ScriptedProposer, ToySuite, answer, prompt_edit

PRICES = {"input_cost_per_token": 0.001, "output_cost_per_token": 0.002}
TOOL = {"type": "function", "function": {"name": "look", "parameters": {"type": "object", "properties": {}}}}


class Scripted(BaseChatModel):
    """A chat model that answers with what it is given, and keeps what it was asked."""

    model_name: str = "scripted-1"
    temperature: float = 0.3
    max_tokens: int | None = None
    max_retries: int = 0
    api_key: SecretStr = SecretStr("marker-51d2e83f9a7c")
    answers: list[Any] = Field(default_factory=list)
    asked: list[dict[str, Any]] = Field(default_factory=list)
    delay_s: float = 0.0

    @property
    def _llm_type(self) -> str:
        return "scripted"

    @property
    def _identifying_params(self) -> dict[str, Any]:
        return {"temperature": self.temperature, "api_key": self.api_key, "base_url": "http://h/v1"}

    def bind_tools(self, tools: Sequence[Any], **kwargs: Any) -> Runnable[Any, AIMessage]:
        return self.bind(tools=tools, **kwargs)

    def _generate(
        self, messages: list[BaseMessage], stop: Any = None, run_manager: Any = None, **given: Any
    ) -> ChatResult:
        raise NotImplementedError

    async def _agenerate(
        self, messages: list[BaseMessage], stop: Any = None, run_manager: Any = None, **given: Any
    ) -> ChatResult:
        self.asked.append({"messages": messages, "stop": stop, **given})
        await asyncio.sleep(self.delay_s)
        answer = self.answers[min(len(self.asked), len(self.answers)) - 1]
        if isinstance(answer, Exception):
            raise answer
        return ChatResult(generations=[ChatGeneration(message=answer)])


def message(content: Any = "ok", **fields: Any) -> AIMessage:
    usage = {
        "input_tokens": 1000, "output_tokens": 7, "total_tokens": 1007,
        "input_token_details": {"cache_read": 900}, "output_token_details": {"reasoning": 3},
    }  # fmt: skip
    return AIMessage(content, **{"usage_metadata": usage, **fields})


def test_a_conversation_with_tools_goes_in_and_a_call_of_a_tool_comes_out(tmp_path: Path) -> None:
    said_so = message(
        [{"type": "text", "text": "so"}],
        tool_calls=[{"name": "look", "args": {"x": "é"}, "id": "c2"}],
        response_metadata={"finish_reason": "tool_calls", "model_name": "scripted-1-0611", "system_fingerprint": "f1"},
    )
    model = Scripted(answers=[said_so])
    made = {"id": "c1", "type": "function", "function": {"name": "look", "arguments": '{"x": 1}'}}
    said = [
        {"role": "system", "content": "be brief"},
        {"role": "user", "content": "hi"},
        {"role": "assistant", "content": None, "tool_calls": [made]},
        {"role": "tool", "tool_call_id": "c1", "content": "seen"},
    ]
    with opened(tmp_path, chat_models={"target": model}) as room:
        request = {"messages": said, "tools": [TOOL], "tool_choice": "auto", "stop": "END", "max_tokens": 20}
        reply = room.ask({**request, "temperature": 1})
        (call,) = room.calls
    (asked,) = model.asked
    system, human, assistant, tool = asked["messages"]
    assert (type(system), type(human), type(tool)) == (SystemMessage, HumanMessage, ToolMessage)
    assert (assistant.tool_calls[0]["args"], tool.tool_call_id) == ({"x": 1}, "c1")
    assert (asked["tools"], asked["tool_choice"], asked["stop"], asked["max_tokens"]) == ([TOOL], "auto", ["END"], 20)
    assert "temperature" not in asked
    assert call.changes == {"temperature": {"asked": 1}}
    (choice,) = reply["choices"]
    assert (choice["finish_reason"], choice["message"]["content"]) == ("tool_calls", "so")
    (out,) = choice["message"]["tool_calls"]
    assert out == {"id": "c2", "type": "function", "function": {"name": "look", "arguments": '{"x": "é"}'}}
    assert (reply["model"], reply["system_fingerprint"]) == ("scripted-1-0611", "f1")
    assert (call.prompt_tokens, call.cached_tokens, call.completion_tokens) == (1000, 900, 7)
    assert reply["usage"]["completion_tokens_details"] == {"reasoning_tokens": 3}
    assert call.model == "scripted/scripted-1"


def test_broken_arguments_of_a_tool_come_out_as_they_are_and_ids_are_made_where_there_is_none(tmp_path: Path) -> None:
    broken = {"name": "look", "args": '{"x": ', "id": None, "error": None, "type": "invalid_tool_call"}
    model = Scripted(answers=[message("", invalid_tool_calls=[broken])])
    with opened(tmp_path, chat_models={"target": model}) as room:
        (choice,) = room.ask(says("hi", tools=[TOOL]))["choices"]
    assert choice["finish_reason"] == "tool_calls"
    assert choice["message"]["content"] is None
    (call,) = choice["message"]["tool_calls"]
    assert (call["id"], call["function"]["arguments"]) == ("call_0", '{"x": ')


def test_langchains_own_fake_model_answers_through_the_door_and_its_usage_is_estimated(tmp_path: Path) -> None:
    model = GenericFakeChatModel(messages=iter([AIMessage("one"), AIMessage("two")]))
    with opened(tmp_path, chat_models={"target": model}) as room:
        status, answer, _ = knock(room, says("hi", max_tokens=9), room.gateway.token(JOB))
        assert (status, text(answer)) == (200, "one")
        assert text(room.ask(says("again"))) == "two"
        assert answer["usage"]["estimated"] is True
        assert room.calls[0].changes["max_tokens"] == {"asked": 9, "by": "the chat model has no such setting"}
        assert room.gateway.capabilities("target") == {"tools": False, "window": None}
        with pytest.raises(RequestRejected, match="does not take"):
            room.ask(says("hi", tools=[TOOL]))


class Refused(Exception):
    """As the clients of providers raise it."""

    def __init__(self, status: int, message: str = "no", code: str | None = None) -> None:
        super().__init__(message)
        self.status_code, self.code = status, code


@pytest.mark.parametrize(
    ("error", "kind", "attempts"),
    [
        (Refused(401), AuthenticationFailed, 1),
        (Refused(404), RequestRejected, 1),
        (Refused(400, code="context_length_exceeded"), ContextOverflow, 1),
        (Refused(429), UpstreamUnavailable, 2),
        (Refused(503), UpstreamUnavailable, 2),
        (ConnectionError("reset"), UpstreamUnavailable, 2),
        (ValueError("no such argument"), RequestRejected, 1),
    ],
)
def test_its_exceptions_are_ours_by_status_or_type(
    error: Exception, kind: type[ModelCallError], attempts: int, tmp_path: Path
) -> None:
    model = Scripted(answers=[error])
    with opened(tmp_path, chat_models={"target": model}, retries=1) as room:
        with pytest.raises(ModelCallError) as caught:
            room.ask(says("hi"))
        assert (type(caught.value), caught.value.attempts, len(model.asked)) == (kind, attempts, attempts)
        assert [call.status for call in room.calls] == [kind.__name__]


def test_one_that_retries_by_itself_is_asked_once(tmp_path: Path) -> None:
    model = Scripted(answers=[Refused(503)], max_retries=2)
    with opened(tmp_path, chat_models={"target": model}, retries=3) as room, pytest.raises(UpstreamUnavailable):
        room.ask(says("hi"))
    assert len(model.asked) == 1


def test_one_that_hangs_ends_at_the_time_limit(tmp_path: Path) -> None:
    started = time.monotonic()
    model = Scripted(answers=[message()], delay_s=60)
    with (
        opened(tmp_path, chat_models={"target": model}, timeout_s=0.2) as room,
        pytest.raises(UpstreamUnavailable, match=r"timeout_s, 0\.2 s"),
    ):
        room.ask(says("hi"))
    assert time.monotonic() - started < 20


class Stuck(GenericFakeChatModel):
    """Has no async client, and does not come back until it is let go."""

    messages: Any = ()
    until: Any

    def _generate(self, messages: list[BaseMessage], stop: Any = None, run_manager: Any = None, **_: Any) -> ChatResult:
        self.until.wait(60)
        return ChatResult(generations=[ChatGeneration(message=message())])


def test_one_that_blocks_its_thread_holds_up_neither_the_call_nor_the_end(tmp_path: Path) -> None:
    until, started = threading.Event(), time.monotonic()
    try:
        with (
            opened(tmp_path, chat_models={"target": Stuck(until=until)}, timeout_s=0.2) as room,
            pytest.raises(UpstreamUnavailable, match="timeout_s"),
        ):
            room.ask(says("hi"))
        assert time.monotonic() - started < 30
    finally:
        until.set()


async def test_who_listens_to_a_graph_does_not_hear_of_the_call_a_second_time(tmp_path: Path) -> None:
    heard: list[Any] = []

    class Ear(AsyncCallbackHandler):
        async def on_chat_model_start(self, *given: Any, **_: Any) -> None:
            heard.append(given)

    with opened(tmp_path, chat_models={"target": Scripted(answers=[message()])}) as room:
        node = RunnableLambda(lambda _: {}, afunc=lambda _: room.gateway.complete(JOB, says("hi")))
        assert text(await node.ainvoke("go", {"callbacks": [Ear()]})) == "ok"
    assert heard == []


def test_its_fingerprint_names_class_model_and_parameters_and_nothing_holds_its_key(tmp_path: Path) -> None:
    key = "marker-51d2e83f9a7c"
    with opened(tmp_path, chat_models={"target": Scripted(answers=[message(f"the key is {key}")])}) as room:
        assert room.gateway.fingerprint("target") == {
            "deployment": "code", "model": "scripted/scripted-1",
            "endpoint": f"{__name__}.Scripted", "parameters": {"temperature": 0.3, "base_url": "http://h/v1"},
        }  # fmt: skip
        assert key not in json.dumps(room.ask(says("hi")))
    for file in tmp_path.rglob("*"):
        assert key.encode() not in file.read_bytes(), file


def test_another_parameter_is_another_model_and_the_same_one_is_answered_from_the_cache(tmp_path: Path) -> None:
    asked = []
    for temperature in (0.3, 0.3, 0.4):
        model = Scripted(answers=[message()], temperature=temperature)
        with opened(tmp_path, chat_models={"target": model}) as room:
            room.ask(says("hi"))
        asked.append(len(model.asked))
    assert asked == [1, 0, 1]


def test_money_needs_a_price_which_the_named_deployment_may_give(tmp_path: Path) -> None:
    models = {"target": Scripted(answers=[message()])}
    with (
        pytest.raises(ConfigError, match=r"no price is known for the model 'scripted/scripted-1'"),
        opened(tmp_path / "a", chat_models=models, budget={"usd": 10}),
    ):
        pass
    entry = {"model_name": "mine", "litellm_params": {"model": "openai/other"}, "model_info": PRICES}
    with opened(tmp_path / "b", entry, chat_models=models, budget={"usd": 10}) as room:
        room.ask(says("hi"))
        assert room.calls[0].usd == pytest.approx(1.0 + 0.014)
        assert room.calls[0].model == "scripted/scripted-1"


def test_what_is_no_chat_model_or_no_role_is_refused_and_a_role_of_code_needs_one(tmp_path: Path) -> None:
    model = Scripted(answers=[message()])
    for given, told in (
        ({"target": "gpt-5"}, "expected a LangChain BaseChatModel"),
        ({"targets": model}, "the roles are target"),
        ({}, r"create_bco\(config, models="),
    ):
        with pytest.raises(ConfigError, match=told), opened(tmp_path, chat_models=given):
            pass


def test_a_proposer_in_code_stands_beside_a_target_of_the_config(tmp_path: Path) -> None:
    target = {"model_name": "m", "litellm_params": {"model": "openai/m", "api_base": "http://127.0.0.1:9/v1"}}
    with opened(tmp_path, target, chat_models={"proposer": Scripted(answers=[message("an edit")])}) as room:
        assert text(room.ask(says("hi"), Caller("proposer", step="propose"))) == "an edit"
        assert room.gateway.capabilities("proposer")["tools"] is True


class ToyTarget(BaseChatModel):
    """The scripted target of the toy world, in code."""

    @property
    def _llm_type(self) -> str:
        return "toy"

    def _generate(self, messages: list[BaseMessage], stop: Any = None, run_manager: Any = None, **_: Any) -> ChatResult:
        told = answer({"messages": [{"content": str(messages[-1].content)}]}).text
        return ChatResult(generations=[ChatGeneration(message=message(told))])


async def test_a_run_takes_its_target_from_code_and_says_so_in_its_folder(tmp_path: Path) -> None:
    raw = {
        "name": "coded", "method": "vanilla", "iterations": 1, "suite": "toy", "runs": str(tmp_path / "runs"),
        "models": {"cache": False, "general_settings": {"master_key": "sk-1234"}}, "roles": {"target": "code"},
        "proposer": {"kind": "handoff"}, "evaluation": {"concurrency": 4},
    }  # fmt: skip
    config, suite = check_config(raw), ToySuite(tmp_path / "scaffold")
    proposer = ScriptedProposer({1: prompt_edit(BOTH)})
    graph = create_bco(config, suite=suite, proposer=proposer, models={"target": ToyTarget()}).compile()
    state = await graph.ainvoke({}, {"recursion_limit": recursion_limit(config)})
    assert (state["best"]["id"], state["best"]["mean"]) == ("iter_001", 1.0)
    manifest = json.loads((config.run_dir / "run.json").read_text(encoding="utf-8"))
    assert manifest["fingerprint"]["endpoint"] == f"{__name__}.ToyTarget"
    assert manifest["config"]["roles"]["target"] == "code"
    assert "sk-1234" not in json.dumps(manifest)
    events = [json.loads(line) for line in (config.run_dir / "events.jsonl").read_text(encoding="utf-8").splitlines()]
    assert [e["message"] for e in events if e["type"] == "warning" and e["about"] == "models"] == [
        "not used: general_settings: it belongs to litellm's proxy server, which is not started"
    ]
