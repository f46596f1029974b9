from __future__ import annotations

import math

import numpy as np
import pytest
from numpy.lib.stride_tricks import as_strided

from autotune.loopir.nodes import Buffer
from autotune.measure.oracle import check, needs_positive, random_values, reference, tolerance
from autotune.measure.timing.arena import GUARD_BYTES, Arena
from autotune.strides import dense
from autotune.te.dag import Compute, ComputeDAG, compute, placeholder
from autotune.te.expr import (
    Axis,
    Expr,
    Reduce,
    Tensor,
    add,
    binary,
    call,
    cast,
    div,
    f32,
    idx,
    maximum,
    mul,
)

M, N, K = 32, 48, 1024


def matmul_bias(suffix: str = "", k: int = K) -> ComputeDAG:
    i, j, r = Axis("i" + suffix, M), Axis("j" + suffix, N), Axis("k" + suffix, k)
    a = placeholder("a" + suffix, (M, k))
    b = placeholder("b" + suffix, (k, N), constant=True)
    bias = placeholder("bias" + suffix, (N,), constant=True)
    body = Reduce("sum", mul(a.tensor[i, r], b.tensor[r, j]), (r,))
    c = compute("c" + suffix, (i, j), body)
    d = compute("d" + suffix, (i, j), add(c.tensor[i, j], bias.tensor[j]))
    return ComputeDAG((a, b, bias, c, d), (d.name,))


def pointwise(make: object) -> ComputeDAG:
    i = Axis("i", 100)
    x = placeholder("x", (100,))
    body: Expr = make(x.tensor[i.var])  # type: ignore[operator]
    return ComputeDAG((x, Compute(Tensor("y", (100,)), (i,), body)), ("y",))


def test_values_are_scaled_so_that_outputs_are_of_order_one() -> None:
    ref = reference(matmul_bias(), 0, 1e-4)
    assert ref.values["a"].std() == pytest.approx(1, rel=0.05)
    assert ref.values["b"].std() == pytest.approx(1 / math.sqrt(K), rel=0.05)
    assert ref.values["bias"].std() == pytest.approx(0.1, rel=0.4)
    assert 0.5 < ref.expected["d"].std() < 2
    assert ref.values["a"].dtype == np.float32


def test_the_other_step_of_a_tie_is_no_inaccuracy() -> None:
    i = Axis("i", 4096)
    x = placeholder("x", (4096,))
    body = mul(call("round", mul(x.tensor[i.var], f32(32.0))), f32(1 / 32))
    dag = ComputeDAG((x, Compute(Tensor("y", (4096,)), (i,), body)), ("y",))
    ref = reference(dag, 0, 1e-4)
    found = ref.expected["y"].copy()
    found[7] += 1 / 32
    step = check("y", found, ref)
    assert (step.problem, step.max_error) == ("", 0.0)
    found[:9] += 1 / 32
    assert check("y", found, ref).problem


def test_means_of_two_bytes_are_ties_in_every_second_case() -> None:
    i = Axis("i", 512)
    a, b = (placeholder(n, (512,), "uint8") for n in "ab")
    step = placeholder("step", (1,), constant=True)
    size = step.tensor[idx(0)]
    total = add(*(mul(cast("float32", p.tensor[i.var]), size) for p in (a, b)))
    body = mul(call("round", div(mul(total, f32(0.5)), size)), size)
    dag = ComputeDAG((a, b, step, Compute(Tensor("y", (512,)), (i,), body)), ("y",))
    ref = reference(dag, 0, 1e-4)
    x, y, s = (ref.values[n] for n in ("a", "b", "step"))
    found = np.round((x * s + y * s) * np.float32(0.5) / s) * s
    assert np.count_nonzero(np.abs(found - ref.expected["y"]) > s / 2) > 5
    assert check("y", found, ref).problem == ""
    found[(x.astype(int) + y) % 2 == 0] += s
    assert check("y", found, ref).problem


def test_words_whose_bits_are_read_have_any_bits() -> None:
    i = Axis("i", 100)
    words, shifts = (placeholder(n, (100,), "int32") for n in ("words", "shifts"))
    body = binary("shr", words.tensor[i.var], shifts.tensor[i.var])
    dag = ComputeDAG((words, shifts, Compute(Tensor("y", (100,), "int32"), (i,), body)), ("y",))
    values = random_values(dag, 0)
    assert int(values["words"].max()) > 1 << 29
    assert int(values["words"].min()) < -(1 << 29)
    assert set(values["shifts"]) == {0, 1}


def test_values_depend_on_seed_and_structure_only() -> None:
    one, two = random_values(matmul_bias(), 7), random_values(matmul_bias("_other"), 7)
    for a, b in zip(one.values(), two.values(), strict=True):
        np.testing.assert_array_equal(a, b)
    other = random_values(matmul_bias(), 8)
    assert not np.array_equal(one["a"], other["a"])


@pytest.mark.parametrize(
    ("make", "positive"),
    [
        (lambda x: call("sqrt", x), True),
        (lambda x: call("rsqrt", x), True),
        (lambda x: call("log", x), True),
        (lambda x: binary("pow", x, f32(0.75)), True),
        (lambda x: div(f32(1), x), True),
        (lambda x: div(x, f32(49)), False),
        (lambda x: call("exp", x), False),
        (lambda x: maximum(f32(0), x), False),
    ],
)
def test_domain_is_respected(make: object, positive: bool) -> None:
    dag = pointwise(make)
    assert needs_positive(dag) is positive
    ref = reference(dag, 0, 1e-4)
    assert bool(ref.values["x"].min() >= 0.5) is positive
    assert np.isfinite(ref.expected["y"]).all()


@pytest.mark.parametrize("k", [16, K, 8192])
def test_tolerance_admits_the_worst_order_of_summation_and_no_missing_term(k: int) -> None:
    dag = matmul_bias(k=k)
    ref = reference(dag, 0, 1e-4)
    a, b = ref.values["a"], ref.values["b"]
    total = np.zeros((M, N), np.float32)
    for n in range(k):
        total += np.outer(a[:, n], b[n])
    found = total + ref.values["bias"]
    verdict = check("d", found, ref)
    assert verdict.problem == ""
    assert verdict.max_error < 0.1 * ref.tolerances["d"] / np.abs(ref.expected["d"]).max()
    without_last = found - np.outer(a[:, -1], b[-1])
    assert "wrong" in check("d", without_last, ref).problem


def test_the_reference_is_summed_in_double_precision() -> None:
    ref = reference(matmul_bias(k=8192), 0, 1e-4)
    a, b, bias = (ref.values[n].astype(np.float64) for n in ("a", "b", "bias"))
    exact = np.array([[math.fsum(row * column) for column in b.T] for row in a]) + bias
    largest = np.abs(exact).max()
    assert np.abs(ref.expected["d"] - exact).max() <= 2**-24 * largest
    once = np.cumsum(a[0].astype(np.float32) * b[:, 0].astype(np.float32), dtype=np.float32)[-1]
    assert abs(once + bias[0] - exact[0, 0]) > 2**-24 * largest


def test_known_oracle_is_not_evaluated_again() -> None:
    known = {"d": np.ones((M, N), np.float32)}
    assert reference(matmul_bias(), 0, 1e-4, known).expected is known


def test_integers_must_agree_exactly() -> None:
    assert tolerance(matmul_bias(), np.arange(5), 1e-4) == 0


def test_infinities_must_be_the_same() -> None:
    dag = pointwise(lambda x: maximum(f32(0), x))
    expected = np.zeros(100, np.float32)
    expected[3] = -math.inf
    ref = reference(dag, 0, 1e-4, {"y": expected})
    assert check("y", expected.copy(), ref).problem == ""
    assert "at (3,)" in check("y", np.zeros(100, np.float32), ref).problem


def buffers() -> list[Buffer]:
    def make(name: str, role: str, *shape: int) -> Buffer:
        return Buffer(Tensor(name, shape), role, dense(shape))

    return [make("x", "input", 3, 5), make("w", "constant", 7), make("y", "output", 3, 5)]


def test_arena_is_aligned_poisoned_and_apart() -> None:
    arena = Arena(buffers())
    addresses = [arena.address(b.name) for b in buffers()]
    assert all(a % 64 == 0 for a in addresses)
    assert np.diff(addresses).min() >= GUARD_BYTES
    assert np.isnan(arena.view("y")).all()
    assert np.isnan(arena.view("x")).all()
    assert (arena.view("w") == 0).all()
    assert arena.damage() == ""


@pytest.mark.parametrize("name", ["x", "w", "y"])
@pytest.mark.parametrize("ahead", [True, False])
def test_arena_finds_writes_next_to_every_buffer(name: str, ahead: bool) -> None:
    arena = Arena(buffers())
    for buffer in buffers():
        arena.view(buffer.name)[...] = 1
    assert arena.damage() == ""
    whole = arena._memory
    at = arena.address(name) - whole.ctypes.data
    size = next(b.n_bytes for b in buffers() if b.name == name)
    whole[at - 1 if ahead else at + size] ^= 1
    assert "out-of-bounds write: 1 bytes" in arena.damage()


def test_arena_lays_out_strides_with_poison_between_rows() -> None:
    arena = Arena([Buffer(Tensor("x", (2, 3)), "input", (8, 1))])
    arena.view("x")[...] = np.arange(6).reshape(2, 3)
    assert arena.view("x").strides == (32, 4)
    assert np.isnan(as_strided(arena.view("x"), (8,), (4,))[3:]).all()
    assert arena.damage() == ""
