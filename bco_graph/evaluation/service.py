"""Evaluates a candidate: run every task, grade in this process, write a receipt for each, sum up.

How a row gets its outcome (never from the text of an answer):

the executor failed, or a call of the job ended in an upstream, key or budget failure   infra_error
the time limit of the task struck                                                       timeout, score 0
no answer, or the scaffold crashed, and a call of the job overran the context window     context_overflow, score 0
no answer, or the scaffold crashed                                                       no_answer, score 0
the grader ran out of time, or the judge that it asks gave no answer                     infra_error
the grader gave something that is no number in [0, 1]                                    ungradeable
else                                                                                     scored
"""

from __future__ import annotations

import asyncio
import base64
import contextlib
import json
import math
import threading
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any, TypeVar, cast

from bco_graph.errors import BudgetExceeded, ModelCallError, SuiteBroken
from bco_graph.events import Events
from bco_graph.protocols import Caller, Executor, Job, RunResult, Score, Suite, Task
from bco_graph.receipts import CallRecord, Receipts, ResultRow
from bco_graph.redaction import Redactor
from bco_graph.state import JSON, REAL_OUTCOMES, Failure, Outcome, OutcomeKind, Split
from bco_graph.task_tables import PASS_AT

OUT_OF_BUDGET = "a budget left no room for a model call of this task"
_INFRA = frozenset({"UpstreamUnavailable", "AuthenticationFailed"})
_DEAD = "a model call of this task failed outside of the scaffold"

Trace = dict[str, JSON]
T = TypeVar("T")


@dataclass(frozen=True)
class Evaluator:
    """`token` gives the gateway's bearer token for a caller; `redactor` takes the run's keys out of results."""

    suite: Suite
    executor: Executor
    receipts: Receipts
    events: Events
    token: Callable[[Caller], str]
    repeats: int
    grader_timeout_s: float = 60.0
    redactor: Redactor = field(default_factory=Redactor)

    async def evaluate(
        self,
        split: Split,
        candidate: str,
        source: Path,
        tasks: Sequence[Task],
        *,
        iteration: int,
        keep_trace: Callable[[Trace], None],
    ) -> list[ResultRow]:
        """Rows of every (task, repeat), the missing ones made now. Rows that said nothing are tried again."""
        self.receipts.drop_unreal_results(split, candidate)
        done = {(row.task, row.repeat) for row in self.receipts.results(split, candidate)}
        by_id = {task.id: task for task in tasks}
        total = len(tasks) * self.repeats
        jobs = [
            Job(task, repeat, self.token(Caller("target", candidate, task.id, repeat)))
            for task in tasks
            for repeat in range(self.repeats)
            if (task.id, repeat) not in done
        ]
        self.events.emit("evaluation", iteration, candidate=candidate, split=split, tasks=total, done=len(done))
        finished = len(done)
        # Calls of an attempt that was cut off or failed upstream belong to rows that are gone.
        earlier = self.receipts.last_call()

        async def on_result(result: RunResult) -> None:
            nonlocal finished
            result = self._redacted(result)
            task = by_id[result.task_id]
            calls = self.receipts.calls_of(candidate, result.task_id, result.repeat, after=earlier)
            row = await self._row(split, candidate, task, result, calls)
            keep_trace(self._trace(task, result, row, calls, show_gold=split == "train"))
            self.receipts.add_result(row)
            finished += 1
            self.events.emit(
                "task_done", iteration, candidate=candidate, split=split, task=row.task, repeat=row.repeat,
                kind=row.kind, score=row.score, seconds=row.seconds, done=finished, tasks=total, **_paid(calls),
            )  # fmt: skip

        if jobs:
            await self.executor.run(source, self.suite.interface, jobs, on_result)
        return self.receipts.results(split, candidate)

    def _redacted(self, result: RunResult) -> RunResult:
        known, plain = self.redactor.known, self.redactor.plain
        return replace(
            result, answer=plain(result.answer), error=known(result.error), stdout=known(result.stdout),
            stderr=known(result.stderr), events=plain(list(result.events)),
            raw={name: known(content.decode("latin-1")).encode("latin-1") for name, content in result.raw.items()},
        )  # fmt: skip

    async def _row(
        self, split: Split, candidate: str, task: Task, result: RunResult, calls: Sequence[CallRecord]
    ) -> ResultRow:
        kind, score, note = await self._judge(task, result, calls)
        return ResultRow(
            split=split, candidate=candidate, task=task.id, repeat=result.repeat, type=task.type, kind=kind,
            score=score, answer=result.answer, note=note, error=result.error, seconds=result.seconds,
            calls=len(calls), tokens=sum(call.prompt_tokens + call.completion_tokens for call in calls),
        )  # fmt: skip

    async def _judge(
        self, task: Task, result: RunResult, calls: Sequence[CallRecord]
    ) -> tuple[OutcomeKind, float | None, str]:
        statuses = {call.status for call in calls}
        if "BudgetExceeded" in statuses:
            return "infra_error", None, OUT_OF_BUDGET
        if result.status == "broken" or statuses & _INFRA:
            return "infra_error", None, result.error or _DEAD
        if result.status == "timeout":
            return "timeout", 0.0, result.error
        if result.status == "crashed" or is_empty(result.answer):
            overflow = "ContextOverflow" in statuses
            return ("context_overflow" if overflow else "no_answer"), 0.0, result.error or "no answer"
        return await self._grade(task, result.answer)

    async def _grade(self, task: Task, answer: JSON) -> tuple[OutcomeKind, float | None, str]:
        limit = asyncio.timeout(self.grader_timeout_s)
        try:
            async with limit:
                score = await self._call_grader(task, answer)
        except Exception as error:
            if isinstance(error, TimeoutError) and limit.expired():
                return "infra_error", None, f"the grader took longer than {self.grader_timeout_s:g} s"
            if isinstance(error, BudgetExceeded):
                return "infra_error", None, OUT_OF_BUDGET
            if isinstance(error, ModelCallError):
                return "infra_error", None, f"the judge gave no answer: {error}"
            raise SuiteBroken(
                f"the grader of suite {self.suite.name!r} raised on task {task.id!r}: {type(error).__name__}: {error}"
            ) from error
        value, note = (score.value, score.note) if isinstance(score, Score) else (score, "")
        if isinstance(value, bool) or not isinstance(value, int | float):
            return "ungradeable", None, f"the grader gave {value!r}, which is no number"
        if not math.isfinite(value) or not 0 <= value <= 1:
            return "ungradeable", None, f"the grader gave {value!r}, which is not in [0, 1]{note and f': {note}'}"
        return "scored", float(value), note

    async def _call_grader(self, task: Task, answer: JSON) -> Score:
        score = await _in_thread(partial(self.suite.grade, task, answer))
        return await cast("Awaitable[Score]", score) if asyncio.iscoroutine(score) else cast(Score, score)

    def _trace(
        self, task: Task, result: RunResult, row: ResultRow, calls: Sequence[CallRecord], *, show_gold: bool
    ) -> Trace:
        trace: Trace = {
            "task": task.id, "repeat": result.repeat, "type": task.type, "inputs": dict(task.inputs),
            "answer": result.answer, "outcome": row.kind, "score": row.score, "note": row.note,
            "error": result.error, "seconds": round(result.seconds, 3),
            "calls": [_call(call) for call in calls], "events": list(result.events),
            "stdout": result.stdout, "stderr": result.stderr,
        }  # fmt: skip
        if result.raw:
            trace["raw"] = {name: base64.b64encode(content).decode() for name, content in result.raw.items()}
        if show_gold:
            trace["expected"] = self.suite.gold(task)
        return trace


async def _in_thread(call: Callable[[], T]) -> T:
    """As `asyncio.to_thread`, but nothing waits for the thread at exit: a grader that hangs holds no process."""
    loop = asyncio.get_running_loop()
    future: asyncio.Future[T] = loop.create_future()

    def settle(set_: Callable[[Any], None], value: object) -> None:
        if not future.done():
            set_(value)

    def run() -> None:
        set_: Callable[[Any], None]
        try:
            value, set_ = call(), future.set_result
        except Exception as error:
            value, set_ = error, future.set_exception  # type: ignore[assignment]  # what `set_` takes
        with contextlib.suppress(RuntimeError):  # The loop is closed: nobody asks any more.
            loop.call_soon_threadsafe(settle, set_, value)

    threading.Thread(target=run, name="grader", daemon=True).start()
    return await future


def is_empty(answer: JSON) -> bool:
    """No answer: None, NaN, or text without a visible character. An empty answer never equals a value."""
    if answer is None or (isinstance(answer, float) and math.isnan(answer)):
        return True
    return isinstance(answer, str) and not answer.strip()


def sum_up(iteration: int, candidate: str, parent: str | None, rows: Sequence[ResultRow]) -> Outcome:
    """The aggregate of an evaluation: means over real results only, with their coverage."""
    real = [row for row in rows if row.kind in REAL_OUTCOMES and row.score is not None]
    by_type: dict[str, list[float]] = {}
    for row in real:
        by_type.setdefault(row.type, []).append(row.score or 0.0)
    kinds: dict[str, int] = {}
    for row in rows:
        kinds[row.kind] = kinds.get(row.kind, 0) + 1
    return Outcome(
        iteration=iteration, candidate=candidate, parent=parent,
        mean=_mean([row.score or 0.0 for row in real]), coverage=len(real) / len(rows) if rows else 0.0,
        tasks=len(rows), passed=sum((row.score or 0.0) >= PASS_AT for row in real),
        by_type={name: sum(scores) / len(scores) for name, scores in sorted(by_type.items())},
        kinds=dict(sorted(kinds.items())), failure=None,
    )  # fmt: skip


def no_outcome(iteration: int, failure: Failure) -> Outcome:
    """The outcome of an iteration that has no candidate."""
    return Outcome(
        iteration=iteration, candidate=None, parent=None, mean=None, coverage=0.0, tasks=0, passed=0,
        by_type={}, kinds={}, failure=failure,
    )  # fmt: skip


def _paid(calls: Sequence[CallRecord]) -> dict[str, JSON]:
    """Tokens and money of a job's calls that went upstream; money is None where a price is not known."""
    sent = [call for call in calls if not call.cached]
    prices = [call.usd for call in sent]
    return {
        "tokens": sum(call.prompt_tokens + call.completion_tokens for call in sent),
        "usd": None if None in prices else sum(price or 0.0 for price in prices),
    }


def _mean(scores: Sequence[float]) -> float | None:
    return sum(scores) / len(scores) if scores else None


def _call(call: CallRecord) -> Mapping[str, JSON]:
    return {
        "request": _json_or_text(call.request), "response": _json_or_text(call.response), "status": call.status,
        "prompt_tokens": call.prompt_tokens, "completion_tokens": call.completion_tokens,
        "pinned": dict(call.changes),
    }  # fmt: skip


def _json_or_text(text: str) -> JSON:
    try:
        return json.loads(text)
    except ValueError:
        return text
