"""Floor 0: the instruction sets that code can be made for.

isa = isa_with(features)          # the widest one of this CPU
core = core_named("znver4")       # costs of instructions
"""

from __future__ import annotations

from collections.abc import Mapping, Set
from dataclasses import replace

from autotune.target.isa import x86
from autotune.target.isa.record import Core as Core
from autotune.target.isa.record import Isa as Isa
from autotune.target.isa.record import MultiplyAdd as MultiplyAdd
from autotune.target.isa.record import Processor as Processor
from autotune.target.isa.record import TileUnit as TileUnit
from autotune.target.isa.x86_processors import ALIASES as ALIASES
from autotune.target.isa.x86_processors import PROCESSORS as PROCESSORS
from autotune.target.isa.x86_processors import core_named as core_named
from autotune.target.isa.x86_tiles import EMULATION as EMULATION

ISAS: tuple[Isa, ...] = (x86.AVX512, x86.AVX2)
"""Widest vectors first."""
INSTRUCTIONS: tuple[MultiplyAdd, ...] = tuple(
    {f.name: f for isa in ISAS for f in reversed(isa.forms) if f.terms > 1}.values()
)
"""Multiply-adds of several terms on any CPU, one of each name."""
NAMES: Mapping[str, Isa] = {name: known.isa for name, known in PROCESSORS.items()}
"""Instruction set of each CPU that a user can name."""
FEATURES: Mapping[str, frozenset[str]] = {n: known.features for n, known in PROCESSORS.items()}
"""Features of such CPUs, beyond those that all with its instruction set have."""


def isa_with(features: Mapping[str, bool]) -> Isa | None:
    """The widest instruction set whose features are all there; None where none is."""
    return next((isa for isa in ISAS if all(features.get(f) for f in isa.requires)), None)


def with_forms(isa: Isa, features: Set[str]) -> Isa:
    """The instruction set with the optional parts of it that these features of a CPU give."""
    there = (f for f in isa.forms if not f.features or not features.isdisjoint(f.features))
    lookup = isa.byte_lookup if isa.byte_lookup_feature in features else ""
    return replace(isa, forms=tuple(there), byte_lookup=lookup)


def isa_of_width(vector_bits: int) -> Isa:
    """The instruction set that the code of a target with such vectors uses.

    Raises ValueError where all have wider ones.
    """
    for isa in ISAS:
        if isa.vector_bits <= vector_bits:
            return isa
    raise ValueError(f"no instruction set has vectors of {vector_bits} bits")
