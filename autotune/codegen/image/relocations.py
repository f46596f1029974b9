"""⑤ Relocations as data: one record per machine, one per kind.

Another architecture is another `Machine` in `MACHINES`.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial

from autotune.errors import CodegenError


@dataclass(frozen=True, slots=True)
class RelocationKind:
    """Computation and encoding of one kind of relocation.

    `is_relative`: to the place that is patched; else an absolute address, which is known only where
    the image is loaded. `by_slot`: of the word that holds the symbol's address (a GOT entry), not
    of the symbol. `of_label`: the symbol is the place of another relocation, whose lower part this
    is. `store`: writes at an offset what is needed of a target's place, given a base: that offset,
    or the label. `name`: in assembly, of the same without a slot, for code that another linker
    moves apart.
    """

    name: str
    store: Callable[[bytearray, int, int, int], None]
    is_relative: bool = True
    by_slot: bool = False
    of_label: bool = False


@dataclass(frozen=True, slots=True)
class Machine:
    """An architecture: its number in ELF, and the code that jumps to the address in a slot.

    `stub`: from the places of the stub and of the slot, `stub_bytes` long. `stub_relocations`:
    kinds, offsets and addends of what the stub has of the slot's place. `page_bytes`: alignment of
    images, which `forms` may rely on.
    """

    name: str
    number: int
    page_bytes: int
    forms: Mapping[int, RelocationKind]
    stub_bytes: int
    stub: Callable[[int, int], bytes]
    stub_relocations: tuple[tuple[int, int, int], ...]
    word: str = ""
    """Name of the relocation of a word that holds an address."""

    @property
    def names_of_labels(self) -> frozenset[str]:
        """Names of relocations whose symbol is the place of another one."""
        return frozenset(form.name for form in self.forms.values() if form.of_label)


def _too_far() -> CodegenError:
    return CodegenError(
        "the code is too large to be linked: parts are too far apart", "compile a smaller model"
    )


def _signed32(image: bytearray, at: int, where: int, base: int) -> None:
    try:
        struct.pack_into("<i", image, at, where - base)
    except struct.error as error:
        raise CodegenError(
            "the code is too large to be linked: parts are 2 GiB apart", "compile a smaller model"
        ) from error


def _distance64(image: bytearray, at: int, where: int, base: int) -> None:
    struct.pack_into("<Q", image, at, (where - base) % (1 << 64))


def _absolute(image: bytearray, at: int, where: int, base: int) -> None:
    raise NotImplementedError  # the loader knows where the image is


def _bits(image: bytearray, at: int, mask: int, value: int, n_bytes: int = 4) -> None:
    """Replace the bits of `mask` in an instruction."""
    old = int.from_bytes(image[at : at + n_bytes], "little")
    image[at : at + n_bytes] = (old & ~mask | value & mask).to_bytes(n_bytes, "little")


def _fitting(distance: int, n_bits: int) -> int:
    """A distance in as many bits, the sign included. Raises CodegenError where it has more."""
    if not -(1 << n_bits - 1) <= distance < 1 << n_bits - 1:
        raise _too_far()
    return distance


# --- x86-64 ---------------------------------------------------------------------------------------


def _x86_stub(at: int, slot: int) -> bytes:
    """`jmp [rip + distance]`, and two `int3` that nothing reaches."""
    return b"\xff\x25" + struct.pack("<i", slot - (at + 6)) + b"\xcc\xcc"


_PC32 = RelocationKind("R_X86_64_PC32", _signed32)
_PC32_OF_SLOT = RelocationKind("R_X86_64_PC32", _signed32, by_slot=True)
X86_64 = Machine(
    name="x86_64",
    number=62,
    page_bytes=4096,
    forms={
        1: RelocationKind("R_X86_64_64", _absolute, is_relative=False),
        2: _PC32,
        4: _PC32,
        9: _PC32_OF_SLOT,
        24: RelocationKind("R_X86_64_PC64", _distance64),
        41: _PC32_OF_SLOT,
        42: _PC32_OF_SLOT,
    },
    stub_bytes=8,
    stub=_x86_stub,
    stub_relocations=((2, 2, -4),),
    word="R_X86_64_64",
)

# --- AArch64: pages of 4 KiB, and the bytes within them ------------------------------------------


def _page(image: bytearray, at: int, where: int, base: int) -> None:
    """`adrp`: how many pages of 4 KiB are between."""
    pages = _fitting((where >> 12) - (base >> 12), 21)
    _bits(image, at, 0x60FFFFE0, (pages & 3) << 29 | (pages >> 2 & 0x7FFFF) << 5)


def _adr(image: bytearray, at: int, where: int, base: int) -> None:
    distance = _fitting(where - base, 21)
    _bits(image, at, 0x60FFFFE0, (distance & 3) << 29 | (distance >> 2 & 0x7FFFF) << 5)


def _in_page(shift: int, image: bytearray, at: int, where: int, base: int) -> None:
    """The byte within a page, in units of an access of 2^`shift` bytes."""
    _bits(image, at, 0xFFF << 10, ((where & 0xFFF) >> shift) << 10)


def _branch26(image: bytearray, at: int, where: int, base: int) -> None:
    _bits(image, at, 0x03FFFFFF, _fitting(where - base, 28) >> 2)


def _branch19(image: bytearray, at: int, where: int, base: int) -> None:
    _bits(image, at, 0x7FFFF << 5, _fitting(where - base, 21) >> 2 << 5)


def _arm_stub(at: int, slot: int) -> bytes:
    """`adrp x16, slot; ldr x16, [x16, slot]; br x16`, and a trap that nothing reaches."""
    code = bytearray(struct.pack("<4I", 0x90000010, 0xF9400210, 0xD61F0200, 0xD4200000))
    _page(code, 0, slot, at)
    _in_page(3, code, 4, slot, at)
    return bytes(code)


_ARM = "R_AARCH64_"
_PAGE = RelocationKind(f"{_ARM}ADR_PREL_PG_HI21", _page)
_WORD_IN_PAGE = f"{_ARM}LDST64_ABS_LO12_NC"
AARCH64 = Machine(
    name="aarch64",
    number=183,
    page_bytes=4096,
    forms={
        257: RelocationKind(f"{_ARM}ABS64", _absolute, is_relative=False),
        260: RelocationKind(f"{_ARM}PREL64", _distance64),
        261: RelocationKind(f"{_ARM}PREL32", _signed32),
        274: RelocationKind(f"{_ARM}ADR_PREL_LO21", _adr),
        275: _PAGE,
        276: _PAGE,
        277: RelocationKind(f"{_ARM}ADD_ABS_LO12_NC", partial(_in_page, 0)),
        278: RelocationKind(f"{_ARM}LDST8_ABS_LO12_NC", partial(_in_page, 0)),
        280: RelocationKind(f"{_ARM}CONDBR19", _branch19),
        282: RelocationKind(f"{_ARM}JUMP26", _branch26),
        283: RelocationKind(f"{_ARM}CALL26", _branch26),
        284: RelocationKind(f"{_ARM}LDST16_ABS_LO12_NC", partial(_in_page, 1)),
        285: RelocationKind(f"{_ARM}LDST32_ABS_LO12_NC", partial(_in_page, 2)),
        286: RelocationKind(_WORD_IN_PAGE, partial(_in_page, 3)),
        299: RelocationKind(f"{_ARM}LDST128_ABS_LO12_NC", partial(_in_page, 4)),
        311: RelocationKind(_PAGE.name, _page, by_slot=True),
        312: RelocationKind(_WORD_IN_PAGE, partial(_in_page, 3), by_slot=True),
    },
    stub_bytes=16,
    stub=_arm_stub,
    stub_relocations=((275, 0, 0), (286, 4, 0)),
    word=f"{_ARM}ABS64",
)

# --- RISC-V: upper 20 and lower 12 bits of a distance --------------------------------------------


def _upper(image: bytearray, at: int, where: int, base: int) -> None:
    distance = _fitting(where - base + 0x800, 32)
    _bits(image, at, 0xFFFFF000, distance)


def _lower_load(image: bytearray, at: int, where: int, base: int) -> None:
    _bits(image, at, 0xFFF << 20, (where - base & 0xFFF) << 20)


def _lower_store(image: bytearray, at: int, where: int, base: int) -> None:
    low = where - base & 0xFFF
    _bits(image, at, 0xFE000F80, (low >> 5) << 25 | (low & 0x1F) << 7)


def _call(image: bytearray, at: int, where: int, base: int) -> None:
    """`auipc` and the `jalr` behind it."""
    _upper(image, at, where, base)
    _lower_load(image, at + 4, where, base)


_Field = tuple[int, int, int]
"""Lowest bit in the distance, number of bits, lowest bit in the instruction."""


def _jump(
    fields: tuple[_Field, ...], n_bytes: int, image: bytearray, at: int, where: int, base: int
) -> None:
    distance = _fitting(where - base, 1 + max(low + n - 1 for low, n, _ in fields))
    mask = value = 0
    for low, n, place in fields:
        ones = (1 << n) - 1
        mask |= ones << place
        value |= (distance >> low & ones) << place
    _bits(image, at, mask, value, n_bytes)


_BRANCH = ((12, 1, 31), (5, 6, 25), (1, 4, 8), (11, 1, 7))
_JAL = ((20, 1, 31), (1, 10, 21), (11, 1, 20), (12, 8, 12))
_SHORT_BRANCH = ((8, 1, 12), (3, 2, 10), (6, 2, 5), (1, 2, 3), (5, 1, 2))
_SHORT_JUMP = (
    *((11, 1, 12), (4, 1, 11), (8, 2, 9), (10, 1, 8)),
    *((6, 1, 7), (7, 1, 6), (1, 3, 3), (5, 1, 2)),
)


def _plus(sign: int, n_bytes: int, image: bytearray, at: int, where: int, base: int) -> None:
    """Add a place to what is there: two such relocations make a distance."""
    old = int.from_bytes(image[at : at + n_bytes], "little")
    new = (old + sign * where) % (1 << 8 * n_bytes)
    image[at : at + n_bytes] = new.to_bytes(n_bytes, "little")


def _riscv_stub(at: int, slot: int) -> bytes:
    """`auipc t3, slot; ld t3, slot(t3); jr t3`, and a `nop` that nothing reaches."""
    code = bytearray(struct.pack("<4I", 0x00000E17, 0x000E3E03, 0x000E0067, 0x00000013))
    _call(code, 0, slot, at)
    return bytes(code)


_RISCV = "R_RISCV_"
_HIGH, _LOW = f"{_RISCV}PCREL_HI20", f"{_RISCV}PCREL_LO12_I"
RISCV64 = Machine(
    name="riscv64",
    number=243,
    page_bytes=4096,
    forms={
        2: RelocationKind(f"{_RISCV}64", _absolute, is_relative=False),
        16: RelocationKind(f"{_RISCV}BRANCH", partial(_jump, _BRANCH, 4)),
        17: RelocationKind(f"{_RISCV}JAL", partial(_jump, _JAL, 4)),
        18: RelocationKind(f"{_RISCV}CALL_PLT", _call),
        19: RelocationKind(f"{_RISCV}CALL_PLT", _call),
        20: RelocationKind(_HIGH, _upper, by_slot=True),
        23: RelocationKind(_HIGH, _upper),
        24: RelocationKind(_LOW, _lower_load, of_label=True),
        25: RelocationKind(f"{_RISCV}PCREL_LO12_S", _lower_store, of_label=True),
        35: RelocationKind(f"{_RISCV}ADD32", partial(_plus, 1, 4)),
        36: RelocationKind(f"{_RISCV}ADD64", partial(_plus, 1, 8)),
        39: RelocationKind(f"{_RISCV}SUB32", partial(_plus, -1, 4)),
        40: RelocationKind(f"{_RISCV}SUB64", partial(_plus, -1, 8)),
        44: RelocationKind(f"{_RISCV}RVC_BRANCH", partial(_jump, _SHORT_BRANCH, 2)),
        45: RelocationKind(f"{_RISCV}RVC_JUMP", partial(_jump, _SHORT_JUMP, 2)),
        57: RelocationKind(f"{_RISCV}32_PCREL", _signed32),
    },
    stub_bytes=16,
    stub=_riscv_stub,
    stub_relocations=((23, 0, 0), (24, 4, 0)),
    word=f"{_RISCV}64",
)

# --- WebAssembly: linked by LLVM's linker (`codegen.wasm`) ----------------------------------------

WASM32 = Machine(
    name="wasm32",
    number=16727,
    page_bytes=1,
    forms={},
    stub_bytes=0,
    stub=lambda at, slot: b"",
    stub_relocations=(),
)

MACHINES: Mapping[str, Machine] = {m.name: m for m in (X86_64, AARCH64, RISCV64, WASM32)}


def machine_numbered(number: int) -> Machine:
    """The architecture of an object. Raises CodegenError for one without a record."""
    for machine in MACHINES.values():
        if machine.number == number:
            return machine
    raise CodegenError(f"objects of machine {number} cannot be linked", "compile for this CPU")
