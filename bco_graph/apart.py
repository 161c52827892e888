"""Async work in a thread and a loop of its own: for a caller without a loop, or with one that must not be blocked."""

from __future__ import annotations

import asyncio
import contextlib
import contextvars
import sys
import threading
from collections.abc import Callable, Coroutine
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any, TypeVar

T = TypeVar("T")


def run_apart(work: Coroutine[Any, Any, T], *, name: str = "bco-apart") -> T:
    """What `work` gives or raises, in a thread called `name` with the caller's context. Blocks meanwhile."""
    context = contextvars.copy_context()
    with ThreadPoolExecutor(1, thread_name_prefix=name) as pool:
        return pool.submit(context.run, run_in_own_thread, work).result()


async def await_apart(work: Coroutine[Any, Any, T], *, name: str = "bco-apart") -> T:
    """The same, while the caller's loop goes on. Cancelling it cancels `work`, and waits for its end."""
    caller, ended = asyncio.get_running_loop(), asyncio.Event()
    under_way: Future[Callable[[], object]] = Future()

    async def watched() -> T:
        loop, task = asyncio.get_running_loop(), asyncio.current_task()
        assert task is not None
        under_way.set_result(lambda: loop.call_soon_threadsafe(task.cancel))
        return await work

    pool = ThreadPoolExecutor(1, thread_name_prefix=name)
    future = pool.submit(contextvars.copy_context().run, run_in_own_thread, watched())
    pool.shutdown(wait=False)
    future.add_done_callback(lambda _: _unless_closed(lambda: caller.call_soon_threadsafe(ended.set)))
    cancelled: asyncio.CancelledError | None = None
    try:
        while not ended.is_set():
            try:
                await ended.wait()
            except asyncio.CancelledError as error:
                cancelled = error
                under_way.add_done_callback(_cancel)
    finally:
        if not ended.is_set():  # The caller's loop was given up: nobody waits any more.
            under_way.add_done_callback(_cancel)
    if cancelled is not None and (future.exception() is None or isinstance(future.exception(), asyncio.CancelledError)):
        raise cancelled
    return future.result()


def run_in_own_thread(work: Coroutine[Any, Any, T]) -> T:
    """`asyncio.run` for a thread that was started for `work`: what blocks in it holds up nobody else."""
    may_block()
    return asyncio.run(work)


def may_block() -> None:
    """Say so to `blockbuster`, by which `langgraph dev` guards its loop, where it is loaded.

    It refuses blocking calls in each thread with a running loop, ours too, and has no public way to except one. What it
    looks at itself is a context variable up to 1.5.28, and a variable of the thread from 1.5.29 on.
    """
    module = sys.modules.get("blockbuster.blockbuster")
    for skip in (getattr(module, "_skip", None), getattr(module, "blockbuster_skip", None)):
        if isinstance(skip, threading.local):
            skip.value = True
        elif isinstance(skip, contextvars.ContextVar):
            skip.set(True)


def _cancel(under_way: Future[Callable[[], object]]) -> None:
    _unless_closed(under_way.result())


def _unless_closed(call: Callable[[], object]) -> None:
    """A call into a loop that may be closed by now."""
    with contextlib.suppress(RuntimeError):
        call()
