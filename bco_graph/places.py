"""Where in the graph a node may run: at the run's newest place, and never again from one that the run has left.

The receipts are keyed by iteration, so a node that is started from an earlier checkpoint would be given what was
recorded there, whatever it was meant to do anew. What a kill explains is allowed: the same checkpoint once more, one
that lags behind a little, and the way from the start, or from such a checkpoint, up to where the receipts end.
Everything else is a fork, and a fork has a folder of its own.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from langgraph.runtime import get_runtime

from bco_graph.errors import StaleCheckpoint
from bco_graph.runtime import RunContext
from bco_graph.state import AskName, Method, NodeName, candidate_id

LAST: Mapping[Method, NodeName] = {"bco": "update", "vanilla": "evaluate", "notes": "evaluate"}
"""The node after which a run ends or goes on to the next round."""

DONE: Mapping[NodeName | AskName, str] = {
    "propose": "propose", "approve": "approve", "predict": "predict", "afford": "afford", "evaluate": "evaluate",
    "grade": "graded", "review": "review", "update": "document",
}  # fmt: skip
"""The step that each node leaves in the receipts when it has ended, in the order of a round."""

_ORDER = list(DONE)
MAY_LAG = 1
"""Rounds that LangGraph's checkpoints may be behind the receipts when a process is killed: it writes them while the
next node runs (`durability="async"`), so that quick nodes get ahead of them."""


def iteration_of(node: NodeName | AskName, state: Mapping[str, Any]) -> int:
    """The iteration that a node works on when it is given a state."""
    return int(state.get("iteration", -1)) + (0 if node in ("grade", "review", "update") else 1)


class Places:
    """The last place of each thread in this process."""

    def __init__(self) -> None:
        self._last: dict[str | None, tuple[int, int]] = {}

    def enter(self, run: RunContext, node: NodeName | AskName, state: Mapping[str, Any]) -> None:
        """Take the place, or raise StaleCheckpoint."""
        thread, checkpoint = _where()
        iteration = iteration_of(node, state)
        place = (iteration, _ORDER.index(node))
        last = self._last.get(thread, place)
        if "iteration" in state and not last < place and self._left_behind(run, node, iteration, thread, checkpoint):
            raise stale(run, node, iteration)
        run.receipts.set_place(iteration, node, checkpoint)
        self._last[thread] = place

    def _left_behind(
        self, run: RunContext, node: NodeName | AskName, iteration: int, thread: str | None, checkpoint: str
    ) -> bool:
        if run.receipts.step(iteration, DONE[node]) is None:
            return has_gone_on(run, iteration)
        if thread is None:  # without a checkpointer nobody can say
            later = _ORDER[_ORDER.index(node) + 1 :]
            return has_gone_on(run, iteration) or any(run.receipts.step(iteration, DONE[name]) for name in later)
        if run.receipts.place(iteration, node) == checkpoint:
            return False
        killed = run.lock is not None and run.lock.owner_died and thread not in self._last
        return not (killed and run.receipts.last_iteration() <= iteration + MAY_LAG)


def has_gone_on(run: RunContext, iteration: int) -> bool:
    """Whether a later iteration has a finished step."""
    return run.receipts.last_iteration() > iteration


def stale(run: RunContext, node: str, iteration: int) -> StaleCheckpoint:
    root, before = run.folder.root, candidate_id(max(0, iteration - 1))
    return StaleCheckpoint(
        f"node {node!r} was started for {candidate_id(iteration)} from a checkpoint that {root} has left behind: it "
        f"holds that step's result, and more up to {candidate_id(run.receipts.last_iteration())}. To go another way "
        f"from there, fork the run into a folder of its own: `bco fork {root} NAME --at {before}`, or "
        "bco_graph.fork_run(...); to go on where it stands, start the graph with {} on a new thread (for `bco resume`: "
        "move checkpoints.sqlite away)"
    )


def _where() -> tuple[str | None, str]:
    """Thread and checkpoint that the running node was started from; (None, "") where nothing is kept."""
    try:
        info = get_runtime().execution_info
    except (RuntimeError, KeyError):
        return None, ""  # outside of a graph
    return (info.thread_id, info.checkpoint_id) if info and info.thread_id else (None, "")
