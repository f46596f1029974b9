"""Floor 0: what a file is, by its first bytes: a command replaces files of its own kind alone.

    model.onnx, where an artifact is to be written  ─►  it exists, and is an ONNX model

A file without content is of any kind.
"""

from __future__ import annotations

import os
import re
from dataclasses import dataclass
from pathlib import Path

from autotune.errors import UsageError
from autotune.wording import arguments

_HEAD_BYTES = 4096
QUANTISER = "autotune quantise"
"""The producer of models that are written."""
FOLDER_MARK = "README.md"
"""The file by which a folder of `export` is known."""


@dataclass(frozen=True, slots=True)
class FileKind:
    """A kind of file that commands write or read, and the pattern of its beginning."""

    name: str
    beginning: re.Pattern[bytes]

    def is_of(self, head: bytes) -> bool:
        """Whether a file of this kind begins with `head`."""
        return self.beginning.match(head) is not None


def _kind(name: str, pattern: bytes) -> FileKind:
    return FileKind(name, re.compile(pattern, re.DOTALL))


_ENTRY = rb"PK\x03\x04.{26}"
_ONNX = rb"\x08[\x01-\x7f]"
ARTIFACT = _kind(
    "a compiled model", _ENTRY + rb'manifest\.json\{\s*("\w+": \d+,\s*)?"autotune_version"'
)
ARRAYS = _kind("arrays of NumPy", rb"PK\x05\x06|" + _ENTRY + rb"[^\0]{1,999}?\.npy")
LOG = _kind("a log", rb'\{"type":\s?"header",\s?"format":\s?"autotune-log"')
REPORT = _kind(
    "a report",
    rb'<!DOCTYPE html>.{0,999}<meta name="generator" content="autotune">'
    rb'|<!-- autotune report -->|\{\s*"search": \{\s*"model"',
)
BENCH = _kind("the figures of a bench", rb'\{\s*"format": "autotune-bench"')
TIMELINE = _kind("a timeline", rb'\{"traceEvents": ')
CPU = _kind("the description of a CPU", rb'\{\s*"cpu": "[^"]*",\s*"features": "')
QUANTISED = _kind("a model of `autotune quantise`", _ONNX + rb"\x12." + QUANTISER.encode())
_EXPORT = _kind("the README of an exported library", rb"# \w+\n\n[^\n]* compiled by autotune ")
_OTHERS = (
    _kind("an ONNX model", _ONNX + rb"[\x12\x1a\x22\x28\x32\x3a\x42\x72\x7a\xa2\xca]"),
    _kind("an archive", rb"PK\x03\x04"),
    _kind("a page of HTML", rb"(?i)\s*<(!doctype )?html"),
    _kind("JSON", rb"\s*[{\[]"),
    _kind("text", rb"[^\x00-\x08\x0e-\x1a\x1c-\x1f\x7f]+$"),
)
_OWN = (ARTIFACT, ARRAYS, LOG, REPORT, BENCH, TIMELINE, CPU, QUANTISED, _EXPORT)


def require_kind(path: Path, kind: FileKind) -> None:
    """Raise UsageError where a file is there, and is not of this kind.

    `path` is a regular file where it is anything. Raises OSError.
    """
    try:
        head = _head(path)
    except FileNotFoundError:
        return
    if head and not kind.is_of(head):
        raise UsageError(
            f"{path} exists, and is {_name_of(head)}, not {kind.name}",
            f"choose another file with -o, or replace it: {arguments(force=True)}",
        )


def require_folder(folder: Path) -> None:
    """Raise UsageError for a folder that holds anything, unless a library was exported to it."""
    if not folder.exists():
        return
    try:
        if not any(folder.iterdir()) or _EXPORT.is_of(_head(folder / FOLDER_MARK)):
            return
    except NotADirectoryError as error:
        raise UsageError(f"{folder} is a file, not a folder", "choose another one") from error
    except OSError:  # no mark that can be read
        pass
    raise UsageError(
        f"the folder {folder} is not empty, and no library was exported to it",
        f"choose another one, or write beside its files: {arguments(force=True)}",
    )


def _head(path: Path) -> bytes:
    handle = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    try:
        return os.read(handle, _HEAD_BYTES)
    finally:
        os.close(handle)


def _name_of(head: bytes) -> str:
    """What people call a file with this beginning."""
    return next((k.name for k in (*_OWN, *_OTHERS) if k.is_of(head)), "a file of another kind")
