"""Operators of ONNX Runtime's own domain: the same numbers as it computes."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

from autotune.errors import UnsupportedOperator
from autotune.graph.network import build_network
from tests.graph.onnx_models import Array, execute, onnxruntime_outputs

RNG = np.random.default_rng(0)


def normal(rng: np.random.Generator, *shape: int) -> Array:
    return rng.standard_normal(shape).astype(np.float32)


X, ROW = normal(RNG, 2, 5, 8), normal(RNG, 8)
IDS, SEGMENTS = np.array([[1, 3, 0]], np.int32), np.array([[0, 1, 1]], np.int32)
CASES: dict[str, tuple[str, dict[str, Array], dict[str, Any], int]] = {
    "Gelu": ("Gelu", {"x": X}, {}, 1),
    "BiasGelu": ("BiasGelu", {"x": X, "b": ROW}, {}, 1),
    "FastGelu": ("FastGelu", {"x": X}, {}, 1),
    "FastGelu of a sum": ("FastGelu", {"x": X, "b": ROW}, {}, 1),
    "QuickGelu": ("QuickGelu", {"x": X}, {"alpha": 1.5}, 1),
    "SkipLayerNormalization": (
        "SkipLayerNormalization",
        {
            "x": X,
            "skip": normal(RNG, 2, 5, 8),
            "scale": ROW,
            "shift": normal(RNG, 8),
            "bias": normal(RNG, 8),
        },
        {"epsilon": 1e-5},
        4,
    ),
    "SkipSimplifiedLayerNormalization": (
        "SkipSimplifiedLayerNormalization",
        {"x": X, "skip": normal(RNG, 2, 5, 8), "scale": ROW},
        {"epsilon": 1e-5},
        4,
    ),
    "EmbedLayerNormalization": (
        "EmbedLayerNormalization",
        {
            "ids": IDS,
            "segments": SEGMENTS,
            "words": normal(RNG, 6, 8),
            "positions": normal(RNG, 4, 8),
            "rows": normal(RNG, 2, 8),
            "scale": ROW,
            "shift": normal(RNG, 8),
        },
        {"epsilon": 1e-5},
        1,
    ),
    "FusedMatMul": (
        "FusedMatMul",
        {"a": normal(RNG, 2, 8, 5), "b": normal(RNG, 2, 3, 8)},
        {"transA": 1, "transB": 1, "alpha": 0.5},
        1,
    ),
    "FusedConv": (
        "FusedConv",
        {"x": normal(RNG, 1, 3, 6, 6), "w": normal(RNG, 4, 3, 3, 3), "b": normal(RNG, 4)},
        {"activation": "LeakyRelu", "activation_params": [0.2], "pads": [1] * 4},
        1,
    ),
    "FusedGemm": (
        "FusedGemm",
        {"a": normal(RNG, 3, 4), "b": normal(RNG, 4, 5), "c": normal(RNG, 5)},
        {"activation": "Relu"},
        1,
    ),
}
CONTRIB = "com.microsoft"
CONSTANT = {"w", "b", "scale", "shift", "words", "positions", "rows", "bias", "c"}


def model_of(op: str, arrays: Mapping[str, Array], attrs: Mapping[str, Any], n: int) -> Any:
    outputs = ["y", "", "", "sum"][:n]
    outputs += ["unused"] * (op == "EmbedLayerNormalization")
    known = [a for a in arrays if a in CONSTANT and op != "FusedMatMul"]
    nodes = [helper.make_node(op, list(arrays), outputs, domain="com.microsoft", **attrs)]
    kinds = {k: helper.np_dtype_to_tensor_dtype(a.dtype) for k, a in arrays.items()}
    graph = helper.make_graph(
        nodes,
        "g",
        [
            helper.make_tensor_value_info(k, kinds[k], a.shape)
            for k, a in arrays.items()
            if k not in known
        ],
        [
            helper.make_tensor_value_info(o, TensorProto.FLOAT, None)
            for o in outputs
            if o not in ("", "unused")
        ],
        [numpy_helper.from_array(arrays[k], k) for k in known],
    )
    imports = [helper.make_opsetid("", 20), helper.make_opsetid("com.microsoft", 1)]
    return helper.make_model(graph, opset_imports=imports, ir_version=9)


@pytest.mark.parametrize("name", CASES)
def test_an_operator_of_onnxruntime(name: str, tmp_path: Path) -> None:
    op, arrays, attrs, n = CASES[name]
    proto = model_of(op, arrays, attrs, n)
    onnx.save(proto, tmp_path / "model.onnx")
    feeds = {i.name: arrays[i.name] for i in proto.graph.input}
    found = execute(build_network(tmp_path / "model.onnx"), feeds)
    for output, want in onnxruntime_outputs(proto, feeds).items():
        np.testing.assert_allclose(found[output], want, rtol=2e-5, atol=2e-5, err_msg=output)


@pytest.mark.parametrize("mask", [np.int32([[1, 1, 0, 1], [2, -1, 1, 0]]), None])
@pytest.mark.parametrize("reader", ["output", "Attention"])
def test_the_places_that_a_mask_of_an_embedding_has(
    reader: str, mask: Array | None, rng: np.random.Generator, tmp_path: Path
) -> None:
    _, arrays, attrs, _ = CASES["EmbedLayerNormalization"]
    feeds = {"ids": np.int32([[1, 3, 0, 2], [4, 5, 0, 1]]), "segments": np.zeros((2, 4), np.int32)}
    feeds |= {} if mask is None else {"mask": mask}
    weights = {k: a for k, a in arrays.items() if k not in feeds}
    weights |= {"w": normal(rng, 8, 24), "wb": normal(rng, 24)} if reader == "Attention" else {}
    names = [*arrays, *(["mask"] if mask is not None else [])]
    nodes = [
        helper.make_node("EmbedLayerNormalization", names, ["e", "n"], domain=CONTRIB, **attrs)
    ]
    outputs = {"e": TensorProto.FLOAT, "n": TensorProto.INT32}
    if reader == "Attention":
        operands = ["e", "w", "wb", "n"]
        nodes.append(helper.make_node("Attention", operands, ["y"], domain=CONTRIB, num_heads=2))
        outputs = {"y": TensorProto.FLOAT}
    graph = helper.make_graph(
        nodes,
        "g",
        [helper.make_tensor_value_info(n, TensorProto.INT32, a.shape) for n, a in feeds.items()],
        [helper.make_tensor_value_info(n, kind, None) for n, kind in outputs.items()],
        [numpy_helper.from_array(a, n) for n, a in weights.items()],
    )
    imports = [helper.make_opsetid("", 20), helper.make_opsetid(CONTRIB, 1)]
    proto = helper.make_model(graph, opset_imports=imports, ir_version=9)
    onnx.save(proto, tmp_path / "model.onnx")
    found = execute(build_network(tmp_path / "model.onnx"), feeds)
    for output, want in onnxruntime_outputs(proto, feeds).items():
        np.testing.assert_allclose(found[output], want, rtol=2e-5, atol=2e-5, err_msg=output)


def test_a_result_without_a_definition_names_its_operator(tmp_path: Path) -> None:
    op, arrays, attrs, _ = CASES["FusedGemm"]
    proto = model_of(op, arrays, attrs, 1)
    proto.graph.node[0].output.append("more")
    proto.graph.output.append(helper.make_tensor_value_info("more", TensorProto.FLOAT, None))
    onnx.save(proto, tmp_path / "model.onnx")
    with pytest.raises(UnsupportedOperator, match=r"FusedGemm.*its result 'more'"):
        build_network(tmp_path / "model.onnx")


@pytest.mark.parametrize("name", ["SkipLayerNormalization", "SkipSimplifiedLayerNormalization"])
def test_the_statistics_of_a_normalisation(name: str, tmp_path: Path) -> None:
    """The mean and 1 / deviation, which ONNX Runtime computes on GPUs only."""
    op, arrays, attrs, _ = CASES[name]
    total = sum(arrays[k] for k in ("x", "skip", "bias") if k in arrays).astype(np.float64)
    mean = total.mean(-1, keepdims=True) if "shift" in arrays else np.zeros((2, 5, 1))
    root = np.sqrt(np.square(total - mean).mean(-1, keepdims=True) + 1e-5)
    proto = model_of(op, arrays, attrs, 1)
    names = ["mean", "inverse"] if "shift" in arrays else ["", "inverse"]
    proto.graph.node[0].output.extend(names)
    for n in filter(None, names):
        proto.graph.output.append(helper.make_tensor_value_info(n, TensorProto.FLOAT, [2, 5, 1]))
    onnx.save(proto, tmp_path / "model.onnx")
    found = execute(
        build_network(tmp_path / "model.onnx"), {i.name: arrays[i.name] for i in proto.graph.input}
    )
    np.testing.assert_allclose(found["inverse"], 1 / root, rtol=1e-5)
    if "mean" in found:
        np.testing.assert_allclose(found["mean"], mean, atol=1e-5)


def test_a_result_that_has_no_composition_is_refused(tmp_path: Path) -> None:
    op, arrays, attrs, _ = CASES["SkipSimplifiedLayerNormalization"]
    proto = model_of(op, arrays, attrs, 1)
    proto.graph.node[0].output.append("mean")
    proto.graph.output.append(helper.make_tensor_value_info("mean", TensorProto.FLOAT, [2, 5, 1]))
    onnx.save(proto, tmp_path / "model.onnx")
    with pytest.raises(UnsupportedOperator, match="further output"):
        build_network(tmp_path / "model.onnx")


def test_layer_normalisation_in_a_model_that_is_older_than_it(tmp_path: Path) -> None:
    """As the optimiser of ONNX Runtime writes it."""
    one = helper.make_node("LayerNormalization", ["x", "s", "b"], ["y"], epsilon=1e-5)
    x = helper.make_tensor_value_info("x", TensorProto.FLOAT, X.shape)
    y = helper.make_tensor_value_info("y", TensorProto.FLOAT, X.shape)
    known = [numpy_helper.from_array(a, n) for n, a in (("s", ROW), ("b", 2 * ROW))]
    graph = helper.make_graph([one], "g", [x], [y], known)
    imports = [helper.make_opsetid("", 12)]
    proto = helper.make_model(graph, opset_imports=imports, ir_version=7)
    onnx.save(proto, tmp_path / "model.onnx")
    found = execute(build_network(tmp_path / "model.onnx"), {"x": X})
    np.testing.assert_allclose(found["y"], onnxruntime_outputs(proto, {"x": X})["y"], atol=1e-5)
