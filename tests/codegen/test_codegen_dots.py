"""Sums of narrow products: the same numbers by dot instructions and by NumPy."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from autotune import te
from autotune.codegen.compile import assembly
from autotune.errors import ScheduleError
from autotune.loopir.lower import lower
from autotune.schedule.replay import replay
from autotune.schedule.steps import Annotate, CacheRead, Reorder, Split, Steps
from autotune.search.cost.analysis import analyse
from autotune.search.sketch import generate_sketches
from autotune.search.space import Sketch
from autotune.target import Target, host_target, parse_target, runs_here
from autotune.te.dag import ComputeDAG
from autotune.te.evaluate import evaluate
from autotune.te.language import dag_of
from autotune.te.products import dot_forms
from tests.schedule.running import assert_computes, random_inputs

pytestmark = pytest.mark.target

HOST = host_target()
WIDTHS = [replace(HOST, vector_bits=b, n_registers=n) for b, n in ((256, 16), (512, 32))]
TARGETS = [t for t in WIDTHS if t.vector_bits <= HOST.vector_bits]
TARGETS += [t for t in (parse_target("haswell"), parse_target("skylake-avx512")) if runs_here(t)]


def _id(target: Target) -> str:
    name = "host" if target.cpu == HOST.cpu else target.cpu
    return f"{name}-{target.vector_bits}"


def matmul(n: int, m: int, k: int, constant: bool = True, transposed: bool = False) -> ComputeDAG:
    a = te.placeholder((n, k), "a", "uint8")
    b = te.placeholder((m, k) if transposed else (k, m), "b", "int8", constant=constant)
    r = te.reduce_axis(k, "r")

    def term(i: te.Expression, j: te.Expression) -> te.Expression:
        w = b[j, r] if transposed else b[r, j]
        return te.sum(a[i, r].astype("int32") * w.astype("int32"), r)

    s = te.compute((n, m), term, "s")
    return dag_of(te.compute((n, m), lambda i, j: s[i, j].astype("float32") * 0.5, "y"))


def convolution(pad: int) -> ComputeDAG:
    """3 × 3 on 6 × 7 pixels of 8 channels; what is around the picture counts as `pad`."""
    x = te.placeholder((6, 7, 8), "x", "uint8")
    w = te.placeholder((3, 3, 8, 24), "w", "int8", constant=True)
    u, v, c = te.reduce_axis(3, "u"), te.reduce_axis(3, "v"), te.reduce_axis(8, "c")
    inside = te.compute(
        (8, 9, 8),
        lambda i, j, k: te.where((i >= 1) & (i < 7) & (j >= 1) & (j < 8), x[i - 1, j - 1, k], pad),
        "p",
    )
    s = te.compute(
        (6, 7, 24),
        lambda i, j, k: te.sum(
            inside[i + u, j + v, c].astype("int32") * w[u, v, c, k].astype("int32"), [u, v, c]
        ),
        "s",
    )
    return dag_of(te.compute((6, 7, 24), lambda i, j, k: s[i, j, k] + 1, "y"))


def separable() -> ComputeDAG:
    """A window of each of 16 channels, its sums as bytes, and a product of those."""
    x = te.placeholder((8, 9, 16), "x", "uint8")
    v = te.placeholder((3, 3, 16), "v", "int8", constant=True)
    w = te.placeholder((16, 24), "w", "int8", constant=True)
    a, b, c = te.reduce_axis(3, "a"), te.reduce_axis(3, "b"), te.reduce_axis(16, "c")
    window = te.compute(
        (6, 7, 16),
        lambda i, j, k: te.sum(
            x[i + a, j + b, k].astype("int32") * v[a, b, k].astype("int32"), [a, b]
        ),
        "window",
    )
    q = te.compute((6, 7, 16), lambda i, j, k: ((window[i, j, k] >> 6) & 255).astype("uint8"), "q")
    s = te.compute(
        (6, 7, 24),
        lambda i, j, k: te.sum(q[i, j, c].astype("int32") * w[c, k].astype("int32"), c),
        "s",
    )
    return dag_of(te.compute((6, 7, 24), lambda i, j, k: s[i, j, k] + 1, "y"))


CASES = {
    "matmul": matmul(9, 40, 32),
    "activations": matmul(9, 40, 32, constant=False),
    "transposed": matmul(9, 40, 32, constant=False, transposed=True),
    "few": matmul(5, 7, 4),
    "three": matmul(9, 3, 32),
    "convolution": convolution(0),
    "zero_point": convolution(3),
    "separable": separable(),
}


@pytest.mark.sampled(5)
@pytest.mark.slow
@pytest.mark.parametrize("target", TARGETS, ids=_id)
@pytest.mark.parametrize("name", CASES)
def test_every_structure_computes_the_sum(name: str, target: Target) -> None:
    dag, rng = CASES[name], np.random.default_rng(0)
    inputs = random_inputs(dag)
    wanted = evaluate(dag, inputs)
    sketches = generate_sketches(dag, target)
    assert all({"dot2", "dot4"} & s.tags for s in sketches)
    for n in rng.permutation(len(sketches))[:3]:
        sketch = sketches[n]
        rows = sketch.sample(64, rng)
        rows = rows[analyse(dag, sketch, rows, target).valid]
        for row in rows[:1]:
            program = lower(dag, sketch.bind(row))
            assert_computes(program, inputs, wanted, target, (2,))


def _held_as(sketches: list[Sketch]) -> dict[str, str]:
    """What is copied in a wider type, and in which."""
    steps = (s for sketch in sketches for s in sketch.steps if isinstance(s, CacheRead))
    return {s.tensor: s.dtype for s in steps if s.dtype}


@pytest.mark.parametrize(
    ("name", "data"),
    [("matmul", "a"), ("convolution", "p"), ("zero_point", "p"), ("separable", "q")],
)
def test_data_are_widened_once_where_the_instruction_takes_wider_ones(name: str, data: str) -> None:
    assert _held_as(generate_sketches(CASES[name], parse_target("haswell"))) == {data: "int16"}
    assert _held_as(generate_sketches(CASES[name], parse_target("znver4"))) == {}


@pytest.mark.parametrize("target", TARGETS, ids=_id)
def test_a_product_behind_a_fused_window_is_one_of_dot_instructions(target: Target) -> None:
    fused = [s for s in generate_sketches(CASES["separable"], target) if "chained" in s.tags]
    assert fused
    assert all({"dot2", "dot4"} & s.tags for s in fused)


def _one_instruction(dag: ComputeDAG, target: Target) -> str:
    (sketch, *_) = generate_sketches(dag, target)
    rows = sketch.sample(64, np.random.default_rng(1))
    rows = rows[analyse(dag, sketch, rows, target).valid]
    return assembly(lower(dag, sketch.bind(rows[0])), target)


@pytest.mark.parametrize("target", TARGETS, ids=_id)
@pytest.mark.parametrize("name", ["matmul", "three"])
def test_a_cpu_with_the_instruction_runs_it(name: str, target: Target) -> None:
    """Whole registers of it, or a part of the smallest one."""
    form = max(dot_forms(CASES[name]["s"], target.isa.forms), key=lambda f: f.terms)
    assert form.name in _one_instruction(CASES[name], target)


def test_a_cpu_without_the_instruction_has_no_such_structure() -> None:
    for name in ("haswell", "skylake-avx512"):
        target = parse_target(name)
        assert not any("dot4" in s.tags for s in generate_sketches(CASES["matmul"], target))


def dots(lanes: int, terms: int) -> Steps:
    return (
        Split("s", "r", (terms,)),
        Split("s", "j", (lanes,)),
        Reorder("s", ("i", "j.0", "r.0", "j.1", "r.1")),
        Annotate("s", "j.1", "vectorize"),
        Annotate("s", "r.1", "dot"),
    )


def test_a_cpu_without_the_instruction_refuses_the_schedule() -> None:
    program = lower(CASES["few"], dots(4, 4))
    with pytest.raises(ScheduleError, match="vpdpbusd, which the CPU has not"):
        assembly(program, parse_target("skylake-avx512"))
    with pytest.raises(ScheduleError, match="16 lanes is wider"):
        assembly(lower(matmul(9, 40, 32), dots(16, 2)), parse_target("haswell"))


def test_loops_that_fit_no_instruction_are_refused_with_the_reason() -> None:
    with pytest.raises(ScheduleError, match=r"adds up the 3 terms of r\.1") as found:
        lower(matmul(9, 40, 33), dots(4, 3))
    assert "4 (vpdpbusd)" in str(found.value.hint)
    with pytest.raises(ScheduleError, match="vpdpbusd has no vectors of 3 sums"):
        lower(CASES["few"], dots(3, 4))


@pytest.mark.parametrize(
    ("order", "loop", "message"),
    [
        (("i", "j", "r"), "j", "innermost"),
        (("i", "r", "j"), "r", "innermost"),
    ],
)
def test_only_the_innermost_terms_are_added_up_at_once(
    order: tuple[str, ...], loop: str, message: str
) -> None:
    steps = (Reorder("s", order), Annotate("s", loop, "dot"))
    with pytest.raises(ScheduleError, match=message):
        replay(CASES["few"], steps)


def test_a_sum_of_floats_is_no_dot_product() -> None:
    a, r = te.placeholder((4, 8), "a"), te.reduce_axis(8, "r")
    dag = dag_of(te.compute((4,), lambda i: te.sum(a[i, r] * a[i, r], r), "s"))
    with pytest.raises(ScheduleError, match="narrower"):
        replay(dag, (Annotate("s", "r", "dot"),))
