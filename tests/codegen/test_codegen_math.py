"""Elementary functions against NumPy in float64, in units in the last place."""

from __future__ import annotations

import math
from collections.abc import Callable
from itertools import product
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from autotune.loopir.lower import lower
from autotune.loopir.nodes import Program
from autotune.schedule.steps import Annotate, Split, Steps
from autotune.target import Target, parse_target, runs_here
from autotune.te.dag import ComputeDAG, compute, placeholder
from autotune.te.expr import Axis, Binary, Expr, Load, call, f32
from autotune.te.intrinsics import INTRINSICS
from tests.schedule.running import run_compiled

Array = NDArray[Any]
N = 1 << 14
AVX2 = parse_target("x86-64-v3")
AVX512 = parse_target("x86-64-v4")
TARGETS = [
    pytest.param(AVX2, id="avx2"),
    pytest.param(
        AVX512,
        id="avx512",
        marks=pytest.mark.skipif(not runs_here(AVX512), reason="needs AVX-512"),
    ),
]


def vectors(lanes: int) -> Steps:
    return Split("y", "i", (lanes,)), Annotate("y", "i.1", "vectorize")


def program(f: Callable[[Load], Expr], lanes: int = 8, dtype: str = "float32") -> Program:
    i = Axis("i", N)
    x = placeholder("x", (N,), dtype)
    return lower(ComputeDAG((x, compute("y", (i,), f(x.tensor[i]))), ("y",)), vectors(lanes))


def apply(f: Callable[[Load], Expr], x: Array, target: Target = AVX2, lanes: int = 0) -> Array:
    """f(x) in vectors of `lanes`, by default as many as the target has."""
    padded = np.resize(x.astype(np.float32), N)
    run = program(f, lanes or target.lanes)
    return run_compiled(run, {"x": padded}, target)["y"][: x.size]


def ulps(found: Array, exact: Array) -> float:
    """Largest error in units in the last place of the rounded exact result."""
    unit = np.spacing(np.abs(exact).astype(np.float32)).astype(np.float64)
    return float((np.abs(found.astype(np.float64) - exact) / unit).max())


def linear(low: float, high: float) -> Array:
    return np.linspace(low, high, N).astype(np.float32)


def magnitudes(low: float, high: float) -> Array:
    """Both signs, evenly spread over the exponents."""
    x = np.exp(np.linspace(math.log(low), math.log(high), N))
    return np.where(np.arange(N) % 2, x, -x).astype(np.float32)


def positive(low: float = 2.0**-126, high: float = 3e38) -> Array:
    return np.abs(magnitudes(low, high))


RANGES: list[tuple[str, list[Array]]] = [
    ("exp", [linear(-104, 88.7), linear(-1, 1), magnitudes(1e-40, 1e-2)]),
    ("log", [positive(), linear(0.5, 2), positive(1e-44, 1e-38)]),
    ("tanh", [linear(-10, 10), magnitudes(1e-40, 1)]),
    ("sigmoid", [linear(-87, 88), linear(-9, 9)]),
    ("erf", [linear(-5, 5), magnitudes(1e-37, 1)]),
    ("rsqrt", [positive()]),
    ("sqrt", [positive()]),
    ("log1p", [linear(-0.9999, 10), magnitudes(1e-37, 0.99), positive()]),
    ("sin", [linear(-40, 40), linear(-33e3, 33e3), magnitudes(1e-37, 3.4e38)]),
    ("cos", [linear(-40, 40), linear(-33e3, 33e3), magnitudes(1e-37, 3.4e38)]),
    ("tan", [linear(-40, 40), linear(-33e3, 33e3), magnitudes(1e-37, 3.4e38)]),
    ("asin", [linear(-1, 1), magnitudes(1e-37, 1)]),
    ("acos", [linear(-1, 1), 1 - positive(1e-7, 1)]),
    ("atan", [linear(-9, 9), magnitudes(1e-37, 1e38)]),
    ("sinh", [linear(-89.4, 89.4), magnitudes(1e-37, 2)]),
    ("cosh", [linear(-89.4, 89.4), magnitudes(1e-37, 2)]),
    ("asinh", [linear(-9, 9), magnitudes(1e-37, 3.4e38)]),
    ("acosh", [linear(1, 9), 1 + positive(1e-7, 3.4e38)]),
    ("atanh", [linear(-0.9999, 0.9999), magnitudes(1e-37, 0.99)]),
]


@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize(("fn", "ranges"), RANGES, ids=[r[0] for r in RANGES])
def test_error_is_as_documented(fn: str, ranges: list[Array], target: Target) -> None:
    exact, limit = INTRINSICS[fn].oracle, INTRINSICS[fn].error_ulp
    for x, lanes in product(ranges, (target.lanes, 1)):
        found = apply(lambda e: call(fn, e), x, target=target, lanes=lanes)
        # the oracle's own rounding is far below a thousandth of a unit
        assert ulps(found, exact(x.astype(np.float64))) <= limit + 1e-3


@pytest.mark.parametrize("lanes", [1, 4, 7, 16])
@pytest.mark.parametrize("fn", ["tanh", "sigmoid", "erf", "sin", "asinh"])
def test_lanes_do_not_change_the_result(fn: str, lanes: int) -> None:
    x = linear(-20, 20)
    x[::97] = 1e9  # large ones among small ones
    eight = apply(lambda e: call(fn, e), x, lanes=8)
    np.testing.assert_array_equal(apply(lambda e: call(fn, e), x, lanes=lanes), eight)


@pytest.mark.skipif(not runs_here(AVX512), reason="needs AVX-512")
def test_targets_agree() -> None:
    x = linear(-20, 20)
    narrow, wide = (apply(lambda e: call("exp", e), x, target=t) for t in (AVX2, AVX512))
    np.testing.assert_array_equal(narrow, wide)


@pytest.mark.parametrize("y", [-2.0, -0.5, 0.0, 0.25, 0.75, 1.0, 2.0, 3.0, 7.5])
def test_quarter_powers(y: float) -> None:
    x = positive(1e-4, 1e4)
    found = apply(lambda e: Binary("pow", e, f32(y)), x)
    assert ulps(found, x.astype(np.float64) ** y) <= abs(y) + 2


def test_whole_powers_of_negative_numbers() -> None:
    x = np.array([-2.0, -0.5, 3.0], np.float32)
    np.testing.assert_array_equal(apply(lambda e: Binary("pow", e, f32(3)), x), x**3)


@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize("y", [0.3, -1.7, 11.1])
def test_powers_in_general(y: float, target: Target) -> None:
    x = positive(1e-2, 1e2)
    exact = x.astype(np.float64) ** np.float64(np.float32(y))
    for lanes in (1, target.lanes):
        found = apply(lambda e: Binary("pow", e, f32(y)), x, target=target, lanes=lanes)
        assert ulps(found, exact) <= 0.6


@pytest.mark.parametrize("lanes", [8, 1])
@pytest.mark.parametrize(
    "fn", [f.name for f in INTRINSICS.values() if f.takes in ("floats", "numbers")]
)
def test_functions_of_float64_are_exact_to_its_last_places(fn: str, lanes: int) -> None:
    record = INTRINSICS[fn]
    x = np.linspace(max(record.low, -5.0), min(record.high, 5.0), N)
    x = x[64:-64] if record.needs_positive else x
    given = {"x": np.resize(x, N)}
    found = run_compiled(program(lambda e: call(fn, e), lanes, "float64"), given, AVX2)["y"]
    with np.errstate(all="ignore"):
        expected = record.oracle(given["x"])
    np.testing.assert_allclose(found, expected, rtol=1e-15, atol=1e-16)


def test_powers_of_float64_are_exact_to_its_last_places() -> None:
    x = np.linspace(0.1, 9.0, N)
    run = program(lambda e: Binary("pow", e, call("sqrt", e)), dtype="float64")
    found = run_compiled(run, {"x": x}, AVX2)["y"]
    np.testing.assert_allclose(found, x ** np.sqrt(x), rtol=1e-15)
