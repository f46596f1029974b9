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
from autotune.graph.operators.user_operators import UserOperator

GROUP = "autotune.operators"
_NAME = "OPERATORS"


def operators_of(paths: Iterable[str]) -> dict[str, UserOperator]:
    """The operators of files and of installed packages, by name; files come first.

    Raises UsageError, with file and line, for what does not run or holds no operators.
    """
    found: dict[str, UserOperator] = {}
    for operators, source in installed(GROUP, "operators"):
        found |= {name: guarded(f) for name, f in _checked(operators, source).items()}
    for path in map(Path, paths):
        given = _checked(named(path, _NAME), str(path))
        found |= {name: guarded(function, path) for name, function in given.items()}
    return found


def _checked(operators: Any, source: str) -> Mapping[str, UserOperator]:
    if not isinstance(operators, Mapping) or not all(map(callable, operators.values())):
        raise UsageError(
            f"{_NAME} of {source} is no dictionary of functions",
            f'write {_NAME} = {{"com.acme.Swish": swish}}',
        )
    return operators
