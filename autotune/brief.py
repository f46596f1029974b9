"""Floor 0: a representation of one line for records that hold arrays, programs or long lists.

@brief
@dataclass(frozen=True, slots=True)
class Workload: …           # Workload(key='1f0c', dag=ComputeDAG(placeholders=<4 of tuple>, …)
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence, Set
from dataclasses import fields
from typing import Any, TypeVar

_T = TypeVar("_T")

MOST_SHOWN = 300
"""Characters of a representation."""
_MOST_OF_VALUE = 60


def brief(cls: type[_T]) -> type[_T]:
    """A dataclass whose `repr` has at most `MOST_SHOWN` characters."""
    cls.__repr__ = brief_repr  # type: ignore[method-assign]
    return cls


def brief_repr(record: Any) -> str:
    """The fields of a dataclass, each of them cut."""
    shown = (f"{f.name}={brief_value(getattr(record, f.name))}" for f in fields(record) if f.repr)
    return cut(f"{type(record).__name__}({', '.join(shown)})")


def brief_value(value: Any) -> str:
    """A value in a few dozen characters: arrays by dtype and shape, collections by their size."""
    match value:
        case str():
            return repr(value if len(value) <= _MOST_OF_VALUE else f"{value[:_MOST_OF_VALUE]}…")
        case bytes() | bytearray() | memoryview():
            return f"<{len(value)} bytes>"
        case Mapping() | Set() | Sequence() if len(value) > 2:
            return f"<{len(value)} of {type(value).__name__}>"
        case Mapping():
            inner = (f"{brief_value(k)}: {brief_value(v)}" for k, v in value.items())
            return cut(f"{{{', '.join(inner)}}}", _MOST_OF_VALUE)
        case tuple():
            comma = "," if len(value) == 1 else ""
            return cut(f"({', '.join(map(brief_value, value))}{comma})", _MOST_OF_VALUE)
        case list():
            return cut(f"[{', '.join(map(brief_value, value))}]", _MOST_OF_VALUE)
    if hasattr(value, "dtype") and hasattr(value, "shape"):
        return f"<{value.dtype} of {tuple(value.shape)}>"
    return cut(repr(value), _MOST_OF_VALUE)


def cut(text: str, most: int = MOST_SHOWN) -> str:
    """`text`, or the beginning of it with an ellipsis where it has more than `most` characters."""
    return text if len(text) <= most else f"{text[: most - 1]}…"
