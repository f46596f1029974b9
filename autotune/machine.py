"""Floor 0: limits of this process on the machine: cores, processor time, memory.

A container, a systemd unit or a batch system restricts a process by control groups. The limits of a
group hold for all groups inside it, so the lowest one on the path from the group of the process to
the root applies. Versions 1 and 2 of control groups are read, also where both are in use.
"""

from __future__ import annotations

import contextlib
import math
import os
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from autotune.errors import UsageError
from autotune.units import counted

_MOUNT = Path("sys/fs/cgroup")
_UNIFIED = ("", "unified")
"""Mount points of version 2 below `_MOUNT`: alone, or beside version 1."""
_UNLIMITED = 1 << 60
"""Version 1 writes "no limit" as the largest multiple of a page."""
NEW_OBJECTS = 100_000
"""After so many, processes of ours look for garbage in cycles: hardly any is, and to look after 700
takes 4 % of a compilation."""
VARIABLE = "AUTOTUNE_THREADS"
"""The default number of threads: for sessions that other libraries make."""


@dataclass(frozen=True, slots=True)
class Limits:
    """Limits of this process and its children together.

    `n_cores`: cores that they may run on. `cpus`: processor seconds per second; at most `n_cores`.
    `memory_bytes`: of the machine or the control group, whichever is less.
    """

    n_cores: int
    cpus: float
    memory_bytes: int

    @property
    def n_busy(self) -> int:
        """Threads that can run all the time: see `whole_cpus`."""
        return whole_cpus(self.cpus)


def whole_cpus(cpus: float) -> int:
    """Threads that so many processor seconds per second keep running; at least one.

    With one more than a quota pays for, all stand still for the rest of each period (100 ms) as
    soon as they have used it up.
    """
    return max(1, math.floor(cpus))


def usable_cpus() -> frozenset[int]:
    """CPUs that this process may run on: all, or those of `taskset` or a cpuset."""
    return frozenset(os.sched_getaffinity(0))


def require_threads(n_threads: Any, are_here: bool = True) -> None:
    """Raise UsageError for what is no number of threads, and not None, which stands for a default.

    `are_here`: threads of this machine, where they are no more than cores.
    """
    if n_threads is None:
        return
    if not hasattr(n_threads, "__index__") or n_threads < 1:
        raise UsageError(f"cannot run on {n_threads} threads", "give a whole number, 1 or more")
    n_cores = len(usable_cpus())
    if are_here and n_threads > n_cores:
        cores = counted(n_cores, "core")
        raise UsageError(
            f"cannot run on {n_threads} threads: this process may use {cores}",
            f"use at most {n_cores}, or allow this process more cores (taskset, cpuset)",
        )


def told_threads(environment: Mapping[str, str] | None = None) -> int | None:
    """Threads by AUTOTUNE_THREADS, if set. Raises UsageError for no number of threads."""
    text = (os.environ if environment is None else environment).get(VARIABLE, "").strip()
    if not text:
        return None
    if not re.fullmatch(r"0*[1-9][0-9]{0,5}", text):
        raise UsageError(f"{VARIABLE} is '{text[:40]}'", "set it to 1 or more threads, or unset it")
    return int(text)


def read_limits(root: Path = Path("/")) -> Limits:
    """The limits in the files below `root`; an unreadable one is no limit."""
    n_cores = len(usable_cpus())
    total = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    return Limits(
        n_cores=n_cores,
        cpus=min(float(n_cores), cpu_quota(root)),
        memory_bytes=min([total, *_memory_limits(root)]),
    )


def available_bytes(root: Path = Path("/")) -> int:
    """Memory that this process may take now: of the machine, and of its control groups.

    Files in the cache of a group count as free, as far as they are not in use.
    """
    lines = [line.split() for line in read_text(root / "proc/meminfo").splitlines()]
    found = [int(line[1]) << 10 for line in lines if line[0] == "MemAvailable:"]
    for controller, limit, used in (
        ("", "memory.max", "memory.current"),
        ("", "memory.high", "memory.current"),
        ("memory", "memory.limit_in_bytes", "memory.usage_in_bytes"),
    ):
        for folder in _folders(root, controller):
            words = map(str.split, read_text(folder / "memory.stat").splitlines())
            stat = {pair[0]: pair[1] for pair in words if len(pair) == 2}
            idle = int(stat.get("total_inactive_file", stat.get("inactive_file", 0)))
            taken = _numbers(folder / used)
            found += [most - taken[0] + idle for most in _numbers(folder / limit) if taken]
    return max(0, min(found, default=read_limits(root).memory_bytes))


def cpu_quota(root: Path = Path("/")) -> float:
    """Processor seconds per second that control groups leave this process; infinite without one."""
    return min(_cpu_quotas(root), default=math.inf)


def _memory_limits(root: Path) -> Iterator[int]:
    for folder in _folders(root, ""):
        for name in ("memory.max", "memory.high"):
            yield from _numbers(folder / name)
    for folder in _folders(root, "memory"):
        yield from _numbers(folder / "memory.limit_in_bytes")


def _cpu_quotas(root: Path) -> Iterator[float]:
    for folder in _folders(root, ""):
        yield from _quotas(_numbers(folder / "cpu.max"))
    for folder in _folders(root, "cpu"):
        names = ("cpu.cfs_quota_us", "cpu.cfs_period_us")
        yield from _quotas([n for name in names for n in _numbers(folder / name)])


def _quotas(numbers: list[int]) -> list[float]:
    """Quota over period; nothing where there is no quota ("max" or -1)."""
    return [numbers[0] / numbers[1]] if len(numbers) == 2 and min(numbers) > 0 else []


def _folders(root: Path, controller: str) -> Iterator[Path]:
    """Groups that this process is in, outwards; `controller`: of version 1, "": version 2.

    A container may see its own group at the mount point while the path is that of outside, so
    parts of the path that are not there are left out.
    """
    for line in read_text(root / "proc/self/cgroup").splitlines():
        _, _, rest = line.partition(":")
        controllers, found, path = rest.partition(":")
        if not found or controller not in controllers.split(","):
            continue
        mounts = (controllers, controller) if controller else _UNIFIED
        for mount in {root / _MOUNT / name for name in mounts}:
            inner = mount / path.strip("/")
            yield from (p for p in (inner, *inner.parents) if p == mount or mount in p.parents)


def _numbers(path: Path) -> list[int]:
    """The numbers of a file of limits; "max" and its equivalents are left out."""
    with contextlib.suppress(ValueError):
        return [n for n in map(int, read_text(path).split()) if n < _UNLIMITED]
    return []


def read_text(path: Path) -> str:
    """The content of a file of the system; empty where it cannot be read."""
    try:
        return path.read_text(encoding="utf-8", errors="replace")
    except OSError:
        return ""
