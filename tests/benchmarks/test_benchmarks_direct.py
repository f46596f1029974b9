"""Leaving Winograd's algorithm out of the search and out of a network."""

from __future__ import annotations

import numpy as np
import pytest

from autotune.search.cost.ranker import Ranker
from autotune.search.policy import SketchPolicy
from autotune.target import Target
from autotune.te.dag import ComputeDAG
from benchmarks.direct import restrict, uses_winograd
from tests.schedule.small_dags import conv, gemm


def policy(dag: ComputeDAG, target: Target) -> SketchPolicy:
    return SketchPolicy(dag, target, 1, Ranker(0), np.random.default_rng(0))


@pytest.mark.parametrize("dag", [conv(h=16, w=16, ic=16, oc=16), gemm()], ids=["conv", "gemm"])
def test_a_restricted_search_is_direct(dag: ComputeDAG, any_target: Target) -> None:
    full, direct = policy(dag, any_target), restrict(policy(dag, any_target))
    expected = {name for name, s in full.sketches.items() if not uses_winograd(s.steps)}
    assert set(direct.sketches) == expected
    assert direct.sketches
    assert not any(uses_winograd(c.steps) for c in direct.propose(8))


def test_a_convolution_can_do_otherwise(any_target: Target) -> None:
    sketches = policy(conv(h=16, w=16, ic=16, oc=16), any_target).sketches
    assert any(uses_winograd(s.steps) for s in sketches.values())
