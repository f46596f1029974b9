"""⑩ Alternatives of one compiled network: in which of them do parts of it, or all, run faster.

    points = points_of(model, shares)              the inputs that they are compared on
    seconds_by_task(models, points, …)             every alternative, kernel by kernel, in turns
    whole_ratio(now, before, points, …)            two of them, whole inferences in turns

Alternatives may differ in programs of tasks, in what is fused, in the layout of tensors. A whole
inference tells what is worth having; it takes a thousand of them to see a percent of a kernel that
is a hundredth of it. So what differs is looked at first by kernel, in the network all the same.
"""

from __future__ import annotations

import math
import time
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from autotune.measure.timing.turns import turns
from autotune.network.bench.gate import (
    LIKELY,
    GateVerdict,
    Outcome,
    Rounds,
    loads_of,
    measure_rounds,
    median_interval,
    verdict,
)
from autotune.network.runtime.loading import loaded_anew
from autotune.network.runtime.runtime import Model, random_inputs
from autotune.te.at_numbers import usual_of

_LEAST_ROUNDS, _MOST_ROUNDS = 6, 24
"""Six at least, for below that no interval is 95 % sure."""
_BLOCK_S = 0.04
"""Of each side in a round: where memory lies differs between rounds, and is most of the noise."""
_WARM_UPS = 2
_LEAST_RUNS = 3
_MOST_POINTS = 6


@dataclass(frozen=True)
class Point:
    """A call that networks are compared on: a variant, at numbers of its lengths.

    `share`: of all calls; those of all points add up to 1.
    """

    share: float
    n_variant: int
    inputs: Mapping[str, NDArray[Any]]


def points_of(model: Model, shares: Sequence[float], seed: int = 0) -> list[Point]:
    """The variants that are used most, each at the usual numbers of its lengths."""
    found = []
    pairs = zip(model.variants, [*shares, *[1.0] * len(model.variants)], strict=False)
    for n, (one, share) in enumerate(pairs):
        ports = [sized.input_info for sized in _usual_sizes(one)]
        found += [Point(share / len(ports), n, random_inputs(p, seed)) for p in ports]
    kept = sorted(found, key=lambda point: -point.share)[:_MOST_POINTS]
    whole = sum(point.share for point in kept)
    return [Point(point.share / whole, point.n_variant, point.inputs) for point in kept]


def _usual_sizes(model: Model) -> list[Model]:
    """A model at the usual numbers of its lengths; itself where it has none."""
    if not model.artifact.lengths:
        return [model]
    usual = {name: usual_of(most) for name, most in model.lengths.items()}
    least = {name: numbers[0] for name, numbers in model.artifact.possible.items()}
    points = [{name: max(least[name], at[k]) for name, at in usual.items()} for k in range(3)]
    return [model.sized(p) for n, p in enumerate(points) if p not in points[:n]]


@dataclass(frozen=True)
class TaskSeconds:
    """Seconds of all calls of every task in a network, of each round, by point: `rounds[r][p]`."""

    rounds: tuple[tuple[Mapping[str, float], ...], ...]

    def ratios(self, before: TaskSeconds, keys: Sequence[str], points: Sequence[Point]) -> Any:
        """What the tasks `keys` take together over what they take in `before`, of each round."""
        found = []
        for ours, theirs in zip(self.rounds, before.rounds, strict=True):
            logs = [
                point.share * math.log(_sum_s(now, keys) / _sum_s(then, keys))
                for point, now, then in zip(points, ours, theirs, strict=True)
            ]
            found.append(math.exp(sum(logs)))
        return np.array(found)

    def of(self, keys: Sequence[str], points: Sequence[Point]) -> float:
        """Seconds of the tasks `keys` in a call on average, in the median round."""
        sums = [
            sum(p.share * _sum_s(at, keys) for p, at in zip(points, one, strict=True))
            for one in self.rounds
        ]
        return float(np.median(sums))


_LEAST_S = 1e-9


def _sum_s(seconds: Mapping[str, float], keys: Sequence[str]) -> float:
    return max(_LEAST_S, sum(seconds.get(key, 0.0) for key in keys))


def seconds_by_task(
    models: Sequence[Model],
    points: Sequence[Point],
    time_s: float,
    stop: Callable[[], bool] = lambda: False,
    clock: Callable[[], float] = time.perf_counter,
) -> list[TaskSeconds]:
    """Seconds of the tasks of each model, in rounds for about `time_s`, or until a `stop`.

    Each round loads all models anew, for where their memory lies is drawn with every load.
    """
    begin = clock()
    rounds: list[list[tuple[Mapping[str, float], ...]]] = [[] for _ in models]
    firsts = turns(len(models), 1)
    while True:
        sides = {n: loaded_anew(models[n]) for n in next(firsts)}
        by_point = [_round(sides, point, clock) for point in points]
        for n, own in enumerate(rounds):
            own.append(tuple(found[n] for found in by_point))
        sides.clear()
        n_rounds, spent_s = len(rounds[0]), clock() - begin
        is_late = spent_s * (n_rounds + 1) / n_rounds > time_s
        if stop() or n_rounds >= _MOST_ROUNDS or (is_late and n_rounds >= _LEAST_ROUNDS):
            return [TaskSeconds(tuple(own)) for own in rounds]


def _round(
    sides: Mapping[int, Model], point: Point, clock: Callable[[], float]
) -> list[dict[str, float]]:
    """Median seconds of the tasks of each side at a point."""
    for side in sides.values():
        for _ in range(_WARM_UPS):
            side.run(point.inputs)
    runs: list[list[list[float]]] = [[] for _ in sides]
    start, order = clock(), turns(len(sides))
    while len(runs[0]) < _LEAST_RUNS or clock() - start < _BLOCK_S * len(sides):
        for n in next(order):
            runs[n].append([kernel.time_s for kernel in sides[n].profile(point.inputs)])
    return [_by_task(sides[n], point, runs[n]) for n in range(len(sides))]


def _by_task(model: Model, point: Point, runs: Sequence[Sequence[float]]) -> dict[str, float]:
    kernels = model.variants[point.n_variant].artifact.kernels
    found: defaultdict[str, float] = defaultdict(float)
    for kernel, median in zip(kernels, np.median(np.array(runs), axis=0).tolist(), strict=True):
        found[kernel.task] += median
    return dict(found)


def whole_ratio(
    now: Model,
    before: Model,
    points: Sequence[Point],
    time_s: float,
    stop: Callable[[], bool] = lambda: False,
) -> tuple[GateVerdict, float]:
    """Whole inferences of two networks in turns: the average ratio over the points, and what it is
    below in nine of ten cases.

    It ends early where the interval is on one side of 1 after 12 rounds, 24, 48, …
    """
    found, likely = [], []
    for point in points:
        ours, theirs = (loads_of(m, point.inputs, point.n_variant) for m in (now, before))
        is_enough = _until(time_s / len(points), stop)
        rounds = measure_rounds(ours, theirs, None, is_enough, block_s=_BLOCK_S)
        found.append(verdict(rounds, None))
        likely.append(median_interval(rounds.ratios, LIKELY)[2])
    shares = [point.share for point in points]
    means = {
        name: float(np.average([getattr(one, name) for one in found], weights=shares))
        for name in ("ratio", "low", "high")
    }
    whole = GateVerdict(**means, n_rounds=min(one.n_rounds for one in found), in_turns=True)
    return whole, float(np.average(likely, weights=shares))


_FIRST_LOOK, _LEAST_WHOLE = 12, 6


def _until(
    time_s: float, stop: Callable[[], bool], clock: Callable[[], float] = time.perf_counter
) -> Callable[[Rounds], bool]:
    """Whether rounds are decided or the time is over, but for the least that tell anything."""
    begin, look = clock(), _FIRST_LOOK

    def is_enough(found: Rounds) -> bool:
        nonlocal look
        n_rounds = len(found.now_s)
        if stop() or (n_rounds >= _LEAST_WHOLE and clock() - begin > time_s):
            return True
        if n_rounds < look:
            return False
        look *= 2
        return verdict(found, None).outcome is not Outcome.UNDECIDED

    return is_enough
