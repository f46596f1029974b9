"""Python's operators on nodes and axes make the nodes that the constructors make."""

from __future__ import annotations

import operator
from collections.abc import Callable

import numpy as np
import pytest

from autotune.te.expr import (
    INDEX,
    Axis,
    Const,
    Expr,
    Tensor,
    add,
    binary,
    both,
    compare,
    either,
    idx,
)

N, M = Axis("i", 8), Axis("j", 4)
BINARY: dict[str, Callable[..., Expr]] = {
    "add": operator.add,
    "sub": operator.sub,
    "mul": operator.mul,
    "floordiv": operator.floordiv,
    "mod": operator.mod,
}
ORDER: dict[str, Callable[..., Expr]] = {
    "lt": operator.lt,
    "le": operator.le,
    "gt": operator.gt,
    "ge": operator.ge,
}


@pytest.mark.parametrize("op", BINARY)
def test_operators_of_indices_are_the_constructors(op: str) -> None:
    for number in (0, 1, 3):
        assert BINARY[op](N, number) == binary(op, N.var, idx(number))
    assert BINARY[op](N, M) == binary(op, N.var, M.var)
    assert BINARY[op](N.var, add(M.var, idx(2))) == binary(op, N.var, add(M.var, idx(2)))


@pytest.mark.parametrize("op", ORDER)
def test_comparisons_are_conditions(op: str) -> None:
    condition = ORDER[op](N, 3)
    assert condition == compare(op, N.var, idx(3))
    assert condition & (M < 2) == both(condition, compare("lt", M.var, idx(2)))
    assert condition | (M < 2) == either(condition, compare("lt", M.var, idx(2)))


@pytest.mark.parametrize("dtype", ["float32", "float64", "bfloat16", "int8", "int64"])
def test_a_number_has_the_type_of_the_other_operand(dtype: str) -> None:
    element = Tensor("x", (8,), dtype)[N]
    assert element + 1 == binary("add", element, Const(1, dtype))
    assert 2 - element == binary("sub", Const(2, dtype), element)
    assert (1 / 3 * Tensor("y", (8,))[N]).a == Const(float(np.float32(1 / 3)))  # type: ignore[union-attr]


def test_axes_are_indices_of_tensors() -> None:
    x = Tensor("x", (8, 4))
    assert x[N, M + 1] == x[N.var, add(M.var, idx(1))]
    assert add(binary("mul", N.var, idx(4)), M.var) == (N * 4 + M)
    assert N.var == N + 0
    assert Const(3, INDEX) + 4 == idx(7)
