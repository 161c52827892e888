"""Nodes of the caller's own in the place of ours: found, checked, and held to what the receipts need.

An own node is a plain async function `(state, *, run)` that returns what the node it stands for returns, in plain JSON,
and may add keys of the caller's own state. What it returned is recorded: like ours, it is asked once in an iteration,
and not again after a kill. What it leaves out of the receipts is written for it, so that every reader finds the step.
"""

from __future__ import annotations

import inspect
from collections.abc import Awaitable, Callable, Collection, Mapping
from pathlib import Path
from typing import Any, NotRequired, cast, get_args, get_origin, get_type_hints, is_typeddict

from bco_graph.config import RunConfig, nearest
from bco_graph.distill import distill_text
from bco_graph.errors import ConfigError
from bco_graph.outside import changes, difference, replay_changes
from bco_graph.places import DONE, iteration_of
from bco_graph.prediction import Prediction, render_prediction, seal
from bco_graph.receipts import dumps
from bco_graph.runtime import RunContext
from bco_graph.state import (
    JSON,
    BCOState,
    EvaluateUpdate,
    Failure,
    Grade,
    GradeUpdate,
    NodeName,
    PredictUpdate,
    ProposeUpdate,
    UpdateUpdate,
    candidate_id,
)
from bco_graph.steps import StepRecord
from bco_graph.suites import find
from bco_graph.world_model import WorldModel, wrong_stakes

GROUP = "bco_graph.nodes"
"""Group of entry points: functions that `nodes` in the config may name."""

OWN = "own_"
"""What the step of a node in the receipts begins with that was the caller's own."""

Node = Callable[..., Awaitable[Any]]
UPDATES: Mapping[NodeName, type] = {
    "propose": ProposeUpdate, "predict": PredictUpdate, "evaluate": EvaluateUpdate, "grade": GradeUpdate,
    "update": UpdateUpdate,
}  # fmt: skip


def own_nodes(
    config: RunConfig, given: Mapping[str, Node], state_schema: type, *, known: Collection[str]
) -> dict[str, Node]:
    """The config's `nodes`, and `given` over them, each ready to be bound. Raises ConfigError for one that is no node
    of the method (`known`), or no async function of `(state, *, run)`."""
    chosen: dict[str, Any] = {
        name: find(where, Path(config.base), group=GROUP, what="node") for name, where in config.nodes.items()
    }
    chosen |= given
    return {name: _own(name, node, state_schema, config, known) for name, node in chosen.items()}


def _own(name: str, node: Any, schema: type, config: RunConfig, known: Collection[str]) -> Node:
    if name not in known:
        every = get_args(NodeName)
        why = f"method {config.method!r} has no node {name!r}" if name in every else f"there is no node {name!r}"
        raise ConfigError(f"nodes: {why}{nearest(name, known)}; it has: {', '.join(known)}")
    called = node if inspect.isfunction(node) or inspect.ismethod(node) else getattr(node, "__call__", node)  # noqa: B004
    try:
        takes_run = "run" in inspect.signature(node).parameters
    except (TypeError, ValueError):
        takes_run = False
    if not inspect.iscoroutinefunction(called) or not takes_run:
        raise ConfigError(f"nodes: {node!r} for {name!r} is no async function of the form `async def (state, *, run)`")
    return _recorded(name, node, schema)  # type: ignore[arg-type]


def _recorded(name: NodeName, node: Node, schema: type) -> Node:
    async def own(state: BCOState, *, run: RunContext) -> dict[str, JSON]:
        iteration = iteration_of(name, state)
        done = run.receipts.step(iteration, f"{OWN}{name}")
        if done is None:
            done = {"update": _checked(name, await node(state, run=run), schema)}
            if name == "evaluate" and "outcome" not in done["update"]:
                return dict(done["update"])  # cut off by a budget: not over
            run.receipts.add_step(iteration, f"{OWN}{name}", done)
        update: dict[str, JSON] = done["update"]
        if run.receipts.step(iteration, DONE[name]) is not None:
            return _settled(name, update)
        return _KEEP[name](run, state, iteration, update)

    own.__name__ = name
    return own


# -- what it returned ------------------------------------------------------------------------------------------------


def _checked(name: NodeName, update: Any, schema: type) -> dict[str, JSON]:
    """LangGraph drops a key that it does not know in silence, and a checkpoint can only be read where it is JSON."""
    if not isinstance(update, Mapping):
        raise ConfigError(f"node {name!r} of yours returned {type(update).__name__}, not a mapping of state keys")
    form = UPDATES[name]
    ours, hints = get_type_hints(BCOState), get_type_hints(form)
    allowed = {*hints, *(get_type_hints(schema).keys() - ours.keys())}
    for key in update:
        if key not in allowed:
            why = (
                "which another node writes" if key in ours else f"which the state does not have{nearest(key, allowed)}"
            )
            raise ConfigError(f"node {name!r} of yours returned {key!r}, {why}; it may return: {_names(allowed)}")
    cut_off = name == "evaluate" and update.keys() & hints.keys() == {"stop"}
    if missing := set() if cut_off else hints.keys() - update.keys():
        raise ConfigError(f"node {name!r} of yours did not return {_names(missing)}")
    for key in hints.keys() & update.keys():
        wanted = _required(hints[key])
        if wanted and not (isinstance(update[key], Mapping) and wanted <= update[key].keys()):
            raise ConfigError(f"node {name!r} of yours returned a {key!r} that lacks some of: {_names(wanted)}")
    try:
        dumps(dict(update))
    except (TypeError, ValueError) as error:
        raise ConfigError(f"node {name!r} of yours returned what is no plain JSON: {error}") from error
    return dict(update)


def _required(form: Any) -> set[str]:
    """Keys that a TypedDict must have. `__required_keys__` does not see NotRequired in annotations that are text."""
    hints = get_type_hints(form, include_extras=True) if is_typeddict(form) else {}
    return {key for key, hint in hints.items() if get_origin(hint) is not NotRequired}


def _names(keys: Collection[str]) -> str:
    return ", ".join(sorted(keys))


def _settled(name: NodeName, update: dict[str, JSON]) -> dict[str, JSON]:
    """The update for the state: a HEAD that is in the receipts need not be in every checkpoint."""
    if name != "update":
        return update
    reference = {key: value for key, value in update["world_model"].items() if key != "head"}
    return {**update, "world_model": reference}


# -- the step in the receipts, where the node has not written it -------------------------------------------------------


def _keep_proposal(run: RunContext, state: BCOState, iteration: int, update: dict[str, JSON]) -> dict[str, JSON]:
    """A tree that was staged past the checks is checked now: it becomes no candidate unless it passes."""
    proposal = update["proposal"]
    reasons = [] if proposal["failure"] else _faults(run, state, proposal)
    if reasons:
        proposal = {**proposal, "failure": Failure(step="propose", cause="checks", reasons=reasons)}
    failure = proposal["failure"]
    notes = {"notes": run.evidence.notes()} if run.config.method == "notes" else {}
    run.receipts.add_step(iteration, "propose", dict(_step({**proposal, **notes}, failure)))
    if failure is None:
        parent_tree = run.candidates.tree(proposal["parent"])
        run.evidence.write_candidate(iteration, proposal, tree=proposal["tree"], parent_tree=parent_tree)
    return {**update, "proposal": proposal}


def _faults(run: RunContext, state: BCOState, proposal: dict[str, JSON]) -> list[str]:
    if "world_model" in state:
        head = run.document.head(state["world_model"]["iteration"])
        if wrong := wrong_stakes(head.beliefs, proposal["beliefs"]):
            return wrong
    known = run.candidates.ids()
    if proposal["parent"] not in known:
        return [f"parent {proposal['parent']!r} is no evaluated candidate; there are: {', '.join(known)}"]
    with run.source(proposal["tree"]) as source:
        return run.check_scaffold(source)


def _keep_prediction(run: RunContext, state: BCOState, iteration: int, update: dict[str, JSON]) -> dict[str, JSON]:
    sealed = update["prediction"]
    if sealed["failure"]:
        run.receipts.add_step(iteration, "predict", dict(_step(None, sealed["failure"])))
        return update
    prediction = Prediction.from_json(sealed["content"])
    if sealed["digest"] != seal(prediction):
        raise ConfigError("node 'predict' of yours returned a digest that is not bco_graph.prediction.seal(prediction)")
    text = render_prediction(prediction)
    result = {"content": sealed["content"], "digest": sealed["digest"], "text": text}
    run.receipts.add_step(iteration, "predict", dict(_step(result, None)))
    run.evidence.write_text(iteration, "prediction.md", text)
    return update


def _keep_outcome(run: RunContext, state: BCOState, iteration: int, update: dict[str, JSON]) -> dict[str, JSON]:
    run.receipts.add_step(iteration, "evaluate", update["outcome"])
    return update


def _keep_grade(run: RunContext, state: BCOState, iteration: int, update: dict[str, JSON]) -> dict[str, JSON]:
    grade = update["grade"]
    run.receipts.add_step(iteration, "graded", grade)
    prediction = Prediction.from_json(state["prediction"]["content"])
    text = distill_text(prediction, cast(Grade, grade), grading=run.config.grading)
    run.evidence.write_text(iteration, "grade.md", text)
    return update


def _keep_document(run: RunContext, state: BCOState, iteration: int, update: dict[str, JSON]) -> dict[str, JSON]:
    given = update["world_model"].get("head")
    if given is None:
        raise ConfigError("node 'update' of yours returned a world_model without its `head`, and recorded no document")
    before = run.document.head(state["world_model"]["iteration"]) if "world_model" in state else WorldModel()
    head = WorldModel.from_json(given)
    history = (
        f"### {candidate_id(iteration)} distill\nUpdated by a node of the caller's own.\n{difference(before, head)}\n"
    )
    record = {"head": head.to_json(), "changes": changes(iteration, before, head), "history": history}
    run.receipts.add_step(iteration, "document", record)
    run.write_document()
    run.events.emit("beliefs", iteration, changes=record["changes"])
    replay_changes(run, iteration, before=(iteration + 1, "propose"))
    return _settled("update", update)


def _step(result: dict[str, JSON] | None, failure: JSON) -> StepRecord:
    return StepRecord(
        result=None if failure else result, submission=None, refusals=[], trace_reads=None, notes={}, raw="",
        failure=failure,
    )  # fmt: skip


_KEEP: Mapping[NodeName, Callable[[RunContext, BCOState, int, dict[str, JSON]], dict[str, JSON]]] = {
    "propose": _keep_proposal, "predict": _keep_prediction, "evaluate": _keep_outcome, "grade": _keep_grade,
    "update": _keep_document,
}  # fmt: skip
