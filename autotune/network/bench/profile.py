"""⑩ Profile of a running network: time by task, beside the measurements of tuning.

Whole inferences and profiled ones take turns one by one: both are ours and run on the same threads,
so neither disturbs the other, and whatever else happens on the machine happens to both. Profiled
inferences wait for all threads after every kernel, also where the network does not. Where the sum
of the tasks and the whole inference part, as they do where threads have to wait for cores, the
times of tasks say nothing.
"""

from __future__ import annotations

import re
import statistics
import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain
from types import MappingProxyType
from typing import Any

import numpy as np
from numpy.typing import NDArray

from autotune.brief import brief
from autotune.measure.timing.noise import Noise, Usage, judge
from autotune.measure.timing.turns import turns
from autotune.network.artifact.artifact import KernelInfo, Tuned
from autotune.network.artifact.hybrid import ONNX_TASK
from autotune.network.runtime.kernel_time import KernelTime
from autotune.network.runtime.runtime import Model, random_inputs

SLOW_RATIO = 1.15
"""A task that takes more than this times as long in the network as alone is worth a look."""

_WARM_UPS = 3
_SLACK = 1 / 3


@dataclass(frozen=True, slots=True)
class TaskTime:
    """All calls of one task in one inference, in seconds.

    `time_s`: in the network, kernel by kernel; `alone_s`: as many calls at the latency that tuning
    measured, None where that is not known for this number of threads; `limit_s`: as many at the
    peak rates of this machine, None where that is not known.
    """

    id: int
    key: str
    label: str
    n_calls: int
    time_s: float
    alone_s: float | None = None
    limit_s: float | None = None

    @property
    def limit_share(self) -> float | None:
        """Share of the limit that is reached."""
        known = self.limit_s is not None and self.time_s > 0
        return self.limit_s / self.time_s if known and self.limit_s is not None else None

    @property
    def ratio(self) -> float | None:
        """Time in the network over time alone."""
        return self.time_s / self.alone_s if self.alone_s else None

    @property
    def is_slow(self) -> bool:
        """Whether the task is slower in the network than it should be."""
        return (self.ratio or 0.0) > SLOW_RATIO


@brief
@dataclass(frozen=True, slots=True)
class NetworkProfile:
    """Every task, in order of first call, and the whole inference, which was not profiled.

    `overhead_s`: of a profiled call, outside of its kernels. `noise`: what others did meanwhile.
    `kernels`: in their order, at the medians of their times.
    """

    tasks: tuple[TaskTime, ...]
    inference_s: float
    n_runs: int
    n_threads: int
    overhead_s: float = 0.0
    noise: Noise | None = None
    kernels: tuple[KernelTime, ...] = ()

    @property
    def adds_up(self) -> bool:
        """Whether the tasks and the overhead are the inference, give or take a third."""
        between_s, slack_s = self.inference_s - self.tasks_s, _SLACK * self.inference_s
        return -slack_s <= between_s <= slack_s + self.overhead_s

    @property
    def tasks_s(self) -> float:
        """Sum over all tasks."""
        return sum(t.time_s for t in self.tasks)

    @property
    def alone_s(self) -> float | None:
        """Sum of the times of tasks alone, None unless all are known."""
        known = [t.alone_s for t in self.tasks if t.alone_s is not None]
        return sum(known) if len(known) == len(self.tasks) else None

    def to_json(self) -> dict[str, Any]:
        """The documented form: tasks by falling time, then the totals."""
        tasks = sorted(self.tasks, key=lambda t: -t.time_s)
        return {
            "tasks": [self._task_json(t) for t in tasks],
            "tasks_s": self.tasks_s,
            "alone_s": self.alone_s,
            "inference_s": self.inference_s,
            "between_s": self.inference_s - self.tasks_s,
            "runs": self.n_runs,
            "threads": self.n_threads,
            "adds_up": self.adds_up,
            "noise": None if self.noise is None else self.noise.to_json(),
        }

    def _task_json(self, task: TaskTime) -> dict[str, Any]:
        return {
            "id": task.id,
            "key": task.key,
            "subgraph": task.label,
            "calls": task.n_calls,
            "time_s": task.time_s,
            "share": task.time_s / self.tasks_s if self.tasks_s else 0.0,
            "alone_s": task.alone_s,
            "ratio": task.ratio,
            "limit_s": task.limit_s,
            "limit_share": task.limit_share,
            "slow": task.is_slow,
        }


def profile_tasks(
    model: Model,
    tuned: Mapping[str, Tuned] | None = None,
    min_runs: int = 20,
    min_s: float = 2.0,
    seed: int = 0,
    clock: Callable[[], float] = time.perf_counter,
    usage: Callable[[], Usage] | None = None,
    limits_s: Mapping[str, float] = MappingProxyType({}),
) -> NetworkProfile:
    """Profile `model` on random inputs for `min_runs` inferences and `min_s` seconds of each kind.

    A tiny network takes less than what is around its calls: that counts as well.

    `tuned`: latencies of tasks alone by key; None takes those in the artifact. Only those measured
    on as many threads as the model runs on are used. `usage`: reads processor times, to detect
    co-tenants. `limits_s`: least seconds of a call, by task.
    """
    inputs = random_inputs(model.input_info, seed)
    return profile_runs(
        model,
        (lambda: model.run(inputs), lambda: model.profile(inputs)),
        tuned,
        min_runs,
        min_s,
        clock,
        usage,
        limits_s,
    )


def profile_runs(
    model: Model,
    calls: tuple[Callable[[], object], Callable[[], Sequence[KernelTime]]],
    tuned: Mapping[str, Tuned] | None = None,
    min_runs: int = 20,
    min_s: float = 2.0,
    clock: Callable[[], float] = time.perf_counter,
    usage: Callable[[], Usage] | None = None,
    limits_s: Mapping[str, float] = MappingProxyType({}),
) -> NetworkProfile:
    """`profile_tasks` of inferences, by `calls`: one that makes one, and one that times it."""
    run, profile = calls
    for _ in range(_WARM_UPS):
        run()
        profile()
    before = usage() if usage else None
    whole: list[float] = []
    runs: list[list[float]] = []
    overhead: list[float] = []
    order = chain.from_iterable(turns(2))
    begin = clock()
    while min(len(whole), len(runs)) < min_runs or clock() - begin < 2 * min_s:
        start = clock()
        if next(order):
            run()
            whole.append(clock() - start)
        else:
            runs.append([kernel.time_s for kernel in profile()])
            overhead.append(clock() - start - sum(runs[-1]))
    alone = model.artifact.tuned if tuned is None else tuned
    known = {key: t.latency_s for key, t in alone.items() if t.n_threads == model.n_threads}
    kernels = model.artifact.kernels
    outside = dict.fromkeys(k.task for k in kernels if k.task.startswith(ONNX_TASK))
    keys = (*model.artifact.tasks, *outside)
    tasks = task_times(kernels, np.array(runs), known, keys, limits_s)
    return NetworkProfile(
        tasks,
        statistics.median(whole),
        len(whole),
        model.n_threads,
        max(0.0, statistics.median(overhead)),
        judge(before, usage()) if usage and before else None,
        tuple(map(KernelTime, kernels, np.median(np.array(runs), axis=0).tolist())),
    )


def seconds_per_call(
    models: Sequence[Model],
    inputs: Mapping[str, NDArray[Any]],
    min_runs: int = 10,
    min_s: float = 1.0,
    clock: Callable[[], float] = time.perf_counter,
) -> list[dict[str, float]]:
    """Seconds of one call of every task, by key, of models that take the same inputs, in turns."""
    runs: list[list[list[float]]] = [[] for _ in models]
    start, order = clock(), turns(len(models))
    while len(runs[0]) < min_runs + _WARM_UPS or clock() - start < min_s:
        for n in next(order):
            runs[n].append([kernel.time_s for kernel in models[n].profile(inputs)])
    several = []
    for model, found in zip(models, runs, strict=True):
        tasks = task_times(model.artifact.kernels, np.array(found[_WARM_UPS:]), {})
        several.append({task.key: task.time_s / task.n_calls for task in tasks})
    return several


def fallback_share(model: Model, min_runs: int = 5) -> float:
    """Share of the time that segments of ONNX Runtime take of an inference on random inputs."""
    profile = profile_tasks(model, min_runs=min_runs, min_s=0.0)
    outside_s = sum(t.time_s for t in profile.tasks if t.key.startswith(ONNX_TASK))
    return outside_s / profile.tasks_s if profile.tasks_s else 0.0


def task_times(
    kernels: Sequence[KernelInfo],
    times_s: NDArray[Any],
    alone_s: Mapping[str, float],
    tasks: Sequence[str] = (),
    limits_s: Mapping[str, float] = MappingProxyType({}),
) -> tuple[TaskTime, ...]:
    """Medians over the rows of `times_s` (runs × kernels) of the sums over every task's kernels.

    Ids are positions in `tasks`, the keys of all tasks of the model, else in the order of calls.
    """
    ids = {key: n for n, key in enumerate(tasks)}
    calls = count_calls(kernels)
    labels = {kernel.task: kernel.label for kernel in reversed(kernels)}
    out = []
    for n, (key, n_calls) in enumerate(calls.items()):
        columns = [k for k, kernel in enumerate(kernels) if kernel.task == key]
        time_s = float(np.median(times_s[:, columns].sum(axis=1)))
        alone = alone_s.get(key)
        whole, limit = (
            None if one is None else n_calls * one for one in (alone, limits_s.get(key))
        )
        out.append(TaskTime(ids.get(key, n), key, labels[key], n_calls, time_s, whole, limit))
    return tuple(out)


def count_calls(kernels: Sequence[KernelInfo]) -> dict[str, int]:
    """Number of calls of each task, by key, in order of first call.

    A call launches all kernels of its program, so it is counted by the first of them, whatever
    prefix the program has in this network.
    """
    firsts: dict[str, str] = {}
    for kernel in kernels:
        firsts.setdefault(kernel.task, _name(kernel))
    return dict(Counter(k.task for k in kernels if _name(k) == firsts[k.task]))


def _name(kernel: KernelInfo) -> str:
    return re.sub(r"^p\d+_", "", kernel.symbol)
