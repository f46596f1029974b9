"""① Numbers that extents follow, and what is affine in them.

    points = points_of({"sequence": 512})      at 512, 11 and 13
    points.affine((511, 10, 12))               sequence - 1
    points.affine((256, 6, 7))                 None: half of it, rounded up

A function of a few numbers is known from as many points and one; one more point, that of the most,
proves it. A product of two numbers may be one of them, as the places of an image are.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from itertools import chain, count
from typing import TypeAlias

from autotune.graph.passes.cached_products import FEW_ROWS
from autotune.te.expr import Expr, add, idx, mul
from autotune.te.numbers import variable

Vector: TypeAlias = tuple[int, ...]
"""An integer at each point."""
_FEW_PROBES = (11, 13, 7, 9, 10, 14, 15, 12, 8)
"""Below, operators have other forms: a window is larger than its operand."""
_SMALL = 32
"""Just below a smaller most, there are few primes."""


@dataclass(frozen=True, slots=True)
class AffineExtent:
    """Σ factor·number + `offset`; `factors` hold no zero and are in order of names."""

    factors: tuple[tuple[str, int], ...]
    offset: int

    @property
    def is_static(self) -> bool:
        """Whether it follows no number."""
        return not self.factors

    @property
    def content(self) -> int:
        """The greatest number that divides it whatever the numbers are."""
        return math.gcd(self.offset, *(f for _, f in self.factors))

    @property
    def expr(self) -> Expr:
        """Of variables that stand for the numbers; see `variable`."""
        total: Expr = idx(0)
        for name, factor in self.factors:
            total = add(total, mul(variable(name), idx(factor)))
        return add(total, idx(self.offset))

    def times(self, n: int) -> AffineExtent:
        """Its product with a number."""
        return AffineExtent(tuple((name, f * n) for name, f in self.factors), self.offset * n)

    def over(self, n: int) -> AffineExtent:
        """Its quotient by a divisor of `content`."""
        return AffineExtent(tuple((name, f // n) for name, f in self.factors), self.offset // n)

    def at(self, numbers: Mapping[str, int]) -> int:
        """The value for these numbers."""
        return sum(f * numbers[name] for name, f in self.factors) + self.offset

    def __str__(self) -> str:
        terms = [name if f == 1 else f"{f}·{name}" for name, f in self.factors]
        return " + ".join([*terms, *([str(self.offset)] if self.offset or not terms else [])])


def static(n: int) -> AffineExtent:
    """A number that follows no other."""
    return AffineExtent((), n)


@dataclass(frozen=True)
class Points:
    """Where a model is looked at: `at[0]` are the most, the others tell functions apart.

    `products`: numbers that are those of two others, by their names.
    """

    at: tuple[Mapping[str, int], ...]
    products: Mapping[str, tuple[str, str]] = field(default_factory=dict)

    @property
    def most(self) -> Mapping[str, int]:
        """The most that each number can be."""
        return self.at[0]

    def affine(self, values: Sequence[int]) -> AffineExtent | None:
        """The function that has these values at the points; None where no affine one has."""
        if len(set(values)) == 1:
            return static(values[0])
        rows, divisor = self._inverse
        sums = [sum(c * v for c, v in zip(row, values[1:], strict=True)) for row in rows]
        if any(total % divisor for total in sums):
            return None
        offset, *factors = (total // divisor for total in sums)
        pairs = zip(self.most, factors, strict=True)
        found = AffineExtent(tuple(sorted((n, f) for n, f in pairs if f)), offset)
        return found if self.vector(found) == tuple(values) else None

    @cached_property
    def _inverse(self) -> tuple[list[list[int]], int]:
        """The inverse of the points but the most, a row each with a one in front: integers, and
        what they are over."""
        matrix = [[1, *(numbers[name] for name in self.most)] for numbers in self.at[1:]]
        return _inverse_of(matrix)

    def whole(self, numbers: Mapping[str, int]) -> dict[str, int]:
        """`numbers` with the products of them."""
        return {**numbers, **{n: numbers[a] * numbers[b] for n, (a, b) in self.products.items()}}

    def plain(self, values: Sequence[int]) -> AffineExtent | None:
        """`affine`, if it follows no product."""
        found = self.affine(values)
        is_plain = found is None or self.products.keys().isdisjoint(n for n, _ in found.factors)
        return found if is_plain else None

    def vector(self, form: AffineExtent) -> Vector:
        """The values of a function at the points."""
        return tuple(form.at(numbers) for numbers in self.at)


def told(points: Points) -> str:
    """The names of all numbers, for messages."""
    return " and ".join(f"'{name}'" for name in points.most)


def told_at(points: Points, n: int) -> str:
    """The numbers of a point, for messages: `batch = 11 and sequence = 17`."""
    return " and ".join(f"{name} = {number}" for name, number in points.at[n].items())


def uneven(extent: Vector, points: Points) -> str:
    """Why an extent that is no function of the numbers cannot be followed."""
    last = next(n for n, value in enumerate(extent) if value != extent[0])
    some = " and ".join(f"{extent[n]} at {told_at(points, n)}" for n in (0, last))
    return f"an extent of it is {some}, which is not even"


def points_of(
    most: Mapping[str, int], near: bool = False, products: Iterable[tuple[str, str]] = ()
) -> Points:
    """The points for these mosts: small primes, all of them different.

    `near`: numbers just below the most, for models that take no others or are other ones there.
    `products`: pairs of names whose product is one more number.
    """
    taken = set(most.values())
    base = {name: _probe(n, taken, near) for name, n in most.items()}
    moved = [base | {name: _probe(n, taken, near)} for name, n in most.items()]
    named = {f"{a}.{b}": (a, b) for a, b in products}
    others = [{name: _probe(n, taken, near) for name, n in most.items()} for _ in named]
    found = Points((dict(most), base, *moved, *others), named)
    return Points(tuple(map(found.whole, found.at)), named)


def _probe(most: int, taken: set[int], near: bool) -> int:
    """A number that is not `taken`, which it is then: a prime, if the most is not small."""
    primes = (n for n in count(FEW_ROWS + 1) if _is_prime(n))
    below: Iterable[int] = _FEW_PROBES if most <= FEW_ROWS else ()
    if near:
        below = (n for n in range(most - 1, 1, -1) if most <= _SMALL or _is_prime(n))
    found = next(n for n in chain(below, primes) if n not in taken)
    taken.add(found)
    return found


def _inverse_of(matrix: Sequence[Sequence[int]]) -> tuple[list[list[int]], int]:
    """The inverse of a matrix of integers as integers over one number, by elimination without
    fractions (Bareiss)."""
    size = len(matrix)
    rows = [[*row, *(int(k == n) for k in range(size))] for n, row in enumerate(matrix)]
    last = 1
    for k in range(size):
        pivot = next(n for n in range(k, size) if rows[n][k])
        rows[k], rows[pivot] = rows[pivot], rows[k]
        top = rows[k]
        for n in (n for n in range(size) if n != k):
            factor = rows[n][k]
            pairs = zip(rows[n], top, strict=True)
            rows[n] = [(top[k] * x - factor * y) // last for x, y in pairs]
        last = top[k]
    return [row[size:] for row in rows], last


def _is_prime(n: int) -> bool:
    return all(n % d for d in range(2, math.isqrt(n) + 1))
