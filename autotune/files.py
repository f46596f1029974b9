"""Floor 0: files that users name: checks before reading, and safe writing.

    written:  destination ─► require_place (before any work) ─► replacing (whole, or not at all)

A path is followed to where its links lead. Only regular files are read and written: a device, a
FIFO, a socket or a directory is refused before it is opened. What is written has no name until it
is whole, where the file system can do that, so that a process that is killed leaves nothing behind;
elsewhere it is a hidden file beside its destination.
"""

from __future__ import annotations

import errno
import fcntl
import os
import re
import stat
import time
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO, TypeAlias

from autotune.errors import AutotuneError, LogBusy, ModelError, OutputError, UsageError
from autotune.file_kinds import FileKind, require_kind
from autotune.units import format_bytes

_KINDS = {
    stat.S_IFDIR: "a directory",
    stat.S_IFCHR: "a device",
    stat.S_IFBLK: "a device",
    stat.S_IFIFO: "a pipe",
    stat.S_IFSOCK: "a socket",
}
_NO_ROOM = (errno.ENOSPC, errno.EDQUOT, errno.EIO, errno.EFBIG)
_NO_UNNAMED = (errno.EISDIR, errno.ENOENT, errno.EOPNOTSUPP, errno.EINVAL, errno.ENOSYS)
_OPEN_FILES = Path("/proc/self/fd")
_MODE = 0o666  # less the umask
_MAX_LINKS = 40
_LEFT = re.compile(r"\.autotune-\d+-[0-9a-f]{8}\.tmp")
_NEW_S = 2.0
"""Age below which the writer of a file may not have locked it yet."""
_LEAST_BYTES = 1 << 20
"""Room that there has to be for any file: its size is hardly known before it is written."""

_named: set[Path] = set()  # names of pending files, removed by a process that exits at once


Files: TypeAlias = "str | os.PathLike[str] | Iterable[str | os.PathLike[str]]"
"""A path, or several."""


def paths_of(given: Files) -> tuple[Path, ...]:
    """Paths that are given one by one or together: one alone is not a sequence of letters."""
    if isinstance(given, str | os.PathLike):
        return (Path(given),)
    return tuple(map(Path, given))


def open_input(path: Path) -> BinaryIO:
    """Open a regular file for reading.

    Raises UsageError where there is none, or what is there is no file: opening a FIFO waits for
    its writer, and a device may have no end.
    """
    return os.fdopen(_open_regular(path, os.O_RDONLY), "rb")


def read_input(path: Path, most_bytes: int) -> bytes:
    """The content of a regular file of at most so many bytes. Raises UsageError for all else."""
    try:
        return regular_bytes(path, most_bytes)
    except OSError as error:
        raise cannot_open(path, error) from error


def regular_bytes(path: Path, most_bytes: int) -> bytes:
    """As `read_input`; raises OSError for what the system does not open or read."""
    with os.fdopen(_regular(path, os.O_RDONLY), "rb") as file:
        is_small = os.fstat(file.fileno()).st_size <= most_bytes
        content = file.read(most_bytes + 1) if is_small else b""
    if not is_small or len(content) > most_bytes:
        raise UsageError(
            f"{path} has more than {format_bytes(most_bytes)}", "give the path of another file"
        )
    return content


def open_update(path: Path) -> BinaryIO:
    """Open a regular file for reading and writing, without a buffer. Raises as `open_input`."""
    return os.fdopen(_open_regular(path, os.O_RDWR), "r+b", buffering=0)


def _open_regular(path: Path, flags: int) -> int:
    try:
        return _regular(path, flags)
    except OSError as error:
        raise cannot_open(path, error) from error


def _regular(path: Path, flags: int) -> int:
    require_regular(path, os.stat(path))
    handle = os.open(path, flags | os.O_NONBLOCK | os.O_CLOEXEC)
    try:
        require_regular(path, os.fstat(handle))  # it may have been replaced in between
    except UsageError:
        os.close(handle)
        raise
    return handle


def require_regular(path: Path, info: os.stat_result) -> None:
    """Raise UsageError where `info` is not that of a regular file."""
    if not stat.S_ISREG(info.st_mode):
        kind = _KINDS.get(stat.S_IFMT(info.st_mode), "no regular file")
        raise UsageError(f"{path} is {kind}, not a file", "give the path of a regular file")


def destination(path: Path) -> Path:
    """The file that is written for `path`: where its links lead; it need not exist.

    Raises UsageError for other than regular files, and for the streams of this process
    (`/dev/stdout`), even where they are files: they would be replaced, not written to.
    """
    try:
        require_regular(path, os.stat(path))
        if _is_stream(path):
            raise UsageError(f"{path} is a stream, not a file", "give the path of a regular file")
    except FileNotFoundError:
        pass  # the end of the links will be made
    except OSError as error:
        raise cannot_open(path, error) from error
    return Path(os.path.realpath(path))


def _is_stream(path: Path) -> bool:
    """Whether the links of `path` lead through an open file of a process."""
    step = os.path.abspath(path)
    for _ in range(_MAX_LINKS):
        folder = os.path.realpath(os.path.dirname(step))
        if folder.startswith("/proc/"):
            return True
        step = os.path.join(folder, os.path.basename(step))
        if not os.path.islink(step):
            return False
        step = os.path.normpath(os.path.join(folder, os.readlink(step)))
    return False


def require_place(
    path: Path,
    n_bytes: int = 0,
    inputs: Iterable[Path] = (),
    makes_folders: bool = False,
    kind: FileKind | None = None,
) -> None:
    """Try whether a file of `n_bytes` can be written at `path`, before time is spent on it.

    `makes_folders`: missing folders are made when it is written. `kind`: the only one that it may
    replace; None for any. Raises UsageError where there is no folder, no permission, a
    file of another kind, or an input of the same command, OutputError where there is too little
    room, LogBusy for a log that is being written.
    """
    target = destination(path)
    if target.exists() and any(same_file(target, other) for other in inputs):
        raise UsageError(f"{path} is an input of this command", "choose another file with -o")
    folder = target.parent
    while makes_folders and not folder.exists():
        folder = folder.parent
    if not folder.is_dir():
        raise UsageError(f"there is no folder {folder}", "make it, or choose another one")
    try:
        with _locked(path, target):
            if target.exists() and not os.access(target, os.W_OK):
                raise PermissionError(errno.EACCES, os.strerror(errno.EACCES))
            if kind is not None:
                require_kind(path, kind)
            PendingFile(folder / target.name).discard()
            free = os.statvfs(folder)
    except OSError as error:
        raise cannot_write(path, error) from error
    n_free = free.f_bavail * free.f_frsize
    n_needed = max(n_bytes, _LEAST_BYTES)
    if free.f_blocks and n_free < n_needed:
        raise OutputError(
            f"no room for {path}: it takes about {format_bytes(n_needed)}, "
            f"{format_bytes(n_free)} are free",
            "make room, or choose another place",
        )


def same_file(one: Path, other: Path) -> bool:
    """Whether two paths name one file: by links of any kind, or because they are equal."""
    with suppress(OSError):
        if os.path.samefile(one, other):
            return True
    return os.path.realpath(one) == os.path.realpath(other)


def stamp(path: Path) -> tuple[int, ...] | None:
    """Fingerprint of a file: device, inode, size, times; None where there is none.

    Its last number is the time in nanoseconds of a write, or of a rename over its name.
    """
    try:
        info = os.stat(path)
    except OSError:
        return None
    return info.st_dev, info.st_ino, info.st_size, info.st_mtime_ns, info.st_ctime_ns


@dataclass(frozen=True, slots=True)
class Stamps:
    """Files as they were when reading began."""

    stamps: tuple[tuple[Path, tuple[int, ...] | None], ...]

    @staticmethod
    def of(paths: Iterable[Path]) -> Stamps:
        """The files as they are now."""
        return Stamps(tuple((path, stamp(path)) for path in paths))

    def are_older_than(self, age_s: float) -> bool:
        """Whether all files are there, and have not been changed for so long."""
        now_ns = time.time_ns()
        return all(known and max(known[-2:]) < now_ns - age_s * 1e9 for _, known in self.stamps)

    def require_same(self) -> None:
        """Raise ModelError where one was written, replaced or removed since."""
        for path, known in self.stamps:
            if stamp(path) != known:
                raise ModelError(
                    f"{path} has changed while it was read",
                    "begin again when nobody writes it, with a copy if need be",
                )


@contextmanager
def replacing(path: Path) -> Iterator[BinaryIO]:
    """A file to write, which takes the place of `path` when the block ends without an error.

    Readers see the old file or the new one, never a part. A new file has the mode that the umask
    leaves, one that takes the place of another has the mode (and where possible the owner) of that.
    Raises UsageError, OutputError or LogBusy.
    """
    target = destination(path)
    try:
        with _locked(path, target):
            _sweep(target.parent)
            pending = PendingFile(target)
            try:
                yield pending.file
                pending.publish(may_replace=True)
            finally:
                pending.discard()
    except OSError as error:
        raise cannot_write(path, error) from error


class PendingFile:
    """A file that is invisible before it is published. Its methods raise OSError."""

    def __init__(self, target: Path, buffering: int = -1) -> None:
        self._target = target
        self._name: Path | None = None
        handle = _unnamed(target.parent)
        if handle is None:
            self._name = _free_name(target.parent)
            _named.add(self._name)
            flags = os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC
            handle = os.open(self._name, flags, _MODE)
            _hold(handle)
        self.file: BinaryIO = os.fdopen(handle, "w+b", buffering=buffering)

    def publish(self, may_replace: bool) -> None:
        """Give the file its name, once it is on the disk; it stays open.

        Raises FileExistsError where there is one already that it may not replace.
        """
        self.file.flush()
        if may_replace:
            _take_after(self.file.fileno(), self._target)
        os.fsync(self.file.fileno())
        try:
            self._link()
        except FileExistsError:
            if not may_replace:
                raise
            self._replace()
        sync_folder(self._target.parent)

    def _link(self) -> None:
        if self._name is None:
            _link_open_file(self.file.fileno(), self._target)
            return
        try:
            os.link(self._name, self._target)
        except PermissionError:  # a file system without hard links
            if self._target.exists():
                raise FileExistsError(errno.EEXIST, os.strerror(errno.EEXIST)) from None
            os.rename(self._name, self._target)

    def _replace(self) -> None:
        if self._name is None:
            name = _free_name(self._target.parent)
            _named.add(name)
            _hold(self.file.fileno())
            _link_open_file(self.file.fileno(), name)
            self._name = name
        os.replace(self._name, self._target)

    def discard(self) -> None:
        """Close the file; an unpublished one is gone."""
        self.file.close()
        self.forget_name()

    def forget_name(self) -> None:
        """Remove the name beside the destination, if it has one."""
        if self._name is not None:
            with suppress(OSError):
                self._name.unlink(missing_ok=True)
            _named.discard(self._name)
            self._name = None


def remove_pending_files() -> None:
    """Remove temporary files of this process beside destinations, before it ends at once."""
    for path in list(_named):
        with suppress(OSError):
            path.unlink(missing_ok=True)


def _unnamed(folder: Path) -> int | None:
    """An open file without a name; None where the system cannot give it one later."""
    if not _OPEN_FILES.is_dir():
        return None
    try:
        return os.open(folder, os.O_TMPFILE | os.O_RDWR | os.O_CLOEXEC, _MODE)
    except OSError as error:
        if error.errno in _NO_UNNAMED:
            return None
        raise


def _link_open_file(handle: int, path: Path) -> None:
    folder = os.open(path.parent, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:  # with a folder, Python calls linkat, which follows the link to the open file
        os.link(_OPEN_FILES / str(handle), path.name, dst_dir_fd=folder)
    finally:
        os.close(folder)


def _free_name(folder: Path) -> Path:
    return folder / f".autotune-{os.getpid()}-{os.urandom(4).hex()}.tmp"


def _hold(handle: int) -> None:
    """Lock a file that has a name before it is whole: what is not locked was left by a kill."""
    with suppress(OSError):  # a file system without locks
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)


def _sweep(folder: Path) -> None:
    """Remove the files that processes of this user left in a folder when they were killed."""
    with suppress(OSError), os.scandir(folder) as entries:
        for entry in entries:
            if _LEFT.fullmatch(entry.name):
                with suppress(OSError):
                    _remove_left(entry.path)


def _remove_left(path: str) -> None:
    handle = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    try:
        info = os.fstat(handle)
        is_new = time.time() - info.st_ctime < _NEW_S
        if stat.S_ISREG(info.st_mode) and info.st_uid == os.geteuid() and not is_new:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
            os.unlink(path)
    finally:
        os.close(handle)


def _take_after(handle: int, old: Path) -> None:
    """Give an open file the owner and the mode of the one that it will replace."""
    with suppress(FileNotFoundError):
        info = os.lstat(old)
        if not stat.S_ISREG(info.st_mode):
            return
        with suppress(OSError):  # only root may give files away
            os.fchown(handle, info.st_uid, info.st_gid)
        os.fchmod(handle, stat.S_IMODE(info.st_mode) & 0o777)


@contextmanager
def _locked(path: Path, target: Path) -> Iterator[None]:
    """Exclusive lock to write `target`. Raises LogBusy."""
    try:
        handle = os.open(target, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    except OSError:  # not there, or write-only, and so no log
        yield
        return
    try:
        lock(handle, path)
        yield
    finally:
        os.close(handle)


def lock(handle: int, path: Path) -> None:
    """Lock an open file until it is closed or the process dies. Raises LogBusy."""
    try:
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError as error:
        raise LogBusy(
            f"another autotune process is writing {path}", "wait for it, or end it first"
        ) from error
    except OSError as error:
        if error.errno not in (errno.ENOLCK, errno.EOPNOTSUPP, errno.ENOSYS):
            raise  # else a file system that has no locks


def make_folder(folder: Path) -> None:
    """Make a folder and those above it. Raises UsageError."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise cannot_open(folder, error) from error


def sync_folder(folder: Path) -> None:
    """Wait until the names in a folder are on the disk, where the file system can tell."""
    with suppress(OSError):
        handle = os.open(folder, os.O_RDONLY | os.O_CLOEXEC)
        try:
            os.fsync(handle)
        finally:
            os.close(handle)


def cannot_open(path: Path, error: OSError) -> AutotuneError:
    """The error for a file that the system does not open."""
    if error.errno == errno.ENOENT:
        return UsageError(f"there is no file {path}", "check the path")
    return cannot_write(path, error, "open")


def cannot_write(path: Path, error: OSError, verb: str = "write") -> AutotuneError:
    """The error for a file that the system does not write: OutputError where its medium fails."""
    reason = error.strerror or str(error)
    if error.errno in _NO_ROOM:
        return OutputError(f"cannot write {path}: {reason}", "make room, or choose another place")
    return UsageError(f"cannot {verb} {path}: {reason}", "choose a path that you may write")
