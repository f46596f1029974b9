"""⑪ `--warm-start`: earlier logs become a trained ranker and what to measure first."""

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
