"""Floor 0: the error tree. One class per reason; every error carries a hint and an exit code.

Only `cli` turns these into text and process exit codes; a failed *candidate* is never an error
but a `MeasureStatus` (see `autotune.result`).
"""

from __future__ import annotations

from collections.abc import Mapping
from enum import IntEnum
from itertools import takewhile
from typing import Any

from autotune.printable import shortened


class ExitCode(IntEnum):
    """Documented process exit codes (see docs/files.md)."""

    OK = 0
    FAILURE = 1
    USAGE = 2
    NO_VALID_SCHEDULE = 3
    MISMATCH = 4
    WRONG_NUMBERS = 5
    TOO_SLOW = 6
    NOTED = 7
    HUNG_UP = 129
    INTERRUPTED = 130
    BROKEN_PIPE = 141
    TERMINATED = 143


class AutotuneError(Exception):
    """Base of every error meant for a user: what was expected, what was found, and a hint.

    A hint names settings as arguments of Python between backquotes, and is told below a traceback.
    Names of files and models are in messages, so these are shortened.
    """

    exit_code: ExitCode = ExitCode.FAILURE

    def __init__(self, message: str, hint: str = "") -> None:
        self.message, self.hint = shortened(message), shortened(hint)
        super().__init__(self.message)
        if hint:
            self.add_note(f"hint: {self.hint}")

    def _render_traceback_(self) -> list[str]:
        """What a notebook shows instead of a traceback: the line of the user, and the message."""
        import traceback  # compiled networks run without it

        frames = traceback.extract_tb(self.__traceback__)
        package = __file__.removesuffix("errors.py")
        own = list(takewhile(lambda frame: not frame.filename.startswith(package), frames))
        place = [f"line {own[-1].lineno}: {own[-1].line}"] if own and own[-1].line else []
        hint = [f"hint: {self.hint}"] if self.hint else []
        return [*place, f"{type(self).__name__}: {self.message}", *hint]


def without_frames(error: BaseException) -> None:
    """Drop the tracebacks of an error that is kept as a reason, and of its causes.

    Their frames hold whole models; where one of them also holds the error, only the garbage
    collector would free these.
    """
    one: BaseException | None = error
    while one is not None:
        one.__traceback__, one = None, one.__cause__ or one.__context__


class UsageError(AutotuneError):
    """A wrong option, a missing file, a value out of range."""

    exit_code = ExitCode.USAGE


class ArgumentError(UsageError, TypeError):
    """A function does not take these arguments: a name that it has not, or one too few."""


class ModelError(AutotuneError):
    """The model cannot be read: truncated, empty, or not ONNX."""


class NotCompilable(ModelError):
    """A valid model that cannot be compiled: ONNX Runtime may run it."""


class BeyondLimits(ModelError):
    """A model that asks for more than is possible, see docs/limits.md; a smaller size may not."""


class UnsupportedOperator(NotCompilable):
    """The model uses an operator, attribute or type that has no definition here.

    `reason`: what of an operator that is known otherwise. `nodes`: names of the nodes, and of the
    tensors that they make.
    """

    def __init__(self, message: str, hint: str = "", reason: str = "") -> None:
        super().__init__(message, hint)
        self.reason = reason
        self.nodes: frozenset[str] = frozenset()


class DefinitionError(UsageError):
    """A computation that a user wrote is none: shapes, dtypes or indices do not fit."""


class DynamicShape(UsageError):
    """Dimensions of inputs have no value; `settings`, by name, are arguments that give them one.

    They are of `autotune.compile` and `tune` (`dims`, `shapes`, `capacity`), with words for sizes.
    """

    def __init__(
        self, message: str, hint: str = "", settings: Mapping[str, Any] | None = None
    ) -> None:
        super().__init__(message, hint)
        self.settings = settings or {}


class NoValidSchedule(AutotuneError):
    """A task has no program that builds, runs and computes the right numbers."""

    exit_code = ExitCode.NO_VALID_SCHEDULE


class LogMismatch(AutotuneError):
    """A log belongs to another model, another target, or is no log at all."""

    exit_code = ExitCode.MISMATCH


class StoreError(AutotuneError):
    """A store of records cannot be used: foreign, damaged, or of a later version."""

    exit_code = ExitCode.MISMATCH


class ArtifactError(AutotuneError):
    """A compiled network cannot be used here: foreign, damaged, newer, or for another CPU."""

    exit_code = ExitCode.MISMATCH


class MissingDependency(AutotuneError):
    """An optional package or a system library that the request needs is not installed."""


class UnsupportedPlatform(AutotuneError, ImportError):
    """This system or this CPU cannot run the package: an import that failed, to Python.

    `python -m autotune` tells it in one line, because the error is named after the package.
    """

    def __init__(self, message: str, hint: str = "") -> None:
        super().__init__(message, hint)
        self.name = "autotune"


class LogBusy(AutotuneError):
    """Another process is writing the log."""


class LogLost(AutotuneError):
    """The log was deleted, replaced or cut off while it was written; its content is saved."""


class OutputError(AutotuneError):
    """A file cannot be written: disk full, or an input/output error."""


class WrongNumbers(AutotuneError):
    """The output of a compiled program differs from the oracle."""

    exit_code = ExitCode.WRONG_NUMBERS


class TooSlow(AutotuneError):
    """A compiled model is slower than a gate permits."""

    exit_code = ExitCode.TOO_SLOW


class NoteForbidden(AutotuneError):
    """A note came up where the user asked for errors instead: a fallback, a default, noise."""

    exit_code = ExitCode.NOTED


class ScheduleError(AutotuneError):
    """A step cannot be applied to a state. Search treats it as an invalid candidate."""


class CodegenError(AutotuneError):
    """A loop program cannot be turned into machine code (too many registers, stack too large…)."""
