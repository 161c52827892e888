"""Suites: found by name, file or entry point; taken evenly; and the suite of JSON lines."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from bco_graph.benchmarks.jsonl import JsonlSuite, normalise
from bco_graph.config import check_config
from bco_graph.errors import ConfigError, SuiteBroken
from bco_graph.protocols import Score, Suite, Task
from bco_graph.suites import digest_of, load_suite, take

LINES = [
    {"id": "a", "type": "x", "inputs": {"q": "1"}, "gold": "12 May"},
    {"id": "b", "type": "y", "inputs": {"q": "2"}, "gold": ["left", "right"]},
]


def write(path: Path, lines: list[Any]) -> Path:
    path.write_text("".join(json.dumps(line) + "\n" for line in lines), encoding="utf-8")
    return path


def jsonl(tmp_path: Path, lines: list[Any] | None = None, **options: Any) -> JsonlSuite:
    (tmp_path / "scaffold").mkdir(exist_ok=True)
    write(tmp_path / "train.jsonl", LINES if lines is None else lines)
    write(tmp_path / "heldout.jsonl", [{"id": "h", "inputs": {"q": "3"}, "gold": 7}])
    return JsonlSuite(train="train.jsonl", heldout="heldout.jsonl", scaffold="scaffold", base=str(tmp_path), **options)


def config(tmp_path: Path, **changes: Any) -> Any:
    models = {"model_list": [{"model_name": "m", "litellm_params": {"model": "openai/m"}}]}
    given = {"name": "r", "models": models, "roles": {"target": "m"}, **changes}
    return check_config(given, base=tmp_path)


def test_a_suite_of_json_lines_is_a_suite(tmp_path: Path) -> None:
    suite = jsonl(tmp_path)
    assert isinstance(suite, Suite)
    assert [task.id for task in suite.tasks("train")] == ["a", "b"]
    assert suite.tasks("heldout")[0].type == "task"
    assert "async def solve(task, target)" in suite.surface()


def score_of(suite: JsonlSuite, position: int, answer: Any) -> float:
    score = suite.grade(suite.tasks("train")[position], answer)
    assert isinstance(score, Score)
    return score.value


@pytest.mark.parametrize(
    ("answer", "score"), [(" 12  may. ", 1.0), ("12 MAY", 1.0), ("on 12 May", 0.0), ("12 Mays", 0.0), (12, 0.0)]
)
def test_exact_compares_after_normalisation(tmp_path: Path, answer: Any, score: float) -> None:
    suite = jsonl(tmp_path)
    assert score_of(suite, 0, answer) == score


@pytest.mark.parametrize(("answer", "score"), [("it was 12 May", 1.0), ("it was 112 May", 0.0), ("12 Mayor", 0.0)])
def test_contains_looks_for_whole_words(tmp_path: Path, answer: str, score: float) -> None:
    suite = jsonl(tmp_path, match="contains")
    assert score_of(suite, 0, answer) == score


def test_any_member_of_a_list_of_golds_will_do(tmp_path: Path) -> None:
    suite = jsonl(tmp_path)
    assert [score_of(suite, 1, given) for given in ("Right", "left.", "up")] == [1, 1, 0]


@pytest.mark.parametrize(
    "line", ["{", '{"id": "a"}', '{"id": 1, "inputs": {}, "gold": "x"}', '{"id": "a", "inputs": {}, "gold": " "}', "[]"]
)
def test_a_bad_line_is_named_by_file_and_number(tmp_path: Path, line: str) -> None:
    jsonl(tmp_path)
    (tmp_path / "train.jsonl").write_text(json.dumps(LINES[0]) + "\n\n" + line + "\n", encoding="utf-8")
    with pytest.raises(ConfigError, match=r"train\.jsonl, line 3"):
        JsonlSuite(train="train.jsonl", heldout="heldout.jsonl", scaffold="scaffold", base=str(tmp_path))


def test_normalisation_keeps_what_tells_answers_apart() -> None:
    assert normalise("Ａ b") == "a b"
    assert normalise("1.0") != normalise("1")
    assert normalise(None) == "null"


def test_a_suite_is_found_by_name_with_the_nearest_for_a_misspelt_one(tmp_path: Path) -> None:
    assert load_suite(config(tmp_path, suite="quickstart")).name == "quickstart"
    with pytest.raises(ConfigError, match=r"did you mean 'quickstart'"):
        load_suite(config(tmp_path, suite="quickstarts"))


def test_a_suite_is_found_in_a_file_beside_the_config_and_gets_its_options(tmp_path: Path) -> None:
    jsonl(tmp_path)
    code = "from bco_graph.benchmarks.jsonl import JsonlSuite\nclass Mine(JsonlSuite):\n    name = 'mine'\n"
    (tmp_path / "mine.py").write_text(code, encoding="utf-8")
    options = {"train": "train.jsonl", "heldout": "heldout.jsonl", "scaffold": "scaffold"}
    assert load_suite(config(tmp_path, suite="mine.py:Mine", suite_options=options)).name == "mine"
    with pytest.raises(ConfigError, match=r"suite_options.*surplus"):
        load_suite(config(tmp_path, suite="mine.py:Mine", suite_options={**options, "surplus": 1}))
    with pytest.raises(ConfigError, match=r"no 'Mien'.*did you mean 'Mine'"):
        load_suite(config(tmp_path, suite="mine.py:Mien", suite_options=options))


def test_a_task_id_in_both_splits_is_refused(tmp_path: Path) -> None:
    jsonl(tmp_path, [{"id": "h", "inputs": {}, "gold": "x"}])
    options = {"train": "train.jsonl", "heldout": "heldout.jsonl", "scaffold": "scaffold"}
    with pytest.raises(SuiteBroken, match="'h'"):
        load_suite(config(tmp_path, suite="jsonl", suite_options=options))


def test_some_tasks_are_taken_evenly_over_types_in_their_own_order() -> None:
    tasks = [Task(f"t{i}", "a" if i < 6 else "b", {}) for i in range(9)]
    assert [task.id for task in take(tasks, 5)] == ["t0", "t1", "t2", "t6", "t7"]
    assert take(tasks, None) == tasks
    assert take(tasks, 99) == tasks


def test_a_split_s_digest_changes_with_content_and_gold_and_not_with_nothing(tmp_path: Path) -> None:
    one = jsonl(tmp_path)
    first = digest_of(one, one.tasks("train"))
    again = jsonl(tmp_path)
    assert digest_of(again, again.tasks("train")) == first
    other = jsonl(tmp_path, [{**LINES[0], "gold": "13 May"}, LINES[1]])
    changed = digest_of(other, other.tasks("train"))
    assert changed["ids"] == first["ids"]
    assert changed["content"] != first["content"]
