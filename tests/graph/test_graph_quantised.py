"""Quantised models in every form that quantisers write: the numbers of the definition."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from math import prod
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from onnx import ModelProto, TensorProto, helper, numpy_helper, save

from autotune.errors import AutotuneError
from autotune.graph.network import Network, build_network
from autotune.loopir.lower import lower
from autotune.loopir.nodes import For
from autotune.loopir.visitor import statements
from autotune.search.cost.analysis import analyse
from autotune.search.defaults import default_candidate
from autotune.search.sketch import generate_sketches
from autotune.target import Target, host_target, parse_target, runs_here
from autotune.te.evaluate import evaluate
from autotune.te.exactness import MOST_TERMS
from tests.graph.onnx_models import Array, execute, onnxruntime_outputs
from tests.schedule.running import assert_computes, random_inputs

pytestmark = pytest.mark.target

quantization = pytest.importorskip("onnxruntime.quantization")
FORMATS, TYPES = quantization.QuantFormat, quantization.QuantType
MICROSOFT = helper.make_opsetid("com.microsoft", 1)
BYTES = {"uint8": TensorProto.UINT8, "int8": TensorProto.INT8, "float32": TensorProto.FLOAT}
RNG = np.random.default_rng(0)
TARGETS = [t for t in (host_target(), parse_target("haswell")) if runs_here(t)]


def normal(rng: np.random.Generator, *shape: int) -> Array:
    return rng.standard_normal(shape).astype(np.float32)


def small_network(rng: np.random.Generator) -> ModelProto:
    """Convolutions with padding, a stride and three channels, a residual sum, a dense layer."""
    constants = {
        "w1": 0.2 * normal(rng, 16, 3, 3, 3),
        "w2": 0.1 * normal(rng, 16, 16, 3, 3),
        "w3": normal(rng, 16, 10),
        "b": normal(rng, 16),
    }
    nodes = [
        helper.make_node("Conv", ["x", "w1", "b"], ["c1"], pads=[1] * 4, strides=[2, 2]),
        helper.make_node("Relu", ["c1"], ["r1"]),
        helper.make_node("Conv", ["r1", "w2", "b"], ["c2"], pads=[1] * 4),
        helper.make_node("Add", ["c2", "r1"], ["sum"]),
        helper.make_node("Relu", ["sum"], ["r2"]),
        helper.make_node("GlobalAveragePool", ["r2"], ["pooled"]),
        helper.make_node("Flatten", ["pooled"], ["flat"]),
        helper.make_node("Gemm", ["flat", "w3"], ["y"]),
    ]
    return model_of(
        nodes, {"x": normal(rng, 1, 3, 16, 16)}, {"y": "float32"}, constants, {"y": [1, 10]}
    )


def model_of(
    nodes: list[Any],
    inputs: Mapping[str, Array],
    outputs: Mapping[str, str],
    constants: Mapping[str, Array],
    shapes: Mapping[str, Any] | None = None,
) -> ModelProto:
    kinds = {n: helper.np_dtype_to_tensor_dtype(a.dtype) for n, a in inputs.items()}
    graph = helper.make_graph(
        nodes,
        "g",
        [helper.make_tensor_value_info(n, kinds[n], a.shape) for n, a in inputs.items()],
        [
            helper.make_tensor_value_info(n, _number(d), (shapes or {}).get(n))
            for n, d in outputs.items()
        ],
        [numpy_helper.from_array(a, n) for n, a in constants.items()],
    )
    imports = [helper.make_opsetid("", 21), MICROSOFT]
    return helper.make_model(graph, opset_imports=imports, ir_version=10)


def _number(dtype: str) -> int:
    return helper.np_dtype_to_tensor_dtype(np.dtype(dtype))


class Samples(quantization.CalibrationDataReader):  # type: ignore[misc]
    def __init__(self, rng: np.random.Generator) -> None:
        self.left = iter([{"x": normal(rng, 1, 3, 16, 16)} for _ in range(4)])

    def get_next(self) -> dict[str, Array] | None:
        return next(self.left, None)


def assert_same(proto: ModelProto, feeds: Mapping[str, Array], folder: Path) -> None:
    """The outputs are those of ONNX Runtime, integers and what is rounded to few steps exactly."""
    path = folder / "model.onnx"
    save(proto, path)
    found = execute(build_network(path), feeds)
    for name, want in onnxruntime_outputs(proto, feeds).items():
        assert found[name].dtype == want.dtype
        np.testing.assert_allclose(found[name], want, rtol=1e-5, atol=1e-6, err_msg=name)


STATIC = [
    (form, activations, weights, per_channel)
    for form in ("QDQ", "QOperator")
    for activations, weights in (("QUInt8", "QInt8"), ("QUInt8", "QUInt8"), ("QInt8", "QInt8"))
    for per_channel in (True, False)
]


@pytest.mark.parametrize(("form", "activations", "weights", "per_channel"), STATIC)
def test_what_the_quantiser_of_onnxruntime_writes(
    rng: np.random.Generator,
    form: str,
    activations: str,
    weights: str,
    per_channel: bool,
    tmp_path: Path,
) -> None:
    save(small_network(rng), tmp_path / "float.onnx")
    quantization.quantize_static(
        tmp_path / "float.onnx",
        tmp_path / "static.onnx",
        Samples(rng),
        quant_format=FORMATS[form],
        activation_type=TYPES[activations],
        weight_type=TYPES[weights],
        per_channel=per_channel,
    )
    network = build_network(tmp_path / "static.onnx")
    products = [c.label for c in network.calls if "Conv" in c.label or "MatMul" in c.label]
    assert len(products) >= 3  # some beside a product with ones
    assert "int8" in dtypes_of(network), "no product of integers"
    assert "int16" not in dtypes_of(network)
    import onnx

    assert_same(onnx.load(tmp_path / "static.onnx"), {"x": normal(rng, 1, 3, 16, 16)}, tmp_path)


@pytest.mark.parametrize("weights", ["QInt8", "QUInt8"])
def test_dynamic_quantisation(rng: np.random.Generator, weights: str, tmp_path: Path) -> None:
    import onnx

    save(small_network(rng), tmp_path / "float.onnx")
    quantization.quantize_dynamic(
        tmp_path / "float.onnx", tmp_path / "dynamic.onnx", weight_type=TYPES[weights]
    )
    assert_same(onnx.load(tmp_path / "dynamic.onnx"), {"x": normal(rng, 1, 3, 16, 16)}, tmp_path)


def integers(rng: np.random.Generator, dtype: str, *shape: int) -> Array:
    info = np.iinfo(dtype)
    return rng.integers(info.min, info.max + 1, shape).astype(dtype)


def positive(rng: np.random.Generator, *shape: int) -> Array:
    return (0.01 + rng.random(shape) / 50).astype(np.float32)


@pytest.mark.parametrize("dtype", ["uint8", "int8"])
@pytest.mark.parametrize("axis", [None, 0, 1, 2])
def test_quantising_along_every_axis(
    rng: np.random.Generator, dtype: str, axis: int | None, tmp_path: Path
) -> None:
    x = 2 * normal(rng, 4, 6, 5)
    n = () if axis is None else (x.shape[axis],)
    attrs = {} if axis is None else {"axis": axis}
    nodes = [
        helper.make_node("QuantizeLinear", ["x", "s", "z"], ["q"], **attrs),
        helper.make_node("DequantizeLinear", ["q", "s", "z"], ["y"], **attrs),
    ]
    constants = {"s": positive(rng, *n), "z": integers(rng, dtype, *n)}
    proto = model_of(nodes, {"x": x}, {"q": dtype, "y": "float32"}, constants)
    assert_same(proto, {"x": x}, tmp_path)


def test_quantising_ties_and_what_is_out_of_range(tmp_path: Path) -> None:
    x = np.array([-1e9, -3.5, -2.5, -0.5, 0.5, 1.5, 2.5, 127.5, 1e9, np.inf, -np.inf], "f")
    nodes = [helper.make_node("QuantizeLinear", ["x", "s", "z"], ["q"])]
    for dtype in ("uint8", "int8"):
        constants = {"s": np.float32(1), "z": np.zeros((), dtype)}
        assert_same(model_of(nodes, {"x": x}, {"q": dtype}, constants), {"x": x}, tmp_path)


def test_scales_of_blocks(rng: np.random.Generator, tmp_path: Path) -> None:
    x = normal(rng, 3, 10)
    weights = {
        "w": integers(rng, "int8", 10, 6),
        "s": positive(rng, 3, 6),
        "z": integers(rng, "int8", 3, 6),
    }
    nodes = [
        helper.make_node("DequantizeLinear", ["w", "s", "z"], ["real"], axis=0, block_size=4),
        helper.make_node("MatMul", ["x", "real"], ["y"]),
    ]
    proto = model_of(nodes, {"x": x}, {"y": "float32"}, weights)
    assert_same(proto, {"x": x}, tmp_path)


PRODUCTS = [
    (a, b, za, zb)
    for a in ("uint8", "int8")
    for b in ("uint8", "int8")
    for za in ("none", "known", "computed", "rows")
    for zb in ("none", "known", "columns")
]


@pytest.mark.parametrize(("a", "b", "za", "zb"), PRODUCTS)
def test_products_of_integers(
    rng: np.random.Generator, a: str, b: str, za: str, zb: str, tmp_path: Path
) -> None:
    inputs = {"a": integers(rng, a, 5, 12)}
    constants = {"b": integers(rng, b, 12, 7)}
    names = ["a", "b"]
    if za != "none":
        value = integers(rng, a, 5) if za == "rows" else integers(rng, a).reshape(())
        (constants if za == "known" else inputs)["za"] = value
        names.append("za")
    if zb != "none":
        names += [""] * (za == "none") + ["zb"]
        constants["zb"] = integers(rng, b, 7) if zb == "columns" else integers(rng, b).reshape(())
    nodes = [helper.make_node("MatMulInteger", names, ["y"])]
    proto = model_of(nodes, inputs, {"y": "int32"}, constants)
    path = tmp_path / "model.onnx"
    save(proto, path)
    zero_a = {**inputs, **constants}.get("za", np.zeros((), np.int64)).astype(np.int64)
    zero_b = constants.get("zb", np.zeros((), np.int64)).astype(np.int64)
    left = inputs["a"].astype(np.int64) - (zero_a[:, None] if zero_a.ndim else zero_a)
    want = left @ (constants["b"].astype(np.int64) - zero_b)
    network = build_network(path)
    assert "int16" not in dtypes_of(network), "weights less their zero points are bytes in two sums"
    found = execute(network, inputs)["y"]
    assert found.dtype == np.int32
    np.testing.assert_array_equal(found, want)


def dtypes_of(network: Network) -> set[str]:
    return {p.tensor.dtype for dag in network.tasks.values() for p in dag.placeholders}


@pytest.mark.parametrize("zero", ["known", "computed"])
@pytest.mark.parametrize("pads", [0, 1])
@pytest.mark.parametrize("weights", ["int8", "uint8"])
def test_convolutions_of_integers(
    rng: np.random.Generator, zero: str, pads: int, weights: str, tmp_path: Path
) -> None:
    inputs = {"x": integers(rng, "uint8", 1, 3, 6, 7)}
    constants = {"w": integers(rng, weights, 5, 3, 3, 3)}
    (constants if zero == "known" else inputs)["z"] = integers(rng, "uint8").reshape(())
    names = ["x", "w", "z"]
    if weights == "uint8":
        constants["wz"] = np.array(201, np.uint8)
        names.append("wz")
    nodes = [helper.make_node("ConvInteger", names, ["y"], pads=[pads] * 4)]
    proto = model_of(nodes, inputs, {"y": "int32"}, constants)
    assert_same(proto, inputs, tmp_path)
    assert "int16" not in dtypes_of(build_network(tmp_path / "model.onnx"))


def _microsoft(
    rng: np.random.Generator,
) -> Iterator[tuple[str, list[Any], dict[str, Array], dict[str, Array]]]:
    byte = {"a": integers(rng, "uint8", 1, 4, 6, 6), "b": integers(rng, "uint8", 1, 4, 6, 6)}
    one = {"s": np.float32(0.02), "z": np.uint8(120), "t": np.float32(0.03), "u": np.uint8(7)}
    both, single = ["a", "s", "z", "b", "t", "u", "t", "z"], ["a", "s", "z", "t", "u"]
    for op in ("QLinearAdd", "QLinearMul"):
        yield op, [_node(op, both)], byte, one
    for op, attrs in {
        "QLinearSigmoid": {},
        "QLinearLeakyRelu": {"alpha": 0.1},
        "QLinearGlobalAveragePool": {},
        "QLinearAveragePool": {"kernel_shape": [3, 3], "pads": [1] * 4},
    }.items():
        yield op, [_node(op, single, **attrs)], {"a": byte["a"]}, one
    parts = ["t", "u", "a", "s", "z", "b", "t", "u"]
    yield "QLinearConcat", [_node("QLinearConcat", parts, axis=1)], byte, one
    rows = {"x": normal(rng, 5, 12)}
    known = {"w": integers(rng, "int8", 12, 7), "s": np.float32(0.02), "bias": normal(rng, 7)}
    names = ["x", "w", "s", "", "bias"]
    yield "DynamicQuantizeMatMul", [_node("DynamicQuantizeMatMul", names)], rows, known


def _node(op: str, names: list[str], **attrs: Any) -> Any:
    return helper.make_node(op, names, ["y"], domain="com.microsoft", **attrs)


@pytest.mark.parametrize(
    ("op", "nodes", "inputs", "constants"), [pytest.param(*c, id=c[0]) for c in _microsoft(RNG)]
)
def test_operators_of_onnxruntime(
    op: str,
    nodes: list[Any],
    inputs: Mapping[str, Array],
    constants: Mapping[str, Array],
    tmp_path: Path,
) -> None:
    dtype = "float32" if op == "DynamicQuantizeMatMul" else "uint8"
    arrays = {n: np.asarray(a) for n, a in constants.items()}
    proto = model_of(nodes, inputs, {"y": dtype}, arrays)
    path = tmp_path / "model.onnx"
    save(proto, path)
    found = execute(build_network(path), inputs)["y"].astype(np.float64)
    want = onnxruntime_outputs(proto, inputs)["y"].astype(np.float64)
    assert np.abs(found - want).max() <= (1e-5 if dtype == "float32" else 1)


def test_scales_of_another_length_are_refused(rng: np.random.Generator, tmp_path: Path) -> None:
    nodes = [helper.make_node("QuantizeLinear", ["x", "s"], ["q"], axis=0)]
    proto = model_of(nodes, {"x": normal(rng, 3, 4)}, {"q": "uint8"}, {"s": positive(rng, 5)})
    save(proto, tmp_path / "model.onnx")
    with pytest.raises(AutotuneError, match="scales"):
        build_network(tmp_path / "model.onnx")


def test_scales_of_a_constant_that_do_not_fit_are_refused_alike(
    rng: np.random.Generator, tmp_path: Path
) -> None:
    """A constant is dequantised while the model is prepared, by the same rules."""
    nodes = [
        helper.make_node("DequantizeLinear", ["w", "s"], ["real"], axis=0),
        helper.make_node("Add", ["x", "real"], ["y"]),
    ]
    constants = {"w": integers(rng, "int8", 3, 4), "s": positive(rng, 5)}
    proto = model_of(nodes, {"x": normal(rng, 3, 4)}, {"y": "float32"}, constants)
    save(proto, tmp_path / "model.onnx")
    with pytest.raises(AutotuneError, match=r"'DequantizeLinear' \(node 'real'\) has .* scales"):
        build_network(tmp_path / "model.onnx")


def test_many_columns_are_no_long_sum(rng: np.random.Generator, tmp_path: Path) -> None:
    """What an int32 holds depends on the terms of a sum, not on how many sums there are."""
    inputs, constants = (
        {"a": integers(rng, "uint8", 1, 4)},
        {"b": integers(rng, "int8", 4, MOST_TERMS + 1)},
    )
    proto = model_of(
        [helper.make_node("MatMulInteger", ["a", "b"], ["y"])], inputs, {"y": "int32"}, constants
    )
    save(proto, tmp_path / "model.onnx")
    network = build_network(tmp_path / "model.onnx")
    (call,) = network.calls
    assert [a.dtype for a in call.constants.values()] == [np.int8]
    want = inputs["a"].astype(np.int64) @ constants["b"].astype(np.int64)
    np.testing.assert_array_equal(execute(network, inputs)["y"], want)


def _packed(q: Array, bits: int) -> Array:
    """Whole numbers along the last dimension as ONNX Runtime packs them, lowest bits first."""
    parts = q.reshape(*q.shape[:-1], -1, 8 // bits).astype(np.uint8)
    shifts = np.arange(0, 8, bits, dtype=np.uint8)
    return np.bitwise_or.reduce(parts << shifts, axis=-1)


@pytest.mark.parametrize("rows", [1, 5])
@pytest.mark.parametrize("zeros", [True, False])
@pytest.mark.parametrize("bits", [4, 8])
def test_weights_of_few_bits(
    rng: np.random.Generator, bits: int, zeros: bool, rows: int, tmp_path: Path
) -> None:
    n, k, block = 24, 96, 32
    q = rng.integers(0, 1 << bits, (n, k // block, block))
    constants = {"b": _packed(q, bits), "s": positive(rng, n, k // block).reshape(-1)}
    names = ["x", "b", "s"]
    if zeros:
        z = rng.integers(0, 1 << bits, (n, 4 if bits == 4 else 3))
        constants["z"] = _packed(z, bits).reshape(-1)
        names.append("z")
    attrs = {"K": k, "N": n, "bits": bits, "block_size": block}
    x = normal(rng, 1, rows, k)
    proto = model_of([_node("MatMulNBits", names, **attrs)], {"x": x}, {"y": "float32"}, constants)
    save(proto, tmp_path / "model.onnx")
    network = build_network(tmp_path / "model.onnx")
    found = execute(network, {"x": x})["y"]
    want = onnxruntime_outputs(proto, {"x": x})["y"]
    np.testing.assert_allclose(found, want, rtol=1e-4, atol=1e-4)
    weights = sum(a.nbytes for c in network.calls for a in c.constants.values() if a.ndim == 2)
    assert weights <= n * k * max(bits, 4) // 8 + 2 * 4 * n * k // block


@pytest.mark.parametrize("kind", ["uint8", "int8"])
@pytest.mark.parametrize(("group", "size"), [(16, 3), (8, 3), (4, 9), (16, 11), (16, 17)])
def test_depthwise_and_grouped_convolutions(
    rng: np.random.Generator, kind: str, group: int, size: int, tmp_path: Path
) -> None:
    shape = (16, 16 // group, size, size)
    constants = {
        "s": np.float32(0.04),
        "z": np.array(11, kind),
        "w": rng.integers(-127, 128, shape).astype(np.int8),
        "ws": positive(rng, 16) / size,
        "b": normal(rng, 16),
        "t": np.float32(0.3),
    }
    nodes = [
        helper.make_node("QuantizeLinear", ["x", "s", "z"], ["q"]),
        helper.make_node("DequantizeLinear", ["q", "s", "z"], ["d"]),
        helper.make_node("DequantizeLinear", ["w", "ws"], ["real"], axis=0),
        helper.make_node("Conv", ["d", "real", "b"], ["c"], group=group, pads=[size // 2] * 4),
        helper.make_node("QuantizeLinear", ["c", "t", "z"], ["e"]),
        helper.make_node("DequantizeLinear", ["e", "t", "z"], ["y"]),
    ]
    x = {"x": 2 * normal(rng, 1, 16, 18, 18)}
    proto = model_of(nodes, x, {"y": "float32"}, constants, {"y": [1, 16, 18, 18]})
    save(proto, tmp_path / "model.onnx")
    network = build_network(tmp_path / "model.onnx")
    found, want = execute(network, x)["y"], onnxruntime_outputs(proto, x)["y"]
    steps = np.abs(found - want) / 0.3
    assert steps.max() < 1.01
    assert (steps > 0.5).mean() < 1e-3
    label = "+".join(c.label for c in network.calls)
    in_bytes = group == 4
    assert ("Cast" in label) == (in_bytes or prod(shape[1:]) <= 258), (
        "integers are read as they are"
    )
    assert ("int8" in dtypes_of(network)) == in_bytes, "whole instructions add up four channels"


@pytest.mark.parametrize("target", TARGETS, ids=lambda t: str(t.cpu))
@pytest.mark.parametrize("zeros", [True, False])
@pytest.mark.parametrize("bits", [4, 8])
def test_weights_of_few_bits_in_registers(
    rng: np.random.Generator, bits: int, zeros: bool, target: Target, tmp_path: Path
) -> None:
    rng, n, k, block = np.random.default_rng(0), 24, 32, 16
    constants = {"b": _packed(rng.integers(0, 1 << bits, (n, k // block, block)), bits)}
    constants["s"] = positive(rng, n, k // block).reshape(-1)
    names = ["x", "b", "s"]
    if zeros:
        constants["z"] = rng.integers(0, 256, (n, k // block * bits // 8), np.uint8).reshape(-1)
        names.append("z")
    attrs = {"K": k, "N": n, "bits": bits, "block_size": block}
    x = {"x": normal(rng, 3, k)}
    proto = model_of([_node("MatMulNBits", names, **attrs)], x, {"y": "float32"}, constants)
    save(proto, tmp_path / "model.onnx")
    network = build_network(tmp_path / "model.onnx")
    (call,) = [c for c in network.calls if "WeightOnly" in c.label]
    dag = network.tasks[call.task]
    inputs = random_inputs(dag) | dict(call.constants)
    for sketch in generate_sketches(dag, target)[::7]:
        rows = sketch.sample(64, rng)
        rows = rows[analyse(dag, sketch, rows, target).valid][:1]
        for row in rows:
            program = lower(dag, sketch.bind(row))
            assert_computes(program, inputs, evaluate(dag, inputs), target, (2,))


def test_rows_share_what_is_looked_up(rng: np.random.Generator, tmp_path: Path) -> None:
    n, k, block, rows = 64, 64, 32, 8
    constants = {"b": _packed(rng.integers(0, 16, (n, k // block, block)), 4)}
    constants["s"] = positive(rng, n, k // block).reshape(-1)
    attrs = {"K": k, "N": n, "bits": 4, "block_size": block}
    nodes = [_node("MatMulNBits", ["x", "b", "s"], **attrs)]
    proto = model_of(nodes, {"x": normal(rng, rows, k)}, {"y": "float32"}, constants)
    save(proto, tmp_path / "model.onnx")
    (dag,) = build_network(tmp_path / "model.onnx").tasks.values()
    program = lower(dag, default_candidate(dag, host_target(), 1).steps)
    for loop in (x for x in statements(program.kernels[0].body) if isinstance(x, For)):
        if loop.kind == "unroll" and ".n" in loop.var:
            assert loop.extent > 1
            return
    raise AssertionError("each row looks its weights up again")


@pytest.mark.parametrize("dtype", [TensorProto.INT4, TensorProto.UINT4, TensorProto.INT8])
def test_dequantised_weights_of_floats_stay_small(
    rng: np.random.Generator, dtype: int, tmp_path: Path
) -> None:
    low, high = {TensorProto.INT4: (-8, 8), TensorProto.UINT4: (0, 16)}.get(dtype, (-128, 128))
    q = rng.integers(low, high, (64, 24))
    x, scale = normal(rng, 3, 64), positive(rng, 4, 24)
    weights = helper.make_tensor("w", dtype, q.shape, q.reshape(-1).tolist())
    nodes = [
        helper.make_node("DequantizeLinear", ["w", "s"], ["real"], axis=0, block_size=16),
        helper.make_node("MatMul", ["x", "real"], ["y"]),
    ]
    proto = model_of(nodes, {"x": x}, {"y": "float32"}, {"s": scale})
    proto.graph.initializer.append(weights)
    save(proto, tmp_path / "model.onnx")
    network = build_network(tmp_path / "model.onnx")
    found = execute(network, {"x": x})["y"]
    want = x.astype(np.float64) @ (q * np.repeat(scale, 16, axis=0).astype(np.float64))
    np.testing.assert_allclose(found, want, rtol=1e-4, atol=1e-5)
    (call,) = network.calls
    stored = [a for a in call.constants.values() if a.dtype.kind in "iu"]
    assert sum(a.nbytes for a in stored) == q.size // (1 if dtype == TensorProto.INT8 else 2)
