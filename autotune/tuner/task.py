"""⑨ A tuning task: one distinct subgraph of the model, with its calls per inference.

A task with `parts` is an alternative to those tasks: the model runs either it or all of them.
"""

from __future__ import annotations

from dataclasses import dataclass

from autotune.brief import brief
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
        """Floating-point operations of one evaluation."""
        return self.dag.flops
