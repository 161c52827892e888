"""How many times each caller asked the same: where sampling is not frozen, each asking is another sample."""

from __future__ import annotations

from collections import Counter, OrderedDict
from dataclasses import dataclass, field

from bco_graph.protocols import Caller

_REMEMBERED_CALLERS = 4096


@dataclass
class Askings:
    """So that votes within one job are not all one stored answer; asked again after a kill, the n-th finds the n-th.

    A request is named by its key of the first asking.
    """

    _counts: OrderedDict[Caller, Counter[str]] = field(default_factory=OrderedDict)

    def count(self, caller: Caller, key: str) -> int:
        """Note one more; returns how many there were before."""
        counts = self._counts.setdefault(caller, Counter())
        self._counts.move_to_end(caller)
        if len(self._counts) > _REMEMBERED_CALLERS:
            self._counts.popitem(last=False)
        counts[key] += 1
        return counts[key] - 1

    def forget(self, caller: Caller, key: str) -> None:
        """An asking that failed did not happen: asked again, it is the same one."""
        if (counts := self._counts.get(caller)) is not None and counts[key] > 0:
            counts[key] -= 1

    def begin(self, caller: Caller) -> None:
        """A job starts, perhaps again: its askings count from 0, so that what it paid for before is found."""
        self._counts.pop(caller, None)
