"""How far an evaluation is: done, rate, time left, spend; and when a log deserves another line about it. Pure."""

from __future__ import annotations

from bco_graph.events import Work
from bco_graph.report.wording import duration, tokens, usd

QUARTERS = 4
SHORTEST_PAUSE_S = 2.0
"""Between two lines, so that an evaluation of seconds is told by its outcome alone."""
FIRST_PAUSE_S = 10.0
LONGEST_PAUSE_S = 300.0


class Progress:
    """One evaluation; `work` is renewed as its tasks end. Times are the events' own, in seconds.

    `spent_tokens` and `spent_usd` are of the whole run before it; dollars are None where a price is not known.
    """

    def __init__(self, work: Work, spent_tokens: int = 0, spent_usd: float | None = 0.0) -> None:
        self.work = work
        self._spent = spent_tokens, spent_usd
        self._spoke = work.since
        self._quarter = self._quarter_now()
        self._pause = FIRST_PAUSE_S

    def line_due(self, now: float) -> bool:
        """Whether a log gets a line now: at each quarter, and in between after 10 s, then 20 s, 40 s, up to 300 s."""
        if now - self._spoke < SHORTEST_PAUSE_S:
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
        return QUARTERS * self.work.done // self.work.tasks

    def figures(self, now: float) -> list[str]:
        """Such as `10/40 tasks`, `2.1/s`, `0:14 left`, `12.3k tokens`, `$0.12`; the most telling first."""
        work = self.work
        made, elapsed = work.done - work.done_before, now - work.since
        found = [f"{work.done}/{work.tasks} tasks"]
        if made > 0 and elapsed > 0:
            rate = made / elapsed
            found.append(f"{rate:.1f}/s" if rate >= 0.95 else f"{60 * rate:.1f}/min")
            found.append(f"{duration((work.tasks - work.done) / rate)} left")
        spent_tokens, spent_usd = self._spent
        if used := spent_tokens + work.tokens:
            found.append(f"{tokens(used)} tokens")
            paid = None if spent_usd is None or work.usd is None else spent_usd + work.usd
            found += [usd(paid)] if paid else []
        return found
