"""⑧ The figures of two searches side by side: the tasks and the calls that both logs know.

compared(figures_of(after), figures_of(before)) ─► SearchComparison
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from autotune.brief import brief
from autotune.errors import LogMismatch
from autotune.reporting.figures import SearchFigures, TaskFigures
from autotune.units import counted


@dataclass(frozen=True, slots=True)
class ComparedTask:
    """A task of two logs: seconds of one call by the best program of each.

    `is_alike`: whether they differ by no more than twice the noise of both.
    """

    id: int
    label: str
    shapes: str
    weight: float
    before_s: float
    after_s: float
    is_alike: bool

    @property
    def ratio(self) -> float:
        """Time of the second log over the first: below 1 where the second is faster."""
        return self.after_s / self.before_s


@brief
@dataclass(frozen=True, slots=True)
class SearchComparison:
    """Tasks that two logs know, and Σ weight·latency of the calls that both know.

    `notes`: what makes the two hard to compare.
    """

    tasks: tuple[ComparedTask, ...]
    before_s: float
    after_s: float
    notes: tuple[str, ...]

    @property
    def ratio(self) -> float | None:
        """Time of the second log over the first."""
        return self.after_s / self.before_s if self.before_s else None


def compared(figures: SearchFigures, other: SearchFigures) -> SearchComparison:
    """The tasks of `other` (before) beside those of `figures` (after), as the latter calls them.

    Raises LogMismatch where they have no task in common.
    """
    known = {task.key: task for task in other.tasks}
    tasks = tuple(_both(task, known) for task in figures.tasks if _is_in(task, known))
    if not tasks:
        raise LogMismatch(
            f"{figures.log} and {other.log} have no measured task in common",
            "compare logs of one model",
        )
    before_s, after_s = _same_calls(other, figures)
    notes = []
    for name in ("cpu", "n_threads", "versions"):
        ours, theirs = getattr(figures, name), getattr(other, name)
        if ours != theirs:
            notes.append(f"{_DIFFERENCES[name]}: {_text(theirs)} against {_text(ours)}")
    if n_left := len({t.key for t in figures.tasks} ^ known.keys()):
        notes.append(f"{counted(n_left, 'task')} in one of the logs only")
    return SearchComparison(
        tasks,
        before_s,
        after_s,
        tuple(notes),
    )


def _same_calls(*both: SearchFigures) -> list[float]:
    """Seconds of the calls that all know."""
    seconds = []
    for figures in both:
        keys = {task.id: task.key for task in figures.tasks}
        found = {tuple(keys[i] for i in call.tasks): call.tuned_s for call in figures.calls}
        seconds.append({call: s for call, s in found.items() if s is not None})
    shared = set.intersection(*(set(found) for found in seconds))
    return [sum(found[call] for call in shared) for found in seconds]


_DIFFERENCES = {
    "cpu": "the logs are of different CPUs",
    "n_threads": "the logs are of different numbers of threads",
    "versions": "the logs are of different versions",
}


def _text(value: Any) -> str:
    if isinstance(value, dict):
        return ", ".join(f"{name} {version}" for name, version in value.items())
    return str(value)


def _is_in(task: TaskFigures, known: Mapping[str, TaskFigures]) -> bool:
    return bool(task.tuned_s and task.key in known and known[task.key].tuned_s)


def _both(task: TaskFigures, known: Mapping[str, TaskFigures]) -> ComparedTask:
    other = known[task.key]
    before_s, after_s = other.tuned_s or 0.0, task.tuned_s or 0.0
    noise = (task.noise**2 + other.noise**2) ** 0.5
    return ComparedTask(
        task.id,
        task.label,
        task.shapes,
        task.weight,
        before_s,
        after_s,
        is_alike=abs(after_s / before_s - 1) <= 2 * noise,
    )
