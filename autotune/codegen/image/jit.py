"""⑤ Load machine code into this process: an image, or objects that are linked here (`link`)."""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Mapping, Sequence
from functools import cache

import numpy as np

from autotune.codegen.image.elf import Region
from autotune.codegen.image.link import Image, Part, link
from autotune.errors import CodegenError, MissingDependency
from autotune.pages import EXECUTE, READ, WRITE, Bytes, private_pages, protect
from autotune.target.tiles import tile_permission

_LIBM = "libm.so.6"
_GNU_OPENMP = "libgomp.so.1"
_OTHERS: Mapping[str, str] = {"GOMP_": _GNU_OPENMP, "omp_": _GNU_OPENMP}
"""Libraries that code of earlier versions calls, by prefixes of names."""
_PACKAGES: Mapping[str, str] = {_GNU_OPENMP: "on Debian and Ubuntu: apt-get install libgomp1"}

ACCESS: Mapping[Region, int] = {
    Region.CODE: READ | EXECUTE,
    Region.CONSTANTS: READ,
    Region.RELOCATED: READ,
    Region.DATA: READ | WRITE,
}


class Library:
    """Machine code ready to be called; it lives as long as this object.

    It is a copy of the image: the file that the image came from may change or go.
    Functions of other libraries are found in this process and in libm. Raises CodegenError for one
    that is nowhere, and for memory that the system does not let be executed; MissingDependency for
    a library that is not installed.
    """

    def __init__(self, code: Image | Sequence[bytes]) -> None:
        tile_permission()  # before the first instruction that needs it
        self.image = code if isinstance(code, Image) else link([Part(data) for data in code])
        self._pages = _loaded(self.image)
        self._start: int = self._pages.ctypes.data

    @property
    def n_code_bytes(self) -> int:
        """Bytes of the machine code of all objects; that of one object lies together."""
        return self.image.n_code_bytes

    def has(self, symbol: str) -> bool:
        """Whether an object defines the function."""
        return symbol in self.image.symbols

    def address(self, symbol: str) -> int:
        """Address of a function; raises CodegenError when no object defines it."""
        if symbol not in self.image.symbols:
            raise CodegenError(f"no object defines the symbol '{symbol}'")
        return self._start + self.image.symbols[symbol]

    def function(self, symbol: str, n_buffers: int) -> Callable[..., None]:
        """A kernel as a callable of `n_buffers` addresses, begin and end; it releases the GIL."""
        pointers = [ctypes.c_void_p] * n_buffers
        kind = ctypes.CFUNCTYPE(None, *pointers, ctypes.c_int64, ctypes.c_int64)
        function = kind(self.address(symbol))
        function.library = self  # type: ignore[attr-defined]  # keeps the code alive
        return function


def _loaded(image: Image) -> Bytes:
    imports = {name: address_of(name) for name in image.imports}
    try:
        pages = private_pages(len(image.data))
        fill(pages, image, pages.ctypes.data, imports)
        protect(pages, ((begin, end, ACCESS[region]) for region, begin, end in image.spans()))
    except OSError as error:
        raise CodegenError(
            f"the system refuses memory for machine code: {error.strerror}",
            "allow this process to make memory executable, or give it more",
        ) from error
    return pages


def fill(memory: Bytes, image: Image, start: int, imports: Mapping[str, int]) -> None:
    """Write an image to memory that code sees at address `start`; `imports`: addresses by name."""
    memory[: len(image.data)] = np.frombuffer(image.data, np.uint8)
    for name, places in image.imports.items():
        for at in places:
            memory[at : at + 8].view(np.uint64)[0] = imports[name]
    for at in image.rebases:
        memory[at : at + 8].view(np.uint64)[0] += start


@cache
def address_of(name: str) -> int:
    """Address of a function of this process, of libm or of a named library.

    Raises CodegenError for one that is nowhere, MissingDependency without its library.
    """
    named = [file for prefix, file in _OTHERS.items() if name.startswith(prefix)]
    for file in (None, _LIBM, *named):
        function = getattr(_opened(file), name, None)
        if function is not None:
            return int(ctypes.cast(function, ctypes.c_void_p).value or 0)
    raise CodegenError(f"it calls '{name}', which no library of this system has")


@cache
def _opened(file: str | None) -> ctypes.CDLL:
    try:
        return ctypes.CDLL(file)
    except OSError as error:
        hint = _PACKAGES.get(file or "", "install it")
        raise MissingDependency(f"{file} is not installed", hint) from error
