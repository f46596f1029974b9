"""② Sums of integers that an expression writes out, as those of the words of 4-bit weights."""

from __future__ import annotations

from dataclasses import dataclass

from autotune.dtypes import DTYPES
from autotune.te.expr import INDEX, Binary, Expr, distinct, dtype_of

LEAST_TERMS = 4
"""Terms of a sum that counts as one: those of fewer do not wait for long."""


@dataclass(frozen=True, slots=True)
class WrittenSum:
    """`whole` is the sum of `terms`, added up one after the other."""

    whole: Expr
    terms: tuple[Expr, ...]

    @property
    def dtype(self) -> str:
        """Type of the sum."""
        return dtype_of(self.whole)


def written_out(e: Expr) -> WrittenSum | None:
    """The longest sum of integers in `e`, which are no indices; None where none is long."""
    found = [WrittenSum(x, tuple(_terms(x))) for x in distinct(e) if _is_sum(x)]
    longest = max(found, key=lambda each: len(each.terms), default=None)
    return longest if longest and len(longest.terms) >= LEAST_TERMS else None


def _is_sum(e: Expr) -> bool:
    if not (isinstance(e, Binary) and e.op == "add"):
        return False
    dtype = dtype_of(e)
    return dtype != INDEX and DTYPES[dtype].is_integer


def _terms(e: Expr) -> list[Expr]:
    terms: list[Expr] = []
    while isinstance(e, Binary) and e.op == "add":
        terms.append(e.b)
        e = e.a
    return [e, *reversed(terms)]
