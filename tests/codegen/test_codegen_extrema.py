"""Maxima and minima: NaN of either operand stays, and activations cost one instruction."""

from __future__ import annotations

import re
from collections.abc import Callable

import numpy as np
import pytest

from autotune.codegen.compile import assembly
from autotune.loopir.lower import lower
from autotune.loopir.nodes import Program
from autotune.loopir.python_text import print_python
from autotune.schedule.steps import Annotate, Split, Steps
from autotune.target import Target, parse_target
from autotune.te.dag import ComputeDAG, compute, placeholder
from autotune.te.evaluate import evaluate
from autotune.te.expr import Axis, Expr, Load, f32, maximum, minimum
from tests.codegen.test_codegen_math import TARGETS
from tests.schedule.running import run_compiled

AVX2, AVX512 = parse_target("x86-64-v3"), parse_target("x86-64-v4")
VALUES = np.array([np.nan, -np.nan, np.inf, -np.inf, 0.0, -0.0, 1.0, -2.5, 3e38, 1e-30], "f4")
N = VALUES.size**2


def pairs() -> dict[str, np.ndarray]:
    a, b = np.meshgrid(VALUES, VALUES)
    return {"a": a.reshape(-1), "b": b.reshape(-1)}


def elementwise(f: Callable[[Load, Load], Expr], n: int = N) -> ComputeDAG:
    i = Axis("i", n)
    a, b = placeholder("a", (n,)), placeholder("b", (n,))
    return ComputeDAG((a, b, compute("y", (i,), f(a.tensor[i], b.tensor[i]))), ("y",))


def vectors(lanes: int) -> Steps:
    return (Split("y", "i", (lanes,)), Annotate("y", "i.1", "vectorize")) if lanes > 1 else ()


@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize("lanes", [1, 3, 4, 8, 16])
@pytest.mark.parametrize(
    ("f", "expected"),
    [
        (maximum, np.maximum),
        (minimum, np.minimum),
        (lambda a, b: maximum(a, f32(0)), lambda a, b: np.maximum(a, 0)),
        (lambda a, b: minimum(f32(6), maximum(f32(0), a)), lambda a, b: np.clip(a, 0, 6)),
        (lambda a, b: maximum(minimum(a, f32(6)), b), lambda a, b: np.maximum(np.minimum(a, 6), b)),
    ],
    ids=["max", "min", "relu", "clip", "both"],
)
def test_nan_of_either_operand_stays(
    f: Callable[[Load, Load], Expr], expected: Callable[..., np.ndarray], lanes: int, target: Target
) -> None:
    feeds = pairs()
    found = run_compiled(lower(elementwise(f), vectors(lanes)), feeds, target)["y"]
    np.testing.assert_array_equal(found, expected(*feeds.values()))


def test_every_meaning_of_a_program_agrees() -> None:
    dag = elementwise(lambda a, b: maximum(minimum(f32(2), a), b))
    feeds = pairs()
    scope: dict[str, Callable[..., np.ndarray]] = {}
    exec(print_python(lower(dag, ())), scope)
    text = scope["run"](feeds["a"], feeds["b"])
    np.testing.assert_array_equal(text, evaluate(dag, feeds)["y"])


def instructions(program: Program, target: Target) -> list[str]:
    """The arithmetic of vectors in a program: each instruction's name."""
    text = assembly(program, target)
    wide = "%zmm" if target.lanes == 16 else "%ymm"
    found = re.findall(rf"^\t(v\w+)\t.*{wide}", text, re.MULTILINE)
    return [name for name in found if not name.startswith(("vmov", "vbroadcast", "vzero"))]


@pytest.mark.parametrize("target", [AVX2, AVX512], ids=["avx2", "avx512"])
def test_activations_cost_one_instruction_per_bound(target: Target) -> None:
    """In whatever order the bounds are written: the constant is the operand that NaN replaces."""
    steps = vectors(target.lanes)
    for relu in (lambda a, b: maximum(a, f32(0)), lambda a, b: maximum(f32(0), a)):
        assert instructions(lower(elementwise(relu, 128), steps), target) == ["vmaxps"]
    clip = elementwise(lambda a, b: minimum(maximum(a, f32(0)), f32(6)), 128)
    assert instructions(lower(clip, steps), target) == ["vmaxps", "vminps"]
    either = instructions(lower(elementwise(maximum, 128), steps), target)
    assert len(either) <= 3
