"""Many rounds of all five nodes: what the benches of a round, a resume, a soak and of memory share.

The proposer plays a script. With `here`, candidates answer in this process at once, so that what is left is the loop
itself: nodes, receipts, checkpoints, git, evidence; without it they run in the executor and call a scripted model.
"""

from __future__ import annotations

import os
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from langgraph.checkpoint.sqlite.aio import AsyncSqliteSaver

from bco_graph.binding import RunHandle
from bco_graph.config import RunConfig, check_config
from bco_graph.evaluation import LocalExecutor
from bco_graph.events import Event
from bco_graph.graph import create_bco, recursion_limit
from bco_graph.protocols import Interface, Job, RunResult, Score, Step, StepResult, T, Task
from bco_graph.runtime import RunContext
from bco_graph.state import JSON, Split
from bco_graph.testing import ScriptedModelServer

AGENT = """\
from pathlib import Path

ROUND = int((Path(__file__).parent / "round.txt").read_text(encoding="utf-8"))


async def solve(task, target):
    target.trace(f"round-{ROUND}.")
    print("x" * task.inputs["trace_bytes"])
    return await target.chat(f"Say {task.inputs['number']} in round {ROUND}.")
"""
PREDICT = {
    "base_why": "It stands.", "behavioural": "Answers change.", "confidence": 0.7, "downside_bound": 0,
    "upside_types": ["odd"], "net_effect": 0.1, "falsification": "They do not.",
    "subset": {"types": ["odd"], "expected": 0.1, "low": -0.5, "high": 0.5},
}  # fmt: skip
GRADE = {
    "behavioural_check": "They changed.", "behaviour_changed": "yes", "verdict": "held", "cause": "belief_wrong",
    "learned": "Each round is another.",
}  # fmt: skip
BELIEF = {
    "op": "add", "kind": "execution", "claim": "Answers differ from round to round.", "confidence": 0.6, "mass": 3,
    "status": "hypothesis", "reason": "seen",
}  # fmt: skip


class Numbers:
    """A suite of numbered tasks, one more of which is answered rightly every 25 rounds, and from then on."""

    name = "numbers"
    interface = Interface(must_call_target=False)

    def __init__(self, folder: Path, tasks: int, trace_bytes: int) -> None:
        self._scaffold, self._tasks, self._trace_bytes = folder, tasks, trace_bytes
        folder.mkdir(parents=True, exist_ok=True)
        (folder / "agent.py").write_text(AGENT, encoding="utf-8")
        (folder / "round.txt").write_text("0", encoding="utf-8")

    def tasks(self, split: Split) -> Sequence[Task]:
        given = range(self._tasks if split == "train" else 1)
        inputs = [{"number": number, "trace_bytes": self._trace_bytes} for number in given]
        return [Task(f"number-{split}-{i}", ("even", "odd")[i % 2], inputs[i]) for i in given]

    def gold(self, task: Task) -> JSON:
        return "right" + " answer" * 5

    def grade(self, task: Task, answer: JSON) -> Score:
        return Score(float(int(answer.split()[-1].rstrip(".")) >= 25 * task.inputs["number"]))

    def initial_scaffold(self) -> Path:
        return self._scaffold

    def surface(self) -> str:
        return "Change the number of the round.\n"


class Script:
    """A proposer that makes a new edit and learns something in every round."""

    async def perform(self, step: Step[T]) -> StepResult[T]:
        given = self._submission(step)
        return StepResult(step.accept(step.schema.model_validate(given)), given)

    def _submission(self, step: Step[Any]) -> dict[str, Any]:
        number = step.iteration
        if step.name == "propose":
            (step.workspace / "scaffold" / "round.txt").write_text(str(number), encoding="utf-8")
            return {
                "parent": f"iter_{max(0, number - 1):03d}", "name": f"round-{number}", "mechanism": "It counts on.",
                "mode": "probe", "failure_mode": f"mode {number}", "beliefs": ["E1"],
                "live_signature": f"round-{number}.",
            }  # fmt: skip
        if step.name != "update":
            return PREDICT if step.name == "predict" else GRADE
        evidence = [{"path": f"iterations/iter_{number:03d}/outcome.json"}]
        if number == 0:
            return {"ops": [BELIEF | {"evidence_for": evidence}]}
        revise = {"op": "revise", "id": "E1", "confidence": 0.5 + number % 40 / 100, "reason": "measured"}
        return {"ops": [revise | {"add_evidence_for": evidence}], "experiment_note": "as it was measured"}


class Here(LocalExecutor):
    """Answers at once, in this process."""

    async def run(
        self,
        source: Path,
        interface: Interface,
        jobs: Sequence[Job],
        on_result: Callable[[RunResult], Awaitable[None]],
    ) -> None:
        number = (source / "round.txt").read_text(encoding="utf-8")
        for job in jobs:
            printed = "x" * job.task.inputs["trace_bytes"]
            answer, events = f"round {number}.", [f"round-{number}."]
            await on_result(RunResult(job.task.id, job.repeat, "answered", answer, "", 0.0, printed, "", events))

    def import_problems(self, source: Path, interface: Interface) -> list[str]:
        return []


class Handle(RunHandle):
    def open(self) -> RunContext:
        opened = self._run is not None
        run = super().open()
        if not opened:
            here = Here(run.config.evaluation, socket_path=run.executor.socket_path, sandbox=run.executor.sandbox)
            self._run = run = replace(run, executor=here, evaluator=replace(run.evaluator, executor=here))
        return run


def config_of(folder: Path, base_url: str, rounds: int) -> RunConfig:
    params = {"model": "openai/numbers", "api_base": base_url, "api_key": "none", "temperature": 0}
    return check_config(
        {
            "name": "numbers", "suite": "numbers", "runs": str(folder), "iterations": rounds,
            "models": {"model_list": [{"model_name": "numbers", "litellm_params": params}]},
            "roles": {"target": "numbers"}, "proposer": {"kind": "handoff"}, "world_model": {"token_budget": 1000},
        }
    )  # fmt: skip


async def play(
    folder: Path,
    rounds: int,
    *,
    tasks: int,
    here: bool = True,
    trace_bytes: int = 0,
    on_event: Callable[[Event], None] = lambda event: None,
) -> Path:
    """Run it, or continue what is there, with SQLite checkpoints; the run folder."""
    with ScriptedModelServer({"numbers": lambda body: str(body["messages"][-1]["content"])}) as server:
        # A run goes on with the target that it was made with, so one that nobody calls has always the same address.
        config = config_of(folder, "http://127.0.0.1:9/v1" if here else server.base_url, rounds)
        kind = Handle if here else RunHandle
        handle = kind(config, suite=Numbers(folder / "initial", tasks, trace_bytes), proposer=Script())
        run = handle.open()
        run.events.subscribe(on_event)
        try:
            async with AsyncSqliteSaver.from_conn_string(str(run.folder.checkpoints)) as saver:
                graph = create_bco(config, handle=handle).compile(checkpointer=saver)
                thread: Any = {"configurable": {"thread_id": "run"}, "recursion_limit": recursion_limit(config)}
                begun = bool((await graph.aget_state(thread)).values)
                if begun:
                    await graph.aupdate_state(thread, {"stop": None}, as_node="update")
                await graph.ainvoke(None if begun else {}, thread)
        finally:
            handle.close()
    return config.run_dir


def ends_a_round(event: Event) -> bool:
    return bool(event["type"] == "node_ended" and event["node"] == "update")


def cpu_s() -> float:
    """Processor seconds of this process and of the children that it has waited for: git, and candidates."""
    return sum(os.times()[:4])
