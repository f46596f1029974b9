"""Minimal filtering gives way to plain sums where its data are not finite or not bounded."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from functools import cache

import numpy as np
import pytest
from numpy.typing import NDArray

from autotune.errors import ScheduleError
from autotune.loopir.in_place import replaceable
from autotune.loopir.lower import lower
from autotune.loopir.nodes import Program
from autotune.schedule.exact import exact_steps
from autotune.schedule.filtering import filtering
from autotune.schedule.steps import ComputeAt, Steps, Winograd
from autotune.search.cost.analysis import analyse
from autotune.search.sketch import generate_sketches
from autotune.target import host_target
from autotune.te.dag import ComputeDAG, compute, placeholder
from autotune.te.evaluate import evaluate
from autotune.te.expr import Axis, Reduce, add, f32, idx, maximum, mul
from tests.loopir.interp import interpret
from tests.schedule.running import assert_close, assert_computes, random_inputs, run_compiled
from tests.schedule.small_dags import conv

TARGET = host_target()
BAD = [np.nan, np.inf, -np.inf, 1e38, -3e38, 1e30, 1e20]


def residual() -> ComputeDAG:
    """relu(conv(x) + r), which may lie where r lay."""
    x, r = placeholder("x", (10, 11, 8)), placeholder("r", (8, 9, 16))
    weight = placeholder("weight", (3, 3, 8, 16), constant=True)
    h, w, o = Axis("h", 8), Axis("w", 9), Axis("o", 16)
    kh, kw, c = Axis("kh", 3), Axis("kw", 3), Axis("c", 8)
    product = mul(x.tensor[add(h.var, kh.var), add(w.var, kw.var), c], weight.tensor[kh, kw, c, o])
    total = compute("conv", (h, w, o), Reduce("sum", product, (kh, kw, c)))
    both = add(total.tensor[h, w, o], r.tensor[h, w, o])
    y = compute("y", (h, w, o), maximum(f32(0), both))
    return ComputeDAG((x, r, weight, total, y), ("y",))


def row(stride: int = 1) -> ComputeDAG:
    """A convolution along one axis, without a consumer."""
    x, n = placeholder("x", (23, 8)), (23 - 3) // stride + 1
    weight = placeholder("weight", (3, 8, 16), constant=True)
    w, o, kw, c = Axis("w", n), Axis("o", 16), Axis("kw", 3), Axis("c", 8)
    product = mul(x.tensor[add(mul(w.var, idx(stride)), kw.var), c], weight.tensor[kw, c, o])
    return ComputeDAG(
        (x, weight, compute("conv", (w, o), Reduce("sum", product, (kw, c)))), ("conv",)
    )


DAGS = {
    "bias_relu": conv(9, 11, 8, 16),
    "stride": conv(15, 9, 8, 16, stride=2),
    "dilation": conv(9, 9, 8, 16, dilation=2),
    "residual": residual(),
    "row": row(),
    "row_stride": row(2),
}


@cache
def schedules(name: str) -> tuple[tuple[str, Steps], ...]:
    """A schedule of each structure with minimal filtering; interleaved ones of one DAG alone."""
    rng, out = np.random.default_rng(0), []
    for sketch in generate_sketches(DAGS[name], TARGET):
        if "winograd" in sketch.name:
            rows = sketch.sample(50, rng)
            rows = rows[analyse(DAGS[name], sketch, rows, TARGET).valid]
            if "interleaved" not in sketch.name or name == "bias_relu":
                out.append((sketch.name, sketch.bind(rows[0])))
    return tuple(out)


def inputs_of(name: str) -> dict[str, NDArray[np.float32]]:
    values = random_inputs(DAGS[name])
    return {n: a * np.float32(0.1 if n == "weight" else 1) for n, a in values.items()}


def spoilt(name: str, seed: int) -> Iterator[dict[str, NDArray[np.float32]]]:
    """Inputs with one bad value at a random place."""
    rng = np.random.default_rng(seed)
    for value in BAD:
        inputs = inputs_of(name)
        at = tuple(int(rng.integers(n)) for n in inputs["x"].shape)
        inputs["x"][at] = value
        yield inputs


def runs(program: Program, inputs: dict[str, NDArray[np.float32]]) -> NDArray[np.float32]:
    (found,) = run_compiled(program, inputs, TARGET, 2).values()
    return found


@pytest.mark.sampled(2)
@pytest.mark.slow
@pytest.mark.parametrize("name", DAGS)
def test_one_bad_element_spoils_what_depends_on_it_alone(name: str) -> None:
    dag = DAGS[name]
    names = [structure for structure, _ in schedules(name)]
    assert {n.split("+")[0] for n in names} == {"winograd2", "winograd4"}
    assert {n.split("+")[1].split(",")[0] for n in names} == {"blocked", "whole"}
    for seed, (structure, steps) in enumerate(schedules(name)):
        program = lower(dag, steps)
        for inputs in spoilt(name, seed):
            (expected,) = evaluate(dag, inputs).values()
            found = runs(program, inputs)
            np.testing.assert_allclose(found, expected, rtol=2e-4, atol=2e-5, err_msg=structure)


@pytest.mark.slow
def test_what_the_operand_held_is_there_when_plain_sums_need_it() -> None:
    dag = DAGS["residual"]
    programs = {name: lower(dag, steps) for name, steps in schedules("residual")}
    in_place = {n: p for n, p in programs.items() if ("r", "y") in replaceable(p)}
    assert {"winograd4+blocked", "winograd4+whole"} <= in_place.keys()
    for program in in_place.values():
        for inputs in spoilt("residual", 1):
            found = runs(replace(program, shared=("r", "y")), inputs)
            (expected,) = evaluate(dag, inputs).values()
            np.testing.assert_allclose(found, expected, rtol=2e-4, atol=2e-5)


@pytest.mark.sampled(2)
@pytest.mark.slow
@pytest.mark.parametrize("name", DAGS)
def test_data_of_any_usual_size_are_filtered_and_huge_ones_summed(name: str) -> None:
    dag, inputs = DAGS[name], inputs_of(name)
    for structure, steps in schedules(name):
        filtered, plain = lower(dag, steps), lower(dag, exact_steps(dag, steps))
        for scale, same in ((1.0, False), (65504.0 / 5, False), (1e9, True), (1e37, True)):
            scaled = inputs | {"x": inputs["x"] * np.float32(scale)}
            equal = np.array_equal(runs(filtered, scaled), runs(plain, scaled))
            assert equal is same, f"{structure}, {scale}"


@pytest.mark.slow
def test_equal_huge_elements_are_noticed() -> None:
    for value in (2.0**100, 1e37):
        inputs = inputs_of("residual")
        inputs["x"][...] = value
        for _, steps in schedules("residual"):
            plain = lower(DAGS["residual"], exact_steps(DAGS["residual"], steps))
            found = runs(lower(DAGS["residual"], steps), inputs)
            np.testing.assert_array_equal(found, runs(plain, inputs))


@pytest.mark.parametrize("m", [2, 3, 4, 6])
@pytest.mark.parametrize(("r", "stride"), [(2, 1), (3, 1), (5, 1), (3, 2), (4, 2), (5, 3)])
def test_watched_points_depend_on_every_element(m: int, r: int, stride: int) -> None:
    try:
        f = filtering(m, r, stride)
    except ScheduleError:
        pytest.skip(f"F({m}, {r}) needs more points than there are")
    watched = [f.data[n] for n in f.watched]
    assert all(any(column) for column in zip(*watched, strict=True))
    if len(f.data) <= 6:  # as many as search takes
        assert all(abs(c) >= 1 for row in watched for c in row if c)
    assert any(sum(row) for row in watched)


@pytest.mark.sampled(2)
@pytest.mark.slow
@pytest.mark.parametrize("name", DAGS)
def test_the_schedule_of_plain_sums_is_one_of_its_own(name: str) -> None:
    dag = DAGS[name]
    inputs = random_inputs(dag)
    program = lower(dag, exact_steps(dag, schedules(name)[-1][1]))
    assert_computes(program, inputs, evaluate(dag, inputs), TARGET, (2,))


@pytest.mark.slow
def test_the_interpreter_decides_as_the_machine_does() -> None:
    dag = DAGS["row"]
    for inputs in list(spoilt("row", 3))[::3]:
        expected = evaluate(dag, inputs)["conv"]
        for _, steps in schedules("row"):
            found = interpret(lower(dag, steps), inputs, rounding=1e-4)["conv"]
            np.testing.assert_allclose(found, expected, rtol=2e-4, atol=2e-5)


def test_a_schedule_that_decides_too_late_has_no_program() -> None:
    dag = DAGS["bias_relu"]
    inner = (ComputeAt(f"conv.{name}", "conv", "o") for name in ("y1", "products", "x2"))
    steps = (Winograd("conv", ("kh", "kw"), 2), ComputeAt("conv", "biased", "o"), *inner)
    with pytest.raises(ScheduleError, match="conv is computed before it is known"):
        lower(dag, steps)


def test_naive_loops_decide_as_well() -> None:
    dag, inputs = DAGS["bias_relu"], next(spoilt("bias_relu", 0))
    program = lower(dag, (Winograd("conv", ("kh", "kw"), 2),))
    found = run_compiled(program, inputs, TARGET)
    np.testing.assert_allclose(found["relu"], evaluate(dag, inputs)["relu"], rtol=2e-4, atol=2e-5)
    clean = inputs_of("bias_relu")
    assert_close(run_compiled(program, clean, TARGET), evaluate(dag, clean), 5e-6)
