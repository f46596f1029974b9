"""Floor 0: folders for work that end with their process, however that ends.

A process that is killed leaves its folder. As it held a lock on it, the next one that makes such a
folder beside it knows that nobody uses it, and removes it.
"""

from __future__ import annotations

import fcntl
import os
import shutil
import stat
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

_TEMPORARY = "autotune-work-"
_NEW_S = 2.0
"""Age below which the process that made a folder may not have locked it yet."""

_REMOVALS = 2
"""A call of the system that fails once leaves no folder."""


@contextmanager
def work_folder(above: Path | None = None, prefix: str = _TEMPORARY) -> Iterator[Path]:
    """An empty folder of that `prefix`, in `above` or where temporary files are; then gone.

    Raises OSError where none can be made.
    """
    place = Path(above or tempfile.gettempdir())
    sweep(prefix, place)
    folder = Path(tempfile.mkdtemp(prefix=prefix, dir=place))
    try:
        handle = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            with suppress(OSError):  # a file system without locks
                fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
            yield folder
        finally:
            os.close(handle)
    finally:
        for _ in range(_REMOVALS):
            shutil.rmtree(folder, ignore_errors=True)


def sweep(prefix: str, place: Path) -> None:
    """Remove folders of `prefix` that processes of this user left when they were killed."""
    with suppress(OSError), os.scandir(place) as entries:
        for entry in entries:
            if entry.name.startswith(prefix):
                with suppress(OSError):
                    _remove_left(Path(entry.path))


def _remove_left(folder: Path) -> None:
    flags = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
    handle = os.open(folder, flags)
    try:
        info = os.fstat(handle)
        is_new = time.time() - info.st_mtime < _NEW_S
        if info.st_uid != os.geteuid() or stat.S_IMODE(info.st_mode) != 0o700 or is_new:
            return
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        shutil.rmtree(folder, ignore_errors=True)
    finally:
        os.close(handle)
