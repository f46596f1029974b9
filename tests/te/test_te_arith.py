"""Index arithmetic keeps the value of every index, and its intervals contain every value.

Random expressions over small boxes are compared with Python integers at every point of the box.
"""

from __future__ import annotations

import itertools
import operator
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from autotune.te.arith import Linear, Ranges, bounds, linear, simplify
from autotune.te.expr import (
    Binary,
    Compare,
    Const,
    Expr,
    Select,
    Var,
    add,
    compare,
    floordiv,
    idx,
    maximum,
    minimum,
    mod,
    mul,
    select,
    sub,
)

RANGES: Ranges = {"p": (0, 4), "q": (-2, 3), "r": (5, 7)}
P, Q, R = (Var(name) for name in RANGES)
ARITHMETIC: dict[str, Callable[[Any, Any], Any]] = {
    "add": operator.add,
    "sub": operator.sub,
    "mul": operator.mul,
    "floordiv": operator.floordiv,
    "mod": operator.mod,
    "min": min,
    "max": max,
    "and": lambda a, b: a and b,
    "or": lambda a, b: a or b,
}


def value_of(e: Expr, point: dict[str, int]) -> Any:
    """The value of an index or of a condition at `point`, in Python's own arithmetic."""
    match e:
        case Const(value=value):
            return value
        case Var(name=name):
            return point[name]
        case Binary(op=op, a=a, b=b):
            return ARITHMETIC[op](value_of(a, point), value_of(b, point))
        case Compare(op=op, a=a, b=b):
            return getattr(operator, op)(value_of(a, point), value_of(b, point))
        case Select(cond=cond, a=a, b=b):
            return value_of(a if value_of(cond, point) else b, point)
    raise AssertionError(e)


def random_index(rng: np.random.Generator, depth: int) -> Expr:
    """An index expression: divisors are positive constants, as in every lowered program."""
    if depth == 0 or rng.random() < 0.15:
        leaf = rng.integers(4)
        return (P, Q, R)[leaf] if leaf < 3 else idx(int(rng.integers(-6, 7)))
    a, b = (random_index(rng, depth - 1) for _ in range(2))
    divisor = idx(int(rng.integers(1, 6)))
    match rng.integers(8):
        case 0 | 1:
            return add(a, b)
        case 2:
            return sub(a, b)
        case 3:
            return mul(a, idx(int(rng.integers(-3, 4))))
        case 4:
            return floordiv(a, divisor)
        case 5:
            return mod(a, divisor)
        case 6:
            return (minimum if rng.random() < 0.5 else maximum)(a, b)
        case _:
            op = str(rng.choice(["lt", "le", "gt", "ge", "eq", "ne"]))
            return select(compare(op, a, b), b, a)


def points() -> list[dict[str, int]]:
    spans = (range(low, high + 1) for low, high in RANGES.values())
    return [dict(zip(RANGES, values, strict=True)) for values in itertools.product(*spans)]


@pytest.mark.parametrize("seed", range(40))
def test_canonical_forms_keep_values_and_intervals_contain_them(seed: int) -> None:
    rng = np.random.default_rng(seed)
    for _ in range(5):
        e = random_index(rng, 4)
        everywhere, here = linear(e).expr, linear(e, RANGES).expr
        low, high = bounds(e, RANGES)
        for point in points():
            value = value_of(e, point)
            assert value_of(everywhere, point) == value, e
            assert value_of(here, point) == value, e
            assert low <= value <= high, e


@pytest.mark.parametrize("op", ["lt", "le", "gt", "ge", "eq", "ne"])
def test_simplified_conditions_hold_at_the_same_points(op: str) -> None:
    rng = np.random.default_rng(7)
    for _ in range(25):
        cond = compare(op, random_index(rng, 3), random_index(rng, 3))
        found = simplify(cond, RANGES)
        assert all(value_of(found, p) == value_of(cond, p) for p in points()), cond


def test_equal_indices_have_equal_forms() -> None:
    a = mul(add(P, idx(2)), idx(4))
    b = add(add(mul(P, idx(3)), idx(8)), P)
    assert linear(a) == linear(b) == Linear(((P, 4),), 8)
    assert linear(sub(a, b)) == Linear((), 0)


def test_bounds_of_linear_forms_are_exact() -> None:
    e = add(sub(mul(P, idx(3)), mul(Q, idx(2))), idx(1))
    values = [value_of(e, p) for p in points()]
    assert bounds(e, RANGES) == (min(values), max(values))


def test_ranges_decide_divisions_extrema_and_conditions() -> None:
    assert linear(floordiv(add(mul(P, idx(8)), R), idx(8)), RANGES) == linear(P)
    assert linear(mod(add(mul(P, idx(8)), R), idx(8)), RANGES) == linear(R)
    assert linear(minimum(P, R), RANGES) == linear(P)
    assert linear(maximum(Q, R), RANGES) == linear(R)
    assert simplify(compare("lt", P, idx(5)), RANGES) == Const(True, "bool")
    assert simplify(compare("ge", Q, idx(4)), RANGES) == Const(False, "bool")


@pytest.mark.parametrize("op", ["lt", "le", "gt", "ge", "eq", "ne"])
def test_a_condition_is_decided_where_it_is_the_same_at_all_points(op: str) -> None:
    for shift in range(-6, 7):
        cond = compare(op, add(P, idx(shift)), idx(0))
        values = {value_of(cond, p) for p in points()}
        found = simplify(cond, RANGES)
        if len(values) == 1:
            assert found == Const(values.pop(), "bool"), shift
        else:
            assert not isinstance(found, Const), shift


def test_a_variable_inside_a_division_has_no_coefficient() -> None:
    form = linear(add(floordiv(P, idx(3)), mul(Q, idx(2))))
    assert (form.coefficient("p"), form.coefficient("q")) == (0, 2)
    assert form.is_opaque_in("p")
    assert not form.is_opaque_in("q")


def test_an_unbounded_variable_is_an_error() -> None:
    with pytest.raises(KeyError, match="p"):
        bounds(add(P, idx(1)), {})
