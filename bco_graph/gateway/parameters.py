"""Which entries of `litellm_params` are parameters of a request, to be pinned, and which say how it is reached."""

from __future__ import annotations

import difflib
from collections.abc import Mapping

from bco_graph.config import Deployment
from bco_graph.errors import ConfigError
from bco_graph.state import JSON

_NUMBER: tuple[type, ...] = (int, float)
_TYPES: Mapping[str, tuple[type, ...]] = {
    "temperature": _NUMBER, "top_p": _NUMBER, "top_k": (int,), "min_p": _NUMBER, "seed": (int,), "n": (int,),
    "max_tokens": (int,), "max_completion_tokens": (int,), "stop": (str, list), "presence_penalty": _NUMBER,
    "frequency_penalty": _NUMBER, "repetition_penalty": _NUMBER, "logit_bias": (Mapping,), "logprobs": (bool,),
    "top_logprobs": (int,), "reasoning_effort": (str, Mapping), "thinking": (Mapping,), "verbosity": (str,),
    "service_tier": (str,), "response_format": (Mapping,), "tools": (list,), "tool_choice": (str, Mapping),
    "parallel_tool_calls": (bool,), "modalities": (list,), "user": (str,), "extra_body": (Mapping,),
}  # fmt: skip
"""Parameters with the types that bco.yaml may give them. Others are passed on as they are."""

_ROUTE = frozenset({
    "model", "api_key", "api_base", "base_url", "api_version", "organization", "project", "custom_llm_provider",
    "region_name", "extra_headers", "headers", "rpm", "tpm", "weight", "order", "tags", "tier", "mock_response",
    "mock_timeout", "drop_params", "additional_drop_params", "allowed_openai_params", "max_parallel_requests",
    "max_budget", "budget_duration", "use_in_pass_through", "use_litellm_proxy",
    "merge_reasoning_content_in_choices", "cooldown_time", "ssl_verify", "litellm_credential_name",
    "cache_read_input_token_cost", "cache_creation_input_token_cost", "n_ctx", "n_threads",
})  # fmt: skip
OURS: Mapping[str, str] = {
    "model_list": "it has its place, models.model_list", "stream": "replies are always asked for whole",
    "stream_options": "replies are always asked for whole", "cache": "set models.cache instead",
}  # fmt: skip
"""What litellm takes in its settings or parameters and this gateway does itself, with the advice for it."""

FORWARDED = frozenset({"model", "api_key", "api_base", "base_url", "organization", "extra_headers", "headers"})
"""The route entries that the forward lane knows; prices apart, any other asks for litellm."""

_ROUTE_PREFIXES = (
    "aws_", "vertex_", "azure_", "watsonx_", "s3_", "gcs_", "client_", "tenant_", "input_cost", "output_cost",
)  # fmt: skip


def is_route(name: str) -> bool:
    return name in _ROUTE or name.startswith(_ROUTE_PREFIXES)


def parameters_of(deployment: Deployment) -> dict[str, JSON]:
    """The parameters that a deployment pins. Raises ConfigError for a misspelt one or one of the wrong type."""
    pinned = {name: value for name, value in deployment.litellm_params.items() if not is_route(name)}
    for name, value in pinned.items():
        if name in OURS:
            raise ConfigError(
                f"deployment {deployment.model_name!r}: litellm_params.{name} is not used here: {OURS[name]}"
            )
        where = f"deployment {deployment.model_name!r}: litellm_params.{name}"
        near = difflib.get_close_matches(name, _TYPES, n=1, cutoff=0.85)
        if name not in _TYPES and near:
            raise ConfigError(f"{where}: unknown parameter (did you mean {near[0]!r}?)")
        expected = _TYPES.get(name)
        if expected and (not isinstance(value, expected) or (isinstance(value, bool) and bool not in expected)):
            kinds = " or ".join(kind.__name__ for kind in expected)
            hint = "; YAML reads 1e-3 as text: write 0.001" if isinstance(value, str) and int in expected else ""
            raise ConfigError(f"{where} is {value!r}; expected {kinds}{hint}")
    return pinned
