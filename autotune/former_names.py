"""Floor 0: names that a former version had. Each works for one more version, with a warning.

    @renamed("0.3", n_threads="threads")        a keyword: load(path, n_threads=2)
    def load(path, threads=None): …

    FORMER = {"unpack": Former("0.3", "autotune.load", "autotune.runtime.load")}  of `autotune`

A version that is written here is the one in which the name went; the next but one has it no more
(`tests/compatibility/test_compatibility_names.py`). docs/compatibility.md is the promise.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import wraps
from importlib import import_module
from typing import Any, TypeVar

from autotune.errors import UsageError

F = TypeVar("F", bound=Callable[..., Any])


@dataclass(frozen=True, slots=True)
class Former:
    """A name that `autotune` had: the version in which it went, and what is there now."""

    since: str
    now: str
    at: str
    """Module and name of what is there now."""


FORMER: Mapping[str, Former] = {}
"""Names of the package that went, by name."""


def former_name(name: str, table: Mapping[str, Former] = FORMER) -> Any:
    """What took the place of a name of the package, with a warning. Raises AttributeError."""
    if name not in table:
        raise AttributeError(name)
    former = table[name]
    _warn(f"autotune.{name} is {former.now} since {former.since}", 4)
    module, _, attribute = former.at.rpartition(".")
    return getattr(import_module(module), attribute)


def renamed(since: str, **names: str) -> Callable[[F], F]:
    """A function whose keywords had other names, each with the one of today.

    Raises UsageError where both are given.
    """

    def of(function: F) -> F:
        @wraps(function)
        def call(*args: Any, **kwargs: Any) -> Any:
            for old in names.keys() & kwargs.keys():
                _move(function.__name__, old, names[old], since, kwargs)
            return function(*args, **kwargs)

        call.__former__ = dict.fromkeys(names, since)  # type: ignore[attr-defined]
        return call  # type: ignore[return-value]

    return of


def _move(function: str, old: str, new: str, since: str, kwargs: dict[str, Any]) -> None:
    if new in kwargs:
        raise UsageError(f"`{new}` and `{old}`, its former name, are given", f"leave `{old}` out")
    _warn(f"{function}: `{old}` is `{new}` since {since}", 4)
    kwargs[new] = kwargs.pop(old)


def _warn(text: str, level: int) -> None:
    warnings.warn(f"{text}; the former name goes with the next version", FutureWarning, level)
