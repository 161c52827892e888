"""The live signature: counted in what the scaffold left, and never a way to hang the run."""

from __future__ import annotations

import json
import time
from pathlib import Path
from typing import Any

import pytest

from bco_graph.signature import signature_fault, signature_hits


def traces(folder: Path, *given: dict[str, Any]) -> Path:
    folder.mkdir(exist_ok=True)
    for number, trace in enumerate(given):
        text = json.dumps({"task": f"t{number}", **trace}, ensure_ascii=False)
        (folder / f"{number}.json").write_text(text, encoding="utf-8")
    return folder


@pytest.mark.parametrize(
    ("pattern", "hits"),
    [
        ("gate: open", 2),
        ("re:^gate", 2),
        ("re:gate: (open|shut)", 3),
        ("Gate", 0),
        ("[", 1),
        ("re:\\d{3}", 1),
        ("é", 1),
    ],
)
def test_tasks_with_the_mark_are_counted(tmp_path: Path, pattern: str, hits: int) -> None:
    folder = traces(
        tmp_path / "t",
        {"events": [{"say": "gate: open"}], "stdout": "gate: open"},
        {"calls": [{"response": {"text": "gate: open"}}]},
        {"stderr": "x gate: shut ["},
        {"events": ["é"], "stdout": "call 123"},
    )
    assert signature_hits(pattern, folder) == hits


def test_the_task_itself_its_gold_and_its_answer_hold_no_mark(tmp_path: Path) -> None:
    given = {"inputs": {"q": "mark"}, "expected": "mark", "answer": "mark", "note": "mark", "events": []}
    assert signature_hits("mark", traces(tmp_path / "t", given)) == 0


def test_repeats_of_a_task_count_once(tmp_path: Path) -> None:
    folder = traces(tmp_path / "t", {"task": "same", "stdout": "m"}, {"task": "same", "stdout": "m"})
    assert signature_hits("m", folder) == 1


def test_an_expression_that_never_ends_is_given_up(tmp_path: Path) -> None:
    folder = traces(tmp_path / "t", {"stdout": "a" * 60 + "!"})
    began = time.monotonic()
    assert signature_hits("re:(a+)+$", folder, timeout_s=1.0) is None
    assert time.monotonic() - began < 10


@pytest.mark.parametrize("pattern", ["", "  ", "re:", "re:(", "re:*"])
def test_what_cannot_be_looked_for_is_said(pattern: str) -> None:
    assert signature_fault(pattern)
    assert signature_fault("plain [text") is None
