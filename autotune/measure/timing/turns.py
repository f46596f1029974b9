"""⑦ The order of sides that take turns: none has a fixed place, or a fixed one before it.

    order = turns(3)
    next(order)                 # (2, 0, 1)
    next(order)                 # (1, 0, 2): the reverse
    next(order)                 # (0, 1, 2): drawn anew

A side finds in the caches, in the predictors and in the clock what the one before it has left
there: a program that runs behind itself is up to a twentieth faster than behind another. In a fixed
order that is a bias, which no number of repeats removes. In these all sides are alike: whichever
two names are swapped, the orders are as probable as before.
"""

from __future__ import annotations

from collections.abc import Iterator
from random import Random


def turns(n_sides: int, seed: int = 0) -> Iterator[tuple[int, ...]]:
    """Orders of `n_sides` sides, without end: a random one, its reverse, another one, …

    An order and its reverse give every side the same average place, so what drifts evenly cancels.
    """
    rng = Random(seed)
    order = list(range(n_sides))
    while True:
        rng.shuffle(order)
        yield tuple(order)
        yield tuple(reversed(order))
