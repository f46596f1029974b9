"""Floor 0: which CPUs are threads of one core, which share a cache, and which are slower.

    topology = read_topology().within(usable_cpus())
    near(4, topology, cpu)                  # where helpers of a team of four, led from `cpu`, run

A virtual machine may report less than there is, and a container may hide all of it: what cannot be
read is a core of its own, of the same kind as the others, on one cache with them.
"""

from __future__ import annotations

import ctypes
import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from autotune.machine import read_text

_DEVICES = Path("sys/devices")
_CPUS = _DEVICES / "system/cpu"
_SLOW = 0.85
"""Of the fastest core. Cores of one kind differ in the frequency that they may reach by 5 %,
performance and efficiency cores by 20 % and more."""


@dataclass(frozen=True, slots=True)
class Topology:
    """The CPUs of a machine, or some of them, by number.

    `cores`: those of each physical core; several are its hyper-threads. `slow`: those of cores that
    are slower than others by design. `domains`: those that share a last-level cache, and those of
    each socket.
    """

    cores: tuple[frozenset[int], ...]
    slow: frozenset[int] = frozenset()
    domains: tuple[frozenset[int], ...] = ()

    @property
    def cpus(self) -> frozenset[int]:
        """All of them."""
        return frozenset().union(*self.cores)

    @property
    def is_uniform(self) -> bool:
        """Whether all cores are of one kind: then equal parts take equal times."""
        return not self.slow or self.slow == self.cpus

    @property
    def order(self) -> tuple[int, ...]:
        """All CPUs; the first n of them are the best for n threads that keep their places.

        A CPU of every core comes before a second one of any, fast cores before slow ones, and those
        that share a cache one after the other.
        """
        outer = sorted(self.domains, key=len, reverse=True)
        places = []
        for core in self.cores:
            home = [min(domain) for domain in outer if core <= domain]
            is_slow = core <= self.slow
            places += [(nth, is_slow, home, cpu) for nth, cpu in enumerate(sorted(core))]
        return tuple(cpu for *_, cpu in sorted(places))

    def within(self, cpus: frozenset[int]) -> Topology:
        """The same where only `cpus` may be used; those of which nothing is known are cores."""
        cores = [core & cpus for core in self.cores] + [frozenset({c}) for c in cpus - self.cpus]
        domains = dict.fromkeys(domain & cpus for domain in self.domains)
        return Topology(tuple(filter(None, cores)), self.slow & cpus, tuple(filter(None, domains)))


def near(n: int, topology: Topology, cpu: int) -> frozenset[int] | None:
    """The CPUs that the helpers of a team of `n` threads, led from `cpu`, should be bound to.

    The smallest domain that `cpu` is in and that has a core for each: threads that share a
    last-level cache hand on results there. None where binding gains nothing: one thread, a single
    domain, a team that fits none, or a domain of slow cores, in which the team would stay slow.
    """
    fitting = [topology.cpus]
    for domain in topology.domains:
        n_cores = sum(core <= domain for core in topology.cores)
        is_slow = domain <= topology.slow and not topology.is_uniform
        if cpu in domain and n_cores >= n > 1 and not is_slow:
            fitting.append(domain)
    best = min(fitting, key=len)
    return None if best == topology.cpus else best


def current_cpu() -> int:
    """CPU on which this thread runs now; -1 where the system does not tell."""
    return int(ctypes.CDLL(None).sched_getcpu())


def read_topology(root: Path = Path("/")) -> Topology:
    """The topology of the CPUs that are online, as the files below `root` state it."""
    cores = read_cores(root).cores
    cpus = frozenset().union(*cores)
    caches = _groups(root, cpus, [f"cache/index{n}/shared_cpu_list" for n in (3, 2)])
    sockets = _groups(root, cpus, ["topology/package_cpus_list", "topology/core_siblings_list"])
    return Topology(cores, _slow(root, cores), tuple(dict.fromkeys((*caches, *sockets))))


def read_cores(root: Path = Path("/")) -> Topology:
    """The cores alone: a file is read for each."""
    cpus = _cpu_list(root / _CPUS / "online")
    names = ["topology/core_cpus_list", "topology/thread_siblings_list"]
    return Topology(tuple(_groups(root, cpus, names)))


def _groups(root: Path, cpus: frozenset[int], names: list[str]) -> Iterator[frozenset[int]]:
    """`cpus` as the first of the files `names` that a CPU has groups them; else it is alone."""
    left = cpus
    while left:
        cpu = min(left)
        lists = (_cpu_list(root / _CPUS / f"cpu{cpu}" / name) for name in names)
        group = left & (next(filter(None, lists), frozenset()) | {cpu})
        left -= group
        yield group


def _slow(root: Path, cores: tuple[frozenset[int], ...]) -> frozenset[int]:
    """The CPUs of slower cores; none where the speed of any is not known."""
    atoms = _cpu_list(root / _DEVICES / "cpu_atom/cpus")
    if atoms:
        return atoms
    for name in ("cpu_capacity", "cpufreq/cpuinfo_max_freq"):
        texts = [read_text(root / _CPUS / f"cpu{min(core)}" / name).strip() for core in cores]
        if texts and all(text.isdecimal() for text in texts):
            least = _SLOW * max(map(int, texts))
            slow = (core for core, text in zip(cores, texts, strict=True) if int(text) < least)
            return frozenset().union(*slow)
    return frozenset()


def _cpu_list(path: Path) -> frozenset[int]:
    """The numbers in a list as `0-3,8`; empty where there is none."""
    cpus: set[int] = set()
    for part in read_text(path).strip().split(","):
        match = re.fullmatch(r"(\d{1,6})(?:-(\d{1,6}))?", part)
        if match is None:
            return frozenset()
        cpus.update(range(int(match[1]), int(match[2] or match[1]) + 1))
    return frozenset(cpus)
