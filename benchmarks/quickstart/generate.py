"""The seeded generator: a notebook, a question and a gold answer for each task.

Everything random comes from `random.Random` objects that are made from strings, so that a seed gives the same tasks
in every process. What each task type asks is in `drafts`, the words are in `wording`.
"""

from __future__ import annotations

import datetime
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from random import Random
from typing import TypeVar

from bco_graph.benchmarks.quickstart import wording
from bco_graph.benchmarks.quickstart.drafts import DRAFTS, FILLERS, Draft, Setting, day
from bco_graph.state import Split

T = TypeVar("T")

TYPES = tuple(DRAFTS)

PER_TYPE: dict[Split, int] = {"train": 8, "heldout": 12}

NOTEBOOK_LINES = 10

SPAN_DAYS = 30
"""A notebook's dates lie within this many days, from March to November, so that no leap day is among them."""

MOST_ALIKE = 3
"""At most so many tasks of one type and split have the same gold answer, so that no constant answer scores well."""

TRAIN_DEEDS = 10
TRAIN_TOPIC_LINES = 6
"""So many of the deeds, and of each topic's lines, belong to `train`; the others belong to `heldout`."""


@dataclass(frozen=True, slots=True)
class Item:
    """A task with its answer. `notebook` has one entry a line, such as `7 May: tea, 4 euro`, in order of date."""

    id: str
    type: str
    notebook: str
    question: str
    gold: str


def generate(seed: int) -> dict[Split, list[Item]]:
    """Both splits, the types in turn. No two items have the same notebook, or both question and gold in common."""
    seen: set[tuple[str, str]] = set()
    return {split: _split(seed, split, seen) for split in PER_TYPE}


def _split(seed: int, split: Split, seen: set[tuple[str, str]]) -> list[Item]:
    deeds, topics = _deeds(seed, split), _topics(seed, split)
    golds: Counter[tuple[str, str]] = Counter()
    items: list[Item] = []
    for number in range(PER_TYPE[split] * len(TYPES)):
        turn, position = divmod(number, len(TYPES))
        rng = Random(f"quickstart/{seed}/{split}/{number}")
        while True:
            setting = Setting(rng, _dates(rng), turn, deeds[turn], topics[turn])
            item = _item(setting, f"qs-{split}-{number + 1:03d}", TYPES[position])
            if (item.question, item.gold) not in seen and golds[item.type, item.gold] < MOST_ALIKE:
                break
        seen.add((item.question, item.gold))
        golds[item.type, item.gold] += 1
        items.append(item)
    return items


def _item(setting: Setting, task_id: str, task_type: str) -> Item:
    draft = DRAFTS[task_type](setting)
    entries = _filled(setting.rng, task_type, draft)
    pages = sorted(zip(setting.dates, entries, strict=True))
    notebook = "\n".join(f"{day(date)}: {entry}" for date, entry in pages)
    return Item(task_id, task_type, notebook, draft.question, draft.gold)


def _dates(rng: Random) -> list[datetime.date]:
    start = datetime.date(2025, 3, 1) + datetime.timedelta(days=rng.randrange(240))
    return [start + datetime.timedelta(days=offset) for offset in rng.sample(range(SPAN_DAYS), NOTEBOOK_LINES)]


def _filled(rng: Random, task_type: str, draft: Draft) -> list[str]:
    """The draft's entries, then as many quiet ones as others of kinds that its type is not about; none of them twice.

    Quiet entries are short: they keep a prompt cheap for a model that runs on two threads.
    """
    makers = [make for kind, make in FILLERS.items() if kind != task_type]
    entries = list(draft.entries)
    while len(entries) < NOTEBOOK_LINES:
        entry = rng.choice(wording.QUIET) if rng.random() < 0.5 else rng.choice(makers)(rng)
        if entry not in entries:
            entries.append(entry)
    return entries


def _deeds(seed: int, split: Split) -> list[list[tuple[str, str]]]:
    """For each lookup task three deeds; the first is asked about, once in all tasks."""
    pool = _share(Random(f"quickstart/{seed}/deeds"), wording.DEEDS, TRAIN_DEEDS, split)
    rng = Random(f"quickstart/{seed}/deeds/{split}")
    return [
        [asked, *rng.sample([deed for deed in pool if deed != asked], 2)] for asked in rng.sample(pool, PER_TYPE[split])
    ]


def _topics(seed: int, split: Split) -> list[list[tuple[str, str]]]:
    """For each topic task a line on every topic; the first is asked about, once in all tasks.

    Each topic is asked about equally often.
    """
    rng = Random(f"quickstart/{seed}/topics")
    pools = {name: _share(rng, lines, TRAIN_TOPIC_LINES, split) for name, lines in wording.TOPICS.items()}
    rng = Random(f"quickstart/{seed}/topics/{split}")
    asked = rng.sample(list(pools) * (PER_TYPE[split] // len(pools)), PER_TYPE[split])
    unasked = {name: iter(lines) for name, lines in pools.items()}
    return [
        [(name, next(unasked[name])), *((other, rng.choice(pools[other])) for other in pools if other != name)]
        for name in asked
    ]


def _share(rng: Random, pool: Sequence[T], train: int, split: Split) -> list[T]:
    """A split's own part of a pool, shuffled."""
    shuffled = rng.sample(pool, len(pool))
    return shuffled[:train] if split == "train" else shuffled[train:]
