"""One model call of the `agent` proposer as a run of a LangChain chat model.

Whoever streams the graph with `messages`, passes callbacks, or traces with LangSmith sees the call so, natively. The
request that is sent stays the one that was made; the messages beside it are for those who look on. Where one of them
wants chunks, they come as the model makes them; a stored reply is one chunk. An attempt that broke off after chunks
were seen is a run that failed, and the next attempt a run, and a message, of its own.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncGenerator, AsyncIterator, Mapping
from typing import Any

from langchain_core.callbacks import (
    AsyncCallbackHandler,
    AsyncCallbackManagerForLLMRun,
    BaseCallbackHandler,
    CallbackManagerForLLMRun,
)
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
from langchain_core.messages.tool import ToolCall, invalid_tool_call, tool_call, tool_call_chunk
from langchain_core.outputs import ChatGeneration, ChatGenerationChunk, ChatResult
from langchain_core.runnables import RunnableConfig
from langchain_core.tracers.base import AsyncBaseTracer, BaseTracer
from pydantic import PrivateAttr

from bco_graph.proposers.replies import message_of, text_of
from bco_graph.protocols import Caller, ModelCalls, StreamedCalls
from bco_graph.state import JSON
from bco_graph.strict_json import read_object


async def complete(calls: ModelCalls, caller: Caller, request: Mapping[str, JSON]) -> dict[str, JSON]:
    """What `calls.complete` gives or raises, made inside a chat model's run."""
    call = _Call(calls, caller, request)
    iteration, _, step = caller.step.partition("/")
    about = RunnableConfig(metadata={"bco_iteration": int(iteration or 0), "bco_step": step})
    said = [_shown(message) for message in request["messages"]]
    try:
        while True:
            with contextlib.suppress(_BrokeOff):
                await ChatFace(call).ainvoke(said, about)
                return call.answer
    finally:
        await call.leave()


class _BrokeOff(Exception):
    """An attempt ended after chunks of it were seen; another one follows."""


class _Call:
    """The one call, made plainly or listened to; `answer` is then the reply in OpenAI's form."""

    def __init__(self, calls: ModelCalls, caller: Caller, request: Mapping[str, JSON]) -> None:
        self._calls, self._caller, self._request = calls, caller, request
        self._loop = asyncio.get_running_loop()
        self._heard: asyncio.Queue[Mapping[str, JSON] | None] = asyncio.Queue()
        self._streaming: asyncio.Task[None] | None = None
        self.answer: dict[str, JSON] = {}

    async def plain(self) -> dict[str, JSON]:
        self.answer = await self._calls.complete(self._caller, self._request)
        return self.answer

    async def deltas(self) -> AsyncGenerator[Mapping[str, JSON]]:
        """What is said until the reply is whole; raises what the call raises, and _BrokeOff."""
        if not isinstance(self._calls, StreamedCalls):
            await self.plain()
            return
        if self._streaming is None:
            self._streaming = self._loop.create_task(self._stream(self._calls))
        while (delta := await self._heard.get()) is not _END:
            if delta is None:
                raise _BrokeOff("the reply broke off, and is asked for again")
            yield delta
        await self._streaming

    async def _stream(self, calls: StreamedCalls) -> None:
        try:
            self.answer = await calls.stream(self._caller, self._request, self._hear)
        finally:
            self._hear(_END)

    def _hear(self, delta: Mapping[str, JSON] | None) -> None:
        self._loop.call_soon_threadsafe(self._heard.put_nowait, delta)

    async def leave(self) -> None:
        """Who leaves early does not wait for the reply; the call is paid and recorded."""
        if self._streaming is not None:
            self._streaming.cancel()
            await asyncio.gather(self._streaming, return_exceptions=True)


_END: Mapping[str, JSON] = {}


class ChatFace(BaseChatModel):
    """One run over the call, or over what is left of it after an attempt that broke off."""

    # A process-wide cache of LangChain's would answer in place of the gateway, unseen by ledger and receipts.
    cache: bool | None = False
    _call: _Call = PrivateAttr()

    def __init__(self, call: _Call) -> None:
        super().__init__()
        self._call = call

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
        chunk = _chunk(await self._call.plain())
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
        seen = False
        async with contextlib.aclosing(self._call.deltas()) as deltas:
            async for delta in deltas:
                seen = True
                yield ChatGenerationChunk(message=_piece(delta))
        yield ChatGenerationChunk(message=_last(self._call.answer) if seen else _chunk(self._call.answer))

    def _should_stream(self, *, run_manager: Any = None, **kwargs: Any) -> bool:
        """LangChain's rule, and for a callback that takes tokens, where it would want the model's `streaming` set."""
        handlers = run_manager.handlers if run_manager else []
        return super()._should_stream(run_manager=run_manager, **kwargs) or any(map(_takes_tokens, handlers))

    def _generate(
        self,
        messages: list[BaseMessage],
        stop: list[str] | None = None,
        run_manager: CallbackManagerForLLMRun | None = None,
        **kwargs: Any,
    ) -> ChatResult:
        raise NotImplementedError("the gateway is asked asynchronously")


def _takes_tokens(handler: BaseCallbackHandler) -> bool:
    """Whether a callback has something of its own to do with a token; tracers note that it came."""
    nothing = (BaseCallbackHandler.on_llm_new_token, AsyncCallbackHandler.on_llm_new_token)
    return type(handler).on_llm_new_token not in nothing and not isinstance(handler, BaseTracer | AsyncBaseTracer)


def _chunk(answer: Mapping[str, JSON]) -> AIMessageChunk:
    """A whole reply."""
    message, _ = message_of(answer)
    good, bad = _calls_of(message)
    return AIMessageChunk(content=text_of(message), tool_calls=good, invalid_tool_calls=bad, **_ending(answer))


def _piece(delta: Mapping[str, JSON]) -> AIMessageChunk:
    calls = [
        tool_call_chunk(
            name=call.get("function", {}).get("name"), args=call.get("function", {}).get("arguments"),
            id=call.get("id"), index=call["index"],
        )
        for call in delta.get("tool_calls") or []
    ]  # fmt: skip
    return AIMessageChunk(content=delta.get("content") or "", tool_call_chunks=calls)


def _last(answer: Mapping[str, JSON]) -> AIMessageChunk:
    """What is known when all has been said."""
    return AIMessageChunk(content="", **_ending(answer))


def _ending(answer: Mapping[str, JSON]) -> dict[str, Any]:
    _, finish = message_of(answer)
    about = {"model_name": str(answer.get("model") or ""), "finish_reason": finish}
    return {"usage_metadata": _usage(answer), "response_metadata": about, "chunk_position": "last"}


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
