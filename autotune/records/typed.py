"""⑧ Whether what was read from a log has the types that its dataclass states.

A log may be edited, damaged or foreign. A field of another type than expected would fail far from
where it was read, so `require_types` is asked once, where an entry is made.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Hashable
from dataclasses import fields, is_dataclass
from enum import Enum
from functools import cache
from types import NoneType, UnionType
from typing import Any, TypeAlias, Union, get_args, get_origin, get_type_hints

Check: TypeAlias = Callable[[Any], bool]


def require_types(entry: Any) -> None:
    """Raise TypeError where a field of a dataclass is not of its type, also inside of it.

    Numbers are finite, and true is no number.
    """
    kind: Any = type(entry)
    for name, check in _checks(kind):
        if not check(getattr(entry, name)):
            raise TypeError(f"{type(entry).__name__}.{name} is {getattr(entry, name)!r}")


@cache
def _checks(kind: Hashable) -> tuple[tuple[str, Check], ...]:
    assert isinstance(kind, type)
    assert is_dataclass(kind)
    hints = get_type_hints(kind)
    return tuple((f.name, _check(hints[f.name])) for f in fields(kind))


def _check(hint: Any) -> Check:
    origin, arguments = get_origin(hint), get_args(hint)
    if hint is Any:
        return lambda value: True
    if hint is NoneType:
        return lambda value: value is None
    if hint is float:
        return _is_number
    if hint is int:
        return lambda value: type(value) is int
    if origin in (Union, UnionType):
        options = [_check(a) for a in arguments]
        return lambda value: any(option(value) for option in options)
    if origin is tuple:
        return _tuple_check(arguments)
    if origin is dict:
        key, item = _check(arguments[0]), _check(arguments[1])
        return lambda value: (
            isinstance(value, dict) and all(key(k) and item(v) for k, v in value.items())
        )
    if is_dataclass(hint):
        return lambda value: _is_dataclass(value, hint)
    assert hint in (str, bool) or issubclass(hint, Enum), hint
    return lambda value: isinstance(value, hint)


def _tuple_check(arguments: tuple[Any, ...]) -> Check:
    if arguments[-1] is Ellipsis:
        each = _check(arguments[0])
        return lambda value: isinstance(value, tuple) and all(map(each, value))
    parts = [_check(a) for a in arguments]
    return lambda value: (
        isinstance(value, tuple)
        and len(value) == len(parts)
        and all(part(v) for part, v in zip(parts, value, strict=True))
    )


def _is_number(value: Any) -> bool:
    kind = type(value)
    return (kind is float or kind is int) and math.isfinite(value)


def _is_dataclass(value: Any, kind: Any) -> bool:
    return isinstance(value, kind) and all(
        check(getattr(value, name)) for name, check in _checks(kind)
    )
