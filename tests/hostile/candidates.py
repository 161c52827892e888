"""Hostile candidates from a seed: 1 to 4 pieces each, at import or in `solve`, in any order, with an end of its own."""

from __future__ import annotations

import inspect
import random
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tests.hostile import files, hands, processes, reaching

Piece = Callable[[Any], None]

KINDS: dict[str, Sequence[Piece]] = {
    "paths": files.PIECES,
    "processes": processes.PIECES,
    "floods": reaching.FLOODS,
    "looking": reaching.LOOKING,
    "network": reaching.NETWORK,
    "forging": reaching.FORGING,
}
PIECES: dict[str, str] = {piece.__name__: kind for kind, pieces in KINDS.items() for piece in pieces}
_BY_NAME = {piece.__name__: piece for pieces in KINDS.values() for piece in pieces}
_ONLY_IN_SOLVE = {"flood_events", *(piece.__name__ for piece in reaching.NETWORK)} - {"reach_network"}
_HEAD = """\
import asyncio, atexit, ctypes, gc, json, os, random, re, resource, select, signal, socket, sys, threading, time
from typing import Any
"""
_SLY = """\
frame, AT_IMPORT = sys._getframe(), True
while frame is not None:
    AT_IMPORT = AT_IMPORT and frame.f_code.co_name != "first_import"
    frame = frame.f_back
"""
ENDS = {
    "honest": "return await target.chat(task.inputs['question'])",
    "word": "return 'forged'",
    "inputs": "return dict(task.inputs)",
    "nothing": "return None",
    "huge": "return [[]] * 1_300_000",
    "too_large": "return 'x' * 9_000_000",
    "deep": "return json.loads('[' * 90 + ']' * 90)",
    "too_deep": "answer = []\n    for _ in range(50_000):\n        answer = [answer]\n    return answer",
    "no_json": "return {1, object()}",
    "not_a_number": "return [float('nan'), float('inf'), 10 ** 5000]",
    "surrogates": "return '\\ud800\\x00' * 100",
    "own_class": "return type('S', (str,), {'__eq__': lambda *_: True, '__hash__': str.__hash__})('forged')",
    "fork": "os.fork()\n    return 'from both'",
}
MALFORMED = {
    "deep_source.py": "x = " + "(" * 3_000 + ")" * 3_000,
    "long_source.py": "x = " + "-" * 200_000 + "1",
    "no_text.py": "\x00\x00",
    "wide_source.py": "x = [" + "1," * 400_000 + "]",
}
"""Files beside the entry point that are hard on whoever compiles them."""


@dataclass(frozen=True)
class Candidate:
    """`pieces` by the time they run at."""

    seed: int
    at_import: Sequence[str]
    in_solve: Sequence[str]
    end: str
    beside: str | None
    sly: bool
    """What it does at import it does only for a task, not at the first import, by which it is admitted."""

    @property
    def kinds(self) -> set[str]:
        return {PIECES[name] for name in (*self.at_import, *self.in_solve)}

    def source(self, canaries: Sequence[str]) -> str:
        names = dict.fromkeys((*self.at_import, *self.in_solve))
        functions = [*reaching.SHARED, *(_BY_NAME[name] for name in names)]
        solve = ["HANDS.target, HANDS.inputs = target, task.inputs", *(f"HANDS.do({name})" for name in self.in_solve)]
        parts = [
            "from __future__ import annotations\n" + _HEAD,
            inspect.getsource(hands).partition("from typing import Any\n")[2],
            *(inspect.getsource(function) for function in functions),
            f"HANDS = Hands({self.seed}, {list(canaries)!r})",
            _SLY if self.sly else "AT_IMPORT = True",
            *(f"if AT_IMPORT:\n    HANDS.do({name})" for name in self.at_import),
            "async def solve(task, target):\n    " + "\n    ".join([*solve, ENDS[self.end]]),
        ]
        return "\n\n".join(parts) + "\n"

    def write(self, folder: Path, canaries: Sequence[str]) -> Path:
        folder.mkdir(parents=True)
        (folder / "agent.py").write_text(self.source(canaries), encoding="utf-8")
        if self.beside is not None:
            (folder / self.beside).write_text(MALFORMED[self.beside], encoding="utf-8")
        return folder


def generate(seed: int, allowed: Collection[str] = frozenset(PIECES)) -> Candidate:
    """The candidate of a seed, without the pieces that are not allowed. Its first piece is each one in turn, so that
    consecutive seeds leave none out."""
    rng = random.Random(seed)
    names = list(PIECES)
    chosen = [names[seed % len(names)], *rng.choices(names, k=rng.choice([0, 1, 1, 2, 3]))]
    at_import: list[str] = []
    in_solve: list[str] = []
    for name in dict.fromkeys(name for name in chosen if name in allowed):
        early = name not in _ONLY_IN_SOLVE and rng.random() < 0.3
        (at_import if early else in_solve).append(name)
    rng.shuffle(in_solve)
    return Candidate(
        seed, tuple(at_import), tuple(in_solve),
        end=rng.choice(["honest", "honest", *ENDS]),
        beside=rng.choice([None] * 8 + list(MALFORMED)), sly=rng.random() < 0.5,
    )  # fmt: skip
