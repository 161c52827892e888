"""Belief-Calibrated Optimization as a LangGraph plugin: `create_bco(config) -> StateGraph`.

Importing this package is cheap: neither langgraph nor litellm is loaded before something of theirs is used.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from bco_graph.config import RunConfig as RunConfig
    from bco_graph.config import load_config as load_config
    from bco_graph.events import EVENT_TYPES as EVENT_TYPES
    from bco_graph.events import EVENT_VERSION as EVENT_VERSION
    from bco_graph.events import Event as Event
    from bco_graph.events import View as View
    from bco_graph.events import event_faults as event_faults
    from bco_graph.events import reduce as reduce
    from bco_graph.graph import create_bco as create_bco
    from bco_graph.protocols import Executor as Executor
    from bco_graph.protocols import Interface as Interface
    from bco_graph.protocols import Proposer as Proposer
    from bco_graph.protocols import Score as Score
    from bco_graph.protocols import Sink as Sink
    from bco_graph.protocols import SinkRun as SinkRun
    from bco_graph.protocols import Suite as Suite
    from bco_graph.protocols import Task as Task
    from bco_graph.state import BCOState as BCOState

__version__ = "0.1.0"

_HOME = {
    "RunConfig": "config",
    "load_config": "config",
    "EVENT_TYPES": "events",
    "EVENT_VERSION": "events",
    "Event": "events",
    "View": "events",
    "event_faults": "events",
    "reduce": "events",
    "create_bco": "graph",
    "Executor": "protocols",
    "Interface": "protocols",
    "Proposer": "protocols",
    "Score": "protocols",
    "Sink": "protocols",
    "SinkRun": "protocols",
    "Suite": "protocols",
    "Task": "protocols",
    "BCOState": "state",
}

__all__ = [*sorted(_HOME), "__version__"]


def __getattr__(name: str) -> Any:
    if name in _HOME:
        return getattr(importlib.import_module(f"bco_graph.{_HOME[name]}"), name)
    raise AttributeError(f"module 'bco_graph' has no attribute {name!r}")
