"""Scattered reductions: every program is right for any places, and takes one step per term."""

from __future__ import annotations

import numpy as np
import pytest
from numpy.typing import NDArray

from autotune.errors import ScheduleError
from autotune.loopir.lower import lower
from autotune.loopir.printer import print_program
from autotune.schedule.steps import Reorder
from autotune.search.sketch import generate_sketches
from autotune.target import host_target
from autotune.te.dag import ComputeDAG, compute, placeholder
from autotune.te.evaluate import evaluate
from autotune.te.expr import (
    Axis,
    Expr,
    Reduce,
    Select,
    add,
    compare,
    f32,
    idx,
    maximum,
    minimum,
    mul,
)
from autotune.te.reductions import identity
from tests.schedule.running import assert_close, assert_computes

pytestmark = pytest.mark.target

Array = NDArray[np.generic]
ROWS, TERMS = 5, 7
TARGET = host_target()


def inside(place: Expr, extent: int) -> Expr:
    return maximum(idx(0), minimum(place, idx(extent - 1)))


def rows(width: int, op: str = "sum") -> ComputeDAG:
    """Rows of x, each added to the row of y that `at` names, and doubled."""
    x, at = placeholder("x", (TERMS, width)), placeholder("at", (TERMS,), "int64")
    p, c, k = Axis("p", ROWS), Axis("c", width), Axis("k", TERMS)
    is_here = compare("eq", inside(at.tensor[k], ROWS), p.var)
    term = Select(is_here, x.tensor[k, c], identity(op))
    y = compute("y", (p, c), Reduce(op, term, (k,)))
    z = compute("z", (p, c), mul(y.tensor[p, c], f32(2)))
    return ComputeDAG((x, at, y, z), ("z",))


def elements(width: int, given: int) -> ComputeDAG:
    """Each element of x goes to a row of its own, in the first `given` columns."""
    x, at = placeholder("x", (TERMS, given)), placeholder("at", (TERMS, given), "int64")
    p, c, k = Axis("p", ROWS), Axis("c", width), Axis("k", TERMS)
    is_here = compare("eq", inside(at.tensor[k, c], ROWS), p.var)
    term: Expr = Select(is_here, x.tensor[k, c], f32(0))
    if given < width:
        term = Select(compare("lt", c.var, idx(given)), term, f32(0))
    y = compute("y", (p, c), Reduce("sum", term, (k,)))
    return ComputeDAG((x, at, y), ("y",))


def inputs(dag: ComputeDAG) -> dict[str, Array]:
    """Some rows get several terms, others none; places outside are moved inside."""
    rng = np.random.default_rng(0)
    x, at = (p.tensor.shape for p in dag.placeholders)
    places = rng.choice([-3, 0, 1, 4, 9], at)
    return {"x": rng.standard_normal(x).astype(np.float32), "at": places.astype(np.int64)}


@pytest.mark.parametrize(
    "dag",
    [rows(1), rows(3), rows(16), rows(37), rows(64, "prod"), elements(40, 40), elements(6, 4)],
    ids=lambda dag: dag.key,
)
def test_every_program_computes_what_is_defined(dag: ComputeDAG) -> None:
    given = inputs(dag)
    expected = evaluate(dag, given)
    sketches = generate_sketches(dag, TARGET)
    assert any("scattered" in s.name for s in sketches)
    for sketch in sketches:
        choices = [range(len(p.domain)) for p in sketch.parameters]
        for row in {tuple(c[k % len(c)] for c in choices) for k in range(5)}:
            steps = sketch.bind(np.array(row, np.int64))
            assert_computes(lower(dag, steps, verify=True), given, expected, TARGET, (1, 3))


def test_the_oracle_adds_rows_where_numpy_does() -> None:
    dag = rows(3)
    given = inputs(dag)
    want = np.zeros((ROWS, 3))
    np.add.at(want, np.clip(given["at"], 0, ROWS - 1), given["x"])
    assert_close(evaluate(dag, given), {"z": (2 * want).astype(np.float32)}, 1e-6)


def test_a_term_takes_one_step() -> None:
    dag = rows(16)
    sketch = generate_sketches(dag, TARGET)[0]
    steps = sketch.bind(np.zeros(len(sketch.parameters), np.int64))
    text = print_program(lower(dag, steps))
    terms = text[text.index("for y.k in 7") :].split("kernel")[0]
    assert "y.p.place = max(0, min(at[y.k], 4))" in terms
    assert "y.p in" not in terms


def test_work_is_that_of_the_terms() -> None:
    assert rows(16).flops == TERMS * 16 * 1 + ROWS * 16  # additions, then products


def test_what_is_not_routed() -> None:
    p, k = Axis("p", ROWS), Axis("k", TERMS)
    x, at = placeholder("x", (TERMS,)), placeholder("at", (TERMS,), "int64")

    def routed(place: Expr, otherwise: Expr) -> bool:
        term = Select(compare("eq", place, p.var), x.tensor[k], otherwise)
        return compute("y", (p,), Reduce("sum", term, (k,))).route is not None

    known = inside(at.tensor[k], ROWS)
    assert routed(known, f32(0))
    assert not routed(at.tensor[k], f32(0)), "it may lie outside"
    assert not routed(known, f32(1)), "the other places change, too"
    assert not routed(inside(add(at.tensor[k], p.var), ROWS), f32(0)), "it depends on itself"
    assert not routed(inside(k.var, ROWS), f32(0)), "no data are asked"


def test_a_place_that_loops_inside_decide_is_no_schedule() -> None:
    dag = elements(6, 6)
    with pytest.raises(ScheduleError, match="the place along p depends on loops inside"):
        lower(dag, (Reorder("y", ("k", "p", "c")),))
