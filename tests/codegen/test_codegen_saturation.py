"""Quantising in few instructions gives the numbers of the definition, whatever the type, the zero
point and the width of vectors."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from autotune import te
from autotune.codegen.compile import assembly
from autotune.loopir.lower import lower
from autotune.schedule.steps import Annotate, Split, Steps
from autotune.target import Target, host_target, parse_target
from autotune.te.evaluate import evaluate
from tests.schedule.running import run_compiled

pytestmark = pytest.mark.target

Array = NDArray[Any]
HASWELL, HOST = parse_target("haswell"), host_target()
TARGETS = [pytest.param(HASWELL, id="avx2"), pytest.param(HOST, id="host")]
TYPES = ("uint8", "int8", "uint16", "int16")
N, CHANNELS = 48, 16
OUTPUTS = ("quantised", "again", "real", "padded")


def edges(dtype: str, zero: Array) -> Array:
    """Rows of numbers around the bounds, ties, and what is not finite, for each channel."""
    info = np.iinfo(dtype)
    near = np.array([-1, -0.5, -0.25, 0, 0.25, 0.5, 1], np.float32)
    far = np.array([np.inf, -np.inf, 3e38, -3e38, 2.0**31, -(2.0**31), 2.0**24 + 2], np.float32)
    values = [info.min + near, info.max + near, near, 1.0 + near, 2.0 + near]
    rows = [np.add.outer(np.concatenate(values).astype(np.float32), -zero.astype(np.float32))]
    rows += [np.repeat(far[:, None], CHANNELS, 1)]
    found: Array = np.concatenate(rows)
    return found[np.arange(N) % len(found)].astype(np.float32)


def zeros_of(dtype: str, form: str) -> Array:
    """Zero points: none, one for all channels or one for each, the bounds of the type with them."""
    info = np.iinfo(dtype)
    if form == "per channel":
        spread = np.linspace(info.min, info.max, CHANNELS)
        return spread.astype(dtype)
    return np.full(CHANNELS, {"none": 0, "one": info.max // 2 + 4}[form], dtype)


def outputs_of(dtype: str, form: str) -> list[te.Tensor]:
    """What is quantised; stored by a stage of its own; dequantised at once; and zero elsewhere."""
    x = te.placeholder((N, CHANNELS), "x")
    z = te.placeholder((CHANNELS,) if form == "per channel" else (1,), "z", dtype)

    def zero(c: Any) -> Any:
        return z[c] if form == "per channel" else z[0]

    def quantised(i: Any, c: Any) -> Any:
        steps = te.round(x[i, c])
        shift = None if form == "none" else zero(c).astype("float32")
        return te.saturate(steps if shift is None else steps + shift, dtype)

    def real(i: Any, c: Any) -> Any:
        q = quantised(i, c)
        if form == "none":
            return q.astype("float32")
        return (q.astype("int32") - zero(c).astype("int32")).astype("float32")

    forms: dict[str, Callable[..., Any]] = {
        "quantised": quantised,
        "again": lambda i, c: quantised(i, c).astype("float32") * 2.0,
        "real": real,
        "padded": lambda i, c: te.where((i > 2) & (c < 13), quantised(i, c), 0),
    }
    return [te.compute((N, CHANNELS), forms[name], name) for name in OUTPUTS]


def in_vectors(lanes: int) -> Steps:
    found: Steps = ()
    for name in OUTPUTS if lanes > 1 else ():
        found += (Split(name, "c", (lanes,)), Annotate(name, "c.1", "vectorize"))
    return found


def expected_of(x: Array, z: Array) -> dict[str, Array]:
    """The definition in float64; NaN is the lower bound."""
    info = np.iinfo(z.dtype)
    steps = np.clip(np.rint(x.astype(np.float64)) + z, info.min, info.max)
    q = np.where(np.isnan(x), info.min, steps)
    padded = np.where((np.arange(N)[:, None] > 2) & (np.arange(CHANNELS) < 13), q, 0)
    real = {"again": 2 * q, "real": q - z.astype(np.float64)}
    found = {n: v.astype(np.float32) for n, v in real.items()}
    return found | {"quantised": q.astype(z.dtype), "padded": padded.astype(z.dtype)}


@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize("form", ["none", "one", "per channel"])
@pytest.mark.parametrize("dtype", TYPES)
def test_quantised_numbers_are_those_of_the_definition(
    dtype: str, form: str, target: Target
) -> None:
    z = zeros_of(dtype, form)
    x = edges(dtype, z)
    dag = te.dag_of(outputs_of(dtype, form))
    feeds = {"x": x, "z": z if form == "per channel" else z[:1]}
    if form == "none":
        del feeds["z"]
    expected = expected_of(x, z)
    for name, found in evaluate(dag, feeds).items():
        np.testing.assert_array_equal(found, expected[name], err_msg=name)
    x[::3, ::2] = np.nan
    expected = expected_of(x, z)
    for lanes in (1, target.lanes):
        for name, found in run_compiled(lower(dag, in_vectors(lanes)), feeds, target).items():
            np.testing.assert_array_equal(found, expected[name], err_msg=f"{name}, {lanes} lanes")
            assert not np.signbit(found[found == 0]).any()  # as integers have no negative zero


@pytest.mark.parametrize("target", TARGETS)
def test_rounding_and_conversion_are_one_instruction(target: Target) -> None:
    x, z = te.placeholder((64,), "x"), te.placeholder((1,), "z", "uint8")

    def twice(i: Any) -> Any:
        shift = z[0].astype("float32")
        q = te.saturate(te.round(x[i]) + shift, "uint8")
        real = (q.astype("int32") - z[0].astype("int32")).astype("float32")
        return te.saturate(te.round(real * 0.3) + shift, "uint8")

    y = te.compute((64,), twice, "y")
    steps = (Split("y", "i", (target.lanes,)), Annotate("y", "i.1", "vectorize"))
    text = assembly(lower(te.dag_of([y]), steps), target)
    register = "zmm" if target.lanes == 16 else "ymm"
    used = [
        m[0] for m in re.findall(rf"^\t(v(?:cvt|round|rndscale)\w+)\t(.*{register})", text, re.M)
    ]
    assert sorted(used) == ["vcvtdq2ps", "vcvtps2dq", "vcvtps2dq"]
