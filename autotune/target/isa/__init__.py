"""Floor 0: the architectures and instruction sets that code can be made for.

isa = isa_with(features)          # the widest one of this CPU
core = core_named("znver4")       # costs of instructions
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Set
from dataclasses import replace

from autotune.platforms import host_architecture
from autotune.target.isa import arm, riscv, wasm, x86_processors
from autotune.target.isa.record import Architecture as Architecture
from autotune.target.isa.record import Core as Core
from autotune.target.isa.record import Isa as Isa
from autotune.target.isa.record import MultiplyAdd as MultiplyAdd
from autotune.target.isa.record import Processor as Processor
from autotune.target.isa.record import TileUnit as TileUnit
from autotune.target.isa.x86_processors import ALIASES as ALIASES
from autotune.target.isa.x86_tiles import EMULATION as EMULATION

ARCHITECTURES: Mapping[str, Architecture] = {
    a.name: a for a in (x86_processors.X86_64, arm.AARCH64, riscv.RISCV64, wasm.WASM32)
}
HOST = ARCHITECTURES.get(host_architecture(), x86_processors.X86_64)
"""The architecture of this process."""
ISAS: tuple[Isa, ...] = HOST.isas
"""Of this process, widest vectors first."""


def _instructions(isas: Iterable[Isa]) -> dict[str, MultiplyAdd]:
    return {f.operation: f for isa in isas for f in reversed(isa.forms) if f.terms > 1}


_OWN, _ALL = (
    _instructions(ISAS),
    _instructions(isa for a in ARCHITECTURES.values() for isa in a.isas),
)
INSTRUCTIONS: tuple[MultiplyAdd, ...] = tuple((_OWN | _ALL | _OWN).values())
"""Multiply-adds of several terms on any CPU, one of each name in schedules."""
PROCESSORS: Mapping[str, Processor] = {
    name: known for a in ARCHITECTURES.values() for name, known in a.processors.items()
}
"""CPUs that a user can name."""
NAMES: Mapping[str, Isa] = {name: known.isa for name, known in PROCESSORS.items()}
"""The instruction set of each of them."""
FEATURES: Mapping[str, frozenset[str]] = {n: known.features for n, known in PROCESSORS.items()}
"""Features of such CPUs, beyond those that all with its instruction set have."""


def architecture_of(cpu: str) -> Architecture:
    """That of a CPU in `PROCESSORS`."""
    return next(a for a in ARCHITECTURES.values() if cpu in a.processors)


def core_named(cpu: str, architecture: Architecture = HOST) -> Core:
    """The costs of a core by its name; of one that is like it where there is no record of it."""
    known = PROCESSORS.get(cpu)
    return known.core if known else architecture.unknown_core(cpu)


def isa_with(features: Mapping[str, bool], scalable_bits: int = 0) -> Isa | None:
    """The widest instruction set whose features are all there; None where none is.

    `scalable_bits`: of vectors that have another length elsewhere.
    """
    fitting = (isa for isa in ISAS if not isa.is_scalable or isa.vector_bits == scalable_bits)
    return next((isa for isa in fitting if all(features.get(f) for f in isa.requires)), None)


def with_forms(isa: Isa, features: Set[str]) -> Isa:
    """The instruction set with the optional parts of it that these features of a CPU give."""
    there = (f for f in isa.forms if not f.features or not features.isdisjoint(f.features))
    lookup = isa.byte_lookup if isa.byte_lookup_feature in features else ""
    return replace(isa, forms=tuple(there), byte_lookup=lookup)
