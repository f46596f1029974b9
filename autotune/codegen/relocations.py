"""⑤ Relocations as data: one record per machine, one per kind.

Another architecture is another `Machine` in `MACHINES`.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Mapping
from dataclasses import dataclass

from autotune.errors import CodegenError


@dataclass(frozen=True, slots=True)
class RelocationKind:
    """Computation and encoding of one kind of relocation.

    `is_relative`: to the place that is patched; else an absolute address, which is known only where
    the image is loaded. `by_slot`: of the word that holds the symbol's address (a GOT entry), not
    of the symbol. `store`: writes the value at an offset. `name`: in assembly, of the same without
    a slot, for code that another linker moves apart.
    """

    name: str
    is_relative: bool
    by_slot: bool
    store: Callable[[bytearray, int, int], None]


@dataclass(frozen=True, slots=True)
class Machine:
    """An architecture: its number in ELF, and the code that jumps to the address in a slot.

    `stub`: from the places of the stub and of the slot, `stub_bytes` long. `stub_relocations`:
    names, offsets and addends of what the stub has of the slot's place.
    """

    name: str
    number: int
    page_bytes: int
    forms: Mapping[int, RelocationKind]
    stub_bytes: int
    stub: Callable[[int, int], bytes]
    stub_relocations: tuple[tuple[str, int, int], ...]
    word: str = ""
    """Name of the relocation of a word that holds an address."""


def _signed32(image: bytearray, at: int, value: int) -> None:
    try:
        struct.pack_into("<i", image, at, value)
    except struct.error as error:
        raise CodegenError(
            "the code is too large to be linked: parts are 2 GiB apart", "compile a smaller model"
        ) from error


def _word(image: bytearray, at: int, value: int) -> None:
    struct.pack_into("<Q", image, at, value % (1 << 64))


def _x86_stub(at: int, slot: int) -> bytes:
    """`jmp [rip + distance]`, and two `int3` that nothing reaches."""
    return b"\xff\x25" + struct.pack("<i", slot - (at + 6)) + b"\xcc\xcc"


X86_64 = Machine(
    name="x86_64",
    number=62,
    page_bytes=4096,
    forms={
        1: RelocationKind("R_X86_64_64", is_relative=False, by_slot=False, store=_word),
        2: RelocationKind("R_X86_64_PC32", is_relative=True, by_slot=False, store=_signed32),
        4: RelocationKind("R_X86_64_PC32", is_relative=True, by_slot=False, store=_signed32),
        9: RelocationKind("R_X86_64_PC32", is_relative=True, by_slot=True, store=_signed32),
        24: RelocationKind("R_X86_64_PC64", is_relative=True, by_slot=False, store=_word),
        41: RelocationKind("R_X86_64_PC32", is_relative=True, by_slot=True, store=_signed32),
        42: RelocationKind("R_X86_64_PC32", is_relative=True, by_slot=True, store=_signed32),
    },
    stub_bytes=8,
    stub=_x86_stub,
    stub_relocations=(("R_X86_64_PC32", 2, -4),),
    word="R_X86_64_64",
)

MACHINES: Mapping[str, Machine] = {X86_64.name: X86_64}


def machine_numbered(number: int) -> Machine:
    """The architecture of an object. Raises CodegenError for one that there is no record of."""
    for machine in MACHINES.values():
        if machine.number == number:
            return machine
    raise CodegenError(f"objects of machine {number} cannot be linked", "compile for this CPU")
