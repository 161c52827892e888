"""The messages of one conversation with a proposer's model; what was said is never rewritten, but to make room."""

from __future__ import annotations

from dataclasses import dataclass, field

from bco_graph.state import JSON, StepName

_DROPPED = "[result dropped to make room: {size:,} characters; call the tool again to see it]"


@dataclass
class Conversation:
    """OpenAI chat messages. Earlier messages stay as they are, so that an endpoint's prefix cache holds."""

    messages: list[dict[str, JSON]] = field(default_factory=list)
    steps: list[StepName] = field(default_factory=list)
    """Steps that this conversation has begun, in order."""
    _results: list[int] = field(default_factory=list)
    """Positions of tool results that may be dropped, oldest first."""

    def say(self, text: str) -> None:
        """Speak as the user; joins a user message that is last, as some endpoints want roles to alternate."""
        last = self.messages[-1] if self.messages else None
        if last is not None and last["role"] == "user":
            self.messages[-1] = {**last, "content": f"{last['content']}\n\n{text}"}
            self._results = [at for at in self._results if at != len(self.messages) - 1]
        else:
            self.messages.append({"role": "user", "content": text})

    def add(self, message: dict[str, JSON]) -> None:
        self.messages.append(message)

    def add_result(self, message: dict[str, JSON]) -> None:
        """A tool's result; its `content` is a text of its own message."""
        self._results.append(len(self.messages))
        self.messages.append(message)

    def make_room(self) -> bool:
        """Replace the oldest tool results by a mark, half of their text or more; False where there was none."""
        sizes = {at: len(self.messages[at]["content"]) for at in self._results}
        goal, dropped = sum(sizes.values()) / 2, 0
        for at in list(self._results):
            if dropped >= goal:
                break
            self.messages[at] = {**self.messages[at], "content": _DROPPED.format(size=sizes[at])}
            self._results.remove(at)
            dropped += sizes[at]
        return dropped > 0
