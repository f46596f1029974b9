"""Compiled models on strings: outputs as ONNX Runtime gives them, in Python, in C, in a session."""

from __future__ import annotations

import json
import pickle
import subprocess
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime
import pytest
from numpy.typing import NDArray
from onnx import TensorProto, helper

import autotune
from autotune.errors import ArtifactError, UsageError
from autotune.network.artifact.artifact import Artifact
from autotune.network.runtime.exported import ExportedModel
from tests.network.test_network_export import STRICT, tools, written

ML = "ai.onnx.ml"
JOBS = ("cook", "pilot", "Schmied ü")
LABELS = ("leaves", "stays", "?? maybe")
MOST = 9


def pipeline(path: Path) -> Path:
    """One column of strings and one of floats -> labels, and a map of scores for each row."""
    rng = np.random.default_rng(0)
    weights = rng.standard_normal((len(JOBS) + 1, 3)).astype(np.float32)
    nodes = [
        helper.make_node(
            "OneHotEncoder", ["job"], ["flags"], domain=ML, cats_strings=JOBS, zeros=1
        ),
        helper.make_node("Reshape", ["flags", "flat"], ["columns"]),
        helper.make_node("Concat", ["columns", "age"], ["features"], axis=1),
        helper.make_node(
            "LinearClassifier",
            ["features"],
            ["label", "scores"],
            domain=ML,
            classlabels_strings=LABELS,
            coefficients=weights.T.reshape(-1).tolist(),
            intercepts=[0.1, 0.2, -0.1],
            post_transform="SOFTMAX",
        ),
        helper.make_node("ZipMap", ["scores"], ["chances"], domain=ML, classlabels_strings=LABELS),
    ]
    kind = helper.make_map_type_proto(
        TensorProto.STRING, helper.make_tensor_type_proto(TensorProto.FLOAT, ())
    )
    maps = helper.make_value_info("chances", helper.make_sequence_type_proto(kind))
    port = helper.make_tensor_value_info
    inputs = [port("job", TensorProto.STRING, ("n", 1)), port("age", TensorProto.FLOAT, ("n", 1))]
    graph = helper.make_graph(
        nodes,
        "pipeline",
        inputs,
        [port("label", TensorProto.STRING, ("n",)), maps],
        [helper.make_tensor("flat", TensorProto.INT64, (2,), [-1, len(JOBS)])],
    )
    imports = [helper.make_opsetid("", 18), helper.make_opsetid(ML, 3)]
    onnx.save(helper.make_model(graph, opset_imports=imports, ir_version=9), str(path))
    return path


def rows(n: int, seed: int = 0) -> dict[str, NDArray[Any]]:
    rng = np.random.default_rng(seed)
    jobs = rng.choice([*JOBS, "unknown", ""], (n, 1)).astype(object)
    return {"job": jobs, "age": rng.standard_normal((n, 1)).astype(np.float32)}


@pytest.fixture(scope="module")
def file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return pipeline(tmp_path_factory.mktemp("texts") / "pipeline.onnx")


@pytest.fixture(scope="module")
def artifact(file: Path) -> Artifact:
    found = autotune.compile(file, dims={"n": f"..{MOST}"}, threads=1, fallback=False).artifact
    assert isinstance(found, Artifact)
    return found


def require_same(found: dict[str, Any], file: Path, feeds: dict[str, Any]) -> None:
    session = onnxruntime.InferenceSession(str(file), providers=["CPUExecutionProvider"])
    label, chances = session.run(None, feeds)
    assert found["label"].dtype == label.dtype == object
    assert found["label"].tolist() == label.tolist()
    assert [list(one) for one in found["chances"]] == [list(one) for one in chances]
    values = [[list(one.values()) for one in side] for side in (found["chances"], chances)]
    np.testing.assert_allclose(*values, rtol=1e-5)


def test_strings_and_maps_are_those_of_onnxruntime(
    artifact: Artifact, file: Path, tmp_path: Path
) -> None:
    artifact.save(tmp_path / "p.atn")
    model = autotune.load(tmp_path / "p.atn")
    for n in (1, 4, MOST):
        require_same(model.run(rows(n)), file, rows(n))
    assert [p.dtype for p in model.input_info] == ["string", "float32"]
    assert model.output_info[0].dtype == "string"
    again = pickle.loads(pickle.dumps(model))
    require_same(again.run(rows(2)), file, rows(2))
    require_same(model.sized({"n": 3}).run(rows(3)), file, rows(3))
    given = rows(3)
    require_same(model.run({**given, "job": given["job"].astype(str)}), file, given)
    assert len(model.profile(rows(2))) == len(artifact.kernels)


def test_what_is_no_string_is_refused_in_one_line(artifact: Artifact) -> None:
    model = autotune.Model(artifact)
    for wrong in (np.array([[1.5]]), np.array([[None]], object), np.array([[b"\xff"]], object)):
        with pytest.raises(UsageError, match="'job' has an element of type") as caught:
            model.run({**rows(1), "job": wrong})
        assert "\n" not in caught.value.message
    with pytest.raises(UsageError, match="strings or maps"):
        model.run(rows(1), out={"label": np.zeros(1, np.int64)})


def test_a_library_of_c_has_numbers_and_tells_their_words(
    artifact: Artifact, file: Path, tmp_path: Path
) -> None:
    written(artifact, tmp_path, "pipe")
    header = (tmp_path / "pipe.h").read_text()
    assert "#define PIPE_WORDS_COUNT 6" in header
    library = ExportedModel(tmp_path / "libpipe.so")
    require_same(library.run(rows(5)), file, rows(5))
    program = tmp_path / "words.c"
    program.write_text(
        """#include <stdio.h>
        #include "pipe.h"
        static const char *const words[] = PIPE_WORDS;
        static const char *const keys[] = PIPE_KEYS_CHANCES;
        int main(void) {
          for (int n = 0; n < PIPE_WORDS_COUNT; n++) puts(words[n]);
          puts(keys[0]);
          return 0;
        }"""
    )
    cc = [*tools().cc, "-std=c99", *STRICT, str(program), "-o", str(tmp_path / "words")]
    subprocess.run(cc, check=True)
    told = subprocess.run([tmp_path / "words"], capture_output=True, check=True).stdout.decode()
    assert told.splitlines() == [*JOBS, *LABELS, LABELS[0]]


def test_strings_of_a_damaged_file_are_refused(artifact: Artifact, tmp_path: Path) -> None:
    from autotune.network.artifact.container import Damaged
    from autotune.network.artifact.manifest import require_network

    for change in (
        {"ports": ["age"]},
        {"ports": ["no port"]},
        {"maps": {"label": {"numbers": [0], "are_words": False}}},
        {"maps": {"chances": {"numbers": [0, 1, 99], "are_words": True}}},
        {"words": [1]},
    ):
        manifest = json.loads(json.dumps(artifact.manifest()))
        manifest["texts"] |= change
        with pytest.raises((Damaged, ArtifactError)):
            require_network(manifest)
