"""Floor 0: which CPUs are threads of one core, which share a cache, and which are slower.

    topology = read_topology().within(os.sched_getaffinity(0))
    near(4, topology, cpu)          # where the threads of a team of four that `cpu` leads should run

A virtual machine may report less than there is, and a container may hide all of it: what cannot be
read is a core of its own, of the same kind as the others, on one cache with them.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator
from dataclasses import dataclass
from pathlib import Path

from autotune.machine import read_text, usable_cpus

_DEVICES = Path("sys/devices")
_CPUS = _DEVICES / "system/cpu"
_SLOW = 0.85
"""Of the fastest core. Cores of one kind differ in the frequency that they may reach by 5 %,
performance and efficiency cores by 20 % and more."""
_MOST_CPUS = 1 << 16


@dataclass(frozen=True, slots=True)
class Topology:
    """The CPUs of a machine, or some of them, by number.

    `cores`: those of each physical core; several are its hyper-threads. `kinds`: of each core, 0 of
    the fastest. `domains`: those that share a last-level cache, and those of each socket.
    """

    cores: tuple[frozenset[int], ...]
    kinds: tuple[int, ...]
    domains: tuple[frozenset[int], ...] = ()

    @property
    def cpus(self) -> frozenset[int]:
        """All of them."""
        return frozenset().union(*self.cores)

    @property
    def is_uniform(self) -> bool:
        """Whether all cores are of one kind: then equal parts take equal times."""
        return len(set(self.kinds)) <= 1

    @property
    def order(self) -> tuple[int, ...]:
        """All CPUs; the first n of them are the best for n threads that keep their places.

        A CPU of every core comes before a second one of any, fast cores before slow ones, and those
        that share a cache one after the other.
        """
        places = []
        for core, kind in zip(self.cores, self.kinds, strict=True):
            home = min((min(d) for d in self.domains if core <= d), default=0)
            places += [(n, kind, home, cpu) for n, cpu in enumerate(sorted(core))]
        return tuple(cpu for *_, cpu in sorted(places))

    def within(self, cpus: Collection[int]) -> Topology:
        """What is left of it where a process may use only `cpus`."""
        pairs = zip(self.cores, self.kinds, strict=True)
        left = [(core & frozenset(cpus), kind) for core, kind in pairs if core & frozenset(cpus)]
        domains = (domain & frozenset(cpus) for domain in self.domains)
        return Topology(
            tuple(core for core, _ in left),
            tuple(kind for _, kind in left),
            tuple(dict.fromkeys(domain for domain in domains if domain)),
        )


def near(n: int, topology: Topology, cpu: int) -> frozenset[int] | None:
    """The CPUs that the helpers of a team of `n` threads, led from `cpu`, should be bound to.

    The smallest domain that `cpu` is in and that has a core for each: threads that share a
    last-level cache hand on results there. None where nothing is gained by binding: one thread, a
    single domain, a team that fits none, or a domain without a core of the fastest kind, in which
    the team would stay slow.
    """
    fastest = min(topology.kinds, default=0)
    fitting = []
    for domain in topology.domains:
        pairs = zip(topology.cores, topology.kinds, strict=True)
        kinds = [kind for core, kind in pairs if core <= domain]
        if cpu in domain and len(kinds) >= n > 1 and fastest in kinds:
            fitting.append(domain)
    best = min(fitting, key=len, default=topology.cpus)
    return None if best == topology.cpus else best


def read_topology(root: Path = Path("/")) -> Topology:
    """The topology of the CPUs that are online, as the files below `root` state it."""
    cores = read_cores(root)
    cpus = frozenset().union(*cores)
    sockets = _groups(root, cpus, ("topology/package_cpus_list", "topology/core_siblings_list"))
    caches = _groups(root, cpus, tuple(f"cache/index{n}/shared_cpu_list" for n in (3, 2)))
    domains = dict.fromkeys((*caches, *sockets))
    return Topology(cores, tuple(_kinds(root, cores)), tuple(domains))


def read_cores(root: Path = Path("/")) -> tuple[frozenset[int], ...]:
    """`Topology.cores` alone, with a file read for each."""
    cpus = frozenset(_cpu_list(root / _CPUS / "online")) or usable_cpus()
    names = ("topology/core_cpus_list", "topology/thread_siblings_list")
    return tuple(_groups(root, cpus, names))


def _groups(root: Path, cpus: frozenset[int], names: tuple[str, ...]) -> Iterator[frozenset[int]]:
    """`cpus` in the groups that the first file of `names` that a CPU has lists; else it is alone."""
    left = set(cpus)
    while left:
        cpu = min(left)
        lists = (_cpu_list(root / _CPUS / f"cpu{cpu}" / name) for name in names)
        group = frozenset(left) & (next(filter(None, lists), set()) | {cpu})
        left -= group
        yield group


def _kinds(root: Path, cores: tuple[frozenset[int], ...]) -> list[int]:
    """0 for each core of the fastest kind, 1 for others; all 0 where it is not known of each."""
    atoms = _cpu_list(root / _DEVICES / "cpu_atom/cpus")
    if atoms:
        return [int(core <= atoms) for core in cores]
    for name in ("cpu_capacity", "cpufreq/cpuinfo_max_freq"):
        texts = [read_text(root / _CPUS / f"cpu{min(core)}" / name).strip() for core in cores]
        if all(text.isdecimal() for text in texts):
            speeds = list(map(int, texts))
            return [int(speed < _SLOW * max(speeds)) for speed in speeds]
    return [0] * len(cores)


def _cpu_list(path: Path) -> set[int]:
    """The numbers in a list as `0-3,8`; empty where there is none."""
    cpus: set[int] = set()
    for part in read_text(path).strip().split(","):
        match = re.fullmatch(r"(\d{1,6})(?:-(\d{1,6}))?", part)
        if match is None:
            return set()
        cpus |= set(range(int(match[1]), min(int(match[2] or match[1]), _MOST_CPUS) + 1))
    return cpus
