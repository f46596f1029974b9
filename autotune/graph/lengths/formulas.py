"""① Numbers that follow from other numbers: places of an image, halves of its rows.

    {"h.w": LengthProduct("h", "w"), "h'": Quotient("h", 1, 1, 2)}      h·w and floor((h + 1) / 2)

They are lengths as any other: the network computes them from the numbers of the call.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TypeAlias

from autotune.graph.tasks.subgraph import Subgraph
from autotune.te.dag import ComputeDAG, compute, placeholder
from autotune.te.expr import INDEX, Axis, Expr, add, floordiv, idx, mul

MOST_REMAINDERS = 8
"""Divisors up to it are looked at at each remainder."""


@dataclass(frozen=True, slots=True)
class LengthProduct:
    """That of two numbers."""

    one: str
    other: str

    @property
    def read(self) -> tuple[str, ...]:
        """The numbers that it follows from."""
        return self.one, self.other

    def at(self, numbers: Mapping[str, int]) -> int:
        """The number, beside these."""
        return numbers[self.one] * numbers[self.other]

    def expr(self, read: tuple[Expr, ...]) -> Expr:
        """The number, from those that it follows from."""
        return mul(*read)


@dataclass(frozen=True, slots=True)
class Quotient:
    """floor((`factor` · number `of` + `offset`) / `divisor`)."""

    of: str
    factor: int
    offset: int
    divisor: int

    @property
    def read(self) -> tuple[str, ...]:
        """The numbers that it follows from."""
        return (self.of,)

    def at(self, numbers: Mapping[str, int]) -> int:
        """The number, beside these."""
        return self._sum(numbers) // self.divisor

    def expr(self, read: tuple[Expr, ...]) -> Expr:
        """The number, from those that it follows from."""
        return floordiv(add(mul(read[0], idx(self.factor)), idx(self.offset)), idx(self.divisor))

    def remainder(self, numbers: Mapping[str, int]) -> int:
        """What is rounded off."""
        return self._sum(numbers) % self.divisor

    @property
    def remainders(self) -> frozenset[int]:
        """Remainders at which a model has to be looked at: all of them, or some and both ends."""
        if self.divisor <= MOST_REMAINDERS:
            return frozenset(range(self.divisor))
        steps = range(0, self.divisor, -(-self.divisor // (MOST_REMAINDERS - 1)))
        return frozenset((*steps, self.divisor - 1))

    def _sum(self, numbers: Mapping[str, int]) -> int:
        return self.factor * numbers[self.of] + self.offset


Formula: TypeAlias = LengthProduct | Quotient


def whole(formulas: Mapping[str, Formula], numbers: Mapping[str, int]) -> dict[str, int]:
    """`numbers` with those that follow from them; `formulas` are each behind what it reads."""
    found = dict(numbers)
    for name, formula in formulas.items():
        found[name] = formula.at(found)
    return found


def roots_of(quotients: Mapping[str, Quotient]) -> dict[str, str]:
    """The number of a call from which each quotient, of a quotient, is made."""
    found: dict[str, str] = {}
    for name, q in quotients.items():
        found[name] = found.get(q.of, q.of)
    return found


def computing(name: str, formula: Formula, ports: Mapping[str, str]) -> Subgraph:
    """What computes a number; `ports`: the values of all numbers."""
    read = {f"number{k}": ports[n] for k, n in enumerate(formula.read)}
    numbers = [placeholder(own, (1,), INDEX) for own in read]
    axis = Axis("i", 1)
    expr = formula.expr(tuple(p.tensor[axis] for p in numbers))
    dag = ComputeDAG((*numbers, compute("number", (axis,), expr)), ("number",))
    return Subgraph(dag, read, {}, ports[name], type(formula).__name__)
