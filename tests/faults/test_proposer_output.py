"""What a proposer's model sends that is no edit: fences, broken parts, nothing at all, prose for ever."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from bco_graph.testing import Reply
from tests.faults.play import (
    BARE,
    PROPOSER,
    SOLVES_SHORT,
    Act,
    Played,
    When,
    bco,
    edit,
    models,
    play,
    step_of,
    submit,
    told,
    write,
    write_config,
)
from tests.toy import AGENT, NAIVE, answer

FENCED_PROMPT = "The word is: {word}\n```text\nReply with only the word.\n```\nNothing else.\n"


def test_a_file_that_holds_fences_is_stored_byte_for_byte_though_the_reply_is_fenced_itself(tmp_path: Path) -> None:
    """Neither the tag of the outer fence nor the inner fence may get into the file, cut it or empty it."""
    line = {"tool": "write_file", "args": {"path": "scaffold/prompt.md", "content": FENCED_PROMPT}}
    fenced = f"````json\n{json.dumps(line)}\n````"
    handed_in = json.dumps({"tool": "submit", "args": BARE})
    with models({(1, "propose"): [fenced, f"```json\n{handed_in}\n```"]}) as server:
        run = play(tmp_path, server, proposer={"protocol": "json"})
    assert run.ended.state["outcome"]["candidate"] == "iter_001"
    assert run.source("iter_001", "prompt.md") == FENCED_PROMPT.encode()
    assert run.source("iter_001", "agent.py") == AGENT.encode()


def test_one_reply_with_a_broken_part_changes_nothing_and_the_model_is_told_which_part(tmp_path: Path) -> None:
    """Three edits, the second of them impossible: all three are refused; sent again whole, all three are there."""
    first, third = edit("scaffold/prompt.md", "word is", "word was"), write("notes/why.md", "because\n")
    broken = edit("scaffold/agent.py", "no such line", "x")
    mended = edit("scaffold/agent.py", "return reply", "return reply.strip()")
    acts = [[first, broken, third], [first, mended, third], submit(BARE)]
    with models({(1, "propose"): acts}) as server:
        run = play(tmp_path, server)
    after_first = told(run.asked(1, "propose")[1])
    assert "no match for `old`" in after_first
    assert after_first.count("not applied: edit_file of the same reply was refused") == 2
    results = [message["content"] for message in run.asked(1, "propose")[2]["messages"][-3:]]
    assert [result.split()[0] for result in results] == ["edited", "edited", "created"]
    assert run.source("iter_001", "prompt.md").decode() == NAIVE.replace("word is", "word was")
    assert b"reply.strip()" in run.source("iter_001", "agent.py")
    assert run.source("iter_001", "notes/why.md") == b"because\n"


@pytest.fixture(scope="module")
def empty(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Played]:
    """Content null after all room went into reasoning, no choices, a null message; then a real edit."""
    acts: dict[When, list[Act]] = {
        (1, "propose"): [Reply(None, finish_reason="length", usage={"prompt_tokens": 10, "completion_tokens": 900})],
        (2, "propose"): [Reply(shape="empty_choices")],
        (3, "propose"): [Reply(shape="null_message")],
        (4, "propose"): [[*SOLVES_SHORT, *submit(BARE)]],
    }
    with models(acts) as server:
        yield play(tmp_path_factory.mktemp("empty"), server, iterations=4, max_failures=4, models={"retries": 2})


def test_an_empty_reply_is_an_iteration_that_failed_as_empty_and_the_run_goes_on(empty: Played) -> None:
    assert empty.failures() == [(1, "propose", "empty"), (2, "propose", "empty"), (3, "propose", "empty")]
    assert empty.ended.stop == "iterations"
    assert empty.ended.state["best"] == {"id": "iter_004", "mean": 0.5}


def test_an_empty_reply_is_asked_again_a_fixed_number_of_times_and_is_no_fault_of_the_endpoint(empty: Played) -> None:
    assert [len(empty.asked(iteration, "propose")) for iteration in (1, 2, 3)] == [3, 3, 3]


def test_the_finish_reason_and_the_tokens_that_were_paid_stay_with_an_empty_reply(empty: Played) -> None:
    reasons = next(event["reasons"][0] for event in empty.events if event["type"] == "step_failed")
    assert "'length'" in reasons
    assert '"completion_tokens": 900' in reasons


def test_a_target_without_a_word_is_a_miss_of_the_scaffold_and_no_fault_of_the_endpoint(tmp_path: Path) -> None:
    def silent(body: dict[str, Any]) -> Reply:
        text = str(body["messages"])
        shapes = {"fig": Reply(None, finish_reason="length"), "oak": Reply(shape="empty_choices")}
        shapes["elm"] = Reply(shape="null_message")
        return next((reply for word, reply in shapes.items() if word in text), answer(body))

    with models(target=silent) as server:
        run = play(tmp_path, server, iterations=0)
    assert (run.ended.state["outcome"]["kinds"], run.ended.state["outcome"]["coverage"]) == (
        {"no_answer": 3, "scored": 5}, 1.0
    )  # fmt: skip


def test_a_proposer_that_only_talks_ends_the_run_with_the_reason_and_a_failing_exit_code(tmp_path: Path) -> None:
    """Never a run that ends well with the seed as best: bounded re-asking, a stop after so many failed iterations."""
    with models({(n, "propose"): ["I would rather explain my plan."] for n in range(1, 9)}) as server:
        write_config(tmp_path, server, iterations=8, max_failures=3)
        ended = bco(tmp_path, "run", "bco.yaml", code=1)
        steps = [step_of(request.body) for request in server.requests_of(PROPOSER)]
        paid = len(server.requests)
        status = bco(tmp_path, "status", "runs/toy", "--json").json
        assert len(server.requests) == paid
    assert {n: steps.count((n, "propose")) for n in range(1, 5)} == {1: 5, 2: 5, 3: 5, 4: 0}
    assert "calls no tool" in ended.text
    assert (status["state"], status["stop"]) == ("failed", "failures")
    assert status["proposals"] == {"made": 3, "parsed": 0, "applied": 0, "evaluated": 0}
    assert [failure["cause"] for failure in status["failures"]] == ["format"] * 3
