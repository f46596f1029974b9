"""Reductions over rows whose length is read from a tensor: value, text, errors."""

from __future__ import annotations

import numpy as np
import pytest
from numpy.typing import NDArray

from autotune import te
from autotune.errors import DefinitionError, ScheduleError
from autotune.loopir.lower import lower
from autotune.schedule.replay import replay
from autotune.schedule.steps import Annotate, Fuse, Parts, Reorder, RFactor, Split, Step
from autotune.search.sketch import generate_sketches
from autotune.target import host_target
from autotune.te.codec import dag_from_json, dag_to_json
from autotune.te.dag import ComputeDAG, print_dag
from autotune.te.evaluate import evaluate
from autotune.te.validate import require_valid
from tests.schedule.running import assert_close, assert_computes

pytestmark = pytest.mark.target

Array = NDArray[np.generic]
COUNTS = (3, 0, 1, 5)
"""Elements of each row."""


def csr(n_rows: int, n_elements: int, n_columns: int) -> te.Tensor:
    """A sparse matrix times a dense vector, and one added."""
    values, at = te.placeholder((n_elements,), "v"), te.placeholder((n_elements,), "at", "int32")
    rows, x = te.placeholder((n_rows + 1,), "p", "int32"), te.placeholder((n_columns,), "x")

    def row(i: te.Expression) -> te.Expression:
        b = te.reduce_axis((rows[i], rows[i + 1]), "b")
        return te.sum(values[b] * x[at[b]], b)

    y = te.compute((n_rows,), row, "y")
    return te.compute((n_rows,), lambda i: y[i] + 1, "out")


def matrix() -> tuple[dict[str, Array], Array]:
    """Operands of `csr`, and the result."""
    rng = np.random.default_rng(0)
    dense = np.zeros((len(COUNTS), 6), np.float32)
    for i, n in enumerate(COUNTS):
        dense[i, rng.permutation(6)[:n]] = rng.standard_normal(n)
    row, at = np.nonzero(dense)
    x = rng.standard_normal(6).astype(np.float32)
    p = np.concatenate([[0], np.cumsum(COUNTS)]).astype(np.int32)
    given = {"v": dense[row, at], "at": at.astype(np.int32), "p": p, "x": x}
    return given, (dense @ x + 1).astype(np.float32)


@pytest.fixture(scope="module")
def dag() -> ComputeDAG:
    return te.dag_of(csr(len(COUNTS), sum(COUNTS), 6))


def test_rows_of_any_length_none_included(dag: ComputeDAG) -> None:
    given, expected = matrix()
    assert_close(evaluate(dag, given), {"out": expected}, 1e-6)


def test_every_sketch_computes_what_numpy_does(dag: ComputeDAG) -> None:
    given, expected = matrix()
    target = host_target()
    sketches = generate_sketches(dag, target)
    assert sketches
    for sketch in sketches:
        row = np.zeros(len(sketch.parameters), np.int64)
        program = lower(dag, sketch.bind(row))
        assert_computes(program, given, {"out": expected}, target, (1, 3))


def test_text_json_and_work(dag: ComputeDAG) -> None:
    assert "over b<9 and int64(p[i + 1]) - int64(p[i])" in print_dag(dag)
    again = dag_from_json(dag_to_json(dag))
    assert again == dag
    require_valid(again)
    plain = te.dag_of(csr(len(COUNTS), 2 * sum(COUNTS), 6))
    assert plain.key != dag.key
    # rows are 9/4 elements long on average, rounded up: a multiply-add each, and one addition
    assert dag.flops == 4 * 3 * 2 + 4


def test_a_limit_from_a_file_is_a_whole_number(dag: ComputeDAG) -> None:
    data = dag_to_json(dag)
    reduction = next(op for op in data["ops"] if op["name"] == "y")["body"]
    reduction[3][0][2] = ["load", "v", ["var", "i"]]
    with pytest.raises(ValueError, match="no expression"):
        require_valid(dag_from_json(data))
    reduction[3][0][2] = ["var", "elsewhere"]
    with pytest.raises(ValueError, match="no expression"):
        require_valid(dag_from_json(data))


def test_ragged_loops_stay_whole(dag: ComputeDAG) -> None:
    steps: list[Step] = [
        Split("y", "b", (2,)),
        Annotate("y", "b", "unroll"),
        Fuse("y", "i", "b"),
        RFactor("y", 2, "parts"),
        Parts("y", 3, "parts"),
    ]
    for step in steps:
        with pytest.raises(ScheduleError):
            replay(dag, (step,))
    lanes = (Split("y", "i", (4,)), Annotate("y", "i.1", "vectorize"))
    with pytest.raises(ScheduleError, match=r"the length of b depends on y\.i\.1 inside"):
        lower(dag, (*lanes, Reorder("y", ("i.0", "b", "i.1"))))


def test_mistakes_are_told_at_once() -> None:
    x, p = te.placeholder((4,), "x"), te.placeholder((3,), "p", "int32")
    with pytest.raises(DefinitionError, match="a reduction axis from"):
        te.compute((2,), lambda i: te.sum(x[i], te.reduce_axis((x[i], x[i + 1]), "b")))
    with pytest.raises(DefinitionError, match="nothing is read along b"):
        te.compute((2,), lambda i: te.sum(x[i], te.reduce_axis((p[i], p[i + 1]), "b")))
    with pytest.raises(DefinitionError, match="outside"):
        te.compute((3,), lambda i: te.sum(x[te.reduce_axis((p[i], p[i + 1]), "b")], _axis(p, i)))


def _axis(p: te.Tensor, i: te.Expression) -> te.ReduceAxis:
    return te.reduce_axis((p[i], p[i + 1]), "b")
