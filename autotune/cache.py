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


PROGRAM_BYTES = 512 << 20


def program_store() -> FileStore:
    """Store of machine code of kernels, and of schedules that the cost model chose."""
    return FileStore(cache_folder() / "programs", PROGRAM_BYTES)


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
        path = self.find(key)
        try:
            data = path.read_bytes() if path else b""
        except OSError:
            return None
        digest, content = data[:_DIGEST_BYTES], data[_DIGEST_BYTES:]
        if len(digest) == _DIGEST_BYTES and hashlib.sha256(content).digest() == digest:
            return content
        if path and data:
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
        at any time, but stays readable for a process that has opened it.
        """
        path = self._path(key)
        if not _is_ours(self.folder):
            return None
        try:
            os.utime(path)
        except FileNotFoundError:
            return None
        except OSError:  # read-only: as good as any, if it can be read
            return path if path.is_file() else None
        return path

    @contextmanager
    def writing(self, key: str) -> Iterator[BinaryIO]:
        """A file to write, which is found under `key` when the block ends without an error.

        Raises OSError where it cannot be written; what was there before is then there still.
        """
        path = self._made_path(key)
        pending = path.with_name(f".{os.getpid()}-{os.urandom(4).hex()}{_PENDING}")
        try:
            with open(pending, "xb") as file:
                yield file
                n_bytes = file.tell()
            os.replace(pending, path)
        finally:
            pending.unlink(missing_ok=True)
        self._make_room(n_bytes, path)

    @contextmanager
    def locked(self, key: str) -> Iterator[None]:
        """Lock of a key: one such block at a time, in this process and others.

        No lock where the folder cannot be used. Raises AutotuneError for a thread that is in it
        already, and would wait for itself.
        """
        path, held = self._path(key).with_suffix(_LOCK), _HELD.get()
        if path in held:
            raise AutotuneError(
                "what is made for the cache needs itself: autotune is asked in its own computation",
                "autotune.install() puts it in the place of onnxruntime, not beside it",
            )
        handle = -1
        with suppress(OSError):
            self._made_path(key)
            handle = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
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
        with suppress(OSError):
            self._path(key).unlink(missing_ok=True)

    def _path(self, key: str) -> Path:
        return self.folder / key[:2] / f"{key}{_SUFFIX}"

    def _made_path(self, key: str) -> Path:
        """The file of `key` in a folder that is there. Raises OSError."""
        path = self._path(key)
        self.folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        if not _is_ours(self.folder):
            raise PermissionError(f"{self.folder} may be written by others")
        path.parent.mkdir(mode=0o700, exist_ok=True)
        return path

    def _make_room(self, n_bytes: int, newest: Path) -> None:
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
            for _, size, path in entries:
                if self._n_bytes <= _KEPT_SHARE * self.max_bytes:
                    return
                if path != newest:
                    with suppress(OSError):
                        path.unlink(missing_ok=True)
                    self._n_bytes -= size

    def _entries(self) -> Iterator[tuple[float, int, Path]]:
        """Time of last use, bytes and file of each entry; abandoned files are removed."""
        for path in self.folder.glob("??/*"):
            with suppress(OSError):  # another process may remove it
                info = path.stat()
                if path.suffix == _SUFFIX:
                    yield info.st_mtime, info.st_size, path
                elif time.time() - info.st_mtime > _STALE_S:
                    path.unlink()


def _is_ours(folder: Path) -> bool:
    """Whether only this user (or root) can have written into `folder`."""
    try:
        info = folder.stat()
    except OSError:
        return False
    return info.st_uid in (0, os.geteuid()) and not info.st_mode & (stat.S_IWGRP | stat.S_IWOTH)
