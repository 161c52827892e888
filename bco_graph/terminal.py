"""The live view of a run: its story line by line, and on a terminal a bar for what is under way.

The words are made in `report.story` and fitted to the console by `report.layout`. Off a terminal there are plain lines
and no control character. This module imports rich, so the command line imports it only when it shows something.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from pathlib import Path
from types import TracebackType

from rich.console import Console
from rich.live import Live
from rich.spinner import Spinner
from rich.text import Text

from bco_graph.events import Event, Tail, View, reduce
from bco_graph.report.layout import Lines, is_utf8
from bco_graph.report.lines import fact
from bco_graph.report.progress import Progress
from bco_graph.report.story import Story
from bco_graph.report.wording import duration
from bco_graph.state import candidate_id

SHORTEST_BAR = 8
POLL_S = 0.2


class RunView:
    """Shows events on a console; give the view itself to `Events.subscribe`. `quiet` shows nothing at all.

    Use it as a context manager: leaving it takes the bar away and gives the cursor back, also after an error.
    """

    def __init__(self, console: Console, *, quiet: bool = False) -> None:
        self._console = console
        self._quiet = quiet
        self._moving = console.is_terminal and not console.is_dumb_terminal
        self._story = Story()
        self._view = View()
        self._progress: Progress | None = None
        self._live: Live | None = None
        self._lock = threading.RLock()
        self._bars, self._spinner = ("━─", "dots") if is_utf8(console) else ("#-", "line")

    def __enter__(self) -> RunView:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self.close()

    def close(self) -> None:
        with self._lock:
            live, self._live = self._live, None
            if live is not None:
                live.stop()
            self._view, self._progress = View(), None

    def __call__(self, event: Event) -> None:
        if self._quiet:
            return
        with self._lock:
            self._follow_work(event)
            for line in self._story.tell(event):
                self._console.print(Lines([line]))
            self._show_work()

    # -- what is under way -------------------------------------------------------------------------------------

    def _follow_work(self, event: Event) -> None:
        self._view = reduce(self._view, event)
        work = self._view.work
        if work is None:
            self._progress = None
        elif self._progress is None or event["type"] == "evaluation":
            self._progress = Progress(work, *self._story.spent())
        else:
            self._progress.work = work
            if not self._moving and self._progress.line_due(event["at"]):
                figures = self._progress.figures(event["at"])
                self._console.print(Lines([fact("evaluate", *((figure, "") for figure in figures))]))

    def _show_work(self) -> None:
        wanted = self._moving and (self._view.node is not None or self._progress is not None)
        if wanted and self._live is None:
            spinner = Spinner(self._spinner, style="cyan")
            self._live = Live(
                console=self._console, transient=True, refresh_per_second=8,
                get_renderable=lambda: self._work(spinner),
            )  # fmt: skip
            self._live.start()
        elif not wanted and self._live is not None:
            self._live.stop()
            self._live = None

    def _work(self, spinner: Spinner) -> Text:
        """One line, never wider than the console: the bar, or the node with the time it has taken."""
        now = time.time()
        progress, view = self._progress, self._view
        if progress is not None:
            return self._bar(progress, now)
        if view.node is None:
            return Text()
        frame = spinner.render(time.monotonic())
        turning = frame if isinstance(frame, Text) else Text(str(frame))
        name = f"{candidate_id(view.iteration)}  {view.node}"
        text = Text.assemble("  ", turning, " ", name, (f"  {duration(now - view.node_since)}", "dim"))
        text.truncate(self._console.width - 1)
        return text

    def _bar(self, progress: Progress, now: float) -> Text:
        work = progress.work
        name = f"  {work.candidate}{' held-out' if work.split == 'heldout' else ''}  "
        figures = progress.figures(now)
        while True:
            after = "  " + "  ".join(figures)
            room = self._console.width - 1 - len(name) - len(after)
            if room >= SHORTEST_BAR or len(figures) == 1:
                break
            figures.pop()
        filled = max(0, room) * work.done // max(1, work.tasks)
        text = Text.assemble(
            name, (self._bars[0] * filled, "cyan"), (self._bars[1] * (room - filled), "dim"), (after, "")
        )
        text.truncate(self._console.width - 1)
        return text


def follow(events_path: Path, view: Callable[[Event], None], *, stop: Callable[[], bool]) -> bool:
    """Give `view` every event of the log from its beginning and as it grows; True when the run came to its end.

    Waits for a log that is not there yet. A last line without its newline is still being written and waits for the
    rest; a torn line before others is passed over with an event `unreadable`. Goes on past the end of a run that was
    resumed. `stop` is asked whenever there is nothing new; what was written before it said so is still shown.
    """
    tail = Tail(events_path)
    ended = False
    while True:
        stopping = stop()
        for event in tail.read():
            kind = event["type"]
            ended = kind in ("run_ended", "run_failed") or (ended and kind != "run_started")
            view(event)
        if ended or stopping:
            return ended
        time.sleep(POLL_S)
