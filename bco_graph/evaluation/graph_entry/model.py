"""The frozen model as a LangChain chat model, for the graphs of scaffolds."""

from __future__ import annotations

import asyncio
import operator
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from langchain_core.exceptions import OutputParserException
from langchain_core.language_models import BaseChatModel
from langchain_core.messages import AIMessage, BaseMessage, convert_to_openai_messages
from langchain_core.messages.ai import UsageMetadata
from langchain_core.output_parsers import JsonOutputParser, PydanticOutputParser
from langchain_core.output_parsers.openai_tools import make_invalid_tool_call, parse_tool_call
from langchain_core.outputs import ChatGeneration, ChatResult
from langchain_core.runnables import Runnable, RunnableMap, RunnablePassthrough
from langchain_core.utils.function_calling import convert_to_json_schema, convert_to_openai_tool
from pydantic import BaseModel, PrivateAttr

Json = Any


class _Line:
    """The target of the task that this process runs; none while the graph is built. Copies of a model share it."""

    target: Any = None

    def __deepcopy__(self, _memo: Any) -> _Line:
        return self


class TargetModel(BaseChatModel):
    """The frozen model as a LangChain chat model. Which model and sampling is pinned elsewhere: of what is bound to
    it, messages, tools, tool choice, stop, response format and a shorter `max_tokens` have an effect.

    A failed call raises the target's own TargetError.
    """

    _line: _Line = PrivateAttr(default_factory=_Line)

    def connect(self, target: Any) -> None:
        self._line.target = target

    @property
    def _llm_type(self) -> str:
        return "bco-target"

    async def _agenerate(
        self, messages: list[BaseMessage], stop: list[str] | None = None, run_manager: Any = None, **kwargs: Any
    ) -> ChatResult:
        if self._line.target is None:
            raise RuntimeError("the model was called while the graph was built: call it inside of nodes only")
        said = convert_to_openai_messages(messages)
        return _result(await self._line.target.complete(said, stop=stop, **kwargs))

    def _generate(
        self, messages: list[BaseMessage], stop: list[str] | None = None, run_manager: Any = None, **kwargs: Any
    ) -> ChatResult:
        call = self._agenerate(messages, stop=stop, **kwargs)
        try:
            asyncio.get_running_loop()
        except RuntimeError:
            return asyncio.run(call)
        # An async node that calls the sync face: its loop waits, as it would for any other blocking call.
        with ThreadPoolExecutor(1) as pool:
            return pool.submit(asyncio.run, call).result()

    def bind_tools(
        self, tools: Sequence[Any], *, tool_choice: Any = None, strict: bool | None = None, **kwargs: Any
    ) -> Runnable[Any, AIMessage]:
        """`tool_choice`: `auto`, `none`, `required` (also `any` or True), a tool's name, or OpenAI's own form."""
        formatted = [convert_to_openai_tool(tool, strict=strict) for tool in tools]
        if tool_choice in ("any", True):
            tool_choice = "required"
        elif isinstance(tool_choice, str) and tool_choice not in ("auto", "none", "required"):
            tool_choice = {"type": "function", "function": {"name": tool_choice}}
        chosen = {"tool_choice": tool_choice} if tool_choice else {}
        return self.bind(tools=formatted, **chosen, **kwargs)

    def with_structured_output(
        self, schema: Any, *, include_raw: bool = False, method: str = "function_calling", **kwargs: Any
    ) -> Runnable[Any, Any]:
        """`method`: `function_calling`, or `json_schema` for a model that has no tools."""
        if method != "json_schema":
            return super().with_structured_output(schema, include_raw=include_raw, method=method, **kwargs)
        form = convert_to_json_schema(schema)
        wanted = {"type": "json_schema", "json_schema": {"name": form.get("title", "answer"), "schema": form}}
        llm = self.bind(response_format=wanted)
        is_model = isinstance(schema, type) and issubclass(schema, BaseModel)
        parser = PydanticOutputParser(pydantic_object=schema) if is_model else JsonOutputParser()
        if not include_raw:
            return llm | parser
        read = operator.itemgetter("raw") | parser
        parsed = RunnablePassthrough.assign(parsed=read, parsing_error=lambda _: None)
        failed = RunnablePassthrough.assign(parsed=lambda _: None)
        return RunnableMap(raw=llm) | parsed.with_fallbacks([failed], exception_key="parsing_error")


def _result(reply: Mapping[str, Json]) -> ChatResult:
    choice = (reply.get("choices") or [{}])[0]
    said = choice.get("message") or {}
    calls: list[Any] = []
    invalid: list[Any] = []
    for call in said.get("tool_calls") or []:
        try:
            calls.append(parse_tool_call(call, return_id=True))
        except OutputParserException as error:
            invalid.append(make_invalid_tool_call(call, str(error)))
    usage = reply.get("usage") or {}
    read, written = usage.get("prompt_tokens") or 0, usage.get("completion_tokens") or 0
    message = AIMessage(
        content=said.get("content") or "", tool_calls=calls, invalid_tool_calls=invalid,
        usage_metadata=UsageMetadata(input_tokens=read, output_tokens=written, total_tokens=read + written),
        response_metadata={"finish_reason": choice.get("finish_reason"), "model_name": reply.get("model")},
    )  # fmt: skip
    return ChatResult(generations=[ChatGeneration(message=message)])
