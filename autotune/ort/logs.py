"""⑪ The log of a model's tuning, where it lies beside the model.

log_beside(Path("model.onnx"), threads) ─► model-best.jsonl, if it was made from this very model
"""

from __future__ import annotations

import logging
from dataclasses import dataclass
from pathlib import Path

from autotune.config import TuneConfig
from autotune.errors import AutotuneError
from autotune.ort.cached import hash_of
from autotune.records import Log, read_log
from autotune.target import host_target
from autotune.units import counted

LOGGER = logging.getLogger("autotune")
_LOG_NAMES = ("{}-best.jsonl", "{}.jsonl")


@dataclass(frozen=True, slots=True)
class UsableLog:
    """A log, and the number of threads of its programs."""

    path: Path
    n_threads: int


def log_beside(model: Path | bytes, threads: int | None) -> UsableLog | None:
    """The log beside a model that was made from it, on this CPU; `threads`: None for any number.

    It is data: one that names Python files is left alone, as are compiled files beside the model.
    """
    if not isinstance(model, Path):
        return None
    paths = (model.with_name(name.format(model.stem)) for name in _LOG_NAMES)
    for path in paths:
        if not path.is_file():
            continue
        try:
            reason = _misfit(read_log(path), model, threads)
            if not reason:
                return UsableLog(path, read_log(path).header.n_threads)
        except (AutotuneError, TypeError, ValueError) as error:
            reason = str(error)
        LOGGER.info("%s is not used: %s", path, reason)
    return None


def _misfit(log: Log, model: Path, threads: int | None) -> str:
    """Reason why a log is not for this model on this CPU; empty where it is."""
    if not log.headers or not log.records:
        return "it has no records"
    if log.header.model_hash != hash_of(model):
        return "it was made for another model file"
    if not any(record.target_key == host_target().key for record in log.records):
        return "it was made on another CPU"
    if threads not in (None, log.header.n_threads):
        return f"it was made for {counted(log.header.n_threads, 'thread')}"
    if TuneConfig.from_json(log.settings).operators:
        return "it names files with operators (give it as `log` if you trust them)"
    return ""


def names_shapes(log: Path | None) -> bool:
    """Whether a log names shapes."""
    if log is None:
        return False
    header = read_log(log).header
    return any(v.shapes for v in header.variants) or bool(header.shapes)
