"""Mixtures of experts: the numbers of ONNX Runtime, and only matrices that are chosen are read."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

from autotune.errors import AutotuneError
from autotune.graph.network import Network, build_network
from tests.graph.onnx_models import Array, execute, onnxruntime_outputs

WIDTH, INNER, EXPERTS = 32, 64, 6
GPT_OSS = {"activation_alpha": 1.702, "activation_beta": 1.0, "swiglu_limit": 0.7}
SWIGLU: dict[str, Any] = {"activation_type": "swiglu", "swiglu_fusion": 1}


def normal(rng: np.random.Generator, *shape: int) -> Array:
    return (rng.standard_normal(shape) / np.sqrt(shape[-1])).astype(np.float32)


def saved(
    folder: Path, node: Any, inputs: dict[str, list[int]], constants: dict[str, Array]
) -> Any:
    ports = [
        helper.make_tensor_value_info(n, TensorProto.INT64 if n == "e" else TensorProto.FLOAT, s)
        for n, s in inputs.items()
    ]
    outputs = [helper.make_tensor_value_info("y", TensorProto.FLOAT, None)]
    known = [numpy_helper.from_array(a, n) for n, a in constants.items()]
    graph = helper.make_graph(list(node), "g", ports, outputs, known)
    imports = [helper.make_opsetid("", 20), helper.make_opsetid("com.microsoft", 1)]
    made = helper.make_model(graph, opset_imports=imports, ir_version=9)
    onnx.save(made, folder / "m.onnx")
    return made


def quantised(w: Array, bits: int, block: int) -> tuple[Array, Array]:
    """Whole numbers of `bits` around the middle, packed, and the scale of each block."""
    parts = w.reshape(*w.shape[:2], -1, block or w.shape[2])
    scale = np.abs(parts).max(-1) / (2 ** (bits - 1) - 1)
    q = np.round(parts / scale[..., None]) + 2 ** (bits - 1)
    whole = q.astype(np.uint8).reshape(w.shape)
    shifted = [whole[..., n :: 8 // bits] << n * bits for n in range(8 // bits)]
    packed: Array = np.bitwise_or.reduce(shifted)
    return packed, (scale if block else scale[..., 0]).astype(np.float32)


def experts(
    rng: np.random.Generator, op: str, bits: int, block: int, bias: bool, **attrs: Any
) -> tuple[list[onnx.NodeProto], dict[str, Array]]:
    """A node of ONNX Runtime's domain, and its constants."""
    fused = 2 if attrs.get("swiglu_fusion") else 1
    constants: dict[str, Array] = {}
    names = ["x", "router"]
    for n, shape in enumerate(((EXPERTS, fused * INNER, WIDTH), (EXPERTS, WIDTH, INNER))):
        weight = normal(rng, *shape)
        if op == "MoE":
            constants[f"w{n}"] = weight
        else:
            constants[f"w{n}"], constants[f"s{n}"] = quantised(weight, bits, block)
            attrs["expert_weight_bits"] = bits
        constants[f"b{n}"] = normal(rng, *shape[:2])
        names += [f"w{n}", *([f"s{n}"] if op == "QMoE" else []), f"b{n}" if bias else ""]
    if op == "QMoE" and block:
        attrs["block_size"] = block
    node = helper.make_node(op, names, ["y"], domain="com.microsoft", **attrs)
    return [node], {n: a for n, a in constants.items() if n in names}


def largest_value(network: Network) -> int:
    """Elements of the largest tensor that a kernel makes."""
    return max(
        int(np.prod(network.values[name].shape))
        for call in network.calls
        for name in call.outputs.values()
    )


@pytest.mark.parametrize("n_rows", [1, 5])
@pytest.mark.parametrize(
    ("op", "bits", "block", "bias", "attrs"),
    [
        ("MoE", 0, 0, False, {"activation_type": "silu", "normalize_routing_weights": 1}),
        ("MoE", 0, 0, True, {"activation_type": "gelu", "k": 3}),
        ("MoE", 0, 0, True, SWIGLU | GPT_OSS),
        ("QMoE", 4, 0, True, SWIGLU | {"normalize_routing_weights": 1}),
        ("QMoE", 8, 0, False, {"activation_type": "relu", "k": 1}),
        ("QMoE", 4, 32, False, SWIGLU | GPT_OSS),
        ("QMoE", 4, 16, True, {"activation_type": "silu"}),
    ],
)
def test_experts_have_the_numbers_of_onnxruntime(
    op: str,
    bits: int,
    block: int,
    bias: bool,
    attrs: dict[str, Any],
    n_rows: int,
    tmp_path: Path,
    rng: np.random.Generator,
) -> None:
    node, constants = experts(rng, op, bits, block, bias, **{"k": 2} | attrs)
    shapes = {"x": [1, n_rows, WIDTH], "router": [n_rows, EXPERTS]}
    made = saved(tmp_path, node, shapes, constants)
    feeds = {n: normal(rng, *shape) * 6 for n, shape in shapes.items()}
    network = build_network(tmp_path / "m.onnx")
    wanted = onnxruntime_outputs(made, feeds)["y"]
    found = execute(network, feeds)["y"]
    np.testing.assert_allclose(found, wanted, rtol=0, atol=2e-6 * np.abs(wanted).max())
    assert largest_value(network) < INNER * WIDTH


@pytest.mark.parametrize("side", ["left", "right", "left, turned", "right, turned"])
def test_matrices_that_are_gathered_are_read_where_they_are(
    side: str, tmp_path: Path, rng: np.random.Generator
) -> None:
    """Experts as PyTorch's exporters write them: a matrix for each row, from the left or right."""
    is_left, is_turned = side.startswith("left"), side.endswith("turned")
    n_rows, shape = 4, (WIDTH, INNER)
    stored = shape if is_left == is_turned else shape[::-1]
    nodes = [helper.make_node("Gather", ["w", "e"], ["g"], axis=0)]
    if is_turned:
        nodes.append(helper.make_node("Transpose", ["g"], ["t"], perm=[0, 2, 1]))
    matrices = nodes[-1].output[0]
    operands = (matrices, "x") if is_left else ("x", matrices)
    nodes.append(helper.make_node("MatMul", operands, ["y"]))
    n_terms = stored[-1] if is_left != is_turned else stored[0]
    x = [n_rows, n_terms, 1] if is_left else [n_rows, 1, n_terms]
    made = saved(tmp_path, nodes, {"x": x, "e": [n_rows]}, {"w": normal(rng, EXPERTS, *stored)})
    feeds = {"x": normal(rng, *x), "e": np.array([5, -1, 0, 5])}
    network = build_network(tmp_path / "m.onnx")
    wanted = onnxruntime_outputs(made, feeds)["y"]
    np.testing.assert_allclose(execute(network, feeds)["y"], wanted, atol=1e-5)
    assert largest_value(network) <= n_rows * max(shape)


@pytest.mark.parametrize(
    ("attrs", "said"),
    [
        ({"use_sparse_mixer": 1}, "a sparse mixer"),
        ({"activation_type": "relu2"}, "activation relu2"),
        ({"k": 9}, "k 9"),
    ],
)
def test_forms_that_are_not_compiled_are_told(
    attrs: dict[str, Any], said: str, tmp_path: Path, rng: np.random.Generator
) -> None:
    node, constants = experts(rng, "MoE", 0, 0, False, **attrs)
    saved(tmp_path, node, {"x": [3, WIDTH], "router": [3, EXPERTS]}, constants)
    with pytest.raises(AutotuneError, match=said):
        build_network(tmp_path / "m.onnx")


def test_products_of_sorted_rows_are_of_a_matrix_for_each(
    tmp_path: Path, rng: np.random.Generator
) -> None:
    """Experts as the exporter of transformers writes them: a Range of rows for each."""
    n_rows = 7
    zero = numpy_helper.from_array(np.array(0), "zero")
    ones = [numpy_helper.from_array(np.array(1), "one1")]
    ends = [f"e{n}" for n in range(EXPERTS)]
    nodes = [helper.make_node("Split", ["e"], ends, axis=0, num_outputs=EXPERTS)]
    first, parts = "zero", []
    constants: dict[str, Array] = {}
    for n, end in enumerate(ends):
        constants[f"w{n}"], constants[f"b{n}"] = normal(rng, WIDTH, INNER), normal(rng, INNER)
        nodes += [
            helper.make_node("Squeeze", [end], [f"end{n}"]),
            helper.make_node("Range", [first, f"end{n}", "one1"], [f"rows{n}"]),
            helper.make_node("Gather", ["x", f"rows{n}"], [f"x{n}"]),
            helper.make_node("MatMul", [f"x{n}", f"w{n}"], [f"p{n}"]),
            helper.make_node("Add", [f"p{n}", f"b{n}"], [f"q{n}"]),
        ]
        first, parts = f"end{n}", [*parts, f"q{n}"]
    nodes.append(helper.make_node("Concat", parts, ["y"], axis=0))
    made = saved(tmp_path, nodes, {"x": [n_rows, WIDTH], "e": [EXPERTS]}, constants)
    made.graph.initializer.extend([zero, *ones])
    onnx.save(made, tmp_path / "m.onnx")
    feeds = {"x": normal(rng, n_rows, WIDTH), "e": np.array([0, 3, 3, 4, 7, 7])}
    network = build_network(tmp_path / "m.onnx")
    wanted = onnxruntime_outputs(made, feeds)["y"]
    np.testing.assert_allclose(execute(network, feeds)["y"], wanted, atol=1e-5)
    assert largest_value(network) < WIDTH * INNER
