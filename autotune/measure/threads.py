"""⑦ How many threads: the one rule, for whoever was not told a number.

    default_threads()           # tune, compile, Task, InferenceSession
    default_threads(most=8)     # load: what the network was tuned for, or fewer

As many as run all the time: CPUs that this process may run on, or whole CPUs of its quota, or
physical cores, whichever are least; hyper-threads beyond the cores only where they are measured to
help. `AUTOTUNE_THREADS` says another number, for sessions inside of other people's libraries; what
a caller says counts before both.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from autotune.cache import cache_folder
from autotune.config import MOST_THREADS
from autotune.errors import UsageError
from autotune.machine import read_limits, usable_cpus
from autotune.topology import read_cores

VARIABLE = "AUTOTUNE_THREADS"


@dataclass(frozen=True, slots=True)
class Threads:
    """How many, and what they are fewer for than CPUs that may be used; empty where they are not.

    The text continues a sentence: `1 thread (a quota of 0.5 CPUs)`.
    """

    n: int
    reason: str = ""

    def __str__(self) -> str:
        text = "1 thread" if self.n == 1 else f"{self.n} threads"
        return f"{text} ({self.reason})" if self.reason else text


def default_threads(most: int = MOST_THREADS) -> int:
    """The number of threads for whoever was not told one, `most` at most.

    Raises UsageError where AUTOTUNE_THREADS is no number of threads.
    """
    return explained_threads(most).n


def explained_threads(
    most: int = MOST_THREADS,
    *,
    told: str | None = None,
    cpus: frozenset[int] | None = None,
    root: Path = Path("/"),
    siblings_help: Callable[[frozenset[int]], bool] | None = None,
) -> Threads:
    """`default_threads` with its reason; the others stand for this machine and process in tests.

    `told`: AUTOTUNE_THREADS. `cpus`: that may be used. `root`: of the system's files.
    `siblings_help`: whether the CPUs of a core are faster together than one of them alone.
    """
    told = (os.environ.get(VARIABLE, "") if told is None else told).strip()
    cpus = cpus or usable_cpus()
    if told:
        return Threads(min(_number(told), len(cpus), most), VARIABLE)
    most = min(len(cpus), most)
    if most == 1:
        return Threads(1)
    limits = read_limits(root, cpus)
    n = min(limits.n_busy, most)
    cores = [core & cpus for core in read_cores(root) if core & cpus]
    if len(cores) < n and not (siblings_help or _siblings_help)(max(cores, key=len)):
        return Threads(len(cores), "one per physical core")
    return Threads(n, f"a quota of {limits.cpus:g} CPUs" if n < most else "")


def _number(text: str) -> int:
    if not (text.isascii() and text.isdecimal() and 1 <= int(text[:9]) <= MOST_THREADS):
        raise UsageError(
            f"{VARIABLE} is '{text[:40]}'", "set it to a whole number of threads, or unset it"
        )
    return int(text[:9])


def _siblings_help(core: frozenset[int]) -> bool:
    from autotune.measure.siblings import measured_once  # which generates code

    return measured_once(core, cache_folder())
