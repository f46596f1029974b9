"""⑤ Load relocatable objects into this process, without a linker."""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Sequence
from functools import cache

import llvmlite.binding as llvm

from autotune.errors import CodegenError, MissingDependency
from autotune.target.tiles import tile_permission

_LIBM = "libm.so.6"


class Library:
    """Machine code ready to be called; it lives as long as this object.

    Undefined symbols are resolved in the other objects, in this process and in libm. A symbol that
    none of them defines becomes address 0, where a call crashes, so a caller that needs another
    library (libgomp) loads it first.
    """

    def __init__(self, objects: Sequence[bytes]) -> None:
        _initialise()
        empty = llvm.parse_assembly(f'target triple = "{llvm.get_default_triple()}"')
        machine = llvm.Target.from_default_triple().create_target_machine(codemodel="jitdefault")
        self._engine = llvm.create_mcjit_compiler(empty, machine)
        self._objects = objects
        for data in objects:
            self._engine.add_object_file(_object(data))
        self._engine.finalize_object()

    @property
    def n_code_bytes(self) -> int:
        """Bytes of the machine code of all objects; that of one object lies together."""
        sections = (s for data in self._objects for s in _object(data).sections())
        return sum(s.size() for s in sections if s.is_text())

    def has(self, symbol: str) -> bool:
        """Whether an object defines the function."""
        return bool(self._engine.get_function_address(symbol))

    def address(self, symbol: str) -> int:
        """Address of a function; raises CodegenError when no object defines it."""
        found = int(self._engine.get_function_address(symbol))
        if not found:
            raise CodegenError(f"no object defines the symbol '{symbol}'")
        return found

    def function(self, symbol: str, n_buffers: int) -> Callable[..., None]:
        """A kernel as a callable of `n_buffers` addresses, begin and end; it releases the GIL."""
        pointers = [ctypes.c_void_p] * n_buffers
        kind = ctypes.CFUNCTYPE(None, *pointers, ctypes.c_int64, ctypes.c_int64)
        function = kind(self.address(symbol))
        function.library = self  # type: ignore[attr-defined]  # keeps the code alive
        return function


def _object(data: bytes) -> llvm.ObjectFileRef:
    found = llvm.ObjectFileRef.from_data(data)
    if not found:  # LLVM's null pointer
        raise CodegenError("not an object file", "the file that it came from is damaged")
    return found


@cache
def _initialise() -> None:
    llvm.initialize_native_target()
    llvm.initialize_native_asmprinter()
    llvm.load_library_permanently(_LIBM)
    tile_permission()  # before the first instruction that needs it


def load_libgomp() -> None:
    """Make libgomp's symbols known to machine code; raises MissingDependency."""
    try:
        llvm.load_library_permanently("libgomp.so.1")
    except RuntimeError as error:
        raise MissingDependency(
            "libgomp.so.1 is not installed", "on Debian and Ubuntu: apt-get install libgomp1"
        ) from error
