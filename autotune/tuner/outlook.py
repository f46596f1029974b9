"""⑨ The untuned network beside its bounds, as soon as all of its default programs are measured.

    outlook(networks, defaults_s) ─► Outlook(untuned_s, bound_s)

Untuned is the sum over all calls of what their default programs take, as measured: what the cost
model expects of them may be off by a half, and then so is what is left to gain. The bound is the
sum of the tasks' rooflines. Both are those of the faster alternative of every chain, and of the
fastest network.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

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

    A program that was faster than possible counts with its bound. None where a task has no bound,
    or its default program was not measured.
    """
    bounds_s = _bounds_s(networks)
    if not bounds_s or not bounds_s.keys() <= defaults_s.keys():
        return None
    untuned_s = {key: max(bound_s, defaults_s[key]) for key, bound_s in bounds_s.items()}
    return Outlook(_total_s(networks, untuned_s), _total_s(networks, bounds_s))


def least_s(networks: Sequence[Sequence[TuningTask]]) -> float | None:
    """Seconds below which no program of the network can come; None where a task has no bound."""
    bounds_s = _bounds_s(networks)
    return _total_s(networks, bounds_s) if bounds_s else None


def _bounds_s(networks: Sequence[Sequence[TuningTask]]) -> dict[str, float]:
    """Of all tasks, by key; none where one has no bound."""
    bounds = {task.key: task.bound_s for network in networks for task in network}
    found = {key: bound_s for key, bound_s in bounds.items() if bound_s}
    return found if len(found) == len(bounds) else {}


def _total_s(networks: Sequence[Sequence[TuningTask]], seconds: Mapping[str, float]) -> float:
    return fastest(networks, {key: TaskTimes(s, s, s) for key, s in seconds.items()}).total_s
