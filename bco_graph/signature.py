"""The live signature: in how many of a candidate's task traces does the mark of its mechanism stand?

A signature is a literal, or a regular expression after `re:`. An expression is searched in a process of its own, which
is killed after a time: as a program, this file takes {"folder", "pattern"} as JSON on stdin and prints the count.
"""

from __future__ import annotations

import json
import re
import subprocess
import sys
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

SEARCH_TIMEOUT_S = 20.0
_LEFT_BY_THE_SCAFFOLD = ("events", "stdout", "stderr", "calls")


def signature_fault(pattern: str) -> str | None:
    """Why a signature cannot be looked for, or None."""
    if not pattern.removeprefix("re:").strip():
        return "live_signature is empty"
    if pattern.startswith("re:") and (fault := expression_fault(pattern.removeprefix("re:"))):
        return f"live_signature {pattern!r} is no regular expression: {fault}"
    return None


def expression_fault(pattern: str) -> str | None:
    """Why a regular expression cannot be searched for, or None."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # An odd set is the writer's own affair.
        try:
            re.compile(pattern)
        except (re.error, OverflowError) as error:
            return str(error)
        except RecursionError:
            return "its groups are nested too deeply"
    return None


def signature_hits(pattern: str, traces: Path, *, timeout_s: float = SEARCH_TIMEOUT_S) -> int | None:
    """How many tasks have a trace with the signature in what the scaffold left there (events, output, model calls).

    None when an expression could not be searched, within the time or at all.
    """
    if not pattern.startswith("re:"):
        # As traces are written, each character is escaped by itself: what lacks this holds no such text.
        return _count(traces, lambda text: pattern in text, mark=json.dumps(pattern, ensure_ascii=False)[1:-1])
    asked = json.dumps({"folder": str(traces), "pattern": pattern.removeprefix("re:")})
    try:
        done = subprocess.run(
            [sys.executable, "-I", "-S", __file__],
            input=asked, capture_output=True, text=True, encoding="utf-8", timeout=timeout_s, check=True,
        )  # fmt: skip
    except (subprocess.TimeoutExpired, subprocess.CalledProcessError):
        return None
    return int(done.stdout)


def _count(traces: Path, found: Callable[[str], bool], *, mark: str = "") -> int:
    """`mark` is what the file of a trace must hold to be looked into."""
    tasks = set()
    for path in sorted(traces.glob("*.json")):
        written = path.read_text(encoding="utf-8")
        if mark not in written:
            continue
        trace = json.loads(written)
        if any(found(text) for key in _LEFT_BY_THE_SCAFFOLD for text in _strings(trace.get(key))):
            tasks.add(trace["task"])
    return len(tasks)


def _strings(value: Any) -> Iterator[str]:
    if isinstance(value, str):
        yield value
    elif isinstance(value, dict):
        for key, inner in value.items():
            yield str(key)
            yield from _strings(inner)
    elif isinstance(value, list):
        for inner in value:
            yield from _strings(inner)


if __name__ == "__main__":
    _asked = json.loads(sys.stdin.read())
    _compiled = re.compile(_asked["pattern"])
    print(_count(Path(_asked["folder"]), lambda text: _compiled.search(text) is not None))
