"""Every ONNX model that autotune writes, keeps or hands to another runtime is a valid one."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import ModelProto, helper, numpy_helper, parser

import autotune
from autotune.graph.bound_model import BoundModel
from autotune.graph.fallback.cuts import loadable_forms
from autotune.graph.reader.model_files import model_file
from autotune.graph.reader.onnx_reader import prepare_model
from autotune.network.artifact.hybrid import HybridArtifact, leaves
from autotune.network.check.oracles import Original
from autotune.network.check.rounding import rounded_anew
from autotune.network.quantise.quantiser import ENTROPY, MIN_MAX, float_form
from tests import hybrid_models

pytest.importorskip("onnxruntime")

CUT = ("DETECTOR", "BRANCH", "TREES", "WORDS", "ENCODED")
CONTRIB = """<ir_version: 8, opset_import: ["": 17, "com.microsoft": 1]>
g (float[1,4,16] x, int64[1] k) => (float[1,4,16] y, float[1,n] z, float[b,m] u) {
  a = com.microsoft.BiasGelu (x, bias)
  b = Relu (a)
  f = Reshape (b, flat)
  z, at = TopK (f, k)
  c = com.microsoft.Gelu (z)
  u = com.microsoft.QuickGelu (c)
  y = MatMul (b, w)
}"""
FUNCTION = """<ir_version: 8, opset_import: ["": 17, "own": 1, "com.microsoft": 1]>
g (float[2,16] x) => (float[2,16] y, float[m] z) {
  a = own.twice (x)
  b = MatMul (a, w)
  first = ReduceMax <axes = [0], keepdims = 0> (b)
  i, at, n = com.microsoft.Unique (first)
  z = Mul (i, i)
  y = own.twice (b)
}
<domain: "own", opset_import: ["": 17]> twice (a) => (r) { r = Add (a, a) }"""
CONSTANTS: dict[str, Any] = {
    "bias": np.ones(16, np.float32),
    "w": np.full((16, 16), 0.1, np.float32),
    "flat": np.array([1, -1]),
}


def parsed(text: str) -> ModelProto:
    model = parser.parse_model(text)
    read = {name for node in model.graph.node for name in node.input}
    model.graph.initializer.extend(
        numpy_helper.from_array(a, n) for n, a in CONSTANTS.items() if n in read
    )
    return model


def cut_models() -> dict[str, ModelProto]:
    own = {"contrib": parsed(CONTRIB), "function": parsed(FUNCTION)}
    return own | {name: hybrid_models.parsed(getattr(hybrid_models, name)) for name in CUT}


def require_valid(model: ModelProto) -> None:
    onnx.checker.check_model(model, full_check=True)


def parts_of(model: ModelProto, monkeypatch: pytest.MonkeyPatch) -> Iterator[bytes]:
    """Those that were tried, and those that are kept."""
    from autotune.api.compile import fallback

    tried: list[bytes] = []

    def forms(segment: Any) -> Any:
        found = list(loadable_forms(segment))
        tried.extend(form.onnx for form in found)
        return iter(found)

    monkeypatch.setattr(fallback, "loadable_forms", forms)
    for options in ({}, {"keep_cut": True}):
        made = autotune.compile(model, check=False, **options).artifact  # type: ignore[arg-type]
        assert isinstance(made, HybridArtifact)
        yield from (leaf.onnx for leaf in leaves(made.segments) if leaf.network is None)
    yield from filter(_has_ranks, tried)  # a form without them is for ONNX Runtime alone


def _has_ranks(part: bytes) -> bool:
    kinds = [i.type for i in ModelProto.FromString(part).graph.input]
    return all(k.tensor_type.HasField("shape") for k in kinds if k.HasField("tensor_type"))


@pytest.mark.parametrize("name", cut_models())
def test_parts_for_onnxruntime(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    parts = set(parts_of(cut_models()[name], monkeypatch))
    assert parts
    for part in parts:
        require_valid(ModelProto.FromString(part))


def test_a_whole_model_that_is_left_to_onnxruntime() -> None:
    from autotune.api.compile.compiling import plan
    from autotune.api.request import CompileRequest

    for name, model in cut_models().items():
        with model_file(model, name) as path:
            cuts = plan(CompileRequest(path)).sources(is_whole=True).cuts
        for leaf in (leaf for cut in cuts for leaf in cut.leaves()):
            require_valid(ModelProto.FromString(leaf.onnx))


def convolutions(n_layers: int = 12) -> ModelProto:
    """Layers with names that sort badly, and what the quantiser folds."""
    rng = np.random.default_rng(0)
    nodes, x = [], "x"
    weights: list[Any] = []
    for n in range(n_layers):
        w = rng.standard_normal((4, 4 if n else 3, 3, 3)).astype(np.float32) / 6
        weights.append(numpy_helper.from_array(w, f"w{n}"))
        nodes.append(helper.make_node("Conv", [x, f"w{n}"], [f"c{n}"], pads=[1] * 4))
        nodes.append(helper.make_node("Relu", [f"c{n}"], [f"r{n}"]))
        x = f"r{n}"
    nodes += [
        helper.make_node("GlobalAveragePool", [x], ["p"]),
        helper.make_node("Flatten", ["p"], ["f"]),
        helper.make_node("Gemm", ["f", "wf"], ["y"], transB=1),
    ]
    weights.append(numpy_helper.from_array(rng.standard_normal((5, 4)).astype(np.float32), "wf"))
    value = helper.make_tensor_value_info
    graph = helper.make_graph(
        nodes, "g", [value("x", 1, [1, 3, 8, 8])], [value("y", 1, [1, 5])], weights
    )
    opsets = [helper.make_opsetid("", 12)]  # which the quantiser converts
    return helper.make_model(graph, opset_imports=opsets, ir_version=7)


@pytest.mark.parametrize("method", [MIN_MAX, ENTROPY])
def test_models_of_the_quantiser(method: str, rng: np.random.Generator, tmp_path: Path) -> None:
    form = float_form(convolutions(), tmp_path)
    feeds = [{"x": rng.random((1, 3, 8, 8)).astype(np.float32)} for _ in range(4)]
    ranges = form.ranges(feeds, method=method)
    assert len(form.products) == 13
    for products in (form.products, form.products[::3], form.products[-1:]):
        form.write(ranges, products, tmp_path / "q.onnx")
        require_valid(onnx.load(tmp_path / "q.onnx"))
    for path in tmp_path.glob("*.onnx"):
        require_valid(onnx.load(path))


def plain_models() -> dict[str, ModelProto]:
    found = cut_models() | {"convolutions": convolutions()}
    old = convolutions(2)
    old.ir_version = 3  # all weights are inputs as well
    for tensor in old.graph.initializer:
        old.graph.input.append(
            helper.make_tensor_value_info(tensor.name, tensor.data_type, tensor.dims)
        )
    unsorted = convolutions(2)
    nodes = list(unsorted.graph.node)
    del unsorted.graph.node[:]
    unsorted.graph.node.extend(reversed(nodes))
    del found["ENCODED"]  # its file states a shape that it does not have
    return found | {"IR 3": old, "unsorted": unsorted}


@pytest.mark.parametrize("name", plain_models())
def test_models_for_other_runtimes(name: str) -> None:
    model = plain_models()[name]
    with model_file(model, "m") as path:
        original = Original(BoundModel(path))
        for made in (prepare_model(path), original.proto):
            require_valid(made)
        try:
            disturbed = [rounded_anew(original.proto, seed, 256.0) for seed in (1, 2)]
        except Exception:  # beyond shape inference
            disturbed = []
        for made in disturbed:
            require_valid(made)
