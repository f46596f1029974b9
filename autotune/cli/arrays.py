"""⑪ Arrays of the command line: `.npy` and `.npz` files, read within bounds and written whole."""

from __future__ import annotations

import math
import os
import zipfile
import zlib
from pathlib import Path
from typing import TYPE_CHECKING, Any, BinaryIO

import numpy as np
from numpy.typing import NDArray

from autotune.dtypes import SMALL_TYPES
from autotune.errors import UsageError
from autotune.files import open_input, replacing
from autotune.units import format_bytes

if TYPE_CHECKING:
    from autotune.network.artifact.artifact import Endpoint
    from autotune.network.runtime.runtime import Model

Arrays = dict[str, NDArray[Any]]

_WIDEST_BYTES = 16  # of an element, of whatever dtype
_SLACK_BYTES = 1 << 20
_MOST_BYTES = 16 << 30
_UNPACKED_BYTES, _MOST_RATIO = 256 << 20, 100
"""An archive that unpacks to more bytes than that, and to more than that many times its own."""
_ZIP_ERRORS = (zipfile.BadZipFile, zlib.error, NotImplementedError, RuntimeError, KeyError)
"""Errors of reading a damaged, encrypted or unusual archive."""


def largest_inputs(model: Model) -> tuple[Endpoint, ...]:
    """The inputs of that variant of a model which takes the most elements: those of a file fit."""
    return max((variant.input_info for variant in model.variants), key=n_elements)


def read_inputs(
    ports: tuple[Endpoint, ...],
    files: tuple[tuple[str, Path], ...],
    option: str = "--input",
    n_most: int = 1,
) -> Arrays:
    """Arrays from files by name, cast to no other dtype: `runtime.require_inputs` checks them.

    `n_most`: inferences that a file may hold.
    """
    arrays: Arrays = {}
    names = [end.name for end in ports]
    elements = n_elements(ports)
    for name, path in files:
        most_bytes = n_most * (_WIDEST_BYTES * elements + _SLACK_BYTES)
        loaded = read_array(path, min(most_bytes, _MOST_BYTES))
        if isinstance(loaded, dict):
            arrays |= loaded
        elif name or len(names) == 1:
            arrays[name or names[0]] = loaded
        else:
            raise UsageError(
                f"which input is {path}?",
                f"write {option} NAME={path}; inputs: {', '.join(names)}",
            )
    return {name: with_dtype(array, ports, name) for name, array in arrays.items()}


def with_dtype(array: NDArray[Any], ports: tuple[Endpoint, ...], name: str) -> NDArray[Any]:
    """`array`, whose dtype a file has lost if it is none of NumPy's: it says bytes of anything."""
    port = next((p for p in ports if p.name == name), None)
    if port is None or array.dtype.kind != "V" or array.dtype.names:
        return array
    known = port.numpy_dtype
    is_foreign = known.kind == "V" or known.name in SMALL_TYPES
    return array.view(known) if is_foreign and known.itemsize == array.itemsize else array


def read_array(path: Path, most_bytes: int = _MOST_BYTES) -> NDArray[Any] | Arrays:
    """The array of an .npy file, or the arrays of an .npz file by name.

    Raises UsageError for any other file, and for arrays of more than `most_bytes`.
    """
    with open_input(path) as file:
        try:
            _require_size(path, _unpacked_bytes(file, path), most_bytes)
            loaded = np.load(file, allow_pickle=False)
            if isinstance(loaded, np.ndarray):
                return loaded
            with loaded:
                return {name: loaded[name] for name in loaded.files}
        except (OSError, ValueError, EOFError, MemoryError, *_ZIP_ERRORS) as error:
            reason = str(error).splitlines() or [type(error).__name__]
            raise UsageError(
                f"{path} is no NumPy array: {reason[0]}", "write it with numpy.save"
            ) from error


def _unpacked_bytes(file: BinaryIO, path: Path) -> int:
    """Size of the arrays of a file once they are in memory. Raises UsageError for others."""
    magic = file.read(len(np.lib.format.MAGIC_PREFIX))
    if zipfile.is_zipfile(file):
        with zipfile.ZipFile(file) as archive:
            n_bytes = sum(entry.file_size for entry in archive.infolist())
            n_packed = os.fstat(file.fileno()).st_size
            if n_bytes > max(_UNPACKED_BYTES, _MOST_RATIO * n_packed):
                raise UsageError(
                    f"{path} unpacks from {format_bytes(n_packed)} to {format_bytes(n_bytes)}",
                    "if that is meant, write it with numpy.savez, which does not compress",
                )
    elif magic == np.lib.format.MAGIC_PREFIX:
        n_bytes = file.seek(0, os.SEEK_END)
    else:
        raise UsageError(f"{path} is no NumPy array", "write it with numpy.save")
    file.seek(0)
    return n_bytes


def _require_size(path: Path, n_bytes: int, most_bytes: int) -> None:
    if n_bytes > most_bytes:
        raise UsageError(
            f"{path} holds {format_bytes(n_bytes)}, more than the inputs can take "
            f"({format_bytes(most_bytes)})",
            "give arrays of the shapes that the model has",
        )


def write_npz(path: Path, arrays: Arrays) -> None:
    """Write arrays by name, all or none. Raises as `files.replacing` does."""
    with replacing(path) as file, zipfile.ZipFile(file, "w") as archive:
        for name, array in arrays.items():  # numpy.savez has no room for one called "file"
            if array.dtype == object:  # strings: as NumPy keeps them without pickle
                array = array.astype(str)
            elif array.dtype.name in SMALL_TYPES:  # NumPy may not read the float8 that it writes
                array = array.view("V1")
            with archive.open(f"{name}.npy", "w", force_zip64=True) as entry:
                np.lib.format.write_array(entry, array, allow_pickle=False)


def n_elements(ports: tuple[Endpoint, ...]) -> int:
    """Elements of all inputs together."""
    return sum(math.prod(end.shape) for end in ports)
