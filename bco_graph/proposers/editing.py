"""One replacement in one file's bytes: exact, or refused with what would help; never a guess.

The file keeps its line endings, its byte order mark, and whether it ends with a line break. Matching looks past
`\\r\\n` against `\\n`; where nothing matches exactly, whole lines may match that differ in trailing blanks only, if
there is one such place. Bytes that are not UTF-8 are carried through untouched.
"""

from __future__ import annotations

import difflib
from bisect import bisect_left
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from bco_graph.errors import ToolRefused

_BOM = b"\xef\xbb\xbf"
_NEAR = 0.5
"""Similarity, in [0, 1], below which a line is not worth showing."""
_COMPARED_LINES = 20_000
"""Lines of a file that the search for near ones looks at."""
_SHOWN_LINES = 20


@dataclass(frozen=True, slots=True)
class Edited:
    content: bytes
    match: Literal["exact", "loose"]
    line: int
    """Line at which the replaced text begins, from 1."""


def edit(content: bytes, old: str, new: str) -> Edited:
    """`content` with the only occurrence of `old` replaced by `new`; raises ToolRefused and changes nothing else."""
    if not old:
        raise ToolRefused("`old` is empty: give the text to replace, or create a file with write_file")
    if any("\ud800" <= char <= "\udfff" for char in new):
        raise ToolRefused("`new` holds half of a surrogate pair, which is no character")
    bom = content.startswith(_BOM)
    body = content.removeprefix(_BOM).decode("utf-8", "surrogateescape")
    text, old = body.replace("\r\n", "\n"), old.replace("\r\n", "\n")
    start, end, match = _find(text, old)
    replaced = _replace(body, text, start, end, new)
    if replaced == body:
        raise ToolRefused("nothing would change: `new` is what stands there already")
    result = replaced.encode("utf-8", "surrogateescape")
    return Edited((_BOM if bom else b"") + result, match, text.count("\n", 0, start) + 1)


def _find(text: str, old: str) -> tuple[int, int, Literal["exact", "loose"]]:
    spans = _exact(text, old)
    match: Literal["exact", "loose"] = "exact"
    if not spans:
        spans, match = _loose(text, old), "loose"
    if not spans:
        raise ToolRefused(f"no match for `old`; {_nearest_lines(text, old)}")
    if len(spans) > 1:
        lines = [str(text.count("\n", 0, start) + 1) for start, _ in spans]
        shown = ", ".join(lines[:10]) + (", …" if len(lines) > 10 else "")
        raise ToolRefused(
            f"{len(spans)} places match `old` (lines {shown}): give more of the text around the one meant"
        )
    return *spans[0], match


def _exact(text: str, old: str) -> list[tuple[int, int]]:
    """Spans of every occurrence, overlapping ones too: those are ambiguous as well."""
    spans, at = [], text.find(old)
    while at >= 0:
        spans.append((at, at + len(old)))
        at = text.find(old, at + 1)
    return spans


def _loose(text: str, old: str) -> list[tuple[int, int]]:
    """Spans of whole lines that equal the lines of `old` but for trailing blanks."""
    with_break = old.endswith("\n")
    wanted = [line.rstrip() for line in old.removesuffix("\n").split("\n")]
    if not any(wanted):
        return []
    lines = text.split("\n")
    bare = [line.rstrip() for line in lines]
    offsets = [0]
    for line in lines:
        offsets.append(offsets[-1] + len(line) + 1)
    size = len(wanted)
    return [
        (offsets[i], min(offsets[i + size] - (not with_break), len(text)))
        for i in range(len(lines) - size + 1)
        if bare[i : i + size] == wanted
    ]


def _replace(body: str, text: str, start: int, end: int, new: str) -> str:
    """Replace a span of `text` in `body`, of which `text` is the form with `\\n` only; keeps the file's style."""
    crlf, breaks = _crlf_positions(body), text.count("\n")
    uses_crlf = 2 * len(crlf) > breaks
    if breaks:
        new = new.replace("\r\n", "\n")
    span = text[start:end]
    head = _common_prefix(span, new)
    tail = _common_prefix(span[head:][::-1], new[head:][::-1])
    start, end, new = start + head, end - tail, new[head : len(new) - tail]
    if uses_crlf:
        new = new.replace("\n", "\r\n")
    replaced = body[: start + bisect_left(crlf, start)] + new + body[end + bisect_left(crlf, end) :]
    return _keep_final_break(body, replaced, "\r\n" if uses_crlf else "\n")


def _crlf_positions(body: str) -> list[int]:
    """Where, in the text with `\\n` only, the line breaks stand that were `\\r\\n` in `body`; ascending."""
    positions: list[int] = []
    at = body.find("\r\n")
    while at >= 0:
        positions.append(at - len(positions))
        at = body.find("\r\n", at + 2)
    return positions


def _common_prefix(a: str, b: str) -> int:
    return next((i for i, (x, y) in enumerate(zip(a, b, strict=False)) if x != y), min(len(a), len(b)))


def _keep_final_break(before: str, after: str, line_break: str) -> str:
    if before.endswith("\n") and after and not after.endswith("\n"):
        return after + line_break
    if before and not before.endswith("\n") and after.endswith("\n"):
        return after[:-2] if after.endswith("\r\n") else after[:-1]
    return after


def _nearest_lines(text: str, old: str) -> str:
    lines = text.split("\n")[:_COMPARED_LINES]
    wanted = old.removesuffix("\n").split("\n")
    key = max(range(len(wanted)), key=lambda i: len(wanted[i].strip()))
    best, score = _most_similar(lines, wanted[key].strip())
    if score < _NEAR:
        return "no line of the file is near it: read the file again"
    first = max(0, best - key)
    shown = lines[first : first + min(len(wanted), _SHOWN_LINES)]
    numbered = "\n".join(f"{first + i + 1}: {line}" for i, line in enumerate(shown))
    return f"nearest in the file, with line numbers:\n{numbered}"


def _most_similar(lines: Sequence[str], wanted: str) -> tuple[int, float]:
    """Index and similarity, in [0, 1], of the line most like `wanted`; the first one of equals."""
    matcher = difflib.SequenceMatcher(b=wanted, autojunk=False)
    best, score = 0, 0.0
    for i, line in enumerate(lines):
        matcher.set_seq1(line.strip()[:500])
        if matcher.real_quick_ratio() > score and matcher.quick_ratio() > score and (ratio := matcher.ratio()) > score:
            best, score = i, ratio
    return best, score
