"""Two products and the rows between them as one kernel: where, and with right numbers."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import numpy as np
import pytest

from autotune.codegen.compile import assembly
from autotune.loopir.lower import lower
from autotune.loopir.nodes import PrefetchLine
from autotune.loopir.verify import verify
from autotune.loopir.visitor import statements
from autotune.schedule.replay import bind, replay
from autotune.schedule.steps import NEXT_PANEL
from autotune.search.cost.analysis import analyse
from autotune.search.cost.analytic import analytic_seconds
from autotune.search.sketch import generate_sketches
from autotune.target import Target, parse_target, runs_here
from autotune.te.chains import row_chain
from autotune.te.dag import Compute, ComputeDAG, compute, placeholder
from autotune.te.evaluate import evaluate
from autotune.te.expr import Axis, Reduce, add, cast, mul
from tests.loopir.interp import interpret
from tests.schedule.running import assert_close, random_inputs, run_compiled
from tests.schedule.small_dags import attention, gemm, normalised_products, softmax, two_convs
from tests.search.random_rows import assert_random_rows_compute
from tests.targets import BF16

AVX2 = parse_target("x86-64-v3")
TARGETS = [t for t in (AVX2, parse_target("x86-64-v4")) if runs_here(t)]
CHAINS: dict[str, Callable[[], ComputeDAG]] = {
    "even": lambda: attention(2, 6, 32, 8, 16),
    "odd": lambda: attention(3, 7, 37, 5, 11),
    "few columns": lambda: attention(2, 9, 5, 4, 3),
    "one head": lambda: attention(1, 8, 40, 6, 20),
    "one row": lambda: attention(4, 1, 24, 6, 18),
    "with weights": normalised_products,
    "with the same weights twice": lambda: normalised_products(7, 19, 19, 19, tied=True),
}
each_chain = pytest.mark.parametrize("name", CHAINS)


def last_product(dag: ComputeDAG) -> Compute:
    return [op for op in dag.computes if op.reduce_axes][-1]


def test_sketches_of_attention(golden: Callable[[str, str], None]) -> None:
    dag = attention(2, 24, 96, 16, 32)
    lines = []
    for sketch in generate_sketches(dag, AVX2):
        values = {p.name: p.domain[len(p.domain) // 2] for p in sketch.parameters}
        lines.append(f"== {sketch.name}\n{replay(dag, sketch.steps, values)}")
    golden("sketches_attention.txt", "\n".join(lines) + "\n")


@each_chain
def test_everything_is_one_kernel(name: str) -> None:
    dag = CHAINS[name]()
    for sketch in generate_sketches(dag, AVX2):
        state = replay(dag, sketch.steps, {p.name: p.domain[0] for p in sketch.parameters})
        assert "attended" in sketch.name
        assert len({p.name for p in sketch.parameters}) == len(sketch.parameters)
        assert sum(s.attach is None for s in state.stages.values()) == 1


def test_the_stages_of_a_chain() -> None:
    dag = attention()
    chain = row_chain(dag, last_product(dag))
    assert chain is not None
    assert [op.name for op in chain.before] == ["twice"]
    assert (chain.first.name, chain.scores.name, chain.last.name) == ("s", "t", "o")
    assert [op.name for op in chain.rows] == ["top", "exp", "total", "p"]


@pytest.mark.parametrize("dag", [gemm(), softmax(), two_convs()], ids=["gemm", "softmax", "convs"])
def test_what_is_no_chain_of_rows(dag: ComputeDAG) -> None:
    assert row_chain(dag, last_product(dag)) is None
    assert not any("attended" in s.name for s in generate_sketches(dag, AVX2))


@pytest.mark.parametrize("name", ["t", "exp", "p"])
def test_what_leaves_the_task_is_not_between_products(name: str) -> None:
    dag = attention()
    assert row_chain(ComputeDAG(dag.ops, (name, "out")), last_product(dag)) is None


@pytest.mark.sampled(2)
@pytest.mark.slow
@pytest.mark.parametrize("target", TARGETS, ids=lambda t: t.cpu)
@each_chain
def test_random_rows_compute_what_the_definition_says(name: str, target: Target) -> None:
    assert_random_rows_compute(CHAINS[name](), target, n_samples=300, n_chunks=(1, 2), seed=5)


@pytest.mark.parametrize(("columns", "last"), [(32, True), (37, False)])
def test_products_of_narrow_factors_have_instructions_for_them(columns: int, last: bool) -> None:
    """Of the terms that come in pairs: depth does, an odd number of columns does with a zero."""
    dag = attention(2, 6, columns, 8, 16, "bfloat16")
    names = [s.name for s in generate_sketches(dag, BF16)]
    whole = [n.removeprefix("whole-terms+") for n in names if n.startswith("whole-terms+")]
    assert bool(whole) is not last
    for some, is_last in (([n for n in names if "whole" not in n], last), (whole, True)):
        pairs = [name.partition("+") for name in some]
        dotted = [(first, second) for first, _, second in pairs if "dot2" in first]
        assert len(pairs) == 2 * len(dotted)
        assert all(("dot2" in second) is is_last for _, second in dotted)
    assert names


@pytest.mark.sampled(1)
@pytest.mark.slow
@pytest.mark.parametrize("columns", [32, 37])
def test_instructions_for_narrow_factors_compute_what_the_definition_says(columns: int) -> None:
    dag = attention(2, 6, columns, 8, 16, "bfloat16")
    inputs = random_inputs(dag)
    expected = evaluate(dag, inputs)
    rng = np.random.default_rng(0)
    for sketch in [s for s in generate_sketches(dag, BF16) if "dot2" in s.name][:2]:
        rows = sketch.sample(100, rng)
        (row,) = rows[analyse(dag, sketch, rows, BF16).valid][:1]
        program = lower(dag, sketch.bind(row))
        verify(program)
        assert_close(interpret(program, inputs), expected, 2.0**-8)
        if runs_here(BF16):
            assert_close(run_compiled(program, inputs, BF16, 2), expected, 2.0**-8)


def test_two_products_in_a_term_that_no_instruction_takes_are_a_plain_sum() -> None:
    dag = attention(2, 6, 33, 15, 16, "bfloat16")
    scores = next(op for op in dag.computes if op.reduce_axes)
    assert isinstance(scores.body, Reduce)
    twice = replace(scores.body, body=add(scores.body.body, scores.body.body))
    ops = tuple(replace(op, body=twice) if op is scores else op for op in dag.ops)
    dag = ComputeDAG(ops, dag.outputs)
    inputs = random_inputs(dag)
    sketches = generate_sketches(dag, BF16)
    assert sketches
    for sketch in sketches[:2]:
        rows = sketch.sample(100, np.random.default_rng(0))
        (row,) = rows[analyse(dag, sketch, rows, BF16).valid][:1]
        found = interpret(lower(dag, sketch.bind(row)), inputs)
        assert_close(found, evaluate(dag, inputs), 2.0**-8)


def test_the_next_columns_are_fetched_while_the_first_product_runs() -> None:
    dag = attention(2, 24, 96, 16, 32)
    for sketch in generate_sketches(dag, AVX2):
        values = {p.name: p.domain[len(p.domain) // 2] for p in sketch.parameters}
        for early in (False, True):
            chosen = values | {"scores.tile.ahead": NEXT_PANEL if early else 0}
            program = lower(dag, bind(sketch.steps, chosen))
            stmts = [s for kernel in program.kernels for s in statements(kernel.body)]
            fetched = {s.tensor.name for s in stmts if isinstance(s, PrefetchLine)}
            assert ("k" in fetched) is early


def test_the_cost_model_keeps_the_rows_in_the_cache() -> None:
    dag, target = attention(4, 1000, 1000, 32, 32), parse_target("x86-64-v4")
    for sketch in generate_sketches(dag, target):
        rows = sketch.sample(4000, np.random.default_rng(0))
        found = analyse(dag, sketch, rows, target)
        local = np.sum([s.local_bytes for s in found.statements], axis=0)
        assert local[np.argmin(analytic_seconds(found, target, 1))] < target.l2_bytes


def test_factors_that_are_no_constants_reach_a_product_as_they_lie_in_memory() -> None:
    """Pairs of terms are two rows side by side: nothing is widened and rounded again."""
    i, j, k = Axis("i", 8), Axis("j", 32), Axis("k", 16)
    a, b = placeholder("a", (8, 16), "bfloat16"), placeholder("b", (16, 32), "bfloat16")
    factors = (cast("float32", a.tensor[i, k]), cast("float32", b.tensor[k, j]))
    c = compute("c", (i, j), Reduce("sum", mul(*factors), (k,)))
    dag = ComputeDAG((a, b, c), ("c",))
    (sketch, *_) = (s for s in generate_sketches(dag, BF16) if "dot2" in s.name)
    rows = sketch.sample(50, np.random.default_rng(0))
    (row,) = rows[analyse(dag, sketch, rows, BF16).valid][:1]
    program = lower(dag, sketch.bind(row))
    code = assembly(program, BF16)
    assert "vdpbf16ps" in code
    assert "vcvtneps2bf16" not in code
    if runs_here(BF16):
        inputs = random_inputs(dag)
        assert_close(run_compiled(program, inputs, BF16, 2), evaluate(dag, inputs), 3e-6)
