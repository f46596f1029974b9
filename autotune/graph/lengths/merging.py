"""① Expressions at a few numbers -> one expression that follows the numbers.

    select(j < 511, …), select(j < 10, …), select(j < 12, …)    select(j < #sequence - 1, …)

They have to be of one form; integers that differ are affine, or a product of lengths, and floats
that differ are a number over one.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from autotune.dtypes import DTYPES
from autotune.graph.lengths.layouts import Dims
from autotune.graph.lengths.numbers import AffineExtent, Points
from autotune.te.arith import bounds
from autotune.te.dag import print_expr
from autotune.te.expr import (
    Axis,
    Binary,
    Call,
    Cast,
    Compare,
    Const,
    Expr,
    Load,
    Select,
    Tensor,
    Var,
    add,
    cast,
    children,
    div,
    idx,
    map_expr,
    maximum,
    minimum,
    mul,
    rebuild,
    variables,
)
from autotune.te.numbers import number_of

_MOST_FACTORS = 3
_LEAST_SHARE = 2.0**-31
"""Below: numbers over products of lengths that are no numbers of elements."""


class NotFollowed(Exception):
    """Reason why a computation cannot follow a number."""


@dataclass(frozen=True)
class Merger:
    """Merges the expressions of one definition. `tensors`: those that it loads, at the most;
    `atoms`: lengths that a model has."""

    points: Points
    atoms: Sequence[AffineExtent]
    tensors: Mapping[str, Tensor]

    def merged(self, parts: Sequence[Expr]) -> Expr:
        """One expression that is each of `parts` at its point. Raises NotFollowed."""
        return self._merged(tuple(parts), {})

    def _merged(self, parts: tuple[Expr, ...], done: dict[tuple[int, ...], Expr]) -> Expr:
        key = tuple(map(id, parts))
        if key not in done:
            done[key] = self._new(parts, done)
        return done[key]

    def _new(self, parts: tuple[Expr, ...], done: dict[tuple[int, ...], Expr]) -> Expr:
        first = parts[0]
        if len({type(e) for e in parts}) > 1 or len(set(map(_head, parts))) > 1:
            raise NotFollowed(
                f"it computes {_text(parts[0])}, and {_text(parts[1])} at other lengths"
            )
        match first:
            case Const():
                return self._number([e for e in parts if isinstance(e, Const)])
            case Var():
                return first
        operands = zip(*map(children, parts), strict=True)
        new = tuple(self._merged(tuple(e), done) for e in operands)
        if isinstance(first, Load):
            return Load(self.tensors[first.tensor.name], new)
        return rebuild(first, new)

    def _number(self, parts: Sequence[Const]) -> Expr:
        values, dtype = [e.value for e in parts], parts[0].dtype
        if len({repr(v) for v in values}) == 1:
            return parts[0]
        found = (
            self._float(values, dtype)
            if DTYPES[dtype].is_float
            else None
            if dtype == "bool"
            else self.integer([int(v) for v in values])
        )
        if found is None:
            raise NotFollowed(f"a number in it is {_numbers(values)} at {_at(self.points)}")
        return cast(dtype, found)

    def integer(self, values: Sequence[int]) -> Expr | None:
        """An index expression of the numbers that has these values; None where it is not found."""
        whole = self.points.affine(values)
        if whole is not None:
            return whole.expr
        for product, vector in self._products():
            for c, more in _through(vector, values):
                if all(c * v + more == value for v, value in zip(vector, values, strict=True)):
                    return add(mul(product, idx(c)), idx(more))
        return None

    def _float(self, values: Sequence[float], dtype: str) -> Expr | None:
        """A number over a product of lengths, or whole numbers."""
        kind = DTYPES[dtype].numpy.type
        if not all(map(math.isfinite, values)):
            return None
        if all(v == int(v) for v in values):
            return self.integer([int(v) for v in values])
        for product, vector in self._products():
            share = values[1] * vector[1]
            ways = [(c, 1) for c in dict.fromkeys((round(share), share))]
            if _LEAST_SHARE < abs(share) < 1:
                ways.append((1, round(1 / share)))
            for c, times in ways:
                quotients = [kind(c) / kind(n * times) for n in vector]
                if all(q == v for q, v in zip(quotients, map(kind, values), strict=True)):
                    below = product if times == 1 else mul(product, idx(times))
                    return div(Const(float(c), dtype), cast(dtype, below))
        return None

    def _products(self) -> Iterator[tuple[Expr, tuple[int, ...]]]:
        """Products of lengths of the model, with their values at the points."""
        for n in range(1, _MOST_FACTORS + 1):
            for factors in itertools.combinations_with_replacement(self.atoms, n):
                vectors = [self.points.vector(a) for a in factors]
                product = factors[0].expr
                for factor in factors[1:]:
                    product = mul(product, factor.expr)
                yield product, tuple(math.prod(column) for column in zip(*vectors, strict=True))

    def inside(self, e: Expr, axes: Sequence[Axis]) -> Expr:
        """`e` whose loads by the numbers are inside of their tensors for every number."""
        ranges = {a.name: (0, a.extent - 1) for a in axes}
        numbers = {v: n for v in variables(e) if (n := number_of(v)) is not None}
        ranges |= {v: (1, self.points.most[n]) for v, n in numbers.items()}

        def one(x: Expr) -> Expr | None:
            if not isinstance(x, Load):
                return None
            pairs = zip(x.indices, x.tensor.shape, strict=True)
            return Load(x.tensor, tuple(clamped(map_expr(i, one), n) for i, n in pairs))

        def clamped(index: Expr, extent: int) -> Expr:
            if numbers.keys().isdisjoint(variables(index)):
                return index
            try:
                low, high = bounds(index, ranges)
            except KeyError:
                low, high = -1, extent
            index = index if high < extent else minimum(index, idx(extent - 1))
            return index if low >= 0 else maximum(index, idx(0))

        return map_expr(e, one) if numbers else e


def _through(vector: Sequence[int], values: Sequence[int]) -> Iterator[tuple[int, int]]:
    """Factors and sums with which `vector` may become `values`, by one point and by two."""
    yield values[0] // vector[0], 0
    if vector[0] != vector[1]:
        c = (values[0] - values[1]) // (vector[0] - vector[1])
        yield c, values[0] - c * vector[0]


def _head(e: Expr) -> object:
    """All of a node but its operands; nothing of a number."""
    match e:
        case Const(dtype=dtype):
            return dtype
        case Var(name=name):
            return name
        case Binary(op=op) | Compare(op=op):
            return op
        case Call(fn=fn, args=args):
            return fn, len(args)
        case Cast(dtype=dtype):
            return dtype
        case Load(tensor=tensor, indices=indices):
            return tensor.name, len(indices)
        case Select():
            return None
        case _:
            return e.op, len(e.axes)


def at_most(name: str, dims: Dims, dtype: str, points: Points) -> Tensor:
    """The tensor of these dimensions, each of its parts one of its own."""
    shape = tuple(points.vector(part)[0] for dim in dims for part in dim)
    return Tensor(name, shape, dtype)


def _text(e: Expr) -> str:
    text = print_expr(e)
    return text if len(text) < 60 else f"{text[:57]}…"


def _numbers(values: Sequence[float]) -> str:
    return ", ".join(f"{v:.6g}" for v in values)


def _at(points: Points) -> str:
    """`sequence = 512, 11, 13`."""
    return "; ".join(
        f"{name} = {', '.join(str(n[name]) for n in points.at)}" for name in points.most
    )
