"""Every element type: conversions, arithmetic and sums of compiled kernels and of the interpreter
are those of NumPy and ml_dtypes."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import fields, replace
from typing import Any

import ml_dtypes
import numpy as np
import pytest
from numpy.typing import NDArray

from autotune import te
from autotune.codegen.compile import assembly
from autotune.dtypes import DTYPES
from autotune.loopir.lower import lower
from autotune.schedule.steps import Annotate, Split, Steps
from autotune.target import Target, host_target, parse_target
from autotune.target.isa import Isa
from autotune.te.evaluate import evaluate
from tests.loopir.interp import interpret
from tests.schedule.running import run_compiled

pytestmark = pytest.mark.target

Array = NDArray[Any]
N = 64


class WithoutConversions(Target):
    """A CPU that has no instructions for float16."""

    @property
    def isa(self) -> Isa:
        return replace(parse_target(self.cpu).isa, converts_float16=False)


HASWELL, ZEN4, HOST = parse_target("haswell"), parse_target("znver4"), host_target()
BY_BITS = WithoutConversions(**{f.name: getattr(HASWELL, f.name) for f in fields(Target)})
TARGETS = [
    pytest.param(HASWELL, id="avx2"),
    pytest.param(HOST, id="host"),
    pytest.param(BY_BITS, id="bits"),
]
LANES = [pytest.param(8, id="vectors"), pytest.param(1, id="scalars")]
FLOATS = [d.name for d in DTYPES.values() if d.is_float]
INTEGERS = [d.name for d in DTYPES.values() if d.is_integer]
HALVES = [d.name for d in DTYPES.values() if d.is_narrow]
TINY = 2.0**-126


def in_vectors(outputs: Sequence[te.Tensor], lanes: int) -> Steps:
    steps = []
    for y in outputs if lanes > 1 else ():
        steps += [Split(y.name, "i", (lanes,)), Annotate(y.name, "i.1", "vectorize")]
    return tuple(steps)


def run(outputs: list[te.Tensor], inputs: dict[str, Array], target: Target, lanes: int) -> Any:
    program = lower(te.dag_of(outputs), in_vectors(outputs, lanes))
    return run_compiled(program, inputs, target)


def assert_everywhere(
    outputs: list[te.Tensor],
    inputs: dict[str, Array],
    expected: dict[str, Array],
    lanes: tuple[int, ...] = (8, 1),
) -> None:
    """Oracle, interpreter and machine code give `expected`, in vectors or not."""
    dag = te.dag_of(outputs)
    found = [evaluate(dag, inputs), interpret(lower(dag, in_vectors(outputs, lanes[0])), inputs)]
    found += [run(outputs, inputs, target, n) for target in (HASWELL, HOST) for n in lanes]
    for result in found:
        for name, want in expected.items():
            assert result[name].dtype == want.dtype
            np.testing.assert_array_equal(result[name], want, err_msg=name)


def values_of(dtype: str) -> Array:
    """Elements of a type: its bounds where it is one of integers, small numbers too."""
    record, rng = DTYPES[dtype], np.random.default_rng(3)
    if record.is_float:
        return np.resize([0.0, 1.5, 2.5, 99.99, 100.0, 3.1415926], N).astype(record.numpy)
    if dtype == "bool":
        return np.arange(N) % 3 == 0
    info = np.iinfo(dtype)
    values = rng.integers(info.min, info.max, N, record.numpy, endpoint=True)
    values[:4] = [info.min, info.max, info.max - 1, 7]
    return values


def cast_to(x: te.Tensor, goal: str) -> Callable[..., Any]:
    return lambda i: x[i].astype(goal)


def applied(f: Callable[..., Any], a: te.Tensor, b: te.Tensor) -> Callable[..., Any]:
    return lambda i: f(a[i], b[i])


@pytest.mark.sampled(5)
@pytest.mark.parametrize("source", DTYPES)
def test_casts_to_every_type(source: str) -> None:
    x, values = te.placeholder((N,), "x", source), values_of(source)
    goals = {f"to_{goal}": goal for goal in DTYPES if goal != source}
    outputs = [te.compute((N,), cast_to(x, goal), name) for name, goal in goals.items()]
    with np.errstate(all="ignore"):
        expected = {n: values.astype(DTYPES[g].numpy) for n, g in goals.items()}
    assert_everywhere(outputs, {"x": values}, expected)


@pytest.mark.parametrize("dtype", INTEGERS)
def test_integers_wrap(dtype: str) -> None:
    a, b = te.placeholder((N,), "a", dtype), te.placeholder((N,), "b", dtype)
    x, y = values_of(dtype), values_of(dtype)[::-1].copy()
    forms: dict[str, Callable[..., Any]] = {
        "added": lambda a, b: a + b,
        "subtracted": lambda a, b: a - b,
        "multiplied": lambda a, b: a * b,
        "divided": lambda a, b: (a + b) // 7,
        "rest": lambda a, b: (a * b) % 7,
    }
    if dtype == "int64":  # as indices do not overflow, the interpreter wraps what it stores alone
        del forms["divided"], forms["rest"]
    outputs = [te.compute((N,), applied(f, a, b), name) for name, f in forms.items()]
    outputs += [
        te.compute((N,), lambda i: te.maximum(a[i], b[i]), "larger"),
        te.compute((N,), lambda i: te.where(a[i] < b[i], a[i], b[i]), "smaller"),
    ]
    expected = {n: f(x, y) for n, f in forms.items()}
    expected |= {"larger": np.maximum(x, y), "smaller": np.minimum(x, y)}
    assert_everywhere(outputs, {"a": x, "b": y}, expected)


@pytest.mark.parametrize("lanes", LANES)
@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize("dtype", HALVES)
def test_all_halves_are_widened_exactly(dtype: str, target: Target, lanes: int) -> None:
    values = np.arange(1 << 16, dtype=np.uint16).view(DTYPES[dtype].numpy)
    x = te.placeholder(values.shape, "x", dtype)
    y = te.compute(values.shape, lambda i: x[i].astype("float32"), "y")
    found = run([y], {"x": values}, target, lanes)["y"]
    np.testing.assert_array_equal(found, values.astype(np.float32))


@pytest.mark.parametrize("lanes", LANES)
@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize("dtype", HALVES)
def test_halves_are_rounded_to_the_nearest_even(dtype: str, target: Target, lanes: int) -> None:
    numpy = DTYPES[dtype].numpy
    every = np.arange(1 << 16, dtype=np.uint16).view(numpy).astype(np.float32)
    bits = every.view(np.uint32)
    half = 1 << 15 if dtype == "bfloat16" else 1 << 12
    near = np.concatenate([bits + d for d in (0, half - 1, half, half + 1)]).view(np.float32)
    x = te.placeholder(near.shape, "x")
    y = te.compute(near.shape, lambda i: x[i].astype(dtype), "y")
    found = run([y], {"x": near}, target, lanes)["y"]
    with np.errstate(all="ignore"):
        expected = near.astype(numpy)
    exact = (found == expected) | (np.isnan(found) & np.isnan(expected))
    if dtype == "bfloat16" and target.isa.narrows_to_bfloat16:  # denormals count as zero
        exact |= (np.abs(near) < TINY) & (found == 0)
    assert exact.all()


@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize(("dtype", "last"), [("bfloat16", 7), ("float16", 10)])
def test_doubles_are_rounded_once(dtype: str, last: int, target: Target) -> None:
    tie = 1 + 2.0 ** -(last + 1)  # rounded to float32 first, what is a little more becomes this tie
    values = np.resize([tie, tie + 2.0**-45, tie - 2.0**-45, -tie - 2.0**-45, 1e300, np.nan], N)
    x = te.placeholder((N,), "x", "float64")
    y = te.compute((N,), lambda i: x[i].astype(dtype), "y")
    found = run([y], {"x": values}, target, 4)["y"].astype(np.float64)
    want = np.resize([1, 1 + 2.0**-last, 1, -1 - 2.0**-last, np.inf, np.nan], N)
    np.testing.assert_array_equal(found, want)


@pytest.mark.parametrize("dtype", HALVES)
def test_halves_are_computed_in_float32(dtype: str) -> None:
    numpy, rng = DTYPES[dtype].numpy, np.random.default_rng(0)
    given = {n: rng.standard_normal(N).astype(numpy) for n in "ab"}
    a, b = (te.placeholder((N,), n, dtype) for n in "ab")
    y = te.compute((N,), lambda i: te.maximum(a[i] * b[i] + a[i], 0.1), "y")
    wide = {n: v.astype(np.float64) for n, v in given.items()}
    low = float(np.asarray(0.1).astype(numpy))
    exact = np.maximum(wide["a"] * wide["b"] + wide["a"], low).astype(numpy)
    assert_everywhere([y], given, {"y": exact})


@pytest.mark.parametrize(
    ("left", "right"), [("uint8", "int8"), ("int8", "int8"), ("int16", "uint8")]
)
def test_sums_of_bytes_are_int32(left: str, right: str) -> None:
    rng, k = np.random.default_rng(1), te.reduce_axis(40, "k")
    x = rng.integers(np.iinfo(left).min, np.iinfo(left).max, (N, 40), left, endpoint=True)
    w = rng.integers(np.iinfo(right).min, np.iinfo(right).max, 40, right, endpoint=True)
    a, b = te.placeholder((N, 40), "a", left), te.placeholder((40,), "b", right)
    products = te.compute(
        (N,), lambda i: te.sum(a[i, k].astype("int32") * b[k].astype("int32"), k), "products"
    )
    j = te.reduce_axis(40, "j")
    elements = te.compute((N,), lambda i: te.sum(a[i, j], j), "elements")
    wide = x.astype(np.int32)
    expected = {"products": wide @ w.astype(np.int32), "elements": wide.sum(1, dtype=np.int32)}
    assert_everywhere([products, elements], {"a": x, "b": w}, expected, lanes=(1,))


@pytest.mark.parametrize("dtype", HALVES)
def test_sums_of_halves_are_float32(dtype: str) -> None:
    rng, k = np.random.default_rng(2), te.reduce_axis(512, "k")
    x = rng.standard_normal((N, 512)).astype(DTYPES[dtype].numpy)
    a = te.placeholder((N, 512), "a", dtype)
    y = te.compute((N,), lambda i: te.sum(a[i, k] * a[i, k], k), "y")
    exact = (x.astype(np.float64) ** 2).sum(1)
    for found in (evaluate(te.dag_of(y), {"a": x}), run([y], {"a": x}, HOST, 1)):
        assert found["y"].dtype == np.float32
        np.testing.assert_allclose(found["y"], exact, rtol=1e-5)


@pytest.mark.parametrize("dtype", INTEGERS)
@pytest.mark.parametrize("source", ["float32", "bfloat16", "int64"])
def test_saturated_values_end_at_the_bounds(source: str, dtype: str) -> None:
    record, own = DTYPES[dtype], DTYPES[source]
    large = 1e30 if own.is_float else own.high
    values = np.resize(np.array([2.5, 3.5, -1.5, 0.0, 200.0]).astype(own.numpy), N)
    values[:2] = [large, -large]
    x = te.placeholder((N,), "x", source)
    rounded: Callable[..., Any] = te.round if own.is_float else lambda e: e
    y = te.compute((N,), lambda i: te.saturate(rounded(x[i]), dtype), "y")
    wide = np.round(values.astype(np.float64))
    for result in (evaluate(te.dag_of(y), {"x": values}), run([y], {"x": values}, HOST, 8)):
        found = result["y"].astype(np.float64)
        inside = (wide > record.low) & (wide < record.high)
        np.testing.assert_array_equal(found[inside], wide[inside])
        np.testing.assert_allclose(
            found[~inside], wide.clip(record.low, record.high)[~inside], 0.01
        )


def test_bfloat16_is_converted_in_vectors() -> None:
    a = te.placeholder((N,), "a", "bfloat16")
    y = te.compute((N,), lambda i: a[i] * a[i], "y")
    program = lower(te.dag_of(y), in_vectors([y], 16))
    zen, haswell = assembly(program, ZEN4), assembly(program, HASWELL)
    assert all(name in zen for name in ("vpmovzxwd", "vpslld", "vcvtneps2bf16"))
    assert all(name in haswell for name in ("vpmovzxwd", "vpslld"))
    assert "call" not in haswell


@pytest.mark.parametrize("target", [ZEN4, HASWELL])
def test_a_value_that_is_rounded_is_stored_as_it_is(target: Target) -> None:
    a = te.placeholder((N,), "a")
    y = te.compute((N,), lambda i: (a[i] * a[i]).astype("bfloat16"), "y")
    text = assembly(lower(te.dag_of(y), in_vectors([y], 16)), target)
    assert "vpslld" not in text  # nothing widens it in between
    assert target is HASWELL or text.count("vcvtneps2bf16") == 1


def test_a_narrow_type_has_no_more_range_than_it_says() -> None:
    assert DTYPES["float16"].high == 65504
    assert DTYPES["bfloat16"].eps == 2.0**-7
    assert DTYPES["bfloat16"].numpy == np.dtype(ml_dtypes.bfloat16)
    assert all(d.n_bytes == d.numpy.itemsize for d in DTYPES.values())
