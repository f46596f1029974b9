"""The beginning of the first weight panel is prefetched before the first iteration."""

from __future__ import annotations

import pytest

from autotune.loopir.lower import lower
from autotune.loopir.nodes import For, Kernel, Let, PrefetchLine
from autotune.loopir.verify import verify
from autotune.schedule.steps import (
    NEXT_PANEL,
    Annotate,
    Pack,
    Parallel,
    Prefetch,
    Reorder,
    Split,
)
from autotune.te.arith import simplify
from autotune.te.dag import ComputeDAG, compute, placeholder
from autotune.te.expr import Axis, Const, Reduce, idx, mul, substitute

LINE = 64


def product(n_terms: int, distance: int) -> Kernel:
    """c[i, j] = Σ a[i, k]·b[k, j], blocks of 8 columns in parallel, weights prefetched."""
    i, j, k = Axis("i", 16), Axis("j", 48), Axis("k", n_terms)
    a, b = placeholder("a", (16, n_terms)), placeholder("b", (n_terms, 48), constant=True)
    c = compute("c", (i, j), Reduce("sum", mul(a.tensor[i, k], b.tensor[k, j]), (k,)))
    steps = (
        Split("c", "j", (8,)),
        Reorder("c", ("j.0", "i", "k", "j.1")),
        Parallel("c", 1),
        Annotate("c", "j.1", "vectorize"),
        Pack("b", "c"),
        Prefetch("b", "c", distance),
    )
    program = lower(ComputeDAG((a, b, c), ("c",)), steps)
    verify(program)
    return program.kernels[0]


def first_lines(kernel: Kernel, begin: int) -> list[tuple[int, ...]]:
    """Indices and offset in bytes of every line that the head asks for."""
    env = {kernel.var: idx(begin)}
    out = []
    for stmt in kernel.head:
        if isinstance(stmt, Let):
            env[stmt.var] = simplify(substitute(stmt.value, env), {})
            continue
        assert isinstance(stmt, For)
        for n in range(stmt.extent):
            (line,) = stmt.body
            assert isinstance(line, PrefetchLine)
            at = (*line.indices, line.offset)
            found = [simplify(substitute(e, env | {stmt.var: idx(n)}), {}) for e in at]
            out.append(tuple(int(x.value) for x in found if isinstance(x, Const)))
    return out


@pytest.mark.parametrize("distance", [512, NEXT_PANEL])
@pytest.mark.parametrize("begin", [0, 4])
def test_head_prefetches_all_of_a_small_panel(distance: int, begin: int) -> None:
    """20 terms of 8 columns are 640 bytes, which begin where the first iteration begins."""
    expected = [(begin, 0, 0, LINE * n) for n in range(10)]
    assert first_lines(product(20, distance), begin) == expected


def test_head_prefetches_the_beginning_of_a_large_panel() -> None:
    """What would take memory longer arrives while the kernel runs."""
    lines = first_lines(product(4096, 512), 1)
    assert lines == [(1, 0, 0, LINE * n) for n in range(128)]


def test_kernel_without_prefetch_steps_has_no_head() -> None:
    assert product(20, 0).head == ()
