"""Operators on integers of every width and on float64 are those of the standard, for operands that
are computed as for constants, also where a processor would trap."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray
from onnx import NodeProto, TensorProto, helper

from autotune.errors import UnsupportedOperator
from autotune.graph.network import build_network
from tests.graph.onnx_models import execute, model, node, reference_outputs, save

Array = NDArray[Any]
INTEGERS = ("int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "uint64")


def outputs(
    op: NodeProto | list[NodeProto], inputs: dict[str, Array], to: str, folder: Path, opset: int
) -> tuple[Array, Array]:
    """What the network computes and what the reference implementation does."""
    types = {n: str(a.dtype) for n, a in inputs.items()} | {"y": to}
    proto = model(op, {n: a.shape for n, a in inputs.items()}, opset=opset, types=types)
    proto.ir_version = 10
    found = execute(build_network(save(proto, folder)), inputs)["y"]
    with np.errstate(all="ignore"):
        return found, reference_outputs(proto, inputs)["y"]


def whole(dtype: str, seed: int, bound: int = 40) -> Array:
    low = 0 if dtype.startswith("u") else -bound
    return np.random.default_rng(seed).integers(low, bound, (5, 7)).astype(dtype)


@pytest.mark.parametrize("dtype", INTEGERS)
@pytest.mark.parametrize(
    "op",
    [
        node("Div", "a b"),
        node("Mod", "a b"),
        node("Mod", "a b", fmod=1),
        node("Pow", "a c"),
        node("BitShift", "a b", direction="LEFT"),
        node("BitShift", "a b", direction="RIGHT"),
        node("BitwiseAnd", "a b"),
        node("BitwiseOr", "a b"),
        node("BitwiseXor", "a b"),
        node("ReduceMean", "a"),
        node("ReduceL1", "a"),
        node("ReduceSumSquare", "a"),
    ],
    ids=lambda op: op.op_type,
)
def test_integers(op: NodeProto, dtype: str, tmp_path: Path) -> None:
    is_reduction = op.op_type.startswith("Reduce")
    if is_reduction and dtype not in ("int32", "int64", "uint32", "uint64"):
        pytest.skip("the standard has it not")
    if op.op_type == "Pow" and dtype not in ("int32", "int64"):
        pytest.skip("the standard has it not")
    b = whole(dtype, 2, 9)
    b[b == 0] = 3 if op.op_type in ("Div", "Mod") else 0
    inputs = {"a": whole(dtype, 1), "b": b, "c": np.abs(b)}
    inputs = {n: a for n, a in inputs.items() if n in op.input}
    found, expected = outputs(op, inputs, dtype, tmp_path, 28 if op.op_type == "BitShift" else 22)
    if op.op_type == "ReduceMean":  # rounded towards zero, as in ONNX Runtime
        expected = np.trunc(inputs["a"].mean(keepdims=True)).astype(dtype)
    np.testing.assert_array_equal(found, expected)


@pytest.mark.parametrize("op", ["Div", "Mod"])
def test_integers_by_zero_are_zero(op: str, tmp_path: Path) -> None:
    a, b = np.array([7, -7, -(2**31), 0], np.int32), np.array([0, 0, -1, 5], np.int32)
    found, _ = outputs(node(op, "a b"), {"a": a, "b": b}, "int32", tmp_path, 22)
    assert found.tolist() == ([0, 0, -(2**31), 0] if op == "Div" else [0, 0, 0, 0])


@pytest.mark.parametrize(
    "types", ["int32 float32", "int64 float32", "float32 int64", "int64 int32"]
)
def test_powers_of_two_types(types: str, tmp_path: Path) -> None:
    base, exponent = types.split()
    a, b = np.array([1, 2, 3, 5, 7], base), np.array([0, 3, 5, 2, 4], exponent)
    found, expected = outputs(node("Pow", "a b"), {"a": a, "b": b}, base, tmp_path, 22)
    np.testing.assert_array_equal(found, expected)


@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_remainders_of_floats_with_the_sign_of_the_divisor(dtype: str, tmp_path: Path) -> None:
    edge = np.array([0.0, -0.0, 1.5, -1.5, 6.0, -6.0, 7.25, np.inf, -np.inf, np.nan])
    a, b = (x.astype(dtype) for x in np.meshgrid(edge, edge))
    found, expected = outputs(node("Mod", "a b"), {"a": a, "b": b}, dtype, tmp_path, 28)
    np.testing.assert_array_equal(found, expected)
    is_number = ~np.isnan(expected)
    np.testing.assert_array_equal(np.signbit(found)[is_number], np.signbit(expected)[is_number])


@pytest.mark.parametrize(
    ("source", "goal"),
    [("float32", "int32"), ("int64", "float64"), ("int8", "uint8"), ("bool", "uint8")],
)
def test_bits_as_another_type(source: str, goal: str, tmp_path: Path) -> None:
    values = np.array([0, 1, 1, 0, 1]) if source == "bool" else np.array([0, 1, -2, 77, -128])
    kind = helper.np_dtype_to_tensor_dtype(np.dtype(goal))
    op = [node("Identity", "x", "t"), node("BitCast", "t", to=kind)]
    found, expected = outputs(op, {"x": values.astype(source)}, goal, tmp_path, 26)
    np.testing.assert_array_equal(found.view(np.uint8), expected.view(np.uint8))


def test_bits_of_another_number_are_refused(tmp_path: Path) -> None:
    op = node("BitCast", "x", to=TensorProto.INT16)
    proto = model(op, {"x": (3,)}, opset=26, types={"y": "int16"})
    with pytest.raises(UnsupportedOperator, match=r"'BitCast'.*reads float32 as int16"):
        build_network(save(proto, tmp_path))


IN_FLOAT32 = ("Erf", "Gelu", "GroupNormalization", "LRN", "Resize")
"""What the reference implementation computes in float32."""
DOUBLES = [
    *(node(op, "x") for op in ("Exp", "Erf", "Tanh", "Sigmoid", "Gelu", "Softplus", "Mish")),
    *(node(op, "x") for op in ("Elu", "Celu", "Selu", "Softsign", "HardSwish", "Sin", "Relu")),
    node("Gelu", "x", approximate="tanh"),
    node("Pow", "p x"),
    node("Mean", "x p"),
    *(node(op, "x") for op in ("Softmax", "LogSoftmax", "ReduceMean", "ReduceLogSumExp")),
    *(node(op, "x", axis=1, p=p) for op in ("LpNormalization",) for p in (2,)),
    node("LayerNormalization", "x s s"),
    node("InstanceNormalization", "x c c"),
    node("GroupNormalization", "x c c", num_groups=2),
    node("LRN", "x", size=3),
    node("BatchNormalization", "x c c c c"),
    node("AveragePool", "x", kernel_shape=[2, 3], strides=[1, 2]),
    node("LpPool", "x", kernel_shape=[2, 3], p=3),
    node("GlobalAveragePool", "x"),
    node("Einsum", "x p", equation="abcd,abcd->ab"),
    node("Gemm", "s2 s2 s2", alpha=0.3, beta=0.7),
    node("ConvTranspose", "x w", strides=[2, 2]),
    node("Resize", "x _ f", mode="linear"),
]


@pytest.mark.parametrize("op", DOUBLES, ids=lambda op: op.op_type)
def test_doubles_are_computed_in_float64(op: NodeProto, tmp_path: Path) -> None:
    rng = np.random.default_rng(1)
    x, p = rng.standard_normal((2, 4, 5, 6)), rng.random((2, 4, 5, 6)) + 0.5
    constants = {"s": p[0, 0, 0], "c": p[0, :, 0, 0], "s2": x[0, 0, :, :5]}
    constants["w"] = x[0, :, :3].reshape(4, 3, 3, 2)
    constants["f"] = np.array([1, 1, 1.7, 1], np.float32)
    given = {n: a for n, a in (("x", x), ("p", p)) if n in op.input}
    fixed = {n: a for n, a in constants.items() if n in op.input}
    if not given:
        given = {"s2": fixed.pop("s2")}
    types = dict.fromkeys([*given, "y"], "float64")
    proto = model(op, {n: a.shape for n, a in given.items()}, fixed, opset=22, types=types)
    proto.ir_version = 10
    found = execute(build_network(save(proto, tmp_path)), given)["y"]
    assert found.dtype == np.float64
    expected = reference_outputs(proto, given)["y"]
    is_single = op.op_type in IN_FLOAT32
    np.testing.assert_allclose(found, expected, rtol=1e-3 if is_single else 1e-11, atol=1e-12)
    if op.op_type == "Erf":
        np.testing.assert_allclose(found, np.vectorize(math.erf)(x), rtol=1e-14)


def test_a_conversion_of_a_conversion_is_computed_where_both_are_read(tmp_path: Path) -> None:
    """Positions of tokens that are no padding, as RoBERTa counts them."""
    dtypes = {name: getattr(TensorProto, name.upper()) for name in ("bool", "int32", "int64")}
    nodes = [
        node("Cast", "ids", "is_token", to=dtypes["bool"]),
        node("Cast", "is_token", "narrow", to=dtypes["int32"]),
        node("Cast", "narrow", "wide", to=dtypes["int64"]),
        node("CumSum", "wide axis", "count"),
        node("Cast", "count", "narrow_count", to=dtypes["int32"]),
        node("Mul", "narrow_count narrow", "y"),
    ]
    constants = {"axis": np.array(1)}
    types = {"ids": "int64", "y": "int32"}
    proto = model(nodes, {"ids": (2, 9)}, constants, opset=18, types=types)
    inputs = {"ids": np.array([[0, 4, 3, 0, 7, 7, 0, 1, 2], [5, 0, 0, 1, 0, 0, 0, 0, 9]])}
    found = execute(build_network(save(proto, tmp_path)), inputs)["y"]
    np.testing.assert_array_equal(found, reference_outputs(proto, inputs)["y"])
