"""A function of one argument is complete: an emitter, an oracle, and a name in printed Python."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from autotune.codegen.emission.doubles import DOUBLES
from autotune.codegen.emission.math import CALLS, EXACT
from autotune.codegen.emission.trigonometry import TRIGONOMETRY
from autotune.dtypes import DTYPES
from autotune.loopir.lower import lower
from autotune.loopir.python_text import print_python
from autotune.te.dag import ComputeDAG, compute, placeholder
from autotune.te.expr import Axis, call
from autotune.te.intrinsics import INTRINSICS


def test_every_function_has_an_emitter() -> None:
    functions = {name for name, f in INTRINSICS.items() if f.takes not in ("bits", "integers")}
    assert CALLS.keys() | TRIGONOMETRY.keys() | {"not"} == functions
    assert DOUBLES.keys() | set(EXACT) | {"not"} == functions


@pytest.mark.parametrize("name", INTRINSICS)
def test_printed_python_computes_the_function(name: str) -> None:
    record, i = INTRINSICS[name], Axis("i", 4)
    kinds = {"conditions": "bool", "integers": "int32"}
    dtype = kinds.get(record.takes, "float64")
    if record.takes == "bits":
        bits = DTYPES[record.result].bits
        dtype = {"float32": "int32", "float64": "int64"}.get(record.result, f"uint{bits}")
    values = np.array([0.25, 1.0, 0.5, 0.75]) + (1 if record.low == 1 else 0)
    x = placeholder("x", (4,), dtype)
    dag = ComputeDAG((x, compute("y", (i,), call(name, x.tensor[i]))), ("y",))
    scope: dict[str, Any] = {}
    exec(print_python(lower(dag, ())), scope)
    given = values > 0.5 if dtype == "bool" else values
    if record.takes in ("bits", "integers"):
        given = (200 * values).astype(dtype)
    with np.errstate(all="ignore"):
        found, expected = scope["run"](given), record.oracle(given)
    np.testing.assert_allclose(found, expected, rtol=1e-12)
