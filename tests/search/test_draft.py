"""What the analytic draft says of caches."""

from __future__ import annotations

from dataclasses import replace

import pytest

from autotune.schedule.steps import Annotate, Split
from autotune.search.draft import estimate_s
from autotune.target import Target, parse_target
from autotune.te.dag import ComputeDAG, compute, placeholder
from autotune.te.expr import Axis, add, f32

MIB = 1 << 20
TARGET = replace(parse_target("x86-64-v3"), l2_bytes=MIB // 2, l3_bytes=32 * MIB)
AMD = replace(TARGET, cpu="znver3")


def estimated_s(n_bytes: int, target: Target) -> float:
    """x + 1 for x of so many bytes, in vectors."""
    i, x = Axis("i", n_bytes // 4), placeholder("x", (n_bytes // 4,))
    dag = ComputeDAG((x, compute("y", (i,), add(x.tensor[i], f32(1)))), ("y",))
    steps = (Split("y", "i", (8,)), Annotate("y", "i.1", "vectorize"))
    return estimate_s(dag, steps, target, 1)


def test_l3_is_nearer_where_no_mesh_lies_between() -> None:
    assert estimated_s(8 * MIB, AMD) < 0.8 * estimated_s(8 * MIB, TARGET)


@pytest.mark.parametrize("target", [TARGET, AMD], ids=lambda t: t.cpu)
def test_what_exceeds_l3_is_in_memory(target: Target) -> None:
    assert estimated_s(8 * MIB, target) == pytest.approx(2 * estimated_s(4 * MIB, target), rel=0.2)
    assert estimated_s(64 * MIB, target) > 1.2 * 8 * estimated_s(8 * MIB, target)
