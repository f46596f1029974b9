"""Tasks that follow a number are checked at one value, and timed at each of the usual ones."""

from __future__ import annotations

import statistics

import pytest

from autotune.measure.local import local_measurer
from autotune.measure.options import MeasureOptions
from autotune.search.defaults import default_candidate
from autotune.target import host_target
from autotune.te.at_numbers import usual_numbers
from tests.lengths_tasks import product, softmax


@pytest.mark.parametrize("n_threads", [1, 2])
def test_a_result_tells_what_each_usual_number_took(n_threads: int) -> None:
    target = host_target()
    with local_measurer(target, n_threads, MeasureOptions()) as measurer:
        for dag in (product(256, 64, 64), softmax(16, 512)):
            steps = default_candidate(dag, target, n_threads).steps
            (result,) = measurer.measure(dag, [steps])
            assert result.ok, result.error
            assert [a.numbers for a in result.at] == [dict(p) for p in usual_numbers(dag)]
            mean_s = statistics.geometric_mean(a.latency_s for a in result.at)
            assert result.latency_s == pytest.approx(mean_s, rel=1.0)


def test_a_static_result_tells_of_no_number() -> None:
    dag, target = product(16, 8, 16, follows=False), host_target()
    with local_measurer(target, 1, MeasureOptions()) as measurer:
        (result,) = measurer.measure(dag, [default_candidate(dag, target, 1).steps])
    assert result.ok
    assert result.at == ()
