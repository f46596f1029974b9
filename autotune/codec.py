"""Floor 0: dataclasses to JSON values and back, by the hints of their fields.

    to_json(Port("x", (1, 8)))                       -> {"name": "x", "shape": [1, 8]}
    from_json(Port, {"name": "x", "shape": [1, 8]})  -> Port("x", (1, 8))
    from_json(Port, {"name": "x", "shape": [1, ""]}) -> Misfit: shape.1 is '', not a whole number

    hint = int | float | str | bool | None | Any | an Enum of texts | Literal[text, ...]
         | a dataclass | hint | None
         | tuple[hint, ...] | tuple[hint, hint] | Mapping[str, hint] | Annotated[hint, rule, ...]
    rule = within(low, high) | Holds(test, what)    what was read is so
         | Coded(write, read) | tagged(name, classes)   in place of the hint
         | Apart(value) | LEFT_OUT | REQUIRED    of a field

Numbers are finite, and true is no number; integers stay integers where a hint says float. The code
for a hint is put together once, when it is first used.
"""

from __future__ import annotations

import math
import reprlib
import sys
from collections.abc import Callable, Iterable, Mapping
from dataclasses import MISSING, Field, fields, is_dataclass
from enum import Enum
from functools import cache, reduce
from itertools import repeat
from types import NoneType, UnionType
from typing import (
    Annotated,
    Any,
    Literal,
    NamedTuple,
    TypeAlias,
    TypeVar,
    Union,
    get_args,
    get_origin,
    get_type_hints,
)

T = TypeVar("T")
Function: TypeAlias = Callable[[Any], Any]

BAD = (ValueError, TypeError, LookupError, AttributeError, ArithmeticError)
"""Errors of the functions of a `Coded` for a value of another form."""


class Misfit(ValueError):
    """A JSON value that is not what a hint says; `path`: the fields and indices that lead to it."""

    def __init__(self, found: Any, wanted: str, path: tuple[str, ...] = ()) -> None:
        self.found, self.wanted, self.path = found, wanted, path
        what = "missing" if found is MISSING else f"{reprlib.repr(found)}, not {wanted}"
        super().__init__(f"{'.'.join(path) or 'the value'} is {what}")

    def inside(self, place: object) -> Misfit:
        """The same error, of the container of the value at `place`."""
        return Misfit(self.found, self.wanted, (str(place), *self.path))


class Coded(NamedTuple):
    """Writer and reader of values; `read` raises one of `BAD` for another value."""

    write: Function
    read: Function


class Holds(NamedTuple):
    """A test of what was read; `what` it then is, for errors."""

    test: Callable[[Any], bool]
    what: str


class Apart(NamedTuple):
    """The value of a field that JSON does not have."""

    value: Any


class Presence(Enum):
    """Condition under which a field with a default is in JSON."""

    LEFT_OUT = "not written where it is the default"
    REQUIRED = "always"


LEFT_OUT, REQUIRED = Presence.LEFT_OUT, Presence.REQUIRED


def within(low: float, high: float = math.inf) -> Holds:
    """A number from `low` to `high`."""
    return Holds(lambda number: low <= number <= high, f"from {low} to {high}")


def tagged(name: str, classes: Mapping[str, type]) -> Coded:
    """A record of one of `classes`; the field `name` says which."""
    known: dict[str, Coded] = {tag: coded(kind) for tag, kind in classes.items()}
    tags = {kind: tag for tag, kind in classes.items()}

    def write(value: Any) -> Any:
        tag = tags[type(value)]
        return {name: tag} | known[tag].write(value)

    def read(data: Any) -> Any:
        tag = _object(data).get(name)
        if type(tag) is not str or tag not in known:
            raise Misfit(data, f"of a known '{name}'")
        return known[tag].read({key: value for key, value in data.items() if key != name})

    return Coded(write, read)


def to_json(record: Any) -> dict[str, Any]:
    """The fields of a dataclass by name, as JSON values."""
    kind: Any = type(record)
    found: dict[str, Any] = coded(kind).write(record)
    return found


def from_json(kind: type[T], data: Any, is_open: bool = False) -> T:
    """Inverse of `to_json`. `is_open`: unknown fields are ignored, at any depth.

    Raises Misfit for all else.
    """
    hint: Any = kind
    try:
        found: T = coded(hint, is_open).read(data)
    except RecursionError:
        raise Misfit(data, "of a bounded depth") from None
    return found


@cache
def coded(hint: Any, is_open: bool = False) -> Coded:
    """Codec of any type hint; `read` raises Misfit."""
    origin, arguments = get_origin(hint), get_args(hint)
    if origin is Annotated:
        return _ruled(arguments[0], arguments[1:], is_open)
    if origin is Literal:
        return Coded(_same, _one_of({text: text for text in arguments}))
    inner = [coded(a, is_open) for a in arguments if a is not ...] if origin else []
    if origin in (Union, UnionType):
        return _optional(*inner)
    if origin is tuple:
        return _tuple(inner, is_long=arguments[-1] is ...)
    if origin in (dict, Mapping):
        return _mapping(inner[1])
    if is_dataclass(hint):
        return _record(hint, is_open)
    if isinstance(hint, type) and issubclass(hint, Enum):
        members = {member.value: member for member in hint}
        return Coded(lambda value: value.value, _one_of(members))
    return Coded(_same, _SCALARS[hint])


# --- scalars ----------------------------------------------------------------------------------


_LARGEST = sys.float_info.max


def _same(value: Any) -> Any:
    return value


def _exactly(kind: type, wanted: str) -> Function:
    def read(data: Any) -> Any:
        if type(data) is not kind:
            raise Misfit(data, wanted)
        return data

    return read


def _number(data: Any) -> Any:
    kind = type(data)
    if (kind is not float and kind is not int) or not -_LARGEST <= data <= _LARGEST:
        raise Misfit(data, "a number")
    return data


def _finite(number: float) -> float | str:
    return number if math.isfinite(number) else str(float(number))


def _any_number(data: Any) -> Any:
    return float(data) if data in ("inf", "-inf", "nan") else _number(data)


AnyFloat: TypeAlias = Annotated[float, Coded(_finite, _any_number)]
"""Also a float that JSON lacks: its name."""

_object, _list = _exactly(dict, "an object"), _exactly(list, "a list")
_SCALARS: dict[Any, Function] = {
    int: _exactly(int, "a whole number"),
    float: _number,
    str: _exactly(str, "a text"),
    bool: _exactly(bool, "true or false"),
    NoneType: _exactly(NoneType, "null"),
    Any: _same,
}


def _one_of(members: dict[str, Any]) -> Function:
    def read(data: Any) -> Any:
        if type(data) is not str or data not in members:
            raise Misfit(data, f"one of {', '.join(members)}")
        return members[data]

    return read


# --- rules ------------------------------------------------------------------------------------


def _ruled(hint: Any, rules: tuple[Any, ...], is_open: bool) -> Coded:
    given = [Coded(rule.write, _guarded(rule.read)) for rule in rules if isinstance(rule, Coded)]
    tests = [rule for rule in rules if isinstance(rule, Holds)]
    return reduce(_tested, tests, given[0] if given else coded(hint, is_open))


def _tested(inner: Coded, rule: Holds) -> Coded:
    one, (test, what) = inner.read, rule

    def read(data: Any) -> Any:
        value = one(data)
        if not test(value):
            raise Misfit(data, what)
        return value

    return Coded(inner.write, read)


def _guarded(function: Function) -> Function:
    def read(data: Any) -> Any:
        try:
            return function(data)
        except Misfit:
            raise
        except BAD as error:
            raise Misfit(data, f"valid ({error})") from error

    return read


# --- composite types --------------------------------------------------------------------------


def _optional(inner: Coded, null: Coded) -> Coded:
    write, read = inner
    assert null.read is _SCALARS[NoneType]
    writes = _same if write is _same else lambda value: None if value is None else write(value)
    return Coded(writes, lambda data: None if data is None else read(data))


def _tuple(inner: list[Coded], is_long: bool) -> Coded:
    """Lists of any length, or with a hint for each item."""
    readers: Iterable[Function] = repeat(inner[0].read) if is_long else [x.read for x in inner]
    writers: Iterable[Function] = repeat(inner[0].write) if is_long else [x.write for x in inner]

    def read(data: Any) -> Any:
        n = len(_list(data))
        if not is_long and n != len(inner):
            raise Misfit(data, f"a list of {len(inner)}")
        return tuple(_each(range(n), readers, data))

    def write(value: Any) -> Any:
        return [one(item) for one, item in zip(writers, value, strict=False)]

    return Coded(list if all(x.write is _same for x in inner) else write, read)


def _mapping(inner: Coded) -> Coded:
    def read(data: Any) -> Any:
        return dict(zip(_object(data), _each(data, repeat(inner.read), data.values()), strict=True))

    return Coded(lambda value: {key: inner.write(item) for key, item in value.items()}, read)


def _each(places: Iterable[Any], readers: Iterable[Function], items: Iterable[Any]) -> list[Any]:
    """`items` read by `readers`; `places` name the one that is refused."""
    out: list[Any] = []
    try:
        for one, item in zip(readers, items, strict=False):
            out.append(one(item))
    except Misfit as error:
        raise error.inside([*places][len(out)]) from None
    return out


def _record(kind: Any, is_open: bool) -> Coded:
    """Its fields are looked at when they are needed, for they may have records of its kind."""
    return Coded(
        lambda value: fields_of(kind, is_open).write(value),
        lambda data: kind(**fields_of(kind, is_open).read(data)),
    )


@cache
def fields_of(kind: Any, is_open: bool = False) -> Coded:
    """The fields of a dataclass by name: as JSON values, and as its constructor takes them."""
    hints = get_type_hints(kind, include_extras=True)
    rules = {name: getattr(hint, "__metadata__", ()) for name, hint in hints.items()}
    apart = {name: x.value for name in rules for x in rules[name] if isinstance(x, Apart)}
    shown = [f for f in fields(kind) if f.name not in apart]
    writers = [(f.name, coded(hints[f.name]).write) for f in shown]
    readers = {f.name: coded(hints[f.name], is_open).read for f in shown}
    required = {f.name for f in shown if REQUIRED in rules[f.name] or _is_bare(f)}
    optional = [(f.name, _default(f)) for f in shown if LEFT_OUT in rules[f.name]]

    def write(value: Any) -> dict[str, Any]:
        out = {name: one(getattr(value, name)) for name, one in writers}
        for name, default in optional:
            if out[name] == default:
                del out[name]
        return out

    def read(data: Any) -> dict[str, Any]:
        out, name = {}, ""
        try:
            for name, item in _object(data).items():
                one = readers.get(name)
                if one is not None:
                    out[name] = one(item)
        except Misfit as error:
            raise error.inside(name) from None
        if len(out) < len(data) and not is_open:
            raise Misfit(data, f"of the fields {', '.join(readers)} alone")
        if not out.keys() >= required:
            raise Misfit(MISSING, "there", (min(required - out.keys()),))
        out.update(apart)
        return out

    return Coded(write, read)


def _default(field: Field[Any]) -> Any:
    """Of a field that may be left out: in JSON, where it is a number, a text, null, or empty."""
    made = field.default if field.default_factory is MISSING else field.default_factory()
    return list(made) if isinstance(made, tuple) else made


def _is_bare(field: Field[Any]) -> bool:
    return field.default is MISSING and field.default_factory is MISSING
