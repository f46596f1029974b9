"""A search repeats the analysis of a sketch as an array program: the same, to the last bit."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from autotune.array_program import Trace, Traced, Untraceable
from autotune.search.cost import sketch_facts
from autotune.search.cost.sketch_facts import SketchFacts
from autotune.search.sketch import generate_sketches
from autotune.search.space import Sketch
from autotune.target import Target
from autotune.te.dag import ComputeDAG
from tests.schedule import small_dags
from tests.targets import AMX, AVX2

DAGS = {
    "gemm": lambda: small_dags.gemm(96, 48, 64),
    "conv": lambda: small_dags.conv(28, 28, 64, 64),
    "depthwise": lambda: small_dags.depthwise(14, 64),
    "pool": small_dags.max_pool,
    "softmax": lambda: small_dags.softmax(48, 64),
    "attention": small_dags.attention,
    "separable": small_dags.separable,
    "gathered": small_dags.gathered,
    "transposed": lambda: small_dags.transposed(64, 48),
    "row means": small_dags.row_means,
}


@pytest.mark.parametrize("name", DAGS)
def test_a_traced_analysis_finds_the_same(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    for target in (AVX2, AMX):
        same_facts(DAGS[name](), target, monkeypatch)


def same_facts(dag: ComputeDAG, target: Target, monkeypatch: pytest.MonkeyPatch) -> None:
    sketches = generate_sketches(dag, target)
    for sketch in sketches[:: 1 + len(sketches) // 6]:
        rows = np.unique(sketch.sample(300, np.random.default_rng(0)), axis=0)
        direct, traced = (SketchFacts(dag, sketch, target, 4) for _ in range(2))
        monkeypatch.setattr(sketch_facts, "_UNTRACED", -1)
        for with_features in (True, False):
            traced.programs(rows, with_features)
        assert traced.is_traced or len(rows) < 100
        monkeypatch.undo()
        for part in (rows, rows[:5], rows[-1:]):
            for with_features in (True, False):
                expected = direct.programs(part, with_features)
                found = traced.programs(part, with_features)
                for one, other in zip(found, expected, strict=True):
                    assert one.dtype == other.dtype
                    np.testing.assert_array_equal(one, other, strict=True)
        for one, other in zip(traced.features(rows), direct.features(rows), strict=True):
            np.testing.assert_array_equal(one, other, strict=True)


@pytest.mark.parametrize("name", DAGS)
def test_a_candidate_costs_in_a_population_what_its_program_costs_alone(name: str) -> None:
    """Alone, all amounts are numbers; in a population those that rows change are arrays."""
    dag = DAGS[name]()
    for target in (AVX2, AMX):
        for n, sketch in enumerate(generate_sketches(dag, target)):
            rows = sketch.sample(48, np.random.default_rng(n))
            kept, _, found = SketchFacts(dag, sketch, target, 4).programs(rows, False)
            for k, score in list(zip(kept, found, strict=True))[:3]:
                alone = Sketch(sketch.name, sketch.bind(rows[k]), ())
                no_rows = np.zeros((1, 0), np.int64)
                (only,) = SketchFacts(dag, alone, target, 4).programs(no_rows, False)[2]
                assert only == score


def test_a_program_gives_what_the_function_gives_for_other_arrays() -> None:
    def function(x: Any, n: int) -> Any:
        wide = np.concatenate([np.broadcast_to(x, (2, n)), np.ones((1, n))])
        half = np.where(x > 3, x * 1, x / 2) + np.full(n, 0.0)
        return np.stack([half, wide[0] ** 2.0, np.argmax(wide, axis=0)], axis=1)

    trace = Trace(61)
    program = trace.program((function(trace.input("x", np.arange(61.0)), 61),))
    for n in (1, 7, 100):
        x = np.random.default_rng(n).normal(0, 5, n)
        np.testing.assert_array_equal(program({"x": x}, n)[0], function(x, n), strict=True)


def _count(x: Traced) -> Any:
    return x.cumsum() + x


REFUSED: dict[str, Callable[[Any], Any]] = {
    "a branch": lambda x: x if x[0] > 0 else -x,
    "a number": lambda x: x * int(x[0]),
    "a constant for each candidate": lambda x: x + np.arange(61),
    "a result that is overwritten": lambda x: np.add(np.zeros(61), x, out=np.zeros(61)),
    "an operation that is not recorded": _count,
    "a function that is not known": lambda x: np.sort(x),
}


@pytest.mark.parametrize("name", REFUSED)
def test_what_a_program_cannot_repeat_is_refused(name: str) -> None:
    trace = Trace(61)
    x = trace.input("x", np.linspace(1.0, 2.0, 61))
    with pytest.raises(Untraceable):
        trace.program((REFUSED[name](x),))
