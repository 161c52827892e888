"""What each hostile candidate carries with it; its text becomes the head of the candidate's source."""

from __future__ import annotations

import os
import random
import re
from typing import Any

MARKERS = re.compile(rb"(?:canary|private|gold)-[0-9a-f]{16}|bco-[A-Za-z0-9_-]{32}")


class Hands:
    """`target` and `inputs` are None and empty while the scaffold is imported."""

    def __init__(self, seed: int, canaries: list[str]) -> None:
        self.rng = random.Random(seed)
        self.canaries = canaries
        self.target: Any = None
        self.inputs: dict[str, Any] = {}

    def say(self, line: str) -> None:
        try:
            os.write(2, f"\n@{line}\n".encode("utf-8", "replace"))
        except OSError:
            pass

    def found(self, content: object) -> None:
        """Tell every marker in what was read."""
        raw = content if isinstance(content, bytes) else str(content).encode("utf-8", "replace")
        for marker in sorted(set(MARKERS.findall(raw))):
            self.say(f"found {marker.decode()}")

    def read(self, path: str, limit: int = 1 << 22) -> bytes:
        """Content of a file that is there and can be read, else nothing; told as found."""
        try:
            handle = os.open(path, os.O_RDONLY | os.O_NONBLOCK)
        except (OSError, ValueError):
            return b""
        try:
            content = os.read(handle, limit)
        except OSError:
            content = b""
        finally:
            os.close(handle)
        self.found(content)
        return content

    def pids(self) -> list[int]:
        try:
            return [int(name) for name in os.listdir("/proc") if name.isdigit()]
        except OSError:
            return []

    def do(self, piece: Any) -> None:
        self.say(f"did {piece.__name__}")
        try:
            piece(self)
        except (Exception, RecursionError) as error:
            self.say(f"ended {piece.__name__}: {type(error).__name__}")
