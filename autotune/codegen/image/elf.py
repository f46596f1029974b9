"""⑤ Relocatable ELF objects, as LLVM writes them, to plain records.

    read_object(data) -> Object(machine, sections, symbols)

Only the parts of a running program are read: sections that occupy memory, the symbols, and the
relocations of these sections. Unwind tables are left out, since no exception passes through
generated code.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum

from autotune.errors import CodegenError

MAGIC = b"\x7fELF\x02\x01\x01"
"""64 bits, little endian, version 1."""
_RELOCATABLE = 1
_HEADER = struct.Struct("<16sHHIQQQIHHHHHH")
_SECTION = struct.Struct("<IIQQQQIIQQ")
_SYMBOL = struct.Struct("<IBBHQQ")
_RELA = struct.Struct("<QQq")
_WORD = struct.Struct("<I")

_SYMTAB, _RELA_TABLE, _NOBITS, _GROUP = 2, 4, 8, 17
_WRITE, _ALLOC, _EXECUTE, _TLS = 0x1, 0x2, 0x4, 0x400
_COMDAT = 1
_UNDEFINED, _COMMON, _RESERVED = 0, 0xFFF2, 0xFF00
_LOCAL, _WEAK = 0, 2

DAMAGED = "the file that it came from is damaged"


class Region(StrEnum):
    """Region of an image: its sections have the same access."""

    CODE = "code"
    CONSTANTS = "constants"
    RELOCATED = "relocated"
    """Constants that contain addresses: written while the image is loaded, then read only."""
    DATA = "data"


@dataclass(frozen=True, slots=True)
class Relocation:
    """The address of `symbol`, plus `addend`, is needed `offset` bytes into the section."""

    offset: int
    kind: int
    symbol: int
    addend: int


@dataclass(frozen=True, slots=True)
class Section:
    """Bytes that occupy memory; `n_bytes` are more than `data` where the rest is zero."""

    name: str
    region: Region
    alignment: int
    n_bytes: int
    data: bytes
    relocations: tuple[Relocation, ...]


@dataclass(frozen=True, slots=True)
class Symbol:
    """A name for byte `value` of a section; `section` is None where another object defines it.

    `common_bytes`: of a variable that no section holds yet; `value` is its alignment.
    """

    name: str
    section: int | None
    value: int
    is_local: bool
    is_weak: bool
    common_bytes: int = 0


@dataclass(frozen=True, slots=True)
class Object:
    """`sections` by their numbers; `groups`: signatures and members of COMDAT groups."""

    machine: int
    sections: dict[int, Section]
    symbols: tuple[Symbol, ...]
    groups: tuple[tuple[str, tuple[int, ...]], ...]


def read_object(data: bytes) -> Object:
    """The records of an object. Raises CodegenError for anything else."""
    try:
        return _read(data)
    except (struct.error, IndexError, ValueError, UnicodeDecodeError) as error:
        raise CodegenError("not an object file", DAMAGED) from error


def _read(data: bytes) -> Object:
    header = _HEADER.unpack_from(data)
    if not data.startswith(MAGIC) or header[1] != _RELOCATABLE:
        raise ValueError
    heads = [_SECTION.unpack_from(data, header[6] + n * _SECTION.size) for n in range(header[12])]
    names = _contents(data, heads[header[13]])
    symbols: tuple[Symbol, ...] = ()
    relocations: dict[int, tuple[Relocation, ...]] = {}
    groups: list[tuple[str, tuple[int, ...]]] = []
    for head in heads:
        if head[1] == _SYMTAB:
            symbols = _symbols(data, head, heads)
        elif head[1] == _RELA_TABLE:
            relocations[head[7]] = _relocations(_contents(data, head))
    for head in heads:
        if head[1] == _GROUP:
            flags, *members = (word for (word,) in _WORD.iter_unpack(_contents(data, head)))
            if flags & _COMDAT:
                groups.append((symbols[head[7]].name, tuple(members)))
    sections = {
        n: _section(data, head, name, relocations.get(n, ()))
        for n, head in enumerate(heads)
        if head[2] & _ALLOC and (name := _text(names, head[0])) != ".eh_frame"
    }
    return Object(header[2], sections, symbols, tuple(groups))


def _contents(data: bytes, head: Sequence[int]) -> bytes:
    offset, size = head[4], head[5]
    if offset + size > len(data):
        raise ValueError
    return data[offset : offset + size]


def _text(names: bytes, at: int) -> str:
    return names[at : names.index(b"\0", at)].decode()


def _section(
    data: bytes, head: Sequence[int], name: str, relocations: tuple[Relocation, ...]
) -> Section:
    flags, size, alignment = head[2], head[5], max(1, head[8])
    if flags & _TLS:
        raise CodegenError(f"section '{name}' is of each thread", "use memory of the caller")
    is_zero = head[1] == _NOBITS
    contents = b"" if is_zero else _contents(data, head)
    return Section(name, _region(name, flags), alignment, size, contents, relocations)


def _region(name: str, flags: int) -> Region:
    if flags & _EXECUTE:
        return Region.CODE
    if not flags & _WRITE:
        return Region.CONSTANTS
    return Region.RELOCATED if name.startswith(".data.rel.ro") else Region.DATA


def _symbols(
    data: bytes, head: Sequence[int], heads: Sequence[Sequence[int]]
) -> tuple[Symbol, ...]:
    names = _contents(data, heads[head[6]])
    found: list[Symbol] = []
    for name, info, _, section, value, size in _SYMBOL.iter_unpack(_contents(data, head)):
        binding = info >> 4
        is_common = section == _COMMON
        where = None if section == _UNDEFINED or section >= _RESERVED else section
        text = _text(names, name)
        is_local, is_weak = binding == _LOCAL, binding == _WEAK
        found.append(Symbol(text, where, value, is_local, is_weak, size if is_common else 0))
    return tuple(found)


def _relocations(table: bytes) -> tuple[Relocation, ...]:
    return tuple(
        Relocation(offset, info & 0xFFFFFFFF, info >> 32, addend)
        for offset, info, addend in _RELA.iter_unpack(table)
    )
