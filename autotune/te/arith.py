"""② Canonical index arithmetic: linear forms and intervals.

An index is brought into the form Σ coefficient·atom + constant, where an atom is a variable or an
opaque `floordiv`, `mod`, `min`, `max` of canonical operands. Equal linear forms are equal indices,
so differences cancel exactly; intervals bound an index over a box of variables.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache

from autotune.dtypes import DTYPES
from autotune.te.expr import (
    INDEX,
    Binary,
    Cast,
    Compare,
    Const,
    Expr,
    Select,
    Var,
    add,
    binary,
    compare,
    dtype_of,
    idx,
    map_expr,
    mul,
    select,
    variables,
)

_SHORT = 16
"""Bits of integers that are indices as they are, whatever their value."""
Ranges = Mapping[str, tuple[int, int]]
"""Inclusive bounds of variables by name."""


@dataclass(frozen=True, slots=True)
class Linear:
    """Σ `terms[atom]`·atom + `const`; terms hold no zero and are in order of first appearance."""

    terms: tuple[tuple[Expr, int], ...]
    const: int

    @property
    def expr(self) -> Expr:
        """The canonical expression: variable part first, constant last."""
        return add(self.variable_part, idx(self.const))

    def without(self, *atoms: Expr) -> Linear:
        """The form without the terms of `atoms`."""
        return Linear(tuple(t for t in self.terms if t[0] not in atoms), self.const)

    @property
    def variable_part(self) -> Expr:
        """The expression without its constant."""
        total: Expr = idx(0)
        for atom, coef in self.terms:
            total = add(total, mul(atom, idx(coef)))
        return total

    def coefficient(self, name: str) -> int:
        """Factor of variable `name` (0 when it occurs only inside an opaque atom or not at all)."""
        return next((c for a, c in self.terms if isinstance(a, Var) and a.name == name), 0)

    def is_opaque_in(self, name: str) -> bool:
        """Whether `name` occurs inside a non-linear atom."""
        return any(not isinstance(a, Var) and name in variables(a) for a, _ in self.terms)


def linear(e: Expr, ranges: Ranges | None = None) -> Linear:
    """Canonical form of an index expression; `ranges` lets min, floordiv, … be resolved."""
    return _linear(e, ranges) if ranges else _everywhere(e)


def offset(indices: Sequence[Expr], strides: Sequence[int]) -> Linear:
    """Elements between the first one of a tensor and the one at `indices`."""
    total: Expr = idx(0)
    for i, s in zip(indices, strides, strict=True):
        total = Binary("add", total, Binary("mul", i, idx(s)))
    return _rejoined(linear(total))


def _rejoined(form: Linear) -> Linear:
    """With c·n·(x // n) + c·(x % n), which loops that were made one leave, as c·x."""
    terms = dict(form.terms)
    for atom, coef in form.terms:
        if isinstance(atom, Binary) and atom.op == "mod" and isinstance(atom.b, Const):
            whole = Binary("floordiv", atom.a, atom.b)
            if terms.get(whole) == coef * int(atom.b.value):
                return _rejoined(_sum(form.without(atom, whole), linear(atom.a), coef))
    return form


@lru_cache(maxsize=4096)
def _everywhere(e: Expr) -> Linear:
    return _linear(e, {})


def _linear(e: Expr, ranges: Ranges) -> Linear:
    match e:
        case Const(value=value):
            return Linear((), int(value))
        case Binary(op="add", a=a, b=b):
            return _sum(linear(a, ranges), linear(b, ranges), 1)
        case Binary(op="sub", a=a, b=b):
            return _sum(linear(a, ranges), linear(b, ranges), -1)
        case Binary(op="mul", a=a, b=b):
            la, lb = linear(a, ranges), linear(b, ranges)
            if not lb.terms:
                return _scale(la, lb.const)
            if not la.terms:
                return _scale(lb, la.const)
            return _atom(Binary("mul", la.expr, lb.expr))
        case Binary(op="floordiv" | "mod", a=a, b=b):
            return _division(e.op, linear(a, ranges), linear(b, ranges), ranges)
        case Binary(op="min" | "max", a=a, b=b):
            return _extremum(e.op, linear(a, ranges), linear(b, ranges), ranges)
        case Select(cond=cond, a=a, b=b):
            parts = select(cond, linear(a, ranges).expr, linear(b, ranges).expr)
            return _atom(parts) if isinstance(parts, Select) else linear(parts, ranges)
        case _:
            return _atom(e)


def simplify(e: Expr, ranges: Ranges | None = None) -> Expr:
    """Rewrite every index inside `e` to canonical form and decide comparisons by intervals."""
    known = ranges or {}

    def one(x: Expr) -> Expr | None:
        match x:
            case Binary(op="and" | "or", a=a, b=b):
                return binary(x.op, simplify(a, known), simplify(b, known))
            case Binary() | Var() if _is_index(x):
                return linear(x, known).expr
            case Compare(op=op, a=a, b=b) if _is_index(a):
                return _compare(op, linear(a, known), linear(b, known), known)
            case Select(cond=cond, a=a, b=b):
                return select(simplify(cond, known), simplify(a, known), simplify(b, known))
            case _:
                return None

    return map_expr(e, one)


def bounds(e: Expr, ranges: Ranges) -> tuple[int, int]:
    """Inclusive interval that contains `e` while every variable stays in its range.

    Exact for linear forms; may be wider than the true range for opaque atoms that share
    variables. Raises KeyError for a variable without range.
    """
    return _form_bounds(linear(e, ranges), ranges)


def _form_bounds(form: Linear, ranges: Ranges) -> tuple[int, int]:
    low = high = form.const
    for atom, coef in form.terms:
        a, b = _atom_bounds(atom, ranges)
        low += min(coef * a, coef * b)
        high += max(coef * a, coef * b)
    return low, high


def _is_index(e: Expr) -> bool:
    match e:
        case Var():
            return True
        case Const(dtype=dtype):
            return dtype == INDEX
        case Binary(op=op, a=a, b=b):
            return op not in ("and", "or") and _is_index(a) and _is_index(b)
        case Select(a=a, b=b):
            return _is_index(a) and _is_index(b)
        case _:
            return False


def _atom(e: Expr) -> Linear:
    return Linear(((e, 1),), 0)


def _scale(form: Linear, factor: int) -> Linear:
    if factor == 0:
        return Linear((), 0)
    return Linear(tuple((a, c * factor) for a, c in form.terms), form.const * factor)


def _sum(a: Linear, b: Linear, sign: int) -> Linear:
    terms = dict(a.terms)
    for atom, coef in b.terms:
        terms[atom] = terms.get(atom, 0) + sign * coef
    return Linear(tuple((k, v) for k, v in terms.items() if v), a.const + sign * b.const)


def _division(op: str, a: Linear, b: Linear, ranges: Ranges) -> Linear:
    if b.terms or b.const <= 0:
        return _atom(Binary(op, a.expr, b.expr))
    n = b.const
    plain = _without_multiples(a, n)
    for whole, rest in (plain, _beside_multiples(a, n)):
        inside = _try_bounds(rest, ranges)
        if inside and inside[0] // n == inside[1] // n:
            shift = inside[0] // n
            if op == "floordiv":
                return _sum(whole, Linear((), shift), 1)
            return _sum(rest, Linear((), shift * n), -1)
    whole, rest = plain
    if op == "floordiv":
        return _sum(whole, _atom(Binary(op, rest.expr, idx(n))), 1)
    return _atom(Binary(op, rest.expr, idx(n)))


def _without_multiples(a: Linear, n: int) -> tuple[Linear, Linear]:
    """`a` as `n` times a form and a rest: the terms that are no multiples of n."""
    whole = tuple((x, c // n) for x, c in a.terms if c % n == 0)
    rest = tuple((x, c) for x, c in a.terms if c % n)
    return Linear(whole, a.const // n), Linear(rest, a.const % n)


def _beside_multiples(a: Linear, n: int) -> tuple[Linear, Linear]:
    """The same, where the rest is what terms are beside the nearest multiple of n: a row of n - 1
    elements is one of n less one."""
    times = [(x, c, (2 * c + n) // (2 * n)) for x, c in a.terms]
    whole = tuple((x, k) for x, _, k in times if k)
    rest = tuple((x, c - k * n) for x, c, k in times if c != k * n)
    return Linear(whole, a.const // n), Linear(rest, a.const % n)


def _extremum(op: str, a: Linear, b: Linear, ranges: Ranges) -> Linear:
    difference = _sum(a, b, -1)
    if not difference.terms:
        smaller = difference.const <= 0
        return a if smaller == (op == "min") else b
    inside = _try_bounds(difference, ranges)
    if inside and inside[1] <= 0:
        return a if op == "min" else b
    if inside and inside[0] >= 0:
        return b if op == "min" else a
    return _atom(Binary(op, a.expr, b.expr))


def _compare(op: str, a: Linear, b: Linear, ranges: Ranges) -> Expr:
    difference = _sum(a, b, -1)
    inside = _try_bounds(difference, ranges)
    if inside:
        low, high = inside
        verdict = {
            "lt": (high < 0, low >= 0),
            "le": (high <= 0, low > 0),
            "gt": (low > 0, high <= 0),
            "ge": (low >= 0, high < 0),
            "eq": (low == high == 0, low > 0 or high < 0),
            "ne": (low > 0 or high < 0, low == high == 0),
        }[op]
        if verdict[0] or verdict[1]:
            return Const(verdict[0], "bool")
    return compare(op, Linear(difference.terms, 0).expr, idx(-difference.const))


def _try_bounds(form: Linear, ranges: Ranges) -> tuple[int, int] | None:
    try:
        return _form_bounds(form, ranges)
    except KeyError:
        return None


_ANY = 1 << 62
"""Upper limit of every bounded index."""


def _clamped(e: Expr, ranges: Ranges) -> tuple[int, int]:
    """As `bounds`, beyond `_ANY` where there is none: max(0, min(x, 9)) is in 0 … 9 for any x."""
    match e:
        case Binary(op="min" | "max" as op, a=a, b=b):
            (al, ah), (bl, bh) = _clamped(a, ranges), _clamped(b, ranges)
            pick = min if op == "min" else max
            return pick(al, bl), pick(ah, bh)
    try:
        return bounds(e, ranges)
    except KeyError:
        return -2 * _ANY, 2 * _ANY


def _atom_bounds(atom: Expr, ranges: Ranges) -> tuple[int, int]:
    match atom:
        case Var(name=name):
            return ranges[name]
        case Binary(op="min" | "max"):
            low, high = _clamped(atom, ranges)
            if low < -_ANY or high > _ANY:
                raise KeyError(f"no bounds for {atom}")
            return low, high
        case Binary(op="floordiv", a=a, b=Const(value=n)):
            low, high = bounds(a, ranges)
            return int(low // n), int(high // n)
        case Binary(op="mod", a=a, b=Const(value=n)):
            low, high = bounds(a, ranges)
            return (int(low % n), int(high % n)) if low // n == high // n else (0, int(n) - 1)
        case Binary(op="mul", a=a, b=b):
            (al, ah), (bl, bh) = bounds(a, ranges), bounds(b, ranges)
            corners = [al * bl, al * bh, ah * bl, ah * bh]
            return min(corners), max(corners)
        case Select(a=a, b=b):
            (al, ah), (bl, bh) = bounds(a, ranges), bounds(b, ranges)
            return min(al, bl), max(ah, bh)
        case Cast(a=a) if (known := DTYPES[dtype_of(a)]).bits <= _SHORT and known.is_integer:
            return int(known.low), int(known.high)
        case Cast(a=Binary(op="mod" | "floordiv") as a):
            return bounds(a, ranges)
        case _:
            raise KeyError(f"no bounds for {atom}")
