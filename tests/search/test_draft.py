"""What the analytic draft says of caches and registers."""

from __future__ import annotations

from dataclasses import replace
from functools import reduce

import pytest

from autotune.schedule.steps import Annotate, Reorder, Split
from autotune.search.draft import estimate_s
from autotune.target import Target, parse_target
from autotune.te.dag import ComputeDAG, compute, placeholder
from autotune.te.expr import Axis, Reduce, add, f32, mul

MIB = 1 << 20
TARGET = replace(parse_target("x86-64-v3"), l2_bytes=MIB // 2, l3_bytes=32 * MIB)
AMD = replace(TARGET, cpu="znver3")


def estimated_s(n_bytes: int, target: Target, n_inputs: int = 1) -> float:
    """1 and the sum of `n_inputs`, each of so many bytes, in vectors."""
    i = Axis("i", n_bytes // 4)
    inputs = [placeholder(f"x{k}", (n_bytes // 4,)) for k in range(n_inputs)]
    total = reduce(add, (x.tensor[i] for x in inputs), f32(1))
    steps = (Split("y", "i", (8,)), Annotate("y", "i.1", "vectorize"))
    return estimate_s(ComputeDAG((*inputs, compute("y", (i,), total)), ("y",)), steps, target, 1)


def tile_s(n_rows: int, n_vectors: int, n_terms: int) -> float:
    """A product of matrices in such tiles of 8 lanes and 16 registers, `n_terms` at a time."""
    i, j, k = Axis("i", 96), Axis("j", 96), Axis("k", 64)
    a, b = placeholder("a", (96, 64)), placeholder("b", (64, 96), constant=True)
    terms = mul(a.tensor[i, k], b.tensor[k, j])
    product = compute("c", (i, j), Reduce("sum", terms, (k,)))
    tile = (
        Split("c", "i", (n_rows,)),
        Split("c", "j", (n_vectors, 8)),
        Split("c", "k", (n_terms,)),
    )
    order = Reorder("c", ("i.0", "j.0", "k.0", "k.1", "i.1", "j.1", "j.2"))
    marks = (Annotate("c", n, "unroll") for n in ("k.1", "i.1", "j.1"))
    steps = (*tile, order, *marks, Annotate("c", "j.2", "vectorize"))
    return estimate_s(ComputeDAG((a, b, product), ("c",)), steps, TARGET, 1)


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
