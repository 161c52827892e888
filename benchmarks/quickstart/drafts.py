"""What each task type asks: the entries that matter, entries that distract from them, a question, the gold answer.

The i-th entry of a draft is written at the i-th date of its setting. A draft has fewer entries than there are dates;
`FILLERS` makes entries for the rest.
"""

from __future__ import annotations

import datetime
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from random import Random

from bco_graph.benchmarks.quickstart import wording


@dataclass(frozen=True, slots=True)
class Setting:
    """What a draft is made from.

    `dates` are the notebook's, in no order. `turn` counts the tasks of one type in a split, from 0. `deeds` has three
    pairs of `wording.DEEDS`, and `topics` a (topic, line) pair for every topic; the first of each is asked about.
    """

    rng: Random
    dates: Sequence[datetime.date]
    turn: int
    deeds: Sequence[tuple[str, str]]
    topics: Sequence[tuple[str, str]]


@dataclass(frozen=True, slots=True)
class Draft:
    """`entries` are in the order of the setting's dates; `gold` is never empty."""

    entries: Sequence[str]
    question: str
    gold: str


def day(date: datetime.date) -> str:
    """`7 May`, as notebooks and questions write it, whatever the locale."""
    return f"{date.day} {wording.MONTHS[date.month - 1]}"


def lookup(setting: Setting) -> Draft:
    """Who did what: one entry says it in other words than the question, two tell of other deeds of the same person.

    In a fourth entry somebody else does what is asked about.
    """
    rng = setting.rng
    person, other = rng.sample(wording.PEOPLE, 2)
    things = rng.sample(wording.THINGS, 4)
    (asked, question), (second, _), (third, _) = setting.deeds
    told = ((person, asked), (person, second), (person, third), (other, asked))
    entries = [_deed(rng, who, deed, thing) for (who, deed), thing in zip(told, things, strict=True)]
    return Draft(entries, f"What did my {person} {question}?", things[0])


def two_hop(setting: Setting) -> Draft:
    """Where a lent thing is: one entry says who has it, another where that person lives."""
    rng = setting.rng
    people = rng.sample(wording.PEOPLE, 3)
    cities = rng.sample(wording.CITIES, 3)
    things = rng.sample(wording.THINGS, 3)
    entries = [_loan(rng, person, thing) for person, thing in zip(people, things, strict=True)]
    entries += [_home(rng, person, city) for person, city in zip(people, cities, strict=True)]
    return Draft(entries, f"In which city does the person who has my {things[0]} live?", cities[0])


def total(setting: Setting) -> Draft:
    """Money spent on one kind of goods, over two to four entries; two more are about other goods."""
    rng = setting.rng
    goods, *others = rng.sample(wording.GOODS, 3)
    amounts = [rng.randint(2, 19) for _ in range(rng.randint(2, 4))]
    entries = [_spending(rng, goods, euro) for euro in amounts]
    entries += [_spending(rng, other, rng.randint(2, 19)) for other in others]
    return Draft(entries, f"How many euro did I spend on {goods} in total?", str(sum(amounts)))


def days(setting: Setting) -> Draft:
    """Days from one event to a other_time one, often past the end of a month; two more events distract."""
    rng, dates = setting.rng, setting.dates
    events = rng.sample(wording.EVENTS, 4)
    entries = [event + rng.choice(wording.EVENT_TAILS) for event in events]
    first, last = sorted((0, 1), key=lambda position: dates[position])
    question = f"How many days after the {events[first]} was the {events[last]}?"
    return Draft(entries, question, str((dates[last] - dates[first]).days))


def convert(setting: Setting) -> Draft:
    """A measure in a smaller unit, or a time on the 24-hour clock; one more entry has a measure of the same form."""
    return _MEASURES[setting.turn % len(_MEASURES)](setting.rng)


def topic(setting: Setting) -> Draft:
    """What a line of free text is about; the notebook has a line on every topic, and the date says which is meant."""
    names = [name for name, _ in setting.topics]
    *options, last = setting.rng.sample(names, len(names))
    question = f"What is the note of {day(setting.dates[0])} about: {', '.join(options)} or {last}?"
    return Draft([line for _, line in setting.topics], question, names[0])


DRAFTS: Mapping[str, Callable[[Setting], Draft]] = {
    "lookup": lookup,
    "two_hop": two_hop,
    "sum": total,
    "days": days,
    "convert": convert,
    "topic": topic,
}
"""The task types in the order of their turns. `lookup` and `topic` need a reader, the others follow by rule."""


def _deed(rng: Random, person: str, past: str, thing: str) -> str:
    return f"my {person} {past} the {thing}{rng.choice(wording.DEED_TAILS)}"


def _loan(rng: Random, person: str, thing: str) -> str:
    return rng.choice(wording.LOANS).format(person=person, thing=thing)


def _home(rng: Random, person: str, city: str) -> str:
    return rng.choice(wording.HOMES).format(person=person, city=city)


def _spending(rng: Random, goods: str, euro: int) -> str:
    return rng.choice(wording.SPENDING).format(goods=goods, euro=euro)


def _distance(rng: Random) -> Draft:
    (past, plain), (past_2, _) = rng.sample(wording.TRIPS, 2)
    tenths, tenths_2 = _tenths(rng), _tenths(rng)
    entries = [f"{past} {tenths / 10} km", f"{past_2} {tenths_2 / 10} km"]
    return Draft(entries, f"How many metres did I {plain}?", str(tenths * 100))


def _weight(rng: Random) -> Draft:
    load, load_2 = rng.sample(wording.LOADS, 2)
    tenths, tenths_2 = _tenths(rng), _tenths(rng)
    entries = [f"the {load} weighed {tenths / 10} kg", f"the {load_2} weighed {tenths_2 / 10} kg"]
    return Draft(entries, f"How many grams did the {load} weigh?", str(tenths * 100))


def _duration(rng: Random) -> Draft:
    (past, plain), (past_2, _) = rng.sample(wording.SPELLS, 2)
    (hours, minutes), (hours_2, minutes_2) = ((rng.randint(1, 9), rng.randint(5, 55)) for _ in range(2))
    entries = [f"{past} {hours} h {minutes} min", f"{past_2} {hours_2} h {minutes_2} min"]
    return Draft(entries, f"How many minutes did I {plain}?", str(60 * hours + minutes))


def _departure(rng: Random) -> Draft:
    ride, ride_2 = rng.sample(wording.RIDES, 2)
    hour, minute = rng.choice(_HOURS), rng.randint(5, 55)
    other_time = _clock(rng.choice(_HOURS), rng.randint(5, 55))
    entries = [f"the {ride} left at {_clock(hour, minute)}", f"the {ride_2} left at {other_time}"]
    return Draft(entries, f"At what time did the {ride} leave, as HH:MM?", f"{hour:02d}:{minute:02d}")


_MEASURES = (_distance, _weight, _duration, _departure)

_HOURS = (*range(5, 12), *range(13, 24))
"""Without the hours of noon and midnight, about which 12-hour clocks are often misread."""


def _tenths(rng: Random) -> int:
    """A measure in tenths of its unit, from 1.1 to 9.9, with a digit after the point."""
    return 10 * rng.randint(1, 9) + rng.randint(1, 9)


def _clock(hour: int, minute: int) -> str:
    return f"{hour % 12}:{minute:02d} {'am' if hour < 12 else 'pm'}"


def _idle_deed(rng: Random) -> str:
    return _deed(rng, rng.choice(wording.PEOPLE), rng.choice(wording.IDLE_DEEDS), rng.choice(wording.THINGS))


def _any_home(rng: Random) -> str:
    return _home(rng, rng.choice(wording.PEOPLE), rng.choice(wording.CITIES))


FILLERS: Mapping[str, Callable[[Random], str]] = {
    "lookup": _idle_deed,
    "two_hop": _any_home,
    "sum": lambda rng: _spending(rng, rng.choice(wording.GOODS), rng.randint(2, 19)),
    "days": lambda rng: rng.choice(wording.EVENTS),
    "convert": lambda rng: rng.choice(_MEASURES)(rng).entries[0],
}
"""Other entries for the rest of a notebook, by the task type that asks about such entries."""
