"""Linear attention and causal convolutions with a state: the numbers of ONNX Runtime."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper

from autotune.graph.network import build_network
from tests.graph.onnx_models import Array, execute, onnxruntime_outputs


def check(
    op: str, feeds: dict[str, Array], names: list[str], folder: Path, **attrs: object
) -> None:
    """Both results of a node, of inputs called as in `names`."""
    node = helper.make_node(op, names, ["y", "state"], domain="com.microsoft", **attrs)
    ports = [helper.make_tensor_value_info(n, TensorProto.FLOAT, a.shape) for n, a in feeds.items()]
    outputs = [helper.make_tensor_value_info(n, TensorProto.FLOAT, None) for n in node.output]
    graph = helper.make_graph([node], "g", ports, outputs)
    imports = [helper.make_opsetid("", 20), helper.make_opsetid("com.microsoft", 1)]
    made = helper.make_model(graph, opset_imports=imports, ir_version=9)
    onnx.save(made, folder / "m.onnx")
    found = execute(build_network(folder / "m.onnx"), feeds)
    for name, wanted in onnxruntime_outputs(made, feeds).items():
        np.testing.assert_allclose(found[name], wanted, rtol=0, atol=1e-5)


@pytest.mark.parametrize("n_places", [1, 7])
@pytest.mark.parametrize(
    ("rule", "queries", "keys", "width"),
    [
        ("linear", 2, 2, 1),
        ("gated", 4, 2, 1),
        ("delta", 2, 2, 1),
        ("gated_delta", 2, 4, 1),
        ("gated_delta", 2, 2, 1),
        ("gated", 2, 2, 8),
    ],
)
def test_linear_attention_has_the_numbers_of_onnxruntime(
    rule: str,
    queries: int,
    keys: int,
    width: int,
    n_places: int,
    tmp_path: Path,
    rng: np.random.Generator,
) -> None:
    if width > 1 and n_places > 1:
        pytest.skip("a decay for each number of a key is one of single places")
    size, shape = 8, (1, n_places)
    k = rng.standard_normal((*shape, keys, size))
    feeds = {
        "q": rng.standard_normal((*shape, queries * size)),
        "k": (k / np.linalg.norm(k, axis=-1, keepdims=True)).reshape(*shape, -1),
        "v": rng.standard_normal((*shape, keys * 4)),
        "s": rng.standard_normal((1, keys, size, 4)),
    }
    names = [*feeds, "g" if "gated" in rule else "", "b" if "delta" in rule else ""]
    feeds |= {"g": -np.abs(rng.standard_normal((*shape, keys * width)))} if "g" in names else {}
    feeds |= {"b": rng.uniform(size=(*shape, keys))} if "b" in names else {}
    single = {name: a.astype(np.float32) for name, a in feeds.items()}
    heads = {"q_num_heads": queries, "kv_num_heads": keys}
    check("LinearAttention", single, names, tmp_path, update_rule=rule, **heads)


@pytest.mark.parametrize("n_places", [1, 6])
@pytest.mark.parametrize(("activation", "dilation"), [("none", 1), ("silu", 1), ("silu", 2)])
def test_a_causal_convolution_has_the_numbers_of_onnxruntime(
    activation: str, dilation: int, n_places: int, tmp_path: Path, rng: np.random.Generator
) -> None:
    shapes = {"x": (1, 5, n_places), "w": (5, 1, 4), "b": (5,), "past": (1, 5, 3 * dilation)}
    feeds = {n: rng.standard_normal(shape).astype(np.float32) for n, shape in shapes.items()}
    attrs = {"activation": activation, "dilation": dilation}
    check("CausalConvWithState", feeds, [*feeds], tmp_path, **attrs)
