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

Array = NDArray[np.float64]
Amount: TypeAlias = float | np.ndarray
"""Shape [n], or [depths, n] and [depths, 1] where it depends on depths of loops."""


def amount(x: Amount) -> Amount:
    """The same as a floating-point number, or numbers."""
    return x.astype(np.float64) if isinstance(x, np.ndarray) else float(x)


def full(x: Amount, n: int) -> Array:
    """An amount of each of the `n` candidates, shape [n]."""
    return x.astype(np.float64) if isinstance(x, np.ndarray) else np.full(n, x, np.float64)


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
