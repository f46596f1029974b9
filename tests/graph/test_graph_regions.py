"""Regions of interest, deformed windows and attention with functions of its scores are those of the
reference implementation, over all their attributes."""

from __future__ import annotations

from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from onnx import TensorProto, helper

from autotune.errors import UnsupportedOperator
from autotune.graph.network import build_network
from tests.graph.onnx_models import model, node, save
from tests.graph.test_graph_signals import assert_computes, values

MODES = list(product(("avg", "max"), ("half_pixel", "output_half_pixel"), (1, 3)))


@pytest.mark.parametrize(("mode", "coordinates", "ratio"), MODES)
def test_regions_of_interest(
    rng: np.random.Generator, mode: str, coordinates: str, ratio: int, tmp_path: Path
) -> None:
    """Some lie partly or wholly outside of the image, one has no size."""
    x = values(rng, 2, 5, 7, 6)
    corners = [[0, 0, 5, 6], [1.2, 2.3, 4.9, 3.1], [-4, 1, 2, 12], [20, 20, 30, 30], [3, 3, 3, 3]]
    rois, batch = np.array(corners, np.float32), np.array([0, 1, 1, 0, 1])
    attrs: dict[str, Any] = {"mode": mode, "coordinate_transformation_mode": coordinates}
    size = {"output_height": 3, "output_width": 2, "sampling_ratio": ratio, "spatial_scale": 0.8}
    shapes = {"x": x.shape, "r": rois.shape, "b": batch.shape}
    op = node("RoiAlign", "x r b", **attrs, **size)
    proto = model(op, shapes, opset=22, types={"b": "int64"})
    assert_computes(proto, {"x": x, "r": rois, "b": batch}, tmp_path)


def test_regions_that_decide_how_many_points_are_read_are_refused(tmp_path: Path) -> None:
    shapes = {"x": (1, 2, 4, 4), "r": (3, 4), "b": (3,)}
    proto = model(node("RoiAlign", "x r b"), shapes, opset=16, types={"b": "int64"})
    with pytest.raises(UnsupportedOperator, match=r"'RoiAlign'.*sampling_ratio 0"):
        build_network(save(proto, tmp_path))


@pytest.mark.sampled(2)
@pytest.mark.parametrize(("group", "parts"), [(1, 1), (2, 1), (1, 3), (3, 2)])
@pytest.mark.parametrize("with_all", [True, False], ids=["mask and bias", "weights alone"])
def test_deformed_windows(
    rng: np.random.Generator, group: int, parts: int, with_all: bool, tmp_path: Path
) -> None:
    x, weight = values(rng, 2, 6, 7, 5), values(rng, 6, 6 // group, 3, 2)
    given = {"x": x, "w": weight, "o": 2 * values(rng, 2, parts * 12, 4, 5)}
    if with_all:
        given |= {"b": values(rng, 6), "m": values(rng, 2, parts * 6, 4, 5)}
    attrs = {"pads": [1, 2, 1, 1], "strides": [2, 1], "dilations": [1, 3]}
    names = "x w o b m" if with_all else "x w o"
    op = node("DeformConv", names, group=group, offset_group=parts, **attrs)
    proto = model(op, {n: a.shape for n, a in given.items()}, opset=22)
    assert_computes(proto, given, tmp_path)


@pytest.mark.parametrize("heads", [4, 2])
@pytest.mark.parametrize("wide", [False, True])
def test_attention_with_functions_of_scores(
    rng: np.random.Generator, heads: int, wide: bool, tmp_path: Path
) -> None:
    q, k, v = values(rng, 2, 4, 5, 8), values(rng, 2, heads, 7, 8), values(rng, 2, heads, 7, 6)

    def body(name: str, op: str, value: float) -> Any:
        port = helper.make_tensor_value_info("s", TensorProto.FLOAT, [2, 4, 5, 7])
        out = helper.make_tensor_value_info("t", TensorProto.FLOAT, [2, 4, 5, 7])
        known = helper.make_tensor("c", TensorProto.FLOAT, [], [value])
        return helper.make_graph([node(op, "s c", "t")], name, [port], [out], [known])

    attrs = {"score_mod": body("a", "Add", 0.5), "prob_mod": body("b", "Mul", 0.25), "scale": 0.7}
    precision = {"softmax_precision": TensorProto.DOUBLE} if wide else {}
    domain = "ai.onnx.preview"
    op = helper.make_node(
        "FlexAttention", ["q", "k", "v"], ["y"], domain=domain, **attrs, **precision
    )
    proto = model(op, {"q": q.shape, "k": k.shape, "v": v.shape}, opset=26)
    proto.opset_import.append(helper.make_opsetid(domain, 1))
    each = [np.repeat(a, 4 // heads, axis=1).astype(np.float64) for a in (k, v)]
    scores = 0.7 * q @ each[0].transpose(0, 1, 3, 2) + 0.5
    shares = np.exp(scores - scores.max(-1, keepdims=True))
    want = 0.25 * shares / shares.sum(-1, keepdims=True) @ each[1]
    assert_computes(proto, {"q": q, "k": k, "v": v}, tmp_path, {"y": want.astype(np.float32)})
