"""bco.yaml: strict, with errors that say where, what is known and what is near."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import yaml

from bco_graph.config import RunConfig, check_config, load_config, parse_settings, with_overrides
from bco_graph.errors import ConfigError
from bco_graph.starting import write_config


def raw(**changes: Any) -> dict[str, Any]:
    return {
        "name": "r",
        "suite": "quickstart",
        "models": {"model_list": [{"model_name": "m", "litellm_params": {"model": "openai/m"}}]},
        "roles": {"target": "m"},
        **changes,
    }


def refusal(**changes: Any) -> str:
    with pytest.raises(ConfigError) as caught:
        check_config(raw(**changes), source="bco.yaml")
    return str(caught.value)


def test_a_minimal_config_is_complete() -> None:
    config = check_config(raw())
    assert config.method == "bco"
    assert config.evaluation.repeats == 1
    assert config.run_dir == Path("runs/r")


def test_a_misspelt_key_is_refused_with_the_nearest_name_and_all_known_ones() -> None:
    message = refusal(iteration=3)
    assert "iteration: unknown key (did you mean 'iterations'?)" in message
    assert "max_failures" in message


def test_a_misspelt_key_deep_inside_names_its_path_and_its_section_s_keys() -> None:
    message = refusal(evaluation={"repeat": 2})
    assert "evaluation.repeat: unknown key (did you mean 'repeats'?)" in message
    assert "coverage_floor" in message
    assert "max_failures" not in message


def test_a_misspelt_key_in_a_deployment_names_its_place_in_the_list() -> None:
    models = {"model_list": [{"model_name": "m", "litellm_params": {"model": "openai/m"}, "model_inf": {}}]}
    assert "models.model_list.0.model_inf: unknown key (did you mean 'model_info'?)" in refusal(models=models)


@pytest.mark.parametrize("value", ["3", True, 2.5, None, -1])
def test_a_number_must_be_one(value: Any) -> None:
    assert "iterations" in refusal(iterations=value)


@pytest.mark.parametrize("value", ["false", 1, "yes"])
def test_a_flag_must_be_true_or_false(value: Any) -> None:
    assert "models.cache" in refusal(models={**raw()["models"], "cache": value})


def test_a_role_must_name_a_deployment_and_the_message_says_which_there_are() -> None:
    message = refusal(roles={"target": "n"})
    assert "roles.target names the deployment 'n'" in message
    assert "available: m" in message


def test_all_problems_are_said_at_once() -> None:
    message = refusal(iterations="x", grading="mine", surplus=1)
    assert "3 problem(s)" in message


@pytest.mark.parametrize(("text", "expected"), [("- a\n", "no mapping"), ("a: [", "not YAML"), ("", "no mapping")])
def test_a_file_that_is_no_mapping_is_refused_by_name(tmp_path: Path, text: str, expected: str) -> None:
    path = tmp_path / "bco.yaml"
    path.write_text(text, encoding="utf-8")
    with pytest.raises(ConfigError, match=expected) as caught:
        load_config(path)
    assert str(path) in str(caught.value)


def test_a_missing_file_says_what_writes_one(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="bco init"):
        load_config(tmp_path / "none.yaml")


def test_paths_start_at_the_config_s_folder_and_overrides_win(tmp_path: Path) -> None:
    path = tmp_path / "bco.yaml"
    given = raw(scaffold="mine", proposer={"kind": "replay", "recording": "rec"})
    path.write_text(yaml.safe_dump(given), encoding="utf-8")
    config = load_config(path, overrides={"iterations": 2, "proposer.max_refusals": 1})
    assert config.scaffold == str(tmp_path / "mine")
    assert config.proposer.recording == str(tmp_path / "rec")
    assert config.base == str(tmp_path)
    assert (config.iterations, config.proposer.max_refusals) == (2, 1)


def test_a_config_survives_its_json_form() -> None:
    config = check_config(raw())
    assert RunConfig.model_validate(config.model_dump(mode="json")) == config


@pytest.mark.parametrize("method", ["bco", "vanilla", "notes"])
def test_init_writes_a_config_that_loads(tmp_path: Path, method: str) -> None:
    path = write_config(tmp_path / "bco.yaml", suite="quickstart", folder=None, method=method)
    assert load_config(path).method == method


def test_init_from_a_folder_points_at_it(tmp_path: Path) -> None:
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "agent.py").write_text("async def solve(task, target): ...\n", encoding="utf-8")
    config = load_config(write_config(tmp_path / "bco.yaml", suite=None, folder=tmp_path / "mine", method="bco"))
    assert config.suite == "jsonl"
    assert config.suite_options["scaffold"] == "mine"


def test_init_never_replaces_a_file(tmp_path: Path) -> None:
    path = tmp_path / "bco.yaml"
    path.write_text("mine\n", encoding="utf-8")
    with pytest.raises(ConfigError, match="there already"):
        write_config(path, suite="quickstart", folder=None, method="bco")
    assert path.read_text(encoding="utf-8") == "mine\n"


def test_init_of_an_unknown_suite_says_which_there_are(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"did you mean 'quickstart'.*installed: jsonl, quickstart"):
        write_config(tmp_path / "bco.yaml", suite="quickstrat", folder=None, method="bco")


def test_settings_are_yaml_values_of_dotted_keys_and_checked_like_the_file() -> None:
    parsed = parse_settings(["iterations=3", "budget.tokens=null", "models.cache=false", "name = x"])
    assert parsed == {"iterations": 3, "budget.tokens": None, "models.cache": False, "name": "x"}
    given = raw(budget={"tokens": 5})
    config = check_config(with_overrides(given, parsed))
    assert (config.iterations, config.budget.tokens, config.models.cache, config.name) == (3, None, False, "x")
    assert given["budget"] == {"tokens": 5}
    with pytest.raises(ConfigError, match=r"budget\.token: unknown key \(did you mean 'tokens'"):
        check_config(with_overrides(given, parse_settings(["budget.token=1"])))


@pytest.mark.parametrize("setting", ["iterations", "=3", "budget.tokens=[", "name.x=1"])
def test_what_is_no_setting_is_refused(setting: str) -> None:
    with pytest.raises(ConfigError, match=r"no setting|not YAML|cannot be set"):
        check_config(with_overrides(raw(), parse_settings([setting])))


def test_a_config_in_code_that_is_nested_too_deeply_is_refused() -> None:
    deep: Any = 0
    for _ in range(300):
        deep = {"a": deep}
    with pytest.raises(ConfigError, match="100 lists and mappings, or more, lie within one another"):
        check_config(raw(suite_options=deep))
