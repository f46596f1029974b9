"""⑨ A tuning task: one distinct subgraph of the model, and how often the model runs it.

A task with `parts` is an alternative to those tasks: the model runs either it or all of them.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from autotune.te.dag import ComputeDAG


@dataclass(frozen=True, slots=True)
class TuningTask:
    """What is tuned. `bound_s`: seconds below which no program can come, where that is known.

    `parts`: keys of the tasks that it may replace; their weights count as if it never did.
    """

    key: str
    dag: ComputeDAG
    weight: int
    label: str = ""
    bound_s: float | None = None
    parts: tuple[str, ...] = ()

    @property
    def flops(self) -> int:
        """Floating-point operations of one evaluation."""
        return self.dag.flops


def weighted_s(tasks: Iterable[TuningTask], latency_s: Mapping[str, float | None]) -> float:
    """Σ weight·latency of the tasks that have one, where each alternative is the faster one."""
    known = {key: value for key, value in latency_s.items() if value is not None}
    total = 0.0
    for task in tasks:
        own = known.get(task.key)
        if own is not None and task.parts:
            parts_s = sum(known.get(key, math.inf) for key in task.parts)
            total -= task.weight * max(0.0, parts_s - own) if parts_s < math.inf else 0.0
        elif own is not None:
            total += task.weight * own
    return total
