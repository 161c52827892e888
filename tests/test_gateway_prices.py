"""Prices: given ones, litellm's, and the sums held against litellm's own calculator."""

from __future__ import annotations

from typing import Any

import pytest

from bco_graph.config import Deployment
from bco_graph.errors import ConfigError
from bco_graph.gateway.library import litellm
from bco_graph.gateway.prices import Price, price_of, price_of_model


def deployment(model: str, **info: Any) -> Deployment:
    return Deployment(model_name="m", litellm_params={"model": model}, model_info=info)


def test_given_prices_win_over_the_model_map() -> None:
    given = price_of(deployment("openai/gpt-4o-mini", input_cost_per_token=1e-3, output_cost_per_token=2e-3))
    assert given is not None
    assert given.usd(prompt_tokens=10, completion_tokens=5) == pytest.approx(0.02, abs=1e-15)


def test_an_unknown_model_has_no_price_and_a_local_one_costs_nothing() -> None:
    assert price_of(deployment("openai/no-such-model")) is None
    assert price_of(deployment("hosted_vllm/gpt-4o-mini")) is None
    local = price_of(deployment("local/smollm2-135m"))
    assert local is not None
    assert local.usd(prompt_tokens=1000, completion_tokens=1000) == 0


@pytest.mark.parametrize(
    "info",
    [
        {"input_cost_per_token": 1e-6},
        {"input_cost_per_token": "1e-6", "output_cost_per_token": 1e-6},
        {"input_cost_per_token": 2.5, "output_cost_per_token": 10.0},
    ],
)
def test_half_a_price_a_text_and_a_price_per_million_are_refused(info: dict[str, Any]) -> None:
    with pytest.raises(ConfigError, match="USD per token"):
        price_of(deployment("openai/x", **info))


def test_cached_written_and_reasoning_tokens_have_their_own_rates_or_the_plain_ones() -> None:
    rates = {"input_cost_per_token": 10.0, "output_cost_per_token": 100.0}
    counts = {
        "prompt_tokens": 10,
        "completion_tokens": 10,
        "cached_tokens": 4,
        "written_tokens": 2,
        "reasoning_tokens": 3,
    }
    assert Price(rates).usd(**counts) == 10 * 10 + 10 * 100
    own = {
        "cache_read_input_token_cost": 1.0,
        "cache_creation_input_token_cost": 12.0,
        "output_cost_per_reasoning_token": 200.0,
    }
    assert Price(rates | own).usd(**counts) == 4 * 10 + 4 * 1 + 2 * 12 + 7 * 100 + 3 * 200


@pytest.mark.parametrize("prompt_tokens", [1000, 150_000, 250_000])
@pytest.mark.parametrize(
    "model",
    ["openai/gpt-4o-mini", "anthropic/claude-sonnet-4-5", "deepseek/deepseek-chat", "gemini/gemini-2.5-pro"],
)
def test_the_sums_are_those_of_litellms_own_calculator(model: str, prompt_tokens: int) -> None:
    provider, name = model.split("/")
    price, cached = price_of_model(model), prompt_tokens * 9 // 10
    assert price is not None
    expected = sum(
        litellm().cost_per_token(
            model=name,
            custom_llm_provider=provider,
            prompt_tokens=prompt_tokens,
            completion_tokens=100,
            cache_read_input_tokens=cached,
        )
    )
    ours = price.usd(prompt_tokens=prompt_tokens, completion_tokens=100, cached_tokens=cached)
    assert ours == pytest.approx(expected, abs=1e-12)
