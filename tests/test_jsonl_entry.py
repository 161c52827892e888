"""The option `entry` of the suite of JSON lines: strict, with a mapping that every task can fill."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from bco_graph.benchmarks.jsonl import JsonlSuite
from bco_graph.errors import ConfigError
from bco_graph.evaluation.graph_entry import filled

GRAPH = {"path": "app.py:build", "kind": "graph"}
QUESTION = {"question": "Why?"}


def suite(folder: Path, entry: Any, inputs: dict[str, Any] = QUESTION, **heldout: Any) -> JsonlSuite:
    for split, given in (("train", inputs), ("heldout", heldout or inputs)):
        line = {"id": f"{split}-1", "inputs": given, "gold": "x"}
        (folder / f"{split}.jsonl").write_text(json.dumps(line) + "\n", encoding="utf-8")
    return JsonlSuite(train="train.jsonl", heldout="heldout.jsonl", scaffold="app", entry=entry, base=str(folder))


def test_a_graph_over_one_text_gets_it_as_a_message_of_the_user(tmp_path: Path) -> None:
    made = suite(tmp_path, GRAPH)
    assert (made.interface.kind, made.interface.entry) == ("graph", "app.py:build")
    assert made.interface.settings["output"] == "messages.-1.content"
    given = filled(made.interface.settings["input"], made.tasks("train")[0].inputs)
    assert given == {"messages": [{"role": "user", "content": "Why?"}]}


def test_a_text_is_the_path_of_a_solve_as_before(tmp_path: Path) -> None:
    made = suite(tmp_path, "my/agent.py:run")
    assert (made.interface.entry, made.interface.kind, made.interface.settings) == ("my/agent.py:run", "solve", {})


def test_what_the_config_says_of_a_graph_reaches_the_interface(tmp_path: Path) -> None:
    entry = {**GRAPH, "input": {"q": "{a} and {b}", "n": 3}, "output": "answer.text", "recursion_limit": 9}
    made = suite(tmp_path, entry, {"a": "one", "b": 2})
    settings = {"input": {"q": "{a} and {b}", "n": 3}, "output": "answer.text", "recursion_limit": 9}
    assert made.interface.settings == settings
    assert filled(settings["input"], made.tasks("heldout")[0].inputs) == {"q": "one and 2", "n": 3}


@pytest.mark.parametrize(
    ("entry", "reason"),
    [
        (
            {**GRAPH, "outputs": "x"},
            r"entry\.outputs: unknown key \(did you mean 'output'\?\); known: path, kind, input",
        ),
        ({**GRAPH, "kind": "graphs"}, r"entry\.kind: .*'solve' or 'graph', not \"graphs\""),
        ({**GRAPH, "path": "app:build"}, r"entry\.path: .*not \"app:build\""),
        ("app", r"entry\.path: "),
        ({**GRAPH, "output": "messages..content"}, r"entry\.output: "),
        ({**GRAPH, "recursion_limit": 0}, r"entry\.recursion_limit: .*greater than or equal to 1, not 0"),
        ({**GRAPH, "recursion_limit": "5"}, r"entry\.recursion_limit: .*valid integer"),
        ({"path": "agent.py:solve", "output": "x"}, r"entry: only `kind: graph` has output; this is `kind: solve`"),
        (["app.py:build"], r"entry: "),
    ],
)
def test_a_wrong_key_or_value_is_named_with_what_is_expected(tmp_path: Path, entry: Any, reason: str) -> None:
    with pytest.raises(ConfigError, match=reason):
        suite(tmp_path, entry)


def test_a_field_that_some_task_lacks_is_named_before_the_run_with_the_nearest(tmp_path: Path) -> None:
    entry = {**GRAPH, "input": {"messages": ["{question}"]}}
    reason = r"\{question\} \(did you mean 'questions'\?\), which the inputs of task 'heldout-1'.*: questions"
    with pytest.raises(ConfigError, match=reason):
        suite(tmp_path, entry, questions="Why?")
    assert suite(tmp_path, {**GRAPH, "input": "{{question}}"}, questions="Why?").interface.settings["input"]


@pytest.mark.parametrize("inputs", [{"a": "x", "b": "y"}, {"n": 3}, {}])
def test_without_one_text_the_mapping_must_be_said(tmp_path: Path, inputs: dict[str, Any]) -> None:
    with pytest.raises(ConfigError, match=r"entry\.input is missing.*such as \{messages"):
        suite(tmp_path, GRAPH, inputs, **({"z": 1} if not inputs else {}))


def test_tasks_inside_of_the_scaffold_are_refused_because_they_hold_the_answers(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"suite_options\.train 'tasks/a\.jsonl' lies inside of the scaffold '\.'"):
        JsonlSuite(train="tasks/a.jsonl", heldout="tasks/b.jsonl", scaffold=".", base=str(tmp_path))


def test_the_surface_of_a_graph_tells_the_proposer_what_goes_in_and_comes_out(tmp_path: Path) -> None:
    surface = suite(tmp_path, {**GRAPH, "input": {"q": "{question}"}, "output": "answer"}).surface()
    for said in ("`app.py:build`", "def build(model)", '{"q": "{question}"}', "`answer`", '{"node", "path", "update"}'):
        assert said in surface
    assert "solve(task, target)" not in surface
