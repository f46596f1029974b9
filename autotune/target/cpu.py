"""Floor 0: one CPU as the compiler sees it.

A `Target` is plain data. Rules ask it for lanes, registers, caches and cores; nothing else in the
package looks at the machine.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Set
from dataclasses import dataclass, field, fields, replace
from functools import lru_cache
from pathlib import Path
from typing import Annotated, Any

from autotune.brief import brief
from autotune.codec import LEFT_OUT, Holds, from_json, to_json, within
from autotune.errors import UsageError
from autotune.machine import usable_cpus
from autotune.target import auxv, cpuid
from autotune.target.isa import (
    ARCHITECTURES,
    EMULATION,
    FEATURES,
    HOST,
    ISAS,
    PROCESSORS,
    Architecture,
    Core,
    Isa,
    Processor,
    core_named,
    isa_with,
    with_forms,
)
from autotune.target.tiles import Permission, tile_permission

_CPU_DIR = Path("/sys/devices/system/cpu/cpu0/cache")


@brief
@dataclass(frozen=True, slots=True)
class Target:
    """A CPU as the compiler sees it.

    `features` is LLVM's comma-separated feature string; sizes are bytes per core (`l3_bytes`: of
    the whole cache); `vector_bits` is the widest float vector, `n_registers` how many of them.
    `n_cores`: how many the process could use that described it; no property of the CPU, so targets
    that differ in nothing else are equal. `arch`: the name of its architecture.
    """

    cpu: str
    features: str
    vector_bits: Annotated[int, within(min(a.isas[-1].vector_bits for a in ARCHITECTURES.values()))]
    n_registers: int
    l1_bytes: int
    l2_bytes: int
    l3_bytes: int
    n_cores: int = field(default=1, compare=False)
    arch: Annotated[
        str, LEFT_OUT, Holds(ARCHITECTURES.__contains__, "the name of an architecture")
    ] = "x86_64"  # files of that architecture leave it out

    @property
    def architecture(self) -> Architecture:
        """What it has in common with other CPUs that run its code."""
        return ARCHITECTURES[self.arch]

    @property
    def llvm_cpu(self) -> str:
        """LLVM's name of it."""
        known = PROCESSORS.get(self.cpu)
        return known.llvm_cpu if known else self.cpu

    @property
    def lanes(self) -> int:
        """Float32 elements in one vector register."""
        return self.vector_bits // 32

    @property
    def isa(self) -> Isa:
        """The instruction set of the code for this CPU, with the multiply-adds that it has."""
        return _isa(self.arch, self.cpu, self.features, self.vector_bits)

    @property
    def core(self) -> Core:
        """Costs of instructions and bytes on one core."""
        return core_named(self.cpu, self.architecture)

    @property
    def port_bits(self) -> int:
        """Bits of an arithmetic or load port per cycle: wider vectors are double-pumped."""
        return min(self.vector_bits, self.core.port_bits or self.vector_bits)

    @property
    def llvm_features(self) -> str:
        """`features` as LLVM takes them: without emulated and without slow ones."""
        left_out = {f"+{name}" for name in (EMULATION, *self.isa.avoided)}
        known = [f for f in self.features.split(",") if f and f not in left_out]
        return ",".join([*known, *(f"-{name}" for name in self.isa.avoided)])

    @property
    def key(self) -> str:
        """Identity for records: two targets with one key run the same code at the same speed."""
        return self._key(self.to_json().keys() - {"n_cores"})

    @property
    def former_key(self) -> str:
        """The key in logs of versions that took the number of usable cores for a part of it."""
        return self._key(self.to_json().keys())

    def _key(self, names: Set[str]) -> str:
        data = {name: value for name, value in self.to_json().items() if name in names}
        text = json.dumps(data, sort_keys=True)
        return f"{self.cpu}-{hashlib.sha256(text.encode()).hexdigest()[:12]}"

    def to_json(self) -> dict[str, object]:
        """Named fields for the log header and the artifact manifest."""
        return to_json(self)

    @staticmethod
    def from_json(data: dict[str, object]) -> Target:
        """Inverse of `to_json`; fields that this version does not know are dropped.

        Raises Misfit for anything else, also for vectors of a width that no instruction set has.
        """
        return from_json(Target, data, is_open=True)


@lru_cache(maxsize=64)
def _isa(arch: str, cpu: str, features: str, vector_bits: int) -> Isa:
    named = {f[1:] for f in features.split(",") if f.startswith("+")}
    isa = ARCHITECTURES[arch].isa(vector_bits, named)
    return with_forms(isa, named or FEATURES.get(cpu, frozenset()))


def host_features() -> dict[str, bool]:
    """The features of this CPU by LLVM's names; matrix tiles only where the system permits them."""
    asked = HOST.capabilities
    found = auxv.features(asked) if asked else dict(cpuid.features())
    if tile_permission() is Permission.DENIED:
        found |= {name: False for name in found if name.startswith("amx-")}
    return found


def _llvm() -> Any:
    """Imported late: compiled networks run without it."""
    import llvmlite.binding

    return llvmlite.binding


def llvm_version() -> str:
    """The version of LLVM."""
    return ".".join(map(str, _llvm().llvm_version_info))


def host_cpu_name() -> str:
    """LLVM's name of the CPU this process runs on."""
    name: str = _llvm().get_host_cpu_name()
    return name


def host_target() -> Target:
    """Describe the CPU this process runs on."""
    llvm, known = _llvm(), host_features()
    # a newer LLVM may have more names, an older one takes no others than its own
    features = {n: known.get(n, there) for n, there in llvm.get_host_cpu_features().items()}
    features |= known if HOST.capabilities else {}
    isa = _widest(features)
    # code for scalable vectors of another length is wrong
    unused = {n for i in ISAS if i.is_scalable for n in i.requires} - {*isa.requires}
    features |= dict.fromkeys(unused, False)
    text = ",".join(f"{'+' if there else '-'}{name}" for name, there in sorted(features.items()))
    return cpu_here(host_cpu_name(), text, isa)


def cpu_elsewhere(cpu: str, architecture: Architecture, known: Processor) -> Target:
    """A target of another architecture, described without this machine."""
    features = (f"+{name}" for name in (*known.isa.requires, *sorted(known.features)))
    return Target(
        cpu=cpu,
        features=",".join([*filter(None, [architecture.common]), *features]),
        vector_bits=known.isa.vector_bits,
        n_registers=known.isa.n_registers,
        l1_bytes=known.l1_bytes,
        l2_bytes=known.l2_bytes,
        l3_bytes=known.l3_bytes,
        arch=architecture.name,
    )


def difference(theirs: Target, ours: Target) -> str:
    """Differences of two CPUs, for people: `l3_bytes is 33554432 there and 16777216 here`."""
    parts = [
        f"{f.name} is {getattr(theirs, f.name)} there and {getattr(ours, f.name)} here"
        for f in fields(Target)
        if f.compare and f.name != "features" and getattr(theirs, f.name) != getattr(ours, f.name)
    ]
    there, here = set(theirs.features.split(",")), set(ours.features.split(","))
    for names, where in ((there - here, "there"), (here - there, "here")):
        found = sorted(name[1:] for name in names if name.startswith("+"))
        parts += [f"only the CPU {where} has {', '.join(found)}"] if found else []
    return "; ".join(parts) or "the features are written in another way"


def with_threads(target: Target, n_threads: int) -> Target:
    """`target` with the feature that code for several threads needs, where it is an own one."""
    feature = target.isa.threads
    if n_threads < 2 or not feature:
        return target
    return replace(target, features=f"{target.features},+{feature}")


def runs_here(target: Target) -> bool:
    """Whether this CPU has every feature that code for `target` may use."""
    return not missing_features(target)


def needed_features(target: Target) -> tuple[str, ...]:
    """Features that code for `target` may use, by LLVM's names."""
    if target.features:
        return tuple(f[1:] for f in target.llvm_features.split(",") if f.startswith("+"))
    named = sorted(FEATURES.get(target.cpu, ()))
    return tuple(dict.fromkeys((*target.isa.requires, *named)))


def missing_features(target: Target) -> tuple[str, ...]:
    """Features of `target` that this CPU does not have, by LLVM's names."""
    if target.architecture is not HOST:
        return needed_features(target)
    host, needed = host_features(), needed_features(target)
    if not host.keys() >= set(needed):  # of a newer LLVM
        host = dict(_llvm().get_host_cpu_features()) | host
    lacking = [name for name in needed if not host.get(name, False)]
    if target.isa.is_scalable and auxv.scalable_bits() != target.vector_bits:
        lacking.append(f"vectors of {target.vector_bits} bits")
    return tuple(lacking)


def cpu_here(cpu: str, features: str, isa: Isa) -> Target:
    """A target with the caches and cores of this machine."""
    l1, l2, l3 = (_cache_bytes(level) for level in (1, 2, 3))
    return Target(
        cpu=cpu,
        features=features,
        vector_bits=isa.vector_bits,
        n_registers=isa.n_registers,
        l1_bytes=l1 or 32 << 10,
        l2_bytes=l2 or 1 << 20,
        l3_bytes=l3 or 16 << 20,
        n_cores=len(usable_cpus()),
        arch=HOST.name,
    )


def _widest(features: dict[str, bool]) -> Isa:
    isa = isa_with(features, auxv.scalable_bits())
    if isa is None:
        least = " and ".join(ISAS[-1].requires)
        raise UsageError(f"this CPU lacks some of {least}", "autotune needs a CPU that has them")
    return isa


def _cache_bytes(level: int) -> int:
    for index in sorted(_CPU_DIR.glob("index*")):
        try:
            kind = (index / "type").read_text().strip()
            if int((index / "level").read_text()) != level or kind == "Instruction":
                continue
            size = re.match(r"(\d+)([KMG]?)", (index / "size").read_text().strip())
        except (OSError, ValueError):
            continue
        if size:
            return int(size[1]) << {"": 0, "K": 10, "M": 20, "G": 30}[size[2]]
    return 0
