"""Reads JSON that a stranger wrote. Nothing is repaired or guessed; what is taken can be stored and read again.

Refused, beside what is no JSON: NaN and Infinity, numbers out of range, a key twice in one object, half of a
surrogate pair (no UTF-8 file can hold it), and nesting that would use up the stack of whoever walks through it.
"""

from __future__ import annotations

import json
import math
from collections import Counter
from typing import NoReturn

from bco_graph.state import JSON

MAX_DEPTH = 100
"""Lists and objects within one another; a walk takes two stack frames a level, of the thousand that Python has."""
MAX_DIGITS = 300
"""Of a whole number: any such is still a finite float."""


def loads(text: str) -> JSON:
    """Raises ValueError with the rest of a sentence that starts with the thing's name and `is`."""
    text = text.removeprefix("\ufeff").strip()
    if not text:
        raise ValueError("empty; JSON is expected")
    try:
        value = json.loads(
            text, parse_constant=_no_constant, parse_float=_finite, parse_int=_whole, object_pairs_hook=_no_twins
        )
    except json.JSONDecodeError as error:
        near = text[max(0, error.pos - 20) : error.pos + 20]
        where = f"line {error.lineno}, column {error.colno}, near {near!r}"
        raise ValueError(f"not JSON: {error.msg} at {where}") from error
    except RecursionError as error:
        raise ValueError(_TOO_DEEP) from error
    if is_too_deep(value):
        raise ValueError(_TOO_DEEP)
    try:
        json.dumps(value, ensure_ascii=False).encode("utf-8")
    except UnicodeEncodeError as error:
        raise ValueError("not storable: it holds half of a surrogate pair, which is no character") from error
    return value


def read_object(text: str) -> dict[str, JSON]:
    """As `loads`, for one JSON object."""
    value = loads(text)
    if not isinstance(value, dict):
        raise ValueError(f"a JSON {_kind(value)}, not an object; an object is expected")
    return value


def is_too_deep(value: JSON) -> bool:
    """Whether lists and objects stand in one another more than `MAX_DEPTH` deep; walks level by level."""
    level, depth = [value], 0
    while level and depth <= MAX_DEPTH:
        level = [
            inner
            for outer in level
            if isinstance(outer, dict | list)
            for inner in (outer.values() if isinstance(outer, dict) else outer)
        ]
        depth += 1
    return bool(level)


_TOO_DEEP = f"nested too deeply: at most {MAX_DEPTH} lists and objects within one another are taken"


def _no_constant(name: str) -> NoReturn:
    raise ValueError(f"not JSON: {name} is no number; give a finite one")


def _finite(digits: str) -> float:
    if not math.isfinite(number := float(digits)):
        raise ValueError(f"out of range: {_start(digits)} is too large for a number")
    return number


def _whole(digits: str) -> int:
    if len(digits) > MAX_DIGITS:
        raise ValueError(f"out of range: {_start(digits)} is too large for a number")
    return int(digits)


def _start(digits: str) -> str:
    return digits if len(digits) <= 40 else f"{digits[:40]}… ({len(digits)} characters)"


def _no_twins(pairs: list[tuple[str, JSON]]) -> dict[str, JSON]:
    found = dict(pairs)
    if len(found) < len(pairs):
        twice, _ = Counter(name for name, _ in pairs).most_common(1)[0]
        raise ValueError(f"ambiguous: the key {twice!r} stands in one object twice")
    return found


def _kind(value: JSON) -> str:
    return {list: "array", str: "string", bool: "boolean", type(None): "null"}.get(type(value), "number")
