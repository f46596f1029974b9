"""NaN, infinities, zeros of either sign and extreme arguments: the same on every path.

All functions of te × special values × {oracle, interpreter, printed Python, machine code of
scalars, of whole vectors and of odd ones, of masked loads}, against NumPy in float64.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from autotune.loopir.lower import lower
from autotune.loopir.python_text import print_python
from autotune.schedule.steps import Annotate, Split
from autotune.target import runs_here
from autotune.te.dag import ComputeDAG, compute, placeholder
from autotune.te.evaluate import evaluate
from autotune.te.expr import (
    Axis,
    Binary,
    Expr,
    call,
    compare,
    f32,
    floordiv,
    idx,
    mod,
    mul,
    select,
    sub,
)
from tests.codegen.test_codegen_math import AVX2, AVX512
from tests.loopir.interp import interpret
from tests.schedule.running import run_compiled

Array = NDArray[Any]
MAX, TINY = 3.4028235e38, 1.1754944e-38
SPECIAL = np.array(
    [
        *(np.nan, np.inf, -np.inf, 0.0, -0.0, 1.0, -1.0, 0.5, -0.5, 1.5, -1.5, 2.5, -2.5, 2, -2),
        *(3, -3, 11, -11, 87.5, -87.5, 89, -89, 89.4, -89.4, 16777215.0, 16777218.0, -16777217.0),
        *(1e9, -1e12, MAX, -MAX, TINY, -TINY, 0.99999994, -0.99999994, 1.0000001, -1.0000001),
        *(1e-20, -1e-20),
    ],
    np.float32,
)
N = SPECIAL.size


def _erf(x: Array) -> Array:
    from math import erf

    return np.vectorize(erf, otypes=[np.float64])(x)


UNARY: dict[str, Callable[[Array], Array]] = {
    **{f: getattr(np, f) for f in ("exp", "log", "log1p", "sqrt", "floor", "ceil", "abs")},
    **{f: getattr(np, f) for f in ("sin", "cos", "tan", "sinh", "cosh", "tanh")},
    **{f"a{f}": getattr(np, f"arc{f}") for f in ("sin", "cos", "tan", "sinh", "cosh", "tanh")},
    "erf": _erf,
    "rsqrt": lambda x: 1 / np.sqrt(x),
    "sigmoid": lambda x: 1 / (1 + np.exp(-x)),
    "neg": np.negative,
    "round": np.rint,
}
BINARY: dict[str, Callable[[Array, Array], Array]] = {
    **{"add": np.add, "sub": np.subtract, "mul": np.multiply, "div": np.divide},
    **{"min": np.minimum, "max": np.maximum, "pow": np.power, "fmod": np.fmod},
}
ALLOWED = {"min": 0, "max": 0, "fmod": 0, "pow": 0.6} | dict.fromkeys(("add", "sub", "mul"), 0.5)


def one(fn: str) -> ComputeDAG:
    i, x = Axis("i", N), placeholder("x", (N,))
    return ComputeDAG((x, compute("y", (i,), call(fn, x.tensor[i]))), ("y",))


def two(op: str) -> ComputeDAG:
    """op(x[i], x[j]) of all pairs."""
    k, x = Axis("i", N * N), placeholder("x", (N,))
    at, of = floordiv(k.var, idx(N)), mod(k.var, idx(N))
    return ComputeDAG((x, compute("y", (k,), Binary(op, x.tensor[at], x.tensor[of]))), ("y",))


def masked(fn: str) -> ComputeDAG:
    """fn of x with a padding of 1 before it: loads that only some lanes make."""
    i, x = Axis("i", N + 3), placeholder("x", (N,))
    body: Expr = select(compare("ge", i.var, idx(3)), x.tensor[sub(i.var, idx(3))], f32(1.0))
    return ComputeDAG((x, compute("y", (i,), call(fn, body))), ("y",))


def paths(dag: ComputeDAG) -> Iterator[tuple[str, Array]]:
    """The result by every way of computing it. Kernels are run without flushing denormals."""
    feeds = {"x": SPECIAL}
    with np.errstate(all="ignore"):
        yield "oracle", evaluate(dag, feeds)["y"]
        yield "interpreter", interpret(lower(dag, ()), feeds)["y"]
        scope: dict[str, Callable[..., Array]] = {}
        exec(print_python(lower(dag, ())), scope)
        yield "python", scope["run"](SPECIAL)
    for target in filter(runs_here, (AVX2, AVX512)):
        for lanes in (1, 7, target.lanes):
            steps = (Split("y", "i", (lanes,)), Annotate("y", "i.1", "vectorize"))
            program = lower(dag, steps if lanes > 1 else ())
            yield f"{lanes} lanes of {target.lanes}", run_compiled(program, feeds, target)["y"]


def assert_special(dag: ComputeDAG, exact: Array, ulps: float, zeros: bool = True) -> None:
    with np.errstate(all="ignore"):
        expected = exact.astype(np.float32)
    for path, found in paths(dag):
        np.testing.assert_array_equal(np.isnan(found), np.isnan(expected), err_msg=path)
        infinite = np.isinf(expected)
        np.testing.assert_array_equal(found[infinite], expected[infinite], err_msg=path)
        finite = np.isfinite(expected)
        with np.errstate(over="ignore"):
            unit = np.spacing(np.abs(expected[finite])).astype(np.float64)
        unit = np.clip(unit, np.spacing(np.float32(TINY)), 2.0**104)
        off = np.abs(found[finite].astype(np.float64) - exact[finite]) / unit
        off[(np.abs(exact[finite]) < TINY) & (found[finite] == 0)] = 0  # denormal ones may be lost
        assert off.max(initial=0) <= ulps + 1e-3, f"{path}: {SPECIAL[off.argmax() % N]}"
        if zeros:
            zero = expected == 0
            np.testing.assert_array_equal(
                np.signbit(found[zero]), np.signbit(expected[zero]), err_msg=f"zeros, {path}"
            )


@pytest.mark.sampled(8)
@pytest.mark.parametrize("fn", UNARY)
def test_functions_of_one(fn: str) -> None:
    with np.errstate(all="ignore"):
        exact = UNARY[fn](SPECIAL.astype(np.float64))
        inside = np.concatenate([UNARY[fn](np.ones(3)), exact])
    assert_special(one(fn), exact, 5.0 if fn == "erf" else 3.5)
    assert_special(masked(fn), inside, 5.0 if fn == "erf" else 3.5)


@pytest.mark.parametrize("op", BINARY)
def test_functions_of_two(op: str) -> None:
    """Whether a maximum of 0 and -0 is one or the other is left open, as in NumPy."""
    x = SPECIAL.astype(np.float64)
    with np.errstate(all="ignore"):
        exact = BINARY[op](np.repeat(x, N), np.tile(x, N))
    assert_special(two(op), exact, ALLOWED.get(op, 0.5), op not in ("min", "max"))


def test_a_reciprocal_of_zero_keeps_its_sign() -> None:
    i, x = Axis("i", N), placeholder("x", (N,))
    body = Binary("div", f32(1.0), mul(x.tensor[i], f32(1.0)))
    with np.errstate(all="ignore"):
        exact = 1 / SPECIAL.astype(np.float64)
    assert_special(ComputeDAG((x, compute("y", (i,), body)), ("y",)), exact, 0.5)


EXPONENTS = [0, 0.25, 0.5, 0.75, 1, 1.5, 2, 2.5, 3, 7.5, 8, 11, 0.3]
EXPONENTS += [-0.25, -0.5, -1, -1.25, -1.5, -2, -2.5, -3, -8, -11, np.inf, -np.inf, np.nan]


@pytest.mark.parametrize("y", EXPONENTS)
def test_powers_of_known_exponents(y: float) -> None:
    """By products and roots, or in general; with IEEE's rules, which are NumPy's."""
    i, x, exponent = Axis("i", N), placeholder("x", (N,)), f32(np.float32(y))
    dag = ComputeDAG((x, compute("y", (i,), Binary("pow", x.tensor[i], exponent))), ("y",))
    with np.errstate(all="ignore"):
        exact = np.power(SPECIAL.astype(np.float64), np.full(N, np.float32(y), np.float64))
    known = abs(y) <= 8 and 4 * y == int(4 * y)
    assert_special(dag, exact, abs(y) + 2 if known else 0.6)
