"""One model call of the `agent` proposer as a run of a LangChain chat model.

Whoever streams the graph with `messages`, passes callbacks, or traces with LangSmith sees the call so, natively. The
request that is sent stays the one that was made; the messages beside it are for those who look on. The gateway reads
whole replies, so each is one chunk.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping
from typing import Any

from langchain_core.callbacks import AsyncCallbackManagerForLLMRun, CallbackManagerForLLMRun
from langchain_core.language_models import BaseChatModel
from langchain_core.messages import (
    AIMessage,
    AIMessageChunk,
    BaseMessage,
    HumanMessage,
    InvalidToolCall,
    SystemMessage,
    ToolMessage,
)
from langchain_core.messages.ai import UsageMetadata
from langchain_core.messages.tool import ToolCall, invalid_tool_call, tool_call
from langchain_core.outputs import ChatGeneration, ChatGenerationChunk, ChatResult
from pydantic import PrivateAttr

from bco_graph.proposers.replies import message_of, text_of
from bco_graph.protocols import Caller, ModelCalls
from bco_graph.state import JSON
from bco_graph.strict_json import read_object


async def complete(calls: ModelCalls, caller: Caller, request: Mapping[str, JSON]) -> dict[str, JSON]:
    """What `calls.complete` gives or raises, made inside a chat model's run."""
    face = ChatFace(calls, caller, request)
    iteration, _, step = caller.step.partition("/")
    metadata = {"bco_iteration": int(iteration or 0), "bco_step": step}
    await face.ainvoke([_shown(message) for message in request["messages"]], {"metadata": metadata})
    return face.answer


class ChatFace(BaseChatModel):
    """Makes its one call when it is invoked; `answer` is then the reply in OpenAI's form."""

    # A process-wide cache of LangChain's would answer in place of the gateway, unseen by ledger and receipts.
    cache: bool | None = False
    _calls: ModelCalls = PrivateAttr()
    _caller: Caller = PrivateAttr()
    _request: Mapping[str, JSON] = PrivateAttr()
    _answer: dict[str, JSON] = PrivateAttr()

    def __init__(self, calls: ModelCalls, caller: Caller, request: Mapping[str, JSON]) -> None:
        super().__init__()
        self._calls, self._caller, self._request = calls, caller, request

    @property
    def answer(self) -> dict[str, JSON]:
        return self._answer

    @property
    def _llm_type(self) -> str:
        return "bco-gateway"

    async def _agenerate(
        self,
        messages: list[BaseMessage],
        stop: list[str] | None = None,
        run_manager: AsyncCallbackManagerForLLMRun | None = None,
        **kwargs: Any,
    ) -> ChatResult:
        chunk = await self._reply()
        message = AIMessage(
            chunk.content, tool_calls=chunk.tool_calls, invalid_tool_calls=chunk.invalid_tool_calls,
            usage_metadata=chunk.usage_metadata, response_metadata=chunk.response_metadata,
        )  # fmt: skip
        return ChatResult(generations=[ChatGeneration(message=message)])

    async def _astream(
        self,
        messages: list[BaseMessage],
        stop: list[str] | None = None,
        run_manager: AsyncCallbackManagerForLLMRun | None = None,
        **kwargs: Any,
    ) -> AsyncIterator[ChatGenerationChunk]:
        yield ChatGenerationChunk(message=await self._reply())

    def _generate(
        self,
        messages: list[BaseMessage],
        stop: list[str] | None = None,
        run_manager: CallbackManagerForLLMRun | None = None,
        **kwargs: Any,
    ) -> ChatResult:
        raise NotImplementedError("the gateway is asked asynchronously")

    async def _reply(self) -> AIMessageChunk:
        self._answer = await self._calls.complete(self._caller, self._request)
        message, finish = message_of(self._answer)
        good, bad = _calls_of(message)
        return AIMessageChunk(
            content=text_of(message), tool_calls=good, invalid_tool_calls=bad, usage_metadata=_usage(self._answer),
            response_metadata={"model_name": str(self._answer.get("model") or ""), "finish_reason": finish},
            chunk_position="last",
        )  # fmt: skip


def _usage(answer: Mapping[str, JSON]) -> UsageMetadata | None:
    usage = answer.get("usage")
    usage = usage if isinstance(usage, dict) else {}
    told, made = usage.get("prompt_tokens"), usage.get("completion_tokens")
    if not isinstance(told, int) or not isinstance(made, int):
        return None
    return UsageMetadata(input_tokens=told, output_tokens=made, total_tokens=told + made)


def _shown(message: Mapping[str, JSON]) -> BaseMessage:
    """A message of the request for those who look on; broken arguments of a call are shown as such."""
    role, text = message["role"], text_of(message)
    if role == "system":
        return SystemMessage(text)
    if role == "tool":
        return ToolMessage(text, tool_call_id=str(message["tool_call_id"]))
    if role == "assistant":
        good, bad = _calls_of(message)
        return AIMessage(text, tool_calls=good, invalid_tool_calls=bad)
    return HumanMessage(text)


def _calls_of(message: Mapping[str, JSON]) -> tuple[list[ToolCall], list[InvalidToolCall]]:
    """The tool calls as they came, whatever is missing: those with one JSON object as arguments, and the others."""
    good: list[ToolCall] = []
    bad: list[InvalidToolCall] = []
    calls = message.get("tool_calls")
    for raw in calls if isinstance(calls, list) else []:
        call = raw if isinstance(raw, dict) else {}
        function = call.get("function")
        function = function if isinstance(function, dict) else {}
        name, call_id, arguments = str(function.get("name") or ""), str(call.get("id") or ""), function.get("arguments")
        try:
            parsed = read_object(arguments) if isinstance(arguments, str) else dict(arguments or {})
        except (TypeError, ValueError) as error:
            bad.append(invalid_tool_call(name=name, args=str(arguments), id=call_id, error=str(error)))
        else:
            good.append(tool_call(name=name, args=parsed, id=call_id))
    return good, bad
