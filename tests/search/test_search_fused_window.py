"""A window inside the blocks of the reduction that reads it: where, and with right numbers."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import numpy as np
import pytest

from autotune.schedule.replay import replay
from autotune.search.cost.analysis import analyse
from autotune.search.cost.analytic import analytic_seconds
from autotune.search.sketch import generate_sketches
from autotune.search.space import Sketch
from autotune.target import Target, parse_target, runs_here
from autotune.te.dag import ComputeDAG
from tests.schedule.small_dags import ALL, conv, pooled_product, separable, two_convs
from tests.search.random_rows import assert_random_rows_compute

TARGETS = [t for t in map(parse_target, ("x86-64-v3", "x86-64-v4")) if runs_here(t)]
CHAINS = ("separable", "separable_strided", "separable_unpadded", "pooled_product")


def middle(dag: ComputeDAG, sketch: Sketch) -> str:
    """The loops with every hole in the middle of its domain."""
    values = {p.name: p.domain[len(p.domain) // 2] for p in sketch.parameters}
    return str(replay(dag, sketch.steps, values))


def test_sketches_of_a_separable_convolution(golden: Callable[[str, str], None]) -> None:
    dag = separable(14, 32, 48)
    sketches = generate_sketches(dag, parse_target("x86-64-v3"))
    lines = [f"== {s.name}\n{middle(dag, s)}" for s in sketches]
    golden("sketches_separable.txt", "\n".join(lines) + "\n")


@pytest.mark.parametrize("name", CHAINS)
def test_everything_is_one_kernel(name: str) -> None:
    dag = ALL[name]()
    for sketch in generate_sketches(dag, parse_target("x86-64-v3")):
        state = replay(dag, sketch.steps, {p.name: p.domain[0] for p in sketch.parameters})
        assert "chained" in sketch.name
        assert sum(s.attach is None for s in state.stages.values()) == 1


@pytest.mark.parametrize("dag", [conv(), two_convs()], ids=["conv", "two_convs"])
def test_a_reduction_that_is_no_window_is_not_chained(dag: ComputeDAG) -> None:
    sketches = generate_sketches(dag, parse_target("x86-64-v3"))
    assert not any("chained" in s.name for s in sketches)


@pytest.mark.sampled(2)
@pytest.mark.slow
@pytest.mark.parametrize("target", TARGETS, ids=lambda t: t.cpu)
@pytest.mark.parametrize("name", CHAINS)
def test_random_rows_compute_what_the_definition_says(name: str, target: Target) -> None:
    assert_random_rows_compute(ALL[name](), target, n_samples=200, n_chunks=(2,), seed=11)


@pytest.mark.sampled(0)
@pytest.mark.slow
def test_the_cost_model_prefers_what_stays_in_the_cache() -> None:
    """Blocks of a few rows before one block of everything, which goes through L2.

    Where padding is copied, larger blocks copy fewer rows twice: only what is best of all counts.
    """
    dag = separable(56, 128, 128)
    target = replace(parse_target("x86-64-v4"), l1_bytes=32 << 10, l2_bytes=1 << 20)
    best = {}
    for sketch in generate_sketches(dag, target):
        found = analyse(dag, sketch, sketch.sample(60000, np.random.default_rng(0)), target)
        seconds = analytic_seconds(found, target, 1)
        local = np.sum([s.local_bytes for s in found.statements], axis=0)
        best[sketch.name] = seconds.min(), local[np.argmin(seconds)]
    in_place = [found for name, found in best.items() if name.endswith("inlined")]
    assert all(local < target.l2_bytes / 4 for _, local in (*in_place, min(best.values())))


def test_a_window_that_is_read_as_it_is_gets_a_consumer() -> None:
    sketch = generate_sketches(pooled_product(), parse_target("x86-64-v3"))[0]
    assert "pool.sum" in str(sketch.steps)
