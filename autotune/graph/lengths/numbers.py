"""① Numbers that extents follow, and what is affine in them.

    points = points_of({"sequence": 512})      at 512, 11 and 13
    points.affine((511, 10, 12))               sequence - 1
    points.affine((256, 6, 7))                 None: half of it, rounded up

A function of a few numbers is known from as many points and one; one more point, that of the most,
proves it. Some numbers follow from others (`formulas`): the places of an image, halves of its rows.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from fractions import Fraction
from functools import cached_property
from itertools import accumulate, chain, count
from typing import TypeAlias

from autotune.extent import Extent
from autotune.graph.lengths.formulas import Formula, LengthProduct, Quotient, roots_of, whole
from autotune.graph.passes.cached_products import FEW_ROWS
from autotune.te.expr import Expr, add, idx, mul
from autotune.te.numbers import variable

Vector: TypeAlias = tuple[int, ...]
"""An integer at each point."""
_FEW_PROBES = (11, 13, 7, 9, 10, 14, 15, 12, 8)
"""Below, operators have other forms: a window is larger than its operand."""
_SMALL = 32
"""Just below a smaller most, there are few primes."""
_N_FEW = 6
"""Points, beside the most, that tell functions of one of many numbers apart."""
_MOST_FACTOR, _MOST_STEP = 9, 4
"""Below: factors of sums of neighbours, and how far these lie apart."""
_MOST_TRIED = 600
"""Points that are looked at, most of which tell nothing new."""


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


def affine_extent(extent: Extent) -> AffineExtent:
    """An extent that is one or a length."""
    if isinstance(extent, int):
        return static(extent)
    return AffineExtent(((extent.name, extent.factor),), extent.offset)


def static(n: int) -> AffineExtent:
    """A number that follows no other."""
    return AffineExtent((), n)


class NotTold(Exception):
    """There are no points that tell all numbers apart."""


@dataclass(frozen=True)
class Points:
    """Where a model is looked at: `at[0]` are the most, the others tell functions apart.

    `formulas`: of numbers that follow from others, by their names, each behind those that it reads.
    """

    at: tuple[Mapping[str, int], ...]
    formulas: Mapping[str, Formula] = field(default_factory=dict)

    @property
    def most(self) -> Mapping[str, int]:
        """The most that each number can be."""
        return self.at[0]

    def affine(self, values: Sequence[int]) -> AffineExtent | None:
        """The function that has these values at the points; None where no affine one has."""
        if len(set(values)) == 1:
            return static(values[0])
        if self._moved is not None:
            return self._along(self._moved, values)
        used, rows, divisor = self._inverse
        known = [values[n] for n in used]
        sums = [sum(c * v for c, v in zip(row, known, strict=True)) for row in rows]
        if any(total % divisor for total in sums):
            return None
        offset, *factors = (total // divisor for total in sums)
        pairs = zip(self.most, factors, strict=True)
        found = AffineExtent(tuple(sorted((n, f) for n, f in pairs if f)), offset)
        return found if self.vector(found) == tuple(values) else None

    @cached_property
    def _moved(self) -> tuple[tuple[str, int], ...] | None:
        """Of each point behind the second the one number that is another there, and by how much;
        None where points differ in another way."""
        base, found = self.at[1] if len(self.at) > 1 else {}, []
        for numbers in self.at[2:]:
            moved = [(name, n - base[name]) for name, n in numbers.items() if n != base[name]]
            found += moved if len(moved) == 1 else []
        names = {name for name, _ in found}
        is_each = len(found) == len(names) == len(self.at) - 2 == len(self.most)
        return tuple(found) if is_each else None

    def _along(
        self, moved: Sequence[tuple[str, int]], values: Sequence[int]
    ) -> AffineExtent | None:
        """`affine`, where each number moves alone."""
        factors = {}
        for (name, step), value in zip(moved, values[2:], strict=True):
            factor, left = divmod(value - values[1], step)
            if left:
                return None
            if factor:
                factors[name] = factor
        offset = values[1] - sum(f * self.at[1][name] for name, f in factors.items())
        found = AffineExtent(tuple(sorted(factors.items())), offset)
        return found if self.vector(found) == tuple(values) else None

    @cached_property
    def _inverse(self) -> tuple[list[int], list[list[int]], int]:
        """Points that tell functions apart, the inverse of these: integers, and what they are
        over."""
        used = independent([self._row(n) for n in range(1, len(self.at))])
        rows, divisor = _inverse_of([self._row(n + 1) for n in used])
        return [n + 1 for n in used], rows, divisor

    def _row(self, n: int) -> list[int]:
        return [1, *(self.at[n][name] for name in self.most)]

    @property
    def tells(self) -> int:
        """How much they tell apart: independent points, and remainders of quotients."""
        if self._moved is not None and not self.formulas:
            return len(self.most) + 1
        rows = [self._row(n) for n in range(1, len(self.at))]
        seen = (
            {q.remainder(numbers) for numbers in self.at[1:]} & q.remainders
            for q in self.formulas.values()
            if isinstance(q, Quotient)
        )
        return len(independent(rows)) + sum(map(len, seen))

    @property
    def is_told(self) -> bool:
        """Whether no affine function is that of another at all of them, one to spare."""
        rows = [self._row(n) for n in range(1, len(self.at))]
        return len(rows) > len(rows[0]) == len(independent(rows))

    @property
    def is_enough(self) -> bool:
        """Whether they tell all functions apart, and show each remainder of a quotient."""
        quotients = (q for q in self.formulas.values() if isinstance(q, Quotient))
        return self.tells == len(self.most) + 1 + sum(len(q.remainders) for q in quotients)

    def whole(self, numbers: Mapping[str, int]) -> dict[str, int]:
        """`numbers` with those that follow from them."""
        return whole(self.formulas, numbers)

    @property
    def has_products(self) -> bool:
        """Whether some number is a product of two others."""
        return any(isinstance(f, LengthProduct) for f in self.formulas.values())

    def plain(self, values: Sequence[int]) -> AffineExtent | None:
        """`affine`, if it follows no product."""
        found = self.affine(values)
        follows = () if found is None else (self.formulas.get(n) for n, _ in found.factors)
        return None if any(isinstance(f, LengthProduct) for f in follows) else found

    def vector(self, form: AffineExtent) -> Vector:
        """The values of a function at the points."""
        return tuple(form.at(numbers) for numbers in self.at)


@dataclass(frozen=True)
class FewPoints(Points):
    """Points at which all numbers move: of many numbers, functions of one are told apart, and sums
    of neighbours, as the extents and the parts of a Concat are."""

    def affine(self, values: Sequence[int]) -> AffineExtent | None:
        """The function that has these values at the points; None where none of those has."""
        if len(set(values)) == 1:
            return static(values[0])
        moves = self._moves(values)
        for factors in self._candidates(moves):
            offset = values[1] - sum(f * self.at[1][name] for name, f in factors.items())
            found = AffineExtent(tuple(sorted(factors.items())), offset)
            if self.vector(found) == tuple(values):
                return found
        return None

    def _moves(self, values: Sequence[int]) -> Vector:
        return tuple(v - values[1] for v in values[2:])

    def _candidates(self, moves: Vector) -> Iterator[dict[str, int]]:
        """What may move so: multiples of one number, or of a sum of neighbours."""
        content = math.gcd(*moves)
        for sign in (1, -1):
            known = self._of_one.get(tuple(sign * m // content for m in moves))
            if known is not None:
                yield {known[0]: sign * (content // known[1])}
        for factor in (f for f in range(1, _MOST_FACTOR) if content % f == 0):
            part = tuple(m // factor for m in moves)
            for names, sums in self._sums:
                for total, last in sums.items():
                    first = sums.get(tuple(a - b for a, b in zip(total, part, strict=True)), last)
                    if first < last:
                        yield dict.fromkeys(names[first:last], factor)

    @cached_property
    def _of_one(self) -> dict[Vector, tuple[str, int]]:
        """Each number by how it moves, over the greatest divisor of that, and this."""
        found = {}
        for name in self.most:
            moves = self._moves([numbers[name] for numbers in self.at])
            content = math.gcd(*moves)
            found[tuple(m // content for m in moves)] = name, content
        return found

    @cached_property
    def _sums(self) -> list[tuple[list[str], dict[Vector, int]]]:
        """How many first ones of numbers move together so: of all, of each second, each third."""
        found = []
        for step in range(1, _MOST_STEP):
            for first in range(step):
                names = list(self.most)[first::step]
                total: Vector = (0,) * (len(self.at) - 2)
                sums = {total: 0}
                for n, name in enumerate(names):
                    moves = self._moves([numbers[name] for numbers in self.at])
                    total = tuple(a + b for a, b in zip(total, moves, strict=True))
                    sums[total] = n + 1
                found.append((names, sums))
        return found


def few_points_of(most: Mapping[str, int]) -> FewPoints:
    """So few points as tell functions of many numbers apart."""
    free = _Free(most, False, {})
    return FewPoints((dict(most), *(free.all() for _ in range(_N_FEW))))


def told(points: Points) -> str:
    """The names of all numbers of a call, for messages."""
    return " and ".join(f"'{name}'" for name in points.most if name not in points.formulas)


def told_at(points: Points, n: int) -> str:
    """The numbers of a point, for messages: `batch = 11 and sequence = 17`."""
    own = {k: v for k, v in points.at[n].items() if k not in points.formulas}
    return " and ".join(f"{name} = {number}" for name, number in own.items())


def uneven(extent: Vector, points: Points) -> str:
    """Why an extent that is no function of the numbers cannot be followed."""
    last = next(n for n, value in enumerate(extent) if value != extent[0])
    some = " and ".join(f"{extent[n]} at {told_at(points, n)}" for n in (0, last))
    return f"an extent of it is {some}, which is not even"


def points_of(
    most: Mapping[str, int], near: bool = False, formulas: Mapping[str, Formula] | None = None
) -> Points:
    """The points for these mosts: small primes, all of them different.

    `near`: numbers just below the most, for models that take no others or are other ones there.
    `formulas`: of further numbers. Those that others are quotients of are no primes alone, and not
    so small that quotients are below the sizes at which operators have other forms. Raises NotTold.
    """
    formulas = formulas or {}
    free = _Free(most, near, formulas)
    base = free.all()
    moved = [base | {name: free.one(name)} for name in most]
    at = [dict(most), base, *moved]
    found = Points(tuple(whole(formulas, numbers) for numbers in at), formulas)
    for _ in range(_MOST_TRIED):
        if found.is_enough:
            return found
        more = Points((*found.at, whole(formulas, base | free.next())), formulas)
        found = more if more.tells > found.tells else found
    raise NotTold


class _Free:
    """Numbers that are not taken, which they then are."""

    def __init__(
        self, most: Mapping[str, int], near: bool, formulas: Mapping[str, Formula]
    ) -> None:
        self.most, self.near, self.taken = most, near, set(most.values())
        quotients = {n: f for n, f in formulas.items() if isinstance(f, Quotient)}
        self.lows = _lows(most, quotients)

    def all(self) -> dict[str, int]:
        """One for each name."""
        return {name: self.one(name) for name in self.most}

    def next(self) -> dict[str, int]:
        """One for each name that has quotients; for all names where none has."""
        return {name: self.one(name) for name in self.lows or self.most}

    def one(self, name: str) -> int:
        """One for a name: a prime, if the most is not small and nothing is a quotient of it.

        Those that others are quotients of are each number in turn, so that each remainder is seen,
        and numbers that lie further and further apart, so that quotients of quotients differ.
        """
        most, low = self.most[name], self.lows.get(name)
        primes = primes_from(FEW_ROWS + 1)
        below: Iterable[int] = _FEW_PROBES if most <= FEW_ROWS else ()
        if self.near:
            below = (n for n in range(most - 1, 1, -1) if most <= _SMALL or _is_prime(n))
        if low is not None:
            pairs = zip(range(most - low), accumulate(count(1)), strict=False)
            steps = (n for pair in pairs for n in pair if n < most - low)
            below = chain((most - 1 - n if self.near else low + n for n in steps), count(low))
        found = next(n for n in chain(below, primes) if n not in self.taken)
        self.taken.add(found)
        return found


def _lows(most: Mapping[str, int], quotients: Mapping[str, Quotient]) -> dict[str, int]:
    """The least number of each root of quotients at which these are many as well, if they are at
    the most, and no axis has a single element."""
    found = {}
    for root in dict.fromkeys(roots_of(quotients).values()):
        own = {n: q for n, q in quotients.items() if roots_of(quotients)[n] == root}
        sizes = whole(own, {root: most[root]})
        least = {n: FEW_ROWS + 1 if size > FEW_ROWS else min(size, 2) for n, size in sizes.items()}
        numbers = range(FEW_ROWS + 1 if most[root] > FEW_ROWS else min(_FEW_PROBES), most[root])
        at = (n for n in numbers if all(s >= least[m] for m, s in whole(own, {root: n}).items()))
        found[root] = next(at, FEW_ROWS + 1)
    return found


def independent(rows: Sequence[Sequence[int]]) -> list[int]:
    """The first rows of which none follows from those before it."""
    kept: list[tuple[int, list[Fraction]]] = []
    found = []
    for n, row in enumerate(rows):
        left = [Fraction(x) for x in row]
        for pivot, known in kept:
            if left[pivot]:
                factor = left[pivot] / known[pivot]
                left = [x - factor * y for x, y in zip(left, known, strict=True)]
        at = next((k for k, x in enumerate(left) if x), None)
        if at is not None:
            kept.append((at, left))
            found.append(n)
    return found


def primes_from(n: int) -> Iterator[int]:
    """The primes that are no less."""
    return (k for k in count(max(2, n)) if _is_prime(k))


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
