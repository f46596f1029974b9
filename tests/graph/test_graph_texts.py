"""Strings of models as numbers, against ONNX Runtime; and models that read their letters."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from onnx import ModelProto, TensorProto, helper

from autotune.errors import NotCompilable
from autotune.graph.network import Network, build_network
from autotune.graph.texts import Keys, Texts
from autotune.network.runtime.border import Border
from tests.graph.onnx_models import execute, onnxruntime_outputs, save
from tests.graph.random_texts import ML, random_texts


def run(network: Network, feeds: dict[str, Any]) -> dict[str, Any]:
    border = Border(network.texts)
    given, new = border.numbers(feeds)
    return border.texts(execute(network, given), new)


def assert_equal(proto: ModelProto, feeds: dict[str, Any], folder: Path) -> None:
    found = run(build_network(save(proto, folder)), feeds)
    for name, wanted in onnxruntime_outputs(proto, feeds).items():
        if wanted.dtype == object:
            assert found[name].tolist() == wanted.tolist()
        else:
            assert found[name].dtype == wanted.dtype
            np.testing.assert_array_equal(found[name], wanted)


@pytest.mark.sampled(25)
@pytest.mark.parametrize("seed", range(300))
def test_random_models_on_strings_are_what_onnxruntime_makes_of_them(
    seed: int, tmp_path: Path
) -> None:
    proto, feeds = random_texts(np.random.default_rng(seed))
    assert_equal(proto, feeds, tmp_path)


def one_node(op: str, inputs: str, kinds: str, domain: str = "", **attrs: Any) -> ModelProto:
    numbers = {"s": TensorProto.STRING, "f": TensorProto.FLOAT, "i": TensorProto.INT64}
    names = inputs.split()
    ports = [
        helper.make_tensor_value_info(n, numbers[k], (3,))
        for n, k in zip((*names, "y"), kinds, strict=True)
    ]
    node = helper.make_node(op, names, ["y"], op, domain=domain, **attrs)
    graph = helper.make_graph([node], "g", ports[:-1], ports[-1:])
    imports = [helper.make_opsetid("", 20), helper.make_opsetid(ML, 3)]
    return helper.make_model(graph, opset_imports=imports, ir_version=9)


def test_a_key_that_is_nan(tmp_path: Path) -> None:
    keys = helper.make_tensor("", TensorProto.FLOAT, (2,), [np.nan, 1.0])
    values = helper.make_tensor("", TensorProto.STRING, (2,), [b"none", b"one"])
    default = helper.make_tensor("", TensorProto.STRING, (1,), [b"more"])
    tensors = {"keys_tensor": keys, "values_tensor": values, "default_tensor": default}
    proto = one_node("LabelEncoder", "x", "fs", ML, **tensors)
    proto.opset_import[1].version = 4
    assert_equal(proto, {"x": np.array([1, np.nan, 2], np.float32)}, tmp_path)
    listed = one_node("LabelEncoder", "x", "ff", ML, keys_floats=[np.nan], values_floats=[1.0])
    with pytest.raises(NotCompilable, match="a key that is NaN"):
        build_network(save(listed, tmp_path))


@pytest.mark.parametrize(
    "proto",
    [
        one_node("Cast", "x", "sf", to=TensorProto.FLOAT),
        one_node("Cast", "x", "fs", to=TensorProto.STRING),
        one_node("StringConcat", "a b", "sss"),
        one_node("StringNormalizer", "x", "ss", case_change_action="LOWER"),
    ],
)
def test_models_that_read_letters_are_refused(proto: ModelProto, tmp_path: Path) -> None:
    with pytest.raises(NotCompilable):
        build_network(save(proto, tmp_path))


def test_keys_of_maps_are_words_or_integers(tmp_path: Path) -> None:
    for labels, keys in (
        ({"classlabels_strings": ["b", "a"]}, ("b", "a")),
        ({"classlabels_int64s": [7, -1]}, (7, -1)),
    ):
        proto = one_node("ZipMap", "x", "ff", ML, **labels)
        proto.graph.input[0].CopyFrom(helper.make_tensor_value_info("x", 1, (3, 2)))
        key = TensorProto.STRING if isinstance(keys[0], str) else TensorProto.INT64
        kind = helper.make_map_type_proto(key, helper.make_tensor_type_proto(1, ()))
        proto.graph.output[0].type.CopyFrom(helper.make_sequence_type_proto(kind))
        network = build_network(save(proto, tmp_path))
        assert network.texts.keys("y") == keys
        x = np.arange(6, dtype=np.float32).reshape(3, 2)
        found = run(network, {"x": x})["y"]
        assert found == [dict(zip(keys, row, strict=True)) for row in x.tolist()]


def test_words_that_are_not_known_are_told_apart_for_one_call() -> None:
    border = Border(Texts(("a", "b"), ("s", "y"), {"m": Keys((1, 0), True)}))
    given, new = border.numbers({"s": np.array(["b", "z", "q", "z", b"a"], object)})
    assert (given["s"].tolist(), new) == ([1, 2, 3, 2, 0], ["z", "q"])
    found = border.texts({"y": given["s"], "m": np.array([[0.5, 1.5]], np.float32)}, new)
    assert found["y"].tolist() == ["b", "z", "q", "z", "a"]
    assert [list(row.items()) for row in found["m"]] == [[("a", 1.5), ("b", 0.5)]]
    assert border.numbers({"s": np.array(["z"])})[0]["s"].tolist() == [2]
