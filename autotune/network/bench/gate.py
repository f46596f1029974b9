"""⑩ A gate: by how much a model is slower than it was, and how sure that is.

    rounds = measure_rounds(load_now, load_before, None, is_enough)
    verdict(rounds, limit=1.05)             # 1.012 (0.998 to 1.023)

A round loads both anew, in pages of their own, and both take turns run by run: one team of threads
computes both, so neither has threads that spin beside the other. Its ratio is of the fastest runs,
which are the least disturbed ones. Neither side has a fixed place in the order (`measure.turns`).

Where code and working memory lie is drawn with every load and stays until the next one. Runs of one
load share that, so they say nothing about another load, however many they are: a round counts once
(as a process does in `pyperf`, Stinner 2016). The interval of the median ratio is between two of
the rounds, counted from both ends: half of all rounds to come are above the median, so how many of
those that are there lie above it is a number of heads of a coin. At least 95 % for any distribution
of noise (Thompson, 1936).

Where only the figures of an earlier run are left, each round is put in relation to a loop of
multiply-adds that runs in it, as fast as the clock permits at that time. There the interval is a
bootstrap over the rounds (Efron, 1979).
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from functools import partial
from typing import Any

import numpy as np
from numpy.typing import NDArray

from autotune.measure.timing.driver import Driver
from autotune.measure.timing.peak import MultiplyAddPeak
from autotune.measure.timing.turns import turns
from autotune.network.runtime.loading import loaded_anew
from autotune.network.runtime.runtime import Model
from autotune.target import Target

Run = Callable[[], object]
Load = Callable[[], Run]
"""Loads a side, at addresses that it had not before, and gives what runs it."""
Floats = NDArray[np.float64]

LEAST_ROUNDS = 20
_LEAST_LATE = 6
"""Rounds of which the least and the largest are an interval of 95 %."""
_FEW = 12
"""Rounds that tell a gain of some percent."""
_PATIENCE = 10
"""Times as long as asked for, while the interval holds the limit."""
SURE, LIKELY = 0.025, 0.1
"""How likely a median is beyond either end of an interval."""
_SAMPLES, _INTERVAL = 2000, (2.5, 97.5)
_REFERENCE_S = 5e-4
BLOCK_S, _LONGEST_S, _LEAST_RUNS = 0.1, 2.0, 4
"""Of each side in a round: seconds, more of them until there are so many runs."""


class Outcome(StrEnum):
    """Where the interval is, beside the limit or else beside 1; `undecided`: around it."""

    PASSES, FAILS = "passes", "fails"
    FASTER, SLOWER = "faster", "slower"
    UNDECIDED = "undecided"


@dataclass(frozen=True, slots=True)
class Rounds:
    """Seconds of the fastest inference in each round; `before_s` of the earlier model, empty where
    it did not run; `reference_s`: of a fixed number of multiply-adds."""

    now_s: tuple[float, ...]
    before_s: tuple[float, ...]
    reference_s: tuple[float, ...]

    @property
    def ratios(self) -> Floats:
        """Of each round: now over before."""
        return np.divide(self.now_s, self.before_s)

    @property
    def in_units(self) -> Floats:
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
    def outcome(self) -> Outcome:
        """On which side of the limit, or of 1, the whole interval is."""
        limit = 1.0 if self.limit is None else self.limit
        if self.low <= limit <= self.high:
            return Outcome.UNDECIDED
        if self.limit is None:
            return Outcome.SLOWER if self.low > limit else Outcome.FASTER
        return Outcome.FAILS if self.low > limit else Outcome.PASSES

    @property
    def fails(self) -> bool:
        """Whether it is slower than the limit permits, beyond doubt."""
        return self.outcome is Outcome.FAILS

    def __str__(self) -> str:
        return f"{self.ratio:.3f} ({self.low:.3f} to {self.high:.3f})"


def verdict(found: Rounds, limit: float | None, earlier: Rounds | None = None) -> GateVerdict:
    """The verdict on rounds in turns, or beside the rounds of an earlier run on this machine."""
    if earlier is None:
        middle, low, high = median_interval(found.ratios)
    else:
        middle, low, high = _interval_of_medians(found.in_units, earlier.in_units)
    return GateVerdict(middle, low, high, len(found.now_s), earlier is None, limit)


def median_interval(
    values: Sequence[float] | Floats, outside: float = SURE
) -> tuple[float, float, float]:
    """The median, and the ends of its interval: two of the values, as far from both ends.

    `outside`: how likely it is beyond either end. Below six values even the least and the largest
    are less than 95 % sure.
    """
    ordered = sorted(map(float, values))
    n_out = _most_outside(len(ordered), outside)
    return float(np.median(ordered)), ordered[n_out], ordered[-1 - n_out]


def _most_outside(n: int, outside: float) -> int:
    """How many of `n` values are left out at each end: P(≤ k heads of n coins) ≤ `outside`."""
    n_left_out, ways, tail = 0, 1, 1
    for k in range(n // 2):
        ways = ways * (n - k) // (k + 1)
        tail += ways
        if tail > outside * 2**n:
            break
        n_left_out = k + 1
    return n_left_out


def _interval_of_medians(now: Floats, before: Floats) -> tuple[float, float, float]:
    """The ratio of the medians of two samples, and what 95 % of samples like them give."""
    rng = np.random.default_rng(0)
    samples = _medians(now, rng) / _medians(before, rng)
    low, high = (float(x) for x in np.percentile(samples, _INTERVAL))
    return float(np.median(now) / np.median(before)), low, high


def _medians(values: Floats, rng: np.random.Generator) -> Floats:
    """Medians of as many values, drawn with replacement."""
    chosen = rng.integers(0, len(values), (_SAMPLES, len(values)))
    return np.asarray(np.median(values[chosen], axis=1))


def gate(
    now: Load,
    before: Load | Rounds,
    reference: Run,
    limit: float | None = None,
    time_s: float = 2.0,
    clock: Callable[[], float] = time.perf_counter,
) -> GateVerdict:
    """The verdict on `now`, after `time_s` seconds for each side at least.

    While it is open it goes on until there are twice as many rounds, and again: looking after every
    round would find a chance excess sooner or later. `reference` is timed beside mere figures.
    """
    earlier = before if isinstance(before, Rounds) else None
    other = None if isinstance(before, Rounds) else before
    start, n_next = clock(), LEAST_ROUNDS

    def is_enough(found: Rounds) -> bool:
        nonlocal n_next
        n_rounds, spent = len(found.now_s), clock() - start
        if spent > _PATIENCE * 2 * time_s and n_rounds >= _LEAST_LATE:
            return True
        if n_rounds < n_next or spent < 2 * time_s:
            return False
        n_next = 2 * n_rounds
        return limit is None or verdict(found, limit, earlier).outcome is not Outcome.UNDECIDED

    beside = reference if other is None else None
    return verdict(measure_rounds(now, other, beside, is_enough, clock), limit, earlier)


def rounds_within(
    now: Load,
    before: Load,
    time_s: float,
    stop: Callable[[], bool] = lambda: False,
    clock: Callable[[], float] = time.perf_counter,
) -> Rounds:
    """Rounds in turns: twelve, or after `time_s` seconds as many as there are by then, but six;
    after a `stop` one is enough."""
    start = clock()

    def is_enough(found: Rounds) -> bool:
        is_late = clock() - start > time_s and len(found.now_s) >= _LEAST_LATE
        return len(found.now_s) >= _FEW or is_late or stop()

    return measure_rounds(now, before, None, is_enough, clock)


def measure_rounds(
    now: Load,
    before: Load | None,
    reference: Run | None,
    is_enough: Callable[[Rounds], bool],
    clock: Callable[[], float] = time.perf_counter,
    block_s: float = BLOCK_S,
) -> Rounds:
    """Rounds, until they are enough. In each, all sides are loaded and take turns run by run.

    `block_s`: of each side in a round, see `BLOCK_S`.
    """
    loads = [load for load in (now, before, reference and (lambda: reference)) if load is not None]
    fastest: list[list[float]] = [[] for _ in loads]
    firsts, order = turns(len(loads), 1), turns(len(loads))
    while True:
        sides = {n: loads[n]() for n in next(firsts)}
        for n, times in enumerate(_round(sides, order, clock, block_s)):
            fastest[n].append(min(times))
        sides.clear()  # before the next ones come
        known = iter(map(tuple, fastest))
        rounds = Rounds(*(next(known) if side else () for side in (now, before, reference)))
        if is_enough(rounds):
            return rounds


def _round(
    sides: Mapping[int, Run],
    order: Iterator[tuple[int, ...]],
    clock: Callable[[], float],
    block_s: float,
) -> list[list[float]]:
    """Seconds of the runs of every side, behind one that warms it up."""
    for side in sides.values():
        side()
    times: list[list[float]] = [[] for _ in sides]
    start = before = clock()
    shortest, longest = block_s * len(sides), _LONGEST_S * len(sides)
    while before - start < (shortest if len(times[0]) >= _LEAST_RUNS else longest):
        for n in next(order):
            sides[n]()
            now = clock()
            times[n].append(now - before)
            before = now
    return times


def loads_of(model: Model, inputs: Mapping[str, Any], n_variant: int = 0) -> Load:
    """What loads a variant of a model for a round: see `loaded_anew`."""

    def load() -> Run:
        return partial(loaded_anew(model).variants[n_variant].run, inputs)

    return load


def multiply_adds(target: Target, n_threads: int) -> Run:
    """A loop of about half a millisecond that does nothing but multiply-adds."""
    peak = MultiplyAddPeak(target, Driver(target, n_threads))
    n_turns = peak.turns_in(_REFERENCE_S, n_threads * target.core.clock_hz * 2 * target.lanes)
    return lambda: peak.flops_per_s(n_turns)
