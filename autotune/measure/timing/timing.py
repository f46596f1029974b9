"""⑦ Number of repeats of a program, and the rule to stop."""

from __future__ import annotations

import math
import statistics
import time
from collections.abc import Callable, Sequence
from typing import TypeVar

from autotune.measure.options import MeasureOptions
from autotune.measure.timing.turns import turns

Found = TypeVar("Found")

_STOP_AFTER = 2
_OUT_AFTER = 5
_FIRST_SLACK = 4.0


def always() -> bool:
    """Every round counts."""
    return True


def repeat_in_turns(
    programs: Sequence[Callable[[], float]],
    first_s: Sequence[float],
    options: MeasureOptions,
    best_s: float | None = None,
    clock: Callable[[], float] = time.perf_counter,
    counts: Callable[[], bool] = always,
) -> list[tuple[float, ...]]:
    """Seconds of every repeat of each of `programs`; a call evaluates once and gives its seconds.

    Repeats alternate between programs, in the orders of `turns`, so noise that lasts for a while
    slows all of them, and none in all of its repeats. `first_s`: seconds of the evaluations that
    were checked. These warmed up code and pages, so they are no repeats; they determine how many
    repeats there are. `best_s`: the best latency known for this task; a better one among the
    programs replaces it. A program whose repeats all exceed `abandon_ratio` times the best is given
    up after two repeats, and after one if its first evaluation exceeded four times that; if all
    exceed `contend_ratio` times the best, after five. Such a program has a result like any other.
    `counts` is asked after each round; a round that does not count is evaluated again.
    """
    times: list[list[float]] = [[] for _ in programs]
    taken_s = [0.0] * len(programs)
    active = set(range(len(programs)))
    for order in turns(len(programs)):
        if not active:
            break
        for n in (n for n in order if n in active):
            start_s = clock()
            times[n].append(programs[n]())
            taken_s[n] += clock() - start_s
        if not counts():
            for n in active:
                times[n].pop()
            continue
        known = [statistics.median(t) for t in times if len(t) >= _STOP_AFTER]
        best = min(filter(None, [best_s, *known]), default=None)
        active = {n for n in active if _wants_more(times[n], taken_s[n], first_s[n], options, best)}
    return [tuple(t) for t in times]


def in_rounds(
    programs: Sequence[Callable[[], Found]], n: int, counts: Callable[[], bool] = always
) -> list[tuple[Found, ...]]:
    """What each of `programs` gave in `n` rounds, in turns; `counts`: as of `repeat_in_turns`."""
    found: list[list[Found]] = [[] for _ in programs]
    orders = turns(len(programs))
    while any(len(each) < n for each in found):
        for k in next(orders):
            found[k].append(programs[k]())
        if not counts():
            for each in found:
                each.pop()
    return [tuple(each) for each in found]


def _wants_more(
    times: Sequence[float],
    taken_s: float,
    first_s: float,
    options: MeasureOptions,
    best_s: float | None,
) -> bool:
    if len(times) >= n_repeats(first_s, options) or _is_far_slower(times, first_s, options, best_s):
        return False
    return len(times) < options.min_repeats or taken_s <= options.repeat_wall_s


def n_repeats(first_s: float, options: MeasureOptions) -> int:
    """Number of repeats that fill the measuring time, within the limits."""
    fill = math.ceil(options.repeat_target_s / max(first_s, 1e-9))
    return max(options.min_repeats, min(options.max_repeats, fill))


def _is_far_slower(
    times: Sequence[float], first_s: float, options: MeasureOptions, best_s: float | None
) -> bool:
    if best_s is None:
        return False
    if len(times) >= _OUT_AFTER and min(times) > options.contend_ratio * best_s:
        return True
    limit_s = options.abandon_ratio * best_s
    if min(*times, first_s) <= limit_s:
        return False
    return len(times) >= _STOP_AFTER or first_s > _FIRST_SLACK * limit_s
