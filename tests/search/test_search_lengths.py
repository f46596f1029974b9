"""Programs of tasks whose axes follow a number: what they cost at each, and which is chosen."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest

from autotune.schedule.at_numbers import at_numbers
from autotune.schedule.replay import replay
from autotune.schedule.steps import Annotate, Split
from autotune.search.cost.analysis import analyse
from autotune.search.cost.analytic import estimate_s
from autotune.search.cost.sketch_facts import SketchFacts
from autotune.search.defaults import default_candidate
from autotune.search.sketch import generate_sketches
from autotune.te.dag import ComputeDAG
from tests.lengths_tasks import product, softmax
from tests.targets import AVX2

ROWS = 64


def _product(n: int | None = None) -> ComputeDAG:
    return product(ROWS if n is None else n, 96, 64, follows=n is None)


def test_the_last_tile_is_as_long_as_what_is_left() -> None:
    steps = (Split("c", "i", (4, 6)), Annotate("c", "i.2", "unroll"))
    state = replay(_product(), steps)
    for n, blocks, tiles, rows in [(1, 1, 1, 1), (6, 1, 1, 6), (7, 1, 2, 6), (25, 2, 4, 6)]:
        extents = {i.name: i.extent for i in at_numbers(state, {"n": n})["c"].iters}
        assert (extents["i.0"], extents["i.1"], extents["i.2"]) == (blocks, tiles, rows)


@pytest.mark.parametrize("n", [8, 24, 48, 64])
def test_equal_work_has_the_estimate_of_the_static_task(n: int, rng: np.random.Generator) -> None:
    seen = 0
    for sketch in generate_sketches(_product(), AVX2):
        rows = sketch.sample(400, rng)
        rows = rows[analyse(_product(), sketch, rows, AVX2).valid][:8]
        for row in rows:
            steps = sketch.bind(row)
            tiles = [s for s in steps if isinstance(s, Split) and s.iter == "i"]
            if all(n % int(f) == 0 for s in tiles for f in s.factors[-1:]):
                here = estimate_s(_product(), steps, AVX2, 1, [{"n": n}])
                static = estimate_s(_product(n), steps, AVX2, 1)
                assert here == pytest.approx(static, rel=0.02)
                seen += 1
    assert seen


def test_estimates_and_features_are_means_over_usual_numbers(rng: np.random.Generator) -> None:
    dag = _product()
    sketch = generate_sketches(dag, AVX2)[0]
    rows = sketch.sample(300, rng)
    direct, traced = (SketchFacts(dag, sketch, AVX2, 1) for _ in range(2))
    expected = direct.programs(rows, False)
    for _ in range(9):
        last = traced.programs(rows, False)
    assert traced.is_traced
    np.testing.assert_array_equal(expected[2], last[2])
    for k in expected[0][:5]:
        each = estimate_s(dag, sketch.bind(rows[k]), AVX2, 1)
        at = np.flatnonzero(expected[0] == k)[0]
        assert np.exp2(expected[2][at]) == pytest.approx(each, rel=1e-6)


@pytest.mark.parametrize("make", [_product, lambda: softmax(12, 128)])
def test_the_choice_is_deterministic(make: Callable[[], ComputeDAG]) -> None:
    dag = make()
    one, other = (default_candidate(dag, AVX2, 1) for _ in range(2))
    assert one == other


def test_small_numbers_do_not_pay_for_the_tiles_of_the_most() -> None:
    dag, least = _product(), [{"n": 1}]
    chosen, longest = (default_candidate(d, AVX2, 2).steps for d in (dag, _product(ROWS)))
    alone = default_candidate(_product(1), AVX2, 2).predicted_s or 0.0
    assert estimate_s(dag, chosen, AVX2, 2, least) <= estimate_s(dag, longest, AVX2, 2, least)
    assert estimate_s(dag, chosen, AVX2, 2, least) < 1.5 * alone
