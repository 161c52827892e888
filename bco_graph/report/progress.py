"""How far an evaluation is: done, rate, time left, spend; and when a log deserves another line about it. Pure."""

from __future__ import annotations

from bco_graph.events import Event
from bco_graph.report.wording import duration, tokens, usd

QUARTERS = 4
SHORTEST_PAUSE_S = 2.0
"""Between two lines, so that an evaluation of seconds is told by its outcome alone."""
FIRST_PAUSE_S = 10.0
LONGEST_PAUSE_S = 300.0


class Progress:
    """One evaluation, fed with its `evaluation` event and every `task_done`. Times are the events' own, in seconds.

    `spent_tokens` and `spent_usd` are of the whole run before it; dollars are None where a price is not known.
    """

    def __init__(self, event: Event, *, spent_tokens: int = 0, spent_usd: float | None = 0.0) -> None:
        self.candidate = str(event["candidate"])
        self.heldout = event["split"] == "heldout"
        self.tasks = int(event["tasks"])
        self.done = int(event["done"])
        self._tokens = spent_tokens
        self._usd = spent_usd
        self._started = self._spoke = float(event["at"])
        self._at_start = self.done
        self._quarter = self._quarter_now()
        self._pause = FIRST_PAUSE_S

    def advance(self, event: Event) -> None:
        self.done = int(event["done"])
        self._tokens += int(event.get("tokens", 0))
        cost = event.get("usd", 0.0)
        self._usd = None if self._usd is None or cost is None else self._usd + float(cost)

    @property
    def over(self) -> bool:
        return self.done >= self.tasks

    def line_due(self, now: float) -> bool:
        """Whether a log gets a line now: at each quarter, and in between after 10 s, then 20 s, 40 s, up to 300 s."""
        if self.over or now - self._spoke < SHORTEST_PAUSE_S:
            return False
        if self._quarter_now() > self._quarter:
            self._quarter, self._spoke = self._quarter_now(), now
            return True
        if now - self._spoke < self._pause:
            return False
        self._pause = min(2 * self._pause, LONGEST_PAUSE_S)
        self._spoke = now
        return True

    def _quarter_now(self) -> int:
        return QUARTERS * self.done // self.tasks if self.tasks else QUARTERS

    def figures(self, now: float) -> list[str]:
        """Such as `10/40 tasks`, `2.1/s`, `0:14 left`, `12.3k tokens`, `$0.12`; the most telling first."""
        made, elapsed = self.done - self._at_start, now - self._started
        found = [f"{self.done}/{self.tasks} tasks"]
        if made > 0 and elapsed > 0:
            rate = made / elapsed
            found.append(f"{rate:.1f}/s" if rate >= 0.95 else f"{60 * rate:.1f}/min")
            found.append(f"{duration((self.tasks - self.done) / rate)} left")
        if self._tokens:
            found.append(f"{tokens(self._tokens)} tokens")
            found += [usd(self._usd)] if self._usd else []
        return found
