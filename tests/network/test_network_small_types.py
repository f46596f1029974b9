"""Inputs and outputs of float8, float4 and integers of 4 and 2 bits: machine code and ml_dtypes."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import pytest
from numpy.typing import NDArray
from onnx import ModelProto, TensorProto, helper, numpy_helper

from autotune.dtypes import DTYPES, SMALL_TYPES, SmallType
from autotune.errors import UsageError
from autotune.network.runtime.runtime import Model
from tests.graph.onnx_models import node
from tests.network.test_network_integers import compiled

Array = NDArray[Any]
KINDS = pytest.mark.parametrize("kind", SMALL_TYPES.values(), ids=lambda k: k.name)
HALVES = np.arange(2**16, dtype=np.uint16).view(np.float16).astype(np.float32)
FINITE = HALVES[np.isfinite(HALVES)]
"""All numbers of half precision: every value of a small type, and everything halfway between."""


def every_value(kind: SmallType) -> Array:
    if kind.is_float:
        codes = np.arange(16 if "float4" in kind.name else 256, dtype=np.uint8)
        return codes.view(kind.numpy)
    return np.arange(int(kind.low), int(kind.high) + 1).astype(kind.numpy)


def small_model(
    nodes: list[Any],
    inputs: dict[str, Array],
    outputs: dict[str, Any],
    constants: dict[str, Array] | None = None,
) -> ModelProto:
    def number(dtype: Any) -> int:
        known = SMALL_TYPES.get(np.dtype(dtype).name)
        return known.onnx if known else helper.np_dtype_to_tensor_dtype(np.dtype(dtype))

    graph = helper.make_graph(
        nodes,
        "small",
        [helper.make_tensor_value_info(n, number(a.dtype), a.shape) for n, a in inputs.items()],
        [helper.make_tensor_value_info(n, number(d), None) for n, d in outputs.items()],
        [numpy_helper.from_array(a, n) for n, a in (constants or {}).items()],
    )
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 25)], ir_version=11)


def casting(kind: SmallType, folder: Path) -> tuple[Model, dict[str, Array]]:
    nodes = [
        node("Cast", "x", "y", to=kind.onnx),
        node("Cast", "q", "z", to=TensorProto.FLOAT),
    ]
    feeds = {"x": FINITE, "q": every_value(kind)}
    return compiled(small_model(nodes, feeds, {"y": kind.numpy, "z": "float32"}), folder), feeds


@KINDS
def test_casts_are_those_of_ml_dtypes(kind: SmallType, tmp_path: Path) -> None:
    model, feeds = casting(kind, tmp_path)
    found = model.run(feeds)
    if kind.is_float:
        wanted = np.clip(FINITE, kind.low, kind.high).astype(kind.numpy)
    else:
        wanted = FINITE.astype(np.int32).astype(kind.numpy)
    assert found["y"].dtype == kind.numpy
    np.testing.assert_array_equal(found["y"].astype(np.float32), wanted.astype(np.float32))
    np.testing.assert_array_equal(found["z"], feeds["q"].astype(np.float32))


@KINDS
def test_quantising_and_dequantising(kind: SmallType, tmp_path: Path) -> None:
    """Scales of a power of two: quotients are exact, also those halfway between two steps."""
    nodes = [
        node("QuantizeLinear", "x s zero", "y", axis=1),
        node("DequantizeLinear", "q s zero", "z", axis=1),
    ]
    scale = np.array([0.25, 0.5, 2.0], np.float32)
    x = (np.arange(96, dtype=np.float32).reshape(32, 3) - 48) / 8
    q = np.resize(every_value(kind), (5, 3))
    zero = (np.zeros(3) if kind.is_float else np.full(3, kind.high // 2)).astype(kind.numpy)
    proto = small_model(
        nodes, {"x": x, "q": q}, {"y": kind.numpy, "z": "float32"}, {"s": scale, "zero": zero}
    )
    found = compiled(proto, tmp_path).run({"x": x, "q": q})
    shift = zero.astype(np.float32)
    steps = x / scale if kind.is_float else np.rint(x / scale) + shift
    wanted = np.clip(steps, kind.low, kind.high).astype(kind.numpy)
    np.testing.assert_array_equal(found["y"].astype(np.float32), wanted.astype(np.float32))
    np.testing.assert_array_equal(found["z"], (q.astype(np.float32) - shift) * scale)


def test_an_array_of_another_type_is_refused_with_what_converts_it(tmp_path: Path) -> None:
    model, feeds = casting(SMALL_TYPES["int4"], tmp_path)
    with pytest.raises(UsageError, match="expected int4") as caught:
        model.run({**feeds, "q": feeds["q"].astype(np.int8)})
    assert "ml_dtypes.int4" in caught.value.hint


@pytest.mark.parametrize("name", sorted(SMALL_TYPES))
def test_limits_of_small_types_are_those_of_numpy(name: str) -> None:
    known = SMALL_TYPES[name]
    if not known.is_float:
        found = ml_dtypes.iinfo(known.numpy)
        assert (found.min, found.max) == (known.low, known.high)
        return
    info = ml_dtypes.finfo(known.numpy)
    assert (float(info.max), float(info.smallest_normal)) == (known.high, known.smallest)
    assert info.nmant == known.digits
    with np.errstate(all="ignore"):
        special = [float(np.array(x).astype(known.numpy)) for x in (np.inf, np.nan)]
    assert str(special) == str([known.beyond, known.of_nan])


def test_limits_of_bfloat16_are_those_of_numpy() -> None:
    known, info = DTYPES["bfloat16"], ml_dtypes.finfo(ml_dtypes.bfloat16)
    assert (float(info.max), float(info.eps), info.bits) == (known.high, known.eps, known.bits)
