"""⑪ Python files of a user: workloads, schedules, rules, operators.

They are run, so they are trusted as any program is that a user starts.
"""

from __future__ import annotations

import importlib.metadata
import importlib.util
import sys
import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import wraps
from pathlib import Path
from types import ModuleType
from typing import Any, TypeVar, cast

from autotune.errors import AutotuneError, ScheduleError, UsageError

F = TypeVar("F", bound=Callable[..., Any])


def named(file: Path, name: str) -> Any:
    """Value of `name` in a Python file. Raises UsageError where it does not run or has none."""
    module = _module(file)
    if not hasattr(module, name):
        functions = [n for n, v in vars(module).items() if callable(v) and not n.startswith("_")]
        raise UsageError(f"{file} has no '{name}'", f"it has: {', '.join(functions) or 'nothing'}")
    return getattr(module, name)


def _module(file: Path) -> ModuleType:
    if not file.is_file():
        raise UsageError(f"there is no file {file}", "check the path")
    spec = importlib.util.spec_from_file_location(f"autotune_user_{file.stem}", file)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module  # dataclasses and pickle look it up
    folder = str(file.resolve().parent)
    if folder not in sys.path:  # last, so that the files beside it hide no installed package
        sys.path.append(folder)
    with reported(file):
        spec.loader.exec_module(module)
    return module


def installed(group: str, what: str) -> Iterator[tuple[Any, str]]:
    """Values of an entry point group in installed packages, with their origin.

    Raises UsageError, which calls it `what`, for an entry that cannot be loaded.
    """
    for entry in importlib.metadata.entry_points(group=group):
        try:
            value = entry.load()
        except Exception as error:
            raise UsageError(
                f"the {what} of '{entry.value}' cannot be loaded: {error}",
                "mend or uninstall that package",
            ) from error
        yield value, entry.value


def guarded(function: F, file: Path | None = None) -> F:
    """The same function; its errors are reported with their place in `file`, by default its own."""
    file = file or Path(getattr(getattr(function, "__code__", None), "co_filename", "user code"))

    @wraps(function)
    def call(*args: Any, **named: Any) -> Any:
        with reported(file):
            return function(*args, **named)

    return cast("F", call)


@contextmanager
def reported(file: Path) -> Iterator[None]:
    """Turn an exception of the user's code into a UsageError with its place in `file`."""
    try:
        yield
    except ScheduleError as error:  # the only one of ours that does not tell the place
        raise UsageError(f"{_place(error, file)}: {error.message}", error.hint) from error
    except AutotuneError:
        raise
    except Exception as error:
        reason = (str(error).splitlines() or [""])[0]
        raise UsageError(
            f"{_place(error, file)}: {type(error).__name__}: {reason}", "the file is run as Python"
        ) from error


def _place(error: Exception, file: Path) -> str:
    """`rules.py:12`: the innermost line of `file` that `error` passed through."""
    places = traceback.extract_tb(error.__traceback__)
    inside = [p.lineno for p in places if Path(p.filename).resolve() == file.resolve()]
    line = error.lineno if isinstance(error, SyntaxError) else (inside or [None])[-1]
    return f"{file}:{line}" if line else str(file)
