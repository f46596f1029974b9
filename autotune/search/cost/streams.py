"""⑥ Constants that a call reads once, from memory, such as the weights of a single row.

Hardware prefetches them, and software does little beside it: lines that are asked for early take
the place of those that are needed next. One row, weights of 4 bits (five streams), float16 and
float32, 60 to 90 MB, a Zen 4, one thread; GB/s of 30 that it reads at most:

    distance    0 B     512 B   2 KiB   8 KiB
    4 bits      25-31   30-32   23-24   23
    float16     28      29      28      21
    float32     27-29   26-28   28      25-26

Two threads read 34 to 38, whatever the distance.
"""

from __future__ import annotations

from math import prod

import numpy as np

from autotune.dtypes import dtype_bytes
from autotune.schedule.state import Stage
from autotune.search.cost.amounts import Array, full
from autotune.te.dag import Compute
from autotune.te.expr import Load, variables

_BEST_BYTES = 512.0
_LATE = 0.05
"""Share of the time of reading that is added by no prefetching, and by each doubling of the best
distance."""


def lateness(stage: Stage, op: Compute, n: int) -> Array:
    """Share of the time of reading constants that their prefetching adds, shape [n].

    0 of constants that several rows share: panels stay in caches, and one is prefetched whole.
    """
    loads = {x.tensor.name: x for x in op.reads}
    distances = {name: d for name, d in stage.prefetches if name in stage.packs}
    sizes = {name: _bytes(loads[name]) for name in distances if name in loads}
    total = sum(sizes.values())
    late = np.zeros(n)
    for name, size in sizes.items():
        if _is_read_once(op, loads[name]):
            late = late + size / total * _late(full(distances[name], n))
    return late


def _late(distance: Array) -> Array:
    doublings = np.log2(np.maximum(distance, 1.0) / _BEST_BYTES)
    late: Array = _LATE * np.where(distance > 0, np.abs(doublings), 1.0)
    return late


def _bytes(load: Load) -> int:
    return load.tensor.size * dtype_bytes(load.tensor.dtype)


def _is_read_once(op: Compute, load: Load) -> bool:
    """Whether no two points of the result read the same element."""
    used = {name for index in load.indices for name in variables(index)}
    return prod(a.extent for a in op.axes if a.name not in used) == 1
