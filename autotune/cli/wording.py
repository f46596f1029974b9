"""⑪ Messages in the words of the command line: the arguments of Python that they name as options.

`dims={'n': [1, 4]}, state={'h': 'hn'}`  ─►  --dim n=1,4 --state h=hn
`fallback=False`                 ─►  --no-fallback
`autotune.compile(MODEL)`        ─►  autotune compile MODEL
"""

from __future__ import annotations

import ast
import re
import shlex
from collections.abc import Callable, Iterator, Mapping
from typing import Any

from autotune.wording import Word

_QUOTED = re.compile(r"`([^`\n]+)`")


def as_options(text: str) -> str:
    """`text` with options in the place of arguments; what names none stays as it is."""
    return _QUOTED.sub(lambda match: _options(match[1]) or match[0], text)


def option(name: str, value: Any) -> str:
    """The option that gives an argument its value."""
    return " ".join(_FORMS.get(name, _plain)(name, value))


def _options(code: str) -> str | None:
    """An argument, several with values, or a call; None where it is something else."""
    try:
        call = ast.parse(f"_({code})", mode="eval").body
        assert isinstance(call, ast.Call)
        match call:
            case ast.Call(args=[ast.Name(id=name)], keywords=[]):
                return _BARE.get(name) or (f"--{_NAMES[name]}" if name in _NAMES else None)
            case ast.Call(args=[ast.Attribute() as function], keywords=[]):
                return _command(function)
            case ast.Call(args=[ast.Call(func=function) as inner], keywords=[]):
                words = [_command(function), *map(_literal, inner.args), *_all_of(inner.keywords)]
                return " ".join(map(str, words)) if words[0] else None
            case ast.Call(args=[], keywords=keywords):
                return " ".join(_all_of(keywords))
    except (SyntaxError, ValueError, LookupError, TypeError):
        return None
    return None


def _all_of(keywords: list[ast.keyword]) -> Iterator[str]:
    for keyword in keywords:
        name = _NAMES[keyword.arg or ""] and str(keyword.arg)
        yield option(name, _literal(keyword.value))


def _command(function: ast.expr) -> str | None:
    """`autotune.compile` as the command."""
    match function:
        case ast.Attribute(value=ast.Name(id="autotune"), attr=name):
            return f"autotune {name}"
    return None


def _literal(node: ast.expr) -> Any:
    """A value; names are words that the reader replaces. Raises ValueError for anything else."""
    match node:
        case ast.Name(id=name):
            return Word(name)
        case ast.Dict(keys=keys, values=values):
            pairs = zip(keys, values, strict=True)
            return {_literal(k): _literal(v) for k, v in pairs if k is not None}
    return ast.literal_eval(node)


def _plain(name: str, value: Any) -> Iterator[str]:
    yield f"--{_NAMES[name]} {shlex.quote(str(value))}"


def _flag(name: str, value: Any) -> Iterator[str]:
    yield f"--{'' if value else 'no-'}{_NAMES[name]}"


def _named(sign: str, text: Callable[[Any], str]) -> Callable[[str, Any], Iterator[str]]:
    """An option for each entry of a mapping."""

    def form(name: str, value: Mapping[str, Any]) -> Iterator[str]:
        for key, one in value.items():
            yield f"--{_NAMES[name]} {shlex.quote(f'{key}{sign}{text(one)}')}"

    return form


def _extents(values: Any) -> str:
    """`4`, `1,4,8` or `16:0.5,128:0.5`."""
    if isinstance(values, Mapping):
        return ",".join(f"{extent}:{share}" for extent, share in values.items())
    return ",".join(map(str, values)) if isinstance(values, list | tuple) else str(values)


def _listed(name: str, value: Any) -> Iterator[str]:
    yield f"--{_NAMES[name]} {','.join(map(str, value))}"


_NAMES = {
    "against": "against",
    "agreement": "agreement",
    "cache_type": "cache",
    "capacity": "capacity",
    "cc": "cc",
    "check": "check",
    "check_inputs": "check-input",
    "constants": "const",
    "data": "data",
    "dims": "dim",
    "fallback": "fallback",
    "force": "force",
    "keep_cut": "keep-cut",
    "labels": "labels",
    "like": "like",
    "log": "log",
    "max_error": "max-error",
    "max_size": "max-size",
    "model": "model",
    "precision": "precision",
    "ragged": "ragged",
    "random_weights": "random-weights",
    "runner": "runner",
    "scores": "scores",
    "sessions": "sessions",
    "shapes": "shape",
    "state": "state",
    "store": "store",
    "target": "target",
    "threads": "threads",
    "time_s": "time",
    "warm_start": "warm-start",
}
"""Arguments that messages name, and their options."""
_BARE = {"traceback": "traceback (--debug)"}
_FORMS: Mapping[str, Callable[[str, Any], Iterator[str]]] = {
    "check": _flag,
    "check_inputs": lambda name, value: iter([f"--{_NAMES[name]} x.npz"]),
    "constants": _named("=", _extents),
    "dims": _named("=", _extents),
    "fallback": _flag,
    "force": _flag,
    "keep_cut": _flag,
    "like": lambda name, value: iter([f"--{_NAMES[name]} x.npy"]),
    "ragged": _flag,
    "random_weights": _flag,
    "state": _named("=", str),
    "sessions": _listed,
    "time_s": lambda name, value: iter([f"--{_NAMES[name]} {value:g}s"]),
    "shapes": _named(":", lambda shape: "x".join(map(str, shape))),
}
