from __future__ import annotations

import itertools
import json
from dataclasses import replace

import numpy as np
import pytest

from autotune.cli.bench_text import profile_text
from autotune.network.artifact.artifact import KernelInfo, Tuned
from autotune.network.bench.profile import (
    NetworkProfile,
    TaskTime,
    count_calls,
    profile_tasks,
    task_times,
)
from autotune.network.compile.compiler import compile_network
from autotune.network.runtime.runtime import Model
from autotune.target import host_target
from tests.network.hand_made import reversing
from tests.network.small_networks import branches, mlp, packed_steps


def kernel(task: str, symbol: str, label: str = "") -> KernelInfo:
    return KernelInfo(task, label or task, symbol, 8)


# a runs twice in two layouts, of two kernels each; b once
KERNELS = (
    kernel("a", "p0_k0_pad", "Conv"),
    kernel("a", "p0_k1_conv", "Conv"),
    kernel("a", "p2_k0_pad", "Conv again"),
    kernel("a", "p2_k1_conv", "Conv again"),
    kernel("b", "p10_k0_sum", "Add"),
)


def test_calls_are_counted_whatever_their_layouts() -> None:
    assert count_calls(KERNELS) == {"a": 2, "b": 1}


@pytest.mark.parametrize("make", [mlp, branches])
def test_calls_of_compiled_networks(make: object) -> None:
    network = make()  # type: ignore[operator]
    for steps in ((), packed_steps()) if make is mlp else ((),):
        artifact = compile_network(network, dict.fromkeys(network.tasks, steps), host_target())
        assert count_calls(artifact.kernels) == network.weights
        assert list(count_calls(artifact.kernels)) == list(network.weights)


def test_times_are_medians_of_sums() -> None:
    runs = np.array([[1, 2, 3, 4, 5], [1, 1, 1, 1, 9], [9, 9, 1, 1, 1]], float)
    a, b = task_times(KERNELS, runs, {"a": 4.0})
    assert a == TaskTime(0, "a", "Conv", 2, 10.0, 8.0)
    assert b == TaskTime(1, "b", "Add", 1, 5.0, None)
    assert (a.ratio, a.is_slow) == (1.25, True)
    assert (b.ratio, b.is_slow) == (None, False)
    renumbered = task_times(KERNELS, runs, {}, ["b", "c", "a"])
    assert [(t.id, t.key) for t in renumbered] == [(2, "a"), (0, "b")]


def test_totals() -> None:
    tasks = (TaskTime(0, "a", "Conv", 2, 1.0, 0.9), TaskTime(1, "b", "Add", 1, 3.0, None))
    profile = NetworkProfile(tasks, 5.0, 20, 2)
    assert profile.alone_s is None
    data = profile.to_json()
    assert [t["id"] for t in data["tasks"]] == [1, 0]
    assert [t["share"] for t in data["tasks"]] == [0.75, 0.25]
    assert [t["slow"] for t in data["tasks"]] == [False, False]
    totals = {"tasks_s": 4.0, "alone_s": None, "inference_s": 5.0, "between_s": 1.0}
    about = {"runs": 20, "threads": 2, "adds_up": True, "noise": None}
    assert data == {"tasks": data["tasks"], **totals, **about}
    both = NetworkProfile((tasks[0], replace(tasks[1], alone_s=2.0)), 5.0, 20, 2)
    assert both.alone_s == pytest.approx(2.9)


@pytest.mark.parametrize(
    ("inference_s", "overhead_s", "adds_up"),
    [
        (4.0, 0.0, True),
        (5.9, 0.0, True),
        (6.1, 0.0, False),  # threads wait for cores: medians of tasks leave that out
        (6.1, 3.0, True),  # a tiny network, of which calls take more than kernels
        (3.1, 0.0, True),
        (2.9, 3.0, False),
    ],
)
def test_a_sum_that_is_not_the_inference_is_noticed(
    inference_s: float, overhead_s: float, adds_up: bool
) -> None:
    tasks = (TaskTime(0, "a", "Conv", 2, 1.0, 0.9), TaskTime(1, "b", "Add", 1, 3.0, None))
    profile = NetworkProfile(tasks, inference_s, 20, 2, overhead_s)
    assert profile.adds_up is adds_up
    assert profile.to_json()["adds_up"] is adds_up
    text = profile_text(profile)
    assert text.startswith("inference: ") is not adds_up
    assert ("Conv" in text) is adds_up


@pytest.mark.parametrize("n_threads", [1, 2, 3])
def test_a_profile_of_a_running_network(n_threads: int) -> None:
    network = mlp()
    artifact = compile_network(network, dict.fromkeys(network.tasks, ()), host_target())
    tuned = {"first": Tuned(1e-3, n_threads), "rest": Tuned(1e-3, 8)}
    model = Model(replace(artifact, tuned=tuned), n_threads)
    profile = profile_tasks(model, min_runs=5, min_s=0.0)
    assert [(t.key, t.label, t.n_calls, t.alone_s) for t in profile.tasks] == [
        ("first", "linear a", 1, 1e-3),
        ("rest", "linear b", 2, None),  # known for another number of threads only
    ]
    assert all(0 <= t.time_s < 1 for t in profile.tasks)
    assert profile.inference_s > 0
    assert (profile.n_runs, profile.n_threads) == (5, n_threads)
    json.dumps(profile.to_json(), allow_nan=False)


def test_other_latencies_may_be_given() -> None:
    model = Model(replace(reversing(5), tuned={"t": Tuned(1.0, 1)}), 1)
    (task,) = profile_tasks(model, {"t": Tuned(2.0, 1)}, min_runs=1, min_s=0.0).tasks
    assert (task.n_calls, task.alone_s) == (5, 10.0)
    (task,) = profile_tasks(model, {}, min_runs=1, min_s=0.0).tasks
    assert task.alone_s is None


def test_whole_inferences_are_timed_until_there_are_enough() -> None:
    ticks = itertools.count(step=0.5)
    profile = profile_tasks(Model(reversing(2)), min_runs=2, min_s=6.0, clock=lambda: next(ticks))
    assert profile.n_runs > 2
    assert profile.inference_s == 0.5
