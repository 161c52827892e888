"""The command line as a person meets it: real processes, real exit codes, a run driven by hand from end to end."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest
import yaml

from bco_graph.testing import Reply, ScriptedModelServer
from tests.toy import GRADE, PREDICT, PROPOSE, SHORT, answer, prompt_edit

BCO = [str(Path(sys.executable).parent / "bco")]
TOY = Path(__file__).with_name("toy.py")


def write_config(folder: Path, server: ScriptedModelServer, **changes: Any) -> Path:
    params = {"model": "openai/toy-model", "api_base": server.base_url, "api_key": "none"}
    config = {
        "name": "toy",
        "suite": f"{TOY}:ToySuite",
        "suite_options": {"scaffold": str(folder / "initial")},
        "iterations": 1,
        "models": {"model_list": [{"model_name": "toy", "litellm_params": params}], "retries": 0},
        "roles": {"target": "toy"},
        "proposer": {"kind": "handoff"},
        **changes,
    }
    path = folder / "bco.yaml"
    path.write_text(yaml.safe_dump(config), encoding="utf-8")
    return path


def bco(folder: Path, *args: str, code: int = 0) -> str:
    done = subprocess.run([*BCO, *args], cwd=folder, capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == code, done.stdout + done.stderr
    assert "Traceback" not in done.stderr
    return done.stdout + done.stderr


def hand_in(folder: Path, submission: dict[str, Any], *, code: int = 0) -> dict[str, Any]:
    path = folder / "runs/toy/workspace/submission.json"
    path.write_text(json.dumps(submission), encoding="utf-8")
    return dict(json.loads(bco(folder, "submit", "runs/toy", "--json", code=code)))


def first_beliefs(path: str) -> dict[str, Any]:
    op = {"op": "add", "kind": "execution", "claim": "It says too much.", "confidence": "60%", "status": "hypothesis",
          "evidence_for": [{"path": path}], "mass": 8, "reason": "all of them"}  # fmt: skip
    return {"ops": [op]}


@pytest.mark.parametrize(
    ("proposer", "code", "said"),
    [
        ({"kind": "command", "command": ["sh", "{prompt}"]}, 0, ("proposer command", "/sh,", "the gateway alone")),
        ({"kind": "command", "command": ["sh"], "sandbox": "off"}, 0, ("not confined",)),
        ({"kind": "command", "command": ["no-such-cli"]}, 1, ("'no-such-cli', which is not on PATH",)),
        ({"kind": "command", "command": ["sh"], "environment": ["NO_SUCH_KEY"]}, 1, ("'NO_SUCH_KEY'",)),
        ({"kind": "replay", "recording": "none"}, 1, ("is no folder",)),
        ({"kind": "nobody"}, 1, ("'nobody' is unknown",)),
    ],
)
def test_the_doctor_says_who_proposes_and_what_is_lacking(
    tmp_path: Path, server: ScriptedModelServer, proposer: dict[str, Any], code: int, said: tuple[str, ...]
) -> None:
    write_config(tmp_path, server, proposer=proposer)
    checks = json.loads(bco(tmp_path, "doctor", "bco.yaml", "--json", code=code))["checks"]
    (found,) = [check for check in checks if check["what"].startswith("proposer ")]
    assert found["ok"] == (code == 0)
    assert all(part in f"{found['what']} {found['found']}" for part in said)


def test_a_run_by_hand_from_the_first_command_to_the_exported_scaffold(
    tmp_path: Path, server: ScriptedModelServer
) -> None:
    write_config(tmp_path, server)
    assert "8 train and 4 held-out" in bco(tmp_path, "doctor", "bco.yaml")
    assert json.loads(bco(tmp_path, "estimate", "bco.yaml", "--json"))["task_runs"] == 16
    started = json.loads(bco(tmp_path, "run", "bco.yaml", "--json"))
    assert (started["awaited"]["step"], started["awaited"]["iteration"]) == ("update", 0)
    assert "waits for step update" in bco(tmp_path, "step", "runs/toy")

    refused = hand_in(tmp_path, first_beliefs("iterations/iter_000/traces/none.json"), code=1)
    assert "does not exist" in refused["awaited"]["refused"][0]
    trace = "iterations/iter_000/traces/toy-train-0.json"
    assert hand_in(tmp_path, first_beliefs(trace))["awaited"]["step"] == "propose"
    prompt_edit(SHORT, "asked-alone")(tmp_path / "runs/toy/workspace/scaffold")
    assert hand_in(tmp_path, PROPOSE)["awaited"]["step"] == "predict"
    assert hand_in(tmp_path, PREDICT)["awaited"]["step"] == "grade"
    assert hand_in(tmp_path, GRADE)["awaited"]["step"] == "update"
    assert hand_in(tmp_path, {"ops": []})["stop"] == "iterations"

    status = json.loads(bco(tmp_path, "status", "runs/toy", "--json"))
    assert (status["state"], status["best"]["id"], status["claim"]) == ("finished", "iter_001", "fit score")
    measured = json.loads(bco(tmp_path, "heldout", "runs/toy", "--json"))
    assert [(row["candidate"], row["heldout"]) for row in measured["candidates"]] == [
        ("iter_000", 0.0), ("iter_001", 0.5)
    ]  # fmt: skip
    assert "held" in bco(tmp_path, "show", "runs/toy", "iter_001")
    assert "ok  computed grades" in bco(tmp_path, "verify", "runs/toy")
    assert "did you mean" in bco(tmp_path, "show", "runs/toy", "iter_00", code=2)
    assert "+Reply with only the word." in bco(tmp_path, "diff", "runs/toy", "iter_000", "iter_001")
    bco(tmp_path, "export", "runs/toy", "best")
    assert (tmp_path / "best" / "prompt.md").read_text(encoding="utf-8") == SHORT
    assert "waits for nothing" in bco(tmp_path, "step", "runs/toy")

    # A recording of it, replayed by another run: the same scores, without a person and without a call.
    bco(tmp_path, "export", "runs/toy", "recorded", "--recording")
    calls = len(server.requests)
    write_config(tmp_path, server, name="again", proposer={"kind": "replay", "recording": "recorded"})
    again = json.loads(bco(tmp_path, "run", "bco.yaml", "--baseline", "runs/toy", "--json"))
    assert [c["mean"] for c in again["candidates"]] == [0.0, 0.5]
    assert len(server.requests) == calls + 1 + 8  # one is the preflight


def test_starting_twice_is_refused_with_the_ways_on(tmp_path: Path, server: ScriptedModelServer) -> None:
    write_config(tmp_path, server, method="vanilla", iterations=0)
    bco(tmp_path, "run", "bco.yaml")
    said = bco(tmp_path, "run", "bco.yaml", code=1)
    assert "bco resume" in said
    assert "--overwrite" in said
    bco(tmp_path, "run", "bco.yaml", "--overwrite")


def test_json_mode_prints_one_object_on_failure_too(tmp_path: Path) -> None:
    facts = json.loads(bco(tmp_path, "run", "none.yaml", "--json", code=2))
    assert facts["error"] == "ConfigError"
    assert "none.yaml" in facts["message"]


def test_a_dead_endpoint_ends_the_run_with_a_cause_and_scores_nothing(
    tmp_path: Path, server: ScriptedModelServer
) -> None:
    server.script("toy-model", lambda body: Reply("overloaded", status=503))
    write_config(tmp_path, server)
    assert "no real result" in bco(tmp_path, "run", "bco.yaml", "--no-preflight", code=1)
    server.script("toy-model", answer)
    assert "waits for step update" in bco(tmp_path, "resume", "runs/toy")


def test_a_wrong_key_is_asked_once_and_named(tmp_path: Path, server: ScriptedModelServer) -> None:
    server.script("toy-model", lambda body: Reply("no such key", status=401))
    write_config(tmp_path, server)
    said = bco(tmp_path, "doctor", "bco.yaml", code=1)
    assert "role target (toy)" in said.replace("\n", " ")
    assert len(server.requests) == 1


def slow(body: dict[str, Any]) -> Reply:
    return Reply(answer(body).text, delay_s=0.3)


@pytest.mark.parametrize(
    ("signals", "code", "calls"),
    [
        ([signal.SIGINT], 130, 8),
        ([signal.SIGTERM, signal.SIGTERM], 130, 8),
        ([signal.SIGTERM], 143, 9),
        ([signal.SIGKILL], -9, 8),
    ],
)
def test_a_stopped_run_says_how_to_go_on_and_pays_nothing_twice(
    tmp_path: Path, server: ScriptedModelServer, signals: list[signal.Signals], code: int, calls: int
) -> None:
    """The first SIGTERM lets the node under way end, so all eight calls of the baseline are made."""
    server.script("toy-model", slow)
    write_config(tmp_path, server, method="vanilla", iterations=1, evaluation={"concurrency": 2})
    process = subprocess.Popen(
        [*BCO, "run", "bco.yaml"], cwd=tmp_path, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
        # A shell has what it starts in the background ignore Ctrl-C.
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),
    )  # fmt: skip
    while len(server.requests) < 5:
        time.sleep(0.02)
    for number in signals:
        process.send_signal(number)
        time.sleep(0.1)
    said, _ = process.communicate(timeout=30)
    assert process.returncode == code, said
    assert len(server.requests) <= calls
    if code > 0:
        assert "bco resume runs/toy" in said
    left = subprocess.run(["pgrep", "-f", str(tmp_path)], capture_output=True, text=True, check=False)
    assert left.stdout == ""
    facts = json.loads(bco(tmp_path, "resume", "runs/toy", "--json"))
    assert facts["candidates"][0]["coverage"] == 1.0
    assert len(server.requests) <= 9 + (0 if code == 143 else 2)


def test_a_run_that_sigterm_drained_says_so_in_its_status_and_its_log(
    tmp_path: Path, server: ScriptedModelServer
) -> None:
    server.script("toy-model", slow)
    write_config(tmp_path, server, method="vanilla", iterations=3, evaluation={"concurrency": 2})
    process = subprocess.Popen([*BCO, "run", "bco.yaml", "--json"], cwd=tmp_path, stdout=subprocess.PIPE, text=True)
    while len(server.requests) < 3:
        time.sleep(0.02)
    process.terminate()
    said, _ = process.communicate(timeout=30)
    assert json.loads(said)["stop"] == "drained"
    facts = json.loads(bco(tmp_path, "status", "runs/toy", "--json"))
    assert (facts["state"], facts["stop"]) == ("stopped", "drained")


def test_help_names_every_command() -> None:
    said = bco(Path.cwd(), "--help")
    for command in ("init", "doctor", "estimate", "run", "resume", "step", "submit", "approve", "believe", "status",
                    "watch", "show", "heldout", "diff", "export", "verify", "demo"):  # fmt: skip
        assert f"\n  {command} " in said


def test_a_wrong_key_ends_a_new_run_before_anything_is_paid_and_leaves_none_behind(
    tmp_path: Path, server: ScriptedModelServer
) -> None:
    server.script("toy-model", lambda body: Reply("no such key", status=401))
    write_config(tmp_path, server)
    said = bco(tmp_path, "run", "bco.yaml", code=1)
    assert "AuthenticationFailed: role 'target', deployment 'toy'" in said.replace("\n", " ")
    assert len(server.requests) == 1
    assert not (tmp_path / "runs" / "toy" / "run.json").exists()
    server.script("toy-model", answer)
    assert "waits for step update" in bco(tmp_path, "run", "bco.yaml")
