"""Cores, hyper-threads, caches and sockets of imitated machines, as files below a root of ours."""

from __future__ import annotations

import random
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from autotune.topology import Topology, near, read_cores, read_topology


@dataclass(frozen=True)
class Machine:
    """What `/sys` says of each CPU: its core, socket and last-level cache, as lists of CPUs."""

    n: int
    cores: tuple[str, ...]
    caches: tuple[str, ...] = ()
    sockets: tuple[str, ...] = ()
    files: dict[str, str] = field(default_factory=dict)
    offline: frozenset[int] = frozenset()

    def write(self, root: Path) -> Path:
        cpus = root / "sys/devices/system/cpu"
        online = [n for n in range(self.n) if n not in self.offline]
        put(cpus / "online", ",".join(map(str, online)))
        for n in online:
            for name, lists in (
                ("topology/core_cpus_list", self.cores),
                ("topology/package_cpus_list", self.sockets),
                ("cache/index3/shared_cpu_list", self.caches),
            ):
                for text in lists:
                    if n in numbers(text):
                        put(cpus / f"cpu{n}" / name, f"{text}\n")
        for name, text in self.files.items():
            put(root / "sys/devices" / name, text)
        return root


def put(path: Path, text: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)


def numbers(text: str) -> set[int]:
    spans = (part.split("-") for part in text.split(","))
    return {n for span in spans for n in range(int(span[0]), int(span[-1]) + 1)}


def pairs(first: range, away: int) -> tuple[str, ...]:
    return tuple(f"{n},{n + away}" for n in first)


ONE = Machine(1, ("0",), ("0",), ("0",))
HYPER_THREADS = Machine(2, ("0-1",), ("0-1",), ("0-1",))
HYBRID = Machine(
    24,
    (*(f"{n}-{n + 1}" for n in range(0, 16, 2)), *map(str, range(16, 24))),
    ("0-23",),
    ("0-23",),
    {"cpu_core/cpus": "0-15\n", "cpu_atom/cpus": "16-23\n"},
)
"""Eight performance cores with two threads each, eight efficiency cores."""
LOW_POWER = Machine(
    8,
    tuple(map(str, range(8))),
    ("0-5",),
    ("0-7",),
    {f"system/cpu/cpu{n}/cpufreq/cpuinfo_max_freq": "4800000" for n in range(4)}
    | {f"system/cpu/cpu{n}/cpufreq/cpuinfo_max_freq": "3800000" for n in (4, 5)}
    | {f"system/cpu/cpu{n}/cpufreq/cpuinfo_max_freq": "2500000" for n in (6, 7)}
    | {f"system/cpu/cpu{n}/cache/index2/shared_cpu_list": "6-7" for n in (6, 7)},
)
"""Four fast cores, two slow ones on their cache, two slower ones on one of their own."""
SERVER = Machine(
    32,
    pairs(range(16), 16),
    ("0-3,16-19", "4-7,20-23", "8-11,24-27", "12-15,28-31"),
    ("0-7,16-23", "8-15,24-31"),
)
"""Two sockets of two caches of four cores of two threads."""
CHIPLETS = Machine(
    64,
    pairs(range(32), 32),
    tuple(f"{n}-{n + 7},{n + 32}-{n + 39}" for n in range(0, 32, 8)),
    ("0-63",),
)


def four(name: str, values: tuple[int, ...]) -> Machine:
    """Cores that differ in a file."""
    files = {f"system/cpu/cpu{n}/{name}": f"{value}\n" for n, value in enumerate(values)}
    return Machine(4, tuple("0123"), ("0-3",), ("0-3",), files)


FAVOURED = four("cpufreq/cpuinfo_max_freq", (5_400_000, 5_500_000, 5_600_000, 5_700_000))
CAPACITIES = four("cpu_capacity", (1024, 1024, 446, 446))
MACHINES = (ONE, HYPER_THREADS, HYBRID, LOW_POWER, SERVER, CHIPLETS, FAVOURED, CAPACITIES)


def read(machine: Machine, root: Path) -> Topology:
    return read_topology(machine.write(root))


@pytest.mark.parametrize(
    ("machine", "n_cores", "is_uniform"),
    [
        (ONE, 1, True),
        (HYPER_THREADS, 1, True),
        (HYBRID, 16, False),
        (LOW_POWER, 8, False),
        (SERVER, 16, True),
        (CHIPLETS, 32, True),
        (FAVOURED, 4, True),  # 5 % more clock is no other kind
        (CAPACITIES, 4, False),
    ],
)
def test_cores_are_counted_and_compared(
    tmp_path: Path, machine: Machine, n_cores: int, is_uniform: bool
) -> None:
    found = read(machine, tmp_path)
    assert len(found.cores) == n_cores
    assert found.is_uniform == is_uniform
    assert found.cpus == set(range(machine.n))
    assert read_cores(tmp_path).cores == found.cores


def test_a_cpu_that_is_offline_is_no_sibling(tmp_path: Path) -> None:
    server = Machine(SERVER.n, SERVER.cores, SERVER.caches, SERVER.sockets, {}, frozenset({1, 17}))
    found = read(server, tmp_path)
    assert len(found.cores) == 15
    assert not {1, 17} & found.cpus
    assert near(4, found, 0) == numbers("0-7,16-23") - {1, 17}  # three cores are left on its cache


@pytest.mark.parametrize("cpus", [{0}, {0, 7}, {3, 4, 5}])
def test_where_nothing_can_be_read_cpus_are_equal_cores(tmp_path: Path, cpus: set[int]) -> None:
    found = read_topology(tmp_path).within(frozenset(cpus))
    assert set(found.cores) == {frozenset({n}) for n in cpus}
    assert found.is_uniform
    assert near(len(cpus), found, min(cpus)) is None


@pytest.mark.parametrize("text", ["", "x", "1-", "-3", "0-1,,3", "0x3", "9" * 40])
def test_a_list_that_is_none_is_not_read(tmp_path: Path, text: str) -> None:
    put(tmp_path / "sys/devices/system/cpu/online", "0-1")
    for name in ("topology/core_cpus_list", "cache/index3/shared_cpu_list"):
        put(tmp_path / "sys/devices/system/cpu/cpu0" / name, text)
    assert read_topology(tmp_path).cores == (frozenset({0}), frozenset({1}))


@pytest.mark.parametrize(
    ("machine", "n", "cpu", "expected"),
    [
        (ONE, 1, 0, None),
        (HYPER_THREADS, 2, 0, None),
        (HYBRID, 8, 0, None),  # all share one cache
        (SERVER, 1, 0, None),  # nobody to bind
        (SERVER, 2, 0, "0-3,16-19"),
        (SERVER, 4, 25, "8-11,24-27"),
        (SERVER, 5, 25, "8-15,24-31"),  # two caches of its socket
        (SERVER, 8, 1, "0-7,16-23"),
        (SERVER, 9, 1, None),
        (SERVER, 2, 99, None),
        (CHIPLETS, 8, 33, "0-7,32-39"),
        (CHIPLETS, 9, 33, None),
        (LOW_POWER, 2, 3, "0-5"),
        (LOW_POWER, 2, 7, None),  # where it starts is the slowest place
    ],
)
def test_a_team_stays_on_the_cache_of_its_caller_where_it_fits(
    tmp_path: Path, machine: Machine, n: int, cpu: int, expected: str | None
) -> None:
    found = near(n, read(machine, tmp_path), cpu)
    assert found == (None if expected is None else numbers(expected))


def test_half_a_core_is_a_core_and_half_a_cache_has_half_the_cores(tmp_path: Path) -> None:
    found = read(SERVER, tmp_path).within(frozenset(numbers("0-1,8-11")))
    assert len(found.cores) == 6
    assert near(2, found, 0) == {0, 1}
    assert near(3, found, 0) is None
    assert near(4, found, 8) == numbers("8-11")


def test_where_only_slow_cores_are_allowed_they_are_equal(tmp_path: Path) -> None:
    assert read(HYBRID, tmp_path).within(frozenset(range(16, 24))).is_uniform
    assert not read(HYBRID, tmp_path).within(frozenset({0, 16})).is_uniform


@pytest.mark.parametrize("machine", MACHINES)
def test_the_first_cpus_are_on_cores_of_their_own(tmp_path: Path, machine: Machine) -> None:
    random.seed(0)
    whole = read(machine, tmp_path)
    for _ in range(20):
        found = whole.within(
            frozenset(random.sample(range(machine.n), random.randint(1, machine.n)))
        )
        first = found.order[: len(found.cores)]
        assert all(len(core & set(first)) == 1 for core in found.cores)
        kinds = [cpu in found.slow for cpu in first]
        assert kinds == sorted(kinds)
        assert set(found.order) == found.cpus


def test_threads_in_their_places_fill_a_cache_and_a_socket_first(tmp_path: Path) -> None:
    odd = Machine(
        8, tuple(map(str, range(8))), ("0,4", "1,5", "2,6", "3,7"), ("0,2,4,6", "1,3,5,7")
    )
    assert read(odd, tmp_path).order == (0, 4, 2, 6, 1, 5, 3, 7)
