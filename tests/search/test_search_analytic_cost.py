"""What the analytical cost model says of caches and registers."""

from __future__ import annotations

from dataclasses import replace
from functools import reduce

import pytest

from autotune import te
from autotune.schedule.steps import Annotate, Reorder, Split
from autotune.search.cost.analytic import estimate_s
from autotune.search.defaults import default_candidate
from autotune.target import Target, parse_target
from autotune.te.dag import ComputeDAG, compute, placeholder
from autotune.te.expr import Axis, Reduce, add, both, compare, f32, idx, mul, select

MIB = 1 << 20
TARGET = replace(parse_target("x86-64-v3"), l2_bytes=MIB // 2, l3_bytes=32 * MIB)
AMD = replace(TARGET, cpu="znver3")
WIDE, HALVING = (replace(parse_target("x86-64-v4"), cpu=cpu) for cpu in ("znver5", "znver4"))


def estimated_s(n_bytes: int, target: Target, n_inputs: int = 1) -> float:
    """1 and the sum of `n_inputs`, each of so many bytes, in vectors."""
    i = Axis("i", n_bytes // 4)
    inputs = [placeholder(f"x{k}", (n_bytes // 4,)) for k in range(n_inputs)]
    total = reduce(add, (x.tensor[i] for x in inputs), f32(1))
    steps = (Split("y", "i", (8,)), Annotate("y", "i.1", "vectorize"))
    return estimate_s(ComputeDAG((*inputs, compute("y", (i,), total)), ("y",)), steps, target, 1)


def tile_s(
    n_rows: int, n_vectors: int, n_terms: int, target: Target = TARGET, lanes: int = 8
) -> float:
    """A product of matrices in such tiles of so many lanes, `n_terms` at a time."""
    i, j, k = Axis("i", 96), Axis("j", 96), Axis("k", 64)
    a, b = placeholder("a", (96, 64)), placeholder("b", (64, 96), constant=True)
    terms = mul(a.tensor[i, k], b.tensor[k, j])
    product = compute("c", (i, j), Reduce("sum", terms, (k,)))
    tile = (
        Split("c", "i", (n_rows,)),
        Split("c", "j", (n_vectors, lanes)),
        Split("c", "k", (n_terms,)),
    )
    order = Reorder("c", ("i.0", "j.0", "k.0", "k.1", "i.1", "j.1", "j.2"))
    marks = (Annotate("c", n, "unroll") for n in ("k.1", "i.1", "j.1"))
    steps = (*tile, order, *marks, Annotate("c", "j.2", "vectorize"))
    return estimate_s(ComputeDAG((a, b, product), ("c",)), steps, target, 1)


def test_l3_is_nearer_where_no_mesh_lies_between() -> None:
    assert estimated_s(8 * MIB, AMD) < 0.8 * estimated_s(8 * MIB, TARGET)


@pytest.mark.parametrize("target", [TARGET, AMD], ids=lambda t: t.cpu)
def test_what_exceeds_l3_is_in_memory(target: Target) -> None:
    assert estimated_s(8 * MIB, target) == pytest.approx(2 * estimated_s(4 * MIB, target), rel=0.2)
    assert estimated_s(64 * MIB, target) > 1.2 * 8 * estimated_s(8 * MIB, target)


def test_what_is_written_to_memory_is_read_first() -> None:
    """One input: three passes over memory; two: four. Else it would be two and three."""
    one, two = (estimated_s(64 * MIB, TARGET, n_inputs=n) for n in (1, 2))
    assert two < 1.45 * one


def test_twelve_sums_in_sixteen_registers_do_not_spill() -> None:
    assert tile_s(6, 2, n_terms=4) <= tile_s(6, 2, n_terms=1)
    assert tile_s(6, 2, n_terms=4) < tile_s(4, 2, n_terms=4)


def test_a_vector_that_passes_in_halves_takes_twice_as_long() -> None:
    whole, halves = (tile_s(12, 2, 4, cpu, lanes=16) for cpu in (WIDE, HALVING))
    assert halves == pytest.approx(2 * whole, rel=0.15)
    assert tile_s(12, 2, 4, WIDE, lanes=8) == pytest.approx(tile_s(12, 2, 4, HALVING), rel=0.1)


def test_idle_lanes_cost_nothing_where_narrow_vectors_are_as_fast() -> None:
    """96 columns in tiles of 24: two vectors of 16 lanes, a quarter of them idle, or three of 8."""
    wide, narrow = (tile_s(8, 2, 4, cpu, lanes=16) * 4 / 3 for cpu in (WIDE, HALVING))
    assert tile_s(8, 3, 4, WIDE) > wide
    assert tile_s(8, 3, 4, HALVING) < narrow


def test_conditions_hide_behind_multiply_adds() -> None:
    """12 elements of a step may be padding; they meet one vector of weights each, or three."""
    one, three = (window_s(n, padded=True) / window_s(n, padded=False) for n in (1, 3))
    assert 1.1 < one < 2.0
    assert three < 1.05


def window_s(n_vectors: int, padded: bool) -> float:
    """Sums over three neighbours each, of which some may be missing at the ends."""
    i, j, k = Axis("i", 96), Axis("j", 64 * n_vectors), Axis("k", 3)
    x, w = placeholder("x", (288,)), placeholder("w", (3, 64 * n_vectors), constant=True)
    at = add(mul(i.var, idx(3)), k.var)
    inside = both(compare("ge", at, idx(1)), compare("lt", at, idx(287)))
    element = select(inside, x.tensor[at], f32(0)) if padded else x.tensor[at]
    body = Reduce("sum", mul(element, w.tensor[k, j]), (k,))
    steps = (
        Split("y", "i", (4,)),
        Split("y", "j", (n_vectors, 8)),
        Reorder("y", ("j.0", "i.0", "k", "i.1", "j.1", "j.2")),
        *(Annotate("y", n, "unroll") for n in ("k", "i.1", "j.1")),
        Annotate("y", "j.2", "vectorize"),
    )
    return estimate_s(ComputeDAG((x, w, compute("y", (i, j), body)), ("y",)), steps, WIDE, 1)


def test_a_sum_of_expensive_terms_has_a_program() -> None:
    x, p = te.placeholder((1, 16, 16, 32), "x"), te.placeholder(32, "p")
    a, b = te.reduce_axis(3, "a"), te.reduce_axis(3, "b")
    dag = te.dag_of(
        te.compute(
            (1, 14, 14, 32),
            lambda n, h, w, c: te.sum(te.power(x[n, h + a, w + b, c], p[c]), [a, b]),
        )
    )
    for name in ("x86-64-v3", "x86-64-v4"):
        assert default_candidate(dag, parse_target(name), 1).steps
