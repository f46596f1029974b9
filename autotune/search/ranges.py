"""⑥ Further programs of a task that follows a number, for the values where they are faster.

    other_programs(dag, steps, …) ─► (Ranged(steps, "n", ((1, 4), (9, 10))), …)

A tile of eight rows computes sixteen for nine. Programs of the same structure that read constants
in the same order cost little: their code. Of those the cost model takes up to two, for the values
where it expects them to be faster by more than it can be wrong about alike programs. Those of other
structures gained nothing more for six products, and took six times as long to find.
"""

from __future__ import annotations

import contextlib
import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial

import numpy as np

from autotune.errors import ScheduleError
from autotune.loopir.lower import lower
from autotune.loopir.nodes import Program
from autotune.schedule.ranged import Ranged, runs_of
from autotune.schedule.steps import Steps, steps_text
from autotune.search.cost.analysis import Analysis, Population
from autotune.search.cost.analytic import analytic_seconds
from autotune.search.cost.nest import Array
from autotune.search.reading_order import order_holes
from autotune.search.recognise import Recogniser
from autotune.search.sketch import generate_sketches
from autotune.search.space import Rows, Sketch, first_of_each
from autotune.target import Target
from autotune.te.at_numbers import numbers_of, usual_numbers
from autotune.te.dag import ComputeDAG

MOST_OTHERS = 2
CLEARLY = math.log2(1.05)
"""By so much another program has to be faster for a value, and """
WORTH = math.log2(1.01)
"""by so much on average over all, where a value counts as much as its relative distance to the
next one."""
_SAMPLES, _KEPT = 256, 8
"""Rows of the structure, and those of them that are kept for each of a few numbers."""
_ALL, _STEP = 16, 1.3
"""All values up to here are looked at, then those further apart by this factor."""


@dataclass(frozen=True, slots=True)
class _Pool:
    """Programs with their estimated log2 seconds [values, programs] for each value of a number."""

    steps: tuple[Steps, ...]
    log2_s: Array


def other_programs(
    dag: ComputeDAG, steps: Steps, target: Target, n_threads: int
) -> tuple[Ranged, ...]:
    """Up to `MOST_OTHERS` programs beside `steps`; none where axes follow several numbers."""
    mosts = numbers_of(dag)
    found = _row_of(dag, steps, target) if len(mosts) == 1 else None
    if found is None:
        return ()
    ((name, most),) = mosts.items()
    values = _values(most)
    estimate = partial(_estimates, dag, found[0], target, n_threads, name)
    rows = _alike(dag, *found)
    seen = sorted({*(p[name] for p in usual_numbers(dag)), *_uneven(most)})
    best = {k for one in estimate(rows, seen) for k in np.argsort(one, kind="stable")[:_KEPT]}
    log2_s = estimate(np.stack([found[1], *rows[sorted(best)]]), values)
    is_program = np.isfinite(log2_s[0, 1:])
    kept = rows[sorted(best)][is_program]
    pool = _Pool(tuple(map(found[0].bind, kept)), log2_s[:, 1:][:, is_program])
    chosen = _chosen(dag, steps, pool, log2_s[:, 0], values)
    return _ranged(name, pool, chosen, log2_s[:, 0], values)


def _uneven(most: int) -> list[int]:
    """Values that few tiles divide."""
    return [n for n in (5, 9, 11 * most // 32 | 1, 23 * most // 32 | 1) if n <= most]


def _values(most: int) -> list[int]:
    found = list(range(1, min(most, _ALL) + 1))
    while found[-1] < most:
        found.append(min(most, math.ceil(found[-1] * _STEP)))
    return found


def _row_of(dag: ComputeDAG, steps: Steps, target: Target) -> tuple[Sketch, Rows] | None:
    """The structure of a schedule, and its row; None where it has none."""
    text = steps_text(steps)
    for sketch in generate_sketches(dag, target):
        row = Recogniser(sketch).row(text)
        if row is not None:
            return sketch, row
    return None


def _estimates(
    dag: ComputeDAG,
    sketch: Sketch,
    target: Target,
    n_threads: int,
    name: str,
    rows: Rows,
    values: Sequence[int],
) -> Array:
    """Estimated log2 seconds, shape [values, rows]; infinite where a row has no program.

    On average over constants that come from memory, as in a large network, and from the caches, as
    in a small one: where memory is waited for, a tile of eight rows costs no more than one of one.
    """
    population = Population.of(dag, sketch, sketch.values(rows), len(rows), target)
    cold = population.analyses([{name: n} for n in values])
    both = (cold, map(_with_cached_constants, cold))
    seconds = [np.stack([analytic_seconds(a, target, n_threads) for a in each]) for each in both]
    return np.asarray(np.log2(seconds).mean(axis=0))


def _with_cached_constants(found: Analysis) -> Analysis:
    return replace(found, statements=tuple(replace(s, cold_bytes=0.0) for s in found.statements))


def _alike(dag: ComputeDAG, sketch: Sketch, row: Rows) -> Rows:
    """Random rows that read constants in the order of `row`."""
    rows = sketch.sample(min(_SAMPLES, 4 * sketch.size), np.random.default_rng(0))
    fixed = order_holes(dag, sketch)
    rows[:, fixed] = row[fixed]
    return rows[np.sort(first_of_each(rows))]


def _chosen(
    dag: ComputeDAG, steps: Steps, pool: _Pool, best: Array, values: Sequence[int]
) -> list[int]:
    """Programs that gain most, one after the other, each beside those before it."""
    weights = np.diff(np.log2([*values, values[-1] + 1.0]))
    weights = weights / weights.sum()
    order = _orders(lower(dag, steps))
    chosen: list[int] = []
    refused: set[int] = set()
    while len(chosen) < MOST_OTHERS:
        gain = np.maximum(best[:, None] - pool.log2_s, 0.0)
        gain = np.where(gain >= CLEARLY, gain, 0.0)
        total = weights @ gain
        total[[*chosen, *refused]] = 0.0
        k = int(total.argmax())
        if total[k] < WORTH:
            break
        if not _reads_alike(dag, pool.steps[k], order):
            refused.add(k)
            continue
        chosen.append(k)
        best = np.minimum(best, np.where(gain[:, k] > 0, pool.log2_s[:, k], best))
    return chosen


def _reads_alike(dag: ComputeDAG, steps: Steps, order: frozenset[object]) -> bool:
    """Whether a schedule has a program that reads constants in this order."""
    with contextlib.suppress(ScheduleError):
        return _orders(lower(dag, steps)) == order
    return False


def _orders(program: Program) -> frozenset[object]:
    packed = {
        p.packed.name: (p.source.name, p.packed.shape, p.axes, p.indices) for p in program.packs
    }
    names = (b.name for b in program.buffers if b.role == "constant")
    return frozenset((packed.get(name, name), program.derived) for name in names)


def _ranged(
    name: str, pool: _Pool, chosen: Sequence[int], main: Array, values: Sequence[int]
) -> tuple[Ranged, ...]:
    """The values of each of the chosen programs: those where it is the fastest by far."""
    takes = {k: list[int]() for k in chosen}
    for at, numbers in enumerate(_between(values)):
        best = min(chosen, key=lambda k: pool.log2_s[at, k], default=None)
        if best is not None and main[at] - pool.log2_s[at, best] >= CLEARLY:
            takes[best] += numbers
    return tuple(Ranged(pool.steps[k], name, runs_of(takes[k])) for k in chosen if takes[k])


def _between(values: Sequence[int]) -> Iterator[range]:
    """The values that each of those looked at stands for: it and those before it."""
    before = 0
    for value in values:
        yield range(before + 1, value + 1)
        before = value
