"""The quickstart suite: questions about short notebooks, small enough for a small model on a laptop."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from bco_graph.benchmarks.quickstart.generate import PER_TYPE, TYPES, Item, generate
from bco_graph.benchmarks.quickstart.grading import matches, normalise
from bco_graph.errors import ConfigError, SuiteBroken
from bco_graph.protocols import Interface, Score, Task
from bco_graph.state import JSON, Split

__all__ = ["QuickstartSuite"]

_FOLDER = Path(__file__).parent


class QuickstartSuite:
    """48 train and 72 held-out tasks of six types, evenly; the same for the same `seed` in every process.

    Implements `protocols.Suite`. `types` lists the task types in the order in which the tasks take turns.
    """

    name = "quickstart"
    types = TYPES
    interface = Interface(entry="agent.py:solve", placeholders={"prompt.md": ["{notebook}", "{question}"]})

    def __init__(self, seed: int = 7) -> None:
        if isinstance(seed, bool) or not isinstance(seed, int):
            raise ConfigError(f"suite_options.seed of the suite 'quickstart' must be a whole number, not {seed!r}")
        self._items = generate(seed)
        self._by_id = {item.id: item for items in self._items.values() for item in items}

    def tasks(self, split: Split) -> Sequence[Task]:
        if split not in self._items:
            raise ConfigError(f"the suite 'quickstart' has no split {split!r}; available: {', '.join(PER_TYPE)}")
        return [_task(item) for item in self._items[split]]

    def grade(self, task: Task, answer: JSON) -> Score:
        """1 for an exact match after `grading.normalise`, else 0 with a note that tells nearly right from wrong."""
        gold = self.gold(task)
        if matches(answer, gold):
            return Score(1.0)
        given = normalise(answer)
        if not given:
            return Score(0.0, "nothing to compare: an answer is text or a whole number")
        inside = f" {normalise(gold)} " in f" {given} "
        return Score(0.0, "holds the right answer among other words" if inside else "another answer")

    def gold(self, task: Task) -> str:
        try:
            return self._by_id[task.id].gold
        except KeyError:
            raise SuiteBroken(
                f"the suite 'quickstart' has no task {task.id!r}; its ids run from qs-train-001 to qs-heldout-072"
            ) from None

    def initial_scaffold(self) -> Path:
        return _FOLDER / "scaffold"

    def surface(self) -> str:
        return (_FOLDER / "surface.md").read_text(encoding="utf-8")


def _task(item: Item) -> Task:
    return Task(item.id, item.type, {"notebook": item.notebook, "question": item.question})
