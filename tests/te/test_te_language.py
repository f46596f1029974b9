"""Tensor expressions as a user writes them, against NumPy, and what is told of mistakes."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from autotune import te
from autotune.errors import DefinitionError
from autotune.te.dag import Compute, ComputeDAG, compute, placeholder, print_dag
from autotune.te.evaluate import evaluate
from autotune.te.expr import Axis, Reduce, Tensor
from autotune.te.validate import require_valid
from autotune.te.values import numbered


def matmul_add(n: int, m: int, k: int) -> te.Tensor:
    a, b = te.placeholder((n, k), "a"), te.placeholder((k, m), "b", constant=True)
    c, r = te.placeholder((n, m), "c"), te.reduce_axis(k, "r")
    product = te.compute((n, m), lambda i, j: te.sum(a[i, r] * b[r, j], r), "product")
    return te.compute((n, m), lambda i, j: product[i, j] + c[i, j], "out")


def test_matmul_add() -> None:
    dag = te.dag_of(matmul_add(4, 5, 6))
    assert print_dag(dag).splitlines() == [
        "a = input(4, 6) float32",
        "b = constant(6, 5) float32",
        "c = input(4, 5) float32",
        "product[i<4, j<5] = sum(a[i, r] * b[r, j], over r<6)",
        "output out[i<4, j<5] = product[i, j] + c[i, j]",
    ]
    rng = np.random.default_rng(0)
    values = {p.name: rng.standard_normal(p.tensor.shape, np.float32) for p in dag.placeholders}
    expected = values["a"] @ values["b"] + values["c"]
    np.testing.assert_allclose(evaluate(dag, values)["out"], expected, rtol=1e-5, atol=1e-6)


UNARY: dict[str, tuple[Callable[[te.Expression], te.Expression], Callable[..., object]]] = {
    "arithmetic": (lambda x: 2 - (x * 3 + 1) / 4, lambda x: 2 - (x * 3 + 1) / 4),
    "powers": (lambda x: (x * x + 1) ** 1.5, lambda x: (x * x + 1) ** 1.5),
    "neg_abs": (lambda x: -abs(x), lambda x: -np.abs(x)),
    "exp_log": (lambda x: te.log(te.exp(x) + 1), lambda x: np.log(np.exp(x) + 1)),
    "roots": (
        lambda x: te.sqrt(x * x) * te.rsqrt(x * x + 1),
        lambda x: abs(x) / (x * x + 1) ** 0.5,
    ),
    "tanh": (te.tanh, np.tanh),
    "rounding": (
        lambda x: te.floor(x) + 2 * te.ceil(x) + 4 * te.round(x),
        lambda x: np.floor(x) + 2 * np.ceil(x) + 4 * np.round(x),
    ),
    "where": (
        lambda x: te.where((x > 0) & ~(x > 1), x, 7),
        lambda x: np.where((x > 0) & (x <= 1), x, 7),
    ),
    "extrema": (lambda x: te.maximum(te.minimum(x, 1), -0.5), lambda x: np.clip(x, -0.5, 1)),
    "compare": (lambda x: te.where((x == 0) | (x != x), 1, 0), lambda x: np.where(x == 0, 1, 0)),
    "cast": (lambda x: x.astype("int32").astype("float32"), np.trunc),
}


@pytest.mark.parametrize("name", UNARY)
def test_operators_mean_what_numpy_says(name: str) -> None:
    ours, numpy = UNARY[name]
    x = te.placeholder(64, "x")
    dag = te.dag_of(te.compute(64, lambda i: ours(x[i]), "y"))
    values = np.random.default_rng(0).standard_normal(64).astype(np.float32) * 2
    values[:2] = 0
    found = evaluate(dag, {"x": values})["y"]
    np.testing.assert_allclose(found, numpy(values.astype(np.float64)), rtol=1e-5, atol=1e-6)


def test_reductions_indices_and_several_outputs() -> None:
    x = te.placeholder((6, 8), "x")
    k, j = te.reduce_axis((0, 3), "k"), te.reduce_axis(8, "m")
    pooled = te.compute((2, 8), lambda p, c: te.max(x[p * 3 + k, 7 - c], k), "pooled")
    total = te.compute((), lambda: te.prod(pooled[0, j] + 3, [j]), "total")
    reversed_sum = te.compute(6, lambda i: te.sum(x[5 - i, j], j), "sums")
    dag = te.dag_of([pooled, total, reversed_sum])
    values = np.random.default_rng(1).standard_normal((6, 8)).astype(np.float32)
    found = evaluate(dag, {"x": values})
    expected = values.reshape(2, 3, 8).max(1)[:, ::-1]
    np.testing.assert_allclose(found["pooled"], expected)
    np.testing.assert_allclose(found["total"], (expected[0] + 3).prod(), rtol=1e-5)
    np.testing.assert_allclose(found["sums"], values[::-1].sum(1), rtol=1e-5, atol=1e-6)


def test_numbers_of_numpy_are_numbers() -> None:
    x = te.placeholder((3, np.int64(2)), "x")
    y = te.compute(np.int64(2), lambda i: np.float32(2) * x[np.int8(1), i] + np.float64(0.5), "y")
    values = np.ones((3, 2), np.float32)
    np.testing.assert_array_equal(evaluate(te.dag_of(y), {"x": values})["y"], [2.5, 2.5])


def test_padding_is_a_guard_and_gathers_stay_inside() -> None:
    x, at = te.placeholder(8, "x"), te.placeholder(5, "at", dtype="int32")
    padded = te.compute(10, lambda i: te.where((i > 0) & (i < 9), x[i - 1], 0), "padded")
    taken = te.compute(5, lambda i: x[at[i]], "taken")
    dag = te.dag_of([padded, taken])
    values = np.arange(8, dtype=np.float32)
    found = evaluate(dag, {"x": values, "at": np.array([0, 7, 3, 99, -5], np.int32)})
    np.testing.assert_array_equal(found["padded"], np.pad(values, 1))
    np.testing.assert_array_equal(found["taken"], [0, 7, 3, 7, 0])


def test_equal_code_gives_equal_names() -> None:
    def workload() -> te.Tensor:
        x, k = te.placeholder((4, 4)), te.reduce_axis(4)
        return te.compute(4, lambda i: te.sum(x[i, k], k))

    texts = []
    for _ in range(2):
        with numbered():
            texts.append(print_dag(te.dag_of(workload())))
    assert texts[0] == texts[1]


X = te.placeholder((8,), "x")
N = te.placeholder((8,), "i", dtype="int32")
K = te.reduce_axis(8, "k")
MISTAKES: list[tuple[Callable[[], object], str]] = [
    (lambda: te.compute(9, lambda i: X[i + 1]), "of dimension 0 runs from 1 to 9"),
    (lambda: te.compute(9, lambda i: te.where(i > 2, X[i], 0)), "runs from 3 to 8"),
    (lambda: X[0, 1], "has 1 dimensions and is read with 2"),
    (lambda: X[8], "index 8 of dimension 0 is outside of its 8"),
    (lambda: X[-1], "index -1 of dimension 0 is outside"),
    (lambda: X[1.5], "1.5 is no index"),
    (lambda: X[X[0]], "is a float32, no index"),
    (lambda: X[0] + N[0], "float32 and int32 do not go together"),
    (lambda: N[0] + 1.5, "1.5 is no int32"),
    (lambda: N[0] / 2, "'div' is for floats"),
    (lambda: X[0] // 2, "'floordiv' is for whole numbers"),
    (lambda: N[0] % N[1], "takes a positive number on its right"),
    (lambda: X[0] + "a", "'a' is neither an expression nor a number"),
    (lambda: X[0] + X, "x is a whole tensor"),
    (lambda: bool(X[0] > 1), "no truth value"),
    (lambda: te.where(X[0], 1, 2), "the condition of te.where is a float32"),
    (lambda: te.exp(N[0]), "exp is for floats"),
    (lambda: X[0] & X[1], "'and' joins conditions"),
    (lambda: (X[0] > 1) + (X[1] > 1), "no operation on conditions"),
    (lambda: te.sum(X[0], 3), "needs the axes to reduce over"),
    (lambda: te.sum(X[K] > 1, K), "te.sum of conditions"),
    (lambda: te.exp(te.sum(X[K], K)), "a reduction is used inside another"),
    (lambda: te.compute(8, lambda i: X[K]), "uses axis k, which it does not have"),
    (lambda: te.compute(8, lambda k: te.sum(X[K], K)), "two axes called k"),
    (lambda: te.compute(8, lambda i, j: 0), "takes 2 indices, the shape has 1"),
    (lambda: te.compute(8, 3), "3 cannot be called"),
    (lambda: te.placeholder((8, 0)), "is no shape"),
    (lambda: te.placeholder(8, "a b"), "'a b' is no name"),
    (lambda: te.placeholder(8, dtype="complex64"), "'complex64' is no dtype"),
    (lambda: te.reduce_axis((1, 4)), "cannot begin at 1"),
    (lambda: N[0] + (1 << 40), "1099511627776 is no int32"),
    (lambda: X[0] * 10**400, "too large for a float"),
    (lambda: [*X[0]], "one element, not several"),
    (lambda: te.sum(X[K], K).astype("float64"), "a reduction is used inside"),
    (lambda: te.dag_of([3]), "3 is no tensor"),
    (lambda: te.dag_of([]), "needs its outputs"),
    (lambda: te.dag_of(X), "output x is an input"),
    (
        lambda: te.dag_of(te.compute(8, lambda i: X[i] + te.placeholder(8, "x")[i])),
        "two tensors are called x",
    ),
]  # fmt: skip


@pytest.mark.parametrize(("mistake", "message"), MISTAKES, ids=[m for _, m in MISTAKES])
def test_mistakes_are_told_with_the_line_of_the_user(
    mistake: Callable[[], object], message: str
) -> None:
    with pytest.raises(DefinitionError, match=message) as error:
        mistake()
    assert error.value.message.startswith(f"{Path(__file__)}:")
    assert error.value.hint


@pytest.mark.parametrize("extent", [-1, True, 2.0])
def test_an_extent_is_a_whole_number_that_is_not_negative(extent: Any) -> None:
    x, i = placeholder("x", (4,)), Axis("i", extent)
    made = Compute(Tensor("y", (4,), "float32"), (i,), x.tensor[i])
    with pytest.raises(ValueError, match="an axis has a name and an extent"):
        require_valid(ComputeDAG((x, made), ("y",)))
    shaped = Compute(Tensor("y", (extent,), "float32"), (Axis("i", 4),), x.tensor[Axis("i", 4)])
    with pytest.raises(ValueError, match="a shape that no tensor has"):
        require_valid(ComputeDAG((x, shaped), ("y",)))


def test_axes_of_one_computation_have_names_of_their_own() -> None:
    x, g = placeholder("x", (4, 4)), Axis("g", 4)
    body = Reduce("sum", x.tensor[g, g], (g,))
    with pytest.raises(ValueError, match="two axes of y have one name: g, g"):
        compute("y", (g,), body)
    op = Compute(Tensor("y", (4,), "float32"), (g,), body)
    with pytest.raises(ValueError, match="two axes of y have one name"):
        require_valid(ComputeDAG((x, op), ("y",)))
