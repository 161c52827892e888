"""Models given in code: a LangChain chat model plays a role, and is answered for in OpenAI's form.

The chat model keeps its own parameters; of a request it gets the messages, tools, the form of the reply, where to stop
and, where it has a setting for it, the length. One that retries by itself (`max_retries`) is not retried by us.
"""

from __future__ import annotations

import asyncio
import json
import re
from collections.abc import AsyncIterator, Iterable, Mapping
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Any, get_args

from pydantic import SecretStr

from bco_graph.config import Roles
from bco_graph.errors import ConfigError, ModelCallError, RequestRejected, UpstreamUnavailable
from bco_graph.gateway.deployments import Deployed
from bco_graph.gateway.failures import failure, retry_after_s
from bco_graph.gateway.lanes import parsed, too_late
from bco_graph.gateway.pinning import Pinned
from bco_graph.gateway.streaming import Pieces, Take
from bco_graph.model_sections import CODE, Deployment, Models
from bco_graph.protocols import Role
from bco_graph.state import JSON

if TYPE_CHECKING:
    from langchain_core.language_models import BaseChatModel
    from langchain_core.messages import AIMessage, AIMessageChunk, InvalidToolCall, ToolCall
    from langchain_core.runnables import RunnableConfig

_LENGTHS = ("max_tokens", "max_completion_tokens", "max_output_tokens", "num_predict")
_AT_ONCE = 64
"""Threads for chat models that have no async client."""
_OUR_FAULT = (TypeError, ValueError, KeyError, AttributeError, NotImplementedError)
_APART: RunnableConfig = {"callbacks": []}
"""Who listens to the graph in which a call is made hears of it from there, and not a second time from here."""
_REASONS = {
    "end_turn": "stop", "stop_sequence": "stop", "STOP": "stop", "max_tokens": "length", "MAX_TOKENS": "length",
    "tool_use": "tool_calls",
}  # fmt: skip
_SECRET = re.compile(r"key|secret|password|credential|authorization|cookie|headers|(^|_)token$", re.IGNORECASE)


def in_code(models: Models, roles: Roles, given: Mapping[Role, BaseChatModel]) -> dict[Role, Deployed]:
    """The deployments of models given in code; the `model_info` of the one that the config names for a role counts.

    Raises ConfigError for what is no chat model, or no role.
    """
    if unknown := sorted(set(given) - set(get_args(Role))):
        raise ConfigError(f"models are given in code for {unknown}; the roles are {', '.join(get_args(Role))}")
    entries = {deployment.model_name: deployment for deployment in models.model_list}
    names = {role: str(getattr(roles, role) or CODE) for role in given}
    return {role: _deployed(role, model, names[role], entries.get(names[role])) for role, model in given.items()}


def _deployed(role: Role, model: BaseChatModel, name: str, entry: Deployment | None) -> Deployed:
    from langchain_core.language_models import BaseChatModel

    if not isinstance(model, BaseChatModel):
        raise ConfigError(f"the model of role {role!r} is a {type(model).__name__}; expected a LangChain BaseChatModel")
    params = model._get_ls_params()
    told = getattr(model, "model_name", None) or getattr(model, "model", None) or params.get("ls_model_name")
    full = f"{params.get('ls_provider', 'langchain')}/{told or type(model).__name__}"
    tools = type(model).bind_tools is not BaseChatModel.bind_tools
    info = {"supports_function_calling": tools, **(entry.model_info if entry else {})}
    left_out = {} if _length_of(model) else {"max_tokens": "the chat model has no such setting"}
    source = Deployment(model_name=name, litellm_params={"model": full}, model_info=info)
    return Deployed(
        role, name, full, "chat_model", {}, {}, source,
        left_out=left_out, own_retries=getattr(model, "max_retries", 0) != 0, identity=_identity(model),
    )  # fmt: skip


def secrets_of(models: Iterable[BaseChatModel]) -> list[str]:
    """Values that must never be written down."""
    values = (getattr(model, name, None) for model in models for name in type(model).model_fields)
    return [str(value.get_secret_value()) for value in values if isinstance(value, SecretStr)]


def _identity(model: BaseChatModel) -> dict[str, JSON]:
    """Class and parameters, no secrets: what makes it the same model in another process."""
    kind = type(model)
    parameters = {**model.lc_attributes, **model._identifying_params}
    return {"class": f"{kind.__module__}.{kind.__qualname__}", "parameters": _plain(parameters)}


def _plain(value: Any) -> Any:
    if isinstance(value, Mapping):
        kept = {str(key): _plain(item) for key, item in value.items() if not _SECRET.search(str(key))}
        return {key: item for key, item in kept.items() if item is not None}
    if isinstance(value, list | tuple):
        return [_plain(item) for item in value]
    return value if isinstance(value, str | int | float | bool) else None


def _length_of(model: BaseChatModel) -> str | None:
    return next((name for name in _LENGTHS if name in type(model).model_fields), None)


class ChatModelLane:
    """Lives on the gateway's loop: a chat model with an async client should not be in use on another one."""

    def __init__(self, models: Mapping[Role, BaseChatModel], timeout_s: float) -> None:
        self._models, self._timeout_s = models, timeout_s
        self._threads = ThreadPoolExecutor(_AT_ONCE, thread_name_prefix="bco-chat-model")
        asyncio.get_running_loop().set_default_executor(self._threads)

    async def complete(self, deployed: Deployed, pinned: Pinned) -> dict[str, JSON]:
        return await self._ask(deployed, pinned)

    async def stream(self, deployed: Deployed, pinned: Pinned, take: Take) -> dict[str, JSON]:
        return await self._ask(deployed, pinned, take)

    async def _ask(self, deployed: Deployed, pinned: Pinned, take: Take | None = None) -> dict[str, JSON]:
        from langchain_core.messages import AIMessage, convert_to_messages

        model = self._models[deployed.role]
        try:
            runnable, given = _asked(model, pinned)
            async with asyncio.timeout(self._timeout_s):
                said = convert_to_messages(pinned.request["messages"])
                if take is None:
                    message = await runnable.ainvoke(said, _APART, **given)
                else:
                    usage = {"stream_usage": True} if "stream_usage" in type(model).model_fields else {}
                    message = await _put_together(runnable.astream(said, _APART, **given, **usage), take)
        except TimeoutError as error:
            raise too_late(self._timeout_s) from error
        except Exception as error:
            raise _failure(error) from error
        if not isinstance(message, AIMessage):
            raise UpstreamUnavailable(f"the chat model answered with a {type(message).__name__}, no AIMessage")
        return _completion(deployed, message)

    async def close(self) -> None:
        """Leaves threads whose model does not come back: the end of the loop would wait for its own ones."""
        self._threads.shutdown(wait=False, cancel_futures=True)
        asyncio.get_running_loop().set_default_executor(ThreadPoolExecutor(1))


def _asked(model: BaseChatModel, pinned: Pinned) -> tuple[Any, dict[str, JSON]]:
    """The model with its tools bound, and the other arguments of the call."""
    request = pinned.request
    given: dict[str, JSON] = {name: request[name] for name in ("stop", "response_format") if name in request}
    if isinstance(given.get("stop"), str):
        given["stop"] = [given["stop"]]
    if pinned.max_tokens is not None and (name := _length_of(model)):
        given[name] = pinned.max_tokens
    if not request.get("tools"):
        return model, given
    how = {name: request[name] for name in ("tool_choice", "parallel_tool_calls") if name in request}
    return model.bind_tools(request["tools"], **how), given


async def _put_together(chunks: AsyncIterator[Any], take: Take) -> Any:
    """The message that the chunks make up; one of a model that does not stream stays as it is."""
    from langchain_core.messages import AIMessage, AIMessageChunk

    pieces, got = Pieces(), []
    async for chunk in chunks:
        got.append(chunk)
        if isinstance(chunk, AIMessageChunk):
            take(pieces.add({"choices": [{"index": 0, "delta": _delta(chunk)}]}))
    if not got or not isinstance(got[0], AIMessageChunk):
        return got[0] if got else None
    message = got[0] + got[1:]
    made, broken = _calls_in(message)
    return AIMessage(
        message.content, tool_calls=made, invalid_tool_calls=broken, id=message.id,
        usage_metadata=message.usage_metadata, response_metadata=message.response_metadata,
    )  # fmt: skip


def _delta(chunk: AIMessageChunk) -> dict[str, JSON]:
    calls = [
        {"index": call["index"], "id": call["id"], "function": {"name": call["name"], "arguments": call["args"]}}
        for call in chunk.tool_call_chunks
    ]
    return {"content": str(chunk.text), "tool_calls": calls}


def _calls_in(message: AIMessageChunk) -> tuple[list[ToolCall], list[InvalidToolCall]]:
    """Calls with whole arguments, and the others: LangChain's own reading of chunks mends what was cut off."""
    from langchain_core.messages.tool import invalid_tool_call, tool_call

    good: list[ToolCall] = []
    bad: list[InvalidToolCall] = []
    for chunk in message.tool_call_chunks:
        name, call_id, text = chunk["name"] or "", chunk["id"], chunk["args"] or "{}"
        args = parsed(text)
        if isinstance(args, dict):
            good.append(tool_call(name=name, args=args, id=call_id))
        else:
            bad.append(invalid_tool_call(name=name, args=text, id=call_id, error=None))
    return good, bad


def _failure(error: Exception) -> ModelCallError:
    """By the status that the client's exceptions carry; without one, wrong use is told from a fault by type."""
    response = getattr(error, "response", None)
    code = getattr(error, "code", None)
    found = [getattr(error, "status_code", None), getattr(response, "status_code", None), code]
    status = next((value for value in found if isinstance(value, int) and 100 <= value < 600), None)
    message = f"{type(error).__name__}: {error}"
    if status is None and isinstance(error, _OUR_FAULT):
        return RequestRejected(f"the chat model does not take this request: {message}", status=400)
    asked_s = retry_after_s((getattr(response, "headers", None) or {}).get("retry-after"))
    raw = getattr(response, "text", "")
    return failure(
        message, status=status, code=code if isinstance(code, str) else None, retry_after_s=asked_s,
        raw=raw if isinstance(raw, str) else "",
    )  # fmt: skip


def _completion(deployed: Deployed, message: AIMessage) -> dict[str, JSON]:
    told = message.response_metadata
    made = [(call["id"], call["name"], json.dumps(call["args"], ensure_ascii=False)) for call in message.tool_calls]
    made += [(call["id"], call["name"] or "", call["args"] or "") for call in message.invalid_tool_calls]
    calls = [
        {"id": told_id or f"call_{number}", "type": "function", "function": {"name": name, "arguments": arguments}}
        for number, (told_id, name, arguments) in enumerate(made)
    ]
    reason = str(told.get("finish_reason") or told.get("stop_reason") or ("tool_calls" if calls else "stop"))
    said = {"role": "assistant", "content": str(message.text) or None, **({"tool_calls": calls} if calls else {})}
    reply: dict[str, JSON] = {
        "id": message.id or "chatcmpl-in-code",
        "object": "chat.completion",
        "model": str(told.get("model_name") or told.get("model") or deployed.model.partition("/")[2]),
        "choices": [{"index": 0, "finish_reason": _REASONS.get(reason, reason), "message": said}],
    }
    if told.get("system_fingerprint"):
        reply["system_fingerprint"] = told["system_fingerprint"]
    if message.usage_metadata is not None:
        reply["usage"] = _usage(message.usage_metadata)
    return reply


def _usage(usage: Mapping[str, Any]) -> dict[str, JSON]:
    read, answer = usage.get("input_token_details") or {}, usage.get("output_token_details") or {}
    prompt = {"cached_tokens": read.get("cache_read"), "cache_creation_tokens": read.get("cache_creation")}
    return {
        "prompt_tokens": usage["input_tokens"],
        "completion_tokens": usage["output_tokens"],
        "total_tokens": usage["total_tokens"],
        "prompt_tokens_details": prompt,
        "completion_tokens_details": {"reasoning_tokens": answer.get("reasoning")},
    }
