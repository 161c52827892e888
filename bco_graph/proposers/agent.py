"""The `agent` proposer: a tool loop over the gateway, bounded in turns and tokens."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, TypeVar

from bco_graph.config import ProposerConfig
from bco_graph.proposers.conversation import Conversation
from bco_graph.proposers.loop import ToolLoop
from bco_graph.proposers.replies import Dialect, JsonLines, ToolCalls
from bco_graph.proposers.tools import READING, TOOLS
from bco_graph.protocols import Caller, ModelCalls, Role, Step, StepResult
from bco_graph.state import JSON, StepName

T = TypeVar("T")

_GROUPS: Mapping[StepName, str] = {"propose": "design", "predict": "design", "grade": "review", "update": "review"}
"""Steps of one group continue one conversation and have the same tools, so that the prefix stays cached."""


class AgentProposer:
    """Keeps the conversations of the current iteration in memory; after a resume one starts anew from the step's
    instructions.

    `capabilities` describes a role's deployment: with `{"tools": False}` the JSON protocol is used, unless the config
    names a protocol. With `predictor`, the model of that role makes the step `predict`, in a conversation of its own:
    who designed an edit does not say what it will do.
    """

    def __init__(
        self,
        config: ProposerConfig,
        calls: ModelCalls,
        *,
        capabilities: Callable[[Role], Mapping[str, JSON]],
        predictor: bool = False,
    ) -> None:
        self._config = config
        self._calls = calls
        self._capabilities = capabilities
        self._predictor = predictor
        self._conversations: dict[tuple[int, str], Conversation] = {}

    async def perform(self, step: Step[T]) -> StepResult[T]:
        role: Role = "predictor" if self._predictor and step.name == "predict" else "proposer"
        group = _GROUPS[step.name] if role == "proposer" else role
        tools = frozenset(TOOLS) if group == "design" else READING
        dialect = self._dialect(role)
        conversation = self._open(step, group, dialect.system(tools))
        caller = Caller(role, step=f"{step.iteration}/{step.name}")
        try:
            return await ToolLoop(step, self._config, self._calls, caller, dialect, conversation, tools).run()
        except BaseException:
            self._conversations.pop((step.iteration, group), None)
            raise

    def _dialect(self, role: Role) -> Dialect:
        if self._config.protocol == "auto":
            return ToolCalls() if self._capabilities(role).get("tools", True) else JsonLines()
        return ToolCalls() if self._config.protocol == "tools" else JsonLines()

    def _open(self, step: Step[Any], group: str, system: str) -> Conversation:
        """The group's conversation with the step's instructions said; a new one where the step was in it already."""
        key = (step.iteration, group)
        conversation = self._conversations.get(key)
        if conversation is None or step.name in conversation.steps:
            conversation = Conversation([{"role": "system", "content": system}])
        conversation.steps.append(step.name)
        conversation.say(step.instructions)
        kept = {at: talk for at, talk in self._conversations.items() if at[0] == step.iteration}
        self._conversations = {**kept, key: conversation}
        return conversation
