"""The four proposers as subjects of `bco_graph.proposers.contract`, and a model that plays a script in memory."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, TypedDict

from bco_graph.config import ProposerConfig
from bco_graph.proposers.agent import AgentProposer
from bco_graph.proposers.command import CommandProposer
from bco_graph.proposers.contract import Attempt
from bco_graph.proposers.handoff import HandoffProposer
from bco_graph.proposers.replay import ReplayProposer
from bco_graph.proposers.tree import lay, snapshot
from bco_graph.protocols import Caller, Proposer, Step, StepResult

Reply = dict[str, Any]
Call = tuple[str, "Mapping[str, Any] | str"]


def says(text: str | None, *, finish: str = "stop", usage: tuple[int, int] = (10, 5)) -> Reply:
    """A reply without a tool call."""
    return _reply({"role": "assistant", "content": text}, finish, usage)


def calls(*made: Call, usage: tuple[int, int] = (10, 5)) -> Reply:
    """A reply that calls tools; arguments that are text go out as they are, broken JSON included."""
    wire = [
        {"id": f"id{at}", "type": "function",
         "function": {"name": name, "arguments": args if isinstance(args, str) else json.dumps(args)}}
        for at, (name, args) in enumerate(made)
    ]  # fmt: skip
    return _reply({"role": "assistant", "content": None, "tool_calls": wire}, "tool_calls", usage)


def _reply(message: dict[str, Any], finish: str, usage: tuple[int, int]) -> Reply:
    counted = {"prompt_tokens": usage[0], "completion_tokens": usage[1]}
    return {"choices": [{"index": 0, "message": message, "finish_reason": finish}], "usage": counted}


class ScriptedCalls:
    """A `ModelCalls` that gives replies, or raises errors, in order; the last one again when asked on."""

    def __init__(self, *script: Reply | Exception) -> None:
        self.script = list(script)
        self.requests: list[dict[str, Any]] = []
        self.callers: list[Caller] = []

    async def complete(self, caller: Caller, request: Mapping[str, Any]) -> dict[str, Any]:
        self.callers.append(caller)
        self.requests.append(json.loads(json.dumps(request)))
        reply = self.script[min(len(self.requests), len(self.script)) - 1]
        if isinstance(reply, Exception):
            raise reply
        return reply

    def results(self) -> list[str]:
        """Contents of the tool messages in the last request, in order."""
        return [m["content"] for m in self.requests[-1]["messages"] if m["role"] == "tool"]


class AgentSubject:
    own_files: frozenset[str] = frozenset()
    hears_refusals = True

    def __init__(self, tmp_path: Path) -> None:
        self._calls = ScriptedCalls()

    async def perform(self, step: Step[Any], attempts: list[Attempt], *, max_refusals: int) -> StepResult[Any]:
        self._calls = ScriptedCalls(*(self._turn(attempt) for attempt in attempts))
        config = ProposerConfig(max_refusals=max_refusals)
        return await AgentProposer(config, self._calls, capabilities=lambda _: {"tools": True}).perform(step)

    def _turn(self, attempt: Attempt) -> Reply:
        edits: list[Call] = [("write_file", {"path": path, "content": t}) for path, t in attempt.edits.items()]
        return calls(*edits, ("submit", attempt.submission))

    def heard(self) -> str:
        return "\n".join(str(message["content"]) for message in self._calls.requests[-1]["messages"])

    def tries(self) -> int:
        return len(self._calls.requests)


class CommandSubject:
    own_files: frozenset[str] = frozenset({"STEP.md", "REFUSED.md", "submission.json"})
    hears_refusals = True

    SCRIPT = """\
import json, pathlib, sys
played = pathlib.Path(sys.argv[1])
state = json.loads(played.read_text(encoding="utf-8"))
attempt = state["attempts"][min(state["runs"], len(state["attempts"]) - 1)]
state["runs"] += 1
state["heard"] += sys.argv[2] + pathlib.Path("STEP.md").read_text(encoding="utf-8")
if pathlib.Path("REFUSED.md").exists():
    state["heard"] += pathlib.Path("REFUSED.md").read_text(encoding="utf-8")
played.write_text(json.dumps(state), encoding="utf-8")
for path, text in attempt["edits"].items():
    pathlib.Path(path).parent.mkdir(parents=True, exist_ok=True)
    pathlib.Path(path).write_bytes(text.encode("utf-8"))
pathlib.Path("submission.json").write_text(attempt["submission"], encoding="utf-8")
"""

    def __init__(self, tmp_path: Path) -> None:
        self._script, self._played = tmp_path / "cli.py", tmp_path / "played.json"
        self._script.write_text(self.SCRIPT, encoding="utf-8")

    async def perform(self, step: Step[Any], attempts: list[Attempt], *, max_refusals: int) -> StepResult[Any]:
        listed = [{"submission": a.submission, "edits": dict(a.edits)} for a in attempts]
        state = {"attempts": listed, "runs": 0, "heard": ""}
        self._played.write_text(json.dumps(state), encoding="utf-8")
        config = ProposerConfig(
            kind="command", max_refusals=max_refusals, timeout_s=30.0, sandbox="off",  # it keeps a record outside
            command=[sys.executable, "-S", str(self._script), str(self._played), "{prompt}"],
        )  # fmt: skip
        proposer = CommandProposer(config, gateway_url="http://127.0.0.1:1/v1", token_for=lambda _: "token-1")
        return await proposer.perform(step)

    def heard(self) -> str:
        return str(json.loads(self._played.read_text(encoding="utf-8"))["heard"])

    def tries(self) -> int:
        return int(json.loads(self._played.read_text(encoding="utf-8"))["runs"])


class HandoffSubject:
    own_files: frozenset[str] = frozenset({"STEP.md", "submission.json", ".handoff"})
    hears_refusals = True

    def __init__(self, tmp_path: Path) -> None:
        self._heard, self._tries = "", 0

    async def perform(self, step: Step[Any], attempts: list[Attempt], *, max_refusals: int) -> StepResult[Any]:
        def answer(question: Mapping[str, Any], number: int) -> Any:
            self._heard += Path(question["instructions"]).read_text(encoding="utf-8") + str(question["refused"])
            self._tries = number + 1
            attempt = attempts[min(number, len(attempts) - 1)]
            for path, text in attempt.edits.items():
                (step.workspace / path).parent.mkdir(parents=True, exist_ok=True)
                (step.workspace / path).write_bytes(text.encode("utf-8"))
            return attempt.submission

        return await hand_off(HandoffProposer(ProposerConfig(kind="handoff", max_refusals=max_refusals)), step, answer)

    def heard(self) -> str:
        return self._heard

    def tries(self) -> int:
        return self._tries


class Nothing(TypedDict, total=False):
    done: bool


async def hand_off(
    proposer: Proposer, step: Step[Any], answer: Callable[[Mapping[str, Any], int], Any]
) -> StepResult[Any]:
    """Perform a step in a graph of one node; `answer` gets each interrupt's value and its number from 0."""
    from langgraph.checkpoint.memory import InMemorySaver
    from langgraph.graph import END, START, StateGraph
    from langgraph.types import Command

    results: list[StepResult[Any]] = []

    async def node(state: Nothing) -> Nothing:
        results.append(await proposer.perform(step))
        return {"done": True}

    graph = StateGraph(Nothing)
    graph.add_node("node", node)
    graph.add_edge(START, "node")
    graph.add_edge("node", END)
    app = graph.compile(checkpointer=InMemorySaver())
    where: Any = {"configurable": {"thread_id": "1"}}
    state = await app.ainvoke({}, where)
    number = 0
    while "__interrupt__" in state:
        given = answer(state["__interrupt__"][0].value, number)
        number += 1
        state = await app.ainvoke(Command(resume=given), where)
    return results[-1]


class ReplaySubject:
    own_files: frozenset[str] = frozenset()
    hears_refusals = False

    def __init__(self, tmp_path: Path) -> None:
        self._recording = tmp_path / "recording"

    async def perform(self, step: Step[Any], attempts: Sequence[Attempt], *, max_refusals: int) -> StepResult[Any]:
        folder = self._recording / "iter_001"
        lay(folder / "source", snapshot(step.workspace / "scaffold"))
        for path, text in attempts[0].edits.items():
            target = folder / path.replace("scaffold/", "source/", 1)
            target.parent.mkdir(parents=True, exist_ok=True)
            target.write_bytes(text.encode("utf-8"))
        recorded = f'{{"submission": {attempts[0].submission}}}'
        (folder / f"{step.name}.json").write_text(recorded, encoding="utf-8")
        return await ReplayProposer(self._recording).perform(step)

    def heard(self) -> str:
        return ""

    def tries(self) -> int:
        return 1
