"""⑦ The wire format between a session and its measuring processes: frames of JSON and plain bytes.

    frame   = magic b"ATMP" · version u16 · blobs u16 · JSON bytes u64 · bytes of each blob u64
              · JSON · blobs                                        (little endian, no padding)
    JSON    = {"kind": …, "number": …, "fields": {…}}

A reply has the number of its request, so a late reply is never taken for that of another request.
Code and arrays are sent as blobs. Nothing that is received is executed or unpickled: a faulty
program may have overwritten the peer, which then sends garbage, and garbage is a `ProtocolError`.
The kinds and their fields are in
`autotune.measure.processes.messages`; the transport is any stream, here a socket pair.
"""

from __future__ import annotations

import json
import socket
import struct
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import accumulate, pairwise
from typing import Any

MAGIC, VERSION = b"ATMP", 1

_HEAD = struct.Struct("<4sHHQ")
_LENGTH = struct.Struct("<Q")
_MAX_BLOBS = 4096
_CHUNK_BYTES = 1 << 20
MAX_BYTES = 1 << 40
"""More than any machine has: no limit, for peers that run no generated code."""


class ProtocolError(Exception):
    """The bytes received are no frame, or one beyond the size limit."""


class Closed(Exception):
    """The peer has closed its end."""


class Late(Exception):
    """The frame was not complete in time."""


@dataclass(frozen=True, slots=True)
class Message:
    """`kind` determines the `fields`; `blobs`: bytes that JSON cannot hold."""

    kind: str
    fields: Mapping[str, Any] = field(default_factory=dict)
    blobs: Sequence[Any] = ()
    number: int = 0


class Channel:
    """One end of a stream of frames. `clock` gives seconds that only grow."""

    def __init__(self, stream: socket.socket, clock: Callable[[], float] = time.monotonic) -> None:
        self._stream = stream
        self._clock = clock

    def fileno(self) -> int:
        """To wait on: readable when a frame begins or the peer is gone."""
        return self._stream.fileno()

    def close(self) -> None:
        """Close this end."""
        self._stream.close()

    def send(self, message: Message, timeout_s: float | None = None) -> None:
        """Hand over a whole frame. Raises Closed, or Late after `timeout_s` (None: waits)."""
        end_s = self._end_s(timeout_s)
        for part in _parts(message):
            self._within(end_s)
            try:
                self._stream.sendall(part)
            except TimeoutError as error:
                raise Late from error
            except OSError as error:
                raise Closed from error

    def receive(self, timeout_s: float | None = None, limit_bytes: int = MAX_BYTES) -> Message:
        """The next frame, whole. Raises Closed, Late, or ProtocolError for anything but a frame."""
        end_s = self._end_s(timeout_s)
        magic, version, n_blobs, n_json = _HEAD.unpack(self._read(_HEAD.size, end_s))
        if magic != MAGIC or version != VERSION or n_blobs > _MAX_BLOBS:
            raise ProtocolError(f"not a frame of version {VERSION}")
        lengths = [int(_LENGTH.unpack(self._read(_LENGTH.size, end_s))[0]) for _ in range(n_blobs)]
        if n_json + sum(lengths) > limit_bytes:
            raise ProtocolError(
                f"a frame of {n_json + sum(lengths)} bytes, at most {limit_bytes} were expected"
            )
        text = bytes(self._read(n_json, end_s))
        return _message(text, [self._read(n, end_s) for n in lengths])

    def _read(self, n_bytes: int, end_s: float | None) -> bytearray:
        """Exactly so many bytes; memory is allocated as they arrive, not as they are announced."""
        data = bytearray()
        while len(data) < n_bytes:
            self._within(end_s)
            try:
                part = self._stream.recv(min(_CHUNK_BYTES, n_bytes - len(data)))
            except TimeoutError as error:
                raise Late from error
            except OSError as error:
                raise Closed from error
            if not part:
                raise Closed
            data += part
        return data

    def _end_s(self, timeout_s: float | None) -> float | None:
        return None if timeout_s is None else self._clock() + timeout_s

    def _within(self, end_s: float | None) -> None:
        """Let the next call on the stream wait until `end_s` at most."""
        left_s = None if end_s is None else end_s - self._clock()
        if left_s is not None and left_s <= 0:
            left_s = 1e-6  # bytes that have arrived are read
        self._stream.settimeout(left_s)


def packed(message: Message) -> bytes:
    """A whole frame as bytes, for a transport of its own. Raises ValueError as `json.dumps`."""
    return b"".join(map(bytes, _parts(message)))


def unpacked(data: bytes) -> Message:
    """Inverse of `packed`. Raises ProtocolError for bytes that are no frame."""
    try:
        magic, version, n_blobs, n_json = _HEAD.unpack_from(data)
        lengths = struct.unpack_from(f"<{n_blobs}Q", data, _HEAD.size)
    except struct.error as error:
        raise ProtocolError("not a whole frame") from error
    begins = list(accumulate((n_json, *lengths), initial=_HEAD.size + _LENGTH.size * n_blobs))
    if (magic, version) != (MAGIC, VERSION) or begins[-1] != len(data):
        raise ProtocolError(f"not a frame of version {VERSION}")
    text, *blobs = (data[begin:end] for begin, end in pairwise(begins))
    return _message(text, [bytearray(blob) for blob in blobs])


def _parts(message: Message) -> list[Any]:
    text = json.dumps(
        {"kind": message.kind, "number": message.number, "fields": message.fields},
        separators=(",", ":"),
        allow_nan=False,
    ).encode()
    blobs = [memoryview(b) for b in message.blobs]
    head = _HEAD.pack(MAGIC, VERSION, len(blobs), len(text))
    lengths = b"".join(_LENGTH.pack(b.nbytes) for b in blobs)
    return [head + lengths + text, *(b for b in blobs if b.nbytes)]


def _message(text: bytes, blobs: Sequence[bytearray]) -> Message:
    try:
        data = json.loads(text)
        kind, number, fields = data["kind"], data["number"], data["fields"]
    except (ValueError, KeyError, TypeError, RecursionError) as error:
        raise ProtocolError("a frame without a kind, a number and fields") from error
    right = isinstance(kind, str) and isinstance(number, int) and isinstance(fields, dict)
    if not right:
        raise ProtocolError("a frame whose kind, number or fields are of another type")
    return Message(kind, fields, blobs, number)
