"""⑦ Whether all threads run at full pace: what was timed beside a slow one is timed again.

    while …:
        time every program once         # a round
        pace.holds()                    # False: drop the round; all threads run freely again

Two virtual CPUs may be hyper-threads of one core for a while: a hypervisor puts a CPU that wakes up
where a hyper-thread is free, and moves it after tenths of a second in which it was busy. All
programs then take up to twice as long, with repeats within 1 % of each other, and no counter tells:
no time is stolen. The rate of independent multiply-adds does, which all threads run beside what is
timed. It is compared with the best rate that these threads have had.
"""

from __future__ import annotations

import math
import statistics
import time
from collections.abc import Callable
from dataclasses import dataclass, field

STEADY = 0.8
"""Of the best rate; a core that two threads share leaves half, an interrupt less of one probe."""
_FULL = 0.9  # of what as many threads would reach that do not share anything
_PROBES = 3
_WAIT_S = 2.0
_MOST_DROPPED = 3
"""Rounds of a batch that are timed again."""
_SPARE_S, _SPARE_SHARE = 3.0, 0.1
"""Waiting takes no more than this, and this share of the time since the start."""


@dataclass(slots=True)
class Pace:
    """The pace of a group of threads. `probe`: runs on all for a moment and gives their rate.

    `most_s`: how long it may wait for a full pace, at a time. Where waiting is in vain, the rate
    that there was becomes the usual one, until a better one is seen or the batch ends.
    """

    probe: Callable[[], float]
    most_s: float = _WAIT_S
    clock: Callable[[], float] = time.perf_counter
    best: float = field(default=0.0, init=False)
    """The highest rate seen."""
    _usual: float = field(default=0.0, init=False)
    _shares: list[float] = field(default_factory=list, init=False)
    _n_dropped: int = field(default=0, init=False)
    _begun_s: float = field(default=0.0, init=False)
    _waited_s: float = field(default=0.0, init=False)

    def start(self, expected: float) -> None:
        """Run until the rate is near `expected`, or for as long as one may wait; once, before all.

        `expected`: the rate of one thread, times their number.
        """
        self._begun_s = self.clock()
        self._usual = self._wait_for(_FULL * expected)

    def begin(self) -> None:
        """A batch of such as are timed in turns begins: at full pace where there is one."""
        self._shares, self._n_dropped, self._usual = [], 0, self.best
        if (rate := self._rate()) < STEADY * self._usual:
            self._regain(rate)

    def holds(self) -> bool:
        """Whether what was timed since the last call counts; else the pace is a full one again."""
        rate = self._rate()
        if rate >= STEADY * self._usual:
            self._usual = max(self._usual, rate)
        elif self._n_dropped < _MOST_DROPPED and self._may_wait():
            self._n_dropped += 1
            self._regain(rate)
            return False
        self._shares.append(rate)
        return True

    @property
    def share(self) -> float:
        """Of the best rate, in what counts of this batch; 1 where it was nearly that."""
        found = statistics.median(self._shares) / self.best if self._shares else 1.0
        return found if found < STEADY else 1.0

    def _rate(self) -> float:
        """The better of a few probes, where the first is slow."""
        rate = 0.0
        for _ in range(_PROBES):
            rate = max(rate, self._probed())
            if rate >= STEADY * self._usual:
                break
        return rate

    def _may_wait(self) -> bool:
        age_s = self.clock() - self._begun_s
        return self._waited_s < _SPARE_S + _SPARE_SHARE * age_s

    def _regain(self, rate: float) -> None:
        """Wait for the usual pace, or take what there is for the usual one."""
        begin_s = self.clock()
        found = max(rate, self._wait_for(STEADY * self._usual)) if self._may_wait() else rate
        self._waited_s += self.clock() - begin_s
        self._usual = max(self._usual, found) if found >= STEADY * self._usual else found

    def _wait_for(self, rate: float) -> float:
        """Keep all threads busy until their rate is so high, or time is up; the highest rate."""
        end_s, found = self.clock() + self.most_s, self._probed()
        while found < rate and self.clock() < end_s:
            found = max(found, self._probed())
        return found

    def _probed(self) -> float:
        rate = self.probe()
        rate = rate if math.isfinite(rate) else 0.0
        self.best = max(self.best, rate)
        return rate
