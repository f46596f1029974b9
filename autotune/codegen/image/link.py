"""⑤ Relocatable objects to one position-independent image.

    link([Part(kernels), Part(entry, suffix=".0")]) -> Image

All sections of one access lie together:

    code · stubs    read and executed
    constants       read
    relocated       slots (GOT) and constants with addresses: written once, then read
    data            read and written

References between the objects are resolved here. Two things are left to the loader of the
image, and listed in it: words that hold an address within it (`rebases`), and words that hold the
address of a function of another library (`imports`).
"""

from __future__ import annotations

import struct
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Annotated, TypeAlias

from autotune.codec import LEFT_OUT, REQUIRED, Apart, Holds, within
from autotune.codegen.image import wasm
from autotune.codegen.image.elf import (
    DAMAGED,
    Object,
    Region,
    Relocation,
    Section,
    Symbol,
    read_object,
)
from autotune.codegen.image.relocations import (
    MACHINES,
    WASM32,
    X86_64,
    Machine,
    RelocationKind,
    machine_numbered,
)
from autotune.errors import CodegenError

_SLOT_BYTES = 8
MOST_IMAGE_BYTES = 1 << 31
"""Reach of relative addresses."""
_Offset: TypeAlias = Annotated[int, within(0, MOST_IMAGE_BYTES)]


@dataclass(frozen=True, slots=True)
class Part:
    """An object; `suffix` is added to the names that it defines for others."""

    data: bytes
    suffix: str = ""


@dataclass(frozen=True, slots=True)
class Image:
    """Linked code that can be anywhere in memory.

    `regions`: bytes of each, whole pages, in the order of `Region`. `symbols`: offsets of what
    objects define for others. `imports`: names from elsewhere, and the offsets of the words that
    hold their addresses. `rebases`: offsets of words that hold an offset and need an address.
    `crossings`: what code and constants have of the distance to what is written, or the other way
    round, by the relocation's name: where it is, and the byte that it is the distance to. They
    are resolved; who moves the two apart resolves them anew.
    """

    machine: Annotated[str, Holds(MACHINES.__contains__, "a known machine")]
    data: Annotated[bytes, Apart(b"")] = field(repr=False)
    regions: Mapping[str, _Offset]
    symbols: Mapping[str, _Offset]
    imports: Mapping[str, tuple[_Offset, ...]]
    rebases: tuple[_Offset, ...]
    n_code_bytes: Annotated[_Offset, REQUIRED] = 0
    """Of the machine code of all objects."""
    crossings: Annotated[Mapping[str, tuple[tuple[_Offset, int], ...]], LEFT_OUT] = field(
        default_factory=dict
    )

    def spans(self) -> Iterator[tuple[Region, int, int]]:
        """Each region with its begin and end."""
        begin = 0
        for region in Region:
            n_bytes = self.regions[region]
            yield region, begin, begin + n_bytes
            begin += n_bytes


def link(parts: Sequence[Part], exported: Collection[str] = (), is_shared: bool = False) -> Image:
    """The image of all `parts`.

    A module of WebAssembly (`wasm`) is all code, defines `exported` alone where that names
    something, and has no suffixes; its symbols are slots behind the one where it is placed.
    `is_shared`: whether its memory is one of several threads.
    Raises CodegenError for other than objects, two that define one name, or code that cannot be
    moved.
    """
    if parts and parts[0].data.startswith(wasm.MAGIC):
        data, slots = wasm.link_modules([part.data for part in parts], exported, is_shared)
        regions = {str(region): len(data) * (region is Region.CODE) for region in Region}
        return Image(WASM32.name, data, regions, slots, {}, ())
    objects = [(read_object(part.data), part.suffix) for part in parts]
    try:
        return _Linker(objects).image()
    except (IndexError, ValueError, struct.error) as error:
        raise CodegenError("an object refers to what it does not have", DAMAGED) from error


_Place = tuple[int, int]
"""An object and its section, by numbers; those of common variables have object -1."""
_Target = tuple[_Place, int] | str
"""Target of a relocation: a byte of a section, or a name that no object defines."""


class _Linker:
    """Lays out sections, stubs and slots; then writes them."""

    def __init__(self, objects: Sequence[tuple[Object, str]]) -> None:
        self._objects = objects
        self._machine = _machine_of(objects)
        self._sections = dict(_kept(objects))
        self._exported, self._defined = _definitions(objects, self._sections)
        self._slots: dict[_Target, int] = {}
        self._stubs: dict[str, int] = {}
        self._labels: dict[_Place, dict[int, Relocation]] = {}
        self._reserve()
        self._starts: dict[_Place, int] = {}
        self._regions: dict[str, int] = {}
        self._n_bytes = self._lay_out()
        self._rebases: list[int] = []
        self._imports: dict[str, list[int]] = {}
        self._crossings: dict[str, list[tuple[int, int]]] = {}

    def image(self) -> Image:
        """Everything in its place."""
        image = bytearray(self._n_bytes)
        for place, section in self._sections.items():
            start = self._starts[place]
            image[start : start + len(section.data)] = section.data
        for name, at in self._stubs.items():
            slot = self._slots[name]
            stub = self._machine.stub(at, slot)
            image[at : at + len(stub)] = stub
            for kind, offset, addend in self._machine.stub_relocations:
                form = self._machine.forms[kind]
                self._cross(form.name, at + offset, at if form.of_label else slot + addend)
        for target, at in self._slots.items():
            self._write_word(image, at, target, 0)
        for place, section, relocation in self._relocations():
            self._apply(image, self._starts[place], section, place[0], relocation)
        sections = self._sections.values()
        return Image(
            machine=self._machine.name,
            data=bytes(image),
            regions=self._regions,
            symbols={name: self._address(at) for name, at in sorted(self._exported.items())},
            imports={name: tuple(sorted(words)) for name, words in sorted(self._imports.items())},
            rebases=tuple(sorted(self._rebases)),
            n_code_bytes=sum(s.n_bytes for s in sections if s.region is Region.CODE),
            crossings={kind: tuple(sorted(at)) for kind, at in sorted(self._crossings.items())},
        )

    def _relocations(self) -> Iterator[tuple[_Place, Section, Relocation]]:
        for place, section in self._sections.items():
            for relocation in section.relocations:
                yield place, section, relocation

    def _target(self, n: int, number: int) -> _Target:
        """Target of symbol `number` of object `n`."""
        symbol = self._objects[n][0].symbols[number]
        place = (n, symbol.section) if symbol.section is not None else None
        if place is not None and place in self._sections and not symbol.is_weak:
            return place, symbol.value
        if symbol.is_local:
            raise CodegenError(f"the symbol '{symbol.name}' is nowhere", DAMAGED)
        return self._defined.get(symbol.name, symbol.name)

    def _form(self, relocation: Relocation) -> RelocationKind:
        form = self._machine.forms.get(relocation.kind)
        if form is None:
            raise CodegenError(
                f"relocation {relocation.kind} of {self._machine.name} cannot be linked",
                "compile to position independent code",
            )
        return form

    def _reserve(self) -> None:
        """Name the slots and stubs that relocations need."""
        for (n, _), _, relocation in self._relocations():
            target, form = self._target(n, relocation.symbol), self._form(relocation)
            if form.by_slot:
                self._slots.setdefault(target, 0)
            elif form.is_relative and isinstance(target, str):
                self._slots.setdefault(target, 0)
                self._stubs.setdefault(target, 0)

    def _lay_out(self) -> int:
        """Give everything its place, and return the size of the whole."""
        at = 0
        for region in Region:
            begin = at
            if region is Region.RELOCATED:
                for target in self._slots:
                    self._slots[target] = at
                    at += _SLOT_BYTES
            for place, section in self._sections.items():
                if section.region is region:
                    at += -at % section.alignment
                    self._starts[place] = at
                    at += section.n_bytes
            if region is Region.CODE:
                at += -at % self._machine.stub_bytes
                for name in self._stubs:
                    self._stubs[name] = at
                    at += self._machine.stub_bytes
            at += -at % self._machine.page_bytes
            self._regions[region] = at - begin
            if at > MOST_IMAGE_BYTES:
                raise CodegenError("there is too much code for one image", "compile less at once")
        return at

    def _address(self, target: tuple[_Place, int]) -> int:
        place, value = target
        return self._starts[place] + value

    def _apply(
        self, image: bytearray, start: int, section: Section, n: int, relocation: Relocation
    ) -> None:
        target, form = self._target(n, relocation.symbol), self._form(relocation)
        at = start + relocation.offset
        if relocation.offset >= section.n_bytes:
            raise CodegenError(f"section '{section.name}' is too short", DAMAGED)
        if not form.is_relative:
            if section.region in (Region.CODE, Region.CONSTANTS):
                raise CodegenError(
                    f"section '{section.name}' contains an address",
                    "compile to position independent code",
                )
            self._write_word(image, at, target, relocation.addend)
            return
        found, base, addend = self._found(target, form), at, relocation.addend
        if form.of_label:
            base = found + addend
            found, addend = self._labelled(target)
        where = found + addend
        form.store(image, at, where, base)
        if self._is_written(at) != self._is_written(found):
            self._cross(form.name, at, base if form.of_label else where)

    def _found(self, target: _Target, form: RelocationKind) -> int:
        """The byte that a relocation is about, without its addend."""
        if form.by_slot:
            return self._slots[target]
        return self._stubs[target] if isinstance(target, str) else self._address(target)

    def _labelled(self, label: _Target) -> tuple[int, int]:
        """What the relocation at a label is about, and its addend."""
        place, offset = label if not isinstance(label, str) else ((-1, -1), 0)
        if place not in self._labels:
            there = self._sections[place].relocations if place in self._sections else ()
            self._labels[place] = {r.offset: r for r in there}
        upper = self._labels[place].get(offset)
        if upper is None:
            raise CodegenError("a relocation has no upper part", DAMAGED)
        form = self._form(upper)
        return self._found(self._target(place[0], upper.symbol), form), upper.addend

    def _is_written(self, at: int) -> bool:
        """Whether a byte is in a region that is written at least once."""
        return at >= self._regions[Region.CODE] + self._regions[Region.CONSTANTS]

    def _cross(self, kind: str, at: int, target: int) -> None:
        self._crossings.setdefault(kind, []).append((at, target))

    def _write_word(self, image: bytearray, at: int, target: _Target, addend: int) -> None:
        """A word that holds the address of `target` once the image is loaded."""
        if isinstance(target, str):
            if addend:
                raise CodegenError(f"an address within '{target}' cannot be imported", DAMAGED)
            self._imports.setdefault(target, []).append(at)
            return
        value = (self._address(target) + addend) % (1 << 64)
        image[at : at + _SLOT_BYTES] = value.to_bytes(_SLOT_BYTES, "little")
        self._rebases.append(at)


def _machine_of(objects: Sequence[tuple[Object, str]]) -> Machine:
    machines = {machine_numbered(found.machine).name: found.machine for found, _ in objects}
    if len(machines) > 1:
        raise CodegenError(f"objects are for {' and '.join(sorted(machines))}", DAMAGED)
    return machine_numbered(next(iter(machines.values()), X86_64.number))


def _kept(objects: Sequence[tuple[Object, str]]) -> Iterator[tuple[_Place, Section]]:
    """All sections, without those of COMDAT groups that an earlier object has as well."""
    seen: set[str] = set()
    for n, (found, _) in enumerate(objects):
        dropped = {member for name, members in found.groups if name in seen for member in members}
        seen |= {name for name, _ in found.groups}
        for number, section in found.sections.items():
            if number not in dropped:
                yield (n, number), section


def _definitions(
    objects: Sequence[tuple[Object, str]], sections: dict[_Place, Section]
) -> tuple[dict[str, tuple[_Place, int]], dict[str, tuple[_Place, int]]]:
    """Global symbols with their places: by name in the image, and by name in the objects.

    Common variables get a section in `sections`, of the largest size that an object asks for.
    """
    found: dict[str, tuple[tuple[_Place, int], str, bool]] = {}
    commons: dict[str, tuple[int, int]] = {}
    for n, (one, suffix) in enumerate(objects):
        for symbol in one.symbols:
            if symbol.is_local:
                continue
            if symbol.common_bytes:
                size, alignment = commons.get(symbol.name, (0, 1))
                size, alignment = max(size, symbol.common_bytes), max(alignment, symbol.value)
                commons[symbol.name] = size, alignment
            elif symbol.section is not None and (n, symbol.section) in sections:
                _define(found, symbol, (n, symbol.section), suffix)
    for k, (name, (size, alignment)) in enumerate(commons.items()):
        if name not in found:
            sections[-1, k] = Section(name, Region.DATA, alignment, size, b"", ())
            found[name] = ((-1, k), 0), name, False
    exported = {name: at for name, (at, _, _) in found.items()}
    return exported, {inner: at for at, inner, _ in found.values()}


def _define(
    found: dict[str, tuple[tuple[_Place, int], str, bool]],
    symbol: Symbol,
    place: _Place,
    suffix: str,
) -> None:
    """Record a definition; a weak one gives way."""
    name = symbol.name + suffix
    is_first = name not in found
    if is_first or (found[name][2] and not symbol.is_weak):
        found[name] = (place, symbol.value), symbol.name, symbol.is_weak
    elif not symbol.is_weak and not found[name][2]:
        raise CodegenError(f"two objects define '{name}'", DAMAGED)
