"""⑩ The file of an artifact: an uncompressed zip whose parts are known by their digests.

    manifest.json   sizes and digests of all other parts
    seal            digest of the manifest
    image.bin       machine code, as it is loaded (`codegen.link`)
    image.seal      digest of the manifest that the code was compiled for
    constants.bin · onnx/NNN.onnx, in hybrid artifacts

A part is read, its digest compared (`digests`), and only then is it used. A digest tells damage,
not malice: an author of the file is the author of its digests.
"""

from __future__ import annotations

import os
import struct
import zipfile
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any, BinaryIO

import numpy as np
from numpy.typing import NDArray

from autotune.codegen.memory import ALIGNMENT, aligned
from autotune.network.artifact.digests import CHUNK, digest, kind_of
from autotune.pages import shared_file

MANIFEST, SEAL, CONSTANTS = "manifest.json", "seal", "constants.bin"
IMAGE, IMAGE_SEAL = "image.bin", "image.seal"

_EPOCH = (1980, 1, 1, 0, 0, 0)
_PADDING_ID = 0xD935  # the zip extra field that Android's zipalign uses for padding
_LOCAL_HEADER = struct.Struct("<4s22xHH")
_LOCAL_MAGIC = b"PK\x03\x04"
_EXTRA_HEADER = struct.Struct("<HH")
_ZIP32_BYTES = 1 << 30  # beyond this, sizes are written as 64 bits, in a further extra field of:
_ZIP64_EXTRA = 20
_MOST_MANIFEST_BYTES = 64 << 20
_MOST_SEAL_BYTES = 4 << 10

Bytes = NDArray[np.uint8]
Json = Mapping[str, Any]

ZIP_ERRORS = (
    zipfile.BadZipFile,
    NotImplementedError,
    RuntimeError,
    ValueError,
    OverflowError,
    LookupError,
    EOFError,
    struct.error,
)
"""Errors of `zipfile` for files of another or of a broken structure."""


class Damaged(Exception):
    """A part of the file is missing, or differs from its description in the file."""


def require(condition: bool, reason: str) -> None:
    """Raise Damaged for a file of which `condition` does not hold."""
    if not condition:
        raise Damaged(reason)


def model_name(n: int) -> str:
    """The part that holds ONNX file `n`, for ONNX Runtime."""
    return f"onnx/{n:03d}.onnx"


def bytes_of(data: bytes) -> Bytes:
    """An array of the same bytes, in the same memory."""
    return np.frombuffer(data, np.uint8)


def write(
    out: BinaryIO,
    manifest: bytes,
    image: bytes,
    image_seal: str,
    constants: Bytes,
    models: tuple[bytes, ...] = (),
) -> None:
    """Write all parts; equal ones give equal files."""
    with zipfile.ZipFile(out, "w", zipfile.ZIP_STORED) as file:
        file.writestr(zipfile.ZipInfo(MANIFEST, _EPOCH), manifest)
        file.writestr(zipfile.ZipInfo(SEAL, _EPOCH), digest(bytes_of(manifest)))
        file.writestr(zipfile.ZipInfo(IMAGE, _EPOCH), image)
        file.writestr(zipfile.ZipInfo(IMAGE_SEAL, _EPOCH), image_seal)
        for n, data in enumerate(models):
            file.writestr(zipfile.ZipInfo(model_name(n), _EPOCH), data)
        is_wide = constants.nbytes > _ZIP32_BYTES
        info = _aligned_entry(file, is_wide)
        with file.open(info, "w", force_zip64=is_wide) as entry:
            for start in range(0, constants.nbytes, CHUNK):
                entry.write(constants[start : start + CHUNK].data)


class Container:
    """The parts of a file that is open for reading; raises Damaged where they cannot be."""

    def __init__(self, file: BinaryIO) -> None:
        self._handle = file.fileno()
        with zipfile.ZipFile(file) as archive:
            entries = archive.infolist()
            end = archive.start_dir
        self._sizes = {entry.filename: entry.file_size for entry in entries}
        self._starts: dict[str, int] = {}
        require(len(self._sizes) == len(entries), "two of its parts have one name")
        for entry in sorted(entries, key=lambda e: -e.header_offset):
            self._starts[entry.filename] = self._start(entry, end)
            end = entry.header_offset

    def names(self) -> set[str]:
        """Names of all parts."""
        return set(self._sizes)

    def manifest(self) -> bytes:
        """The manifest, whatever it says, and whether or not there is a seal."""
        require(self._sizes[MANIFEST] <= _MOST_MANIFEST_BYTES, "its manifest is too large")
        return self._read(MANIFEST).tobytes()

    def is_sealed(self, manifest: bytes) -> bool:
        """Whether the manifest is the one that was written."""
        return self._read(SEAL).tobytes() == digest(bytes_of(manifest)).encode()

    def image_seal(self) -> str:
        """Digest in the machine code: of the manifest that it was compiled for."""
        require(self._sizes.get(IMAGE_SEAL, 0) <= _MOST_SEAL_BYTES, f"'{IMAGE_SEAL}' is too large")
        return self._read(IMAGE_SEAL).tobytes().decode("ascii", "replace")

    def part(self, name: str, described: Mapping[str, Any]) -> Bytes:
        """A part of the size and digest that the manifest says."""
        self._require_size(name, described)
        return self._read(name, described)

    def mapped(self, name: str, described: Mapping[str, Any]) -> Bytes:
        """`part`, of the file itself: read only, in memory that processes share.

        In memory of its own where the file has it at an address that vectors cannot be read from,
        or the file system cannot map it.
        """
        self._require_size(name, described)
        start, size = self._starts[name], self._sizes[name]
        if start % ALIGNMENT or not size:
            return self.part(name, described)
        try:
            data = shared_file(self._handle, start, size)
        except OSError:
            return self.part(name, described)
        _require_digest(name, data, described)
        return data

    def _require_size(self, name: str, described: Mapping[str, Any]) -> None:
        require(name in self._sizes, f"it has no part '{name}'")
        require(self._sizes[name] == described["bytes"], f"'{name}' has another size")

    def _start(self, entry: zipfile.ZipInfo, end: int) -> int:
        """Offset of the bytes of a part: stored without compression, and before `end`."""
        name, size = entry.filename, entry.file_size
        is_plain = entry.compress_type == zipfile.ZIP_STORED and not entry.flag_bits & 1
        require(is_plain and entry.compress_size == size, f"'{name}' is compressed or encrypted")
        require(0 <= entry.header_offset <= end - _LOCAL_HEADER.size, f"'{name}' is nowhere")
        head = os.pread(self._handle, _LOCAL_HEADER.size, entry.header_offset)
        require(len(head) == _LOCAL_HEADER.size, f"'{name}' is beyond the end of the file")
        magic, n_name, n_extra = _LOCAL_HEADER.unpack(head)
        start: int = entry.header_offset + _LOCAL_HEADER.size + n_name + n_extra
        require(magic == _LOCAL_MAGIC, f"'{name}' has no header")
        require(0 <= size <= end - start, f"'{name}' overlaps what follows")
        require(end <= os.fstat(self._handle).st_size, "it ends too early")
        return start

    def _read(self, name: str, described: Mapping[str, Any] | None = None) -> Bytes:
        """A part in memory of its own: large pages where the system gives them."""
        data: Bytes = aligned((self._sizes[name],), "uint8")
        fill = partial(self._fill, name, data)
        if described is None:
            fill(0, data.nbytes)
        else:
            _require_digest(name, data, described, fill)
        return data

    def _fill(self, name: str, data: Bytes, begin: int, end: int) -> None:
        """Read these bytes of a part to where they belong."""
        start, at = self._starts[name], begin
        while at < end:
            n_bytes = os.preadv(self._handle, [data[at:end].data], start + at)
            require(n_bytes > 0, f"'{name}' is beyond the end of the file")
            at += n_bytes


def _require_digest(
    name: str,
    data: Bytes,
    described: Mapping[str, Any],
    read: Callable[[int, int], None] | None = None,
) -> None:
    kind = kind_of(described)
    require(digest(data, kind, read) == described[kind], f"'{name}' has another digest")


def _aligned_entry(file: zipfile.ZipFile, is_wide: bool) -> zipfile.ZipInfo:
    """The header of the constants, padded so that the data after it is aligned."""
    info = zipfile.ZipInfo(CONSTANTS, _EPOCH)
    header = _LOCAL_HEADER.size + len(CONSTANTS) + _EXTRA_HEADER.size
    end = file.start_dir + header + (_ZIP64_EXTRA if is_wide else 0)
    padding = -end % ALIGNMENT
    info.extra = _EXTRA_HEADER.pack(_PADDING_ID, padding) + bytes(padding)
    return info
