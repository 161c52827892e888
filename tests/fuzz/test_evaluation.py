"""What a candidate hands over: each line of it becomes an event, a result or a miss, on record and readable again."""

from __future__ import annotations

import asyncio
import json
import tempfile
from collections.abc import Awaitable, Callable, Sequence
from pathlib import Path
from typing import Any

from hypothesis import example, given
from hypothesis import strategies as st

from bco_graph.benchmarks.jsonl import JsonlSuite
from bco_graph.benchmarks.quickstart import QuickstartSuite
from bco_graph.errors import ConfigError
from bco_graph.evaluation.leaks import LeakPatterns
from bco_graph.evaluation.process import _read_result
from bco_graph.evaluation.service import Evaluator, sum_up
from bco_graph.evaluation.worker import Running
from bco_graph.events import Events
from bco_graph.evidence import write_json
from bco_graph.protocols import Interface, Job, RunResult, Score, Task
from bco_graph.receipts import Receipts, dumps
from bco_graph.signature import signature_hits
from bco_graph.state import JSON, REAL_OUTCOMES
from tests.fuzz.strategies import (
    FUZZ,
    SLOW,
    anything,
    as_text,
    broken,
    broken_bytes,
    broken_text,
    nested,
    refused_or,
    texts,
)
from tests.toy import ToySuite

SETTINGS = {"timeout_s": 5.0, "import_timeout_s": 5.0, "max_trace_bytes": 2000}
LINES: list[JSON] = [
    {"begun": True}, {"event": {"step": 1, "seen": ["a"]}}, {"answer": {"word": "fig", "n": [1, 2.5]}}, {"exit": 0},
]  # fmt: skip


def handed_over(said: bytes, printed: bytes) -> str:
    """The line that the worker writes of a task whose process wrote these bytes."""
    task = Running(1, 99, {}, SETTINGS, Path("/nowhere"))
    task.take("result", said)
    task.take("stdout", printed)
    result = {"job": 1, "seconds": 0.5, "events": task.events.values(), "raw": {}}
    result |= {name: kept.text() for name, kept in task.output.items()}
    return json.dumps(result | task.outcome(0.5, 5.0), allow_nan=False)


class Given:
    """An executor whose results were made before."""

    def __init__(self, message: JSON) -> None:
        self.message = message

    async def run(
        self,
        source: Path,
        interface: Interface,
        jobs: Sequence[Job],
        on_result: Callable[[RunResult], Awaitable[None]],
    ) -> None:
        for job in jobs:
            await on_result(_read_result(job, self.message))


said = st.one_of(
    broken(LINES).map(lambda lines: "\n".join(map(as_text, lines if isinstance(lines, list) else [lines])).encode()),
    anything.map(lambda value: b'{"begun": true}\n' + as_text({"answer": value}).encode()),
    anything.map(lambda value: b'{"begun": true}\n' + as_text({"event": value}).encode() + b'\n{"answer": "fig"}'),
    broken_bytes("\n".join(map(as_text, LINES)).encode()),
)


@SLOW
@given(said, st.binary(max_size=50))
@example(b'{"answer": "\\ud800"}', b"\xff")
@example(b'{"answer": 1e999}', b"")
@example(b'{"answer": NaN}', b"")
@example(as_text({"event": nested(900)}).encode() + b'\n{"answer": 1}', b"")
@example(as_text({"error": "\ud800", "exit": 10**30}).encode(), b"")
def test_whatever_a_task_writes_gives_a_row_and_a_trace_that_can_be_read_again(content: bytes, printed: bytes) -> None:
    message = json.loads(handed_over(content + b"\n", printed))
    assert message["status"] in ("answered", "crashed", "broken", "timeout")
    with tempfile.TemporaryDirectory(prefix="bco-fuzz-") as name:
        folder = Path(name)
        receipts = Receipts(folder / "receipts.sqlite")
        suite, traces = ToySuite(folder / "scaffold"), folder / "traces"
        evaluator = Evaluator(suite, Given(message), receipts, Events(folder / "events.jsonl"), lambda _: "token", 1)
        evaluated = evaluator.evaluate(
            "train", "iter_000", folder, suite.tasks("train")[:2], iteration=0,
            keep_trace=lambda trace: write_json(traces / f"{trace['task']}.json", trace),
        )  # fmt: skip
        rows = asyncio.run(evaluated)
        assert len(rows) == 2
        assert sum_up(0, "iter_000", None, rows)["coverage"] in (0.0, 1.0)
        for row in rows:
            assert (row.score is not None) == (row.kind in REAL_OUTCOMES)
        assert signature_hits("no such mark", traces) == 0
        receipts.close()
        again = Receipts(folder / "receipts.sqlite")
        assert again.results("train") == rows
        again.close()


# -- graders and tasks of files -------------------------------------------------------------------------------------

TASK: JSON = {"id": "t1", "type": "lookup", "inputs": {"question": "Where?", "n": 3}, "gold": ["12 May", "May 12"]}


def jsonl(folder: Path, train: bytes) -> JsonlSuite:
    (folder / "train.jsonl").write_bytes(train)
    (folder / "heldout.jsonl").write_bytes(as_text({**TASK, "id": "h1"}).encode())
    return JsonlSuite(train="train.jsonl", heldout="heldout.jsonl", scaffold="s", match="contains", base=str(folder))


@FUZZ
@given(anything)
def test_any_answer_is_graded_by_the_suites_that_ship(answer: JSON) -> None:
    with tempfile.TemporaryDirectory(prefix="bco-fuzz-") as name:
        suite = jsonl(Path(name), as_text(TASK).encode())
        for graded in (suite, QuickstartSuite()):
            task = graded.tasks("train")[0]
            score = graded.grade(task, answer)
            assert isinstance(score, Score)
            assert score.value in (0.0, 1.0)


task_files = st.one_of(
    broken(TASK).map(lambda value: as_text(value).encode()),
    broken_bytes((as_text(TASK) + "\n\n" + as_text({**TASK, "id": "t2"})).encode()),
    broken_text(as_text(TASK)).map(lambda text: text.encode("utf-8", "surrogatepass")),
)


@FUZZ
@given(task_files)
@example(b"\xff\xfe")
@example(b'{"id": "t1", "inputs": {"a": NaN}, "gold": "x"}')
@example(b'{"id": "t1", "inputs": {"a": "\\ud800"}, "gold": "x"}')
@example('{"id": "t1", "inputs": {"a": "one\u2028line"}, "gold": "x"}'.encode())
@example(b'{"id": "t1", "inputs": {}, "gold": ' + b"[" * 5000 + b"]" * 5000 + b"}")
def test_a_file_of_tasks_is_refused_by_line_or_read_whole(content: bytes) -> None:
    with tempfile.TemporaryDirectory(prefix="bco-fuzz-") as name:
        suite = refused_or(ConfigError, lambda: jsonl(Path(name), content))
        if suite is None:
            return
        for task in suite.tasks("train"):
            dumps([task.id, task.type, dict(task.inputs), suite.gold(task)]).encode("utf-8")
            assert suite.grade(task, "x").value in (0.0, 1.0)
        assert suite.surface()


def test_a_separator_that_is_no_newline_does_not_end_a_task(tmp_path: Path) -> None:
    line = json.dumps({**TASK, "inputs": {"question": "one\u2028line\x85more"}}, ensure_ascii=False)
    suite = jsonl(tmp_path, line.encode("utf-8"))
    assert [dict(task.inputs) for task in suite.tasks("train")] == [{"question": "one\u2028line\x85more"}]


# -- the leak scan ---------------------------------------------------------------------------------------------------

TEXT = "the quick brown fox jumps over the lazy dog near the old river bank today"


@SLOW
@given(broken({"id": "task-a17", "gold": "Wanstead", "inputs": {"q": TEXT}}), broken_text(f'X = "{TEXT}"\n'))
@example({"id": "a1b2", "gold": nested(400), "inputs": {"q": nested(400)}}, "")
@example({"id": "a1b2", "gold": "\ud800\ud800\ud800x1", "inputs": {}}, "\ud800\x00" * 50)
def test_any_task_and_any_source_can_be_scanned(task: Any, source: str) -> None:
    if not (isinstance(task, dict) and isinstance(task.get("id"), str) and isinstance(task.get("inputs"), dict)):
        return
    made = Task(task["id"], "t", task["inputs"])
    patterns = LeakPatterns.build([made], {made.id: task.get("gold")}, allow="def solve(): ...")
    for finding in patterns.find(source):
        assert 1 <= finding.line <= source.count("\n") + 1


@FUZZ
@given(texts, texts)
def test_a_planted_gold_is_found_whatever_stands_around_it(before: str, after: str) -> None:
    patterns = LeakPatterns.build([Task("t", "t", {})], {"t": "Wanstead Flats"})
    assert patterns.find(f"{before}\nX = 'Wanstead Flats'\n{after}")
