"""⑦ Noise: whether co-tenants use the machine while it measures.

The processor time of all processes, minus that of this process and its descendants, is used by
co-tenants. Only cores that this process may use are counted. Time that a hypervisor takes (`steal`)
and other sessions of autotune, which disturb even while they look idle, are reported too. Readings
are seconds apart, because the kernel counts in ticks of 10 ms.
"""

from __future__ import annotations

import contextlib
import os
import statistics
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from autotune.machine import usable_cpus

_PROC = Path("/proc")
_USER, _NICE, _SYSTEM, _IRQ, _SOFTIRQ, _STEAL = 0, 1, 2, 5, 6, 7
_PPID, _UTIME, _CSTIME = 1, 11, 14
_CHILD_MODULE = b"autotune.measure.processes.supervisor"
_SESSION_WORD = 6
"""Position of the session's process id on the command line of a builder or worker."""

_LEAST_CPUS = 0.3
_LEAST_SHARE = 0.05  # of the cores
_LEAST_STEAL = 0.03
_ROUND_TRIP_RATIO, _LEAST_ROUND_TRIP_S = 5.0, 2e-6
"""A median round trip above both limits means that threads wait for cores."""


@dataclass(frozen=True, slots=True)
class Usage:
    """Processor seconds until `at_s`: of all processes, stolen, and of this session's processes.

    `sessions`: process ids of other sessions of autotune.
    """

    at_s: float
    n_cores: int
    busy_s: float
    steal_s: float
    own_s: float
    sessions: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True)
class Noise:
    """Activity of co-tenants: cores that they kept busy of `n_cores`, share of time stolen.

    `round_trip_ratio`: median over best round trip of a cache line, where that is suspicious.
    `device`: the machine, where it is one of a fleet.
    """

    n_cores: int
    other_cpus: float = 0.0
    steal: float = 0.0
    sessions: tuple[int, ...] = ()
    round_trip_ratio: float | None = None
    device: str = ""

    @staticmethod
    def from_json(data: Mapping[str, Any], device: str = "") -> Noise:
        """Inverse of `to_json`."""
        names = ("n_cores", "other_cpus", "steal", "round_trip_ratio")
        fields = {name: data[name] for name in names}
        return Noise(**fields, sessions=tuple(data["sessions"]), device=device)

    def to_json(self) -> dict[str, object]:
        """Named fields for events, logs and `bench --format json`."""
        return {
            "n_cores": self.n_cores,
            "other_cpus": round(self.other_cpus, 2),
            "steal": round(self.steal, 3),
            "sessions": list(self.sessions),
            "round_trip_ratio": self.round_trip_ratio and round(self.round_trip_ratio, 1),
        } | ({"device": self.device} if self.device else {})

    @property
    def causes(self) -> str:
        """What disturbs, without the advice."""
        causes = []
        if _is_much(self.other_cpus, self.n_cores):
            causes.append(f"others keep {self.other_cpus:.1f} of {self.n_cores} cores busy")
        if self.steal > _LEAST_STEAL:
            causes.append(f"the host takes {100 * self.steal:.0f} % of the time away")
        if self.sessions:
            pids = ", ".join(map(str, self.sessions))
            causes.append(f"another autotune is working (process {pids})")
        if self.round_trip_ratio is not None:
            causes.append(f"threads wait {self.round_trip_ratio:.0f} times as long as at best")
        return ", ".join(causes)

    def __str__(self) -> str:
        advice = "times are less certain: stop the others, or measure again on a quiet machine"
        where = f"{self.device}: " if self.device else ""
        return f"{where}{self.causes}; {advice}"


def judge(before: Usage, after: Usage, trips_s: Sequence[float] = ()) -> Noise | None:
    """The noise between two readings, or None; `trips_s`: round trips measured meanwhile."""
    time_s = max(after.at_s - before.at_s, 1e-9)
    busy_s, steal_s = after.busy_s - before.busy_s, after.steal_s - before.steal_s
    others = max(0.0, busy_s - (after.own_s - before.own_s)) / time_s
    steal = max(0.0, steal_s) / max(busy_s + steal_s, time_s)
    noise = Noise(after.n_cores, others, steal, after.sessions, _round_trip_ratio(trips_s))
    is_noisy = (
        _is_much(others, after.n_cores)
        or steal > _LEAST_STEAL
        or after.sessions
        or noise.round_trip_ratio is not None
    )
    return noise if is_noisy else None


def _is_much(cpus: float, n_cores: int) -> bool:
    return cpus > max(_LEAST_CPUS, _LEAST_SHARE * n_cores)


def _round_trip_ratio(trips_s: Sequence[float]) -> float | None:
    if not trips_s:
        return None
    median = statistics.median(trips_s)
    ratio = median / max(min(trips_s), 1e-12)
    return ratio if ratio > _ROUND_TRIP_RATIO and median > _LEAST_ROUND_TRIP_S else None


@dataclass(slots=True)
class NoiseWatch:
    """Checks for noise every `every_s` seconds and reports it once, at the second noisy interval.

    A single noisy interval may be an error of counting. `read` gives the usage so far.
    """

    read: Callable[[], Usage]
    every_s: float = 2.0
    n_looks: int = field(default=0, init=False)
    n_noisy: int = field(default=0, init=False)
    _worst: Noise | None = field(default=None, init=False)
    _last: Usage = field(init=False)

    def __post_init__(self) -> None:
        self._last = self.read()

    def look(self) -> Noise | None:
        """Noise to report now; None where there is none, or it has been reported."""
        now = self.read()
        if now.at_s - self._last.at_s < self.every_s:
            return None
        noise, self._last = judge(self._last, now), now
        self.n_looks += 1
        if noise is None:
            return None
        self.n_noisy += 1
        if self._worst is None or noise.other_cpus >= self._worst.other_cpus:
            self._worst = noise
        return noise if self.n_noisy == 2 else None

    def to_json(self) -> dict[str, object]:
        """For the end of a log: the worst noise, and the share of noisy intervals; {} if quiet."""
        if self._worst is None or self.n_noisy < 2:
            return {}
        return self._worst.to_json() | {"share": round(self.n_noisy / self.n_looks, 2)}


def read_usage(proc: Path = _PROC, clock: Callable[[], float] = time.monotonic) -> Usage:
    """The usage until now; zeros where the system does not tell."""
    tick_s = 1.0 / os.sysconf("SC_CLK_TCK")
    cores = usable_cpus()
    stats = _process_stats(proc)
    own = sum(stats[pid][_UTIME + k] for pid in _tree(stats, os.getpid()) for k in range(4))
    rows = _core_rows(proc, cores)
    busy = sum(row[k] for row in rows for k in (_USER, _NICE, _SYSTEM, _IRQ, _SOFTIRQ))
    return Usage(
        at_s=clock(),
        n_cores=len(cores),
        busy_s=busy * tick_s,
        steal_s=sum(row[_STEAL] for row in rows) * tick_s,
        own_s=own * tick_s,
        sessions=_other_sessions(proc, stats, os.getpid()),
    )


def _core_rows(proc: Path, cores: frozenset[int]) -> list[list[int]]:
    """The counters of the cores that this process may use: user, nice, system, idle, …"""
    names = {f"cpu{core}" for core in cores}
    with contextlib.suppress(OSError, ValueError):
        lines = [line.split() for line in (proc / "stat").read_text().splitlines()]
        rows = [list(map(int, words[1:])) for words in lines if words and words[0] in names]
        return [row for row in rows if len(row) > _STEAL]
    return []


def _process_stats(proc: Path) -> dict[int, list[int]]:
    """Numbers of every visible process, from its parent's id (behind the state) on."""
    found = {}
    for entry in os.listdir(proc):
        if entry.isdecimal():
            with contextlib.suppress(OSError, ValueError, IndexError):
                words = (proc / entry / "stat").read_text().rpartition(")")[2].split()
                found[int(entry)] = [0, *map(int, words[1 : _CSTIME + 1])]
    return found


def _tree(stats: Mapping[int, Sequence[int]], root: int) -> set[int]:
    """`root` and all its descendants."""
    children: dict[int, list[int]] = {}
    for pid, numbers in stats.items():
        children.setdefault(numbers[_PPID], []).append(pid)
    found, waiting = set(), [root] if root in stats else []
    while waiting:
        pid = waiting.pop()
        found.add(pid)
        waiting += children.get(pid, [])
    return found


def _other_sessions(
    proc: Path, stats: Mapping[int, Sequence[int]], session: int
) -> tuple[int, ...]:
    """Other sessions, by the builders and workers that are visible."""
    found = set()
    for pid in stats:
        with contextlib.suppress(OSError, ValueError, IndexError):
            words = (proc / str(pid) / "cmdline").read_bytes().split(b"\0")
            if _CHILD_MODULE in words[2]:
                found.add(int(words[_SESSION_WORD]))
    return tuple(sorted(found - {session}))
