"""Search the workspace for a pattern, in a process of its own: a pattern that never ends can be killed.

As a program it takes one JSON object on stdin, {"root", "start", "pattern", "limit"}, and prints one match a line as
`path:line: text`, then a last line of JSON with the count of all matches and of files searched. It imports nothing of
this package, so that it starts in some 20 ms.
"""

from __future__ import annotations

import json
import os
import re
import sys
from pathlib import Path

_AROUND = 120
"""Characters shown on each side of a match in a long line."""


def files_below(start: Path) -> list[Path]:
    """Regular files in a fixed order; links are not followed."""
    if start.is_file():
        return [start]
    found = []
    for folder, names, files in os.walk(start):
        names.sort()
        found += [path for name in sorted(files) if not (path := Path(folder) / name).is_symlink() and path.is_file()]
    return found


def excerpt(line: str, start: int, end: int) -> str:
    """A line, or the part of a long one around a match with marks where it was cut."""
    if len(line) <= 3 * _AROUND:
        return line
    left, right = max(0, start - _AROUND), min(len(line), min(end, start + _AROUND) + _AROUND)
    return (
        f"{'…' if left else ''}{line[left:right]}{'…' if right < len(line) else ''} [line of {len(line):,} characters]"
    )


def main() -> None:
    asked = json.loads(sys.stdin.buffer.read())
    root, pattern = Path(asked["root"]), re.compile(asked["pattern"])
    matches = files = 0
    for path in files_below(Path(asked["start"])):
        files += 1
        name = path.relative_to(root).as_posix()
        with path.open(encoding="utf-8", errors="replace", newline="\n") as stream:
            for number, line in enumerate(stream, start=1):
                line = line.rstrip("\r\n")
                if found := pattern.search(line):
                    matches += 1
                    if matches <= asked["limit"]:
                        shown = f"{name}:{number}: {excerpt(line, *found.span())}\n"
                        sys.stdout.buffer.write(shown.encode("utf-8", "replace"))
    sys.stdout.buffer.write(json.dumps({"matches": matches, "files": files}).encode())


if __name__ == "__main__":
    main()
