"""Floor 0: JSON Schemas of type hints, of what `codec.to_json` writes and of typed dictionaries.

    schema_of(BenchOutput)  -> {"$schema": …, "$ref": "#/$defs/BenchOutput", "$defs": {…}}

hint = as in `codec` | list[hint] | a TypedDict | hint | hint
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, fields, is_dataclass
from enum import Enum
from types import NoneType, UnionType
from typing import (
    Annotated,
    Any,
    Literal,
    NotRequired,
    Union,
    get_args,
    get_origin,
    get_type_hints,
    is_typeddict,
)

from autotune.codec import LEFT_OUT, Apart, Coded

Schema = dict[str, Any]

_DIALECT = "https://json-schema.org/draft/2020-12/schema"
_SCALARS: Mapping[Any, str] = {
    int: "integer",
    float: "number",
    str: "string",
    bool: "boolean",
    NoneType: "null",
}


def schema_of(
    hint: Any, instead: Mapping[Any, Any] | None = None, is_closed: bool = False
) -> Schema:
    """The schema of a hint, with its records as definitions.

    `instead`: hints that are written in the place of others. `is_closed`: records have no other
    fields; else a reader must expect those of later versions.
    """
    builder = _Builder(dict(instead or {}), is_closed)
    return {"$schema": _DIALECT} | builder.of(hint) | {"$defs": builder.definitions}


@dataclass(slots=True)
class _Builder:
    """Schemas by hint; records become definitions, for they may have fields of their own kind."""

    instead: dict[Any, Any]
    is_closed: bool
    definitions: dict[str, Schema] = field(default_factory=dict)

    def of(self, hint: Any) -> Schema:
        hint = self.instead.get(hint, hint) if _is_hashable(hint) else hint
        origin, arguments = get_origin(hint), get_args(hint)
        if origin is Annotated:
            is_coded = any(isinstance(rule, Coded) for rule in arguments[1:])
            return {} if is_coded else self.of(arguments[0])
        if origin is NotRequired:
            return self.of(arguments[0])
        if origin is Literal:
            return {"enum": list(arguments)}
        if origin in (Union, UnionType):
            return {"anyOf": [self.of(one) for one in arguments]}
        if origin in (dict, Mapping):
            return {"type": "object", "additionalProperties": self.of(arguments[1])}
        if origin in (list, tuple):
            return self._list(arguments)
        if is_typeddict(hint) or is_dataclass(hint):
            return self._named(hint)
        if isinstance(hint, type) and issubclass(hint, Enum):
            return {"enum": [member.value for member in hint]}
        return {} if hint is Any else {"type": _SCALARS[hint]}

    def _list(self, arguments: tuple[Any, ...]) -> Schema:
        if len(arguments) == 1 or arguments[1] is ...:
            return {"type": "array", "items": self.of(arguments[0])}
        n = len(arguments)
        items = [self.of(one) for one in arguments]
        return {"type": "array", "prefixItems": items, "minItems": n, "maxItems": n}

    def _named(self, kind: Any) -> Schema:
        name = kind.__name__
        if name not in self.definitions:
            self.definitions[name] = {}
            self.definitions[name] = self._record(kind)
        return {"$ref": f"#/$defs/{name}"}

    def _record(self, kind: Any) -> Schema:
        hints = get_type_hints(kind, include_extras=True)
        if is_dataclass(kind):
            rules = {n: getattr(hint, "__metadata__", ()) for n, hint in hints.items()}
            apart = {n for n, found in rules.items() if any(isinstance(r, Apart) for r in found)}
            shown = [f.name for f in fields(kind) if f.name not in apart]
            required = [name for name in shown if LEFT_OUT not in rules[name]]
        else:
            shown = list(hints)
            required = [name for name in shown if get_origin(hints[name]) is not NotRequired]
        return {
            "type": "object",
            "properties": {name: self.of(hints[name]) for name in shown},
            "required": required,
            "additionalProperties": not self.is_closed,
        }


def _is_hashable(hint: Any) -> bool:
    try:
        hash(hint)
    except TypeError:
        return False
    return True
