"""Floor 0: a store of files by key in the user's cache folder: bounded, atomic, for many processes.

    store = Store(cache_folder() / "kernels", max_bytes=512 << 20)
    store.put(key_of("kernel", text, target), machine_code)
    store.get(key_of("kernel", text, target))       # the bytes, or None

A key is a digest of everything that the content depends on, so entries are never out of date,
and two processes that write one key write the same. A store never fails: an entry that cannot be
written is not kept, a damaged one is not found. Deleting the folder, at any time, empties it.
"""

from __future__ import annotations

import fcntl
import hashlib
import os
import stat
import tempfile
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from contextvars import ContextVar
from functools import cache
from pathlib import Path
from typing import BinaryIO

from autotune.errors import AutotuneError
from autotune.version import __version__

_DIGEST_BYTES = 32
_SUFFIX, _PENDING, _LOCK = ".entry", ".tmp", ".lock"
_KEPT_SHARE = 0.8
"""Of `max_bytes`, after entries were removed: so that not every `put` has to look at all."""
_STALE_S = 3600.0
"""Age of an unfinished file whose writer must have given up."""
_HELD: ContextVar[frozenset[Path]] = ContextVar("held", default=frozenset())
"""Locks of the callers of this code."""


def cache_folder() -> Path:
    """`$XDG_CACHE_HOME/autotune`, or `~/.cache/autotune`; it need not exist."""
    named, home = os.environ.get("XDG_CACHE_HOME", ""), os.path.expanduser("~")
    if os.path.isabs(named):
        return Path(named) / "autotune"
    if os.path.isabs(home):
        return Path(home) / ".cache" / "autotune"
    return Path(tempfile.gettempdir()) / f"autotune-{os.geteuid()}"  # a user without a home


def told_store() -> str:
    """The place of the store in AUTOTUNE_STORE; "" where that is not set."""
    return os.environ.get("AUTOTUNE_STORE", "").strip()


def key_of(*parts: str | bytes) -> str:
    """A key of `parts`: 64 hexadecimal digits. Their borders count."""
    digest = hashlib.sha256()
    for part in parts:
        data = part.encode() if isinstance(part, str) else part
        digest.update(len(data).to_bytes(8, "little"))
        digest.update(data)
    return digest.hexdigest()


@cache
def package_key() -> str:
    """This version of the package; another one while its files are being changed."""
    root = Path(__file__).parent
    stats = ((path, path.stat()) for path in sorted(root.rglob("*.py")))
    lines = [f"{path.relative_to(root)} {s.st_size} {s.st_mtime_ns}" for path, s in stats]
    return key_of(__version__, *lines)


PROGRAM_BYTES, ARTIFACT_BYTES = 512 << 20, 8 << 30
"""Of all programs, and of the artifacts of all models."""


def program_store() -> FileStore:
    """Store of machine code of kernels, and of schedules that the cost model chose."""
    return FileStore(cache_folder() / "programs", PROGRAM_BYTES)


def artifact_store(max_bytes: int = ARTIFACT_BYTES) -> FileStore:
    """Store of this user's artifacts."""
    return FileStore(cache_folder() / "artifacts", max_bytes)


class FileStore:
    """Files by key in `folder`, of at most about `max_bytes`: the least recently used go first.

    Safe in several threads and processes. The folder is made when something is put, for this user
    alone; one of another user or that others may write is not used, because what is
    kept may be machine code.
    """

    def __init__(self, folder: Path, max_bytes: int) -> None:
        self.folder = folder
        self.max_bytes = max_bytes
        self._lock = threading.Lock()
        self._n_bytes: int | None = None  # as far as this process knows

    def get(self, key: str) -> bytes | None:
        """Value of `key`; None where there is none, or a damaged one."""
        try:
            with self._below(key) as folder:
                data = _read(folder, _entry_name(key))
        except OSError:
            return None
        digest, content = data[:_DIGEST_BYTES], data[_DIGEST_BYTES:]
        if len(digest) == _DIGEST_BYTES and hashlib.sha256(content).digest() == digest:
            return content
        if data:
            self.remove(key)
        return None

    def put(self, key: str, content: bytes) -> bool:
        """Keep `content`; False where it cannot be kept (no room, no permission)."""
        with suppress(OSError), self.writing(key) as file:
            file.write(hashlib.sha256(content).digest())
            file.write(content)
            return True
        return False

    def find(self, key: str) -> Path | None:
        """The file of `key`, which counts as used now; None where there is none.

        For files of `writing`: a format that knows by itself whether it is whole. The file may go
        at any time, but stays readable for a process that has opened it. None also where others
        could put another folder in the place of this one, for who opens it goes by its name.
        """
        name = _entry_name(key)
        try:
            with self._below(key) as folder:
                info = os.stat(name, dir_fd=folder, follow_symlinks=False)
                with suppress(OSError):  # read-only: as good as any, if it can be read
                    os.utime(name, dir_fd=folder, follow_symlinks=False)
            root = Path(os.path.realpath(self.folder))
        except OSError:
            return None
        is_safe = stat.S_ISREG(info.st_mode) and all(map(_is_firm, root.parents))
        return root / key[:2] / name if is_safe else None

    @contextmanager
    def writing(self, key: str) -> Iterator[BinaryIO]:
        """A file to write, which is found under `key` when the block ends without an error.

        Raises OSError where it cannot be written; what was there before is then there still.
        """
        pending = f".{os.getpid()}-{os.urandom(4).hex()}{_PENDING}"
        flags = os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC
        with self._below(key, makes=True) as folder:
            try:
                with os.fdopen(os.open(pending, flags, 0o666, dir_fd=folder), "w+b") as file:
                    yield file
                    n_bytes = file.tell()
                os.replace(pending, _entry_name(key), src_dir_fd=folder, dst_dir_fd=folder)
            finally:
                with suppress(FileNotFoundError):
                    os.unlink(pending, dir_fd=folder)
        self._make_room(n_bytes, key)

    @contextmanager
    def locked(self, key: str) -> Iterator[None]:
        """Lock of a key: one such block at a time, in this process and others.

        No lock where the folder cannot be used. Raises AutotuneError for a thread that is in it
        already, and would wait for itself.
        """
        path, held = self.folder / key, _HELD.get()
        if path in held:
            raise AutotuneError(
                "what is made for the cache needs itself: autotune is asked in its own computation",
                "autotune.install() puts it in the place of onnxruntime, not beside it",
            )
        handle = -1
        flags = os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
        with suppress(OSError):
            with self._below(key, makes=True) as folder:
                handle = os.open(f"{key}{_LOCK}", flags, 0o600, dir_fd=folder)
            os.utime(handle)
            fcntl.flock(handle, fcntl.LOCK_EX)
        token = _HELD.set(held | {path})
        try:
            yield
        finally:
            _HELD.reset(token)
            if handle >= 0:
                os.close(handle)

    def remove(self, key: str) -> None:
        """Forget `key`, if it is there."""
        with suppress(OSError), self._below(key) as folder:
            os.unlink(_entry_name(key), dir_fd=folder)

    @contextmanager
    def _below(self, key: str, makes: bool = False) -> Iterator[int]:
        """The open folder of an entry. Raises OSError where there is none that is ours."""
        with self._opened(makes) as root:
            if makes:
                with suppress(FileExistsError):
                    os.mkdir(key[:2], 0o700, dir_fd=root)
            with _folder(key[:2], root) as folder:
                yield folder

    @contextmanager
    def _opened(self, makes: bool = False) -> Iterator[int]:
        """The open folder. Raises OSError where others may write into it.

        What is looked at is what is used: names below it are looked up in it, whatever takes the
        place of the folders above.
        """
        if makes:
            self.folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        handle = os.open(self.folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            if not _is_ours(os.fstat(handle)):
                raise PermissionError(f"{self.folder} may be written by others")
            yield handle
        finally:
            os.close(handle)

    def _make_room(self, n_bytes: int, newest: str) -> None:
        """Remove the least recently used, where all is more than `max_bytes`."""
        with self._lock:
            if self._n_bytes is not None:
                self._n_bytes += n_bytes
                if self._n_bytes <= self.max_bytes:
                    return
            entries = sorted(self._entries())
            self._n_bytes = sum(size for _, size, _ in entries)
            if self._n_bytes <= self.max_bytes:
                return
            for _, size, key in entries:
                if self._n_bytes <= _KEPT_SHARE * self.max_bytes:
                    return
                if key != newest:
                    self.remove(key)
                    self._n_bytes -= size

    def _entries(self) -> Iterator[tuple[float, int, str]]:
        """Time of last use, bytes and key of each entry; abandoned files are removed."""
        with suppress(OSError), self._opened() as root:
            for name in os.listdir(root):
                with suppress(OSError), _folder(name, root) as folder:
                    yield from _entries_in(folder)


def _entries_in(folder: int) -> Iterator[tuple[float, int, str]]:
    for name in os.listdir(folder):
        with suppress(OSError):  # another process may remove it
            info = os.stat(name, dir_fd=folder, follow_symlinks=False)
            if name.endswith(_SUFFIX):
                yield info.st_mtime, info.st_size, name.removesuffix(_SUFFIX)
            elif time.time() - info.st_mtime > _STALE_S:
                os.unlink(name, dir_fd=folder)


def _entry_name(key: str) -> str:
    return f"{key}{_SUFFIX}"


@contextmanager
def _folder(name: str, root: int) -> Iterator[int]:
    """A folder that is open, of one that is. Raises OSError, for a link too."""
    flags = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
    handle = os.open(name, flags, dir_fd=root)
    try:
        yield handle
    finally:
        os.close(handle)


def _read(folder: int, name: str) -> bytes:
    """A regular file of a folder, which counts as used now. Raises OSError."""
    flags = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
    with os.fdopen(os.open(name, flags, dir_fd=folder), "rb") as file:
        if not stat.S_ISREG(os.fstat(file.fileno()).st_mode):
            return b"?"
        with suppress(OSError):
            os.utime(file.fileno())
        return file.read()


def _is_ours(info: os.stat_result) -> bool:
    """Whether only this user (or root) can have written into a folder."""
    return info.st_uid in (0, os.geteuid()) and not info.st_mode & (stat.S_IWGRP | stat.S_IWOTH)


def _is_firm(folder: Path) -> bool:
    """Whether no other user can put something else in the place of what is in a folder.

    Its owner can, and in one that anybody may write (`/tmp`) the owner of each file, where it is
    sticky. The group is trusted, as systems give users one of their own; so is the owner whom a
    container does not know.
    """
    try:
        info = os.lstat(folder)
    except OSError:
        return False
    is_open = info.st_mode & stat.S_IWOTH and not info.st_mode & stat.S_ISVTX
    return stat.S_ISDIR(info.st_mode) and not is_open and info.st_uid in _trusted()


@cache
def _trusted() -> frozenset[int]:
    """Root, this user, and in a namespace of users what stands for all that it does not have."""
    found = {0, os.geteuid()}
    with suppress(OSError, ValueError):
        if Path("/proc/self/uid_map").read_text().split() != ["0", "0", "4294967295"]:
            found.add(int(Path("/proc/sys/kernel/overflowuid").read_text()))
    return frozenset(found)
