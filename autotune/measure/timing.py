"""⑦ How many repeats a program deserves, and when to stop."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Sequence

from autotune.measure.options import MeasureOptions

_HOPELESS_AFTER = 2
_OUT_AFTER = 5
_FIRST_SLACK = 4.0


def repeat(
    evaluate: Callable[[], float],
    first_s: float,
    options: MeasureOptions,
    best_s: float | None = None,
    clock: Callable[[], float] = time.perf_counter,
) -> tuple[float, ...]:
    """Seconds of every repeat of `evaluate`, which gives those of one evaluation.

    `first_s`: the evaluation that was checked; it has warmed up code and pages, so it is no repeat,
    but says how many are wanted. `best_s`: the best latency known for this task. A program whose
    first repeats all exceed `abandon_ratio` times that is given up after two, and after one where
    the first evaluation was worse still by a factor of four; one whose repeats all exceed
    `contend_ratio` times that, after five. It is slow, not failed, and known well enough.
    """
    wanted = n_repeats(first_s, options)
    start_s = clock()
    times: list[float] = []
    while len(times) < wanted:
        times.append(evaluate())
        if _is_hopeless(times, first_s, options, best_s):
            break
        if len(times) >= options.min_repeats and clock() - start_s > options.repeat_wall_s:
            break
    return tuple(times)


def n_repeats(first_s: float, options: MeasureOptions) -> int:
    """How many repeats fill the measuring time, within the limits."""
    fill = math.ceil(options.repeat_target_s / max(first_s, 1e-9))
    return max(options.min_repeats, min(options.max_repeats, fill))


def _is_hopeless(
    times: Sequence[float], first_s: float, options: MeasureOptions, best_s: float | None
) -> bool:
    if best_s is None:
        return False
    if len(times) >= _OUT_AFTER and min(times) > options.contend_ratio * best_s:
        return True
    limit_s = options.abandon_ratio * best_s
    if min(*times, first_s) <= limit_s:
        return False
    return len(times) >= _HOPELESS_AFTER or first_s > _FIRST_SLACK * limit_s
