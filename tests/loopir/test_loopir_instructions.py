"""Annotated loops become instructions: which ones, as text, and none is ever left over."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from itertools import product

import numpy as np
import pytest

from autotune import te
from autotune.codegen.emission.emit import emit_program
from autotune.loopir.lower import lower
from autotune.loopir.nodes import Body, For, If, Instruction, Program
from autotune.loopir.printer import print_program
from autotune.loopir.visitor import statements
from autotune.schedule.steps import Annotate
from autotune.search.cost.analysis import analyse
from autotune.search.sketch import generate_sketches
from autotune.search.space import Sketch
from autotune.target import Target
from autotune.te.dag import ComputeDAG
from autotune.te.language import dag_of
from tests.targets import AMX, AVX2, BF16, CPUS, VNNI


def matmul(m: int, n: int, k: int, a: str, b: str) -> ComputeDAG:
    total = "float32" if a == "bfloat16" else "int32"
    x, w = te.placeholder((m, k), "x", a), te.placeholder((k, n), "w", b, constant=True)
    r = te.reduce_axis(k, "r")
    s = te.compute(
        (m, n), lambda i, j: te.sum(x[i, r].astype(total) * w[r, j].astype(total), r), "s"
    )
    return dag_of(te.compute((m, n), lambda i, j: s[i, j] + 1, "y"))


def instructions(program: Program) -> set[str]:
    found = (s for k in program.kernels for s in statements(k.body))
    return {s.operation for s in found if isinstance(s, Instruction)}


def left_over(body: Body) -> Iterator[For]:
    """Annotated loops outside of instructions."""
    for stmt in body:
        if isinstance(stmt, For) and stmt.kind in ("dot", "tile"):
            yield stmt
        if isinstance(stmt, If):
            yield from left_over((*stmt.then, *stmt.orelse))
        elif not isinstance(stmt, Instruction):
            yield from left_over(getattr(stmt, "body", ()))


def marks(sketch: Sketch) -> set[str]:
    return {s.kind for s in sketch.steps if isinstance(s, Annotate)}


FACTORS = [("bfloat16", "bfloat16"), *product(("uint8", "int8"), repeat=2)]


@pytest.mark.sampled(3)
@pytest.mark.parametrize("cpu", CPUS)
def test_no_annotated_loop_is_expanded_on_a_cpu_that_has_the_instruction(cpu: str) -> None:
    target, rng = CPUS[cpu], np.random.default_rng(0)
    found = set[str]()
    for (a, b), (m, n, k) in product(
        FACTORS, ((9, 24, 32), (16, 3, 64), (33, 48, 128), (1, 17, 8))
    ):
        dag = matmul(m, n, k, a, b)
        sketches = [s for s in generate_sketches(dag, target) if "dot" in marks(s)]
        for index in rng.permutation(len(sketches))[:3]:
            sketch = sketches[index]
            rows = sketch.sample(64, rng)
            for row in rows[analyse(dag, sketch, rows, target).valid][:1]:
                program = lower(dag, sketch.bind(row), verify=True)
                assert instructions(program)
                assert not [x for kernel in program.kernels for x in left_over(kernel.body)]
                assert ("clear" in instructions(program)) == ("tile" in marks(sketch))
                emit_program(program, isa=target.isa)
                found |= instructions(program)
    assert found - {"clear", "load", "store"} == {
        form.name for form in target.isa.forms if form.terms > 1
    }


def test_a_sum_without_lanes_is_one_of_scalars() -> None:
    dag = matmul(9, 1, 8, "uint8", "int8")
    (sketch, *_) = (s for s in generate_sketches(dag, VNNI) if "dot" in marks(s))
    rows = sketch.sample(64, np.random.default_rng(0))
    program = lower(dag, sketch.bind(rows[analyse(dag, sketch, rows, VNNI).valid][0]), verify=True)
    assert not instructions(program)
    assert not [x for kernel in program.kernels for x in left_over(kernel.body)]


@pytest.mark.parametrize(
    ("name", "a", "b", "target"),
    [
        ("vpmaddwd", "uint8", "int8", AVX2),
        ("vpdpbusd", "uint8", "int8", VNNI),
        ("vdpbf16ps", "bfloat16", "bfloat16", BF16),
        ("tdpbf16ps", "bfloat16", "bfloat16", AMX),
        ("tdpbusd", "uint8", "int8", AMX),
        ("tdpbsud", "int8", "uint8", AMX),
        ("tdpbssd", "int8", "int8", AMX),
        ("tdpbuud", "uint8", "uint8", AMX),
    ],
)
def test_one_layer_by_each_instruction(
    name: str, a: str, b: str, target: Target, golden: Callable[[str, str], None]
) -> None:
    dag = matmul(16, 16, 64, a, b)
    kind = "tile" if name.startswith("t") else "dot"
    (sketch, *_) = (s for s in generate_sketches(dag, target) if kind in marks(s))
    largest = {p.name: len(p.domain) - 1 for p in sketch.parameters}
    rows = np.array([[min(n, 4 if "tile" in p else n) for p, n in largest.items()]])
    program = lower(dag, sketch.bind(rows[0]), verify=True)
    assert name in instructions(program)
    golden(f"loopir/{name}.txt", print_program(program))
