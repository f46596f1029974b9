"""⑨ A tuning task: one distinct subgraph of the model, with its calls per inference.

A task with `parts` is an alternative to those tasks: the model runs either it or all of them.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace

from autotune.brief import brief
from autotune.records.record import Header, Log
from autotune.te.at_numbers import usual
from autotune.te.dag import ComputeDAG


@brief
@dataclass(frozen=True, slots=True)
class TuningTask:
    """Unit of tuning. `weight`: calls per inference, on average where there are several shapes.
    `bound_s`: seconds below which no program can come, where that is known.

    `parts`: keys of the tasks that it may replace; their weights count as if it never did.
    """

    key: str
    dag: ComputeDAG
    weight: float
    label: str = ""
    bound_s: float | None = None
    parts: tuple[str, ...] = ()

    @property
    def flops(self) -> int:
        """Floating-point operations of one evaluation, at usual numbers of a call."""
        return usual(self.dag).flops


def logged_tasks(log: Log, bounds_s: Mapping[str, float]) -> list[TuningTask]:
    """The tasks of a log whose computations it holds, with their weights, in model order."""
    header, known = log.header, log.workloads
    parts = {key: p for key, p in header.parts.items() if known.keys() >= set(p)}
    return [
        TuningTask(
            key,
            known[key].dag,
            weight,
            known[key].label,
            bounds_s.get(key),
            parts.get(key, ()),
        )
        for key, weight in header.weights.items()
        if key in known
    ]


def networks_of(header: Header, tasks: Iterable[TuningTask]) -> list[list[TuningTask]]:
    """The tasks of each network of a header that has several, as that network calls them."""
    by_key = {task.key: task for task in tasks}
    return [
        [replace(by_key[key], weight=n, parts=found.parts.get(key, ())) for key, n in found.tasks]
        for found in header.networks
    ]
