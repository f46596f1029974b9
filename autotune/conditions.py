"""Floor 0: the conditions under which this machine is timed, and those that make it unsteady.

read_conditions().advice                # ("CPU 0-3 run under the governor 'powersave': …",)
"""

from __future__ import annotations

import os
import platform
import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from autotune.machine import Limits, read_limits, read_text
from autotune.topology import Topology, read_topology

_CPUS = Path("sys/devices/system/cpu")
_IDLE = 0.25
"""Load for each usable core that a machine may have which is taken for idle."""
_FAST_GOVERNORS = frozenset({"performance"})


@dataclass(frozen=True, slots=True)
class Conditions:
    """A machine as this process meets it; "" and None where the system does not tell.

    `processor`: the brand. `governors`: that of each usable CPU, once. `boost`: whether clocks may
    go beyond the nominal one. `hypervisor`: whether the machine is a virtual one. `huge_pages`: the
    policy of transparent ones. `load`: processes that ran or waited, on average of the last minute.
    """

    processor: str
    system: str
    n_cores: int
    n_cpus: int
    n_domains: int
    n_slow: int
    n_usable: int
    cpus: float
    memory_bytes: int
    governors: tuple[str, ...]
    boost: bool | None
    hypervisor: bool
    huge_pages: str
    load: float

    @property
    def advice(self) -> tuple[str, ...]:
        """Things to change for steadier timings, the most effective first."""
        return tuple(_advice(self))


def read_conditions(root: Path = Path("/")) -> Conditions:
    """The conditions that the files below `root` state."""
    limits, topology = read_limits(root), read_topology(root)
    facts = read_text(root / "proc/cpuinfo")
    return Conditions(
        processor=_field(facts, "model name"),
        system=f"{platform.system()} {platform.release()}",
        n_cores=len(topology.cores),
        n_cpus=len(topology.cpus),
        n_domains=len(topology.domains),
        n_slow=len(topology.slow),
        n_usable=limits.n_cores,
        cpus=limits.cpus,
        memory_bytes=limits.memory_bytes,
        governors=_governors(root, topology, limits),
        boost=_boost(root),
        hypervisor="hypervisor" in _field(facts, "flags").split(),
        huge_pages=_chosen(read_text(root / "sys/kernel/mm/transparent_hugepage/enabled")),
        load=_load(root),
    )


def _advice(found: Conditions) -> Iterator[str]:
    n = found.n_usable
    if found.load > max(1.0, _IDLE * n):
        yield f"{found.load:.1f} processes run or wait: close what else uses the processor"
    if found.cpus < n and found.cpus != int(found.cpus):
        yield (
            f"the control group gives {found.cpus:.2f} CPUs: a whole number of them lets as many "
            "threads run without a pause"
        )
    elif found.cpus < n:
        yield f"the control group gives {found.cpus:.0f} of {n} CPUs: run on no more threads"
    if slow := [g for g in found.governors if g not in _FAST_GOVERNORS]:
        yield f"the governor is '{slow[0]}': `cpupower frequency-set -g performance` as root"
    if found.boost:
        yield "clocks are boosted, and fall when it gets warm: switch boost off to compare versions"
    if found.n_cpus > found.n_cores:
        yield "two CPUs are one core: use a thread for each core, and keep its other CPU idle"
    if 0 < found.n_slow < found.n_cpus:
        yield f"{found.n_slow} CPUs are slower than the others: bind to fast ones by `taskset`"
    if found.hypervisor:
        yield "a virtual machine has neighbours: repeat what matters, and compare only in turns"
    if found.huge_pages == "never":
        yield "huge pages are off: `echo madvise > /sys/kernel/mm/transparent_hugepage/enabled`"


def _field(text: str, name: str) -> str:
    """The first value of a field of /proc/cpuinfo."""
    match = re.search(rf"^{name}\s*: *(.*)$", text, re.MULTILINE)
    return match.group(1).strip() if match else ""


def _governors(root: Path, topology: Topology, limits: Limits) -> tuple[str, ...]:
    cpus = sorted(topology.cpus)[: max(limits.n_cores, 1)]
    texts = [read_text(root / _CPUS / f"cpu{n}/cpufreq/scaling_governor").strip() for n in cpus]
    return tuple(sorted(set(filter(None, texts))))


def _boost(root: Path) -> bool | None:
    for name, on in (("cpufreq/boost", "1"), ("intel_pstate/no_turbo", "0")):
        if text := read_text(root / _CPUS / name).strip():
            return text == on
    return None


def _chosen(text: str) -> str:
    """The word in brackets of a list of choices."""
    match = re.search(r"\[(\w+)\]", text)
    return match.group(1) if match else ""


def _load(root: Path) -> float:
    text = read_text(root / "proc/loadavg").split()
    try:
        return float(text[0])
    except (IndexError, ValueError):
        return os.getloadavg()[0]
