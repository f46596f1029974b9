"""A damaged model is one line that blames it, whatever in it is damaged."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import onnxruntime
import pytest
from onnx import ModelProto

import autotune.graph.network as network
from autotune.errors import ModelError
from tests.graph.onnx_models import assert_matches, model, node, save


def test_a_name_that_is_no_text_is_an_error_of_the_model(tmp_path: Path) -> None:
    proto = model(node("Nope", "tensor_of_the_model"), {"tensor_of_the_model": (2, 3)})
    data = proto.SerializeToString().replace(b"tensor_of_the_model", b"tensor_\xd3f_the_model")
    (tmp_path / "model.onnx").write_bytes(data)
    with pytest.raises(ModelError) as caught:
        network.build_network(tmp_path / "model.onnx")
    assert "\n" not in caught.value.message


def test_what_fails_in_a_pass_is_an_error_of_the_model(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fails(*_: object) -> None:
        raise KeyError("two\nlines")

    monkeypatch.setattr(network, "plan_storage", fails)
    with pytest.raises(ModelError, match="cannot be compiled: KeyError") as caught:
        network.build_network(save(model(node("Relu", "x"), {"x": (2, 3)}), tmp_path))
    assert "\n" not in caught.value.message
    assert "`traceback`" in caught.value.hint


@pytest.mark.parametrize("rank", [0, 2])
@pytest.mark.parametrize("op", ["L1", "L2", "SumSquare", "LogSum", "LogSumExp", "Sum", "Max"])
def test_a_reduction_over_no_axes_is_what_it_does_to_one_element(
    op: str, rank: int, tmp_path: Path
) -> None:
    shape = (2, 3)[:rank]
    nodes = [node("Abs", "x", "a"), node(f"Reduce{op}", "a", noop_with_empty_axes=1)]
    proto: ModelProto = model(nodes, {"x": shape}, opset=18)
    assert_matches(proto, tmp_path)


def test_a_number_expanded_to_a_number_is_the_number(tmp_path: Path) -> None:
    nodes = [node("Expand", "x s", "t"), node("Exp", "t")]
    assert_matches(model(nodes, {"x": ()}, {"s": np.zeros(0, np.int64)}), tmp_path)


@pytest.mark.parametrize("domain", ["", "ai.onnx.ml", "com.microsoft", "of.a.user"])
def test_an_operator_set_that_is_not_defined_yet_is_refused(domain: str, tmp_path: Path) -> None:
    proto = model(node("Relu", "x"), {"x": (2, 3)})
    del proto.opset_import[:]
    versions = {"": 17, domain: 99}
    proto.opset_import.extend(onnx.helper.make_opsetid(d, v) for d, v in versions.items())
    assert_refused_as_in_onnxruntime(proto, tmp_path, is_refused=domain != "of.a.user")


def test_a_format_that_is_not_defined_yet_is_refused(tmp_path: Path) -> None:
    proto = model(node("Relu", "x"), {"x": (2, 3)})
    proto.ir_version = onnx.IR_VERSION
    assert_refused_as_in_onnxruntime(proto, tmp_path, is_refused=False)
    proto.ir_version = 99
    assert_refused_as_in_onnxruntime(proto, tmp_path, is_refused=True)


def assert_refused_as_in_onnxruntime(proto: ModelProto, folder: Path, is_refused: bool) -> None:
    path = save(proto, folder)
    if not is_refused:
        network.build_network(path)
        onnxruntime.InferenceSession(str(path))
        return
    with pytest.raises(ModelError, match=r"99, the newest that is known is [0-9]+"):
        network.build_network(path)
    with pytest.raises(Exception, match="99"):
        onnxruntime.InferenceSession(str(path))
