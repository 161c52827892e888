"""Settings and commands: strict types, options that do what they say, exit codes that tell the truth."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import sysconfig
from pathlib import Path
from typing import Any

import pytest
from click import Choice

from bco_graph.cli import main
from bco_graph.testing import Reply
from tests.faults.play import (
    BARE,
    PROPOSER,
    SOLVES_SHORT,
    TARGET,
    Act,
    When,
    bco,
    bco_process,
    digest,
    models,
    raw_config,
    step_of,
    submit,
    write_config,
)
from tests.toy import answer


def failing(step: str) -> dict[When, list[Act]]:
    """A proposer's model that only talks, so that a run of any method ends after its baseline."""
    return {(n, step): ["No."] for n in range(4)}


# -- types -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "setting",
    [
        "models.cache='false'", "models.cache=0", "models.retries='2'", "models.retries=2.0", "models.retries=true",
        "models.timeout_s=1e-3", "evaluation.repeats=1_0.5", "budget.calls='1_000'", "budget.tokens=0",
        "evaluation.coverage_floor=1.5", "budget.usd=.inf", "iterations=-1",
    ],
)  # fmt: skip
def test_a_value_of_another_type_or_out_of_range_is_refused_by_name_and_never_read_as_something_else(
    tmp_path: Path, setting: str
) -> None:
    """Text is neither a flag nor a number, also where YAML makes text of what was meant as one."""
    with models() as server:
        write_config(tmp_path, server)
        said = bco(tmp_path, "run", "bco.yaml", "--set", setting, code=2)
        assert server.requests == []
    assert setting.partition("=")[0] in said.text
    assert not (tmp_path / "runs/toy/run.json").exists()


def test_numbers_and_flags_as_yaml_writes_them_are_taken_and_stand_in_the_manifest(tmp_path: Path) -> None:
    with models(failing("propose")) as server:
        write_config(tmp_path, server, iterations=0)
        settings = ["models.cache=false", "budget.tokens=1_000_000", "models.timeout_s=1.0e+2", "budget.usd=null"]
        bco(tmp_path, "run", "bco.yaml", "--no-preflight", *(part for s in settings for part in ("--set", s)))
    config = json.loads((tmp_path / "runs/toy/run.json").read_text(encoding="utf-8"))["config"]
    assert (config["models"]["cache"], config["models"]["timeout_s"]) == (False, 100.0)
    assert (config["budget"]["tokens"], config["budget"]["usd"]) == (1_000_000, None)


def test_a_parameter_that_the_endpoint_refuses_is_left_out_on_record_and_said_once(tmp_path: Path) -> None:
    """With dropping allowed; a call still ends at its time limit, although the library knows a setting for that too."""

    def picky(body: dict[str, Any]) -> Reply:
        if "temperature" in body:
            return Reply("Unsupported parameter: 'temperature'", status=400)
        return Reply(hang=True) if "fig" in str(body["messages"]) else answer(body)

    with models(target=picky) as server:
        write_config(
            tmp_path, server, iterations=0,
            models={"litellm_settings": {"drop_params": True, "request_timeout": 1.0, "set_verbose": True}},
        )  # fmt: skip
        said = bco(tmp_path, "run", "bco.yaml", "--no-preflight")
    assert said.text.count("temperature: asked was 0, it was left out") == 1
    assert said.text.count("not used: litellm_settings.set_verbose") == 1
    status = bco(tmp_path, "status", "runs/toy", "--json").json
    assert status["baseline"]["train"]["coverage"] == 7 / 8
    trace = json.loads((tmp_path / "runs/toy/iterations/iter_000/traces/toy-train-1.json").read_text(encoding="utf-8"))
    assert trace["calls"][-1]["pinned"]["temperature"] == {"asked": 0, "by": "litellm_settings.drop_params"}
    assert "temperature" not in trace["calls"][-1]["request"]


# -- options ---------------------------------------------------------------------------------------------------

CHOICES = [
    (command.name, option.opts[0], choice)
    for command in main.commands.values()
    if command.name != "believe"
    for option in command.params
    if isinstance(option.type, Choice)
    for choice in option.type.choices
]
"""`believe` needs a run that has beliefs: its choices are tried with the rest of what people may do to beliefs."""


@pytest.mark.parametrize(("command", "option", "choice"), CHOICES)
def test_every_choice_that_the_help_lists_is_taken_and_seen_in_what_is_made(
    tmp_path: Path, command: str, option: str, choice: str
) -> None:
    with models() as server:
        if command == "init":
            bco(tmp_path, "init", option, choice)
            assert f"{option.removeprefix('--')}: {choice} " in (tmp_path / "bco.yaml").read_text(encoding="utf-8")
            return
        write_config(tmp_path, server, iterations=0)
        bco(tmp_path, command, "bco.yaml", "--no-preflight", option, choice)
        assert bco(tmp_path, "status", "runs/toy", "--json").json["method"] == choice


def test_each_flag_that_names_a_model_reaches_that_model_and_no_other(tmp_path: Path) -> None:
    with models() as server:
        server.script("other-target", answer)
        server.script("other-proposer", lambda body: "No.")
        listed = raw_config(tmp_path, server)["models"]["model_list"]
        listed += [
            {**server.deployment(f"other-{role}", temperature=0), "model_name": f"other-{role}"}
            for role in ("target", "proposer")
        ]
        write_config(tmp_path, server, max_failures=1, models={"model_list": listed})
        flags = ["--target", "other-target", "--proposer", "other-proposer"]
        bco(tmp_path, "run", "bco.yaml", "--no-preflight", *flags, code=1)
        asked = {request.model for request in server.requests}
        said = bco(tmp_path, "run", "bco.yaml", "--name", "b", "--target", "other-targt", code=2)
    assert asked == {"other-target", "other-proposer"}
    assert "did you mean 'other-target'" in said.text


def test_a_proposer_of_an_unknown_kind_is_refused_and_nobody_else_proposes(tmp_path: Path) -> None:
    with models() as server:
        write_config(tmp_path, server)
        said = bco(tmp_path, "run", "bco.yaml", "--set", "proposer.kind=agnt", code=2)
        assert server.requests == []
    assert "did you mean 'agent'" in said.text


# -- exit codes ------------------------------------------------------------------------------------------------


def test_a_run_without_one_real_result_fails_in_every_word_also_as_json(tmp_path: Path) -> None:
    with models(target=lambda body: Reply("overloaded", status=503)) as server:
        write_config(tmp_path, server)
        said = bco_process(tmp_path, "run", "bco.yaml", "--no-preflight", "--json", code=1)
        status = bco(tmp_path, "status", "runs/toy", "--json").json
    facts = said.json
    assert facts["error"] == "RunError"
    assert "no real result on any of its 8 tasks" in facts["message"]
    assert "503" in facts["message"]
    assert (status["state"], status["best"]) == ("failed", None)


def test_a_second_start_changes_nothing_and_names_the_three_ways_on(tmp_path: Path) -> None:
    with models({(1, "propose"): [[*SOLVES_SHORT, *submit(BARE)]]}) as server:
        write_config(tmp_path, server)
        bco(tmp_path, "run", "bco.yaml", "--no-preflight")
        before, asked = digest(tmp_path / "runs"), len(server.requests)
        said = bco(tmp_path, "run", "bco.yaml", code=1)
        assert len(server.requests) == asked
    for way in ("bco resume", "--name", "--overwrite"):
        assert way in said.text
    assert digest(tmp_path / "runs") == before


def test_a_resume_with_other_settings_shows_what_differs_and_keeps_the_run(tmp_path: Path) -> None:
    with models(failing("propose")) as server:
        write_config(tmp_path, server, iterations=0)
        bco(tmp_path, "run", "bco.yaml", "--no-preflight")
        before, asked = digest(tmp_path / "runs"), len(server.requests)
        said = bco(
            tmp_path, "resume", "runs/toy", "--set", "evaluation.repeats=2", "--set", "method=notes", code=1
        )  # fmt: skip
        assert len(server.requests) == asked
    assert 'method: the run has "vanilla", now asked is "notes"' in said.text
    assert "repeats: the run has 1, now asked is 2" in said.text
    assert "--name NAME" in said.text
    after = digest(tmp_path / "runs")
    assert {name for name in before | after if before.get(name) != after.get(name) and "sqlite-" not in name} == set()


NO_KEY = {"api_key": "os.environ/KEY_THAT_IS_NOT_SET"}


@pytest.mark.parametrize("role", ["target", "proposer"])
@pytest.mark.parametrize("fault", ["no key", "a wrong key", "an unknown model"])
def test_a_role_that_cannot_work_ends_the_start_at_once_and_is_named(tmp_path: Path, role: str, fault: str) -> None:
    """One request for each role at most, no retry, nothing scored, and no run left in the way of the next try."""
    name = {"target": TARGET, "proposer": PROPOSER}[role]
    with models() as server:
        listed = raw_config(tmp_path, server)["models"]["model_list"]
        params = listed[role == "proposer"]["litellm_params"]
        if fault == "no key":
            params |= NO_KEY
        elif fault == "a wrong key":
            server.script(name, lambda body: Reply("no such key", status=401))
        else:
            params["model"] = "openai/no-such-model"
        write_config(tmp_path, server, models={"model_list": listed, "retries": 3})
        said = bco(tmp_path, "run", "bco.yaml", code=None)
        asked = [request.model for request in server.requests]
    assert said.code in (1, 2)
    assert role in said.text
    if fault == "no key":
        assert "KEY_THAT_IS_NOT_SET" in said.text
    assert max((asked.count(model) for model in asked), default=0) <= 1
    assert all(step_of(request.body) is None for request in server.requests)
    assert not (tmp_path / "runs/toy/run.json").exists()


def test_an_optional_package_that_is_not_there_is_named_with_how_to_install_it(tmp_path: Path) -> None:
    """In an environment without the library of in-process models: an error, and no other model in its place."""
    packages = tmp_path / "packages"
    packages.mkdir()
    for path in Path(sysconfig.get_path("purelib")).iterdir():
        if not path.name.startswith("llama_cpp"):
            (packages / path.name).symlink_to(path)
    with models() as server:
        listed = [{"model_name": "toy", "litellm_params": {"model": "local/smollm2-135m"}}]
        write_config(tmp_path, server, models={"model_list": listed}, roles={"proposer": None},
                     proposer={"kind": "handoff"})  # fmt: skip
        root = Path(__file__).parents[2]
        done = subprocess.run(
            [sys.executable, "-S", "-c", "from bco_graph.cli import main; main()", "run", "bco.yaml"],
            cwd=tmp_path, env={**os.environ, "PYTHONPATH": f"{root}{os.pathsep}{packages}"}, capture_output=True,
            text=True, check=False,
        )  # fmt: skip
        assert server.requests == []
    assert done.returncode == 2, done.stderr
    assert "needs the extra 'local': pip install 'bco-graph[local]'" in " ".join(done.stderr.split())
    assert not (tmp_path / "runs/toy/run.json").exists()
