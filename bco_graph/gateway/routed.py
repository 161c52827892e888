"""The litellm lane: litellm's router resolves the deployment and speaks the provider's own protocol."""

from __future__ import annotations

import asyncio
import difflib
import inspect
import json
from collections import Counter
from typing import Any

from bco_graph.config import Models
from bco_graph.errors import ConfigError, ContextOverflow, ModelCallError, RequestRejected
from bco_graph.gateway import local
from bco_graph.gateway.deployments import Deployed, Fleet
from bco_graph.gateway.failures import failure, retry_after_s
from bco_graph.gateway.lanes import STREAMED, is_completion, parsed, too_late
from bco_graph.gateway.library import litellm
from bco_graph.gateway.parameters import OURS
from bco_graph.gateway.pinning import Pinned
from bco_graph.gateway.streaming import Pieces, Take
from bco_graph.state import JSON

_DIRECT = frozenset({
    "model", "api_key", "api_base", "base_url", "api_version", "organization", "extra_headers", "headers",
})  # fmt: skip
"""Route entries that litellm.acompletion takes as they are."""
_ROUTING = frozenset({"fallbacks", "context_window_fallbacks", "content_policy_fallbacks", "default_fallbacks"})


class LitellmLane:
    """Built on the gateway's loop, whose connections it closes. Importing litellm takes about 5 s, once.

    A deployment that stands alone under its name and has nothing that only litellm's router reads is called without
    the router, which costs a third of a call.
    """

    def __init__(self, models: Models, fleet: Fleet) -> None:
        self._litellm = litellm()
        self._before = _apply_settings(self._litellm, models)
        for deployed in fleet.roles.values():
            _require_key(self._litellm, deployed)
        self._timeout_s = models.timeout_s
        if any(entry["litellm_params"]["model"].startswith("local/") for entry in fleet.router):
            local.register()  # the router refuses a list with a provider that litellm does not know
        fallbacks = {name: value for name, value in models.litellm_settings.items() if name in _ROUTING}
        settings = {"disable_cooldowns": True, **fallbacks, **models.router_settings}
        self._router = self._litellm.Router(
            model_list=fleet.router, **settings, num_retries=0, timeout=models.timeout_s
        )
        self._models = {entry["litellm_params"]["model"] for entry in fleet.router}
        self._routed = bool(models.router_settings) or bool(fallbacks)
        self._names = Counter(entry["model_name"] for entry in fleet.router)

    async def complete(self, deployed: Deployed, pinned: Pinned) -> dict[str, JSON]:
        return await self._ask(deployed, pinned.request)

    async def stream(self, deployed: Deployed, pinned: Pinned, take: Take) -> dict[str, JSON]:
        return await self._ask(deployed, {**pinned.request, **STREAMED}, take)

    async def _ask(self, deployed: Deployed, request: dict[str, JSON], take: Take | None = None) -> dict[str, JSON]:
        seen: dict[str, Any] = {}
        try:
            async with asyncio.timeout(self._timeout_s):
                response = await self._call(
                    deployed,
                    timeout=self._timeout_s,
                    num_retries=0,
                    max_retries=0,
                    logger_fn=lambda details: seen.update(raw=details.get("original_response")),
                    **request,
                )
                if take is not None:
                    response = await self._put_together(deployed, response, take)
        except TimeoutError as error:
            raise too_late(self._timeout_s) from error
        except Exception as error:
            raw = _raw(error, seen.get("raw")) or (_streamed_body(error) if take else "")
            if is_completion(body := parsed(raw)):
                return dict(body)
            raise _failure(self._litellm, error, raw) from error
        reply: dict[str, JSON] = response.model_dump(exclude_none=True)
        if (served_by := self._served_by(deployed, response)) is not None:
            reply["served_by"] = served_by
        return reply

    def _served_by(self, deployed: Deployed, response: Any) -> str | None:
        """The model that answered where it is another one, a fallback."""
        name = (getattr(response, "_hidden_params", None) or {}).get("litellm_model_name")
        return str(name) if name in self._models and name != deployed.model else None

    async def _put_together(self, deployed: Deployed, stream: Any, take: Take) -> Any:
        """litellm's own way to make a response of its chunks: it knows each provider's thinking blocks. Where no
        chunk has a usage it counts tokens itself; that is no usage that the endpoint reported. What a fallback that
        took over reported cannot be told from that, and counts."""
        pieces, chunks = Pieces(), []
        async for chunk in stream:
            chunks.append(chunk)
            take(pieces.add(chunk.model_dump(exclude_none=True)))
        response = self._litellm.stream_chunk_builder(chunks)
        reported = [usage for chunk in stream.chunks if (usage := getattr(chunk, "usage", None))]
        if len(reported) < 2 and self._served_by(deployed, stream) is None:
            response.usage = reported[0] if reported else None
        response._hidden_params = {**(response._hidden_params or {}), **(stream._hidden_params or {})}
        return response

    def _call(self, deployed: Deployed, **request: Any) -> Any:
        """The coroutine of one attempt."""
        if self._routed or self._names[deployed.name] != 1 or not _DIRECT.issuperset(deployed.route):
            return self._router.acompletion(model=deployed.name, **request)
        return self._litellm.acompletion(**deployed.route, **request)

    async def close(self) -> None:
        """Put back litellm's settings, and close its clients of this loop; those of others may still be in use."""
        for name, value in self._before.items():
            setattr(self._litellm, name, value)
        cache = self._litellm.in_memory_llm_clients_cache
        suffix = cache.update_cache_key_with_event_loop("")
        for key in [key for key in cache.cache_dict if suffix and key.endswith(suffix)]:
            client = cache.cache_dict.pop(key)
            cache.ttl_dict.pop(key, None)
            close = getattr(client, "aclose", None) or getattr(client, "close", None)
            result = close() if close else None
            if inspect.isawaitable(result):
                await result


def _apply_settings(module: Any, models: Models) -> dict[str, Any]:
    """Set what `litellm_settings` says, and refuse what would be ignored or is this gateway's own business.

    Returns what was set before.
    """
    known = {
        "litellm_settings": set(vars(module)) | _ROUTING | {"drop_params"},
        "router_settings": set(inspect.signature(module.Router.__init__).parameters) - {"self"},
    }
    for section, names in known.items():
        for key in getattr(models, section):
            if key in OURS:
                raise ConfigError(f"models.{section}.{key} is not used here: {OURS[key]}")
            if key not in names:
                near = difflib.get_close_matches(key, names, n=1)
                hint = f" (did you mean {near[0]!r}?)" if near else ""
                raise ConfigError(f"models.{section}.{key}: litellm has no such setting{hint}")
    ours = {name: value for name, value in models.litellm_settings.items() if name not in _ROUTING | {"drop_params"}}
    before = {name: getattr(module, name) for name in ours}
    for name, value in ours.items():
        setattr(module, name, value)
    return before


def _require_key(module: Any, deployed: Deployed) -> None:
    """Raises ConfigError where litellm would look for a key in a variable that is not set."""
    if deployed.lane != "litellm" or deployed.route.get("api_key") or deployed.api_base:
        return
    missing = [
        name for name in module.validate_environment(deployed.model)["missing_keys"] if name.endswith("_API_KEY")
    ]
    if missing:
        raise ConfigError(
            f"role {deployed.role!r}, deployment {deployed.name!r} ({deployed.model}): no key is given; set "
            f"litellm_params.api_key: os.environ/{missing[0]}, and export that variable"
        )


def _failure(module: Any, error: Exception, raw: str) -> ModelCallError:
    message = str(getattr(error, "message", "") or error).partition("\n\nLiteLLM: ")[0]
    if isinstance(error, module.ContextWindowExceededError):
        return ContextOverflow(message, status=400, raw=raw)
    if isinstance(error, module.UnsupportedParamsError):
        return RequestRejected(message, status=400, raw=raw)
    status = getattr(error, "status_code", None)
    if not isinstance(status, int):
        return RequestRejected(f"litellm raised {type(error).__name__}: {message}", raw=raw)
    headers = getattr(getattr(error, "response", None), "headers", None) or {}
    code = getattr(error, "code", None)
    asked_s = retry_after_s(headers.get("retry-after"))
    return failure(message, status=status, code=code if isinstance(code, str) else None, retry_after_s=asked_s, raw=raw)


def _raw(error: BaseException, logged: Any) -> str:
    """The body that litellm could not use: what its logger saw, or what JSON parsing stumbled on."""
    if isinstance(logged, str) and logged:
        return logged
    cause: BaseException | None = error
    while cause is not None:
        if isinstance(cause, json.JSONDecodeError):
            return cause.doc
        cause = cause.__cause__ or cause.__context__
    return ""


def _streamed_body(error: Exception) -> str:
    """The body of an error that litellm's logger does not see: that of a streamed request."""
    body = getattr(error, "body", None)
    return json.dumps({"error": body}, default=str) if isinstance(body, dict) else ""
