"""Mutants: each is one change of one function, and the function alone differs."""

from __future__ import annotations

import ast
import random
from pathlib import Path

import pytest

from tests.fuzz.mutants import functions, mutant
from tests.fuzz.mutation import by_function, marked

SOURCE = '''
"""A module."""
LIMIT = 3

class Box:
    def size(self, n: int = 2) -> int:
        """Not changed: 1 < 2."""
        if n < 0:
            raise ValueError(f"{n + 1} is below 0")
        total = 0
        for k in range(n):
            total += k * 2
        return total if n > 1 else LIMIT

def plain():
    pass
'''


@pytest.mark.parametrize("seed", range(40))
def test_a_mutant_is_one_change_of_its_function(seed: int) -> None:
    made = mutant(Path("m.py"), SOURCE, "Box.size", random.Random(seed))
    assert made is not None
    before, after = (dict(functions(ast.parse(text))) for text in (SOURCE, made.text))
    assert ast.unparse(before["plain"]) == ast.unparse(after["plain"])
    old, new = (ast.unparse(f["Box.size"]).splitlines() for f in (before, after))
    assert old != new
    kept = [line for line in old if line in new]
    assert len(kept) >= len(old) - (2 if "left out" in made.change else 1)
    assert "Not changed: 1 < 2." in "\n".join(new)  # no text, no message, no default
    if not made.change.startswith("if"):
        assert "{n + 1} is below 0" in "\n".join(new)
    assert made.change.partition(" → ")[0].strip() in (line.strip() for line in old)


def test_all_kinds_of_changes_are_drawn_and_a_seed_repeats_them() -> None:
    def drawn(seed: int) -> str:
        made = mutant(Path("m.py"), SOURCE, "Box.size", random.Random(seed))
        assert made is not None
        return made.change

    found = {drawn(seed) for seed in range(60)}
    assert found == {drawn(seed) for seed in range(60)}
    for change in (
        "if n < 0: → if n <= 0:",
        "if n < 0: → (left out)",
        "total = 0 → total = 1",
        "total += k * 2 → (left out)",
        "total += k * 2 → total += k // 2",
        "return total if n > 1 else LIMIT → return LIMIT if n > 1 else total",
    ):
        assert change in found
    assert mutant(Path("m.py"), SOURCE, "plain", random.Random(0)) is None


def test_marks_tell_what_runs_and_change_nothing_else() -> None:
    import sys
    from types import ModuleType, SimpleNamespace

    marks, module = SimpleNamespace(seen=set()), ModuleType("marked")
    sys.modules["mutation_marks"] = marks  # type: ignore[assignment]
    try:
        exec(marked(Path("m.py"), SOURCE), vars(module))
        assert module.Box().size(4) == 12
        assert marks.seen == {"m.py:Box.size"}
    finally:
        del sys.modules["mutation_marks"]
    assert module.Box.size.__doc__ == "Not changed: 1 < 2."


def test_short_tests_of_several_functions_come_first_and_long_ones_not_at_all() -> None:
    found = {
        "t.py::a[1]": (0.1, ["f"]),
        "t.py::a[2]": (0.2, ["f"]),
        "t.py::b": (3.0, ["f", "g"]),
        "t.py::c": (25.0, ["f", "g"]),
    }
    assert by_function(found) == {"f": ["t.py::a[1]", "t.py::b", "t.py::a[2]"], "g": ["t.py::b"]}
