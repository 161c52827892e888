"""Durable writes that share a commit: what is handed in while one batch is being written goes out with the next.

An answer waits for its own write and for nothing else; the event loop waits for none.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Generic, TypeVar

T = TypeVar("T")


class GroupCommit(Generic[T]):
    """`write` takes a batch and returns when it is durable; it runs in one thread, one batch at a time.

    All methods belong to one event loop. Items are written in the order in which they were added.
    """

    def __init__(self, write: Callable[[Sequence[T]], None]) -> None:
        self._write = write
        self._waiting: list[tuple[T, asyncio.Future[None]]] = []
        self._writer: asyncio.Task[None] | None = None
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="bco-receipts")

    async def add(self, item: T) -> None:
        """Returns when the item is durable; raises what the write of its batch raised."""
        done: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waiting.append((item, done))
        if self._writer is None:
            self._writer = asyncio.get_running_loop().create_task(self._run())
        await done

    async def _run(self) -> None:
        loop = asyncio.get_running_loop()
        try:
            while self._waiting:
                batch, self._waiting = self._waiting, []
                try:
                    await loop.run_in_executor(self._thread, self._write, [item for item, _ in batch])
                except Exception as error:
                    _settle(batch, error)
                else:
                    _settle(batch, None)
        finally:
            self._writer = None

    def close(self) -> None:
        """Stop the thread; everything that was added has been waited for."""
        self._thread.shutdown(wait=True)


def _settle(batch: Sequence[tuple[T, asyncio.Future[None]]], error: Exception | None) -> None:
    for _, done in batch:
        if done.cancelled():
            continue
        if error is None:
            done.set_result(None)
        else:
            done.set_exception(error)
            done.exception()  # who waited may have left: then nobody else asks for it
