"""Sums that a point writes out are added up term by term where a register tile reads them again."""

from __future__ import annotations

import numpy as np
import pytest

from autotune.loopir.lower import stages
from autotune.loopir.nodes import Alloc, Program
from autotune.loopir.visitor import statements
from autotune.search.cost.analysis import analyse
from autotune.search.sketch import generate_sketches
from autotune.te.dag import ComputeDAG, compute, placeholder
from autotune.te.expr import Axis, Const, Expr, Reduce, binary, cast
from tests.loopir.interp import interpret
from tests.schedule.running import random_inputs
from tests.targets import BF16


def products(rows: int, n_words: int, columns: int = 24) -> ComputeDAG:
    """Rows of bytes times words of bytes, whose sums in blocks of `n_words` words are scaled."""
    r, c, b = Axis("r", rows), Axis("c", columns), Axis("b", 3)
    x = placeholder("x", (rows, 3 * n_words), "int32")
    w = placeholder("w", (n_words, 3, columns), "int32", constant=True)
    scale = placeholder("scale", (3, columns), constant=True)
    total: Expr = Const(7, "int32")
    for n in range(n_words):
        weights = binary("bitand", w.tensor[n, b, c], Const(0x0F0F0F0F, "int32"))
        total = total + binary("bytedot", weights, x.tensor[r, b * n_words + n])
    body = cast("float32", total) * scale.tensor[b, c]
    return ComputeDAG((x, w, scale, compute("y", (r, c), Reduce("sum", body, (b,)))), ("y",))


def has_parts(program: Program) -> bool:
    return any(
        isinstance(s, Alloc) and s.buffer.name.endswith(".part")
        for kernel in program.kernels
        for s in statements(kernel.body)
    )


@pytest.mark.parametrize(("rows", "n_words"), [(5, 4), (9, 8), (1, 8), (5, 2)])
def test_the_order_of_terms_changes_no_sum(rows: int, n_words: int) -> None:
    dag, rng = products(rows, n_words), np.random.default_rng(rows)
    inputs, seen = random_inputs(dag), set()
    for sketch in [*generate_sketches(dag, BF16)][:3]:
        drawn = sketch.sample(40, rng)
        valid = drawn[analyse(dag, sketch, drawn, BF16).valid]
        for row in valid[:2]:
            programs = dict(stages(dag, sketch.bind(row), verify=True))
            before, after = programs["instructions"], programs["terms-outside"]
            seen.add(has_parts(after))
            for name, array in interpret(before, inputs).items():
                np.testing.assert_array_equal(interpret(after, inputs)[name], array)
    assert (True in seen) == (rows > 1 and n_words >= 4)
