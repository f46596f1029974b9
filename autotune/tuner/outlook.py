"""⑨ What tuning can bring at most, before the first trial: the untuned network beside its bounds.

    outlook(networks, defaults_s) ─► Outlook(untuned_s, bound_s)

Untuned is the sum over all calls of what their default programs take, as measured, or else as the
analytical cost model expects at the clock of this machine. The bound is the sum of the tasks'
rooflines. Both are those of the faster alternative of every chain, and of the fastest network.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from autotune.measure.peak import Peaks
from autotune.target import Target
from autotune.tuner.task import TuningTask
from autotune.tuner.totals import TaskTimes, fastest

LITTLE = 0.05
"""Share of the untuned time that is hardly worth a session: a bound is not reached."""


@dataclass(frozen=True, slots=True)
class Outlook:
    """Seconds of the network untuned, and below which no program of its tasks can come."""

    untuned_s: float
    bound_s: float

    @property
    def left(self) -> float:
        """Share of the untuned time that is left to gain at most."""
        return 1 - self.bound_s / self.untuned_s

    @property
    def is_little(self) -> bool:
        """Whether a session is hardly worth it."""
        return self.left < LITTLE


def outlook(
    networks: Sequence[Sequence[TuningTask]], defaults_s: Mapping[str, float]
) -> Outlook | None:
    """`networks`: alternatives, as of a session; `defaults_s`: seconds of default programs, by key.

    A program that is expected to be faster than possible counts with its bound. None where a
    task has no bound or no default program.
    """
    tasks = {task.key: task for network in networks for task in network}
    bounds_s = {key: task.bound_s for key, task in tasks.items() if task.bound_s}
    if not tasks or bounds_s.keys() != tasks.keys() or not bounds_s.keys() <= defaults_s.keys():
        return None
    untuned_s = {key: max(bound_s, defaults_s[key]) for key, bound_s in bounds_s.items()}
    return Outlook(_total_s(networks, untuned_s), _total_s(networks, bounds_s))


def _total_s(networks: Sequence[Sequence[TuningTask]], seconds: Mapping[str, float]) -> float:
    return fastest(networks, {key: TaskTimes(s, s, s) for key, s in seconds.items()}).total_s


def clock_scale(target: Target, n_threads: int, peaks: Peaks) -> float:
    """Seconds on this machine over those that the cost model expects: by their peaks, the clocks.

    The model knows a usual clock of a core, the bounds are of what was measured.
    """
    core = target.core
    per_cycle = core.ports * target.port_bits / 32 * 2
    return per_cycle * core.clock_hz * n_threads / peaks.flops_per_s
