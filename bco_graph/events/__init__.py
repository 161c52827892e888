"""What happens in a run, as small JSON events: one log for the file, the stream, the terminal and the sinks.

want                            open
what events there are           schema.py (docs/EVENTS.md is written from it)
whether an event is of it       check.py
where a run stands, by events   view.py: `reduce(view, event) -> view`
writing and following the log   log.py
"""

from bco_graph.events.check import event_faults
from bco_graph.events.log import Events, Tail
from bco_graph.events.schema import EVENT_TYPES, EVENT_VERSION, Event, EventType
from bco_graph.events.view import View, Work, reduce, repeated

__all__ = [
    "EVENT_TYPES", "EVENT_VERSION", "Event", "EventType", "Events", "Tail", "View", "Work", "event_faults", "reduce",
    "repeated",
]  # fmt: skip
