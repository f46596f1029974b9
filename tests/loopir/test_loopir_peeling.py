"""The last iteration of a reduction is peeled where it alone needs a condition."""

from __future__ import annotations

import pytest

from autotune.loopir.lower import lower
from autotune.loopir.nodes import For, Program, Stmt, Store
from autotune.loopir.verify import verify
from autotune.loopir.visitor import expressions, statements
from autotune.schedule.steps import Annotate, ComputeAt, Reorder, RFactor, Split, Steps
from autotune.search.sketch import generate_sketches
from autotune.target import parse_target
from autotune.te.dag import ComputeDAG, compute, placeholder
from autotune.te.evaluate import evaluate
from autotune.te.expr import Axis, Reduce, Select, walk
from tests.loopir.interp import interpret
from tests.schedule.running import assert_close, random_inputs, run_compiled
from tests.schedule.small_dags import softmax

AVX2 = parse_target("x86-64-v3")


def row_sums(n: int) -> ComputeDAG:
    """Sums of three rows of `n` numbers."""
    i, k = Axis("i", 3), Axis("k", n)
    x = placeholder("x", (3, n))
    return ComputeDAG((x, compute("y", (i,), Reduce("sum", x.tensor[i, k], (k,)))), ("y",))


def side_by_side(lanes: int) -> Steps:
    return (
        RFactor("y", lanes, "y.lanes"),
        ComputeAt("y.lanes", "y", "i"),
        Split("y.lanes", "k.r", (lanes,)),
        Reorder("y.lanes", ("i", "k", "k.r.0", "k.r.1")),
        Annotate("y.lanes", "k.r.0", "unroll"),
        Annotate("y.lanes", "k.r.1", "vectorize"),
    )


def has_condition(stmt: Stmt) -> bool:
    return any(isinstance(e, Select) for x in expressions(stmt) for e in walk(x))


def guarded_stores(program: Program, inside: str) -> list[bool]:
    """Of all stores that a condition is part of: whether loop `inside` is around them."""
    stores = [s for s in statements(program.kernels[0].body) if has_condition(s)]
    loops = [s for s in statements(program.kernels[0].body) if isinstance(s, For)]
    around = [s for x in loops if x.var == inside for s in statements(x.body)]
    assert all(isinstance(s, Store) for s in stores)
    return [any(s is x for x in around) for s in stores]


@pytest.mark.parametrize("n", [9, 21, 31, 40])
def test_remainder_of_a_reduction_is_peeled(n: int) -> None:
    dag, inputs = row_sums(n), random_inputs(row_sums(n))
    program = lower(dag, side_by_side(8))
    verify(program)
    assert guarded_stores(program, "y.lanes.k") == ([False] if n % 8 else [])
    found = interpret(program, inputs)
    assert_close(found, evaluate(dag, inputs), 1e-6)
    assert_close(run_compiled(program, inputs, AVX2), found, 1e-6)


@pytest.mark.parametrize(("n", "lanes"), [(96, 32), (100, 16), (20, 4), (12, 4), (9, 8), (50, 8)])
def test_partial_results_fill_vectors(n: int, lanes: int) -> None:
    """A remainder costs less than vectors that are half empty."""
    for sketch in generate_sketches(softmax(3, n), AVX2):
        widths = [s.factor for s in sketch.steps if isinstance(s, RFactor) and s.stage == "total"]
        assert widths[0] == lanes
