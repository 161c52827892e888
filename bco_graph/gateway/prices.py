"""What a call costs, in USD: the prices given in `model_info`, else those of litellm's model map.

The map is read as the data file that litellm ships, which takes 25 ms where importing litellm takes 5 s; the tests
hold the sums against litellm's own calculator. A model that neither names has no price, which is not a price of 0.
"""

from __future__ import annotations

import functools
import importlib.util
import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from bco_graph.config import Deployment
from bco_graph.errors import ConfigError
from bco_graph.gateway.replies import Usage
from bco_graph.state import JSON

_MAP_FILE = "model_prices_and_context_window_backup.json"
_TIER = re.compile(r"_above_(\d+)k_tokens$")


@dataclass(frozen=True)
class Price:
    """Rates as litellm names them, in USD per token; `rates` holds at least input and output."""

    rates: Mapping[str, float]

    def usd(
        self,
        *,
        prompt_tokens: int,
        completion_tokens: int,
        cached_tokens: int = 0,
        written_tokens: int = 0,
        reasoning_tokens: int = 0,
    ) -> float:
        """`cached_tokens` (read from the provider's cache) and `written_tokens` (written to it) are part of the
        prompt's, `reasoning_tokens` of the completion's; each falls back to the plain rate."""
        plain = self._rate("input_cost_per_token", prompt_tokens)
        answer = self._rate("output_cost_per_token", prompt_tokens)
        return (
            max(0, prompt_tokens - cached_tokens - written_tokens) * plain
            + cached_tokens * self._rate("cache_read_input_token_cost", prompt_tokens, plain)
            + written_tokens * self._rate("cache_creation_input_token_cost", prompt_tokens, plain)
            + (completion_tokens - reasoning_tokens) * answer
            + reasoning_tokens * self._rate("output_cost_per_reasoning_token", prompt_tokens, answer)
        )

    def of(self, usage: Usage) -> float:
        """USD of one call's usage."""
        return self.usd(
            prompt_tokens=usage.prompt,
            completion_tokens=usage.completion,
            cached_tokens=usage.cached,
            written_tokens=usage.written,
            reasoning_tokens=usage.reasoning,
        )

    def _rate(self, name: str, prompt_tokens: int, otherwise: float = 0.0) -> float:
        """The rate of the highest tier (`..._above_200k_tokens`) that the prompt has reached."""
        reached, rate = 0, self.rates.get(name, otherwise)
        for key, value in self.rates.items():
            tier = _TIER.search(key)
            if tier and key[: tier.start()] == name and reached < int(tier[1]) * 1000 < prompt_tokens:
                reached, rate = int(tier[1]) * 1000, value
        return rate


def price_of(deployment: Deployment) -> Price | None:
    """The deployment's price, or None where nobody names one. Models that run in this process cost 0."""
    given = {**deployment.litellm_params, **deployment.model_info}
    if "input_cost_per_token" in given or "output_cost_per_token" in given:
        return Price(_rates(given, f"the prices of deployment {deployment.model_name!r}"))
    model = str(deployment.litellm_params["model"])
    if model.startswith("local/"):
        return Price({"input_cost_per_token": 0.0, "output_cost_per_token": 0.0})
    return price_of_model(model)


def price_of_model(model: str) -> Price | None:
    """The price that litellm's model map has for `provider/model`."""
    known = known_model(model)
    if "input_cost_per_token" not in known or "output_cost_per_token" not in known:
        return None
    return Price(_rates(known, f"litellm's model map for {model!r}"))


def known_model(model: str) -> Mapping[str, JSON]:
    """litellm's description of `provider/model`: prices, window, abilities; empty where it has none."""
    provider, _, name = model.partition("/")
    models = _model_map()
    found = models.get(model)
    if found is None and models.get(name, {}).get("litellm_provider") == provider:
        found = models[name]
    return found or {}


@functools.cache
def _model_map() -> Mapping[str, Mapping[str, JSON]]:
    spec = importlib.util.find_spec("litellm")
    folder = Path(spec.origin).parent if spec and spec.origin else Path()
    try:
        with (folder / _MAP_FILE).open(encoding="utf-8") as file:
            return dict(json.load(file))
    except OSError:
        from bco_graph.gateway.library import litellm

        return dict(litellm().model_cost)


def _rates(given: Mapping[str, JSON], source: str) -> dict[str, float]:
    names = ("input_cost_per_token", "output_cost_per_token")
    rates = {
        key: value
        for key, value in given.items()
        if isinstance(value, int | float) and not isinstance(value, bool) and ("_token" in key and "cost" in key)
    }
    for name in names:
        if name not in rates or not 0 <= rates[name] < 1:
            raise ConfigError(
                f"{source}: {name} is {given.get(name)!r}; expected USD per token, in [0, 1), such as 0.0000015 "
                "(YAML reads 1.5e-6 as a number, but 1e-6 as text), and both input and output"
            )
    return rates
