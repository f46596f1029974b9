"""⑪ `--warm-start` and `--rules`: files that a run is to learn from, tried at once."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

from autotune.records import read_log


def warm_paths(given: Iterable[Path], before: Iterable[str] = ()) -> tuple[str, ...] | None:
    """Absolute paths of the logs given now, after those of earlier runs; None where none is given.

    Raises UsageError or LogMismatch for one given now that is no log.
    """
    paths = list(given)
    for path in paths:
        read_log(path)
    return tuple(dict.fromkeys([*before, *(str(p.resolve()) for p in paths)])) if paths else None


def rules_paths(given: Iterable[Path]) -> tuple[str, ...] | None:
    """Absolute paths of files with sketch rules; None where none is given. Raises UsageError."""
    from autotune.api.rules import rules_of

    paths = [str(path.resolve()) for path in given]
    rules_of(paths)
    return tuple(paths) or None
