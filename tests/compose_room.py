"""What the tests of composing share: the toy run as a handle, a proposer of two edits, a parent graph."""

from __future__ import annotations

import operator
from pathlib import Path
from types import SimpleNamespace
from typing import Annotated, Any, TypedDict

from langgraph.graph import END, START, StateGraph

from bco_graph import RunHandle, create_bco, recursion_limit
from bco_graph.config import RunConfig
from bco_graph.report.verify import verify
from bco_graph.run_folder import RunFolder
from bco_graph.testing import ScriptedModelServer
from tests.toy import (
    DEFAULTS,
    SHORT,
    ToySuite,
    answer,
    prompt_edit,
    toy_config,
    two_edits,
)


class Room:
    """The scripted target, the suite, and handles, which are closed with it."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.server = ScriptedModelServer({"toy-model": answer})
        self.suite = ToySuite(folder / "initial")
        self._handles: list[RunHandle] = []

    def __enter__(self) -> Room:
        self.server.start()
        return self

    def __exit__(self, *_: object) -> None:
        for handle in self._handles:
            handle.close()
        self.server.close()

    def run(self, proposer: Any = None, **changes: Any) -> RunHandle:
        """The toy run; another proposer, or other keys of the config, where they are given."""
        return self.handle(toy_config(self.folder, self.server, **changes), proposer)

    def handle(self, config: RunConfig, proposer: Any = None) -> RunHandle:
        self._handles.append(RunHandle(config, suite=self.suite, proposer=proposer or two_edits()))
        return self._handles[-1]


def limits(config: RunConfig, thread: str = "1") -> Any:
    return {"configurable": {"thread_id": thread}, "recursion_limit": recursion_limit(config)}


def wrong(folder: Path) -> list[Any]:
    """What `bco verify` finds."""
    return [finding for finding in verify(RunFolder(folder)) if finding["wrong"]]


class App(TypedDict, total=False):
    asked: Annotated[list[str], operator.add]
    best: Any
    stop: Any
    outcome: Any


def app(handle: RunHandle) -> StateGraph[Any, Any, Any, Any]:
    """Somebody's graph: it takes a request, improves the agent, and says what came of it."""

    def say(state: App) -> App:
        return {"asked": [f"{state['best']['id']} has {state['best']['mean']:.1f}"]}

    graph = StateGraph(App)
    graph.add_node("improve", create_bco(handle.config, handle=handle).compile())
    graph.add_node("say", say)
    graph.add_edge(START, "improve")
    graph.add_edge("improve", "say")
    graph.add_edge("say", END)
    return graph


def handed_in(state: dict[str, Any]) -> Any:
    """What somebody hands in for the step that a graph awaits; for `propose` the scaffold is edited first."""
    (awaited,) = state["__interrupt__"]
    asked = awaited.value
    if asked["step"] == "propose":
        prompt_edit(SHORT, "asked-alone")(Path(asked["workspace"]) / "scaffold")
    given = DEFAULTS[asked["step"]]
    instructions = Path(asked["instructions"]).read_text(encoding="utf-8")
    return given(SimpleNamespace(iteration=asked["iteration"], instructions=instructions)) if callable(given) else given
