"""What the search believes that functions cost is what code generation emits."""

from __future__ import annotations

import re

import pytest

from autotune.codegen.emission.arithmetic import Arithmetic
from autotune.codegen.emission.text import F32, FunctionBuilder, Module, vector
from autotune.search.cost.instructions import operations
from autotune.te.dag import compute, placeholder
from autotune.te.expr import Axis, Binary, call
from autotune.te.intrinsics import INTRINSICS
from tests.targets import AVX2, AVX512

TARGETS = [AVX2, AVX512]
CALLS = [f.name for f in INTRINSICS.values() if f.cost > 1 and f.takes == "floats"]
_COST = {"fdiv": 8, "llvm.sqrt": 8, "bitcast": 0, "phi": 0, "fneg": 0, "@large": 0}


def emitted(fn: str) -> float:
    """Instructions for a vector, on average over the targets; a division is eight, and what works
    on lanes of 64 bits takes two."""
    total = 0
    for target in TARGETS:
        kind = vector(F32, target.lanes)
        b = FunctionBuilder(module := Module(target.isa), "f", {"x": kind, "y": kind})
        x, y = b.arguments
        do = Arithmetic(b)
        do.binary(fn, "float32", x, y) if fn == "pow" else do.call(fn, "float32", x)
        b.end()
        (body,) = re.findall(r"^define void .*?^}", str(module), re.MULTILINE | re.DOTALL)
        for line in body.splitlines():
            if " = " in line:
                cost = next((n for word, n in _COST.items() if word in line), 1)
                total += cost * (2 if re.search("double|i64", line) else 1)
    return total / len(TARGETS)


@pytest.mark.parametrize("fn", [*CALLS, "pow"])
def test_costs_are_what_is_emitted(fn: str) -> None:
    i, x = Axis("i", 8), placeholder("x", (8,))
    at = x.tensor[i]
    body = Binary("pow", at, at) if fn == "pow" else call(fn, at)
    assert operations(compute("y", (i,), body)) == pytest.approx(emitted(fn), rel=0.2)
