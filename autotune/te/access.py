"""② Whether every load of a computation stays inside its tensor.

Intervals prove most accesses. Where a guard decides whether a load is made, as for padding, all
points of the axes that index and conditions depend on are looked at.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from autotune.te.arith import bounds
from autotune.te.dag import print_expr
from autotune.te.evaluate import BINARY, COMPARE
from autotune.te.expr import (
    Binary,
    Call,
    Compare,
    Const,
    Expr,
    Load,
    Select,
    Var,
    children,
    conjuncts,
    is_guard,
    loads,
    variables,
)

MAX_POINTS = 1 << 20
"""Points of the axes at which a guarded access is looked at."""
Ranges = Mapping[str, tuple[int, int]]
Grid = NDArray[Any]


@dataclass(frozen=True, slots=True)
class OutOfBounds:
    """A load that leaves its tensor: index number `dim` takes values from `low` to `high`."""

    load: Load
    dim: int
    low: int
    high: int

    def __str__(self) -> str:
        """`x[i + 1]: the index runs from 1 to 8, the dimension has 8 elements`."""
        extent = self.load.tensor.shape[self.dim]
        index = print_expr(self.load.indices[self.dim])
        return (
            f"{self.load.tensor.name}: index {index} of dimension {self.dim} runs from {self.low} "
            f"to {self.high}, the dimension has {extent} elements (0 to {extent - 1})"
        )


def first_outside(body: Expr, ranges: Ranges) -> OutOfBounds | None:
    """A load of `body` that leaves its tensor while variables take the values of `ranges`.

    None where all are shown to be inside, or hold an index that is itself read from a tensor.
    """
    for load, conditions in _accesses(body, ()):
        for dim, index in enumerate(load.indices):
            if loads(index):
                continue
            low, high = bounds(index, ranges)
            extent = load.tensor.shape[dim]
            if low >= 0 and high < extent:
                continue
            seen = _values(index, conditions, ranges)
            if seen is not None:
                if not seen.size or (seen.min() >= 0 and seen.max() < extent):
                    continue
                low, high = int(seen.min()), int(seen.max())
            return OutOfBounds(load, dim, low, high)
    return None


def _accesses(e: Expr, conditions: tuple[Expr, ...]) -> Iterator[tuple[Load, tuple[Expr, ...]]]:
    """Every load with the index conditions under which it is made."""
    if isinstance(e, Load):
        yield e, conditions
    if is_guard(e) and isinstance(e, Select):
        yield from _accesses(e.cond, conditions)
        yield from _accesses(e.a, (*conditions, *conjuncts(e.cond)))
        yield from _accesses(e.b, conditions)
    else:
        for child in children(e):
            yield from _accesses(child, conditions)


def _values(index: Expr, conditions: tuple[Expr, ...], ranges: Ranges) -> Grid | None:
    """All values of `index` where `conditions` hold; None where there are too many points."""
    close = [c for c in conditions if variables(c) & variables(index)]
    names = sorted(variables(index).union(*map(variables, close)))
    spans = [ranges[n] for n in names]
    if math.prod(high - low + 1 for low, high in spans) > MAX_POINTS:
        return None
    points = np.meshgrid(*(np.arange(a, b + 1) for a, b in spans), indexing="ij", sparse=True)
    env = dict(zip(names, points, strict=True))
    made = np.asarray(True)
    for condition in close:
        made = made & index_values(condition, env)
    values, made = np.broadcast_arrays(index_values(index, env), made)
    chosen: Grid = values[made]
    return chosen


_NUMPY = BINARY | COMPARE


def index_values(e: Expr, env: Mapping[str, Grid]) -> Grid:
    """An index expression or condition at every point of `env`, arrays that broadcast.

    Raises TypeError for anything but an index.
    """
    match e:
        case Const(value=value):
            return np.asarray(value)
        case Var(name=name):
            return env[name]
        case Binary(op=op, a=a, b=b) | Compare(op=op, a=a, b=b):
            return np.asarray(_NUMPY[op](index_values(a, env), index_values(b, env)))
        case Select(cond=cond, a=a, b=b):
            return np.where(index_values(cond, env), index_values(a, env), index_values(b, env))
        case Call(fn="not", args=args):
            return np.logical_not(index_values(args[0], env))
        case _:
            raise TypeError(f"not an index: {print_expr(e)}")
