"""⑤ Objects of WebAssembly to one module that can be placed anywhere in a memory.

    link_modules([entry, kernels, …], exported=["autotune_run.0"]) -> module, {"autotune_run.0": 0}

LLVM's linker makes it, as `wasm-ld --pie`: its data are relative to `__memory_base`, its
functions' numbers to `__table_base`, both of which it imports beside the memory and the table.
`module.mjs` places it. A function's "address" is its slot in the table: `module.mjs` puts exported
ones first, by name.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from importlib.resources import files
from pathlib import Path

from autotune.codegen.image.elf import DAMAGED
from autotune.errors import CodegenError
from autotune.toolchain import link_wasm
from autotune.work_folders import work_folder

MAGIC = b"\0asm"
_HEADER_BYTES = 8
_CUSTOM, _EXPORTS, _FUNCTION = 0, 7, 0
_OWN = frozenset({"__wasm_call_ctors", "__wasm_apply_data_relocs"})

LIBRARY = (
    *("exp", "log", "log1p", "erf", "sin", "cos", "tan", "asin", "acos", "atan", "sinh", "cosh"),
    *("tanh", "asinh", "acosh", "atanh", "pow", "fmod", "fmodf", "sinf", "cosf", "tanf"),
)
"""Functions of others that code may call: `module.mjs` has them."""
MEASURING = ("clock_gettime", "sched_setaffinity")
"""Those that a measuring program has beside them."""
WAITING = ("autotune_sleep", "autotune_wake")
"""Those of threads."""


def link_modules(
    objects: Sequence[bytes], exported: Collection[str] = (), is_shared: bool = False
) -> tuple[bytes, Mapping[str, int]]:
    """The module of relocatable objects, and the slots of its functions by name.

    `exported`: functions that are called from outside; all where none is named. `is_shared`:
    whether threads share its memory, which it writes its data to when it is placed first. Raises
    MissingDependency without the linker, CodegenError where it refuses the objects.
    """
    with work_folder() as folder:
        paths = [Path(folder, f"{n}.o") for n in range(len(objects))]
        for path, data in zip(paths, objects, strict=True):
            path.write_bytes(data)
        known = (*LIBRARY, *MEASURING, *WAITING * is_shared)
        made = link_wasm(paths, Path(folder, "module.wasm"), exported, known, is_shared)
    names = sorted(_exported(made))
    return made, {name: slot for slot, name in enumerate(names)}


def placing_script() -> str:
    """The text of `module.mjs`, which programs in JavaScript begin with."""
    return files("autotune.codegen.image").joinpath("module.mjs").read_text(encoding="utf-8")


def custom_section(name: str, data: bytes) -> bytes:
    """A section that engines pass over, to be put behind a module."""
    head = _bytes_of(len(name)) + name.encode()
    return bytes([_CUSTOM]) + _bytes_of(len(head) + len(data)) + head + data


def _bytes_of(number: int) -> bytes:
    """What `_number` reads."""
    found = bytearray()
    while number > 0x7F:
        found.append(number & 0x7F | 0x80)
        number >>= 7
    return bytes([*found, number])


def _exported(module: bytes) -> Iterator[str]:
    """Names of exported functions."""
    try:
        for kind, at in _sections(module):
            if kind != _EXPORTS:
                continue
            count, at = _number(module, at)
            for _ in range(count):
                size, at = _number(module, at)
                name = module[at : at + size].decode()
                what = module[at + size]
                _, at = _number(module, at + size + 1)
                if what == _FUNCTION and name not in _OWN:
                    yield name
    except (IndexError, UnicodeDecodeError) as error:
        raise CodegenError("a module of WebAssembly ends too early", DAMAGED) from error


def _sections(module: bytes) -> Iterator[tuple[int, int]]:
    """Kinds of sections, and where their contents begin."""
    at = _HEADER_BYTES
    while at < len(module):
        size, begin = _number(module, at + 1)
        yield module[at], begin
        at = begin + size


def _number(module: bytes, at: int) -> tuple[int, int]:
    """An unsigned number of seven bits a byte, and the byte behind it."""
    value = shift = 0
    while True:
        byte = module[at]
        value, shift, at = value | (byte & 0x7F) << shift, shift + 7, at + 1
        if byte < 0x80:
            return value, at
