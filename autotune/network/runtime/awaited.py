"""⑩ An inference that a coroutine waits for, while the event loop serves others."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from contextlib import suppress
from typing import TypeVar

T = TypeVar("T")


async def awaited(call: Callable[[], T]) -> T:
    """Result of `call`, computed in a thread of the loop's default executor.

    A task that is cancelled ends when nothing is computed for it any more: a call that waits for a
    thread is never made, one that has begun is made to its end. So what a call writes to is either
    as it was, or whole, and may be used again as soon as the task has ended.
    """
    begun = threading.Lock()  # taken by the first: the thread that computes, or the cancellation
    loop = asyncio.get_running_loop()

    def work() -> T | None:
        return call() if begun.acquire(blocking=False) else None

    future = loop.run_in_executor(None, work)
    try:
        await asyncio.wait([future])
    except asyncio.CancelledError:
        if begun.acquire(blocking=False):
            future.cancel()
            raise
        while not future.done():
            with suppress(asyncio.CancelledError):
                await asyncio.wait([future])
        future.exception()  # seen: nothing else asks for it
        raise
    return future.result()  # type: ignore[return-value]  # None is of a cancelled task
