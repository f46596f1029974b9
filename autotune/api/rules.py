"""⑪ User-defined sketch rules: their vocabulary and their discovery.

    from autotune.rules import Hole, Parameter, Partial, Role, Split, …

    def my_rule(p: Partial, name: str, target: Target) -> list[Partial] | None:
        …                                   # None: the rule says nothing about stage `name`

    RULES = (my_rule,)

A rule looks at stage `name` of the sketch `p` and answers with sketches in which it is done. They
are added to those of the rules that come with autotune (`search.sketch`), and measuring decides.
Rules come from files that define `RULES` (`autotune.tune(rules=…)`), from `Task.tune(rules=…)`, and
from installed packages by the entry point group `autotune.rules`, each the name of such a tuple.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

from autotune.api.user_code import guarded, installed, named
from autotune.errors import UsageError
from autotune.search.partial import Rule

GROUP = "autotune.rules"
_NAME = "RULES"


def rules_of(paths: Iterable[str]) -> tuple[Rule, ...]:
    """The rules of files and of installed packages.

    Raises UsageError, with file and line, for a file that does not run or holds no rules.
    """
    found: list[Rule] = []
    for path in map(Path, paths):
        given = _checked(named(path, _NAME), str(path))
        found += [guarded(rule, path) for rule in given]
    for rules, source in installed(GROUP, "sketch rules"):
        found += [guarded(rule) for rule in _checked(rules, source)]
    return tuple(found)


def _checked(rules: Any, source: str) -> Sequence[Rule]:
    if not isinstance(rules, Sequence) or not all(callable(rule) for rule in rules):
        raise UsageError(
            f"{_NAME} of {source} is no tuple of functions", f"write {_NAME} = (my_rule,)"
        )
    return rules
