"""Ensembles of trees as machine code: whole, of any number of rows, and what labels become."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

import autotune
from autotune.network.artifact.artifact import Artifact
from tests.graph import random_forests as forests
from tests.graph.onnx_models import onnxruntime_outputs, save


@pytest.mark.slow
@pytest.mark.sampled(2)
@pytest.mark.parametrize(
    ("n_rows", "dtype", "n_leaves"), [(1, "float32", 40), (1, "float32", 300), (33, "float64", 40)]
)
def test_machine_code_has_the_numbers_of_onnxruntime(
    n_rows: int, dtype: str, n_leaves: int, rng: np.random.Generator, tmp_path: Path
) -> None:
    trees = forests.forest(rng, [n_leaves] * 9 + [1, 2, 64], 3, dense=False)
    labels = [4, -1, 7]
    proto = forests.ensemble(
        "TreeEnsembleClassifier", trees, n_rows, dtype, classlabels_int64s=labels
    )
    artifact = autotune.compile(save(proto, tmp_path), threads=1).artifact
    assert isinstance(artifact, Artifact)  # no part is left to ONNX Runtime
    artifact.save(tmp_path / "trees.atn")
    model = autotune.load(tmp_path / "trees.atn")
    for _ in range(4):
        x = forests.features(rng, n_rows, dtype)
        found, expected = model.run({"x": x}), onnxruntime_outputs(proto, {"x": x})
        np.testing.assert_array_equal(found["label"], expected["label"])
        np.testing.assert_allclose(found["y"], expected["y"], rtol=1e-5, atol=1e-5)


@pytest.mark.slow
def test_one_network_takes_every_number_of_rows(rng: np.random.Generator, tmp_path: Path) -> None:
    proto = forests.ensemble("TreeEnsembleRegressor", forests.forest(rng, [40] * 12), 8)
    proto.graph.input[0].type.tensor_type.shape.dim[0].dim_param = "rows"
    path = save(proto, tmp_path)
    artifact = autotune.compile(path, threads=1, dims={"rows": "..100"}).artifact
    artifact.save(tmp_path / "trees.atn")
    model = autotune.load(tmp_path / "trees.atn")
    for n_rows in (1, 7, 33, 100):
        x = forests.features(rng, n_rows)
        expected = onnxruntime_outputs(proto, {"x": x})["y"]
        np.testing.assert_allclose(model.run({"x": x})["y"], expected, rtol=1e-5, atol=1e-5)
