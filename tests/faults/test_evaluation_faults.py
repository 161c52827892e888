"""Candidates that hang, crash, flood, spy and tamper: one run of the command line over a scaffold that does it all."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import yaml

from bco_graph.errors import SuiteBroken
from bco_graph.evaluation import pick_sandbox
from bco_graph.protocols import Score, Task
from bco_graph.receipts import ResultRow
from bco_graph.scaffold_tree import tree_digest
from bco_graph.state import JSON
from bco_graph.testing import Reply, ScriptedModelServer
from tests.faults.play import TARGET, bco, models, play, raw_config, receipts_of
from tests.toy import ToySuite

LIMIT_S = 6.0
REPEATS = 2
CAP = 50_000
"""Bytes kept of each of stdout and stderr."""
SECRET = "secret-of-the-parent-1f9c"

AGENT = """
import os, signal, sys, time
from pathlib import Path


async def solve(task, target):
    return await globals()[task.inputs["kind"]](task, target)


async def plain(task, target):
    return await target.chat("kind plain")


async def busy(task, target):
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    while True:
        pass


async def late(task, target):
    print("right")
    Path("answer.json").write_text('"right"')
    time.sleep(60)
    return "right"


async def segfault(task, target):
    os.kill(os.getpid(), signal.SIGSEGV)


async def slow(task, target):
    said = await target.chat("kind slow")
    time.sleep(1)
    return said


async def boom(task, target):
    print("banner " * 15_000, file=sys.stderr)
    raise RuntimeError("Boom-42")


async def bytes_out(task, target):
    sys.stdout.buffer.write(b"before \\xff\\xfe after\\n")
    sys.stdout.buffer.flush()
    return "right"


async def spy(task, target):
    return str(dict(os.environ)) + " ".join(sys.modules)


async def leave(task, target):
    os._exit(0)


async def marks(task, target):
    places = [Path("mark"), Path.home() / "mark", Path("/tmp/mark-of-a-candidate"), Path(__file__).parent / "mark"]
    found = any(place.exists() for place in places)
    for place in places:
        try:
            place.write_text("was here")
        except OSError:
            pass
    return "right" if found else "nothing found"


async def flood(task, target):
    block = "x" * 1_000_000
    for _ in range(60):
        sys.stdout.write(block)
    for number in range(20_000):
        target.trace({"number": number})
    print("needle at the end")
    return "right"


async def tamper(task, target):
    written = []
    for path in task.inputs["paths"]:
        try:
            Path(path).write_text("right")
            written.append(path)
        except OSError:
            pass
    return written or "right"


async def speaks_of_faults(task, target):
    print("rate limit exceeded 429 timeout", file=sys.stderr)
    return "rate limit exceeded 429 timeout"
"""
KINDS = (
    *("plain", "busy", "late", "segfault", "slow", "boom", "bytes_out", "spy", "leave", "marks", "flood", "tamper"),
    "speaks_of_faults",
)
PEAK = """
import atexit, resource, sys
atexit.register(lambda: sys.stderr.write(f"peak {resource.getrusage(resource.RUSAGE_SELF).ru_maxrss}"))
from bco_graph.cli import main
main(sys.argv[1:])
"""


@dataclass(frozen=True)
class Zoo:
    folder: Path
    facts: dict[str, Any]
    peak_bytes: int
    """Most memory that the controller held."""
    server: ScriptedModelServer
    rows: dict[tuple[str, int], ResultRow]

    def trace(self, kind: str) -> dict[str, Any]:
        return dict(json.loads(self.trace_file(kind).read_text(encoding="utf-8")))

    def trace_file(self, kind: str) -> Path:
        return self.folder / "runs/zoo/workspace/iterations/iter_000/traces" / f"{kind}.json"


def write_suite(folder: Path) -> dict[str, Any]:
    """Task files and scaffold below `folder`; returns the suite's options."""
    (folder / "initial").mkdir()
    (folder / "initial/agent.py").write_text(AGENT, encoding="utf-8")
    paths = [str(folder / "train.jsonl"), str(folder / "runs/zoo/receipts.sqlite"), str(folder / "runs/zoo/run.json")]
    tasks = [{"id": kind, "inputs": {"kind": kind, "paths": paths}, "gold": "right"} for kind in KINDS]
    (folder / "train.jsonl").write_text("\n".join(map(json.dumps, tasks)), encoding="utf-8")
    held = {"id": "held", "inputs": {"kind": "plain"}, "gold": "right"}
    (folder / "heldout.jsonl").write_text(json.dumps(held), encoding="utf-8")
    return {"train": "train.jsonl", "heldout": "heldout.jsonl", "scaffold": "initial"}


@pytest.fixture(scope="module")
def zoo(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Zoo]:
    folder = tmp_path_factory.mktemp("zoo")
    options = write_suite(folder)
    with ScriptedModelServer({TARGET: lambda body: Reply("right")}, default=["ok"]) as server:
        config = raw_config(
            folder, server, name="zoo", iterations=0, suite="jsonl",
            evaluation={"timeout_s": LIMIT_S, "repeats": REPEATS, "max_trace_bytes": CAP},
        )  # fmt: skip
        (folder / "bco.yaml").write_text(yaml.safe_dump({**config, "suite_options": options}), encoding="utf-8")
        done = subprocess.run(
            [sys.executable, "-c", PEAK, "run", "bco.yaml", "--json"], cwd=folder, capture_output=True, text=True,
            env={**os.environ, "SECRET_X": SECRET}, check=False,
        )  # fmt: skip
        assert done.returncode == 0, done.stderr
        with receipts_of(folder / "runs/zoo") as receipts:
            rows = {(row.task, row.repeat): row for row in receipts.results("train", "iter_000")}
        peak = int(done.stderr.rpartition("peak ")[2]) * 1024
        yield Zoo(folder, json.loads(done.stdout), peak, server, rows)


def kinds(zoo: Zoo, kind: str) -> set[tuple[str, float | None]]:
    return {(zoo.rows[kind, repeat].kind, zoo.rows[kind, repeat].score) for repeat in range(REPEATS)}


def test_every_task_and_repeat_has_exactly_one_row_whatever_the_others_did(zoo: Zoo) -> None:
    assert sorted(zoo.rows) == sorted((kind, repeat) for kind in KINDS for repeat in range(REPEATS))
    assert zoo.facts["candidates"][0]["coverage"] == 1.0


def test_a_crash_by_a_signal_and_an_early_exit_are_the_tasks_own_misses(zoo: Zoo) -> None:
    assert kinds(zoo, "segfault") == kinds(zoo, "leave") == {("no_answer", 0.0)}
    assert "SIGSEGV" in zoo.rows["segfault", 0].error


def test_a_slow_task_is_run_once_for_each_repeat_and_keeps_its_result(zoo: Zoo) -> None:
    asked = [request for request in zoo.server.requests if "kind slow" in str(request.body)]
    assert len(asked) == REPEATS
    assert kinds(zoo, "slow") == {("scored", 1.0)}


def test_a_busy_loop_that_ignores_signals_ends_at_the_limit_that_the_row_names(zoo: Zoo) -> None:
    for repeat in range(REPEATS):
        row = zoo.rows["busy", repeat]
        assert (row.kind, row.score) == ("timeout", 0.0)
        assert LIMIT_S <= row.seconds < LIMIT_S + 20
        assert f"{LIMIT_S:g} s" in row.error
    left = subprocess.run(["pgrep", "-f", str(zoo.folder)], capture_output=True, text=True, check=False)
    assert left.stdout == ""


def test_who_writes_the_right_answer_down_and_then_sleeps_past_the_limit_has_a_timeout_of_its_own(zoo: Zoo) -> None:
    assert kinds(zoo, "late") == {("timeout", 0.0)}


def test_the_last_line_of_an_exception_survives_a_long_banner_in_row_evidence_and_report(zoo: Zoo) -> None:
    assert zoo.rows["boom", 0].error == "RuntimeError: Boom-42"
    stderr = zoo.trace("boom")["stderr"]
    assert "Boom-42" in stderr
    assert "banner" in stderr
    outcome = (zoo.folder / "runs/zoo/workspace/iterations/iter_000/outcome.json").read_text(encoding="utf-8")
    assert "Boom-42" in outcome


def test_output_and_events_are_cut_with_a_mark_and_memory_and_disk_stay_bounded(zoo: Zoo) -> None:
    """60 MB of text and 20,000 events of one task, twice."""
    assert kinds(zoo, "flood") == {("scored", 1.0)}
    trace = zoo.trace("flood")
    assert "needle at the end" in trace["stdout"]
    assert f"[... kept {CAP} of 60000018 bytes ...]" in trace["stdout"]
    assert [event for event in trace["events"] if "of 20000 events" in str(event)]
    assert len(trace["stdout"]) < 2 * CAP
    assert zoo.trace_file("flood").stat().st_size < 3_000_000

    assert zoo.peak_bytes < 300_000_000


def test_bytes_that_are_no_text_cost_no_score_and_are_marked_where_they_stood(zoo: Zoo) -> None:
    assert kinds(zoo, "bytes_out") == {("scored", 1.0)}
    assert "before \ufffd\ufffd after" in zoo.trace("bytes_out")["stdout"]
    raw = zoo.trace_file("bytes_out").with_name("bytes_out.stdout.bin")
    assert raw.read_bytes() == b"before \xff\xfe after\n"


def test_neither_a_secret_of_the_parent_nor_the_controllers_code_is_in_a_candidates_process(zoo: Zoo) -> None:
    seen = str(zoo.rows["spy", 0].answer)
    assert SECRET not in seen
    assert "SECRET_X" not in seen
    assert not {"bco_graph.driver", "bco_graph.runtime", "langgraph", "litellm"} & set(seen.split())


def test_nothing_that_a_task_writes_is_there_for_the_next_repeat_and_the_source_is_as_it_was(zoo: Zoo) -> None:
    assert {zoo.rows["marks", repeat].answer for repeat in range(REPEATS)} == {"nothing found"}
    run = zoo.folder / "runs/zoo"
    assert tree_digest(run / "iterations/iter_000/source") == tree_digest(zoo.folder / "initial")
    assert not Path("/tmp/mark-of-a-candidate").exists()


@pytest.mark.skipif(pick_sandbox("auto").isolation != "task", reason="no full sandbox on this machine")
def test_a_sandboxed_candidate_cannot_write_tasks_receipts_or_manifest(zoo: Zoo) -> None:
    assert kinds(zoo, "tamper") == {("scored", 1.0)}
    assert all("gold" in line for line in (zoo.folder / "train.jsonl").read_text(encoding="utf-8").splitlines())


def test_an_answer_that_reads_like_a_fault_is_graded_as_an_answer(zoo: Zoo) -> None:
    assert kinds(zoo, "speaks_of_faults") == {("scored", 0.0)}


def test_status_and_verify_read_such_a_run_and_agree_with_its_rows(zoo: Zoo) -> None:
    status = bco(zoo.folder, "status", "runs/zoo", "--json").json
    assert status["baseline"]["train"]["tasks"] == len(KINDS) * REPEATS
    bco(zoo.folder, "verify", "runs/zoo")


class SleepingGrader(ToySuite):
    """Sleeps past its limit over one word, the first time; raises a time-out of its own over another."""

    def __init__(self, scaffold: Path, *, raises: bool = False) -> None:
        super().__init__(scaffold)
        self.asleep = threading.Event()
        self.raises = raises

    def grade(self, task: Task, answer: JSON) -> Score:
        if self.raises:
            raise TimeoutError("the judge did not answer")
        if task.inputs["word"] == "oak" and not self.asleep.is_set():
            self.asleep.set()
            time.sleep(600)
        return super().grade(task, answer)


def test_a_grader_past_its_limit_is_an_infra_error_and_holds_no_process(tmp_path: Path) -> None:
    """Not the scaffold's timeout, and not its miss: another row than that of a task which ran out of time."""
    suite = SleepingGrader(tmp_path / "initial")
    with models() as server:
        first = play(tmp_path, server, suite=suite, iterations=0, evaluation={"grader_timeout_s": 0.5})
        assert first.ended.state["outcome"]["kinds"] == {"infra_error": 1, "scored": 7}
        with first.receipts() as receipts:
            late = next(row for row in receipts.results("train") if row.kind == "infra_error")
        assert (late.task, late.score, late.note) == ("toy-train-1", None, "the grader took longer than 0.5 s")


def test_a_grader_that_raises_stops_the_run_as_the_suites_fault_whatever_it_raises(tmp_path: Path) -> None:
    """A time-out inside the grader is not reported as the limit around it."""
    suite = SleepingGrader(tmp_path / "initial", raises=True)
    with models() as server, pytest.raises(SuiteBroken, match="TimeoutError: the judge did not answer"):
        play(tmp_path, server, suite=suite, iterations=0)
