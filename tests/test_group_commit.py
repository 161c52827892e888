"""Writes share a commit, keep their order, and each waits for its own."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Sequence

import pytest

from bco_graph.gateway.group_commit import GroupCommit


async def test_what_comes_in_during_a_write_goes_out_together_and_in_order() -> None:
    batches: list[list[int]] = []
    begun, first = threading.Event(), threading.Event()

    def write(batch: Sequence[int]) -> None:
        batches.append(list(batch))
        begun.set()
        first.wait(5)

    commits = GroupCommit(write)
    tasks = [asyncio.create_task(commits.add(0))]
    await asyncio.to_thread(begun.wait, 5)
    tasks += [asyncio.create_task(commits.add(number)) for number in range(1, 100)]
    await asyncio.sleep(0.01)
    assert not any(task.done() for task in tasks)
    first.set()
    await asyncio.gather(*tasks)
    commits.close()
    assert batches == [[0], list(range(1, 100))]


async def test_a_write_that_fails_fails_those_of_its_batch_and_the_next_is_written() -> None:
    written: list[int] = []

    def write(batch: Sequence[int]) -> None:
        if 1 in batch:
            raise OSError("the disk is full")
        written.extend(batch)

    commits = GroupCommit(write)
    with pytest.raises(OSError, match="disk is full"):
        await commits.add(1)
    await commits.add(2)
    commits.close()
    assert written == [2]


async def test_who_stops_waiting_does_not_stop_the_write() -> None:
    written: list[int] = []
    going = threading.Event()

    def write(batch: Sequence[int]) -> None:
        going.wait(5)
        written.extend(batch)

    commits = GroupCommit(write)
    task = asyncio.create_task(commits.add(1))
    await asyncio.sleep(0.01)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    going.set()
    await commits.add(2)
    commits.close()
    assert written == [1, 2]
