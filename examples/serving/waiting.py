"""What waits for a free core: taken together as soon as there is one, refused beyond a number."""

from __future__ import annotations

import asyncio
import os
from collections import Counter, deque
from collections.abc import Awaitable, Callable, Sequence
from typing import Generic, TypeVar

MOST_WAITING = 512

Item = TypeVar("Item")
Answer = TypeVar("Answer")


class Overloaded(Exception):
    """More waits than is let."""


class Batcher(Generic[Item, Answer]):
    """Computes whatever is waiting as soon as a core is free, and never waits for more.

    `run` answers a batch in order. `size` says how many of those that wait, in order, are the next
    batch: 1 or more.
    """

    def __init__(
        self,
        run: Callable[[list[Item]], Awaitable[Sequence[Answer]]],
        size: Callable[[Sequence[Item]], int],
        most_waiting: int = MOST_WAITING,
    ) -> None:
        self.run, self.size, self.most_waiting = run, size, most_waiting
        self.free = len(os.sched_getaffinity(0))
        self.waiting: deque[tuple[Item, asyncio.Future[Answer]]] = deque()
        self.running: set[asyncio.Task[None]] = set()
        self.counts: Counter[int] = Counter()

    async def answers(self, items: Sequence[Item]) -> list[Answer]:
        """What `run` says of each of `items`. Raises Overloaded, and then computes none of them."""
        if self.waiting and len(self.waiting) + len(items) > self.most_waiting:
            raise Overloaded
        loop = asyncio.get_running_loop()
        waiting = [(item, loop.create_future()) for item in items]
        self.waiting.extend(waiting)
        self._start()
        return list(await asyncio.gather(*(answer for _, answer in waiting)))

    def _start(self) -> None:
        if any(answer.done() for _, answer in self.waiting):  # their clients have left
            self.waiting = deque(one for one in self.waiting if not one[1].done())
        while self.free and self.waiting:
            n = self.size([item for item, _ in self.waiting])
            taken = [self.waiting.popleft() for _ in range(n)]
            self.free -= 1
            self.counts[n] += 1
            task = asyncio.create_task(self._run(taken))
            self.running.add(task)
            task.add_done_callback(self.running.discard)

    async def _run(self, taken: list[tuple[Item, asyncio.Future[Answer]]]) -> None:
        try:
            found = await self.run([item for item, _ in taken])
            for (_, answer), one in zip(taken, found, strict=True):
                if not answer.done():  # else its client has left
                    answer.set_result(one)
        except Exception as error:
            for _, answer in taken:
                if not answer.done():
                    answer.set_exception(error)
        finally:
            self.free += 1
            self._start()
