"""Operations on integers are those of the standard for all operands, also those that the processor
traps at or leaves undefined: oracle, interpreter, printed Python and machine code agree."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from autotune import te
from autotune.errors import DefinitionError
from autotune.loopir.lower import lower
from autotune.loopir.python_text import print_python
from autotune.schedule.steps import Annotate, Reorder, Split, Steps
from autotune.target import host_target, parse_target, runs_here
from autotune.te.evaluate import evaluate
from tests.loopir.interp import interpret
from tests.schedule.running import run_compiled

pytestmark = pytest.mark.target

Array = NDArray[Any]
TYPES = ("int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "uint64")
FORMS = {
    "quotient": te.quotient,
    "remainder": te.remainder,
    "power": te.integer_power,
    "left": lambda a, b: a << b,
    "right": lambda a, b: a >> b,
    "conjunction": lambda a, b: a & b,
    "disjunction": lambda a, b: a | b,
    "difference": lambda a, b: a ^ b,
    "bytes": te.byte_dot,
    "zeros": lambda a, b: te.trailing_zeros(a),
}


def exact(form: str, a: int, b: int, dtype: str) -> int:
    """What the standard says, by Python's integers of any size."""
    bits = 8 * np.dtype(dtype).itemsize
    if form in ("quotient", "remainder"):
        size = abs(a) // abs(b) if b else 0
        quotient = -size if (a < 0) != (b < 0) else size
        return quotient if form == "quotient" else (a - b * quotient if b else 0)
    if form == "bytes":
        signed = (((b >> p) + 128) % 256 - 128 for p in range(0, bits, 8))
        return sum((a >> 8 * n) % 256 * y for n, y in enumerate(signed))
    if form == "zeros":
        return (a & -a).bit_length() - 1 if a else bits
    if form == "power":
        return pow(a, b, 1 << bits) if b >= 0 else a ** (b % 2) if abs(a) == 1 else 0
    if form == "left":
        return a << b if 0 <= b < bits else 0
    if form == "right":
        return a >> (b if 0 <= b < bits else bits)
    return {"conjunction": a & b, "disjunction": a | b, "difference": a ^ b}[form]


def operands(dtype: str) -> tuple[Array, Array]:
    info, rng = np.iinfo(dtype), np.random.default_rng(5)
    edges = {0, 1, 2, 3, 7, 8, 31, 62, 63, 64, 65, info.min, info.max, info.max - 1}
    edges |= {-1, -2, -3, -7, info.min + 1} if info.min else set()
    values = np.array([v for v in sorted(edges) if info.min <= v <= info.max], dtype)
    a, b = (x.reshape(-1) for x in np.meshgrid(values, values))
    n_more = -len(a) % 16
    more = rng.integers(info.min, info.max, (2, n_more), dtype, endpoint=True)
    return np.concatenate([a, more[0]]), np.concatenate([b, more[1]])


def in_vectors(names: list[str]) -> Steps:
    steps = []
    for name in names:
        steps += [Split(name, "i", (8,)), Annotate(name, "i.1", "vectorize")]
    return tuple(steps)


@pytest.mark.sampled(4)
@pytest.mark.parametrize("dtype", TYPES)
def test_integers_are_exact(dtype: str) -> None:
    x, y = operands(dtype)
    a, b = te.placeholder(x.shape, "a", dtype), te.placeholder(x.shape, "b", dtype)

    def made(f: Any, name: str) -> te.Tensor:
        return te.compute(x.shape, lambda i: f(a[i], b[i]), name)

    outputs = [made(f, name) for name, f in FORMS.items()]
    dag, given = te.dag_of(outputs), {"a": x, "b": y}
    scope: dict[str, Any] = {}
    exec(print_python(lower(dag, ())), scope)
    found = [
        evaluate(dag, given),
        interpret(lower(dag, ()), given),
        dict(zip(dag.outputs, scope["run"](x, y), strict=True)),
        run_compiled(lower(dag, in_vectors(list(FORMS))), given, host_target()),
        run_compiled(lower(dag, ()), given, parse_target("haswell")),
    ]
    info = np.iinfo(dtype)
    for name in FORMS:
        whole = (exact(name, int(p), int(q), dtype) for p, q in zip(x, y, strict=True))
        n = 1 << info.bits
        expected = np.array([(v - int(info.min)) % n + int(info.min) for v in whole], dtype)
        for result in found:
            np.testing.assert_array_equal(result[name], expected, err_msg=name)


@pytest.mark.sampled(4)
@pytest.mark.parametrize("dtype", TYPES)
def test_bits_of_many_integers(dtype: str) -> None:
    info, rng = np.iinfo(dtype), np.random.default_rng(3)
    x = rng.integers(info.min, info.max, (24, 7), dtype, endpoint=True)
    x[0], x[1] = info.max | info.min, 0
    a, r = te.placeholder(x.shape, "a", dtype), te.reduce_axis(7, "r")
    outputs = [
        te.compute((24,), lambda i: te.bit_and(a[i, r], r), "all"),
        te.compute((24,), lambda i: te.bit_or(a[i, r], r), "any"),
    ]
    dag, given = te.dag_of(outputs), {"a": x}
    expected = {"all": np.bitwise_and.reduce(x, 1), "any": np.bitwise_or.reduce(x, 1)}
    inner = (Reorder(name, ("i.0", "r", "i.1")) for name in expected)
    steps = (*in_vectors(["all", "any"]), *inner)
    found = [
        evaluate(dag, given),
        interpret(lower(dag, ()), given),
        run_compiled(lower(dag, steps), given, host_target()),
        run_compiled(lower(dag, ()), given, parse_target("haswell")),
    ]
    for result in found:
        for name, want in expected.items():
            np.testing.assert_array_equal(result[name], want, err_msg=name)


def test_bits_of_floats_are_refused_with_the_place() -> None:
    a, r = te.placeholder((4, 4), "a"), te.reduce_axis(4, "r")
    with pytest.raises(DefinitionError, match="bits of float32"):
        te.compute((4,), lambda i: te.bit_and(a[i, r], r), "all")
    with pytest.raises(DefinitionError, match="trailing_zeros is for integers"):
        te.compute((4,), lambda i: te.trailing_zeros(a[i, 0]), "z")


def test_integers_by_constants_are_exact() -> None:
    x, _ = operands("int32")
    a = te.placeholder(x.shape, "a", "int32")
    divisors = (-1, 0, 3, -5)

    def made(n: int, divisor: int) -> te.Tensor:
        return te.compute(x.shape, lambda i: te.quotient(a[i], divisor), f"q{n}")

    outputs = [made(n, divisor) for n, divisor in enumerate(divisors)]
    found = run_compiled(lower(te.dag_of(outputs), ()), {"a": x}, host_target())
    for n, c in enumerate(divisors):
        whole = [exact("quotient", int(p), c, "int32") for p in x]
        expected = np.array(whole, np.int64).astype(np.int32)
        np.testing.assert_array_equal(found[f"q{n}"], expected)


@pytest.mark.parametrize("target", ["haswell", "x86-64-v4", ""])
@pytest.mark.parametrize("n_lanes", [1, 2, 4, 8, 16, 32])
@pytest.mark.parametrize("mask", [-1, 0x7F7F7F7F])
def test_products_of_bytes_are_added(target: str, n_lanes: int, mask: int) -> None:
    rng = np.random.default_rng(7)
    x, y = (rng.integers(-(2**31), 2**31, 64).astype(np.int32) for _ in range(2))
    x[:8], y[:8] = -1, (-1, 0, (1 << 31) - 1, -(2**31), 0x7F7F7F7F, 0x01010101, 127, -128)
    a, b = te.placeholder((64,), "a", "int32"), te.placeholder((64,), "b", "int32")
    total = te.compute((64,), lambda i: (b[i] >> 8) + te.byte_dot(a[i] & mask, b[i]), "total")
    steps = (Split("total", "i", (n_lanes,)), Annotate("total", "i.1", "vectorize"))
    machine = parse_target(target) if target else host_target()
    if not runs_here(machine):
        pytest.skip("a CPU of another kind")
    found = run_compiled(lower(te.dag_of([total]), steps), {"a": x, "b": y}, machine)["total"]
    bytes_of = (x & np.int32(mask)).view(np.uint8).reshape(-1, 4).astype(np.int64)
    expected = (y >> 8) + (bytes_of * y.view(np.int8).reshape(-1, 4)).sum(1)
    np.testing.assert_array_equal(found, expected.astype(np.int32))
