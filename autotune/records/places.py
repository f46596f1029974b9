"""⑧ Places of a store: a folder, or a URL that fsspec opens. A file is written whole, and once.

    place = place_of("s3://bucket/records")
    place.write("a/b.gz", content)
    place.read(["a/b.gz"])          # {"a/b.gz": content}; files that are gone are left out

Names are paths below the place, with `/`; none leads out of it. Neither kind of place needs locks:
network file systems and object stores have none. Nothing is ever changed in place, so what is read
is a whole file, or one whose digest tells that it is not.
"""

from __future__ import annotations

import errno
import os
import re
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

from autotune.errors import AutotuneError, MissingDependency, OutputError, StoreError, UsageError
from autotune.files import PendingFile, cannot_open, cannot_write, make_folder, regular_bytes

if TYPE_CHECKING:
    from fsspec import AbstractFileSystem

_URL = re.compile(r"([a-z][a-z0-9+.-]*)(?:://|::)", re.IGNORECASE)
_LOCAL = ("file", "local")
MOST_BYTES = 64 << 20
"""Of a file in a place."""
_HINT = "check the URL, the network and your credentials"


class StorePlace(Protocol):
    """Files by name. Raises UsageError, OutputError for what cannot be read or written."""

    @property
    def title(self) -> str:
        """Path or URL."""
        ...

    def is_empty(self) -> bool:
        """Whether no file but hidden ones is there; a place that is not there is empty."""
        ...

    def names(self) -> list[str]:
        """Names of all files, sorted, without hidden ones."""
        ...

    def read(self, names: Sequence[str]) -> dict[str, bytes]:
        """Contents of those files that are there; b"" for what is no regular file or too large."""
        ...

    def write(self, name: str, content: bytes) -> None:
        """Write a file; one that is there with this very content is left alone."""
        ...

    def remove(self, names: Iterable[str]) -> None:
        """Remove those files that are there."""
        ...


def is_url(text: str) -> bool:
    """Whether a place is named by a URL rather than a path."""
    return _URL.match(text) is not None


def place_of(where: str | os.PathLike[str]) -> StorePlace:
    """The place at a path or URL; it need not exist.

    Raises UsageError for a scheme that is not known, MissingDependency for one whose package is not
    installed.
    """
    text = os.fspath(where)
    match = _URL.match(text)
    if match is None:
        return FolderPlace(Path(text))
    if match[1].lower() in _LOCAL and "::" not in text:
        return FolderPlace(Path(text[match.end() :]))
    return UrlPlace(text, *_opened(text, match[1].lower()))


class FolderPlace:
    """Files below a folder of this system, or of one that it has mounted."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    @property
    def title(self) -> str:
        """Path of the folder."""
        return str(self._folder)

    def is_empty(self) -> bool:
        """Whether no file but hidden ones is there; a folder that is not there is empty."""
        return all(entry.name.startswith(".") for entry in self._scanned(""))

    def names(self) -> list[str]:
        """Names of all files, sorted, without hidden ones."""
        return sorted(self._files("")) if self._folder.is_dir() else []

    def _files(self, below: str) -> Iterator[str]:
        for entry in self._scanned(below):
            name = f"{below}{entry.name}"
            if entry.is_dir(follow_symlinks=False):
                yield from self._files(f"{name}/")
            elif not entry.name.startswith("."):
                yield name

    def _scanned(self, below: str) -> list[os.DirEntry[str]]:
        found: list[os.DirEntry[str]] = []
        with self._reading(below), os.scandir(self._folder / below) as entries:
            found = list(entries)
        return found

    def read(self, names: Sequence[str]) -> dict[str, bytes]:
        """Contents of those files that are there; b"" for what is no regular file or too large."""
        found: dict[str, bytes] = {}
        for name in names:
            with self._reading(name):
                try:
                    found[name] = regular_bytes(self._path(name), MOST_BYTES)
                except UsageError:  # a pipe waits for its writer, a device has no end
                    found[name] = b""
                except OSError as error:
                    if error.errno != errno.ELOOP:
                        raise
                    found[name] = b""
        return found

    def write(self, name: str, content: bytes) -> None:
        """Write a file; one that is there with this very content is left alone."""
        path = self._path(name)
        if self.read([name]).get(name) == content:
            return
        make_folder(path.parent)
        self._require_inside(path)
        try:
            pending = PendingFile(path)
            try:
                pending.file.write(content)
                pending.publish(may_replace=True)
            finally:
                pending.discard()
        except OSError as error:
            raise cannot_write(path, error) from error

    def remove(self, names: Iterable[str]) -> None:
        """Remove those files that are there."""
        for name in names:
            with self._reading(name):
                self._path(name).unlink()

    def _path(self, name: str) -> Path:
        _require_name(name, self.title)
        return self._folder / name

    def _require_inside(self, path: Path) -> None:
        """Raise StoreError where a link leads out of the folder: links to folders are not read."""
        inside = Path(os.path.realpath(self._folder)) / path.parent.relative_to(self._folder)
        if os.path.realpath(path.parent) != str(inside):
            raise StoreError(
                f"{path.parent} is a link that leads out of the store", "remove the link"
            )

    @contextmanager
    def _reading(self, name: str = "") -> Iterator[None]:
        """A file that is gone is passed over, any other failure is told."""
        try:
            yield
        except FileNotFoundError:
            pass
        except OSError as error:
            raise cannot_open(self._folder / name, error) from error


class UrlPlace:
    """Files below a URL, by the file systems of fsspec: S3, GCS, Azure, SFTP, …"""

    def __init__(self, url: str, files: AbstractFileSystem, root: str) -> None:
        self._url, self._files, self._root = url, files, root.rstrip("/")

    @property
    def title(self) -> str:
        """The URL."""
        return self._url

    def is_empty(self) -> bool:
        """Whether no file but hidden ones is there; a place that is not there is empty."""
        return not self._listed(depth=1)

    def names(self) -> list[str]:
        """Names of all files, sorted, without hidden ones."""
        return self._listed()

    def _listed(self, depth: int | None = None) -> list[str]:
        found: list[str] = []
        with self._told(), suppress(FileNotFoundError):
            self._files.invalidate_cache()
            found = self._files.find(self._root, maxdepth=depth, withdirs=depth is not None)
        names = (path.removeprefix(self._root).lstrip("/") for path in found)
        return sorted(name for name in names if name and not _is_hidden(name))

    def read(self, names: Sequence[str]) -> dict[str, bytes]:
        """Contents of those files that are there."""
        if not names:
            return {}
        paths = {self._path(name): name for name in names}
        with self._told():
            found = self._files.cat(list(paths), on_error="return")
            for content in found.values():
                if isinstance(content, Exception) and not isinstance(content, FileNotFoundError):
                    raise content
        by_name = ((paths[path], content) for path, content in found.items() if path in paths)
        return {name: content for name, content in by_name if isinstance(content, bytes)}

    def write(self, name: str, content: bytes) -> None:
        """Write a file; one that is there with this very content is left alone."""
        if self.read([name]).get(name) == content:
            return
        path = self._path(name)
        with self._told():
            try:
                self._files.pipe_file(path, content)
            except FileNotFoundError:  # a file system with folders, or no such bucket
                if not self._files.exists(self._root):
                    raise
                self._files.makedirs(path.rpartition("/")[0], exist_ok=True)
                self._files.pipe_file(path, content)

    def remove(self, names: Iterable[str]) -> None:
        """Remove those files that are there."""
        for name in names:
            with self._told(), suppress(FileNotFoundError):
                self._files.rm_file(self._path(name))

    def _path(self, name: str) -> str:
        _require_name(name, self.title)
        return f"{self._root}/{name}"

    @contextmanager
    def _told(self) -> Iterator[None]:
        """Failures of any file system as one line: their classes are those of many packages."""
        try:
            yield
        except AutotuneError:
            raise
        except FileNotFoundError as error:
            raise UsageError(f"there is no {self._url}", "make the bucket or folder") from error
        except Exception as error:
            raise OutputError(f"{self._url} cannot be used: {_first_line(error)}", _HINT) from error


def _require_name(name: str, title: str) -> None:
    """Raise StoreError for a name that is none of a file below a place."""
    parts = name.split("/")
    if "\0" in name or not {"", ".", ".."}.isdisjoint(parts):
        raise StoreError(f"{name!r:.100} is no name of a file in {title}", "name another store")


def _is_hidden(name: str) -> bool:
    return any(part.startswith(".") for part in name.split("/"))


def _opened(url: str, scheme: str) -> tuple[AbstractFileSystem, str]:
    """The file system of a URL, and the path in it."""
    try:
        import fsspec
    except ImportError as error:
        raise MissingDependency(
            f"'{url}' needs fsspec, which is not installed", "pip install fsspec"
        ) from error
    try:
        files, root = fsspec.core.url_to_fs(url)
    except ImportError as error:
        module = _module_of(scheme)
        hint = f"pip install {module}" if module else f"{error}".rstrip(".")
        raise MissingDependency(f"'{url}' needs a package that is not installed", hint) from error
    except (ValueError, TypeError) as error:
        raise UsageError(
            f"'{url}' is no place of a store: {error}",
            "name a folder, or a URL that fsspec knows, such as s3://BUCKET/PATH",
        ) from error
    except Exception as error:  # of any package: some connect at once
        raise OutputError(f"{url} cannot be reached: {_first_line(error)}", _HINT) from error
    return files, root


def _first_line(error: Exception) -> str:
    lines = str(error).strip().splitlines()
    return lines[0] if lines else type(error).__name__


def _module_of(scheme: str) -> str:
    """The package that fsspec takes for a scheme; "" where fsspec itself has the class."""
    from fsspec.registry import known_implementations

    known: Any = known_implementations.get(scheme, {})
    module = str(known.get("class", "")).partition(".")[0]
    return "" if module == "fsspec" else module
