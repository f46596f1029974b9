"""Floor 0: the default number of threads: the one rule.

As many as run all the time: CPUs that this process may use, whole CPUs of its quota, or physical
cores, whichever are least; a core's second hyper-thread counts where it is measured to help
(`measure.threads`). AUTOTUNE_THREADS sets another number, for sessions that another library
makes.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

from autotune.machine import VARIABLE, cpu_quota, told_threads, usable_cpus, whole_cpus
from autotune.topology import read_cores
from autotune.units import counted


@dataclass(frozen=True, slots=True)
class Threads:
    """A number, and the reason for it where it is not that of usable CPUs.

    `str` of it is for people: `1 thread (a quota of 0.5 CPUs)`.
    """

    n: int
    reason: str = ""

    def __str__(self) -> str:
        number = counted(self.n, "thread")
        return f"{number} ({self.reason})" if self.reason else number


def unmeasured(core: frozenset[int]) -> bool:
    """Hyper-threads without a measurement do not help."""
    return False


def usable_threads(
    most: int | None = None,
    siblings_help: Callable[[frozenset[int]], bool] = unmeasured,
    *,
    environment: Mapping[str, str] | None = None,
    cpus: frozenset[int] | None = None,
    root: Path = Path("/"),
) -> Threads:
    """As many as run all the time, `most` at most; or the number in AUTOTUNE_THREADS.

    `siblings_help`: whether the CPUs of a core are faster together than one of them alone, asked
    where it decides. The others stand for this process and machine: its environment, the CPUs that
    it may use, where the system's files are. Raises as `told_threads`.
    """
    told, cpus = told_threads(environment), cpus or usable_cpus()
    if told:
        return Threads(min(told, len(cpus)), VARIABLE)
    most = min(len(cpus), most or len(cpus))
    if most == 1:
        return Threads(1)
    quota = cpu_quota(root)
    n = most if quota >= most else whole_cpus(quota)
    cores = read_cores(root).within(cpus).cores
    if len(cores) < n and not siblings_help(max(cores, key=len)):
        return Threads(len(cores), "one per physical core")
    return Threads(n, f"a quota of {quota:g} CPUs" if n < most else "")
