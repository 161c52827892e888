"""A served answer must be the one that would have come: model, repeat and outcome are part of what it is."""

from __future__ import annotations

import shutil
from collections import Counter
from pathlib import Path
from typing import Any

from bco_graph.testing import Reply
from tests.faults.play import TARGET, bco, models, receipts_of, step_of
from tests.faults.tasks import task, write_tasks, write_tasks_config

WORDS = ["fig", "oak", "elm"]


def test_another_model_gets_no_answer_of_the_first_and_a_run_keeps_its_own(tmp_path: Path) -> None:
    """A swap of the target is all misses under a name of its own, and is refused inside of a run."""
    write_tasks(tmp_path, [task(word, word) for word in WORDS])

    def right(body: dict[str, Any]) -> str:
        return str(body["messages"][-1]["content"]).removeprefix("say ")

    with models(target=lambda body: "wrong") as server:
        server.script("second-model", right)
        listed = [
            {**server.deployment(TARGET, temperature=0), "model_name": "toy"},
            {**server.deployment("second-model", temperature=0), "model_name": "second"},
        ]
        write_tasks_config(tmp_path, server, models={"model_list": listed}, roles={"proposer": None},
                           proposer={"kind": "handoff"})  # fmt: skip
        bco(tmp_path, "run", "bco.yaml", "--no-preflight")
        shutil.copytree(tmp_path / "runs/toy", tmp_path / "runs/swapped", symlinks=True)
        refused = bco(tmp_path, "resume", "runs/swapped", "--set", "roles.target=second", code=1)
        asked = len(server.requests)
        assert asked == len(WORDS)
        bco(tmp_path, "run", "bco.yaml", "--no-preflight", "--name", "other", "--target", "second")
        assert len(server.requests_of("second-model")) == len(WORDS)
        first, other = (bco(tmp_path, "status", f"runs/{name}", "--json").json for name in ("toy", "other"))
    assert "target" in refused.text
    assert "toy-model" in refused.text
    assert "second-model" in refused.text
    assert (first["baseline"]["train"]["mean"], other["baseline"]["train"]["mean"]) == (0.0, 1.0)
    assert [row["cache_hits"] for row in (*first["spend"], *other["spend"])] == [0, 0]


def test_repeats_are_samples_of_their_own_and_the_same_ones_when_they_are_served_again(tmp_path: Path) -> None:
    write_tasks(tmp_path, [task("fig", "answer 1")])
    given = Counter[str]()

    def another(body: dict[str, Any]) -> str:
        given["all"] += 1
        return f"answer {given['all']}"

    with models(target=another) as server:
        write_tasks_config(tmp_path, server, evaluation={"repeats": 5})
        bco(tmp_path, "run", "bco.yaml", "--no-preflight")
        assert len(server.requests) == 5
        # A run folder that lost its receipts and kept its responses asks for nothing anew.
        again = tmp_path / "runs/again"
        again.mkdir()
        shutil.copy(tmp_path / "runs/toy/cache.sqlite", again / "cache.sqlite")
        bco(tmp_path, "run", "bco.yaml", "--no-preflight", "--name", "again")
        assert len(server.requests) == 5
    answers = []
    for name in ("toy", "again"):
        with receipts_of(tmp_path / "runs" / name) as receipts:
            answers.append([(row.repeat, row.answer, row.score) for row in receipts.results("train")])
    assert sorted(str(answer) for _, answer, _ in answers[0]) == [f"answer {n}" for n in range(1, 6)]
    assert answers[0] == answers[1]


def test_a_reused_baseline_brings_its_evidence_and_what_failed_upstream_is_run_again(tmp_path: Path) -> None:
    """A hit that is a score alone would leave the proposer blind; an error that is served again would stay one."""
    write_tasks(tmp_path, [task(word, word) for word in WORDS])
    down = {"oak"}

    def flaky(body: dict[str, Any]) -> Reply:
        word = str(body["messages"][-1]["content"]).removeprefix("say ")
        return Reply("overloaded", status=503) if word in down else Reply(word)

    with models({(1, "propose"): ["No."]}, flaky) as server:
        write_tasks_config(tmp_path, server)
        bco(tmp_path, "run", "bco.yaml", "--no-preflight")
        down.clear()
        asked = len(server.requests)
        bco(tmp_path, "run", "bco.yaml", "--no-preflight", "--name", "second", "--baseline", "runs/toy")
        again = server.requests[asked:]
    assert [str(request.body["messages"][-1]["content"]) for request in again] == ["say oak"]
    first, second = (tmp_path / f"runs/{name}/workspace/iterations/iter_000/traces" for name in ("toy", "second"))
    for word in ("fig", "elm"):
        assert (second / f"{word}.json").read_bytes() == (first / f"{word}.json").read_bytes()
    assert '"score": 1.0' in (second / "oak.json").read_text(encoding="utf-8")
    status = bco(tmp_path, "status", "runs/second", "--json").json
    assert status["baseline"]["train"]["coverage"] == 1.0
    assert step_of(again[0].body) is None
