"""① Numbers that extents follow, and what is affine in them.

    points = points_of({"sequence": 512})      at 512, 11 and 13
    points.affine((511, 10, 12))               sequence - 1
    points.affine((256, 6, 7))                 None: half of it, rounded up

A function of a few numbers is known from as many points and one; one more point, that of the most,
proves it.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
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
    """Where a model is looked at: `at[0]` are the most, the others tell functions apart."""

    at: tuple[Mapping[str, int], ...]

    @property
    def most(self) -> Mapping[str, int]:
        """The most that each number can be."""
        return self.at[0]

    def affine(self, values: Sequence[int]) -> AffineExtent | None:
        """The function that has these values at the points; None where no affine one has."""
        if len(set(values)) == 1:
            return static(values[0])
        base, first = self.at[1], values[1]
        factors = []
        for name, numbers, value in zip(base, self.at[2:], values[2:], strict=True):
            factor, rest = divmod(value - first, numbers[name] - base[name])
            if rest:
                return None
            factors.append((name, factor))
        offset = first - sum(f * base[name] for name, f in factors)
        found = AffineExtent(tuple(sorted((n, f) for n, f in factors if f)), offset)
        return found if self.vector(found) == tuple(values) else None

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


def points_of(most: Mapping[str, int], near: bool = False) -> Points:
    """The points for these mosts: small primes, all of them different.

    `near`: numbers just below the most, for models that take no others or are other ones there.
    """
    taken = set(most.values())
    base = {name: _probe(n, taken, near) for name, n in most.items()}
    moved = [base | {name: _probe(n, taken, near)} for name, n in most.items()]
    return Points((dict(most), base, *moved))


def _probe(most: int, taken: set[int], near: bool) -> int:
    """A number that is not `taken`, which it is then: a prime, if the most is not small."""
    primes = (n for n in count(FEW_ROWS + 1) if _is_prime(n))
    below: Iterable[int] = _FEW_PROBES if most <= FEW_ROWS else ()
    if near:
        below = (n for n in range(most - 1, 1, -1) if most <= _SMALL or _is_prime(n))
    found = next(n for n in chain(below, primes) if n not in taken)
    taken.add(found)
    return found


def _is_prime(n: int) -> bool:
    return all(n % d for d in range(2, math.isqrt(n) + 1))
