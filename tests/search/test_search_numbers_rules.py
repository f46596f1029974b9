"""Rules do not take the number of a call for data: structures at any size are those of one size."""

from __future__ import annotations

import numpy as np
import onnx
import onnx.parser
import pytest

import autotune

HEAD = '<ir_version: 9, opset_import: ["" : 17]>'
CONVOLUTION = """f (float[b, 64, 24, 24] x, float[64, 64, 3, 3] w) => (float[b, 64, 24, 24] y) {
    t = Conv<pads = [1, 1, 1, 1]>(x, w)  y = Relu(t) }"""


@pytest.mark.parametrize("size", ["..4", 4])
def test_an_open_batch_takes_minimal_filtering_as_one_size_does(size: str | int) -> None:
    model = onnx.parser.parse_model(f"{HEAD} {CONVOLUTION}")
    weights = np.random.default_rng(0).standard_normal((64, 64, 3, 3)).astype(np.float32)
    del model.graph.input[1]
    model.graph.initializer.append(onnx.numpy_helper.from_array(weights, "w"))
    done = autotune.compile(model, dims={"b": size}, threads=1, check=False)
    assert done.artifact.constants.nbytes > 4 * weights.nbytes  # transformed: 36 points of 9 taps
