"""⑥ Amounts: what the cost model counts, one number for all candidates or one for each of them.

Most extents of a population do not depend on its rows. A number for all is a Python number until
all facts about a statement are known, for an operation on it takes a twentieth of the time of one
on an array. Results are those of arrays to the last bit.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray

from autotune.schedule.region import Extent

Array = NDArray[np.float64]
Amount: TypeAlias = float | np.ndarray
"""Shape [n], or [depths, n] and [depths, 1] where it depends on depths of loops."""


class Amounts:
    """Extents as floating-point numbers; each array is converted once."""

    def __init__(self) -> None:
        self._found: dict[int, tuple[Extent, np.ndarray]] = {}

    def __call__(self, x: Extent) -> Amount:
        """The same number, or numbers."""
        if not isinstance(x, np.ndarray):
            return float(x)
        found = self._found.get(id(x))
        if found is None:
            found = self._found[id(x)] = x, x.astype(np.float64)
        return found[1]


def full(x: Amount, n: int) -> Array:
    """An amount of each of the `n` candidates, shape [n]."""
    if isinstance(x, np.ndarray):
        return x.astype(np.float64, copy=False)
    return np.full(n, x, np.float64)


def product(parts: Iterable[Amount]) -> Amount:
    """Product of amounts; of none, one."""
    total: Amount = 1.0
    for part in parts:
        total = part if isinstance(total, float) and total == 1.0 else total * part
    return total


def rounded_up(x: Amount) -> Amount:
    """The least whole number that is not less."""
    return np.ceil(x) if isinstance(x, np.ndarray) else float(math.ceil(x))


def rounded_down(x: Amount) -> Amount:
    """The largest whole number that is not more."""
    return np.floor(x) if isinstance(x, np.ndarray) else float(math.floor(x))


def choose(condition: bool | np.ndarray, then: Amount, other: Amount) -> Amount:
    """`then` where the condition holds, else `other`."""
    if isinstance(condition, np.ndarray):
        return np.where(condition, then, other)
    return then if condition else other
