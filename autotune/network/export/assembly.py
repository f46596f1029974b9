"""⑩ The image of an artifact as assembly, which any linker puts into a library or a program.

Code and constants stay as they are in the image, one section; what is written is another. Whatever
names the distance between the two (`Image.crossings`), or an address, is a relocation again.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path

from autotune.codegen.image.elf import Region
from autotune.codegen.image.link import Image
from autotune.codegen.image.relocations import MACHINES

IMAGE_FILE, CONSTANTS_FILE = "image.bin", "constants.bin"
"""Files that the assembly takes bytes from."""
TEAM_SYMBOL = "autotune_team_1"
"""A word that all exported libraries of a process share: their team."""

_CODE, _WRITTEN = ".Lcode", ".Lwritten"
_END = """
  .section .bss.{team},"awG",@nobits,{team},comdat
  .globl {team}
  .type {team}, @gnu_unique_object
  .size {team}, 8
  .balign 8
{team}:
  .zero 8
  .section .note.GNU-stack,"",@progbits
"""


def assembly(image: Image, folder: Path, symbols: Mapping[str, str], constants: str) -> str:
    """Assembly of `image`, whose bytes are in `folder`.

    `symbols`: names of functions in the image, and what programs call them. `constants`: symbol of
    the bytes of the constants, which become a section; "" where they stay in a file.
    """
    written = image.regions[Region.CODE] + image.regions[Region.CONSTANTS]
    size = len(image.data)
    page = MACHINES[image.machine].page_bytes
    file = f'"{folder / IMAGE_FILE}"'
    lines = [
        f'  .section .text.{constants or "image"},"ax",@progbits',
        f"  .balign {page}",
        f"{_CODE}:",
        f"  .incbin {file}, 0, {written}",
        *(line for name, symbol in symbols.items() for line in _global(image, name, symbol)),
        *_crossings(image, written, in_code=True),
        '  .section .data.rel.ro,"aw",@progbits',
        f"  .balign {page}",
        f"{_WRITTEN}:",
        f"  .incbin {file}, {written}, {size - written}",
        *_crossings(image, written, in_code=False),
        *_words(image, written),
    ]
    if constants:
        lines += [
            '  .section .rodata.constants,"a",@progbits',
            f"  .balign {page}",
            *_hidden(constants),
            f"{constants}:",
            f'  .incbin "{folder / CONSTANTS_FILE}"',
        ]
    return "\n".join(lines) + _END.format(team=TEAM_SYMBOL)


def _hidden(symbol: str) -> tuple[str, ...]:
    return f"  .globl {symbol}", f"  .hidden {symbol}"


def _global(image: Image, name: str, symbol: str) -> Iterator[str]:
    at, written = image.symbols[name], image.regions[Region.CODE] + image.regions[Region.CONSTANTS]
    yield from _hidden(symbol)
    yield f"{symbol} = {_place(at, written)}"


def _place(at: int, written: int) -> str:
    """A byte of the image as an expression."""
    return f"{_CODE} + {at}" if at < written else f"{_WRITTEN} + {at - written}"


def _crossings(image: Image, written: int, in_code: bool) -> Iterator[str]:
    """Relocations of the distances from one section to the other.

    Some are about the place of another one, which has a name then.
    """
    labels = MACHINES[image.machine].names_of_labels
    for kind, pairs in image.crossings.items():
        for at, target in pairs:
            if (at < written) is not in_code:
                continue
            there = f"{_WRITTEN} + {target - written}" if in_code else f"{_CODE} + {target}"
            if kind in labels:
                yield f"upper_{target} = {_place(target, written)}"
                there = f"upper_{target}"
            yield f"  .reloc {_place(at, written)}, {kind}, {there}"


def _words(image: Image, written: int) -> Iterator[str]:
    """Relocations of words that hold addresses."""
    word = MACHINES[image.machine].word
    for at in image.rebases:
        value = int.from_bytes(image.data[at : at + 8], "little")
        yield f"  .reloc {_place(at, written)}, {word}, {_place(value, written)}"
    for name, places in image.imports.items():
        yield from (f"  .reloc {_place(at, written)}, {word}, {name}" for at in places)
