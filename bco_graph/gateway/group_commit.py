"""Durable writes that share a commit: what is handed in while one batch is being written goes out with the next.

An answer waits for its own write and for nothing else; the event loop waits for none.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Sequence
from queue import SimpleQueue
from typing import Generic, TypeVar

T = TypeVar("T")

_Batch = list[tuple[T, asyncio.Future[None]]]


class GroupCommit(Generic[T]):
    """`write` takes a batch and returns when it is durable; it runs in one thread, one batch at a time.

    All methods belong to one event loop, that in which it is made. Items are written in the order in which they were
    added.
    """

    def __init__(self, write: Callable[[Sequence[T]], None]) -> None:
        self._write = write
        self._loop = asyncio.get_running_loop()
        self._waiting: _Batch[T] = []
        self._writing = False
        self._batches: SimpleQueue[_Batch[T] | None] = SimpleQueue()
        self._thread = threading.Thread(target=self._run, name="bco-receipts", daemon=True)
        self._thread.start()

    async def add(self, item: T) -> None:
        """Returns when the item is durable; raises what the write of its batch raised."""
        done: asyncio.Future[None] = self._loop.create_future()
        self._waiting.append((item, done))
        if not self._writing:
            self._writing = True
            self._loop.call_soon(self._hand_over)  # not at once: what else is ready now goes with it
        await done

    def close(self) -> None:
        """Stop the thread; everything that was added has been waited for."""
        self._batches.put(None)
        self._thread.join()

    def _hand_over(self) -> None:
        batch, self._waiting = self._waiting, []
        self._batches.put(batch)

    def _run(self) -> None:
        while (batch := self._batches.get()) is not None:
            error: Exception | None = None
            try:
                self._write([item for item, _ in batch])
            except Exception as raised:
                error = raised
            self._loop.call_soon_threadsafe(self._settle, batch, error)

    def _settle(self, batch: _Batch[T], error: Exception | None) -> None:
        if self._waiting:
            self._hand_over()
        else:
            self._writing = False
        for _, done in batch:
            if done.cancelled():
                continue
            if error is None:
                done.set_result(None)
            else:
                done.set_exception(error)
                done.exception()  # who waited may have left: then nobody else asks for it
