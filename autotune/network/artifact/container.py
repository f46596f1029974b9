"""⑩ The file of an artifact: an uncompressed zip whose parts are known by their digests.

    manifest.json   sizes and digests of all other parts
    seal            digest of the manifest
    image.bin       machine code, as it is loaded (`codegen.link`)
    image.seal      digest of the manifest that the code was compiled for
    constants.bin · onnx/NNN.onnx, in hybrid artifacts

A part is read, its digest compared, and only then is it used. Digests are SHA-256; of
parts above 1 MiB, over the sums of all pages of 4 KiB as 64-bit words ("sums"), which takes a
twentieth of the time. Files from before have SHA-256 there, over pieces of 16 MiB ("sha256"). A
digest tells damage, not malice: an author of the file is the author of its digests.
"""

from __future__ import annotations

import hashlib
import os
import struct
import zipfile
from collections.abc import Callable, Iterator, Mapping
from typing import Any, BinaryIO, TypeVar

import numpy as np
from numpy.typing import NDArray

from autotune.codegen.memory import ALIGNMENT, aligned
from autotune.machine import read_limits
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
_CHUNK = 16 << 20
_BLOCK = 256 << 10
"""Bytes that are read and added up at a time; a multiple of:"""
_PAGE = 4 << 10
_SUMMED_FROM = 1 << 20
_MOST_MANIFEST_BYTES = 64 << 20
_MOST_SEAL_BYTES = 4 << 10
_MOST_THREADS = 8

A = TypeVar("A")
B = TypeVar("B")
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


def digest(data: Bytes) -> str:
    """The SHA-256 of a part, in hexadecimal; of a large one, over those of its pieces."""
    return _joined(_on_threads(_digest, list(_pieces(data)) or [data]))


def described(data: Bytes) -> dict[str, int | str]:
    """A part as a manifest describes it."""
    is_summed = data.nbytes > _SUMMED_FROM
    kind = "sums" if is_summed else "sha256"
    return {"bytes": data.nbytes, kind: digest_of_kind(data, is_summed)}


def digest_of_kind(data: Bytes, is_summed: bool) -> str:
    """The digest of a part: over the sums of its pages, or over its bytes."""
    return _of_sums(_on_threads(_sums, list(_pieces(data)))) if is_summed else digest(data)


def _require_digest(name: str, described: Mapping[str, Any], found: str) -> None:
    wanted = described["sums" if "sums" in described else "sha256"]
    require(found == wanted, f"'{name}' has another digest")


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
            for piece in _pieces(constants):
                entry.write(piece.data)


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
        return self._read(MANIFEST)[0].tobytes()

    def is_sealed(self, manifest: bytes) -> bool:
        """Whether the manifest is the one that was written."""
        return self._read(SEAL)[0].tobytes() == digest(bytes_of(manifest)).encode()

    def image_seal(self) -> str:
        """Digest in the machine code: of the manifest that it was compiled for."""
        require(self._sizes.get(IMAGE_SEAL, 0) <= _MOST_SEAL_BYTES, f"'{IMAGE_SEAL}' is too large")
        return self._read(IMAGE_SEAL)[0].tobytes().decode("ascii", "replace")

    def part(self, name: str, described: Mapping[str, Any]) -> Bytes:
        """A part of the size and digest that the manifest says."""
        self._require_size(name, described)
        is_summed = "sums" in described
        data, found = self._read(name, is_summed)
        _require_digest(name, described, found)
        return data

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
        _require_digest(name, described, digest_of_kind(data, "sums" in described))
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

    def _read(self, name: str, is_summed: bool = False) -> tuple[Bytes, str]:
        """A part and its digest, in memory of its own: large pages where the system gives them."""
        data: Bytes = aligned((self._sizes[name],), "uint8")

        def fill(begin: int) -> bytes:
            end = min(begin + _CHUNK, data.nbytes)
            if not is_summed:
                self._fill(name, data, begin, end)
                return _digest(data[begin:end])
            sums = []
            for start in range(begin, end, _BLOCK):
                stop = min(start + _BLOCK, end)
                self._fill(name, data, start, stop)
                sums.append(_sums(data[start:stop]))
            return b"".join(sums)

        found = _on_threads(fill, list(range(0, data.nbytes, _CHUNK)))
        return data, _of_sums(found) if is_summed else _joined(found)

    def _fill(self, name: str, data: Bytes, begin: int, end: int) -> None:
        """Read these bytes of a part to where they belong."""
        start, at = self._starts[name], begin
        while at < end:
            n_bytes = os.preadv(self._handle, [data[at:end].data], start + at)
            require(n_bytes > 0, f"'{name}' is beyond the end of the file")
            at += n_bytes


def _pieces(data: Bytes) -> Iterator[Bytes]:
    return (data[start : start + _CHUNK] for start in range(0, data.nbytes, _CHUNK))


def _digest(piece: Bytes) -> bytes:
    return hashlib.sha256(piece.data).digest()


def _sums(piece: Bytes) -> bytes:
    """The sum of every page as 64-bit words; missing bytes count as zero."""
    n_whole = piece.nbytes // _PAGE * _PAGE
    sums = _sum_of_rows(piece[:n_whole])
    if n_whole == piece.nbytes:
        return sums
    last = np.zeros(_PAGE, np.uint8)
    last[: piece.nbytes - n_whole] = piece[n_whole:]
    return sums + _sum_of_rows(last)


def _sum_of_rows(pages: Bytes) -> bytes:
    words: NDArray[np.uint64] = pages.view("<u8").reshape(-1, _PAGE // 8)
    sums: NDArray[np.uint64] = words.sum(axis=1, dtype="<u8")
    return sums.tobytes()


def _of_sums(sums: list[bytes]) -> str:
    return hashlib.sha256(b"".join(sums)).hexdigest()


def _joined(digests: list[bytes]) -> str:
    whole = digests[0] if len(digests) == 1 else hashlib.sha256(b"".join(digests)).digest()
    return whole.hex()


def _on_threads(function: Callable[[A], B], arguments: list[A]) -> list[B]:
    if len(arguments) < 2:
        return [function(argument) for argument in arguments]
    n_threads = min(_MOST_THREADS, read_limits().n_busy, len(arguments))
    from concurrent.futures import ThreadPoolExecutor  # only large files are worth its import

    with ThreadPoolExecutor(n_threads) as pool:
        return list(pool.map(function, arguments))


def _aligned_entry(file: zipfile.ZipFile, is_wide: bool) -> zipfile.ZipInfo:
    """The header of the constants, padded so that the data after it is aligned."""
    info = zipfile.ZipInfo(CONSTANTS, _EPOCH)
    header = _LOCAL_HEADER.size + len(CONSTANTS) + _EXTRA_HEADER.size
    end = file.start_dir + header + (_ZIP64_EXTRA if is_wide else 0)
    padding = -end % ALIGNMENT
    info.extra = _EXTRA_HEADER.pack(_PADDING_ID, padding) + bytes(padding)
    return info
