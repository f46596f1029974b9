"""A thread that computes the turns of a scheduler, and texts of it for an event loop."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncIterator

import autotune


class Engine:
    """Owns the thread of a scheduler. `stop` ends it when what has begun is computed."""

    def __init__(self, scheduler: autotune.TurnScheduler) -> None:
        self.scheduler = scheduler
        self._work, self._is_over = threading.Event(), False
        self._thread = threading.Thread(target=self._run, name="turns", daemon=True)
        self._thread.start()

    def _run(self) -> None:
        while not self._is_over:
            self._work.clear()
            if not self.scheduler.turn():
                self._work.wait()

    def stop(self) -> None:
        """End the thread."""
        self._is_over = True
        self._work.set()
        self._thread.join()

    def submit(self, request: autotune.TextRequest) -> AsyncIterator[int]:
        """The tokens of a request as they come. A reader that leaves cancels it.

        Raises UsageError for one that does not fit, and QueueFull.
        """
        loop, tokens = asyncio.get_running_loop(), asyncio.Queue[int | None]()

        def tell(token: int | None) -> None:
            if not loop.is_closed():
                loop.call_soon_threadsafe(tokens.put_nowait, token)

        request.tell = tell
        self.scheduler.submit(request)
        self._work.set()
        return _told(request, tokens)


async def _told(
    request: autotune.TextRequest, tokens: asyncio.Queue[int | None]
) -> AsyncIterator[int]:
    try:
        while (token := await tokens.get()) is not None:
            yield token
    finally:
        request.cancel()
