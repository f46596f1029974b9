"""Float32 products by bfloat16 parts: exact enough, and plain where data are not finite."""

from __future__ import annotations

from dataclasses import replace
from functools import cache
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from autotune.codegen.compile import assembly, optimised_module
from autotune.errors import ScheduleError
from autotune.loopir.lower import lower
from autotune.schedule.exact import exact_steps
from autotune.schedule.narrow_products import product, rewrite
from autotune.schedule.steps import NarrowProducts, Steps
from autotune.search import policy
from autotune.search.cost.analysis import analyse
from autotune.search.defaults import default_steps
from autotune.search.rules import algorithms
from autotune.search.sketch import RULES, generate_sketches
from autotune.target import Target, host_target
from autotune.target.isa import EMULATION
from autotune.te.dag import ComputeDAG, compute, placeholder
from autotune.te.evaluate import derive, evaluate
from autotune.te.expr import (
    Axis,
    Expr,
    Reduce,
    add,
    both,
    compare,
    f32,
    idx,
    maximum,
    mul,
    select,
    sub,
)
from tests.schedule.running import random_inputs, run_compiled
from tests.schedule.small_dags import conv, gemm
from tests.targets import AMX, BF16, CPUS

pytestmark = pytest.mark.target

TARGET = host_target()
Inputs = dict[str, NDArray[Any]]


def computed() -> ComputeDAG:
    """A product of two activations for each of a batch, with what follows."""
    x, w = placeholder("x", (2, 12, 32)), placeholder("w", (2, 32, 48))
    b, i, j, k = Axis("b", 2), Axis("i", 12), Axis("j", 48), Axis("k", 32)
    body = Reduce("sum", mul(x.tensor[b, i, k], w.tensor[b, k, j]), (k,))
    total = compute("total", (b, i, j), body)
    y = compute("y", (b, i, j), maximum(f32(0), total.tensor[b, i, j]))
    return ComputeDAG((x, w, total, y), ("y",))


def padded() -> ComputeDAG:
    """A convolution along one axis of what zeros surround, read in place."""
    x, weight = placeholder("x", (20, 8)), placeholder("weight", (3, 8, 16), constant=True)
    w, o, kw, c = Axis("w", 20), Axis("o", 16), Axis("kw", 3), Axis("c", 8)
    at: Expr = sub(add(w.var, kw.var), idx(1))
    inside = both(compare("le", idx(0), at), compare("lt", at, idx(20)))
    value = select(inside, x.tensor[at, c], f32(0.0))
    body = Reduce("sum", mul(value, weight.tensor[kw, c, o]), (kw, c))
    return ComputeDAG((x, weight, compute("y", (w, o), body)), ("y",))


DAGS = {
    "gemm": gemm(20, 32, 48),
    "conv": conv(9, 11, 8, 16),
    "computed": computed(),
    "padded": padded(),
}
DATA = {name: dag.placeholders[0].name for name, dag in DAGS.items()}


@cache
def schedules(name: str, target: Target = TARGET) -> tuple[tuple[str, Steps], ...]:
    """Schedules of each structure by narrow products."""
    rng, out = np.random.default_rng(0), []
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(algorithms, "narrow_products_pay", lambda target: True)
        sketches = generate_sketches(DAGS[name], target, RULES)
    for sketch in (s for s in sketches if "bf16x3" in s.tags):
        rows = sketch.sample(60, rng)
        rows = rows[analyse(DAGS[name], sketch, rows, target).valid][:2]
        out += [(sketch.name, sketch.bind(row)) for row in rows]
    return tuple(out)


def exactly(dag: ComputeDAG, inputs: Inputs) -> NDArray[Any]:
    (found,) = evaluate(dag, {n: a.astype("float64") for n, a in inputs.items()}).values()
    return found


def runs(dag: ComputeDAG, steps: Steps, inputs: Inputs) -> NDArray[Any]:
    (found,) = run_compiled(lower(dag, steps, verify=True), inputs, TARGET, 2).values()
    return found


needs_form = pytest.mark.skipif(
    not any(algorithms.is_narrow(f) for f in TARGET.isa.forms),
    reason="no multiply-add of bfloat16",
)


@needs_form
@pytest.mark.parametrize("name", DAGS)
def test_three_products_are_nearly_as_good_as_float32(name: str) -> None:
    dag, rng = DAGS[name], np.random.default_rng(1)
    assert schedules(name)
    for structure, steps in schedules(name):
        inputs = random_inputs(dag)
        x = inputs[DATA[name]]
        x *= np.exp(rng.uniform(-3, 3, x.shape)).astype("float32")
        expected = exactly(dag, inputs)
        error = abs(runs(dag, steps, inputs) - expected).max() / abs(expected).max()
        assert 1e-8 < error < policy.NARROW_ERROR, structure


@needs_form
@pytest.mark.parametrize("name", DAGS)
def test_what_is_not_finite_or_huge_is_summed_as_defined(name: str) -> None:
    dag, rng = DAGS[name], np.random.default_rng(2)
    for structure, steps in schedules(name):
        for value in (np.nan, np.inf, -np.inf, 3.4e38, -1e30):
            inputs = random_inputs(dag)
            x = inputs[DATA[name]]
            x[tuple(int(rng.integers(n)) for n in x.shape)] = value
            (expected,) = evaluate(dag, inputs).values()
            found = runs(dag, steps, inputs)
            np.testing.assert_array_equal(np.isfinite(found), np.isfinite(expected), structure)
            np.testing.assert_allclose(found, expected, rtol=2e-4, atol=5e-4, err_msg=structure)


@needs_form
def test_huge_data_give_what_the_schedule_of_plain_sums_gives() -> None:
    for name, dag in DAGS.items():
        structure, steps = schedules(name)[0]
        inputs = random_inputs(dag)
        inputs[DATA[name]] *= np.float32(1e20)
        plain = runs(dag, exact_steps(dag, steps), inputs)
        error = abs(runs(dag, steps, inputs) - plain).max()
        assert error < policy.NARROW_ERROR * abs(plain).max(), structure


@pytest.mark.parametrize("name", DAGS)
def test_weights_are_stored_as_parts_alone(name: str) -> None:
    """The sum as it is defined reads them too, so no constant of that size is there in float32."""
    for structure, steps in schedules(name, AMX):
        program = lower(DAGS[name], steps, verify=True)
        packed = {p.source.name for p in program.packs}
        assert not packed & {p.name for p in DAGS[name].placeholders}, structure
        wide = [b for b in program.buffers if b.role == "constant" and b.tensor.dtype == "float32"]
        assert all(len(b.tensor.shape) == 1 for b in wide), structure


@pytest.mark.parametrize("n_products", [3, 6])
def test_parts_add_up_whatever_the_size(n_products: int) -> None:
    limit = {3: 1e-5, 6: 1e-6}[n_products]
    for key, dag in DAGS.items():
        name = next(op.name for op in dag.computes if op.reduce_axes)
        new = rewrite(dag, name, n_products)
        for scale in (1e-30, 1e-6, 1.0, 1e8):
            inputs = random_inputs(dag)
            inputs[DATA[key]] *= np.float32(scale)
            (found,) = evaluate(new.dag, derive(new.derived, inputs)).values()
            expected = exactly(dag, inputs)
            assert abs(found - expected).max() <= limit * abs(expected).max()


def test_each_part_is_loaded_once_and_multiplied_by_one_instruction() -> None:
    _, steps = schedules("gemm", BF16)[0]
    text = assembly(lower(DAGS["gemm"], steps), BF16)
    assert "vdpbf16ps" in text
    assert "vcvtneps2bf16" in text


@pytest.mark.slow
@pytest.mark.parametrize("name", ["gemm", "conv"])
def test_matrix_tiles_multiply_the_parts(name: str) -> None:
    dag = {"gemm": gemm(32, 64, 48), "conv": conv(10, 10, 32, 32)}[name]
    target = replace(TARGET, features=f"{TARGET.features},+{EMULATION}")
    if not any(f.unit for f in target.isa.forms):
        pytest.skip("emulated tiles take AVX-512")
    found = [s for s in generate_sketches(dag, target) if "bf16x3" in s.tags]
    assert {"matrices" in s.tags for s in found} == {True}
    inputs, rng = random_inputs(dag), np.random.default_rng(3)
    expected = exactly(dag, inputs)
    for sketch in found:
        rows = sketch.sample(60, rng)
        row = rows[analyse(dag, sketch, rows, target).valid][0]
        program = lower(dag, sketch.bind(row), verify=True)
        (result,) = run_compiled(program, inputs, target).values()
        assert abs(result - expected).max() < 1e-5 * abs(expected).max(), sketch.name
        assert "tdpbf16ps(" in str(optimised_module(program, target))


def test_only_products_of_float32_elements_are_rewritten() -> None:
    dag = DAGS["conv"]
    assert product(dag, "conv") is not None
    assert product(dag, "relu") is None
    with pytest.raises(ScheduleError, match="relu is no sum of products of float32 elements"):
        rewrite(dag, "relu", 3)
    with pytest.raises(ScheduleError, match="by 3 or by 6"):
        rewrite(dag, "conv", 4)


def test_an_error_below_that_of_narrow_products_excludes_them() -> None:
    dag = gemm(128, 256, 256)

    def is_narrowed(max_error: float) -> bool:
        steps = default_steps(dag, AMX, 1, max_error)
        return any(isinstance(s, NarrowProducts) for s in steps)

    assert is_narrowed(5e-5)
    assert not is_narrowed(5e-6)


@pytest.mark.parametrize("name", CPUS)
def test_a_form_that_cannot_be_three_times_as_fast_does_not_pay(name: str) -> None:
    """Dots of bfloat16 are twice as many products as of float32, those of matrices 16 times."""
    sketches = generate_sketches(DAGS["gemm"], CPUS[name])
    assert any("bf16x3" in s.tags for s in sketches) is (name == "amx")
