"""⑩ The state of a session as an `.npz` file, written whole, and read within bounds.

    state_of.npy            [the digest of the model, the number of filled places], as JSON
    state/NAME.npy          the filled places of each buffer, as they are stored

A file may be damaged, or of another program: what its headers say is compared with what the session
holds before anything is read.
"""

from __future__ import annotations

import json
import zipfile
import zlib
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, BinaryIO, TypeAlias

import numpy as np
from numpy.lib import format as npy
from numpy.typing import NDArray

from autotune.errors import UsageError
from autotune.files import open_input, replacing
from autotune.network.artifact.container import ZIP_ERRORS

Array = NDArray[Any]
Kinds: TypeAlias = "Mapping[str, tuple[tuple[int, ...], np.dtype[Any]]]"
"""Shapes and dtypes of arrays, by name."""

_STATE_OF = "state_of"
_FOLDER = "state/"
_MOST_HEAD_BYTES = 1 << 16
_HEADERS = {(1, 0): npy.read_array_header_1_0, (2, 0): npy.read_array_header_2_0}
_ERRORS = (OSError, *ZIP_ERRORS, zlib.error, TypeError, MemoryError)


def write_state(path: Path, digest: str, length: int, arrays: Mapping[str, Array]) -> None:
    """Write a state whole or not at all. Raises as `files.replacing`."""
    told = json.dumps([digest, length])
    named = {f"{_FOLDER}{name}": plain(array) for name, array in arrays.items()}
    with replacing(path) as file:
        np.savez(file, **{_STATE_OF: np.array(told)}, **named)  # type: ignore[arg-type]


def read_state(
    path: Path, digest: str, capacity: int, wanted: Callable[[int], Kinds], optional: Kinds
) -> tuple[dict[str, Array], int]:
    """The arrays of a state by name, and the number of places.

    `wanted`: what there is at so many places; `optional`: what may be missing. Raises UsageError
    for any other file.
    """
    with open_input(path) as file:
        try:
            with zipfile.ZipFile(file) as archive:
                return _read(path, archive, digest, capacity, wanted, optional)
        except UsageError:
            raise
        except _ERRORS as error:
            raise _no_state(path) from error


def plain(array: Array) -> Array:
    """An array of a type that NumPy writes."""
    return array if array.dtype.kind in "iufb" else array.view(f"u{array.dtype.itemsize}")


def _read(
    path: Path,
    archive: zipfile.ZipFile,
    digest: str,
    capacity: int,
    wanted: Callable[[int], Kinds],
    optional: Kinds,
) -> tuple[dict[str, Array], int]:
    known, length = _head(path, archive)
    if known != digest:
        raise UsageError(f"'{path}' is the state of another model", "save one of this model")
    if not 0 <= length <= capacity:
        raise UsageError(
            f"'{path}' has {length} places, and there are {capacity}",
            "compile with a larger `capacity`",
        )
    names = {name.removesuffix(".npy") for name in archive.namelist()} - {_STATE_OF}
    kinds = dict(wanted(length))
    kinds |= {name: kind for name, kind in optional.items() if f"{_FOLDER}{name}" in names}
    for name, (shape, dtype) in kinds.items():
        if f"{_FOLDER}{name}" not in names:
            continue
        with archive.open(f"{_FOLDER}{name}.npy") as entry:
            found = _kind(entry)
        if found[1] != dtype and found[0] == shape:
            raise UsageError(
                f"'{path}' keeps the state in another type of elements",
                "save one of this model, or compile it with the same `cache_type`",
            )
        if found != (shape, dtype):
            raise _no_state(path)
    if names != {f"{_FOLDER}{name}" for name in kinds}:
        raise _no_state(path)
    arrays = {}
    for name in kinds:
        with archive.open(f"{_FOLDER}{name}.npy") as entry:
            arrays[name] = npy.read_array(entry, allow_pickle=False)
    return arrays, length


def _head(path: Path, archive: zipfile.ZipFile) -> tuple[str, int]:
    """The digest and the length that a file states."""
    entry = archive.getinfo(f"{_STATE_OF}.npy")
    if entry.file_size > _MOST_HEAD_BYTES:
        raise _no_state(path)
    with archive.open(entry) as file:
        digest, length = json.loads(str(npy.read_array(file, allow_pickle=False)))
    if type(digest) is not str or type(length) is not int:
        raise _no_state(path)
    return digest, length


def _kind(entry: Any) -> tuple[tuple[int, ...], np.dtype[Any]]:
    """Shape and dtype of an array, of which nothing else is read."""
    source: BinaryIO = entry
    shape, _, dtype = _HEADERS[npy.read_magic(source)](source)
    return shape, dtype


def _no_state(path: Path) -> UsageError:
    return UsageError(f"'{path}' is no state of a session of this model", "save one of this model")
