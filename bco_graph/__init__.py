"""Belief-Calibrated Optimization as a LangGraph plugin: `create_bco(config) -> StateGraph`.

Importing this package is cheap: neither langgraph nor litellm is loaded before something of theirs is used.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from bco_graph import nodes as nodes
    from bco_graph.binding import RunHandle as RunHandle
    from bco_graph.binding import bind as bind
    from bco_graph.config import RunConfig as RunConfig
    from bco_graph.config import check_config as check_config
    from bco_graph.config import load_config as load_config
    from bco_graph.errors import BcoError as BcoError
    from bco_graph.errors import StaleCheckpoint as StaleCheckpoint
    from bco_graph.events import EVENT_TYPES as EVENT_TYPES
    from bco_graph.events import EVENT_VERSION as EVENT_VERSION
    from bco_graph.events import Event as Event
    from bco_graph.events import View as View
    from bco_graph.events import event_faults as event_faults
    from bco_graph.events import reduce as reduce
    from bco_graph.fork import Fork as Fork
    from bco_graph.fork import fork_run as fork_run
    from bco_graph.graph import create_bco as create_bco
    from bco_graph.graph import recursion_limit as recursion_limit
    from bco_graph.opening import open_run as open_run
    from bco_graph.outside import change_world_model as change_world_model
    from bco_graph.outside import read_world_model as read_world_model
    from bco_graph.protocols import Executor as Executor
    from bco_graph.protocols import Interface as Interface
    from bco_graph.protocols import Judge as Judge
    from bco_graph.protocols import JudgedSuite as JudgedSuite
    from bco_graph.protocols import Proposer as Proposer
    from bco_graph.protocols import Score as Score
    from bco_graph.protocols import Sink as Sink
    from bco_graph.protocols import SinkRun as SinkRun
    from bco_graph.protocols import Step as Step
    from bco_graph.protocols import StepResult as StepResult
    from bco_graph.protocols import Suite as Suite
    from bco_graph.protocols import Task as Task
    from bco_graph.runtime import RunContext as RunContext
    from bco_graph.state import BCOState as BCOState
    from bco_graph.state import EvaluateUpdate as EvaluateUpdate
    from bco_graph.state import GradeUpdate as GradeUpdate
    from bco_graph.state import PredictUpdate as PredictUpdate
    from bco_graph.state import ProposeUpdate as ProposeUpdate
    from bco_graph.state import UpdateUpdate as UpdateUpdate
    from bco_graph.state import WorldModelReference as WorldModelReference
    from bco_graph.world_model import Belief as Belief
    from bco_graph.world_model import Evidence as Evidence
    from bco_graph.world_model import WorldModel as WorldModel

__version__ = "0.1.0"

_HOME = {
    "RunHandle": "binding",
    "bind": "binding",
    "RunConfig": "config",
    "check_config": "config",
    "load_config": "config",
    "BcoError": "errors",
    "StaleCheckpoint": "errors",
    "EVENT_TYPES": "events",
    "EVENT_VERSION": "events",
    "Event": "events",
    "View": "events",
    "event_faults": "events",
    "reduce": "events",
    "Fork": "fork",
    "fork_run": "fork",
    "create_bco": "graph",
    "recursion_limit": "graph",
    "open_run": "opening",
    "change_world_model": "outside",
    "read_world_model": "outside",
    "Executor": "protocols",
    "Interface": "protocols",
    "Judge": "protocols",
    "JudgedSuite": "protocols",
    "Proposer": "protocols",
    "Score": "protocols",
    "Sink": "protocols",
    "SinkRun": "protocols",
    "Step": "protocols",
    "StepResult": "protocols",
    "Suite": "protocols",
    "Task": "protocols",
    "RunContext": "runtime",
    "BCOState": "state",
    "EvaluateUpdate": "state",
    "GradeUpdate": "state",
    "PredictUpdate": "state",
    "ProposeUpdate": "state",
    "UpdateUpdate": "state",
    "WorldModelReference": "state",
    "Belief": "world_model",
    "Evidence": "world_model",
    "WorldModel": "world_model",
}
"""Where each public name lives; `nodes` is a package of its own."""

__all__ = [*sorted([*_HOME, "nodes"]), "__version__"]


def __getattr__(name: str) -> Any:
    if name in _HOME:
        return getattr(importlib.import_module(f"bco_graph.{_HOME[name]}"), name)
    if name == "nodes":
        return importlib.import_module("bco_graph.nodes")
    raise AttributeError(f"module 'bco_graph' has no attribute {name!r}")


def __dir__() -> list[str]:
    return __all__
