"""Bounds count what a task must do, never more: tasks stop near them."""

from __future__ import annotations

from dataclasses import replace
from statistics import geometric_mean

import pytest

from autotune.measure.timing.peak import Peaks
from autotune.schedule.replay import replay
from autotune.schedule.steps import Winograd
from autotune.search.policy import algorithm
from autotune.search.sketch import generate_sketches
from autotune.search.space import Sketch
from autotune.target import Target
from autotune.te.at_numbers import usual_numbers
from autotune.te.dag import ComputeDAG, compute, placeholder
from autotune.te.expr import Axis, Expr, Load, add, floordiv, idx, mod, mul
from autotune.tuner.bound import bound_s, bytes_read
from autotune.tuner.task import TuningTask
from tests.lengths_tasks import product
from tests.schedule.small_dags import conv, depthwise, gemm
from tests.targets import BF16

PEAKS = Peaks(flops_per_s=1e9, warm_bytes_per_s=1e8, cold_bytes_per_s=1e7, l1_bytes=0)
PLAIN = (Sketch("direct", (), ()),)
WINOGRAD = (*PLAIN, Sketch("winograd", (Winograd("conv", ("kh", "kw"), 4),), ()))


def test_the_tightest_of_three_limits_counts() -> None:
    dag = gemm(64, 32, 16)
    constants = 4 * (16 * 32 + 32)
    moved = constants + 4 * (64 * 16 + 64 * 32)
    assert bound_s(dag, PEAKS, PLAIN) == pytest.approx(constants / 1e7)
    fast_memory = replace(PEAKS, cold_bytes_per_s=1e12)
    assert bound_s(dag, fast_memory, PLAIN) == pytest.approx(moved / 1e8)
    assert bound_s(dag, replace(fast_memory, l1_bytes=moved), PLAIN) == pytest.approx(
        dag.flops / 1e9
    )


@pytest.mark.parametrize("peaks", [PEAKS, replace(PEAKS, cold_bytes_per_s=1e12)])
def test_the_bound_of_a_task_with_lengths_is_a_mean_as_its_times_are(peaks: Peaks) -> None:
    """Of what is computed and moved at each number, not of the memory of the longest."""
    dag = product(512, 64, 32)
    static = [product(n["n"], 64, 32, follows=False) for n in usual_numbers(dag)]
    each = [bound_s(one, peaks, PLAIN) for one in static]
    assert bound_s(dag, peaks, PLAIN) == pytest.approx(geometric_mean(each), rel=1e-2)
    assert TuningTask("key", dag, 1.0).flops == static[1].flops


UNLIMITED = replace(PEAKS, cold_bytes_per_s=1e15, warm_bytes_per_s=1e15)


def winograd(tile: int, *taps: str) -> tuple[Sketch, ...]:
    return (*PLAIN, Sketch("winograd", (Winograd("conv", taps, tile),), ()))


@pytest.mark.parametrize(
    ("size", "sketches", "saving"),
    [
        (16, winograd(4, "kh", "kw"), 144 / 36),
        (16, winograd(2, "kh", "kw"), 36 / 16),
        (16, winograd(4, "kh"), 12 / 6),
        (7, winograd(4, "kh", "kw"), (7 * 3 / 12) ** 2),  # the last tile is computed whole
        (16, (*winograd(2, "kh"), *winograd(4, "kh", "kw")), 144 / 36),
    ],
)
def test_minimal_filtering_lowers_the_bound_by_the_products_that_it_saves(
    size: int, sketches: tuple[Sketch, ...], saving: float
) -> None:
    """One of channels alone: their sums have no part that is not of the convolution."""
    dag = conv(size, size, 32, 32)
    direct = bound_s(dag, UNLIMITED, PLAIN)
    of_sums = 2 * 32 * 32 * 9 * size * size / UNLIMITED.flops_per_s
    expected = direct - of_sums + of_sums / saving
    assert bound_s(dag, UNLIMITED, sketches) == pytest.approx(expected)


@pytest.mark.parametrize("stride", [1, 2, 3])
def test_the_bound_counts_what_the_fastest_algorithm_of_the_space_computes(
    stride: int, any_target: Target
) -> None:
    """With one multiply-add a term; windows that do not overlap save nothing."""
    dag = conv(28, 28, 64, 64, stride=stride)
    sketches = generate_sketches(dag, any_target)
    states = {algorithm(s): replay(dag, algorithm(s)) for s in sketches}
    computed = [s.dag.flops for s in states.values()]
    found = bound_s(dag, UNLIMITED, sketches) * UNLIMITED.flops_per_s
    assert 0.5 * min(computed) < found <= min(computed)
    assert (found < dag.flops) == (stride < 3)


def test_narrow_minimal_filtering_has_the_peak_of_narrow_products() -> None:
    dag = conv(16, 16, 32, 32, dtype="bfloat16")
    form = next(f for f in BF16.isa.forms if f.operands == ("bfloat16", "bfloat16"))
    peaks = replace(UNLIMITED, dots=((form, 2 * UNLIMITED.flops_per_s),))
    of_sums = 2 * 32 * 32 * 9 * 16 * 16 / dict(peaks.dots)[form]
    gained = bound_s(dag, peaks, PLAIN) - bound_s(dag, peaks, winograd(2, "kh", "kw"))
    assert gained == pytest.approx(of_sums * (1 - 16 / 36))


def read(dag: ComputeDAG, name: str) -> int:
    return bytes_read(dag, next(p for p in dag.placeholders if p.name == name))


def test_what_is_read_is_counted_once() -> None:
    dag = conv(6, 7, 3, 10)
    assert read(dag, "x") == 4 * 6 * 7 * 3
    assert read(dag, "weight") == 4 * 3 * 3 * 3 * 10
    assert read(depthwise(6, 11), "x") == 4 * 5 * 5 * 11  # stride 2: the last row is not read


def test_rows_of_a_sum_that_is_written_out_are_read_apart() -> None:
    """As the words of a block of weights."""
    i, table = Axis("i", 10), placeholder("t", (4, 10), constant=True)
    rows = [table.tensor[(idx(n), i.var)] for n in (0, 2, 2)]
    body = add(add(rows[0], rows[1]), rows[2])
    assert read(ComputeDAG((table, compute("y", (i,), body)), ("y",)), "t") == 4 * 2 * 10


def one_read(shape: tuple[int, ...], extent: int, at: object) -> ComputeDAG:
    i = Axis("i", extent)
    x, table = placeholder("x", (extent,), "int32"), placeholder("t", shape, constant=True)
    index: tuple[Expr, ...] = at(i.var, Load(x.tensor, (i.var,)))  # type: ignore[operator]
    return ComputeDAG((x, table, compute("y", (i,), table.tensor[index])), ("y",))


@pytest.mark.parametrize(
    ("shape", "at", "elements"),
    [
        ((100,), lambda i, x: (i,), 10),
        ((100,), lambda i, x: (mul(i, idx(3)),), 10),
        ((5,), lambda i, x: (add(i, idx(-2)),), 5),
        ((100, 100), lambda i, x: (i, i), 10),
        ((2, 5), lambda i, x: (floordiv(i, idx(5)), mod(i, idx(5))), 10),
        ((30000, 7), lambda i, x: (x, idx(3)), 1),
    ],
)
def test_no_more_elements_than_are_read_for_certain(
    shape: tuple[int, ...], at: object, elements: int
) -> None:
    assert read(one_read(shape, 10, at), "t") == 4 * elements
