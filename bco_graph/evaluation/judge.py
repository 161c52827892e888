"""The model that helps a suite's grader: its calls go through the gateway like all others, in the role `judge`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from bco_graph.protocols import Caller, ModelCalls, Task
from bco_graph.state import JSON


@dataclass(frozen=True)
class GatewayJudge:
    """Implements `protocols.Judge`. What was asked before is answered from the run's cache."""

    calls: ModelCalls

    async def __call__(self, task: Task, messages: Sequence[Mapping[str, JSON]], **parameters: JSON) -> str:
        reply = await self.calls.complete(Caller("judge", task=task.id), {"messages": list(messages), **parameters})
        return str(reply["choices"][0]["message"].get("content") or "")
