"""Inputs that decide shapes are named, with what binds them."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import pytest
from numpy.typing import NDArray
from onnx import helper

import autotune
from autotune.api.compile.fallback import outside_texts
from autotune.errors import ModelError
from autotune.graph.bound_model import BoundModel
from autotune.graph.fallback.cut import cut_model
from autotune.network.runtime.loading import model_of
from tests.graph.onnx_models import onnxruntime_outputs

Arrays = dict[str, NDArray[np.generic]]

X = np.arange(12, dtype=np.float32).reshape(6, 2)
IMAGE = X.reshape(1, 1, 6, 2)
CASES: dict[str, tuple[str, Arrays, str]] = {
    "AffineGrid(t, n)": ("t", {"t": X[:2].reshape(1, 2, 2).repeat(2, 2)[..., :3]}, "1 1 3 4"),
    "BlackmanWindow(n)": ("", {}, "5"),
    "CenterCropPad(x, n)": ("x", {"x": X}, "3 3"),
    "ConstantOfShape(n)": ("", {}, "3 2"),
    "Expand(x, n)": ("x", {"x": X}, "3 6 2"),
    "NonMaxSuppression(b, s, n)": (
        "b s",
        {"b": X[:4].reshape(1, 2, 4), "s": X[:1].reshape(1, 1, 2)},
        "1",
    ),
    "OneHot(i, n, v)": (
        "i v",
        {"i": np.array([0, 1]), "v": np.array([0, 1], np.float32)},
        "3",
    ),
    "Pad(x, n)": ("x", {"x": X}, "0 1 0 1"),
    "ReduceMax(x, n)": ("x", {"x": X}, "1"),
    "Reshape(x, n)": ("x", {"x": X}, "3 4"),
    "Resize(x, , , n)": ("x", {"x": IMAGE}, "1 1 5 3"),
    "Slice(x, n, m)": ("x", {"x": X, "m": np.array([4])}, "1"),
    "Split(x, n)": ("x", {"x": X}, "2 4"),
    "Squeeze(x, n)": ("x", {"x": IMAGE}, "0 1"),
    "Tile(x, n)": ("x", {"x": X}, "2 3"),
    "TopK(x, n)": ("x", {"x": X}, "1"),
    "Unsqueeze(x, n)": ("x", {"x": X}, "0 1"),
}
SCALARS = ("BlackmanWindow", "OneHot")


def saved(case: str, folder: Path) -> tuple[Path, Arrays, NDArray[np.int64]]:
    """A model of one operator, its inputs and the one of them that decides its shape."""
    op, names = case.removesuffix(")").split("(")
    _, feeds, numbers = CASES[case]
    n = np.array([int(k) for k in numbers.split()], np.int64)
    n = n[0] if op in SCALARS else n
    feeds = {"n": n, **feeds}
    n_outputs = {"Split": 2, "TopK": 2}.get(op, 1)
    node = helper.make_node(op, names.split(", "), [f"y{k}" for k in range(n_outputs)])
    kinds = {k: helper.np_dtype_to_tensor_dtype(a.dtype) for k, a in feeds.items()}
    graph = helper.make_graph(
        [node],
        "g",
        [helper.make_tensor_value_info(k, kinds[k], a.shape) for k, a in feeds.items()],
        [onnx.ValueInfoProto(name=o) for o in node.output],
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 20)], ir_version=9)
    onnx.save(onnx.shape_inference.infer_shapes(model), folder / "m.onnx")
    return folder / "m.onnx", feeds, n


@pytest.mark.parametrize("case", CASES)
def test_the_input_that_decides_a_shape_is_named(case: str, tmp_path: Path) -> None:
    path, _, _ = saved(case, tmp_path)
    cut = cut_model(BoundModel(path), lambda model, names: {})
    assert "n" in cut.deciding
    assert not {"x", "b", "s", "i", "v", "t"} & set(cut.deciding)
    assert any("'n': VALUE" in text for text in outside_texts(cut))


def test_what_no_random_input_fits_says_how_to_compile_it(tmp_path: Path) -> None:
    path, feeds, n = saved("Split(x, n)", tmp_path)
    with pytest.raises(ModelError, match="not checked on any inputs") as caught:
        autotune.compile(path)
    for option in ("constants=", "check_inputs=", "check=False"):
        assert option in caught.value.hint
    expected = onnxruntime_outputs(onnx.load(path), feeds)
    bound = autotune.compile(path, constants={"n": n}, fallback=False)
    given = autotune.compile(path, check_inputs=feeds)
    for done, inputs in ((bound, {"x": feeds["x"]}), (given, feeds)):
        found = model_of(done.artifact).run(inputs)
        for name, array in expected.items():
            np.testing.assert_array_equal(found[name], array)
