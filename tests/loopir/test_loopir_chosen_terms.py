"""Scans that go through the terms that count compute what they are defined as."""

from __future__ import annotations

from random import Random

import numpy as np
import pytest

from autotune.loopir.lower import lower
from autotune.loopir.nodes import Program
from autotune.te.dag import Compute, ComputeDAG, placeholder
from autotune.te.evaluate import evaluate
from autotune.te.expr import INDEX, Axis, Const, Expr, Reduce, Tensor, both, compare, select
from autotune.te.reductions import identity
from tests.loopir.interp import interpret
from tests.schedule.running import run_compiled
from tests.targets import AVX2, AVX512

N = 150


def scanned(op: str, far: bool = False, both_ways: bool = False, own: bool = False) -> ComputeDAG:
    """y[k] = op over r < k - begin[k]: x[first + r] · (what is of x[k]), where y[first + r] is 0.

    `far`: the terms end one in front of k. `both_ways`: x[k] decides as well which terms count.
    `own`: terms are elements of y. All three are forms that have no copies of the terms that count.
    """
    x, begins = placeholder("x", (N,), "int32"), placeholder("begins", (N,), INDEX)
    y, k = Tensor("y", (N,), "int32"), Axis("k", N)
    begin = begins.tensor[k]
    r = Axis("r", N, k.var - begin - 1 if far else k.var - begin)
    place = begin + r.var
    other, mine = x.tensor[place], x.tensor[k]
    counts = compare("eq", y[place], Const(0, "int32"))
    if both_ways:
        counts = compare("lt", y[place], mine)
    overlaps = compare("lt", other, mine)
    value: Expr = Const(1, "int32") if op == "bitor" else y[place] if own else other
    term = select(both(counts, overlaps), value, identity(op, "int32"))
    body = Reduce(op, term, (r,))
    return ComputeDAG((x, begins, Compute(y, (k,), body)), ("y",))


def inputs(seed: int) -> dict[str, np.ndarray]:
    """Rows of any length, some of one element, whose terms count seldom, often or always."""
    draw = Random(seed)
    begins, begin = [], 0
    for k in range(N):
        begin = k if draw.random() < (0.02, 0.3, 0)[seed % 3] else begin
        begins.append(begin)
    high = (3, 200, 10**9)[seed % 3]
    x = [draw.randint(-high, high) for _ in range(N)]
    return {"x": np.array(x, np.int32), "begins": np.array(begins)}


def has_copies(program: Program) -> bool:
    return any(b.name.startswith("y.chosen") or b.name == "y.count" for b in program.buffers)


@pytest.mark.parametrize("seed", range(6))
@pytest.mark.parametrize("op", ["bitor", "sum", "max", "min"])
def test_terms_that_count_are_those_that_earlier_elements_choose(op: str, seed: int) -> None:
    dag, given = scanned(op), inputs(seed)
    program = lower(dag, ())
    assert has_copies(program)
    expected = evaluate(dag, given)["y"]
    for target in (AVX2, AVX512):
        np.testing.assert_array_equal(run_compiled(program, given, target, 1)["y"], expected)


@pytest.mark.parametrize("form", ["far", "both_ways", "own"])
def test_terms_that_are_told_otherwise_are_all_looked_at(form: str) -> None:
    dag, given = scanned("max", **{form: True}), inputs(0)
    program = lower(dag, ())
    assert not has_copies(program)
    np.testing.assert_array_equal(interpret(program, given)["y"], evaluate(dag, given)["y"])
