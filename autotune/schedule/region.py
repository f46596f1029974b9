"""③ Span of an index over a region of its variables: the algebra behind `compute_at`.

A reach is `(low, span)`: the index stays in `[low, low + span]`, where `low` is an expression of
the variables held fixed. Spans are ints in a concrete schedule and arrays (one entry per candidate)
when a whole population is analysed at once, so this module uses no comparison on them.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import lru_cache
from typing import TypeVar

import numpy as np

from autotune.te.arith import Linear, linear
from autotune.te.expr import (
    Binary,
    Const,
    Expr,
    Var,
    add,
    floordiv,
    idx,
    maximum,
    minimum,
    mod,
    mul,
    variables,
)

Extent = int | np.ndarray
Number = TypeVar("Number", int | np.ndarray, float | np.ndarray)
Depth = int | tuple[int, ...]
"""One depth of a loop, or several: what depends on them has a row for each."""
Spans = Mapping[str, Extent]


def plain(extent: Extent) -> Extent:
    """An int where it is one number."""
    if isinstance(extent, int):
        return extent
    return int(extent) if np.ndim(extent) == 0 else extent


def smaller(a: Number, b: Number) -> Number:
    """The smaller of two extents or amounts, per candidate."""
    if not isinstance(a, np.ndarray) and not isinstance(b, np.ndarray):  # at a tenth of the price
        return b if b < a else a
    least: Number = np.minimum(a, b)
    return least


def larger(a: Number, b: Number) -> Number:
    """The larger of two extents or amounts, per candidate."""
    if not isinstance(a, np.ndarray) and not isinstance(b, np.ndarray):
        return b if b > a else a
    most: Number = np.maximum(a, b)
    return most


def deeper(n: int, depth: Depth, extent: Extent) -> Extent:
    """`extent` of the loop at depth `n` where that is deeper than `depth`, else 1."""
    if isinstance(depth, int):
        return extent if n > depth else 1
    if isinstance(extent, int) and extent == 1:
        return 1
    inside = _inside(n, depth)
    if isinstance(inside, bool):
        return extent if inside else 1
    return np.where(inside, extent, 1)


@lru_cache(maxsize=4096)
def _inside(n: int, depth: tuple[int, ...]) -> bool | np.ndarray:
    """Whether depth `n` is deeper than each of `depth`, shape [depths, 1]; one answer for all."""
    inside = [n > d for d in depth]
    return inside[0] if len(set(inside)) == 1 else np.array(inside)[:, None]


class UnboundedIndex(Exception):
    """The reach of an index cannot be told; the caller takes the whole dimension."""


def span(e: Expr, inner: Spans, aligned: bool = False) -> Extent:
    """Largest difference of two values of `e` while each `inner[v]` varies over its extent - 1.

    `aligned`: ranges start at multiples of the divisors in `e`, as tiles do; else nothing is known
    of where they start. Raises UnboundedIndex for a form it does not know.
    """
    if isinstance(e, Var):
        return inner[e.name] - 1 if e.name in inner else 0
    return span_of(linear(e), inner, aligned)


def span_of(form: Linear, inner: Spans, aligned: bool = False) -> Extent:
    """`span` of an expression whose linear form is known."""
    total: Extent = 0
    for atom, coef in form.terms:
        reach = _atom_span(atom, inner, aligned)
        if isinstance(reach, int) and reach == 0:
            continue
        reach = reach if coef in (1, -1) else abs(coef) * reach
        total = reach if isinstance(total, int) and total == 0 else total + reach
    return total


def low(e: Expr, inner: Mapping[str, int]) -> Expr:
    """Smallest value of `e`, as an expression of the variables that are not in `inner`."""
    form = linear(e)
    result: Expr = idx(form.const)
    for atom, coef in form.terms:
        smallest = _atom_low(atom, inner)
        if coef < 0:
            smallest = add(smallest, idx(int(_atom_span(atom, inner))))
        result = add(result, mul(smallest, idx(coef)))
    return result


def lowest(forms: list[Linear]) -> Linear | None:
    """The smallest of several starting points; None where they differ by more than a constant."""
    first = forms[0]
    if any(set(f.terms) != set(first.terms) for f in forms):
        return None
    return min(forms, key=lambda f: f.const)


def _atom_span(atom: Expr, inner: Spans, aligned: bool = False) -> Extent:
    match atom:
        case Var(name=name):
            return inner[name] - 1 if name in inner else 0
        case Binary(op="min" | "max", a=a, b=b):
            return larger(span(a, inner, aligned), span(b, inner, aligned))
        case Binary(op="floordiv", a=a, b=Const(value=n)):
            return (span(a, inner, aligned) + (0 if aligned else int(n) - 1)) // int(n)
        case Binary(op="mod", a=a, b=Const(value=n)):
            reach = span(a, inner, aligned)
            if not isinstance(reach, np.ndarray) and not aligned:
                return int(n) - 1 if reach else 0
            return smaller(reach, int(n) - 1) if aligned else np.where(reach == 0, 0, int(n) - 1)
        case _ if not variables(atom) & set(inner):
            return 0
        case _:
            raise UnboundedIndex(str(atom))


def _atom_low(atom: Expr, inner: Mapping[str, int]) -> Expr:
    match atom:
        case Var(name=name):
            return idx(0) if name in inner else atom
        case Binary(op="min", a=a, b=b):
            return minimum(low(a, inner), low(b, inner))
        case Binary(op="max", a=a, b=b):
            return maximum(low(a, inner), low(b, inner))
        case Binary(op="floordiv", a=a, b=b):
            return floordiv(low(a, inner), b)
        case Binary(op="mod", a=a, b=b):
            return mod(a, b) if int(span(a, inner)) == 0 else idx(0)
        case _ if not variables(atom) & set(inner):
            return atom
        case _:
            raise UnboundedIndex(str(atom))
