"""Policies on a recorded space: they pick what is in it, each once, and the best first if known."""

from __future__ import annotations

import math
from functools import cache

import numpy as np
import pytest

from autotune.result import MeasureResult, MeasureStatus
from autotune.search.cost.features import NAMES
from autotune.search.cost.ranker import Ranker
from autotune.search.policy import FIRST_BATCH, Candidate
from benchmarks.search_metrics import (
    curve,
    from_halves,
    from_others,
    median_and_worst,
    pairwise_accuracy,
    top_recall,
)
from benchmarks.search_policies import (
    KINDS,
    AnalyticOnly,
    Chance,
    Greedy,
    Kind,
    Ordering,
    RecordedPolicy,
    Scratch,
    Unmeasured,
    replay,
)
from benchmarks.search_spaces import Space
from tests.benchmarks.search_small import DAG, Truth, ok, small_space
from tests.schedule.small_dags import gemm

ANALYTIC = NAMES.index("analytic")


@cache
def one() -> Space:
    return small_space()


@cache
def two() -> tuple[Space, Space]:
    return one(), small_space(gemm(192, 64, 96))


@pytest.mark.parametrize("name", KINDS)
def test_everything_recorded_is_measured_once_and_the_same_for_a_seed(name: str) -> None:
    found = replay(two(), KINDS[name], 0)
    for s in two():
        batches = found[s.task.key]
        assert sorted(x for batch in batches for x in batch) == sorted(s.latency_s)
        assert FIRST_BATCH <= len(batches[0]) < 16
    assert replay(two(), KINDS[name], 0) == found


@pytest.mark.parametrize("policy", [Greedy, RecordedPolicy])
def test_who_knows_the_truth_finds_the_best_at_once(policy: type[Greedy]) -> None:
    batches = replay([one()], Kind(Truth, policy), 0)[DAG.key]
    assert batches[0][0] == one().best_s
    assert curve(batches, one().best_s).first == 1.0


@pytest.mark.slow
def test_chance_finds_what_is_to_be_expected() -> None:
    """The best of k drawn from n: the i-th with probability C(n-1-i, k-1) / C(n, k)."""
    latency_s, k = np.sort(one().latency_s), FIRST_BATCH
    n = len(latency_s)
    chances = [math.comb(n - 1 - i, k - 1) / math.comb(n, k) for i in range(n)]
    found = []
    for seed in range(400):
        picked = Greedy(one(), Chance(seed, 1), np.random.default_rng(seed)).propose(16)
        found.append(min(_latency_s(c) for c in picked))
    error = np.std(found) / len(found) ** 0.5
    assert np.mean(found) == pytest.approx(np.dot(chances, latency_s), abs=4 * error)


def _latency_s(candidate: Candidate) -> float:
    """What was recorded of a candidate, whatever was predicted of it."""
    same = (p.candidate.steps == candidate.steps for p in one().points)
    at = next(i for i, found in enumerate(same) if found)
    return float(one().latency_s[at])


def test_equals_are_taken_by_chance_and_none_twice() -> None:
    class Blind(AnalyticOnly):
        def predict(self, rows: np.ndarray) -> np.ndarray:
            return np.zeros(len(rows))

    blind = Blind(0, 1)
    a, b = (Unmeasured(one(), np.random.default_rng(seed)) for seed in (0, 1))
    assert a.best(blind, 8) != b.best(blind, 8)
    first = a.best(blind, 8)
    for candidate in first:
        a.take(candidate)
    assert not {c.steps for c in first} & {c.steps for c in a.best(blind, 100)}


def test_the_product_s_policy_sees_each_structure_first_and_then_learns() -> None:
    policy = RecordedPolicy(one(), Ranker(0), np.random.default_rng(0))
    batch = policy.propose(16)
    estimates = {n: one().x[one().of(n), ANALYTIC].min() for n in policy.sketches}
    near = {n for n, d in estimates.items() if d <= min(estimates.values()) + 1}
    assert {c.sketch for c in batch} >= near
    policy.observe([(c, ok(_latency_s(c))) for c in batch])
    assert not {c.steps for c in batch} & {c.steps for c in policy.propose(100)}


def test_a_failure_costs_a_trial_and_teaches_nothing() -> None:
    ranker = Ranker(0)
    policy = Greedy(one(), ranker, np.random.default_rng(0))
    failed = MeasureResult(MeasureStatus.BUILD_ERROR)
    policy.observe([(c, failed) for c in policy.propose(16)])
    assert len(policy.propose(1000)) == len(one().points) - FIRST_BATCH
    ranker.train()
    assert ranker.train_s == 0.0


# --- rankers ----------------------------------------------------------------------------------


def test_scratch_knows_nothing_of_the_cost_model() -> None:
    x = one().x.copy()
    x[:, ANALYTIC] = 7.0
    ranker = Scratch(0, 1)
    assert not ranker.predict(one().x).any()
    ranker.teach("t", one().x, one().latency_s)
    ranker.train()
    np.testing.assert_array_equal(ranker.predict(x), ranker.predict(one().x))
    assert pairwise_accuracy(ranker.predict(x), one().latency_s) > 0.9


def test_an_ordering_starts_from_the_cost_model_and_learns_the_order() -> None:
    ranker = Ordering(0, 1)
    ranker.train()
    np.testing.assert_array_equal(ranker.predict(one().x), one().x[:, ANALYTIC])
    for s in reversed(two()):  # groups are put in order whichever comes first
        ranker.teach(s.task.key, s.x, s.latency_s)
    ranker.train()
    accuracy = pairwise_accuracy(ranker.predict(one().x), one().latency_s)
    assert accuracy > max(0.9, pairwise_accuracy(one().x[:, ANALYTIC], one().latency_s))


def test_what_is_learnt_of_others_and_of_halves() -> None:
    two = [small_space(dag, 120) for dag in (DAG, gemm(192, 64, 96))]
    for trained in (from_others, from_halves):
        analytic, ranker = (trained(two, kind, 0) for kind in (AnalyticOnly, Ranker))
        assert all(r.accuracy > d.accuracy for d, r in zip(analytic, ranker, strict=True))
        assert all(q.accuracy == 1.0 == q.recall for q in trained(two, Truth, 0))


# --- metrics ----------------------------------------------------------------------------------


def test_pairs_in_the_right_order() -> None:
    latency_s = np.array([1.0, 2.0, 4.0])
    for scores, accuracy in (([1, 2, 3], 1), ([3, 2, 1], 0), ([1, 1, 1], 0.5), ([2, 1, 3], 2 / 3)):
        assert pairwise_accuracy(np.array(scores, float), latency_s) == pytest.approx(accuracy)


def test_pairs_that_cannot_be_told_apart_do_not_count() -> None:
    scores = np.array([2.0, 1.0, 3.0])
    assert pairwise_accuracy(scores, np.array([1.0, 1.01, 2.0])) == 1.0
    assert math.isnan(pairwise_accuracy(scores, np.ones(3)))


def test_the_fastest_among_the_first() -> None:
    latency_s = np.array([5.0, 1.0, 4.0, 2.0])
    assert top_recall(np.array([9.0, 1.0, 2.0, 3.0]), latency_s, 2) == 0.5
    assert top_recall(latency_s, latency_s, 2) == 1.0
    assert top_recall(-latency_s, latency_s, 2) == 0.0
    assert top_recall(-latency_s, latency_s, 8) == 1.0


def test_a_curve_is_the_best_so_far_over_the_best() -> None:
    found = curve([(4.0, math.inf, 2.0), (3.0,) * 6, (1.0,) * 8], 1.0)
    assert found.first == 2.0
    assert found.after == {8: 2.0, 16: 1.0}
    assert curve([(math.inf,) * 8, (2.0,)], 2.0).first == math.inf


def test_the_median_and_the_worst() -> None:
    assert median_and_worst([3.0, math.nan, 1.0, 2.0]) == (2.0, 3.0)
    assert median_and_worst([3.0, 1.0, 2.0], lowest=True) == (2.0, 1.0)
    assert all(map(math.isnan, median_and_worst([math.nan])))
