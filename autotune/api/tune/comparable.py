"""⑪ Whether the network of a log can be timed on this machine."""

from __future__ import annotations

from autotune.config import AUTO, TuneConfig
from autotune.errors import AutotuneError
from autotune.records import Log
from autotune.target import runs_here


class NotComparable(AutotuneError):
    """The network of a log cannot be timed in turns with the untuned one, here or at all."""


def require_comparable(log: Log) -> None:
    """Raise NotComparable where the network of `log` cannot run here, or its parts are no model."""
    config, header = TuneConfig.from_json(log.settings), log.header
    if config.runner or not runs_here(header.target):
        raise NotComparable(f"code for {header.target.cpu} runs elsewhere", "bench it there")
    if header.state:
        raise NotComparable("a model with a state has no inference of one length", "time its steps")
    if not header.model_path:
        raise NotComparable("the model came from no file", "compile and bench it")
    if config.precision == AUTO:
        raise NotComparable("with precision auto, compiling measures", "compile and bench it")


def is_comparable(log: Log) -> bool:
    """Whether `require_comparable` finds nothing."""
    try:
        require_comparable(log)
    except NotComparable:
        return False
    return True
