"""⑩ Core-to-core latency: round trip of a cache line between two threads.

A kernel that waits for another thread waits for one round trip at least: a few hundred ns between
two idle cores of one socket, more across sockets, tens of µs when the cores are oversubscribed. A
virtual machine does not report its topology, so a latency on several threads is reported with this
figure.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable

from autotune.codegen.compile import assemble
from autotune.codegen.gang import gang
from autotune.codegen.jit import Library
from autotune.codegen.memory import aligned
from autotune.target import Target

_TRIPS = 500
_REPEATS = 8
_LIMIT_S = 0.1
_SPINS = 4_000
_WORDS_BYTES = 256


class CoreLatency:
    """Measures between two threads of this process, where the system puts them."""

    def __init__(
        self, target: Target, n_threads: int, clock: Callable[[], float] = time.perf_counter
    ) -> None:
        self._n_threads = n_threads
        self._clock = clock
        self._library = Library([assemble(_IR, target)])
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
            self._gang.call(self._library.address("round_trips"), self._words.ctypes.data)
            times.append((self._clock() - start) / _TRIPS)
        return statistics.median(times)


# No `pause` in the loop: on some CPUs it takes as long as the round trip. After many spins a thread
# yields, so that two threads on one core make progress.
_IR = f"""
declare i32 @sched_yield()

define internal void @await(ptr %at, i64 %value) noinline {{
entry:
  br label %look
look:
  %spins = phi i64 [ 0, %entry ], [ %more, %spin ], [ %spins, %yield ]
  %seen = load atomic i64, ptr %at acquire, align 8
  %is_there = icmp eq i64 %seen, %value
  br i1 %is_there, label %done, label %again
again:
  %patient = icmp ult i64 %spins, {_SPINS}
  br i1 %patient, label %spin, label %yield
spin:
  %more = add i64 %spins, 1
  br label %look
yield:
  call i32 @sched_yield()
  br label %look
done:
  ret void
}}

; Words 0 and 16 (two cache lines): counters of threads 0 and 1.
define void @round_trips(ptr %ping, i64 %thread, i64 %n) {{
entry:
  %pong = getelementptr i64, ptr %ping, i64 16
  %plays = icmp ult i64 %thread, 2
  br i1 %plays, label %start, label %done
start:
  %is_first = icmp eq i64 %thread, 0
  br label %trip
trip:
  %i = phi i64 [ 1, %start ], [ %next, %tail ]
  br i1 %is_first, label %send, label %answer
send:
  store atomic i64 %i, ptr %ping release, align 8
  call void @await(ptr %pong, i64 %i)
  br label %tail
answer:
  call void @await(ptr %ping, i64 %i)
  store atomic i64 %i, ptr %pong release, align 8
  br label %tail
tail:
  %next = add i64 %i, 1
  %ends = icmp eq i64 %i, {_TRIPS}
  br i1 %ends, label %done, label %trip
done:
  ret void
}}
"""
