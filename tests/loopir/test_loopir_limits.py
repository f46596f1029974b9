"""A task whose axes follow a number computes what the static task of that number does."""

from __future__ import annotations

from collections.abc import Iterator
from random import Random

import numpy as np
import pytest

from autotune.errors import ScheduleError
from autotune.loopir.limited_stores import limited, with_limited_stores
from autotune.loopir.lower import lower
from autotune.loopir.nodes import Program
from autotune.loopir.verify import verify
from autotune.schedule.steps import Annotate, ComputeAt, Split
from autotune.search.cost.analysis import analyse
from autotune.search.sketch import generate_sketches
from autotune.te.codec import dag_from_json, dag_to_json
from autotune.te.dag import ComputeDAG, compute, placeholder
from autotune.te.evaluate import counted, evaluate
from autotune.te.expr import Axis, Expr, add, compare, f32, idx, maximum, minimum, select, sub
from autotune.te.validate import require_valid
from tests.loopir.interp import interpret
from tests.loopir.limited_tasks import MOST, TASKS, Sizes, values
from tests.schedule.random_schedules import random_steps
from tests.schedule.running import Array, assert_close, run_compiled
from tests.targets import AVX2, AVX512

N_TRIES = 30


def drawn(name: str, seed: int) -> Program:
    """A task under the first random schedule that has a program."""
    return scheduled(TASKS[name](Sizes(None), Random(seed)), seed)


def scheduled(whole: ComputeDAG, seed: int) -> Program:
    for k in range(N_TRIES):
        try:
            return lower(whole, random_steps(whole, Random(seed + 1000 * k)))
        except ScheduleError:
            continue
    return lower(whole, ())


def numbers_of(seed: int) -> list[dict[str, int]]:
    """One, the most, and two others."""
    rng = Random(seed)
    some = [{n: rng.randint(1, most) for n, most in MOST.items()} for _ in range(2)]
    return [dict.fromkeys(MOST, 1), dict(MOST), *some]


def runs(program: Program, wide: dict[str, Array]) -> Iterator[dict[str, Array]]:
    """What the interpreter and machine code make of a program, on several threads."""
    yield interpret(program, wide, rounding=1e-4, garbage=True)
    for n_chunks in (1, 2, 7):
        yield run_compiled(program, wide, AVX2, n_chunks)


def check(name: str, seed: int) -> None:
    whole = TASKS[name](Sizes(None), Random(seed))
    program = drawn(name, seed)
    verify(program)
    for at in numbers_of(seed):
        static = TASKS[name](Sizes(at), Random(seed))
        wide, dense = values(whole, at, static, seed)
        expected, parts = evaluate(static, dense), counted(whole, wide)
        for found in (evaluate(whole, wide), *runs(program, wide)):
            assert_close({n: a[parts[n]] for n, a in found.items()}, expected, 3e-5)


@pytest.mark.sampled(14)
@pytest.mark.parametrize("seed", range(6))
@pytest.mark.parametrize("name", TASKS)
def test_what_counts_is_computed_whatever_is_behind_it(name: str, seed: int) -> None:
    check(name, seed)


@pytest.mark.parametrize("name", TASKS)
def test_search_proposes_schedules_of_tasks_with_lengths(name: str) -> None:
    """Whatever structure search finds, for AVX-512 too."""
    rng = np.random.default_rng(3)
    whole = TASKS[name](Sizes(None), Random(3))
    sketches = generate_sketches(whole, AVX512)
    for sketch in (sketches[int(i)] for i in rng.permutation(len(sketches))[:4]):
        rows = sketch.sample(40, rng)
        rows = rows[analyse(whole, sketch, rows, AVX512).valid]
        for row in rows[:1]:
            program = lower(whole, sketch.bind(row), verify=True)
            for at in ({"m": 4, "n": 7}, MOST):
                static = TASKS[name](Sizes(at), Random(3))
                wide, dense = values(whole, at, static, 1)
                found = interpret(program, wide, rounding=1e-4, garbage=True)
                parts = counted(whole, wide)
                found = {n: a[parts[n]] for n, a in found.items()}
                assert_close(found, evaluate(static, dense), 3e-5)


def test_nothing_is_written_behind_the_last_tile() -> None:
    """Only what the tiles that begin in front of the length reach."""
    whole = TASKS["product"](Sizes(None), Random(1))
    program = lower(whole, (Split("y", "i", (4,)), ComputeAt("p", "y", "i.0")))
    for n in (1, 4, 5, 17):
        wide = values(whole, {"n": n}, TASKS["product"](Sizes({"n": n}), Random(1)), 0)[0]
        y = interpret(program, wide, garbage=True)["y"]
        last = -(-n // 4) * 4
        assert np.isnan(y[last:]).all() or last >= len(y)
        assert not np.isnan(y[:n]).any()


def test_the_last_register_tile_has_about_as_many_rows_as_are_left(
    rng: np.random.Generator,
) -> None:
    """So a call of a few rows does not compute those of a tile that is best for many."""
    s, k = Sizes(None), Axis("k", 3)
    i = s.axis("i", "n")
    x = s.given("x", (i.extent, k.extent))
    whole = s.dag(s.compute("y", (i, k), add(x[i, k], f32(1.0))))
    tile = (Split("y", "i", (8,), "split"), Annotate("y", "i.1", "unroll"))
    program = lower(whole, tile, verify=True)
    given = rng.standard_normal((MOST["n"], 3)).astype(np.float32)
    for n in range(1, MOST["n"] + 1):
        y = interpret(program, {"x": given, "n": np.array([n])}, garbage=True)["y"]
        last = n + 1 if n in (7, 15) else n  # there is no version for seven rows
        np.testing.assert_allclose(y[:last], given[:last] + 1)
        assert np.isnan(y[last:]).all()


def test_a_limit_is_part_of_a_task() -> None:
    """Its key, text and JSON form have it."""
    whole = TASKS["elementwise"](Sizes(None), Random(2))
    static = TASKS["elementwise"](Sizes(MOST), Random(2))
    assert whole.key != static.key
    assert dag_from_json(dag_to_json(whole)) == whole
    require_valid(whole)
    assert "and n[0]" in str(whole)


def test_a_number_without_a_limit_may_be_anything() -> None:
    """A condition of few places says nothing about what an index of more has room for."""
    k, n = Axis("k", 4), placeholder("n", (1,), "int64")
    x, y = placeholder("x", (4,)), placeholder("y", (30,))
    here = select(compare("lt", k.var, n.tensor[0]), x.tensor[k], f32(0.0))
    there = y.tensor[add(n.tensor[0], k.var)]
    op = compute("z", (k,), add(here, there))
    dag = ComputeDAG((n, x, y, op), ("z",))
    program = lower(dag, (), verify=True)
    rng = np.random.default_rng(0)
    given = {"x": rng.standard_normal(4), "y": rng.standard_normal(30)}
    given = {name: a.astype(np.float32) for name, a in given.items()}
    for at in (0, 2, 3, 26):
        first = [given["x"][i] if i < at else 0.0 for i in range(4)]
        expected = np.array(first, np.float32) + given["y"][at : at + 4]
        inputs = given | {"n": np.array([at])}
        for found in (interpret(program, inputs)["z"], run_compiled(program, inputs, AVX2)["z"]):
            np.testing.assert_allclose(found, expected, rtol=1e-6)


def test_parts_that_are_joined_may_be_empty() -> None:
    """As classes of a detector without a box are; a part of a fixed size stands behind them."""
    sizes, fixed = (20, 10, 8), 3
    numbers = [placeholder(f"n{k}", (1,), "int64") for k in range(len(sizes))]
    parts = [placeholder(f"x{k}", (size,)) for k, size in enumerate((*sizes, fixed))]
    starts: list[Expr] = [idx(0)]
    for n in numbers:
        starts.append(add(starts[-1], n.tensor[0]))
    k = Axis("k", sum(sizes) + fixed, add(starts[-1], idx(fixed)))
    body: Expr = f32(0.0)
    ends = [*starts[1:], add(starts[-1], idx(fixed))]
    for part, start, end in reversed(list(zip(parts, starts, ends, strict=True))):
        last = idx(part.tensor.shape[0] - 1)
        here = part.tensor[maximum(minimum(sub(k.var, start), last), idx(0))]
        body = select(compare("lt", k.var, end), here, body)
    dag = ComputeDAG((*numbers, *parts, compute("y", (k,), body)), ("y",))
    given = {
        p.name: 100 * n + np.arange(p.tensor.size, dtype=np.float32) for n, p in enumerate(parts)
    }
    for seed in range(3):
        program = scheduled(dag, seed)
        for at in ((2, 0, 3), (0, 0, 1), (0, 10, 0), (20, 10, 8), (0, 0, 0)):
            inputs = given | {f"n{n}": np.array([size]) for n, size in enumerate(at)}
            found = run_compiled(program, inputs, AVX2)["y"]
            expected = [given[f"x{n}"][:size] for n, size in enumerate((*at, fixed))]
            np.testing.assert_array_equal(found[: sum(at) + fixed], np.concatenate(expected))


@pytest.mark.sampled(8)
@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize("name", TASKS)
def test_limited_results_are_written_in_front_of_limits_alone(name: str, seed: int) -> None:
    """As rows of a state are: behind them there is what belongs to others."""
    whole, program = TASKS[name](Sizes(None), Random(seed)), drawn(name, seed)
    program = with_limited_stores(limited(program, whole, whole.outputs), whole)
    verify(program)
    for at in numbers_of(seed):
        wide, _ = values(whole, at, TASKS[name](Sizes(at), Random(seed)), seed)
        expected, parts = evaluate(whole, wide), counted(whole, wide)
        unwritten = interpret(program, wide, rounding=1e-4, garbage=True)
        for found in (unwritten, run_compiled(program, wide, AVX2, 2)):
            for n, array in found.items():
                assert_close({n: array[parts[n]]}, {n: expected[n][parts[n]]}, 3e-5)
        for n, array in unwritten.items():
            behind = np.ones(array.shape, bool)
            behind[parts[n]] = False
            assert np.isnan(array[behind]).all()


def test_two_values_behind_a_limit_are_none() -> None:
    """Overlapping tiles may make two of what was never written; neither counts."""
    check("moved", 7007)
