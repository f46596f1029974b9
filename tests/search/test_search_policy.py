"""Proposals: never twice, the same for the same seed, and guided by what was observed."""

from __future__ import annotations

import math

import numpy as np
import pytest
from numpy.typing import NDArray

from autotune.result import MeasureResult, MeasureStatus
from autotune.schedule.steps import Winograd, steps_text
from autotune.search.cost import ranker
from autotune.search.cost.analysis import analyse
from autotune.search.cost.analytic import analytic_seconds
from autotune.search.cost.features import NAMES, features
from autotune.search.cost.ranker import OTHER_TASK, Ranker, ordered_pairs
from autotune.search.defaults import default_alternatives, default_candidate, default_steps
from autotune.search.policy import SketchPolicy, algorithm
from autotune.search.sketch import generate_sketches
from tests.schedule.small_dags import conv, gemm
from tests.targets import AVX2, AVX512

TARGET = AVX2
DAG = gemm(128, 96, 64)
ANALYTIC = NAMES.index("analytic")


def policy(seed: int = 0) -> SketchPolicy:
    return SketchPolicy(DAG, TARGET, 1, Ranker(seed), np.random.default_rng(seed))


def result(seconds: float) -> MeasureResult:
    return MeasureResult(MeasureStatus.OK, (seconds,) * 3)


@pytest.mark.slow
def test_nothing_is_proposed_twice() -> None:
    p, seen = policy(), set()
    for _ in range(4):
        batch = p.propose(8)
        texts = {steps_text(c.steps) for c in batch}
        assert len(texts) == len(batch) == 8
        assert not texts & seen
        seen |= texts
        p.observe([(c, result(1e-3)) for c in batch])


@pytest.mark.slow
def test_a_seed_reproduces_the_search() -> None:
    a, b = policy(3), policy(3)
    for k in range(3):
        x, y = a.propose(8), b.propose(8)
        assert x == y
        for p in (a, b):
            p.observe([(c, result(1e-3 / (1 + n + k))) for n, c in enumerate(x)])
    assert policy(4).propose(8) != policy(3).propose(8)


def test_the_first_batch_tries_every_structure() -> None:
    p = policy()
    assert {c.sketch for c in p.propose(16)} == set(p.sketches)


def test_the_first_batch_is_half_of_what_is_asked_for_or_one_of_each_structure() -> None:
    n_structures = len(policy().sketches)
    assert 8 < n_structures < 16
    assert [len(policy().propose(n)) for n in (5, 16, 60)] == [5, n_structures, 30]


@pytest.mark.slow
def test_an_algorithm_that_only_gives_inaccurate_results_is_left_alone() -> None:
    dag = conv(28, 28, 64, 64)
    p = SketchPolicy(dag, TARGET, 1, Ranker(0), np.random.default_rng(0))
    rough = {n for n, s in p.sketches.items() if algorithm(s)}
    inaccurate = MeasureResult(MeasureStatus.INACCURATE, (1e-6,) * 3, max_error=1e-4)
    batch = p.propose(16)
    assert any(c.sketch in rough for c in batch)
    p.observe([(c, inaccurate if c.sketch in rough else result(1e-3)) for c in batch])
    for _ in range(3):
        batch = p.propose(16)
        p.observe([(c, inaccurate if c.sketch in rough else result(1e-3)) for c in batch])
    assert all(c.sketch not in rough for c in p.propose(16))


def test_the_cost_model_prefers_full_registers() -> None:
    sketch = generate_sketches(DAG, TARGET)[0]
    rows = sketch.sample(4000, np.random.default_rng(0))
    found = analyse(DAG, sketch, rows, TARGET)
    seconds = analytic_seconds(found, TARGET, 1)
    main = max(found.statements, key=lambda s: s.flops)
    best = np.argsort(seconds)[:20]
    assert np.isfinite(seconds[best]).all()
    assert main.accumulators[best].min() >= 6
    assert (main.accumulators + main.operands)[best].max() <= TARGET.n_registers


def test_the_cost_model_knows_that_l1_keeps_few_lines_of_one_set() -> None:
    """Of rows 2 KiB apart every other one is in the same set; a line further, none of 28 are."""
    target, per_row = AVX512, {}
    for length in (512, 528):
        dag = gemm(112, 16, length)
        sketch = generate_sketches(dag, target)[0]
        rows = sketch.sample(2000, np.random.default_rng(0))
        values = sketch.values(rows)
        rows = rows[(values["i.tile"] == 28) & (values["k.unroll"] == 1)]
        main = max(analyse(dag, sketch, rows, target).statements, key=lambda s: s.flops)
        per_row[length] = np.median(main.traffic[0]) / length
    assert per_row[512] > 8 * per_row[528]


def test_the_ranker_learns_what_the_cost_model_misses() -> None:
    sketch = generate_sketches(DAG, TARGET)[0]
    rows = sketch.sample(3000, np.random.default_rng(1))
    found = analyse(DAG, sketch, rows, TARGET)
    x = features(found, sketch, rows, TARGET, 1)[found.valid]
    truth = np.exp2(x[:, NAMES.index("analytic")] + 0.5 * x[:, NAMES.index("chain")])
    ranker = Ranker(0)
    before = np.corrcoef(ranker.predict(x), np.log2(truth))[0, 1]
    ranker.observe("task", x[:200], truth[:200])
    after = np.corrcoef(ranker.predict(x[200:]), np.log2(truth[200:]))[0, 1]
    assert after > max(before, 0.95)


def taught(rng: np.random.Generator, slope: float) -> Ranker:
    """A ranker that knows 12 other tasks, of which a feature tells what the cost model misses."""
    found = Ranker(0)
    for n in range(12):
        x = rng.random((30, len(NAMES)))
        noise = 0.2 * rng.standard_normal(len(x))
        log2 = x[:, ANALYTIC] + slope * x[:, NAMES.index("chain")] + noise + 3.0 * n
        found.teach(f"other {n}", x, np.exp2(log2), OTHER_TASK)
    found.train()
    return found


def test_what_other_tasks_taught_has_to_earn_its_place() -> None:
    rng = np.random.default_rng(3)
    x = rng.random((200, len(NAMES)))
    np.testing.assert_array_equal(taught(rng, 0.0).predict(x), x[:, ANALYTIC])
    truth = x[:, ANALYTIC] + 2.0 * x[:, NAMES.index("chain")]
    learnt = ordered_pairs(taught(rng, 2.0).predict(x), truth)
    assert learnt > 0.1 + ordered_pairs(x[:, ANALYTIC], truth)


def test_how_fast_a_task_is_as_a_whole_changes_no_order() -> None:
    rng = np.random.default_rng(4)
    x, rankers = rng.random((200, len(NAMES))), []
    for factor in (1.0, 50.0):
        found = Ranker(0)
        for task, at in (("one", slice(100)), ("two", slice(100, 200))):
            log2 = x[at, ANALYTIC] + 2.0 * x[at, NAMES.index("chain")]
            found.observe(task, x[at], np.exp2(log2) * (factor if task == "two" else 1.0))
        found.train()
        rankers.append(found)
    slow, fast = (each.predict(x) for each in rankers)
    np.testing.assert_allclose(slow - fast, np.mean(slow - fast), atol=1e-6)


def test_the_ranker_makes_features_of_what_it_trains_on_only(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(ranker, "MOST_SAMPLES", 50)
    rng = np.random.default_rng(0)
    x, asked = rng.random((200, len(NAMES))), []

    def featurise(rows: NDArray[np.int64]) -> NDArray[np.float64]:
        asked.extend(rows[:, 0].tolist())
        return x[rows[:, 0]]

    lazy, eager = Ranker(0), Ranker(0)
    lazy.observe("task", np.arange(200)[:, None], 1e-3 + x[:, 0], featurise)
    eager.observe("task", x, 1e-3 + x[:, 0])
    assert not asked
    np.testing.assert_array_equal(lazy.predict(x), eager.predict(x))
    assert len(asked) == 50
    assert len(set(asked)) == 50


def test_features_are_finite_and_named() -> None:
    for sketch in generate_sketches(DAG, TARGET):
        rows = sketch.sample(50, np.random.default_rng(2))
        found = analyse(DAG, sketch, rows, TARGET)
        x = features(found, sketch, rows, TARGET, 2)[found.valid]
        assert x.shape[1] == len(NAMES)
        assert np.isfinite(x).all()


def test_the_default_needs_no_measurement_and_is_always_the_same() -> None:
    assert default_steps(DAG, TARGET, 2) == default_steps(DAG, TARGET, 2)


@pytest.mark.slow
def test_the_default_is_a_direct_sum_where_it_must_be_accurate() -> None:
    dag = conv(28, 28, 64, 64)

    def uses_winograd(max_error: float) -> bool:
        steps = default_steps(dag, TARGET, 1, max_error)
        return any(isinstance(step, Winograd) for step in steps)

    assert [uses_winograd(error) for error in (1e-5, 5e-5)] == [False, True]


@pytest.mark.sampled(0)
@pytest.mark.slow
def test_defaults_are_estimated_as_fast_as_what_a_longer_search_finds() -> None:
    """Structures that drop out of the race early lose little."""
    dag = conv(14, 14, 64, 64)
    policy = SketchPolicy(dag, TARGET, 2, Ranker(0), np.random.default_rng(1))
    thorough = next(policy.unmeasured_best((64,) * 6)).predicted_s
    found = default_candidate(dag, TARGET, 2).predicted_s
    assert found is not None
    assert thorough is not None
    assert found <= 1.03 * thorough
    near = default_alternatives(dag, TARGET, 2, math.inf, 16, 1.02)
    assert all(found <= 1.001 * (c.predicted_s or 0) for c in near)
    assert all((c.predicted_s or math.inf) <= 1.03 * found for c in near)
