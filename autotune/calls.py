"""Floor 0: calls of public functions with other arguments than they take; what `dir` names.

compile("m.onnx", thread=2)  ─►  ArgumentError: compile() has no argument 'thread'
                                 hint: did you mean `threads`?
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable, Mapping
from difflib import get_close_matches
from functools import wraps
from typing import Any, TypeVar

from autotune.errors import ArgumentError

F = TypeVar("F", bound=Callable[..., Any])
_BY_NAME = (inspect.Parameter.POSITIONAL_OR_KEYWORD, inspect.Parameter.KEYWORD_ONLY)
_MOST_NAMED = 12


def checked(function: F) -> F:
    """A function or method that raises ArgumentError for arguments that it does not take."""
    taken = inspect.signature(function)
    name = function.__qualname__.removesuffix(".__init__")

    @wraps(function)
    def call(*args: Any, **kwargs: Any) -> Any:
        try:
            return function(*args, **kwargs)
        except TypeError:
            require_call(name, taken, args, kwargs)
            raise

    return call  # type: ignore[return-value]


def require_call(
    name: str, taken: inspect.Signature, args: Iterable[Any], kwargs: Mapping[str, Any]
) -> None:
    """Raise ArgumentError where a function of this signature does not take these arguments."""
    try:
        taken.bind(*args, **kwargs)
    except TypeError as error:
        raise _wrong(name, taken, kwargs, str(error)) from None


def _wrong(
    name: str, taken: inspect.Signature, kwargs: Mapping[str, Any], reason: str
) -> ArgumentError:
    named = (p.name for p in taken.parameters.values() if p.kind in _BY_NAME)
    known = [name for name in named if name != "self"]
    unknown = next((key for key in kwargs if key not in known), None)
    if unknown is None:
        return ArgumentError(f"{name}(): {reason}", f"it takes {_listed(known)}")
    near = get_close_matches(unknown, known, n=1)
    hint = f"did you mean `{near[0]}`?" if near else f"it takes {_listed(known)}"
    return ArgumentError(f"{name}() has no argument '{unknown}'", hint)


def _listed(names: list[str]) -> str:
    more = f" and {len(names) - _MOST_NAMED} more" if len(names) > _MOST_NAMED else ""
    return ", ".join(f"`{name}`" for name in names[:_MOST_NAMED]) + more


class PublicNames:
    """`dir` of an object without the names that are its own business: for shells and notebooks."""

    __slots__ = ()

    def __dir__(self) -> list[str]:
        return [n for n in super().__dir__() if n[0] != "_" or n.startswith("__")]
