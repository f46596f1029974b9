"""Minimal filtering: the matrices, the rewrite, and the schedules that search makes of it."""

from __future__ import annotations

import numpy as np
import pytest

from autotune.dtypes import DTYPES
from autotune.errors import ScheduleError
from autotune.loopir.lower import lower
from autotune.loopir.verify import verify
from autotune.schedule.filtering import Matrix, filtering
from autotune.schedule.replay import replay
from autotune.schedule.steps import Winograd, steps_from_json, steps_to_json
from autotune.schedule.winograd import convolution, rewrite
from autotune.search.cost.analysis import analyse
from autotune.search.sketch import generate_sketches
from autotune.target import Target, parse_target, runs_here
from autotune.te.dag import Compute, ComputeDAG, compute, placeholder
from autotune.te.evaluate import derive, evaluate
from autotune.te.expr import Axis, Const, Reduce, add, cast, idx, maximum, mul
from tests.loopir.interp import interpret
from tests.schedule.running import assert_close, assert_computes, random_inputs, run_compiled
from tests.schedule.small_dags import conv
from tests.targets import AVX2, BF16

TARGETS = [t for t in (parse_target("x86-64-v3"), parse_target("x86-64-v4")) if runs_here(t)]
STEP = 2.0**-7
"""Spacing of bfloat16 from 1 on."""


def valid_conv(
    h: int,
    w: int,
    ic: int,
    oc: int,
    kh: int,
    kw: int,
    dtype: str = "float32",
    strides: tuple[int, int] = (1, 1),
    dilations: tuple[int, int] = (1, 1),
) -> ComputeDAG:
    """relu(conv(x)) without padding, with a window of kh × kw."""
    x = placeholder("x", (h, w, ic), dtype)
    weight = placeholder("weight", (kh, kw, ic, oc), dtype, constant=True)
    size = [(k - 1) * d + 1 for k, d in zip((kh, kw), dilations, strict=True)]
    y, z = Axis("y", (h - size[0]) // strides[0] + 1), Axis("z", (w - size[1]) // strides[1] + 1)
    a, b, c, o = Axis("a", kh), Axis("b", kw), Axis("c", ic), Axis("o", oc)
    row, column = (
        add(mul(i.var, idx(s)), mul(k.var, idx(d)))
        for i, s, k, d in zip((y, z), strides, (a, b), dilations, strict=True)
    )
    wide = "float32" if DTYPES[dtype].is_narrow else dtype
    factors = (x.tensor[row, column, c], weight.tensor[a, b, c, o])
    product = mul(*(cast(wide, f) for f in factors))
    total = compute("total", (y, z, o), Reduce("sum", product, (a, b, c)))
    relu = compute("relu", (y, z, o), maximum(Const(0.0, wide), total.tensor[y, z, o]))
    return ComputeDAG((x, weight, total, relu), ("relu",))


def floats(matrix: Matrix) -> np.ndarray:
    return np.array([[float(c) for c in row] for row in matrix])


UNIT = [(2, 2), (2, 3), (3, 3), (4, 3), (6, 3), (2, 5), (4, 5)]
STRIDED = [(m, r, s) for s in (2, 3) for m, r in ((2, 4), (3, 4), (2, 5), (4, 5), (2, 7))]


@pytest.mark.parametrize(("m", "r", "stride"), [*((m, r, 1) for m, r in UNIT), *STRIDED])
def test_filtering_is_a_correlation(m: int, r: int, stride: int) -> None:
    f = filtering(m, r, stride)
    rng = np.random.default_rng(m * 10 + r)
    x, w = rng.standard_normal(stride * (m - 1) + r), rng.standard_normal(r)
    found = floats(f.inverse) @ ((floats(f.weight) @ w) * (floats(f.data) @ x))
    np.testing.assert_allclose(found, np.correlate(x, w)[::stride], rtol=1e-10, atol=1e-10)


@pytest.mark.parametrize(
    ("m", "r", "stride", "n_products"),
    [(2, 2, 1, 3), (2, 3, 1, 4), (4, 3, 1, 6), (6, 3, 1, 8), (2, 3, 2, 5), (4, 3, 2, 9)],
)
def test_products_are_as_few_as_they_can_be(m: int, r: int, stride: int, n_products: int) -> None:
    assert len(filtering(m, r, stride).data) == n_products


def test_the_matrices_are_those_of_the_literature() -> None:
    f = filtering(4, 3)
    assert floats(f.data)[0].tolist() == [4, 0, -5, 0, 1, 0]
    assert floats(f.inverse)[3].tolist() == [0, 1, -1, 8, -8, 1]
    assert all(c.denominator == 1 for row in f.data for c in row)


def test_there_are_only_so_many_points() -> None:
    with pytest.raises(ScheduleError, match=r"F\(12, 3\)"):
        filtering(12, 3)


@pytest.mark.parametrize("m", [2, 3, 4])
@pytest.mark.parametrize(
    ("dag", "taps"),
    [
        (valid_conv(10, 11, 3, 5, 3, 3), ("a", "b")),
        (valid_conv(9, 9, 2, 3, 3, 3), ("b",)),
        (valid_conv(5, 12, 3, 4, 1, 3), ("b",)),
        (valid_conv(12, 7, 3, 4, 3, 1), ("a",)),
        (valid_conv(11, 12, 3, 5, 3, 3, strides=(2, 2)), ("a", "b")),
        (valid_conv(11, 10, 2, 3, 5, 3, strides=(2, 1)), ("a", "b")),
        (valid_conv(5, 15, 3, 4, 1, 4, strides=(1, 3)), ("b",)),
        (valid_conv(13, 14, 3, 5, 3, 3, dilations=(2, 2)), ("a", "b")),
        (valid_conv(13, 11, 2, 3, 3, 3, dilations=(3, 1)), ("a", "b")),
        (valid_conv(5, 18, 2, 3, 1, 3, dilations=(1, 5)), ("b",)),
        (valid_conv(11, 13, 2, 3, 3, 3, strides=(2, 1), dilations=(1, 3)), ("a", "b")),
    ],
)
def test_rewriting_keeps_the_meaning(dag: ComputeDAG, taps: tuple[str, ...], m: int) -> None:
    inputs = random_inputs(dag)
    new = rewrite(dag, "total", taps, m)
    found = evaluate(new.dag, derive(new.derived, inputs))
    assert_close(found, evaluate(dag, inputs), 1e-6)


@pytest.mark.parametrize(
    ("dag", "taps"),
    [
        (conv(10, 11, 16, 5, dtype="bfloat16"), ("kh", "kw")),
        (conv(12, 9, 16, 5, dtype="bfloat16", stride=2), ("kh", "kw")),
        (conv(13, 14, 16, 3, dtype="bfloat16", dilation=2), ("kw",)),
        (conv(5, 18, 128, 64, dtype="bfloat16"), ("kh", "kw")),
    ],
)
def test_products_of_narrow_factors_stay_narrow(dag: ComputeDAG, taps: tuple[str, ...]) -> None:
    """They are transformed in float32, and rounded once more: to less than a step of the type."""
    inputs = random_inputs(dag)
    new = rewrite(dag, "conv", taps, 2)
    (products,) = (op for op in new.dag.computes if op.name == "conv.products")
    assert {x.tensor.dtype for x in products.reads} == {"bfloat16"}
    inner = [op for op in new.dag.computes if op.name in ("conv.x1", "conv.y1")][: len(taps) - 1]
    assert all(op.tensor.dtype == "float32" for op in inner)
    found = evaluate(new.dag, derive(new.derived, inputs))
    assert_close(found, expected := evaluate(dag, inputs), STEP)
    assert np.abs(found["relu"] - expected["relu"]).max() > 2.0**-12


def rounded(dag: ComputeDAG, dtype: str) -> ComputeDAG:
    """`dag` with its result rounded to `dtype`."""
    relu = dag["relu"]
    assert isinstance(relu, Compute)
    value = cast("float32", cast(dtype, relu.tensor[relu.axes]))
    stored = compute("stored", relu.axes, value)
    return ComputeDAG((*dag.ops, stored), ("stored",))


@pytest.mark.parametrize(
    ("dag", "found"),
    [
        (conv(8, 8, 8, 16), {"winograd2", "winograd4"}),
        (rounded(conv(8, 8, 8, 16, dtype="bfloat16"), "bfloat16"), {"winograd2"}),
        (valid_conv(8, 8, 8, 16, 3, 3, "bfloat16"), set()),
        (rounded(conv(8, 8, 8, 16, dtype="float16"), "float16"), set()),
        (rounded(conv(8, 8, 8, 16, dtype="int8"), "bfloat16"), set()),
    ],
    ids=["float32", "bfloat16", "results in float32", "float16", "int8"],
)
def test_narrow_factors_have_small_tiles_where_results_are_rounded_so(
    dag: ComputeDAG, found: set[str]
) -> None:
    """F(4, 3) is off by many steps of bfloat16; transformed data may exceed float16."""
    names = {s.name.split("+")[0] for s in generate_sketches(dag, TARGETS[-1])}
    assert {n for n in names if "winograd" in n} == found


def test_what_is_no_convolution_over_overlapping_windows() -> None:
    assert convolution(conv(stride=3), "conv") is None
    assert convolution(conv(9, 9, stride=2, dilation=2), "conv") is None
    assert convolution(conv(6, 6, dilation=6), "conv") is None
    assert convolution(valid_conv(6, 6, 3, 4, 1, 1), "total") is None
    assert convolution(valid_conv(6, 6, 3, 4, 3, 3, "float64"), "total") is None
    with pytest.raises(ScheduleError, match="no convolution"):
        replay(valid_conv(6, 6, 3, 4, 1, 3), (Winograd("total", ("a",), 2),))


def test_step_survives_the_log() -> None:
    steps = (Winograd("conv", ("kh", "kw"), 4),)
    assert steps_from_json(steps_to_json(steps)) == steps


@pytest.mark.sampled(2)
@pytest.mark.slow
@pytest.mark.parametrize("target", TARGETS, ids=lambda t: str(t.vector_bits))
@pytest.mark.parametrize(
    "dag",
    [
        conv(7, 9, 8, 20),
        conv(15, 9, 8, 20, stride=2),
        valid_conv(9, 9, 16, 24, 3, 3),
        valid_conv(6, 13, 8, 16, 1, 3),
        conv(9, 7, 8, 20, dilation=2),
    ],
)
def test_every_sketch_computes_the_convolution(dag: ComputeDAG, target: Target) -> None:
    inputs = random_inputs(dag)
    expected = evaluate(dag, inputs)
    rng = np.random.default_rng(0)
    sketches = [s for s in generate_sketches(dag, target) if "winograd" in s.name]
    assert {s.name.split("+")[0] for s in sketches} == {"winograd2", "winograd4"}
    for sketch in sketches[TARGETS.index(target) :: len(TARGETS)]:
        rows = sketch.sample(50, rng)
        rows = rows[analyse(dag, sketch, rows, target).valid][:1]
        assert len(rows)
        for row in rows:
            program = lower(dag, sketch.bind(row))
            assert_computes(program, inputs, expected, target, (2,), 5e-6)


@pytest.mark.sampled(1)
@pytest.mark.slow
@pytest.mark.parametrize("target", [BF16, AVX2], ids=lambda t: t.cpu)
def test_narrow_products_between_transforms_compute_the_convolution(target: Target) -> None:
    """On a CPU with an instruction for them, and by products of float32."""
    dag = rounded(conv(5, 6, 8, 20, dtype="bfloat16"), "bfloat16")
    inputs = random_inputs(dag)
    expected = evaluate(dag, inputs)
    rng = np.random.default_rng(0)
    sketches = [s for s in generate_sketches(dag, target) if "winograd" in s.name]
    assert any("dot2" in s.name for s in sketches) == (target is BF16)
    for sketch in sketches[-1:]:
        rows = sketch.sample(50, rng)
        (row,) = rows[analyse(dag, sketch, rows, target).valid][:1]
        program = lower(dag, sketch.bind(row))
        verify(program)
        assert_close(interpret(program, inputs), expected, STEP)
        if runs_here(target):
            assert_close(run_compiled(program, inputs, target, 2), expected, STEP)
