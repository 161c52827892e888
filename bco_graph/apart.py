"""Async work for a caller that is not: a loop of its own, since the caller may be inside of a running one already."""

from __future__ import annotations

import asyncio
import contextvars
from collections.abc import Coroutine
from concurrent.futures import ThreadPoolExecutor
from typing import Any, TypeVar

T = TypeVar("T")


def run_apart(work: Coroutine[Any, Any, T], *, name: str = "bco-apart") -> T:
    """What `work` gives or raises, in a thread called `name` with the caller's context. Blocks meanwhile."""
    context = contextvars.copy_context()
    with ThreadPoolExecutor(1, thread_name_prefix=name) as pool:
        return pool.submit(context.run, asyncio.run, work).result()
