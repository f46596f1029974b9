"""⑧ The log file: append-only JSON Lines that survive a kill at any moment.

One writer at a time (an exclusive lock that dies with its process). Every measurement is written as
soon as it is there, every batch ends with an fsync, and a last line that a kill cut off is removed
on opening. Lines that are foreign or corrupt are counted and skipped, and never rewritten.
"""

from __future__ import annotations

import errno
import fcntl
import os
from collections.abc import Iterable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import BinaryIO

from autotune.errors import AutotuneError, LogBusy, LogMismatch, OutputError, UsageError
from autotune.records.record import (
    End,
    Entry,
    Header,
    Log,
    MeasureRecord,
    Workload,
    decode,
    encode,
)

_PROBE_BYTES = 16 << 20  # without one valid line in so much, a file is no log


class Journal:
    """An open log. Use as a context manager; `log` is what the file held when it was opened."""

    def __init__(self, path: Path, file: BinaryIO, log: Log, n_repaired_bytes: int = 0) -> None:
        self.path = path
        self.log = log
        self.n_repaired_bytes = n_repaired_bytes
        self._file = file

    @staticmethod
    def create(path: Path, header: Header, workloads: Iterable[Workload] = ()) -> Journal:
        """Start a log. Raises UsageError where there is a file already or none can be made."""
        _make_folder(path.parent)
        try:
            file = open(path, "xb", buffering=0)  # noqa: SIM115
        except FileExistsError as error:
            raise UsageError(f"{path} exists", f"go on with it: autotune resume {path}") from error
        except OSError as error:
            raise _cannot(path, error) from error
        _lock(file, path)
        journal = Journal(path, file, Log(headers=(header,)))
        journal.append([header, *workloads])
        journal.sync()
        _sync_folder(path.parent)
        return journal

    @staticmethod
    def open(path: Path) -> Journal:
        """Go on with a log: lock it, read it, repair a torn tail.

        Raises LogMismatch for a file that is no log, LogBusy while another process writes it.
        """
        try:
            file = open(path, "r+b", buffering=0)  # noqa: SIM115
        except OSError as error:
            raise _cannot(path, error) from error
        try:
            _lock(file, path)
            log = read_log(path)
            if not log.headers:
                raise LogMismatch(f"{path} has no header", "it cannot be resumed; distill it")
            return Journal(path, file, log, _repair(file))
        except BaseException:
            file.close()
            raise

    def append(self, entries: Sequence[Entry]) -> None:
        """Write entries; from now on they survive a kill of this process.

        Raises OutputError when the disk is full; the file then ends where it ended before.
        """
        data = "".join(encode(entry) + "\n" for entry in entries).encode()
        size = os.fstat(self._file.fileno()).st_size
        try:
            self._file.seek(size)
            _write_all(self._file, data)
        except OSError as error:
            os.ftruncate(self._file.fileno(), size)
            raise _cannot(self.path, error) from error

    def sync(self) -> None:
        """Wait until the disk has everything: it then survives a loss of power. Once per batch."""
        try:
            os.fsync(self._file.fileno())
        except OSError as error:
            raise _cannot(self.path, error) from error

    def close(self) -> None:
        """Give the lock back. Call `sync` first."""
        self._file.close()

    def __enter__(self) -> Journal:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def read_log(path: Path) -> Log:
    """Everything in a log, without a lock and without changing it.

    Raises LogMismatch for a file that is no autotune log at all, UsageError where there is none.
    """
    try:
        with open(path, "rb") as file:
            return _read(file, path)
    except OSError as error:
        raise _cannot(path, error) from error


def write_log(path: Path, log: Log) -> None:
    """Write a whole log at once: readers see the old file or the new one, never a half."""
    entries: list[Entry] = [*log.headers, *log.workloads.values(), *log.records, *log.ends]
    draft = path.with_name(f".{path.name}.{os.getpid()}")
    _make_folder(path.parent)
    try:
        try:
            with open(draft, "xb", buffering=0) as file:
                _write_all(file, "".join(encode(entry) + "\n" for entry in entries).encode())
                os.fsync(file.fileno())
            os.replace(draft, path)
        finally:
            draft.unlink(missing_ok=True)
        _sync_folder(path.parent)
    except OSError as error:
        raise _cannot(path, error) from error


def _read(file: BinaryIO, path: Path) -> Log:
    headers: list[Header] = []
    workloads: dict[str, Workload] = {}
    records: list[MeasureRecord] = []
    ends: list[End] = []
    n_skipped, n_bytes, torn = 0, 0, False
    for line in file:
        match _decode_bytes(line):
            case Header() as header:
                headers.append(header)
            case Workload() as workload:
                workloads[workload.key] = workload
            case MeasureRecord() as record:
                records.append(record)
            case End() as end:
                ends.append(end)
            case None if not line.endswith(b"\n"):
                torn = True
            case None:
                n_skipped += bool(line.strip())
        n_bytes += len(line)
        if n_bytes > _PROBE_BYTES and not (headers or records):
            break
    if not headers and not records:
        raise _no_log(path, torn, n_bytes)
    records = _with_present_keys(headers, records)
    return Log(tuple(headers), workloads, tuple(records), tuple(ends), n_skipped, torn)


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


def _decode_bytes(line: bytes) -> Entry | None:
    try:
        return decode(line.decode().strip())
    except UnicodeDecodeError:
        return None


def _repair(file: BinaryIO) -> int:
    """End the file with a newline; returns how many bytes of a torn line were cut off."""
    size = os.fstat(file.fileno()).st_size
    tail = _last_line(file, size)
    if tail.endswith(b"\n"):
        return 0
    if _decode_bytes(tail) is not None:  # whole, only its newline is missing
        file.seek(size)
        file.write(b"\n")
        return 0
    os.ftruncate(file.fileno(), size - len(tail))
    os.fsync(file.fileno())
    return len(tail)


def _last_line(file: BinaryIO, size: int) -> bytes:
    reach = 1 << 16
    while True:
        file.seek(max(0, size - reach))
        block = file.read(reach)
        cut = block.rfind(b"\n", 0, len(block) - 1)
        if cut >= 0 or reach >= size:
            return block[cut + 1 :]
        reach *= 4


def _lock(file: BinaryIO, path: Path) -> None:
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError as error:
        file.close()
        raise LogBusy(
            f"another autotune process is writing {path}", "wait for it, or end it first"
        ) from error


def _write_all(file: BinaryIO, data: bytes) -> None:
    view = memoryview(data)
    while view:
        view = view[file.write(view) :]


def _make_folder(folder: Path) -> None:
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise _cannot(folder, error) from error


def _sync_folder(folder: Path) -> None:
    handle = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def _cannot(path: Path, error: OSError) -> AutotuneError:
    """The error for a file that the system refuses."""
    reason = error.strerror or str(error)
    if error.errno in (errno.ENOSPC, errno.EDQUOT, errno.EIO, errno.EFBIG):
        return OutputError(
            f"cannot write {path}: {reason}",
            "everything measured so far is in the log; make room, then autotune resume",
        )
    if error.errno == errno.ENOENT:
        return UsageError(f"there is no file {path}", "check the path")
    return UsageError(f"cannot open {path}: {reason}", "choose a path that you may write")
