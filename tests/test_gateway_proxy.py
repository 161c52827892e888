"""A config of litellm's proxy as it is: what is taken, what is taken over, what is left out with a reason."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import yaml

from bco_graph.config import Models, check_config, load_config
from bco_graph.errors import ConfigError, UpstreamUnavailable
from bco_graph.protocols import Caller
from bco_graph.testing import Reply, ScriptedModelServer
from tests.gateway_room import Room, opened, says, text

PROXY = """
model_list:
  - model_name: frozen
    litellm_params: {model: openai/m, api_base: BASE, api_key: os.environ/BCO_TEST_KEY, temperature: 0, rpm: 600}
    model_info: {id: one, mode: chat, input_cost_per_token: 0.001, output_cost_per_token: 0.001, max_input_tokens: 50}
  - model_name: frozen
    litellm_params: {model: openai/m, api_base: BASE, api_key: os.environ/BCO_TEST_KEY, temperature: 0, timeout: 7}
    model_info: {id: two, mode: chat, input_cost_per_token: 0.001, output_cost_per_token: 0.001, max_input_tokens: 50}
  - model_name: spare
    litellm_params: {model: openai/spare, api_base: BASE, api_key: os.environ/BCO_TEST_KEY, max_retries: 5}
    model_info: {input_cost_per_token: 0.002, output_cost_per_token: 0.002}
  - model_name: long
    litellm_params: {model: openai/long, api_base: BASE, api_key: os.environ/BCO_TEST_KEY}
router_settings:
  routing_strategy: simple-shuffle
  num_retries: 1
  timeout: 30
  allowed_fails: 3
  fallbacks: [{frozen: [spare]}]
  context_window_fallbacks: [{frozen: [long]}]
  redis_host: os.environ/REDIS_HOST
litellm_settings:
  drop_params: true
  num_retries: 4
  request_timeout: 30
  callbacks: [langfuse]
  cache: true
  cache_params: {type: redis}
  set_verbose: false
general_settings:
  master_key: sk-1234
  database_url: os.environ/DATABASE_URL
environment_variables:
  LANGFUSE_SECRET_KEY: not-to-be-kept
"""


def proxy(server: ScriptedModelServer) -> dict[str, Any]:
    return dict(yaml.safe_load(PROXY.replace("BASE", server.base_url)))


@pytest.fixture(autouse=True)
def key(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("BCO_TEST_KEY", "a-key-for-tests")


def run_config(**models: Any) -> dict[str, Any]:
    return {"name": "r", "suite": "quickstart", "models": models, "roles": {"target": "frozen"}}


def test_retries_and_time_limits_are_taken_over_as_the_one_layer_and_the_rest_is_left_out_with_a_reason() -> None:
    models = Models.model_validate(yaml.safe_load(PROXY))
    assert (models.retries, models.timeout_s, models.cache) == (1, 30, True)
    assert set(models.router_settings) == {
        "routing_strategy", "allowed_fails", "fallbacks", "context_window_fallbacks",
    }  # fmt: skip
    assert models.litellm_settings == {"drop_params": True}
    assert [line.partition(":")[0] for line in models.ignored] == [
        "general_settings", "environment_variables", "router_settings.redis_host", "litellm_settings.num_retries",
        "litellm_settings.callbacks", "litellm_settings.cache", "litellm_settings.cache_params",
        "litellm_settings.set_verbose", "frozen.litellm_params.timeout", "spare.litellm_params.max_retries",
    ]  # fmt: skip
    assert "models.retries is 1" in models.ignored[3]
    stored = models.model_dump_json()
    assert "sk-1234" not in stored
    assert "not-to-be-kept" not in stored
    assert Models.model_validate(models.model_dump()) == models


def test_what_models_says_itself_wins() -> None:
    models = Models.model_validate({"retries": 0, "timeout_s": 9, **yaml.safe_load(PROXY)})
    assert (models.retries, models.timeout_s) == (0, 9)
    assert any(line.startswith("router_settings.num_retries: models.retries is 0") for line in models.ignored)
    assert any(line.startswith("router_settings.timeout: models.timeout_s is 9") for line in models.ignored)


def test_a_file_of_the_proxy_is_named_beside_bco_yaml_and_its_sections_stand_where_none_is_given(
    tmp_path: Path,
) -> None:
    (tmp_path / "litellm_config.yaml").write_text(PROXY, encoding="utf-8")
    (tmp_path / "bco.yaml").write_text(
        yaml.safe_dump(run_config(file="litellm_config.yaml", retries=5)), encoding="utf-8"
    )
    config = load_config(tmp_path / "bco.yaml")
    assert config.models == Models.model_validate({"retries": 5, **yaml.safe_load(PROXY)})
    assert check_config(config.model_dump(mode="json")).models == config.models


@pytest.mark.parametrize(
    ("content", "told"),
    [
        (None, r"models\.file .*litellm_config.yaml.* cannot be read"),
        ("[1]", "no config of litellm's proxy: it has no model_list"),
        ("model_list: []\nrouter_setings: {}", r"router_setings: unknown key \(did you mean 'router_settings'\?\)"),
        ("model_list: [", "is not YAML"),
    ],
)
def test_a_file_that_cannot_be_used_is_refused_with_the_reason(content: str | None, told: str, tmp_path: Path) -> None:
    if content is not None:
        (tmp_path / "litellm_config.yaml").write_text(content, encoding="utf-8")
    with pytest.raises(ConfigError, match=told):
        check_config(run_config(file="litellm_config.yaml"), base=tmp_path)


def told_about(room: Room, about: str) -> list[str]:
    return [message for subject, message in room.warnings() if subject == about]


def test_a_group_is_balanced_what_is_not_used_is_told_and_one_retry_layer_is_left(tmp_path: Path) -> None:
    with ScriptedModelServer({"m": ["ok", Reply(status=503), "ok"], "spare": [Reply(status=503)]}) as server:
        given = proxy(server)
        entries, rest = given.pop("model_list"), {**given, "retries": 2}
        with opened(tmp_path, *entries, **rest, roles={"target": "frozen"}) as room:
            assert text(room.ask(says("one"))) == "ok"
            assert any("general_settings" in line for line in told_about(room, "models"))
            assert len(server.requests) == 1
            assert text(room.ask(says("two"))) == "ok"
            assert room.calls[-1].attempts == 2
            assert [request.model for request in server.requests] == ["m", "m", "spare", "m"]


def test_a_fallback_answers_is_named_in_the_record_priced_as_itself_and_told_once(tmp_path: Path) -> None:
    with ScriptedModelServer({"m": [Reply(status=500)], "spare": ["from the spare"]}) as server:
        given = proxy(server)
        with opened(tmp_path, *given.pop("model_list"), **given, roles={"target": "frozen"}) as room:
            assert [text(room.ask(says(word))) for word in ("one", "two")] == ["from the spare"] * 2
            assert {(call.deployment, call.model) for call in room.calls} == {("frozen", "openai/spare")}
            assert room.calls[0].usd == pytest.approx(15 * 0.002)
            told = [line for line in told_about(room, "deployment frozen") if "answered in place of" in line]
    assert told == ["openai/spare answered in place of openai/m: the run's model is not one frozen model"]


def test_what_does_not_fit_is_sent_on_to_the_model_with_the_longer_window(tmp_path: Path) -> None:
    overflow = Reply("This model's maximum context length is 50 tokens.", status=400)
    with ScriptedModelServer({"m": [overflow], "long": ["it fits"]}) as server:
        given = proxy(server)
        with opened(tmp_path, *given.pop("model_list"), **given, roles={"target": "frozen"}) as room:
            assert text(room.ask(says("word " * 400))) == "it fits"
            assert room.calls[0].model == "openai/long"


def test_fallbacks_of_one_run_are_not_those_of_the_next_in_the_same_process(tmp_path: Path) -> None:
    with ScriptedModelServer({"m": [Reply(status=500)], "spare": ["from the spare"]}) as server:
        entries = [server.deployment("m", model_info={"lane": "litellm"}), server.deployment("spare")]
        settings = {"fallbacks": [{"m": ["spare"]}], "modify_params": True}
        with opened(tmp_path / "a", *entries, litellm_settings=settings) as room:
            assert text(room.ask(says("hi"))) == "from the spare"
        from bco_graph.gateway.library import litellm

        assert litellm().modify_params is False
        with opened(tmp_path / "b", *entries) as room, pytest.raises(UpstreamUnavailable):
            room.ask(says("hi"))


def test_a_group_of_different_models_may_propose_each_with_its_own_parameters_but_is_no_target(tmp_path: Path) -> None:
    with ScriptedModelServer({"m": ["ok"], "n": ["ok"], "t": ["ok"]}) as server:
        one, two = server.deployment("m", temperature=0.1), server.deployment("n", temperature=0.2)
        group = [{**entry, "model_name": "any"} for entry in (one, two)]
        proposer = Caller("proposer", step="propose")
        with opened(tmp_path / "a", server.deployment("t"), *group, roles={"proposer": "any"}) as room:
            for number in range(16):
                room.ask(says(f"question {number}"), proposer)
        sent = {(request.model, request.body.get("temperature")) for request in server.requests}
        assert sent == {("m", 0.1), ("n", 0.2)}
        with pytest.raises(ConfigError, match="one frozen model"), opened(tmp_path / "b", *group):
            pass
