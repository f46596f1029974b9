"""Compiled detectors with their tails: results whose lengths data decide, against ONNX Runtime."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnx.parser
import pytest
from numpy.typing import NDArray

import autotune
from autotune.errors import UsageError
from autotune.network.runtime.runtime import Model
from tests.graph.onnx_models import onnxruntime_outputs

DETECTOR = """<ir_version: 9, opset_import: ["" : 17]>
f (float[1, 300, 4] boxes, float[1, 5, 300] scores) => (float[k, 4] kept, int64[k, 3] selected) {
    most = Constant<value_ints = [20]>()  overlap = Constant<value_floats = [0.5]>()
    least = Constant<value_floats = [0.6]>()  zero = Constant<value_ints = [0]>()
    one = Constant<value_ints = [1]>()  two = Constant<value_ints = [2]>()
    three = Constant<value_ints = [3]>()
    selected = NonMaxSuppression(boxes, scores, most, overlap, least)
    columns = Slice(selected, two, three, one)  box = Squeeze(columns, one)
    all = Squeeze(boxes, zero)  taken = Gather(all, box)  kept = Mul(taken, taken)
}"""


@pytest.fixture(scope="module")
def detector() -> Model:
    model = onnx.parser.parse_model(DETECTOR)
    return Model(autotune.compile(model, threads=2, check=False).artifact)


@pytest.mark.parametrize("power", [1, 20, 10**6], ids=["many", "few", "none"])
def test_a_detector_gives_as_many_boxes_as_there_are(detector: Model, power: int) -> None:
    rng = np.random.default_rng(power)
    feeds = {
        "boxes": rng.random((1, 300, 4), dtype=np.float32),
        "scores": rng.random((1, 5, 300), dtype=np.float32) ** power,
    }
    expected = onnxruntime_outputs(onnx.parser.parse_model(DETECTOR), feeds)
    found = detector.run(feeds)
    assert found.keys() == expected.keys()
    for name, want in expected.items():
        np.testing.assert_array_equal(found[name], want)


SELECTION = """<ir_version: 9, opset_import: ["" : 17]>
f (float[20000] x, float[1] few) => (float[k] best, int64[k] at, float[m] most, float[u] values) {
    zero = Constant<value_ints = [0]>()  limit = Constant<value_ints = [700]>()
    k = Cast<to = 7>(few)  best, at = TopK(x, k)
    places = NonZero(x)  row = Squeeze(places, zero)  taken = Gather(x, row)
    n = Shape(taken)  both = Concat<axis = 0>(n, limit)  j = ReduceMin<keepdims = 1>(both)
    most, unused = TopK<largest = 0>(taken, j)
    values = Unique(most)
}"""
"""More than are ranked by comparing all, and what occurs among those that are taken."""


@pytest.fixture(scope="module")
def selection() -> Model:
    model = onnx.parser.parse_model(SELECTION)
    return Model(autotune.compile(model, threads=2, check=False).artifact)


@pytest.mark.parametrize("seed", range(6))
def test_those_that_come_first_of_many(selection: Model, seed: int) -> None:
    """With ties, both zeros, infinities and numbers that differ in the last bit."""
    rng = np.random.default_rng(seed)
    x: NDArray[Any] = rng.standard_normal(20_000).astype(np.float32)
    if seed % 2:
        x = np.round(x * np.float32(3)) / np.float32(3)
        x[rng.integers(20_000, size=9)] = np.inf
    elif seed:
        x = (rng.integers(-3, 3, 20_000).astype(np.int32) + 0x3F800000).view(np.float32)
    x[rng.random(20_000) < (0, 0.5, 0.999, 0.9, 0.98, 1)[seed]] = -0.0
    feeds = {"x": x, "few": np.array([(1, 17_000, 20_000, 30, 5_000, 2)[seed]], np.float32)}
    expected = onnxruntime_outputs(onnx.parser.parse_model(SELECTION), feeds)
    found = selection.run(feeds)
    for name, want in expected.items():
        np.testing.assert_array_equal(found[name], want)


def test_arrays_for_results_of_unknown_size_are_refused(detector: Model) -> None:
    feeds = {
        "boxes": np.zeros((1, 300, 4), np.float32),
        "scores": np.zeros((1, 5, 300), np.float32),
    }
    with pytest.raises(UsageError, match="are decided by data"):
        detector.run(feeds, out={"kept": np.zeros((100, 4), np.float32)})


def test_a_library_tells_how_many_results_there_are(detector: Model, tmp_path: Path) -> None:
    if not shutil.which("cc"):
        pytest.skip("there is no compiler")
    autotune.export(detector.artifact, tmp_path / "out", "net")
    source = r"""
#include "net.h"
#include <stdio.h>
#include <stdlib.h>
int main(void) {
  net_model *m;
  int64_t n = -1;
  float *boxes = calloc(NET_INPUT_BOXES_COUNT, 4), *scores = calloc(NET_INPUT_SCORES_COUNT, 4);
  net_inputs in = {boxes, scores};
  net_outputs out = {calloc(NET_OUTPUT_KEPT_COUNT, 4), calloc(NET_OUTPUT_SELECTED_COUNT, 8), &n};
  for (int k = 0; k < 300; k++) {
    boxes[4 * k] = boxes[4 * k + 1] = (float)k;
    boxes[4 * k + 2] = boxes[4 * k + 3] = (float)k + 1;
  }
  scores[7] = scores[300 + 9] = scores[300 + 11] = 0.9f;
  if (net_create(NULL, &m) || net_run(m, &in, &out)) return 1;
  printf("%d %d %d", (int)n, (int)out.selected[2], (int)out.selected[8]);
  return 0;
}"""
    (tmp_path / "out/main.c").write_text(source)
    command = "cc main.c -I. -L. -lnet -Wl,-rpath,$ORIGIN -o main"
    subprocess.run(command.split(), cwd=tmp_path / "out", check=True)
    done = subprocess.run(["./main"], cwd=tmp_path / "out", check=True, capture_output=True)
    assert done.stdout == b"3 7 11"
