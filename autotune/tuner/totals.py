"""⑨ Σ weight·latency of a network, untuned and as tuned so far, over the same calls.

Untuned is what `compile` makes without a log: the default program of every task, and of every chain
the alternative that the analytical cost model expects to be faster. Tuned is what it makes of the
log: the best program of every task, its default where nothing was measured. A call counts for the
comparison when both are measured.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from autotune.graph.network import UNDECIDED, takes_whole
from autotune.tuner.task import TuningTask

_ROUNDING = 1e-9
"""Weights are sums of shares, so a remainder may be a rounding error."""


@dataclass(frozen=True, slots=True)
class TaskTimes:
    """Seconds of a task: its default program, as measured and as estimated; its best program.

    `is_taken`: whether it replaces its parts, where that was decided in the compiled network.
    """

    untuned_s: float | None = None
    tuned_s: float | None = None
    estimate_s: float | None = None
    is_taken: bool | None = None


@dataclass(frozen=True, slots=True)
class Totals:
    """`total_s`: Σ weight·latency of all calls whose program is known; `n_known` tasks have one.

    `untuned_s` and `tuned_s` are of the same calls, those for which both are known. These are
    `share` of the network's FLOPs; the default programs of `n_compared` tasks were measured.
    """

    total_s: float = 0.0
    n_known: int = 0
    untuned_s: float = 0.0
    tuned_s: float = 0.0
    n_compared: int = 0
    share: float = 0.0

    @property
    def is_complete(self) -> bool:
        """Whether the comparison is of the whole network."""
        return self.share == 1.0

    @property
    def ratio(self) -> float | None:
        """Speed-up of tuned over untuned; None where nothing can be compared."""
        return self.untuned_s / self.tuned_s if self.tuned_s else None


@dataclass(frozen=True, slots=True)
class CallTimes:
    """Seconds of `weight` calls of a task, or of a chain of `tasks`, together; None: unknown."""

    weight: float
    tasks: tuple[str, ...]
    untuned_s: float | None
    tuned_s: float | None


@dataclass(frozen=True, slots=True)
class _Calls:
    """`weight` calls of a task, or of the parts of a chain, which may be calls of its `whole`."""

    weight: float
    tasks: tuple[str, ...]
    whole: str | None = None


def fastest(networks: Sequence[Sequence[TuningTask]], times: Mapping[str, TaskTimes]) -> Totals:
    """Totals of the fastest of `networks`, which are alternatives.

    Those of which a call is not known do not compete; where that is all, the first one counts.
    """
    return totals(fastest_network(networks, times), times)


def fastest_network(
    networks: Sequence[Sequence[TuningTask]], times: Mapping[str, TaskTimes]
) -> Sequence[TuningTask]:
    """The network of which `fastest` tells."""
    known = [tasks for tasks in networks if None not in _tuned_s(tasks, times)]
    return min(known or networks[:1], key=lambda tasks: totals(tasks, times).total_s)


def totals(tasks: Sequence[TuningTask], times: Mapping[str, TaskTimes]) -> Totals:
    """Totals of a network with these tasks, of which `times` were measured."""
    flops = {task.key: max(1, task.flops) for task in tasks}
    n_tuned = sum(t.tuned_s is not None for t in times.values())
    untuned = {key: t.untuned_s for key, t in times.items() if t.untuned_s is not None}
    n_compared = sum(times[key].tuned_s is not None for key in untuned)
    total_s = before_s = after_s = 0.0
    work = compared = 0.0
    for calls in call_times(tasks, times):
        weighted_flops = calls.weight * sum(flops[key] for key in calls.tasks)
        work += weighted_flops
        if calls.tuned_s is not None:
            total_s += calls.weight * calls.tuned_s
        if calls.tuned_s is not None and calls.untuned_s is not None:
            before_s += calls.weight * calls.untuned_s
            after_s += calls.weight * calls.tuned_s
            compared += weighted_flops
    share = compared / work if work else 0.0
    return Totals(total_s, n_tuned, before_s, after_s, n_compared, share)


def call_times(tasks: Sequence[TuningTask], times: Mapping[str, TaskTimes]) -> Iterator[CallTimes]:
    """Every call of a network once, those that are chains together: what `totals` adds up."""
    untuned = {key: t.untuned_s for key, t in times.items() if t.untuned_s is not None}
    estimated = _estimates(times)
    for calls, now_s in zip(_calls(tasks), _tuned_s(tasks, times), strict=True):
        default_s = _seconds(calls, untuned, {}, estimated)
        yield CallTimes(calls.weight, calls.tasks, default_s, now_s)


def _estimates(times: Mapping[str, TaskTimes]) -> dict[str, float]:
    return {key: t.estimate_s for key, t in times.items() if t.estimate_s is not None}


def _tuned_s(tasks: Sequence[TuningTask], times: Mapping[str, TaskTimes]) -> list[float | None]:
    """Seconds of one call each of `_calls` as tuned, where they are known."""
    tuned = {key: t.tuned_s for key, t in times.items() if t.tuned_s is not None}
    taken = {key: t.is_taken for key, t in times.items() if t.is_taken is not None}
    estimated = _estimates(times)
    return [_seconds(calls, tuned, tuned, estimated, taken) for calls in _calls(tasks)]


def _calls(tasks: Sequence[TuningTask]) -> Iterator[_Calls]:
    """Every call of the network once, those that are chains together."""
    in_chains: defaultdict[str, float] = defaultdict(float)
    for task in tasks:
        if task.parts:
            for key in task.parts:
                in_chains[key] += task.weight
            yield _Calls(task.weight, task.parts, task.key)
    for task in tasks:
        left = task.weight - in_chains[task.key]
        if not task.parts and left > _ROUNDING * task.weight:
            yield _Calls(left, (task.key,))


def _seconds(
    calls: _Calls,
    seconds: Mapping[str, float],
    measured_s: Mapping[str, float],
    estimate_s: Mapping[str, float],
    taken: Mapping[str, bool] = UNDECIDED,
) -> float | None:
    """`seconds` of the tasks that `compile` would call, given these measurements and estimates.

    None where they are unknown, or where it is unknown which alternative of a chain it would take.
    """
    if calls.whole is None:
        return _sum_s(calls.tasks, seconds)
    both = {calls.whole, *calls.tasks}
    if not (both <= measured_s.keys() or both <= estimate_s.keys()):
        return None
    is_whole = takes_whole(calls.whole, calls.tasks, measured_s, estimate_s, taken)
    return _sum_s((calls.whole,) if is_whole else calls.tasks, seconds)


def _sum_s(tasks: Sequence[str], seconds: Mapping[str, float]) -> float | None:
    """Seconds of these tasks together; None where one is unknown."""
    found = [seconds[key] for key in tasks if key in seconds]
    return sum(found) if len(found) == len(tasks) else None
