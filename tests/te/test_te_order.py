"""Intermediates that only move elements take the order of their source, where that helps."""

from __future__ import annotations

import numpy as np
import pytest

from autotune.te.dag import Compute, ComputeDAG, compute, placeholder
from autotune.te.evaluate import evaluate
from autotune.te.expr import Axis, Binary, Compare, Const, Expr, Reduce, add, idx, mul, select
from autotune.te.order import follow_sources


def axes(**extents: int) -> list[Axis]:
    return [Axis(name, extent) for name, extent in extents.items()]


def first_convolution(depthwise: bool = False, shown: bool = False) -> ComputeDAG:
    """A convolution of an image whose channels come first, padded by one pixel."""
    x = placeholder("x", (3, 5, 6))
    h, w, c = axes(h=7, w=8, c=3)
    inside = Binary("and", Compare("ge", h.var, idx(1)), Compare("lt", h.var, idx(6)))
    inside = Binary("and", inside, Compare("ge", w.var, idx(1)))
    inside = Binary("and", inside, Compare("lt", w.var, idx(7)))
    moved = x.tensor[c, add(h.var, idx(-1)), add(w.var, idx(-1))]
    pad = compute("pad", (h, w, c), select(inside, moved, Const(0.0)))
    y, z, o, i, k = axes(y=5, z=6, o=3, i=3, k=3)
    weight = placeholder("weight", (3, 3, 3), constant=True)
    channel: Expr = o.var if depthwise else i.var
    body = mul(pad.tensor[add(y.var, k.var), z, channel], weight.tensor[k, channel, o])
    reduced = (k,) if depthwise else (k, i)
    conv = compute("conv", (y, z, o), Reduce("sum", body, reduced))
    return ComputeDAG((x, weight, pad, conv), ("conv", "pad") if shown else ("conv",))


def same_numbers(dag: ComputeDAG) -> ComputeDAG:
    rng = np.random.default_rng(0)
    feeds = {p.name: rng.standard_normal(p.tensor.shape) for p in dag.placeholders}
    moved = follow_sources(dag)
    for name in dag.outputs:
        np.testing.assert_array_equal(evaluate(moved, feeds)[name], evaluate(dag, feeds)[name])
    assert follow_sources(moved) == moved
    return moved


def test_padding_takes_the_order_of_the_image() -> None:
    moved = same_numbers(first_convolution())
    pad = moved["pad"]
    assert isinstance(pad, Compute)
    assert [a.name for a in pad.axes] == ["c", "h", "w"]
    assert pad.tensor.shape == (3, 7, 8)


def test_stays_where_lanes_read_along_its_innermost_dimension() -> None:
    dag = first_convolution(depthwise=True)
    assert follow_sources(dag) == dag


def test_an_output_stays_as_it_is() -> None:
    dag = first_convolution(shown=True)
    assert follow_sources(dag) == dag


@pytest.mark.parametrize("order", [(0, 1, 2), (1, 0, 2)])
def test_stays_where_whole_vectors_move_already(order: tuple[int, int, int]) -> None:
    x = placeholder("x", (4, 5, 6))
    names = axes(a=4, b=5, c=6)
    moved = compute("moved", [names[n] for n in order], x.tensor[tuple(names)])
    p, q, r = (Axis(n, names[k].extent) for n, k in zip("pqr", order, strict=True))
    dag = ComputeDAG((x, moved, compute("y", (p, r, q), moved.tensor[p, q, r])), ("y",))
    assert follow_sources(dag) == dag


def test_a_diagonal_stays_as_it_is() -> None:
    x = placeholder("x", (4, 4, 6))
    c, a = axes(c=6, a=4)
    moved = compute("moved", (c, a), x.tensor[a, a, c])
    p, q = axes(p=4, q=6)
    dag = ComputeDAG((x, moved, compute("y", (p, q), moved.tensor[q, p])), ("y",))
    assert follow_sources(dag) == dag
