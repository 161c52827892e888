"""How many lines a git patch adds and removes, file by file. Pure."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import TypedDict

_HUNK = re.compile(r"@@ -\d+(?:,(\d+))? \+\d+(?:,(\d+))? @@")


class FileChange(TypedDict):
    """Lines added and removed, None for a binary file; `how` is added, removed or changed."""

    path: str
    how: str
    added: int | None
    removed: int | None


def diff_stat(patch: str) -> Iterator[FileChange]:
    """Files in the order of the patch. Counts by hunk, so that content that looks like a header is content."""
    change: FileChange | None = None
    old = new = 0
    for line in patch.split("\n"):
        if change and (old > 0 or new > 0):
            old, new = old - (line[:1] in " -"), new - (line[:1] in " +")
            if line.startswith("+"):
                change["added"] = (change["added"] or 0) + 1
            elif line.startswith("-"):
                change["removed"] = (change["removed"] or 0) + 1
        elif line.startswith("diff --git "):
            if change:
                yield change
            change = FileChange(path=_path(line), how="changed", added=0, removed=0)
        elif change and (hunk := _HUNK.match(line)):
            old, new = (int(part) if part is not None else 1 for part in hunk.groups())
        elif change and line.startswith(("new file mode", "deleted file mode")):
            change["how"] = "added" if line.startswith("new") else "removed"
        elif change and line.startswith("GIT binary patch"):
            change["added"] = change["removed"] = None
    if change:
        yield change


def _path(header: str) -> str:
    """The path of `diff --git a/x b/x`, quoted as git quotes it; both sides are equal: renames are not looked for."""
    both = header.removeprefix("diff --git ")
    half = both[: len(both) // 2]
    return half.removeprefix("a/") if not half.startswith('"') else '"' + half.removeprefix('"a/')
