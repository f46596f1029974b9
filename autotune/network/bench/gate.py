"""⑩ A gate: by how much a model is slower than it was, and how sure that is.

    rounds = measure_rounds(now, before, reference, is_enough)
    verdict(rounds, limit=1.05)             # 1.012 (0.998 to 1.023)

Both take turns run by run (one team of threads computes both, so neither has threads that spin
beside the other), and a ratio is formed of the fastest runs of each round, which are the least
disturbed ones: with ten other processes on two cores, the ratio of a model to itself was 1 with a
deviation of 2 % after 10 s, that of medians 8 %. Where only the figures of an earlier run are left,
each round is put in relation to a loop of multiply-adds that runs in it, as fast as the clock
permits at that time. The interval is a bootstrap over the rounds (Efron, 1979): 95 % of the medians
of as many rounds, drawn anew.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from autotune.measure.driver import Driver
from autotune.measure.peak import MultiplyAddPeak
from autotune.network.bench.bench import BLOCK_S, PAUSE_S
from autotune.target import Target

Run = Callable[[], object]
LEAST_ROUNDS = 15
_PATIENCE = 10
"""Times as long as asked for, while the interval holds the limit."""
_SAMPLES, _INTERVAL = 2000, (2.5, 97.5)
_FEW, _LEAST_FEW = 9, 3
"""Rounds that tell a gain of some percent."""
_REFERENCE_S = 5e-4
_LEAST_RUNS, _LONGEST_S = 8, 2.0
"""Of each side in a round."""


@dataclass(frozen=True, slots=True)
class Rounds:
    """Seconds of the fastest inference in each round; `before_s` of the earlier model, empty where
    it did not run; `reference_s`: of a fixed number of multiply-adds."""

    now_s: tuple[float, ...]
    before_s: tuple[float, ...]
    reference_s: tuple[float, ...]

    @property
    def in_units(self) -> NDArray[Any]:
        """Each round as a multiple of the multiply-adds in it."""
        return np.divide(self.now_s, self.reference_s)


@dataclass(frozen=True, slots=True)
class GateVerdict:
    """Seconds now over seconds before, with the ends of its interval.

    `limit`: the ratio from which on it fails. `in_turns`: whether both ran, in the same rounds.
    """

    ratio: float
    low: float
    high: float
    n_rounds: int
    in_turns: bool
    limit: float | None = None

    @property
    def fails(self) -> bool:
        """Whether it is slower than the limit permits, beyond doubt."""
        return self.limit is not None and self.low > self.limit

    @property
    def is_decided(self) -> bool:
        """Whether the whole interval is on one side of the limit."""
        return self.limit is None or not self.low <= self.limit <= self.high

    def __str__(self) -> str:
        return f"{self.ratio:.3f} ({self.low:.3f} to {self.high:.3f})"


def verdict(found: Rounds, limit: float | None, earlier: Rounds | None = None) -> GateVerdict:
    """The verdict on rounds in turns, or beside the rounds of an earlier run on this machine."""
    rng = np.random.default_rng(0)
    if earlier is None:
        ratios = np.array(found.now_s) / np.array(found.before_s)
        middle, samples = float(np.median(ratios)), _medians(ratios, rng)
    else:
        now, before = found.in_units, earlier.in_units
        middle = float(np.median(now) / np.median(before))
        samples = _medians(now, rng) / _medians(before, rng)
    low, high = (float(x) for x in np.percentile(samples, _INTERVAL))
    return GateVerdict(middle, low, high, len(found.now_s), earlier is None, limit)


def gate(
    now: Run,
    before: Run | Rounds,
    reference: Run,
    limit: float | None = None,
    time_s: float = 2.0,
    clock: Callable[[], float] = time.perf_counter,
) -> GateVerdict:
    """The verdict on `now`, after `time_s` seconds for each side at least, and longer while it is
    open. `reference` is timed as well."""
    earlier = before if isinstance(before, Rounds) else None
    other = None if isinstance(before, Rounds) else before
    n_sides, start = (2 if other else 1), clock()

    def is_enough(found: Rounds) -> bool:
        spent = clock() - start
        if len(found.now_s) < LEAST_ROUNDS or spent < n_sides * time_s:
            return False
        is_late = spent > _PATIENCE * n_sides * time_s
        return is_late or verdict(found, limit, earlier).is_decided

    return verdict(measure_rounds(now, other, reference, is_enough, clock), limit, earlier)


def rounds_within(
    now: Run,
    before: Run,
    time_s: float,
    stop: Callable[[], bool] = lambda: False,
    clock: Callable[[], float] = time.perf_counter,
) -> Rounds:
    """Rounds in turns: nine, or after `time_s` seconds or a `stop` as many as there are by then,
    but three; after a `stop` one is enough."""
    start = clock()

    def is_enough(found: Rounds) -> bool:
        is_late = clock() - start > time_s and len(found.now_s) >= _LEAST_FEW
        return len(found.now_s) >= _FEW or is_late or stop()

    return measure_rounds(now, before, None, is_enough, clock)


def measure_rounds(
    now: Run,
    before: Run | None,
    reference: Run | None,
    is_enough: Callable[[Rounds], bool],
    clock: Callable[[], float] = time.perf_counter,
) -> Rounds:
    """Rounds, until they are enough. In each, all sides take turns run by run."""
    sides = [side for side in (now, before, reference) if side is not None]
    fastest: list[list[float]] = [[] for _ in sides]
    while True:
        time.sleep(PAUSE_S)
        for side in sides:
            side()
        for found, times in zip(fastest, _round(sides, clock), strict=True):
            found.append(min(times))
        known = iter(map(tuple, fastest))
        rounds = Rounds(*(next(known) if side else () for side in (now, before, reference)))
        if is_enough(rounds):
            return rounds


def _round(sides: Sequence[Run], clock: Callable[[], float]) -> list[list[float]]:
    times: list[list[float]] = [[] for _ in sides]
    start = before = clock()
    turns = list(zip(times, sides, strict=True))
    shortest, longest = BLOCK_S * len(sides), _LONGEST_S * len(sides)
    while before - start < (shortest if len(times[0]) >= _LEAST_RUNS else longest):
        turns.reverse()
        for measured, side in turns:
            side()
            now = clock()
            measured.append(now - before)
            before = now
    return times


def multiply_adds(target: Target, n_threads: int) -> Run:
    """A loop of about half a millisecond that does nothing but multiply-adds."""
    peak = MultiplyAddPeak(target, Driver(target, n_threads))
    turns = peak.turns_in(_REFERENCE_S, n_threads * target.core.clock_hz * 2 * target.lanes)
    return lambda: peak.flops_per_s(turns)


def _medians(values: NDArray[Any], rng: np.random.Generator) -> NDArray[Any]:
    """Medians of as many values, drawn with replacement."""
    chosen = rng.integers(0, len(values), (_SAMPLES, len(values)))
    return np.asarray(np.median(values[chosen], axis=1))
