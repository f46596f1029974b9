"""⑩ Time of a kernel in a running network."""

from __future__ import annotations

from dataclasses import dataclass

from autotune.network.artifact.artifact import KernelInfo


@dataclass(frozen=True, slots=True)
class KernelTime:
    """Seconds of one kernel in one inference, until all threads have done their parts."""

    kernel: KernelInfo
    time_s: float
