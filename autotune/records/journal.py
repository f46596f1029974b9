"""⑧ The log file: append-only JSON Lines that survive a kill at any moment.

One writer at a time (an exclusive lock that dies with its process). A log has a name only once its
header is in it. Every measurement is written as soon as it is there, every batch ends with an
fsync, and a last line that a kill cut off is removed on opening. A log that is deleted,
replaced or cut off while it is written is noticed, and saved under another name.
"""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import BinaryIO

from autotune.errors import AutotuneError, LogLost, LogMismatch, OutputError, UsageError
from autotune.files import (
    PendingFile,
    cannot_open,
    cannot_write,
    destination,
    lock,
    make_folder,
    open_update,
    replacing,
    require_place,
)
from autotune.records.reader import LINE_BYTES, decode_bytes, read_log
from autotune.records.record import Entry, Header, Log, Workload, encode

_BLOCK = 1 << 16
_MAX_SAVED = 100


class Journal:
    """An open log. Use as a context manager; `log` is its content when it was opened."""

    def __init__(self, path: Path, file: BinaryIO, log: Log, n_repaired_bytes: int = 0) -> None:
        self.path = path
        self.log = log
        self.n_repaired_bytes = n_repaired_bytes
        self._file = file
        self._size = os.fstat(file.fileno()).st_size
        self._tail = b""
        self._appended: list[Entry] = []
        self._lost: LogLost | None = None

    @staticmethod
    def create(path: Path, header: Header, workloads: Iterable[Workload] = ()) -> Journal:
        """Start a log. Raises UsageError where there is a file already or none can be made."""
        require_new_log(path)
        target = destination(path)
        make_folder(target.parent)
        entries: list[Entry] = [header, *workloads]
        try:
            file = _write_new(target, path, _lines_of(entries))
        except FileExistsError as error:
            raise _exists(path) from error
        except OSError as error:
            raise cannot_write(path, error) from error
        journal = Journal(path, file, Log(headers=(header,)))
        journal._appended += entries[1:]
        return journal

    @staticmethod
    def open(path: Path) -> Journal:
        """Go on with a log: lock it, read it, repair a torn tail.

        Raises LogMismatch for a file that is no log, LogBusy while another process writes it.
        """
        file = open_update(path)
        try:
            lock(file.fileno(), path)
            log = read_log(path)
            if not log.headers:
                raise LogMismatch(f"{path} has no header", "it cannot be resumed; distill it")
            return Journal(path, file, log, _repair(file))
        except OSError as error:
            file.close()
            raise cannot_open(path, error) from error
        except BaseException:
            file.close()
            raise

    def append(self, entries: Sequence[Entry]) -> None:
        """Write entries; from now on they survive a kill of this process.

        Raises OutputError when the disk is full; the file then ends where it ended before. Raises
        LogLost when the file is no longer what was written; everything, these entries included, is
        then in a new file, to which later ones go.
        """
        self._appended += entries
        data = _lines_of(entries)
        self._require_unchanged(data)
        size = os.fstat(self._file.fileno()).st_size
        try:
            self._file.seek(size)
            _write_all(self._file, data)
        except OSError as error:
            del self._appended[len(self._appended) - len(entries) :]
            os.ftruncate(self._file.fileno(), size)
            raise self._cannot(error) from error
        self._size, self._tail = size + len(data), data[-_BLOCK:]

    def sync(self) -> None:
        """Wait until the disk has everything: it then survives a loss of power. Once per batch."""
        try:
            os.fsync(self._file.fileno())
        except OSError as error:
            raise self._cannot(error) from error

    def check(self) -> None:
        """Raise LogLost where the file was changed by another program, now or before."""
        self._require_unchanged()
        if self._lost is not None:
            raise self._lost

    def close(self) -> None:
        """Give the lock back. Call `sync` first."""
        self._file.close()

    def __enter__(self) -> Journal:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _cannot(self, error: OSError) -> AutotuneError:
        found = cannot_write(self.path, error)
        if not isinstance(found, OutputError):
            return found
        return OutputError(
            found.message,
            "everything measured so far is in the log; make room, then autotune resume "
            f"{self.path}",
        )

    def _require_unchanged(self, data: bytes = b"") -> None:
        change = self._change()
        if change:
            self._lost = self._save(change, data)
            raise self._lost

    def _change(self) -> str:
        """Change of the file by another program since the last write; empty for none."""
        handle = self._file.fileno()
        ours = os.fstat(handle)
        try:
            there = os.stat(self.path)
        except FileNotFoundError:
            return "deleted"
        except OSError:  # a folder on the way was closed to us; the file is still open
            there = ours
        if not os.path.samestat(ours, there):
            return "replaced"
        if ours.st_size < self._size:
            return "cut off"
        tail = os.pread(handle, len(self._tail), self._size - len(self._tail))
        return "overwritten" if tail != self._tail else ""

    def _save(self, change: str, data: bytes) -> LogLost:
        """Write everything to a new file and go on there; the error that says so."""
        lost, handle = self.path, self._file.fileno()
        intact = os.fstat(handle).st_size >= self._size and change in ("deleted", "replaced")
        for path in _saved_names(lost):
            whole = _copied(handle, self._size) + data if intact else self._all_lines()
            try:
                make_folder(path.parent)
                file = _write_new(path, path, whole)
            except (OSError, AutotuneError):
                continue
            self._file.close()
            self.path, self._file, self._size, self._tail = path, file, len(whole), b""
            return LogLost(
                f"{lost} was {change} while autotune was writing it",
                f"everything measured is in {path}; go on: autotune resume {path}",
            )
        return LogLost(
            f"{lost} was {change} while autotune was writing it, and nothing could be written "
            "beside it, here, or in the folder for temporary files",
            "make room, and tune again",
        )

    def _all_lines(self) -> bytes:
        return _lines_of([*_entries(self.log), *self._appended])


def require_new_log(path: Path) -> None:
    """Try whether a log can be started at `path`. Raises UsageError or OutputError."""
    if destination(path).exists():
        raise _exists(path)
    require_place(path, makes_folders=True)


def write_log(path: Path, log: Log) -> None:
    """Write a whole log at once: readers see the old file or the new one, never a half.

    Raises LogBusy where another process writes the old one.
    """
    make_folder(destination(path).parent)
    with replacing(path) as file:
        file.write(_lines_of(_entries(log)))


def _entries(log: Log) -> list[Entry]:
    return [*log.headers, *log.workloads.values(), *log.records, *log.ends]


def _lines_of(entries: Iterable[Entry]) -> bytes:
    return "".join(encode(entry) + "\n" for entry in entries).encode()


def _exists(path: Path) -> UsageError:
    return UsageError(f"{path} exists", f"go on with it: autotune resume {path}")


def _write_new(target: Path, path: Path, data: bytes) -> BinaryIO:
    """A file of this content, open and locked. Raises OSError, FileExistsError among them."""
    pending = PendingFile(target, buffering=0)
    try:
        lock(pending.file.fileno(), path)
        _write_all(pending.file, data)
        pending.publish(may_replace=False)
        pending.forget_name()
    except BaseException:
        pending.discard()
        raise
    return pending.file


def _saved_names(lost: Path) -> Iterator[Path]:
    """Paths to save a lost log at: beside it, else here, else in the temporary folder."""
    for folder in (lost.parent, Path.cwd(), Path(tempfile.gettempdir())):
        yield from (folder / f"{lost.stem}-saved{n or ''}.jsonl" for n in range(_MAX_SAVED))


def _copied(handle: int, n_bytes: int) -> bytes:
    parts, at = [], 0
    while at < n_bytes and (part := os.pread(handle, n_bytes - at, at)):
        parts.append(part)
        at += len(part)
    return b"".join(parts)


def _repair(file: BinaryIO) -> int:
    """End the file with a newline; returns the bytes of a torn line that were cut off."""
    size = os.fstat(file.fileno()).st_size
    begin = _last_line(file, size)
    n_tail = size - begin
    file.seek(begin)
    tail = file.read(n_tail) if n_tail <= LINE_BYTES else b""
    if tail.endswith(b"\n"):
        return 0
    if tail and decode_bytes(tail) is not None:  # whole, only its newline is missing
        file.seek(size)
        file.write(b"\n")
        return 0
    os.ftruncate(file.fileno(), begin)
    os.fsync(file.fileno())
    return n_tail


def _last_line(file: BinaryIO, size: int) -> int:
    """Offset of the last line, whether or not it ends with a newline."""
    end = size - 1  # a newline there ends the last line
    while end > 0:
        begin = max(0, end - _BLOCK)
        file.seek(begin)
        cut = file.read(end - begin).rfind(b"\n")
        if cut >= 0:
            return begin + cut + 1
        end = begin
    return 0


def _write_all(file: BinaryIO, data: bytes) -> None:
    view = memoryview(data)
    while view:
        view = view[file.write(view) :]
