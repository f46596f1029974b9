"""⑪ ONNX operators from outside: where their definitions are found.

    OPERATORS = {"com.acme.Swish": swish}     # in a file for `operators`

What such a function gets and returns is in `graph.user_operators`. Installed packages offer theirs
by the entry point group `autotune.operators`, each the name of such a mapping.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from autotune.api.user_code import guarded, installed, named
from autotune.errors import UsageError
from autotune.graph.operators.user_operators import Composition, UserOperator

GROUP = "autotune.operators"
_NAME = "OPERATORS"


def operators_of(paths: Iterable[str]) -> dict[str, UserOperator | Composition]:
    """The operators of files and of installed packages, by name; files come first.

    Raises UsageError, with file and line, for a file that does not run or holds no operators.
    """
    found: dict[str, UserOperator | Composition] = {}
    for operators, source in installed(GROUP, "operators"):
        found |= {name: _guarded(f) for name, f in _checked(operators, source).items()}
    for path in map(Path, paths):
        given = _checked(named(path, _NAME), str(path))
        found |= {name: _guarded(function, path) for name, function in given.items()}
    return found


def _guarded(
    operator: UserOperator | Composition, file: Path | None = None
) -> UserOperator | Composition:
    if isinstance(operator, Composition):
        return Composition(guarded(operator.rewrite, file))
    return guarded(operator, file)


def _checked(operators: Any, source: str) -> Mapping[str, UserOperator | Composition]:
    if not isinstance(operators, Mapping) or not all(map(_is_operator, operators.values())):
        raise UsageError(
            f"{_NAME} of {source} is no dictionary of functions",
            f'write {_NAME} = {{"com.acme.Swish": swish}}',
        )
    return operators


def _is_operator(value: Any) -> bool:
    return callable(value) or isinstance(value, Composition)
