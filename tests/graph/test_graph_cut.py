"""A model of which not everything can be compiled: which nodes are, and in which order."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import ModelProto, TypeProto

from autotune.errors import ModelError, NotCompilable, UnsupportedOperator
from autotune.graph.bound_model import BoundModel
from autotune.graph.fallback.cut import cut_model
from autotune.graph.fallback.cuts import Cut
from autotune.graph.network import Network, build_network, network_of
from autotune.graph.reader.onnx_reader import OnnxModel
from tests import hybrid_models as models


def never(model: ModelProto, names: tuple[str, ...]) -> dict[str, TypeProto]:
    return {}


def cut(text: str, folder: Path) -> Cut:
    return cut_model(BoundModel(models.saved(text, folder)), never)


def kinds(found: Cut) -> list[bool]:
    return [segment.network is not None for segment in found.segments]


@pytest.mark.parametrize(
    ("text", "compiled", "outside"),
    [
        (
            models.DETECTOR,
            [True, False],
            [
                *("NonMaxSuppression", "Gather", "Squeeze", "Cast"),
                *("Unique", "Cast", "Gather"),
            ],
        ),
        (models.BRANCH, [True, False, True], ["If"]),
        (models.TREES, [True, False], ["TreeEnsembleRegressor"]),
        (models.SCALED, [True, False], ["ZipMap"]),
        (models.WORDS, [False, True], ["CategoryMapper", "Identity"]),
        (models.ENCODED, [False], ["NonZero", "SplitToSequence"]),
    ],
)
def test_the_largest_parts_that_compile(
    text: str, compiled: list[bool], outside: list[str], tmp_path: Path
) -> None:
    found = cut(text, tmp_path)
    assert kinds(found) == compiled
    assert [node.op for node in found.outside] == outside
    assert all(node.name and node.reason for node in found.outside)
    there = {port.name for port in found.inputs}
    for segment in found.segments:
        assert there.issuperset(segment.inputs)
        there.update(segment.outputs)


def test_what_reads_a_shape_that_data_decide_is_outside_until_it_is_static_again(
    tmp_path: Path,
) -> None:
    text = """
    again (float[64,256] x) => (float[64,256] y) {
      nz = NonZero (x)
      n = Shape (nz)
      count = Gather (n, one)
      f = Cast <to = 1> (count)
      s = Add (x, f)
      a = MatMul (s, w1)
      b = Relu (a)
      y = MatMul (b, w1)
    }"""
    model = models.parsed(text)
    weight = models.parsed(models.TREES).graph.initializer[0]
    model.graph.initializer.append(weight)
    path = tmp_path / "again.onnx"
    onnx.save(model, path)
    found = cut_model(BoundModel(path), never)
    assert kinds(found) == [False, True]
    assert {"NonZero", "Shape"} <= {node.op for node in found.outside}
    assert found.networks[0].flops > 2 * 2 * 64 * 256 * 256


def test_a_part_that_saves_less_than_a_cut_costs_stays_outside(tmp_path: Path) -> None:
    text = """
    tiny (float[4] x) => (float[4] z) {
      y = Relu (x)
      nz = NonZero (y)
      n = Shape (nz)
      count = Gather (n, one)
      f = Cast <to = 1> (count)
      z = Mul (y, f)
    }"""
    found = cut(text, tmp_path)
    assert kinds(found) == [False]
    assert "too small" in next(node.reason for node in found.outside if node.op == "Relu")


def test_a_node_that_a_later_pass_refuses_is_found(tmp_path: Path) -> None:
    text = """
    clipped (float[64,256] x) => (float[64,256] y) {
      a = MatMul (x, w1)
      b = Relu (a)
      s = Reshape (b, steps)
      states, last = RNN <hidden_size = 4, activations = ["Affine"]> (s, w, r)
      z = ReduceSum <keepdims = 0> (states)
      d = Mul (b, z)
      y = MatMul (d, w1)
    }"""
    model = models.parsed(text)
    arrays = {"steps": np.array([64, 1, 256]), "w": np.ones((1, 4, 256), np.float32)}
    arrays |= {"r": np.ones((1, 4, 4), np.float32), "w1": np.ones((256, 256), np.float32)}
    for name, value in arrays.items():
        model.graph.initializer.append(onnx.numpy_helper.from_array(value, name))
    path = tmp_path / "clipped.onnx"
    onnx.save(model, path)
    found = cut_model(BoundModel(path), never)
    assert ("RNN", True) in [(n.op, "Affine" in n.reason) for n in found.outside]
    assert kinds(found) == [True, False, True]


def test_a_node_that_nobody_names_is_found_by_what_compiles_without_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fails_at_tanh(model: OnnxModel, *others: Any) -> Network:
        if any(node.op_type == "Tanh" for node in model.proto.graph.node):
            raise ModelError("the model cannot be compiled: Fault")
        return network_of(model, *others)

    monkeypatch.setattr("autotune.graph.fallback.cut.network_of", fails_at_tanh)
    text = models.TREES.replace("b = Relu (a)", "b = Tanh (a)")
    found = cut(text, tmp_path)
    assert "Tanh" in [node.op for node in found.outside]
    assert any("Fault" in node.reason for node in found.outside)
    assert True in kinds(found)


def test_without_a_cut_the_refusal_is_as_before(tmp_path: Path) -> None:
    with pytest.raises(UnsupportedOperator, match="NonMaxSuppression"):
        build_network(models.saved(models.DETECTOR, tmp_path))
    with pytest.raises(NotCompilable, match="string"):
        build_network(models.saved(models.WORDS, tmp_path))
