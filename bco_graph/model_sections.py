"""The section `models` of bco.yaml: a config of litellm's proxy as it is, and what of it this package does itself.

Retries, time limits and the cache are the gateway's, one layer of each: what litellm's config says of them is taken
over where `models` itself does not say it. What has no meaning here is left out, and `ignored` says so and why.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Annotated, Any

from pydantic import Field, model_validator

from bco_graph.sections import Name, Section

CODE = "code"
"""The name of a role's deployment where the model is given in code: `create_bco(config, models={"target": model})`."""

_PROXY = "it belongs to litellm's proxy server, which is not started"
_RETRIES = "models.retries is the only retry layer"
_LOGS = "receipts and events hold each call; add a sink to send them elsewhere"
_COUNTS = "one gateway serves the run and keeps its own counts"
SECTIONS: Mapping[str, str] = {
    "general_settings": _PROXY,
    "environment_variables": "export them where the run is started; os.environ/NAME finds them there",
    **dict.fromkeys(("callback_settings", "guardrails", "mcp_servers", "vector_store_registry", "search_tools",
                     "files_settings", "finetune_settings", "assistant_settings"), _PROXY),
}  # fmt: skip
"""Top-level sections of a proxy config that are not used, and why."""
SETTINGS: Mapping[str, str] = {
    **dict.fromkeys(("retry_policy", "model_group_retry_policy", "retry_after"), _RETRIES),
    **dict.fromkeys(("callbacks", "success_callback", "failure_callback", "service_callback"), _LOGS),
    **dict.fromkeys(("cache", "cache_params", "cache_responses", "cache_kwargs", "caching_groups"),
                    "models.cache stores responses by content"),
    **dict.fromkeys(("redis_url", "redis_host", "redis_port", "redis_password", "redis_db"), _COUNTS),
    **dict.fromkeys(("set_verbose", "debug_level", "json_logs", "suppress_debug_info", "log_raw_request_response"),
                    "litellm's own log is off, for it repeats keys"),
    **dict.fromkeys(("max_budget", "budget_duration"), "budget.usd is the run's"),
    **dict.fromkeys(("default_team_settings", "default_internal_user_params", "upperbound_key_generate_params",
                     "max_internal_user_budget", "internal_user_budget_duration", "key_generation_settings"), _PROXY),
}  # fmt: skip
"""Keys of `router_settings` and `litellm_settings` that are not used, and why."""
PARAMS: Mapping[str, str] = {
    **dict.fromkeys(("num_retries", "max_retries", "retry_policy"), _RETRIES),
    **dict.fromkeys(("timeout", "stream_timeout", "request_timeout"), "models.timeout_s is the limit of every call"),
}
"""Keys of a deployment's `litellm_params` that are not used, and why."""
TAKEN: Mapping[str, str] = {"num_retries": "retries", "timeout": "timeout_s", "request_timeout": "timeout_s"}
"""Keys of `router_settings` and `litellm_settings` that are read as the key of `models` beside them."""


class Deployment(Section):
    """One entry of litellm's `model_list`. `litellm_params.model` is `provider/model`, or `local/smollm2-135m`."""

    model_name: Name
    litellm_params: dict[str, Any]
    model_info: dict[str, Any] = Field(default_factory=dict)

    @model_validator(mode="after")
    def _has_model(self) -> Deployment:
        if not isinstance(self.litellm_params.get("model"), str):
            raise ValueError(f"deployment {self.model_name!r} needs litellm_params.model, such as openai/gpt-5-mini")
        return self


class Models(Section):
    """litellm's own proxy format; `file` names one, relative to bco.yaml, whose sections stand where none is given."""

    model_list: list[Deployment] = Field(default_factory=list)
    router_settings: dict[str, Any] = Field(default_factory=dict)
    litellm_settings: dict[str, Any] = Field(default_factory=dict)
    retries: Annotated[int, Field(ge=0, le=20)] = 2
    """Retries of one call after a failure that may pass (429, 5xx, connection); the only retry layer."""
    timeout_s: Annotated[float, Field(gt=0)] = 120.0
    """Seconds for one call, always set."""
    cache: bool = True
    ignored: list[str] = Field(default_factory=list)
    """Filled in: what was given and is not used, and why."""

    @model_validator(mode="before")
    @classmethod
    def _of_a_proxy(cls, given: Any) -> Any:
        if not isinstance(given, Mapping):
            return given
        rest = {name: value for name, value in given.items() if name not in SECTIONS}
        if not isinstance(told := given.get("ignored", []), list):
            raise ValueError(f"ignored is {told!r}; bco writes it, and bco.yaml leaves it out")
        ignored = [*told, *(f"{name}: {why}" for name, why in SECTIONS.items() if name in given)]
        for section in ("router_settings", "litellm_settings"):
            if isinstance(settings := rest.get(section), Mapping):
                rest[section] = dict(
                    _kept(settings, SETTINGS, section, ignored, lambda key, value: _take(rest, key, value))
                )
        if isinstance(entries := rest.get("model_list"), list):
            rest["model_list"] = [_plain(entry, ignored) for entry in entries]
        return {**rest, "ignored": ignored} if ignored else rest


def _take(models: dict[str, Any], key: str, value: Any) -> str | None:
    """Read a setting as the key of `models` that means the same; the reason where something else said it."""
    name = TAKEN.get(key)
    if name is None or value is None:
        return None
    if models.setdefault(name, value) == value:
        return ""
    return f"models.{name} is {models[name]!r}"


def _kept(
    given: Mapping[str, Any],
    unused: Mapping[str, str],
    where: str,
    ignored: list[str],
    take: Callable[[str, Any], str | None] = lambda key, value: None,
) -> Iterator[tuple[str, Any]]:
    """The entries that go to litellm; what is left out is added to `ignored`."""
    for key, value in given.items():
        why = unused.get(key) or take(key, value)
        if why:
            ignored.append(f"{where}.{key}: {why}")
        if why is None:
            yield key, value


def _plain(entry: Any, ignored: list[str]) -> Any:
    params = entry.get("litellm_params") if isinstance(entry, Mapping) else None
    if not isinstance(params, Mapping):
        return entry
    return {
        **entry,
        "litellm_params": dict(_kept(params, PARAMS, f"{entry.get('model_name')}.litellm_params", ignored)),
    }
