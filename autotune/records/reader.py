"""⑧ From the file of a log to its entries; foreign and corrupt lines are counted, no more."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import BinaryIO

from autotune.errors import LogMismatch
from autotune.files import cannot_open, open_input
from autotune.records.record import End, Entry, Header, Log, MeasureRecord, Workload, decode

PROBE_BYTES = 16 << 20
"""Without one valid line in so much, a file is no log."""
LINE_BYTES = 64 << 20
"""A longer line is corrupt: it is passed over, never held in memory."""


def read_log(path: Path) -> Log:
    """Everything in a log, without a lock and without changing it.

    Raises LogMismatch for a file that is no autotune log at all, UsageError where there is none.
    """
    try:
        with open_input(path) as file:
            return _read(file, path)
    except OSError as error:
        raise cannot_open(path, error) from error


def decode_bytes(line: bytes) -> Entry | None:
    """The entry of a line of a file; None for a foreign or corrupt one."""
    try:
        return decode(line.decode().strip())
    except UnicodeDecodeError:
        return None


@dataclass(slots=True)
class _Found:
    """Entries read so far."""

    headers: list[Header] = field(default_factory=list)
    workloads: dict[str, Workload] = field(default_factory=dict)
    records: list[MeasureRecord] = field(default_factory=list)
    ends: list[End] = field(default_factory=list)

    def add(self, entry: Entry) -> None:
        match entry:
            case Header():
                self.headers.append(entry)
            case Workload():
                self.workloads[entry.key] = entry
            case MeasureRecord():
                self.records.append(entry)
            case End():
                self.ends.append(entry)

    def is_log(self) -> bool:
        return bool(self.headers or self.records)


def _read(file: BinaryIO, path: Path) -> Log:
    found = _Found()
    n_skipped, n_bytes, torn = 0, 0, False
    for line, n_line in _lines(file):
        entry = decode_bytes(line)
        if entry is not None:
            found.add(entry)
        elif not line.endswith(b"\n"):
            torn = True
        else:
            n_skipped += bool(line.strip())
        n_bytes += n_line
        if n_bytes > PROBE_BYTES and not found.is_log():
            break
    if not found.is_log():
        raise _no_log(path, torn, n_bytes)
    records = _with_present_keys(found.headers, found.records)
    headers, ends = tuple(found.headers), tuple(found.ends)
    return Log(headers, found.workloads, tuple(records), ends, n_skipped, torn)


def _lines(file: BinaryIO) -> Iterator[tuple[bytes, int]]:
    """Lines and their lengths in bytes; one that is too long counts as corrupt."""
    n_passed = 0
    while line := file.readline(LINE_BYTES):
        if len(line) == LINE_BYTES and not line.endswith(b"\n"):
            n_passed += len(line)
            if n_passed == LINE_BYTES:
                yield b"\0\n", n_passed
            continue
        if not n_passed:
            yield line, len(line)
        n_passed = 0


def _with_present_keys(
    headers: Sequence[Header], records: Sequence[MeasureRecord]
) -> list[MeasureRecord]:
    """Records under the key that their CPU has today: it once held the number of cores."""
    keys = {header.target.former_key: header.target.key for header in headers}
    return [
        replace(r, target_key=keys[r.target_key]) if r.target_key in keys else r for r in records
    ]


def _no_log(path: Path, torn: bool, n_bytes: int) -> LogMismatch:
    if n_bytes == 0:
        return LogMismatch(f"{path} is empty", "nothing was measured: delete it and tune again")
    return LogMismatch(
        f"{path} is no autotune log: none of its lines is a header or a measurement",
        "logs are written by autotune tune" + (" (this one may be cut off)" if torn else ""),
    )
