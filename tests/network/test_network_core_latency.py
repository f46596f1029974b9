from __future__ import annotations

import itertools
import os

import pytest

from autotune.network.bench.core_latency import CoreLatency
from autotune.target import host_target


@pytest.mark.parametrize("n_threads", [2, 3])
def test_a_round_trip_takes_time(n_threads: int) -> None:
    way = CoreLatency(host_target(), n_threads)
    for _ in range(3):
        trip_s = way.measure()
        assert trip_s is not None
        assert 1e-9 < trip_s < 1.0


def test_one_thread_has_nobody_to_talk_to() -> None:
    assert CoreLatency(host_target(), 1).measure() is None


def test_slow_trips_are_few() -> None:
    seconds = itertools.count(step=10.0)
    way = CoreLatency(host_target(), 2, lambda: next(seconds))
    assert way.measure() == 10.0 / 500
    assert next(seconds) == 40.0  # before, around one block, and at the look at the limit


def test_whoever_measures_shares_the_threads() -> None:
    CoreLatency(host_target(), 2).measure()
    before = len(os.listdir("/proc/self/task"))
    for _ in range(5):
        assert CoreLatency(host_target(), 2).measure()
    assert len(os.listdir("/proc/self/task")) == before
