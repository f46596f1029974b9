"""⑨ A tuning task: one distinct subgraph of the model, and how often the model runs it."""

from __future__ import annotations

from dataclasses import dataclass

from autotune.te.dag import ComputeDAG


@dataclass(frozen=True, slots=True)
class TuningTask:
    """What is tuned. `bound_s`: seconds below which no program can come, where that is known."""

    key: str
    dag: ComputeDAG
    weight: int
    label: str = ""
    bound_s: float | None = None

    @property
    def flops(self) -> int:
        """Floating-point operations of one evaluation."""
        return self.dag.flops
