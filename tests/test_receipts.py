"""The receipts: durable, strict, and never written twice."""

from __future__ import annotations

import sqlite3
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from bco_graph.errors import RunUnreadable
from bco_graph.receipts import CallRecord, Receipts, ResultRow, dumps

ROW = ResultRow("train", "iter_000", "t1", 0, "lookup", "scored", 1.0, {"a": [1, "é"]}, "", "", 0.5, 1, 30)
CALL = CallRecord(
    "target", "iter_000", "t1", 0, "", "m", "openai/m", "k", False, 1, "ok", 10, 4, 2, 0.5, 0.1, "{}", "{}", {"x": 1}
)


@pytest.fixture
def receipts(tmp_path: Path) -> Any:
    opened = Receipts(tmp_path / "receipts.sqlite")
    yield opened
    opened.close()


def test_a_result_comes_back_as_it_was_also_to_a_second_reader(receipts: Receipts) -> None:
    receipts.add_result(ROW)
    other = Receipts(receipts.path)
    assert other.results("train") == [ROW]
    other.close()


def test_a_result_is_written_once(receipts: Receipts) -> None:
    receipts.add_result(ROW)
    with pytest.raises(sqlite3.IntegrityError):
        receipts.add_result(replace(ROW, score=0.0))
    assert receipts.results("train") == [ROW]


def test_task_ids_that_look_like_equal_numbers_stay_distinct(receipts: Receipts) -> None:
    for name in ("1", "01", "1.0"):
        receipts.add_result(replace(ROW, task=name))
    assert {row.task for row in receipts.results("train", "iter_000")} == {"1", "01", "1.0"}


def test_only_rows_that_say_nothing_are_forgotten(receipts: Receipts) -> None:
    kept = replace(ROW, task="t2", kind="no_answer", score=0.0)
    receipts.add_result(kept)
    receipts.add_result(replace(ROW, task="t3", kind="infra_error", score=None))
    receipts.add_result(replace(ROW, task="t4", kind="ungradeable", score=None))
    assert receipts.drop_unreal_results("train", "iter_000") == 2
    assert receipts.results("train") == [kept]


def test_a_value_that_is_no_json_is_refused_and_leaves_nothing(receipts: Receipts) -> None:
    with pytest.raises(ValueError, match="JSON"):
        receipts.add_result(replace(ROW, answer=float("nan")))
    assert receipts.results("train") == []


def test_a_step_is_kept_byte_for_byte(receipts: Receipts) -> None:
    record = {"big": 2**70, "text": "a\r\n\u2028ü\0" * 500, "nested": {"b": [None, True]}}
    receipts.add_step(3, "propose", record)
    assert receipts.step(3, "propose") == record
    assert receipts.step(3, "grade") is None
    with pytest.raises(sqlite3.IntegrityError):
        receipts.add_step(3, "propose", {})


def test_spend_counts_upstream_calls_apart_from_cache_hits(receipts: Receipts) -> None:
    receipts.add_call(CALL)
    receipts.add_call(replace(CALL, cached=True, usd=0.0))
    (spend,) = receipts.spend()
    assert (spend["calls"], spend["cache_hits"], spend["prompt_tokens"], spend["usd"]) == (1, 1, 10, 0.5)


def test_one_call_without_a_price_makes_the_sum_unknown_and_not_zero(receipts: Receipts) -> None:
    receipts.add_call(CALL)
    receipts.add_call(replace(CALL, usd=None))
    assert receipts.spend()[0]["usd"] is None


def test_calls_of_a_job_are_its_own_in_order(receipts: Receipts) -> None:
    receipts.add_call(CALL)
    receipts.add_call(replace(CALL, task="t2"))
    receipts.add_call(replace(CALL, key="second", cached=True))
    receipts.add_call(replace(CALL, role="proposer"))
    assert [call.key for call in receipts.calls_of("iter_000", "t1", 0)] == ["k", "second"]
    assert receipts.calls_of("iter_000", "t1", 0)[0] == CALL


def test_a_newer_schema_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "receipts.sqlite"
    Receipts(path).close()
    with sqlite3.connect(path) as db:
        db.execute("update meta set value='99' where key='schema_version'")
    db.close()
    with pytest.raises(RunUnreadable, match="schema version 99"):
        Receipts(path)


@pytest.mark.parametrize("size", [1, 50, 3000])
def test_a_torn_file_is_refused_and_left_as_it_is(tmp_path: Path, size: int) -> None:
    path = tmp_path / "receipts.sqlite"
    torn = (b"SQLite format 3\0" + b"\x07" * 5000)[:size]
    path.write_bytes(torn)
    with pytest.raises(RunUnreadable):
        Receipts(path)
    assert path.read_bytes() == torn


def test_the_steps_past_an_iteration_come_in_order_also_those_written_meanwhile(receipts: Receipts) -> None:
    for iteration in (0, 2, 10):
        receipts.add_step(iteration, "evaluate", {"n": iteration})
        receipts.add_step(iteration, "propose", {})
    found = []
    for iteration, record in receipts.steps_after(0, "evaluate"):
        found.append((iteration, record["n"]))
        if iteration == 2:
            receipts.add_step(11, "evaluate", {"n": 11})
    assert found == [(2, 2), (10, 10), (11, 11)]


def test_scores_are_those_of_real_results_in_the_order_of_tasks(receipts: Receipts) -> None:
    receipts.add_result(replace(ROW, task="t2", kind="timeout", score=0.0))
    receipts.add_result(replace(ROW, task="t3", kind="infra_error", score=None))
    receipts.add_result(replace(ROW, repeat=1, score=0.5))
    receipts.add_result(ROW)
    receipts.add_result(replace(ROW, candidate="iter_001"))
    assert receipts.scores("train", "iter_000") == [("t1", 1.0), ("t1", 0.5), ("t2", 0.0)]


def test_json_text_is_canonical() -> None:
    assert dumps({"b": 1, "a": "é"}) == '{"a":"é","b":1}'
