"""⑦ Limits of time and memory of a measurement, and the state of the caches.

A network streams all its weights once per inference, so L2 no longer holds those of a task when it
runs again: every thread flushes its caches by reading and writing `flush_bytes`. The weights are in
L3 if the share of L3 that this process owns holds those of the whole network between inferences;
else they are in memory, and `evict` is set (see `peak.stay_cached`).
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Annotated

from autotune.codec import Coded


def _finite(limit: float) -> float | None:
    return None if math.isinf(limit) else limit


def _limit(data: float | None) -> float:
    return math.inf if data is None else data


@dataclass(frozen=True, slots=True)
class MeasureOptions:
    """Time-outs, repeats and the state of the caches. All times in seconds.

    `flush_bytes`: how much every thread reads and writes before each timed evaluation to evict the
    weights from its caches; None: twice L2, which replaces most of it under any policy; 0: time
    with hot weights. `evict`: flush the constants from all caches as well.
    `n_builders`: builder processes; 0: one per usable core. `builder_bytes`, `worker_bytes`: memory
    that each of them and the run worker may take; 0: the machine's. `cores`: where the run
    worker may run; empty: all that this process may use, of which it takes the first `n_threads`.
    `run_timeout_s` is the limit of one candidate to be loaded, packed and checked, and again for
    all its repeats; those that are timed in turns have the sum. `prepare_timeout_s` covers the
    inputs and the oracle of a task, once; `start_timeout_s` the start of a process.
    A repeat is one evaluation. There are as many as fill `repeat_target_s`, within
    `min_repeats`…`max_repeats`; from `min_repeats` on, none starts after `repeat_wall_s` (flushing
    included). A candidate `abandon_ratio` times slower than the best is given up after one or two
    repeats, and one that is `contend_ratio` times slower after five.
    `relative_tolerance` tells wrong answers from rounding, see `autotune.measure.oracle`; what
    rounds more than `max_error` times the largest output is inaccurate.
    `beside_peak`: measure the FMA peak after every repeat of finalists too.
    """

    flush_bytes: int | None = None
    evict: bool = False
    n_builders: int = 0
    builder_bytes: int = 0
    worker_bytes: int = 0
    cores: tuple[int, ...] = ()
    build_timeout_s: float = 15.0
    run_timeout_s: float = 10.0
    prepare_timeout_s: float = 300.0
    start_timeout_s: float = 60.0
    repeat_target_s: float = 0.03
    repeat_wall_s: float = 0.25
    min_repeats: int = 3
    max_repeats: int = 15
    abandon_ratio: float = 3.0
    contend_ratio: float = 1.15
    relative_tolerance: float = 1e-4
    max_error: Annotated[float, Coded(_finite, _limit)] = math.inf
    seed: int = 0
    beside_peak: bool = False
