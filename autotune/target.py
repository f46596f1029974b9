"""Floor 0: what the search and the code generator may know about a CPU.

A `Target` is plain data. Rules ask it for lanes, registers, caches and cores; nothing else in the
package looks at the machine.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
from collections.abc import Set
from dataclasses import asdict, dataclass, field, fields
from pathlib import Path

import llvmlite.binding as llvm

from autotune.errors import UsageError

_CPU_DIR = Path("/sys/devices/system/cpu/cpu0/cache")
_PORT_BITS = {"znver4": 256}
"""CPUs whose ports are narrower than their vectors."""
_NARROW_L2 = ("znver1", "znver2", "znver3", "znver4")
"""CPUs whose L2 hands over half a line per cycle."""


@dataclass(frozen=True, slots=True)
class Target:
    """A CPU as the compiler sees it.

    `features` is LLVM's comma-separated feature string; sizes are bytes per core (`l3_bytes`: of
    the whole cache); `vector_bits` is the widest float vector, `n_registers` how many of them.
    `n_cores`: how many the process could use that described it; no property of the CPU, so targets
    that differ in nothing else are equal.
    """

    cpu: str
    features: str
    vector_bits: int
    n_registers: int
    l1_bytes: int
    l2_bytes: int
    l3_bytes: int
    n_cores: int = field(compare=False)

    @property
    def lanes(self) -> int:
        """Float32 elements in one vector register."""
        return self.vector_bits // 32

    @property
    def port_bits(self) -> int:
        """What an arithmetic or load port takes in a cycle: wider vectors pass in halves."""
        return min(self.vector_bits, _PORT_BITS.get(self.cpu, self.vector_bits))

    @property
    def l2_bytes_per_cycle(self) -> float:
        """What one core streams from its L2."""
        return 32.0 if self.cpu in _NARROW_L2 else 40.0

    @property
    def l3_bytes_per_cycle(self) -> float:
        """What one core may count on from L3; on AMD few cores share it and no mesh lies between.

        One core alone streams 23 there, thrice what Intel's have.
        """
        return 12.0 if self.cpu.startswith("znver") else 8.0

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
        return asdict(self)

    @staticmethod
    def from_json(data: dict[str, object]) -> Target:
        """Inverse of `to_json`; fields that this version does not know are dropped."""
        known = {f.name: data[f.name] for f in fields(Target) if f.name in data}
        return Target(**{"n_cores": 1} | known)  # type: ignore[arg-type]


def host_target() -> Target:
    """Describe the CPU this process runs on."""
    features = llvm.get_host_cpu_features()
    return _target(llvm.get_host_cpu_name(), features.flatten(), _widest(dict(features)))


def parse_target(text: str) -> Target:
    """Resolve `--target`: `native` or the name of an x86-64 CPU known to LLVM.

    Raises `UsageError` for a name that has neither 8 nor 16 float lanes.
    """
    if text in ("native", "host", ""):
        return host_target()
    levels = {"x86-64-v3": 256, "haswell": 256, "znver3": 256, "x86-64-v4": 512}
    wide = {"skylake-avx512": 512, "cascadelake": 512, "icelake-server": 512, "znver4": 512}
    bits = (levels | wide).get(text)
    if bits is None:
        known = ", ".join(sorted(levels | wide))
        raise UsageError(f"unknown target '{text}'", f"use 'native' or one of: {known}")
    return _target(text, "", bits)


def usable_cores() -> int:
    """Cores that this process may use: all, or what `taskset` or a cpuset leaves of them."""
    return len(os.sched_getaffinity(0))


def require_cores(n_threads: int) -> None:
    """Raise UsageError where `n_threads` would have to share cores."""
    n_cores = usable_cores()
    if n_threads > n_cores:
        cores = "1 core" if n_cores == 1 else f"{n_cores} cores"
        raise UsageError(
            f"cannot run on {n_threads} threads: this process may use {cores}",
            f"use at most {n_cores}, or allow this process more cores (taskset, cpuset)",
        )


def difference(theirs: Target, ours: Target) -> str:
    """What tells two CPUs apart, for people: `l3_bytes is 33554432 there and 16777216 here`."""
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


def runs_here(target: Target) -> bool:
    """Whether this CPU has every feature that code for `target` may use."""
    return not missing_features(target)


def missing_features(target: Target) -> tuple[str, ...]:
    """What code for `target` may use and this CPU does not have, by LLVM's names."""
    host = dict(llvm.get_host_cpu_features())
    if target.features:
        needed = [f[1:] for f in target.features.split(",") if f.startswith("+")]
        return tuple(name for name in needed if not host.get(name, False))
    return () if _widest(host) >= target.vector_bits else ("avx512f", "avx512vl")


def _target(cpu: str, features: str, bits: int) -> Target:
    l1, l2, l3 = (_cache_bytes(level) for level in (1, 2, 3))
    return Target(
        cpu=cpu,
        features=features,
        vector_bits=bits,
        n_registers=32 if bits == 512 else 16,
        l1_bytes=l1 or 32 << 10,
        l2_bytes=l2 or 1 << 20,
        l3_bytes=l3 or 16 << 20,
        n_cores=usable_cores(),
    )


def _widest(features: dict[str, bool]) -> int:
    if features.get("avx512f") and features.get("avx512vl"):
        return 512
    if features.get("avx2") and features.get("fma"):
        return 256
    raise UsageError(
        "this CPU has neither AVX2+FMA nor AVX-512", "autotune needs an x86-64-v3 processor"
    )


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
