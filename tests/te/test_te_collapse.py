"""Collapsing axes keeps the numbers and merges what may be merged."""

from __future__ import annotations

import numpy as np
import pytest

from autotune.te.collapse import collapse
from autotune.te.dag import Compute, ComputeDAG, compute, placeholder
from autotune.te.evaluate import evaluate
from autotune.te.expr import Axis, Reduce, add, compare, idx, mul, select


def axes(**extents: int) -> list[Axis]:
    return [Axis(name, extent) for name, extent in extents.items()]


def conv(kernel: int, stride: int = 1, size: int = 6) -> ComputeDAG:
    out = (size - kernel) // stride + 1
    x = placeholder("x", (1, size, size, 3))
    w = placeholder("w", (kernel, kernel, 3, 4), constant=True)
    n, h, v, o = axes(n=1, h=out, w=out, o=4)
    r, s, i = axes(r=kernel, s=kernel, i=3)
    at = (n, add(mul(h.var, idx(stride)), r.var), add(mul(v.var, idx(stride)), s.var), i)
    body = Reduce("sum", mul(x.tensor[at], w.tensor[r, s, i, o]), (r, s, i))
    return ComputeDAG((x, w, compute("y", (n, h, v, o), body)), ("y",))


def check(dag: ComputeDAG) -> ComputeDAG:
    """Collapse, and compare on random data; the result is a free reshape."""
    rng = np.random.default_rng(0)
    feeds = {p.name: rng.standard_normal(p.tensor.shape) for p in dag.placeholders}
    small = collapse(dag)
    reshaped = {p.name: feeds[p.name].reshape(p.tensor.shape) for p in small.placeholders}
    for name, want in evaluate(dag, feeds).items():
        got = evaluate(small, reshaped)[name]
        np.testing.assert_allclose(got.reshape(want.shape), want, rtol=1e-6)
    assert collapse(small) == small
    return small


def shapes(dag: ComputeDAG) -> dict[str, tuple[int, ...]]:
    return {op.name: op.tensor.shape for op in dag.ops}


def test_pointwise_convolution_becomes_a_matrix_product() -> None:
    assert shapes(check(conv(1))) == {"x": (36, 3), "w": (3, 4), "y": (36, 4)}


def test_stride_keeps_the_axes_apart() -> None:
    assert shapes(check(conv(1, stride=2))) == {"x": (6, 6, 3), "w": (3, 4), "y": (3, 3, 4)}


def test_window_keeps_the_axes_apart() -> None:
    small = check(conv(3))
    assert shapes(small) == {"x": (6, 6, 3), "w": (3, 3, 3, 4), "y": (4, 4, 4)}


def test_window_over_everything_merges_the_taps_but_not_the_channels() -> None:
    small = check(conv(6))
    assert shapes(small) == {"x": (36, 3), "w": (36, 3, 4), "y": (4,)}


def test_innermost_dimension_of_inputs_and_outputs_stays() -> None:
    a, b, c = axes(a=2, b=3, c=4)
    x = placeholder("x", (2, 3, 4))
    y = compute("y", (a, b, c), mul(x.tensor[a, b, c], x.tensor[a, b, c]))
    assert shapes(check(ComputeDAG((x, y), ("y",)))) == {"x": (6, 4), "y": (6, 4)}


def test_broadcast_operand_tells_axes_apart() -> None:
    a, b, c = axes(a=2, b=3, c=4)
    x, s = placeholder("x", (2, 3, 4)), placeholder("s", (3, 4), constant=True)
    y = compute("y", (a, b, c), mul(x.tensor[a, b, c], s.tensor[b, c]))
    assert shapes(check(ComputeDAG((x, s, y), ("y",))))["y"] == (2, 3, 4)


def test_later_stage_tells_axes_apart() -> None:
    a, b, c = axes(a=2, b=3, c=4)
    x = placeholder("x", (2, 3, 4))
    t = compute("t", (a, b, c), mul(x.tensor[a, b, c], x.tensor[a, b, c]))
    y = compute("y", (b, a, c), t.tensor[a, b, c])
    assert shapes(check(ComputeDAG((x, t, y), ("y",))))["t"] == (2, 3, 4)


def test_condition_on_an_index_tells_axes_apart() -> None:
    a, b, c = axes(a=2, b=3, c=4)
    x = placeholder("x", (2, 3, 4))
    element = x.tensor[a, b, c]
    y = compute(
        "y", (a, b, c), select(compare("lt", b.var, idx(1)), element, mul(element, element))
    )
    assert shapes(check(ComputeDAG((x, y), ("y",))))["y"] == (2, 3, 4)


def test_part_of_a_dimension_tells_axes_apart() -> None:
    a, b, c = axes(a=2, b=2, c=4)
    x = placeholder("x", (2, 3, 4))
    y = compute("y", (a, b, c), x.tensor[a, b, c])
    assert shapes(check(ComputeDAG((x, y), ("y",))))["y"] == (2, 2, 4)


def test_dimensions_of_one_vanish_even_under_a_guard() -> None:
    a, c = axes(a=3, c=4)
    x = placeholder("x", (1, 4))
    inside = compare("eq", a.var, idx(1))
    y = compute("y", (a, c), select(inside, x.tensor[add(a.var, idx(-1)), c], x.tensor[idx(0), c]))
    assert shapes(check(ComputeDAG((x, y), ("y",))))["x"] == (4,)


@pytest.mark.parametrize("extent", [1, 2])
def test_reduction_over_one_element_is_no_reduction(extent: int) -> None:
    (c,), (r,) = axes(c=4), axes(r=extent)
    x = placeholder("x", (4, extent))
    dag = ComputeDAG((x, compute("y", (c,), Reduce("sum", x.tensor[c, r], (r,)))), ("y",))
    last = check(dag).ops[-1]
    assert isinstance(last, Compute)
    assert len(last.reduce_axes) == extent - 1


@pytest.mark.parametrize("extent", [1, 2])
def test_a_ragged_reduction_over_one_element_may_be_over_none(extent: int) -> None:
    (c,) = axes(c=4)
    x = placeholder("x", (4, extent))
    r = Axis("r", extent, select(compare("lt", c.var, idx(2)), idx(0), idx(1)))
    dag = ComputeDAG((x, compute("y", (c,), Reduce("sum", x.tensor[c, idx(0)], (r,)))), ("y",))
    last = check(dag).ops[-1]
    assert isinstance(last, Compute)
    assert len(last.reduce_axes) == 1


def test_scalar_keeps_one_dimension() -> None:
    (n,) = axes(n=1)
    x = placeholder("x", (1, 1))
    y = compute("y", (n,), mul(x.tensor[n, n], x.tensor[n, n]))
    assert shapes(check(ComputeDAG((x, y), ("y",)))) == {"x": (1,), "y": (1,)}
