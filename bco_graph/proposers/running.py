"""Run one program in a process group of its own, with a hard end and a bounded record of what it printed."""

from __future__ import annotations

import asyncio
import os
import signal
import time
from collections import deque
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from bco_graph.evaluation.worker import kill_tree

HEAD_BYTES = 8_000
TAIL_BYTES = 24_000
_MARGIN = 4_096
"""Bytes kept beyond head and tail until secrets are out, so that a cut never leaves a part of one."""
_SHORTEST_SECRET = 6
_LINGER_S = 1.0
"""Seconds to wait for the end of output once the group is dead; a process that left the group may hold it open."""


@dataclass(frozen=True, slots=True)
class Ended:
    """How the program ended. `code` is its exit code, negative for a signal, or None where the limit struck."""

    code: int | None
    seconds: float
    output: str
    """Standard output and error as they came; head and tail where it was long, the cut marked, secrets replaced."""


class Output(asyncio.Protocol):
    """Keeps the head and the tail of a stream of bytes."""

    def __init__(self) -> None:
        self.total = 0
        self.closed = asyncio.Event()
        self._head = bytearray()
        self._tail: deque[bytes] = deque()
        self._tail_size = 0

    def data_received(self, data: bytes) -> None:
        self.total += len(data)
        room = max(0, HEAD_BYTES + _MARGIN - len(self._head))
        self._head += data[:room]
        if rest := data[room:]:
            self._tail.append(rest)
            self._tail_size += len(rest)
            while self._tail_size - len(self._tail[0]) >= TAIL_BYTES + _MARGIN:
                self._tail_size -= len(self._tail.popleft())

    def connection_lost(self, exc: Exception | None) -> None:
        self.closed.set()

    def text(self, secrets: Mapping[str, str]) -> str:
        """`secrets` maps a name to a value; each value is shown as `[NAME]`."""
        head, tail = bytes(self._head), b"".join(self._tail)
        if self.total <= HEAD_BYTES + TAIL_BYTES:
            return _without(head + tail, secrets).decode("utf-8", "replace")
        if self.total == len(head) + len(tail):
            tail = head + tail
        head, tail = _without(head, secrets)[:HEAD_BYTES], _without(tail, secrets)[-TAIL_BYTES:]
        mark = f"\n[cut: kept {len(head) + len(tail):,} of {self.total:,} bytes, head and tail]\n"
        return head.decode("utf-8", "replace") + mark + tail.decode("utf-8", "replace")


def _without(text: bytes, secrets: Mapping[str, str]) -> bytes:
    for name, value in secrets.items():
        if len(value) >= _SHORTEST_SECRET:
            text = text.replace(value.encode("utf-8"), f"[{name}]".encode())
    return text


async def run_program(
    argv: Sequence[str], *, cwd: Path, environment: Mapping[str, str], timeout_s: float, secrets: Mapping[str, str]
) -> Ended:
    """Run to the end or for `timeout_s` seconds, then kill the whole group. Raises OSError where it cannot start."""
    started = time.monotonic()
    read_end, write_end = os.pipe()
    loop, output = asyncio.get_running_loop(), Output()
    transport, _ = await loop.connect_read_pipe(lambda: output, os.fdopen(read_end, "rb", 0))
    try:
        try:
            process = await asyncio.create_subprocess_exec(
                *argv, cwd=cwd, env=dict(environment), start_new_session=True,
                stdin=asyncio.subprocess.DEVNULL, stdout=write_end, stderr=write_end,
            )  # fmt: skip
        finally:
            os.close(write_end)
        code = await _end(process, timeout_s)
        with suppress(TimeoutError):
            await asyncio.wait_for(output.closed.wait(), _LINGER_S)
    finally:
        transport.close()
    return Ended(code, time.monotonic() - started, output.text(secrets))


async def _end(process: asyncio.subprocess.Process, timeout_s: float) -> int | None:
    """The exit code, or None at the limit; it, its group and what it has below it are dead afterwards, on cancellation
    too."""
    try:
        return await asyncio.wait_for(process.wait(), timeout_s)
    except TimeoutError:
        return None
    finally:
        if process.returncode is None:
            kill_tree(process.pid)
        with suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        await process.wait()
