"""⑩ Core-to-core latency: round trip of a cache line between two threads.

A kernel that waits for another thread waits for one round trip at least: a few hundred ns between
two idle cores of one socket, more across sockets, tens of µs when the cores are oversubscribed. A
virtual machine does not report its topology, so a latency on several threads is reported with this
figure. The functions of this module are compiled by `native`.
"""

from __future__ import annotations

import statistics
import sys
import time
from collections.abc import Callable

from autotune.codegen.image.jit import Library
from autotune.codegen.memory import aligned
from autotune.codegen.team.gang import gang
from autotune.codegen.team.native import give_way, load_acquire, store_release
from autotune.codegen.team.native_object import native_object
from autotune.target import Target

TRIPS = 500
_REPEATS = 8
_LIMIT_S = 0.1
SPINS = 4_000
PONG = 128
_WORDS_BYTES = 2 * PONG
_PREFIX = "autotune_latency_"


class CoreLatency:
    """Measures between two threads of this process, where the system puts them."""

    def __init__(
        self, target: Target, n_threads: int, clock: Callable[[], float] = time.perf_counter
    ) -> None:
        self._n_threads = n_threads
        self._clock = clock
        self._library = Library(
            [native_object(sys.modules[__name__], target, ("round_trips",), _PREFIX)]
        )
        self._address = self._library.address(f"{_PREFIX}round_trips")
        self._gang = gang(target, n_threads)
        self._words = aligned((_WORDS_BYTES,), "uint8")

    def measure(self) -> float | None:
        """Seconds per round trip with the present thread placement; None with a single thread.

        Median of 8 blocks of 500 round trips; fewer blocks after 0.1 s, when two threads share a
        core and a round trip takes milliseconds.
        """
        if self._n_threads < 2:
            return None
        times: list[float] = []
        begin = self._clock()
        while not times or (len(times) < _REPEATS and self._clock() - begin < _LIMIT_S):
            start = self._clock()
            self._words.fill(0)
            self._gang.call(self._address, self._words.ctypes.data)
            times.append((self._clock() - start) / TRIPS)
        return statistics.median(times)


def round_trips(words: int, thread: int, n: int) -> int:
    """Ping-pong of the gang; `words`: two cache lines, which threads 0 and 1 count in."""
    i = 1
    while thread < 2 and i <= TRIPS:
        if thread == 0:
            store_release(words, i)
            await_value(words + PONG, i)
        else:
            await_value(words, i)
            store_release(words + PONG, i)
        i += 1
    return 0


def await_value(at: int, value: int) -> int:
    """Wait for a value. It spins without `pause`, which may take as long as the round trip.

    After many spins a thread yields, so that two threads on one core make progress.
    """
    spins = 0
    while load_acquire(at) != value:
        if spins < SPINS:
            spins += 1
        else:
            give_way()
    return 0
