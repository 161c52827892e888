"""The graph for LangGraph's own server (`langgraph dev`, LangGraph Platform): a factory that reads bco.yaml.

`langgraph.json` names it as `"graphs": {"bco": "bco_graph.server:graph"}`. The config is the file that the environment
variable BCO_CONFIG names, `bco.yaml` in the server's folder where it names none. The server owns checkpointer and
store. Each thread has a run folder of its own, `runs/NAME-THREAD`, which is open while one of its runs executes. What
reads and writes files does so in threads: the server's loop is never blocked.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from langchain_core.runnables import RunnableConfig

from bco_graph.binding import RunHandle
from bco_graph.config import load_config
from bco_graph.graph import create_bco, recursion_limit

if TYPE_CHECKING:
    from langgraph.pregel import Pregel


Factory = Callable[[RunnableConfig], AbstractAsyncContextManager["Pregel[Any, Any, Any, Any]"]]


def graph_of(path: str | None = None) -> Factory:
    """A factory for a config file of its own; None: the one that BCO_CONFIG names when the graph is asked for.

    It gives the compiled graph of a thread's run. Without a thread, as the server asks for schemas, nothing is opened.
    """

    @asynccontextmanager
    async def factory(config: RunnableConfig) -> AsyncIterator[Pregel[Any, Any, Any, Any]]:
        loaded = await asyncio.to_thread(load_config, Path(path or os.environ.get("BCO_CONFIG") or "bco.yaml"))
        if thread := config.get("configurable", {}).get("thread_id"):
            loaded = loaded.model_copy(update={"name": f"{loaded.name}-{thread}"})
        handle = RunHandle(loaded, apart=True)
        compiled = await asyncio.to_thread(lambda: create_bco(loaded, handle=handle).compile())
        try:
            yield compiled.with_config(recursion_limit=recursion_limit(loaded))
        finally:
            await asyncio.to_thread(handle.close)

    return factory


graph = graph_of()
