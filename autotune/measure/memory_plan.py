"""⑦ Memory budget of the session, its builders and the run worker.

Builders and run worker never work at the same time, but the memory that they hold at rest adds up.
The figures are measured anonymous memory; pages of library code are shared and reclaimable.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from autotune.errors import UsageError
from autotune.machine import Limits

_MB = 1 << 20
_BUILDER_BYTES = 88 * _MB
"""A builder at work on a usual candidate, with its supervisor."""
_BUILDER_LEAST_BYTES = 256 * _MB
"""Address space that LLVM reserves; most of it is never used."""
_WORKER_BYTES = 72 * _MB
_GROWTH_BYTES = 32 * _MB
"""Growth of the session's memory while it searches."""
_MODEL_COPIES = 3
_MOST_CACHED_BYTES = 1 << 30


@dataclass(frozen=True, slots=True)
class MemoryPlan:
    """Builder processes, and the data that each of them and the run worker may have, in bytes."""

    n_builders: int
    builder_bytes: int
    worker_bytes: int


def plan_memory(limits: Limits, session_bytes: int, task_bytes: int = 0) -> MemoryPlan:
    """Divide the memory of `limits` beside `session_bytes`, which the session holds now.

    `task_bytes`: of the largest task in the run worker. As many builders as can run at
    once, fewer where memory is short. Raises UsageError where not even one fits.
    """
    least = session_bytes + _GROWTH_BYTES + _WORKER_BYTES + task_bytes + _BUILDER_BYTES
    if limits.memory_bytes < least:
        raise UsageError(
            f"tuning this model takes about {_mb(least)} of memory, this process may use "
            f"{_mb(limits.memory_bytes)}",
            "allow the container or unit more memory, or tune on another machine of this kind",
        )
    spare = limits.memory_bytes - least
    n_builders = min(limits.n_busy, 1 + spare // _BUILDER_BYTES)
    room = limits.memory_bytes - session_bytes - _GROWTH_BYTES
    at_rest = min(room - n_builders * _BUILDER_BYTES, _WORKER_BYTES + _MOST_CACHED_BYTES)
    return MemoryPlan(
        n_builders=n_builders,
        builder_bytes=max(_BUILDER_LEAST_BYTES, (room - at_rest) // n_builders),
        worker_bytes=room - n_builders * _BUILDER_BYTES + _WORKER_BYTES,
    )


def require_memory(limits: Limits, session_bytes: int, model_bytes: int) -> None:
    """Raise UsageError before a model is read that there is no room to tune."""
    plan_memory(limits, session_bytes + _MODEL_COPIES * model_bytes)


def private_bytes(status: Path = Path("/proc/self/status")) -> int:
    """Anonymous memory of this process; 0 where the system does not tell."""
    try:
        lines = status.read_text().splitlines()
    except OSError:
        return 0
    return sum(int(line.split()[1]) << 10 for line in lines if line.startswith("RssAnon:"))


def _mb(n_bytes: int) -> str:
    return f"{-(-n_bytes // _MB)} MB"
