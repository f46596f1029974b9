"""① The bytes of an ONNX file without its large weights, which are left where they lie.

    parted(file) ─► Parted(text, places)     text: a ModelProto whose large float32 initialisers
                                             have no data; places: where these are

Weights are nearly all of a file. Parsing it copies them, and asking the parsed message for them
copies them again; the rest defines the graph.
"""

from __future__ import annotations

import math
import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import BinaryIO

import numpy as np
from google.protobuf.message import DecodeError  # type: ignore[import-untyped]
from onnx import TensorProto

from autotune.errors import ModelError
from autotune.graph.reader.tensors import Array

_GRAPH, _INITIALIZER, _RAW_DATA = 7, 5, 9
"""Numbers of fields: of a model, of a graph, of a tensor."""
_VARINT, _FIXED64, _BYTES, _FIXED32 = 0, 1, 2, 5
_SIZES = {_FIXED64: 8, _FIXED32: 4}
_ITEM_BYTES = 4


@dataclass(frozen=True, slots=True)
class FileRange:
    """Offset in bytes and shape of a float32 tensor in a file."""

    offset: int
    shape: tuple[int, ...]


@dataclass(slots=True)
class Parted:
    """See the module; `places` by name of the tensor."""

    text: bytes = b""
    places: dict[str, FileRange] = field(default_factory=dict)


def parted(file: BinaryIO, least: int) -> Parted:
    """Part a file; tensors of more than `least` elements count as large.

    Raises ValueError for anything but a message: ONNX's parser names the fault.
    """
    found = Parted()
    try:
        found.text = _parted(file, os.fstat(file.fileno()).st_size, (_GRAPH,), found, least)
    except DecodeError as error:
        raise ValueError(str(error)) from error
    return found


_MOST_FIELDS = 500_000
"""Of a message: more than a model has nodes and weights."""


def read_weights(file: BinaryIO, places: Mapping[str, FileRange]) -> dict[str, Array]:
    """The arrays at `places`, read-only. Raises ModelError where the file has become shorter."""
    arrays: dict[str, Array] = {}
    for name, place in places.items():
        array = np.empty(place.shape, "<f4")
        file.seek(place.offset)
        if file.readinto(array.reshape(-1).view(np.uint8).data) != array.nbytes:  # type: ignore[attr-defined]
            raise ModelError(
                f"the file has changed while it was read: '{name}' is beyond its end",
                "begin again when nobody writes it, with a copy if need be",
            )
        array.flags.writeable = False
        arrays[name] = array
    return arrays


def _parted(file: BinaryIO, end: int, path: tuple[int, ...], found: Parted, least: int) -> bytes:
    """The message up to `end`, of which the field `path[0]` is parted; an empty path: a tensor."""
    out: list[bytes] = []
    while file.tell() < end:
        if len(out) > _MOST_FIELDS:
            raise ValueError("reading it field by field takes too long")
        tag, n_bytes, head = _field(file, end)
        number, kind = tag >> 3, tag & 7
        is_within = kind == _BYTES and number == path[0]
        if is_within and len(path) == 1 and path[0] == _INITIALIZER:
            body = _tensor(file, n_bytes, found, least)
        elif is_within:
            body = _parted(file, file.tell() + n_bytes, (_INITIALIZER,), found, least)
        else:
            out.append(head + _read(file, n_bytes))
            continue
        out += [_varint_of(tag), _varint_of(len(body)), body]
    return b"".join(out)


def _tensor(file: BinaryIO, n_bytes: int, found: Parted, least: int) -> bytes:
    """A tensor, without its data where these are large and plain."""
    begin = file.tell()
    if n_bytes <= _ITEM_BYTES * least:
        return _read(file, n_bytes)
    out: list[bytes] = []
    data: list[tuple[int, int]] = []
    while file.tell() < begin + n_bytes:
        tag, size, head = _field(file, begin + n_bytes)
        if tag == _RAW_DATA << 3 | _BYTES:
            data.append((file.tell(), size))
            file.seek(size, os.SEEK_CUR)
        else:
            out.append(head + _read(file, size))
    text = b"".join(out)
    tensor = TensorProto.FromString(text)
    shape = tuple(tensor.dims)
    is_plain = (
        tensor.data_type == TensorProto.FLOAT
        and tensor.data_location != TensorProto.EXTERNAL
        and not tensor.float_data
        and [size for _, size in data] == [_ITEM_BYTES * math.prod(shape)]
    )
    if is_plain and math.prod(shape) > least and tensor.name not in found.places:
        found.places[tensor.name] = FileRange(data[0][0], shape)
        return text
    file.seek(begin)
    return _read(file, n_bytes)


def _field(file: BinaryIO, end: int) -> tuple[int, int, bytes]:
    """A field's tag, the number of bytes that follow, and the bytes that were read."""
    tag, head = _varint(file)
    kind = tag & 7
    if kind == _VARINT:
        _, value = _varint(file)
        return tag, 0, head + value
    if kind in _SIZES:
        return tag, _SIZES[kind], head
    if kind != _BYTES:
        raise ValueError(f"no field has wire type {kind}")
    n_bytes, length = _varint(file)
    if n_bytes > end - file.tell():
        raise ValueError("a field is longer than what it is in")
    return tag, n_bytes, head + length


def _varint(file: BinaryIO) -> tuple[int, bytes]:
    value, text = 0, b""
    while len(text) < 10:
        byte = file.read(1)
        if not byte:
            break
        text += byte
        value |= (byte[0] & 0x7F) << 7 * (len(text) - 1)
        if byte[0] < 0x80:
            return value, text
    raise ValueError("a number has no end")


def _varint_of(value: int) -> bytes:
    out = bytearray()
    while value >= 0x80:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    return bytes((*out, value))


def _read(file: BinaryIO, n_bytes: int) -> bytes:
    data = file.read(n_bytes)
    if len(data) != n_bytes:
        raise ValueError("the file ends too early")
    return data
