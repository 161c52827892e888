"""The seams. Whatever implements one of these can replace ours; each has a contract suite in the tests.

Suite       tasks, a grader and an initial scaffold
Executor    runs a candidate's source on tasks, apart from this process
Proposer    does one step of the loop and hands in a typed submission
ModelCalls  makes one model call for a caller (the gateway); StreamedCalls tells of its reply meanwhile
Sink        takes a run's events to another system
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Generic, Literal, Protocol, TypeVar, runtime_checkable

from pydantic import BaseModel

from bco_graph.events import Event, View
from bco_graph.state import JSON, Method, Split, StepName

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Task:
    """One item. `inputs` is all that a scaffold sees; gold answers stay with the suite.

    `id` is a string that is unique over both splits; `type` is the category that per-type means use.
    """

    id: str
    type: str
    inputs: Mapping[str, JSON]


@dataclass(frozen=True, slots=True)
class Score:
    """`value` in [0, 1], higher is better; `note` says in a few words what was wrong."""

    value: float
    note: str = ""


@dataclass(frozen=True, slots=True)
class Interface:
    """What an edited scaffold must keep, checked before anything is paid.

    `entry` is `FILE:ATTR` below the scaffold's root, such as `agent.py:solve`, with the kind of entry point: `solve`
    is `async def solve(task, target) -> answer`; `graph` is `def build(model) -> StateGraph or compiled graph`, where
    `model` is a LangChain chat model of the target, and `settings` say what goes in and comes out (keys of
    `evaluation.graph_entry.Settings`). `placeholders` maps a file to the fields, such as `{notebook}`, that its text
    must hold.
    """

    entry: str = "agent.py:solve"
    kind: Literal["solve", "graph"] = "solve"
    settings: Mapping[str, JSON] = field(default_factory=dict)
    placeholders: Mapping[str, Sequence[str]] = field(default_factory=dict)
    must_call_target: bool = True


@runtime_checkable
class Suite(Protocol):
    """Tasks, grader, initial scaffold. Loaded and used in the controller only, never in a candidate's process."""

    name: str
    interface: Interface

    def tasks(self, split: Split) -> Sequence[Task]:
        """The tasks of a split, always in the same order. `train` and `heldout` share no id."""

    def grade(self, task: Task, answer: JSON) -> Score | Awaitable[Score]:
        """Score an answer that is not empty. Raising means the suite is broken and stops the run."""

    def gold(self, task: Task) -> JSON:
        """The right answer; shown to the proposer on `train`, and looked for by the leak scan on both."""

    def initial_scaffold(self) -> Path:
        """Folder of the untouched scaffold."""

    def surface(self) -> str:
        """Markdown for the proposer: what is editable, what a task and an outcome look like."""


@dataclass(frozen=True, slots=True)
class Job:
    """One task to run for one candidate. `token` is the gateway's bearer token for just this job."""

    task: Task
    repeat: int
    token: str


RunStatus = Literal["answered", "crashed", "timeout", "broken"]
"""`answered`: the entry point returned (its answer may be None); `crashed`: the scaffold raised, exited or was
killed by a signal; `timeout`: our limit struck; `broken`: the executor itself failed (says nothing about it)."""


@dataclass(frozen=True, slots=True)
class RunResult:
    """What running one job gave, before grading. `stdout` and `stderr` may be cut, with a mark, in the middle."""

    task_id: str
    repeat: int
    status: RunStatus
    answer: JSON
    error: str
    """Last line of the traceback, or the limit that struck; empty when answered."""
    seconds: float
    stdout: str = ""
    stderr: str = ""
    events: Sequence[JSON] = ()
    """What the scaffold recorded by `target.trace(...)`, in order."""
    raw: Mapping[str, bytes] = field(default_factory=dict)
    """What came on `stdout` or `stderr`, where it was not all UTF-8 and its text has replacement characters."""


class Executor(Protocol):
    async def run(
        self,
        source: Path,
        interface: Interface,
        jobs: Sequence[Job],
        on_result: Callable[[RunResult], Awaitable[None]],
    ) -> None:
        """Run every job once and hand over each result as it ends, in any order. `source` is not changed."""


Role = Literal["target", "proposer", "judge", "predictor"]


@dataclass(frozen=True, slots=True)
class Caller:
    """Who makes a model call. `candidate`, `task` and `repeat` for the target; `step` for a proposer."""

    role: Role
    candidate: str = ""
    task: str = ""
    repeat: int = 0
    step: str = ""


class Judge(Protocol):
    """A model that a grader asks (`roles.judge`)."""

    async def __call__(self, task: Task, messages: Sequence[Mapping[str, JSON]], **parameters: JSON) -> str:
        """Text of its reply, empty where it said nothing. Raises a ModelCallError or BudgetExceeded, which a grader
        passes on: the row is then an `infra_error`, and no score."""


@runtime_checkable
class JudgedSuite(Protocol):
    """What a suite offers beside `Suite` when its grader asks a model. `use_judge` is called before the first grade,
    where `asks_judge` is true."""

    asks_judge: bool

    def use_judge(self, judge: Judge) -> None: ...


class ModelCalls(Protocol):
    async def complete(self, caller: Caller, request: Mapping[str, JSON]) -> dict[str, JSON]:
        """One chat completion in OpenAI's form, both ways; raises a `ModelCallError` or `BudgetExceeded`."""


Hear = Callable[[Mapping[str, JSON] | None], None]
"""Told what a model said last, from any thread: `content` and `tool_calls` of a delta in OpenAI's form. None: that
attempt broke off, what was told of it counts no more, and another one follows. It does not wait; one that raises is
told no more."""


@runtime_checkable
class StreamedCalls(ModelCalls, Protocol):
    async def stream(self, caller: Caller, request: Mapping[str, JSON], hear: Hear) -> dict[str, JSON]:
        """What `complete` gives or raises. `hear` may be told nothing: a stored reply comes whole."""


@dataclass(frozen=True)
class Step(Generic[T]):
    """One thing asked of a proposer.

    `schema` is the form of the submission; `accept` turns a valid one into the step's result or raises
    `SubmissionRefused` with reasons to send back. `accept` may be called several times and must have no effect
    when it raises. The workspace holds `SKILL.md` and the evidence; only `scaffold/` (step `propose`) and, in
    method `notes`, `agent_notes.md` may be written. `redact` takes the run's keys out of what is handed in.
    """

    name: StepName
    iteration: int
    method: Method
    workspace: Path
    instructions: str
    schema: type[BaseModel]
    accept: Callable[[BaseModel], T]
    redact: Callable[[str], str] = str


@dataclass(frozen=True)
class StepResult(Generic[T]):
    """`value` is what `accept` gave; `submission` is the accepted submission as JSON, kept for replay."""

    value: T
    submission: dict[str, JSON]
    refusals: Sequence[Sequence[str]] = ()
    """Reasons of each refused submission before this one."""
    trace_reads: int | None = None
    """How many raw traces the proposer opened; None where that cannot be seen."""
    notes: Mapping[str, Any] = field(default_factory=dict)


class Proposer(Protocol):
    """Does the steps `propose`, `predict`, `grade`, `update` in a workspace."""

    async def perform(self, step: Step[T]) -> StepResult[T]:
        """Do one step. Raises `StepFailed` when no submission was accepted; never returns an unaccepted one."""


@dataclass(frozen=True)
class SinkRun:
    """What a sink is told before the first event. `folder` is the run folder; `settings` are plain values of the
    config by dotted key, none of them secret."""

    name: str
    folder: Path
    settings: Mapping[str, JSON]
    ids: Mapping[str, str]
    """What `open` returned when this run was opened before with the same sink; empty the first time."""


@runtime_checkable
class Sink(Protocol):
    """Takes a run's events to another system. Called from one thread of its own, so that it may block.

    What it raises is reported once, and it is switched off; the run goes on. What was not flushed is told again when
    the run is opened again.
    """

    def open(self, run: SinkRun) -> Mapping[str, str]:
        """Begin what the events go to, or go on with it by `run.ids`; returns the ids to be kept for that."""

    def take(self, event: Event, view: View) -> None:
        """One event, each once and in order, and where the run stands after it."""

    def flush(self) -> None:
        """After some events, and before they count as told: hand over what is held back."""

    def close(self, view: View, artifacts: Mapping[str, str]) -> None:
        """The run is closed, ended or not: `view` says which. `artifacts` are texts by file name."""
