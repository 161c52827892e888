"""Models that run in this process, through llama-cpp-python: no server, no key, no money (extra `[local]`).

local/smollm2-135m   SmolLM2-135M-Instruct, a chat model; window 2,048 tokens, up to 8,192 by `n_ctx`
local/gemma3-270m    Gemma 3 270M, a base model that continues `Question: ... Answer:` lines and stops at a newline

One call at a time per model, each from an empty state: without that reset, the same request after another one with
a common beginning may be answered differently even at temperature 0. Threads: one per core, at most 4; they wait for
each other by spinning, so on cores that others keep busy fewer are faster (`n_threads`): on two busy cores, two threads
gave 8 tokens/s and one gave 49; on two idle ones, two threads are twice as fast as one.
A reply is at most 512 tokens long where the request does not say. Loading takes 0.3 to 1 s, in which llama.cpp points
this process's stdout and stderr elsewhere.
"""

from __future__ import annotations

import asyncio
import atexit
import os
import sys
import threading
import time
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import Any

from bco_graph.errors import ConfigError, ContextOverflow, MissingExtra, RequestRejected
from bco_graph.gateway import gguf
from bco_graph.gateway.deployments import Deployed
from bco_graph.gateway.lanes import too_late
from bco_graph.gateway.pinning import Pinned
from bco_graph.gateway.rendering import KINDS, SAMPLING, grammar_of, message_of, refuse_unknown, stops_of
from bco_graph.gateway.streaming import Take
from bco_graph.state import JSON

DEFAULT_WINDOW = 2048
DEFAULT_REPLY_TOKENS = 512


def available(name: str = "smollm2-135m") -> bool:
    """Whether the model can be loaded here; looks for packages and imports nothing."""
    return gguf.installed(name.removeprefix("local/"))


def require(deployed: Deployed) -> None:
    """Raises ConfigError for an unknown in-process model or window, MissingExtra where it is not installed."""
    if deployed.lane != "local":
        return
    name, window = deployed.model.removeprefix("local/"), window_of(deployed.route)
    _check(name, window)
    if not gguf.installed(name):
        raise MissingExtra(f"the in-process model {deployed.model!r}", extra="local")


def window_of(route: Mapping[str, Any]) -> int:
    """Tokens of the window that a deployment's `n_ctx` sets."""
    return int(route.get("n_ctx") or DEFAULT_WINDOW)


def _check(name: str, window: int) -> None:
    if name not in KINDS:
        names = ", ".join(f"local/{known}" for known in KINDS)
        raise ConfigError(f"there is no in-process model 'local/{name}'; available: {names}")
    if not 256 <= window <= KINDS[name].max_window:
        raise ConfigError(f"local/{name}: n_ctx is {window}; expected 256 to {KINDS[name].max_window} tokens")


class LocalModel:
    """One loaded model. Thread-safe: calls wait for each other. It is not used again after `close`."""

    def __init__(self, name: str, *, window: int = DEFAULT_WINDOW, threads: int | None = None) -> None:
        _check(name, window)
        path, kind, llama_cpp = gguf.find(name), KINDS[name], _llama_cpp()
        threads = threads or min(4, os.cpu_count() or 1)
        self.name, self.window, self._kind, self._lock = name, window, kind, threading.Lock()
        self._llama = llama_cpp.Llama(
            str(path), n_ctx=window, n_threads=threads, n_threads_batch=threads, verbose=False, seed=0
        )

    def complete(self, request: Mapping[str, JSON], *, stopped: Callable[[], bool] = lambda: False) -> dict[str, JSON]:
        """A chat completion in OpenAI's form. `stopped` is asked between tokens; true ends the reply there.

        Raises RequestRejected for what this model cannot do, and ContextOverflow, by its own token count, where
        the prompt with the room asked for the reply is longer than the window.
        """
        refuse_unknown(self.name, request)
        llama_cpp = _llama_cpp()
        with self._lock:
            prompt = self._prompt(request)
            room = request.get("max_tokens") or request.get("max_completion_tokens") or DEFAULT_REPLY_TOKENS
            self._llama.reset()
            done = self._llama.create_completion(
                prompt,
                max_tokens=min(room, self.window - len(prompt)),
                stop=[*self._kind.stop, *stops_of(request.get("stop"))],
                grammar=grammar_of(llama_cpp, request.get("response_format")),
                stopping_criteria=llama_cpp.StoppingCriteriaList([lambda _tokens, _logits: stopped()]),
                **{"temperature": 0.0, "seed": 0, **{k: request[k] for k in SAMPLING if request.get(k) is not None}},
            )
        return _reply(self.name, done)

    def close(self) -> None:
        with self._lock:
            self._llama.close()

    def _prompt(self, request: Mapping[str, JSON]) -> list[int]:
        text = self._kind.render(self._llama, [message_of(message) for message in request["messages"]])
        prompt: list[int] = self._llama.tokenize(text.encode(), add_bos=self.name.startswith("gemma"), special=True)
        asked = request.get("max_tokens") or request.get("max_completion_tokens") or 1
        if len(prompt) + asked > self.window:
            raise ContextOverflow(
                f"local/{self.name}: {len(prompt)} prompt tokens and {asked} asked for the reply do not fit the window "
                f"of {self.window} tokens",
                status=400,
            )
        return prompt


_loaded: dict[tuple[str, int, int | None], LocalModel] = {}
_loading = threading.Lock()


def load(name: str, *, window: int = DEFAULT_WINDOW, threads: int | None = None) -> LocalModel:
    """The model, loaded once per process and settings."""
    with _loading:
        key = (name, window, threads)
        if key not in _loaded:
            if not _loaded:
                atexit.register(_unload)
            _loaded[key] = LocalModel(name, window=window, threads=threads)
        return _loaded[key]


def _unload() -> None:
    """Free the models while llama_cpp still can: later, at the interpreter's end, its destructors print tracebacks."""
    for model in _loaded.values():
        model.close()
    _loaded.clear()
    for stream in ("outnull_file", "errnull_file"):
        getattr(sys.modules["llama_cpp._utils"], stream).close()


@dataclass
class LocalLane:
    """Runs each model in a thread, so that the loop stays free. `timeout_s` does not count the time in the queue."""

    timeout_s: float
    _workers: dict[str, ThreadPoolExecutor] = field(default_factory=dict)
    _turns: dict[str, asyncio.Lock] = field(default_factory=dict)

    async def complete(self, deployed: Deployed, pinned: Pinned) -> dict[str, JSON]:
        name = deployed.model.removeprefix("local/")
        worker = self._workers.setdefault(name, ThreadPoolExecutor(1, thread_name_prefix=deployed.model))
        async with self._turns.setdefault(name, asyncio.Lock()):
            stop, loop = threading.Event(), asyncio.get_running_loop()
            model = await loop.run_in_executor(worker, _load_for, deployed)
            running = loop.run_in_executor(worker, lambda: model.complete(pinned.request, stopped=stop.is_set))
            try:
                done, _ = await asyncio.wait({running}, timeout=self.timeout_s)
            finally:
                stop.set()
            reply = await running
            if not done:
                raise too_late(self.timeout_s)
            return reply

    async def stream(self, deployed: Deployed, pinned: Pinned, take: Take) -> dict[str, JSON]:
        """Says what comes once it is whole."""
        return await self.complete(deployed, pinned)

    async def close(self) -> None:
        for worker in self._workers.values():
            worker.shutdown(wait=False, cancel_futures=True)


def _load_for(deployed: Deployed) -> LocalModel:
    name = deployed.model.removeprefix("local/")
    return load(name, window=window_of(deployed.route), threads=deployed.route.get("n_threads"))


def register() -> None:
    """Make `litellm.completion(model="local/smollm2-135m")` and `acompletion` work in this process; idempotent."""
    from bco_graph.gateway.library import litellm

    module = litellm()
    if any(entry["provider"] == "local" for entry in module.custom_provider_map):
        return
    module.custom_provider_map.append({"provider": "local", "custom_handler": _handler(module)})


def _handler(module: Any) -> Any:
    from litellm.llms.custom_llm import CustomLLM, CustomLLMError

    error_class: Any = CustomLLMError

    def answer(model: str, messages: list[Any], optional_params: dict[str, Any]) -> Any:
        params = dict(optional_params)
        window, threads = int(params.pop("n_ctx", DEFAULT_WINDOW)), params.pop("n_threads", None)
        try:
            reply = load(model.removeprefix("local/"), window=window, threads=threads).complete(
                {"messages": messages, **params}
            )
        except (RequestRejected, ContextOverflow, ConfigError) as error:
            raise error_class(status_code=400, message=str(error)) from error
        return module.ModelResponse(**reply)

    def completion(_: Any, *, model: str, messages: list[Any], optional_params: dict[str, Any], **__: Any) -> Any:
        return answer(model, messages, optional_params)

    async def acompletion(_: Any, **given: Any) -> Any:
        return await asyncio.to_thread(answer, given["model"], given["messages"], given["optional_params"])

    return type("LocalModels", (CustomLLM,), {"completion": completion, "acompletion": acompletion})()


def _llama_cpp() -> Any:
    """The llama_cpp module, with llama.cpp's own log turned off."""
    try:
        import llama_cpp
    except ImportError as error:
        raise MissingExtra("a model that runs in this process", extra="local") from error
    if not _quiet:
        _quiet.append(llama_cpp.llama_log_callback(lambda _level, _text, _data: None))
        llama_cpp.llama_log_set(_quiet[0], None)
    return llama_cpp


_quiet: list[Any] = []
"""The callback that llama.cpp holds; it must live as long as the process."""


def _reply(name: str, done: Mapping[str, JSON]) -> dict[str, JSON]:
    choice = done["choices"][0]
    return {
        "id": "chatcmpl-local",
        "object": "chat.completion",
        "created": int(time.time()),
        "model": f"local/{name}",
        "choices": [
            {
                "index": 0,
                "finish_reason": choice["finish_reason"] or "stop",
                "message": {"role": "assistant", "content": choice["text"].strip()},
            }
        ],
        "usage": dict(done["usage"]),
    }
