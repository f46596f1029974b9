"""① Rows that choose a matrix each run in blocks of one choice: the numbers are those of rows."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import helper, numpy_helper

import autotune
from autotune.extent import Length
from autotune.graph.bound_model import BoundModel
from autotune.graph.lengths.lift import lifted_network
from autotune.graph.network import Network, build_network

WIDTH, HIDDEN, MOST = 32, 48, 48


def _model(path: Path, rows: int | str, n_experts: int, k: int, bits: int) -> Path:
    """Rows, and scores of experts for each, through two layers of the best `k` of them."""
    rng = np.random.default_rng(n_experts)
    arrays: dict[str, np.ndarray] = {}
    for name, n, width in (("w1", 2 * HIDDEN, WIDTH), ("w2", WIDTH, HIDDEN)):
        if bits:
            arrays[name] = rng.integers(0, 256, (n_experts, n, width // 2), np.uint8)
            arrays[f"{name}s"] = rng.random((n_experts, n, width // 16), np.float32) / 20
        else:
            arrays[name] = rng.standard_normal((n_experts, n, width)).astype(np.float32) / 6
    layer = ("w1", "w1s", "", "w2", "w2s", "") if bits else ("w1", "", "w2", "")
    small = {"expert_weight_bits": bits, "block_size": 16} if bits else {}
    node = helper.make_node(
        "QMoE" if bits else "MoE",
        ["x", "p", *layer],
        ["y"],
        domain="com.microsoft",
        k=k,
        activation_type="swiglu",
        swiglu_fusion=1,
        normalize_routing_weights=1,
        **small,
    )
    ports = [
        helper.make_tensor_value_info(n, onnx.TensorProto.FLOAT, [rows, size])
        for n, size in (("x", WIDTH), ("p", n_experts), ("y", WIDTH))
    ]
    tensors = [numpy_helper.from_array(a, n) for n, a in arrays.items()]
    graph = helper.make_graph([node], "experts", ports[:2], ports[2:], tensors)
    opsets = [helper.make_opsetid("", 17), helper.make_opsetid("com.microsoft", 1)]
    onnx.save(helper.make_model(graph, opset_imports=opsets, ir_version=9), path)
    return path


def _blocks(network: Network) -> list[tuple[int, ...]]:
    """Shapes of results of products whose rows are in blocks."""
    products = [c for c in network.calls if "MatMul" in c.label]
    found = [network.values[v].shape for c in products for v in c.outputs.values()]
    return [shape for shape in found if len(shape) == 3 and shape[1] == 16]


@pytest.mark.parametrize(
    ("n_experts", "k", "bits"),
    [(4, 2, 0), (5, 1, 4), pytest.param(8, 3, 4, marks=pytest.mark.slow)],
)
def test_prompts_of_experts_are_those_of_onnxruntime_at_any_number_of_rows(
    tmp_path: Path, rng: np.random.Generator, n_experts: int, k: int, bits: int
) -> None:
    onnxruntime = pytest.importorskip("onnxruntime")
    path = _model(tmp_path / "experts.onnx", "tokens", n_experts, k, bits)
    compiled = autotune.compile(str(path), dims={"tokens": f"..{MOST}"}, threads=2, check=False)
    compiled.artifact.save(tmp_path / "experts.atn")
    model = autotune.load(tmp_path / "experts.atn")
    session = onnxruntime.InferenceSession(str(path), providers=["CPUExecutionProvider"])
    for n in (MOST, 1, 2, 17, 33):
        x = rng.standard_normal((n, WIDTH)).astype(np.float32)
        drawn = rng.standard_normal((n, n_experts)).astype(np.float32)
        # all rows to the same experts; spread; some experts for nobody
        for p in (np.tile(drawn[:1], (n, 1)), drawn, drawn + np.arange(n_experts, dtype="f4") * 2):
            (wanted,) = session.run(None, {"x": x, "p": p})
            found = model.run({"x": x, "p": p})["y"]
            np.testing.assert_allclose(found, wanted, rtol=1e-4, atol=1e-4 * np.abs(wanted).max())


def test_a_matrix_is_read_once_for_the_rows_of_a_block(tmp_path: Path) -> None:
    path = _model(tmp_path / "open.onnx", "tokens", 4, 2, 0)
    tokens = Length("tokens", MOST)
    network = lifted_network(BoundModel(path), {"x": (tokens, WIDTH), "p": (tokens, 4)})
    assert _blocks(network) == [(9, 16, 2 * HIDDEN), (9, 16, WIDTH)]


def test_few_rows_read_their_own_matrices(tmp_path: Path) -> None:
    assert not _blocks(build_network(_model(tmp_path / "one.onnx", 1, 4, 2, 0)))
    assert _blocks(build_network(_model(tmp_path / "many.onnx", 32, 4, 2, 0)))
