"""Valid examples, broken on purpose: structure dropped, doubled and swapped, values that trap, text cut and spliced."""

from __future__ import annotations

import copy
import json
import os
from collections.abc import Callable, Iterator
from typing import Any

from hypothesis import HealthCheck, settings
from hypothesis import strategies as st

from bco_graph.state import JSON

_QUIET = list(HealthCheck)

FUZZ = (
    settings(max_examples=3000, deadline=None, database=None, suppress_health_check=_QUIET)
    if os.environ.get("HYPOTHESIS_PROFILE") == "long"
    else settings(max_examples=60, derandomize=True, deadline=None, database=None, suppress_health_check=_QUIET)
)
SLOW = settings(FUZZ, max_examples=max(15, FUZZ.max_examples // 10))
"""For inputs that cost a process or a file each."""

TRAPS = (
    "", " ", "\0", "\r", "\r\n", "\n## History\n", "\ufeff", "\u2028", "\u0085", "\x1c", "\u202e", "e\u0301", "İ",
    "\ud800", "\udcff", "😀", "\\", "\\r", "\\" * 5000, "```", "'" * 7, '"', "|", ";", "(", "$x", "{x}", "%s", "../x",
    "/etc/passwd", "a" * 300, "x/" * 300, "none", "null", "NaN", "1e999", "9" * 5000, "-0", "re:(", "re:[", "iter_000",
)  # fmt: skip
NUMBERS = (0, -1, 1, True, 2**31, 2**63, -(2**63) - 1, 10**299, 1.5, -0.0, 5e-324, 1e308, 1e-9)
UNREAL = (float("nan"), float("inf"), float("-inf"))

texts = st.one_of(st.sampled_from(TRAPS), st.text(max_size=40), st.text(st.characters(), max_size=10))


def nested(depth: int, kind: str = "list") -> JSON:
    value: JSON = 0
    for _ in range(depth):
        value = [value] if kind == "list" else {"a": value}
    return value


scalars = st.one_of(st.none(), st.booleans(), st.sampled_from(NUMBERS + UNREAL), st.integers(), st.floats(), texts)
deep = st.builds(nested, st.sampled_from([3, 99, 100, 101, 150, 330, 480, 900]), st.sampled_from(["list", "object"]))
anything: st.SearchStrategy[JSON] = st.one_of(
    scalars,
    deep,
    st.recursive(
        scalars, lambda inner: st.lists(inner, max_size=3) | st.dictionaries(texts, inner, max_size=3), max_leaves=6
    ),
)


def places(value: JSON, at: tuple[str | int, ...] = ()) -> Iterator[tuple[str | int, ...]]:
    """The path of every value inside of a JSON value, its own, (), among them."""
    yield at
    pairs = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for key, inner in pairs:
        yield from places(inner, (*at, key))


@st.composite
def broken(draw: st.DrawFn, examples: st.SearchStrategy[JSON] | JSON, most: int = 3) -> JSON:
    """An example with up to `most` of its parts dropped, doubled, moved or replaced; sometimes whole."""
    given = draw(examples) if isinstance(examples, st.SearchStrategy) else examples
    box = [copy.deepcopy(given)]
    for _ in range(draw(st.integers(0, most))):
        path = draw(st.sampled_from(list(places(box[0]))[:400]))
        parent: Any = box
        key: Any = 0
        for step in path:
            parent, key = parent[key], step
        what = draw(st.sampled_from(["replace", "replace", "drop", "double", "unknown", "text", "swap"]))
        if what == "drop" and path:
            del parent[key]
        elif what == "double" and isinstance(parent, list) and path:
            parent.insert(key, copy.deepcopy(parent[key]))
        elif what == "unknown" and isinstance(parent[key], dict):
            parent[key][draw(texts)] = draw(anything)
        elif what == "text":
            parent[key] = draw(broken_text(parent[key])) if isinstance(parent[key], str) else str(parent[key])[:1000]
        elif what == "swap":
            other = draw(st.sampled_from(list(places(box[0]))[:400]))
            found: Any = box[0]
            for step in other:
                found = found[step]
            parent[key] = copy.deepcopy(found)
        else:
            parent[key] = draw(anything)
    return box[0]


@st.composite
def broken_text(draw: st.DrawFn, example: str | st.SearchStrategy[str], most: int = 4) -> str:
    """An example with up to `most` cuts, doubled pieces, insertions and swapped lines; sometimes whole."""
    text = draw(example) if isinstance(example, st.SearchStrategy) else example
    for _ in range(draw(st.integers(0, most))):
        start = draw(st.integers(0, len(text)))
        end = min(len(text), start + draw(st.sampled_from([1, 2, 10, 100])))
        what = draw(st.sampled_from(["cut", "double", "insert", "lines", "end"]))
        if what == "cut":
            text = text[:start] + text[end:]
        elif what == "double":
            text = text[:end] + text[start:]
        elif what == "insert":
            text = text[:start] + draw(texts) + text[start:]
        elif what == "end":
            text = text[:start]
        else:
            lines = text.split("\n")
            text = "\n".join(draw(st.permutations(lines)) if len(lines) < 40 else reversed(lines))
    return text


@st.composite
def broken_bytes(draw: st.DrawFn, example: bytes, most: int = 6) -> bytes:
    """An example with up to `most` bytes flipped, zeroed or cut off, and sometimes its end gone."""
    content = bytearray(example)
    for _ in range(draw(st.integers(1, most))):
        if not content:
            break
        start = draw(st.integers(0, len(content) - 1))
        size = draw(st.sampled_from([1, 1, 4, 64, 1024]))
        what = draw(st.sampled_from(["flip", "zero", "noise", "cut", "end"]))
        if what == "flip":
            content[start] ^= draw(st.sampled_from([1, 0x20, 0x80, 0xFF]))
        elif what == "zero":
            content[start : start + size] = bytes(len(content[start : start + size]))
        elif what == "noise":
            content[start : start + size] = draw(st.binary(min_size=1, max_size=8))
        elif what == "cut":
            del content[start : start + size]
        else:
            del content[start:]
    return bytes(content)


def cuts(text: str) -> Iterator[str]:
    """A text cut off after each of its characters, and whole."""
    return (text[:end] for end in range(len(text) + 1))


def as_text(value: JSON) -> str:
    """JSON text as a stranger may write it, NaN and halves of surrogate pairs among it."""
    return json.dumps(value)


def refused_or(kind: type[BaseException] | tuple[type[BaseException], ...], work: Callable[[], Any]) -> Any:
    """What `work` gives, or None where it refuses by an error of `kind`; any other error fails the test."""
    try:
        return work()
    except kind as error:
        why = str(error)
    assert why.strip(), "a refusal says why"
    return None
