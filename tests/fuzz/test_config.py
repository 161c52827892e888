"""bco.yaml, `--set` and litellm's own format: refused with the key, or a config that the run folder can hold."""

from __future__ import annotations

import json
import tempfile
from pathlib import Path
from typing import Any

import yaml
from hypothesis import example, given
from hypothesis import strategies as st

from bco_graph.config import RunConfig, check_config, load_config, parse_settings
from bco_graph.errors import ConfigError
from bco_graph.gateway.deployments import resolve
from bco_graph.gateway.prices import price_of
from bco_graph.receipts import dumps
from bco_graph.state import JSON
from tests.fuzz.strategies import FUZZ, anything, as_text, broken, broken_bytes, broken_text, refused_or, texts

CONFIG: JSON = {
    "name": "first", "method": "bco", "iterations": 3, "suite": "quickstart", "suite_options": {"a": [1, {"b": None}]},
    "models": {
        "model_list": [
            {"model_name": "small", "litellm_params": {"model": "openai/m", "api_base": "http://x/v1",
             "api_key": "os.environ/FUZZ_KEY", "temperature": 0, "extra_headers": {"X": "os.environ/FUZZ_KEY"}},
             "model_info": {"input_cost_per_token": 1e-6, "output_cost_per_token": 2e-6, "lane": "forward"}},
            {"model_name": "large", "litellm_params": {"model": "anthropic/m", "max_tokens": 9}},
        ],
        "router_settings": {"routing_strategy": "simple-shuffle"}, "litellm_settings": {"drop_params": True},
        "retries": 2, "timeout_s": 60.0,
    },
    "roles": {"target": "small", "proposer": "large"},
    "proposer": {"kind": "command", "command": ["claude", "{prompt}"], "environment": ["HOME"]},
    "evaluation": {"repeats": 1, "timeout_s": 5.0, "coverage_floor": 0.9, "train": None},
    "budget": {"usd": 1.5, "tokens": 1000},
    "world_model": {"token_budget": 6000},
}  # fmt: skip
YAML = yaml.safe_dump(CONFIG, sort_keys=False)


def loaded(content: bytes, settings: Any = ()) -> RunConfig:
    with tempfile.TemporaryDirectory(prefix="bco-fuzz-") as folder:
        path = Path(folder) / "bco.yaml"
        path.write_bytes(content)
        return load_config(path, overrides=parse_settings(settings))


def holds(config: RunConfig) -> None:
    """The run folder takes the config and gives it back."""
    text = dumps(config.model_dump(mode="json"))
    text.encode("utf-8")
    assert check_config(json.loads(text)) == config


files = st.one_of(
    broken(CONFIG).map(lambda value: as_text(value).encode()),
    broken_text(YAML).map(lambda text: text.encode("utf-8", "surrogatepass")),
    broken_bytes(YAML.encode()),
)


@FUZZ
@given(files)
@example(b"\xff\xfe")
@example(b"a: 2001-99-99")
@example(b"a: 0b_")
@example(b"[" * 3000)
@example(b"a: &x [*x]")
@example(YAML.replace("quickstart", '"\\ud800"').encode())
@example(YAML.replace("timeout_s: 60.0", "timeout_s: .inf").encode())
@example(YAML.replace("a:", "2020-01-01:").encode())
@example(YAML.replace("- 1\n", "- !!binary gA==\n").encode())
def test_a_config_of_any_bytes_is_refused_or_can_be_kept(content: bytes) -> None:
    config = refused_or(ConfigError, lambda: loaded(content))
    if config is not None:
        holds(config)


@FUZZ
@given(st.lists(st.one_of(broken_text("budget.tokens=1000"), st.builds("{}={}".format, texts, texts)), max_size=3))
@example(["suite_options.a.b.c=1", "suite_options.a=.nan"])
@example(["suite_options.since=2001-01-01"])
@example(["=1"])
def test_any_setting_is_refused_or_makes_a_config_that_can_be_kept(settings: list[str]) -> None:
    config = refused_or(ConfigError, lambda: loaded(YAML.encode(), settings))
    if config is not None:
        holds(config)


def test_the_whole_example_is_taken() -> None:
    holds(loaded(YAML.encode(), ["budget.tokens=7"]))


@FUZZ
@given(broken(CONFIG["models"]), st.sampled_from([{}, {"FUZZ_KEY": "k" * 20}]))
@example({"model_list": [{"model_name": "small", "litellm_params": {"model": "openai/m", "api_base": 5}}]}, {})
@example({"model_list": [{"model_name": "small", "litellm_params": {"model": "openai/m", "api_base": "http://["}}]}, {})
@example({"model_list": [{"model_name": "small", "litellm_params": {"model": "openai/m", "api_base": " "}}]}, {})
@example({"model_list": [{"model_name": "small", "litellm_params": {"model": "openai/m", "extra_headers": 5}}]}, {})
@example({"model_list": [{"model_name": "small", "litellm_params": {"model": "x/m", "additional_drop_params": 5}}]}, {})
def test_deployments_of_any_shape_are_refused_or_reached(models: JSON, environ: dict[str, str]) -> None:
    raw = {**CONFIG, "models": models, "roles": {"target": "small"}}
    config = refused_or(ConfigError, lambda: check_config(raw))
    fleet = config and refused_or(ConfigError, lambda: resolve(config.models, config.roles, environ))
    if not fleet:
        return
    for deployed in fleet.roles.values():
        assert deployed.host
        refused_or(ConfigError, lambda deployed=deployed: price_of(deployed.source))  # type: ignore[misc]
        assert not any(value in repr(deployed) for value in environ.values())


@FUZZ
@given(st.dictionaries(st.sampled_from([*CONFIG, "x", "models.x"]), anything))
def test_a_plain_mapping_of_any_shape_is_refused_by_key(raw: dict[str, Any]) -> None:
    refused_or(ConfigError, lambda: check_config(raw))
