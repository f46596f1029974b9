"""The small part of Python that runs beside the kernels means what Python means."""

from __future__ import annotations

import ctypes
import importlib.util
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from autotune.codegen.image.jit import Library
from autotune.codegen.team.native_object import native_object
from autotune.errors import CodegenError
from autotune.target import host_target

PROGRAM = '''
"""Arithmetic, loops, conditions, calls, and words of memory."""
from autotune.codegen.team.native import add, compare_exchange, load, store

LIMIT = 1000

def gcd(a, b):
    """Euclid's."""
    while b:
        rest = a % b
        a = b
        b = rest
    return a

def mixed(a, b):
    if a > b and not a == LIMIT or b // 3 >= 7:
        c = gcd(a, b) << 2
    elif a != b:
        c = (a | b) - (a & 5) * -2
    else:
        return a >> 1
    n = 0
    while 1:
        n += 1
        if n == 3:
            continue
        if n > a % 9:
            break
        c += n
    return c

def noted(at, value):
    add(at, 1)
    return value

def conditions(at, a, b):
    if noted(at, a) and noted(at, b) or noted(at, 0):
        add(at, 100)
    return load(at)

def exchanged(at, old, new):
    return compare_exchange(at, old, new)
'''
EXPORTED = ("gcd", "mixed", "conditions", "exchanged")


def module_of(folder: Path, text: str) -> ModuleType:
    path = folder / "program.py"
    path.write_text(text)
    spec = importlib.util.spec_from_file_location("program", path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


Function = Callable[..., int]


@pytest.fixture(scope="module")
def both(tmp_path_factory: pytest.TempPathFactory) -> tuple[ModuleType, dict[str, Function]]:
    module = module_of(tmp_path_factory.mktemp("native"), PROGRAM)
    library = Library([native_object(module, host_target(), EXPORTED, "x_")])

    def compiled(name: str) -> Function:
        n = vars(module)[name].__code__.co_argcount
        function: Any = ctypes.CFUNCTYPE(ctypes.c_int64, *[ctypes.c_int64] * n)(
            library.address(f"x_{name}")
        )
        function.library = library
        return lambda *values: int(function(*values))

    return module, {name: compiled(name) for name in EXPORTED}


@given(a=st.integers(0, 3000), b=st.integers(0, 3000))
def test_arithmetic_and_loops(both: tuple[ModuleType, dict[str, Function]], a: int, b: int) -> None:
    module, compiled = both
    assert compiled["gcd"](a, b) == module.gcd(a, b)
    assert compiled["mixed"](a, b) == module.mixed(a, b)


@pytest.mark.parametrize(("a", "b", "count"), [(0, 0, 2), (0, 1, 2), (1, 0, 3), (1, 1, 102)])
def test_later_parts_of_conditions_run_where_they_decide(
    both: tuple[ModuleType, dict[str, Function]], a: int, b: int, count: int
) -> None:
    word = np.zeros(1, np.int64)
    assert both[1]["conditions"](word.ctypes.data, a, b) == count == word[0]


def test_a_word_is_exchanged_where_it_is_what_it_was(
    both: tuple[ModuleType, dict[str, Function]],
) -> None:
    word = np.array([5], np.int64)
    assert both[1]["exchanged"](word.ctypes.data, 4, 9) == 5 == word[0]
    assert both[1]["exchanged"](word.ctypes.data, 5, 9) == 5
    assert word[0] == 9


@pytest.mark.parametrize(
    "line",
    ["return a ** 2", "return [a]", "for n in range(a): pass", "return load(a, a)", "a.b = 1"],
)
def test_other_python_is_refused_with_its_text(tmp_path: Path, line: str) -> None:
    module = module_of(tmp_path, f"def f(a):\n    {line}\n")
    with pytest.raises(CodegenError, match="in 'f' cannot be compiled"):
        native_object(module, host_target(), ("f",), "x_")
