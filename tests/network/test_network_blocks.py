"""Any batch, by the variants that there are: the same as each sample alone."""

from __future__ import annotations

import json
import pickle
from pathlib import Path

import numpy as np
import onnx.parser
import pytest
from onnx import TensorProto, helper, numpy_helper

import autotune
from autotune.errors import ArtifactError, UsageError
from autotune.network.artifact.artifact import BatchSplit
from autotune.network.runtime.loading import read_artifact
from autotune.network.runtime.runtime import Model, random_inputs
from tests.forking import Cli
from tests.network.artifact_mutations import read_parts, write_parts
from tests.network.test_network_variants import encoder

LENGTH = 16
WORDS = """
<ir_version: 8, opset_import: ["" : 18]>
g (int64[batch,sequence] ids, int64[batch,sequence] mask) => (float[batch,sequence,128] y)
<int64[1] last = {2}, int64[1] middle = {1}>
{
  word = Gather (words, ids)
  number = Cast <to = 1> (mask)
  column = Unsqueeze (number, last)
  kept = Mul (word, column)
  product = MatMul (kept, weights)
  mean = ReduceMean (product, middle)
  y = Sub (product, mean)
}
"""


def words(path: Path) -> Path:
    """Two inputs, a product, and a mean over the words of a sample."""
    proto, rng = onnx.parser.parse_model(WORDS), np.random.default_rng(0)
    for name, n_rows in {"words": 500, "weights": 128}.items():
        rows = rng.standard_normal((n_rows, 128), np.float32) / 8
        proto.graph.initializer.append(numpy_helper.from_array(rows, name))
    onnx.save(proto, path)
    return path


@pytest.fixture(scope="module")
def model(cli: Cli, tmp_path_factory: pytest.TempPathFactory) -> Model:
    """Compiled by the command line for batches of 1 and 4, and any by these."""
    folder = tmp_path_factory.mktemp("blocks")
    path = words(folder / "words.onnx")
    options = ["--dim", "batch=1,4", "--dim", f"sequence={LENGTH}", "--split", "batch"]
    done = cli("compile", path, *options, "-o", folder / "e.atn")
    assert done.code == 0, done.err
    return autotune.load(folder / "e.atn")


def feed(batch: int) -> dict[str, np.ndarray]:
    rng = np.random.default_rng(batch)
    shape = batch, LENGTH
    return {"ids": rng.integers(0, 500, shape), "mask": rng.integers(0, 2, shape)}


def alone(model: Model, inputs: dict[str, np.ndarray]) -> np.ndarray:
    """Every sample by an inference of its own."""
    rows = range(len(inputs["ids"]))
    return np.concatenate([model({n: x[k : k + 1] for n, x in inputs.items()}["ids"],
                                 inputs["mask"][k : k + 1]) for k in rows])  # fmt: skip


@pytest.mark.sampled(2)
@pytest.mark.slow
@pytest.mark.parametrize("batch", [2, 3, 5, 13])
def test_a_batch_that_has_no_variant(model: Model, batch: int) -> None:
    inputs = feed(batch)
    (found,) = model.run(inputs).values()
    assert found.shape[0] == batch
    np.testing.assert_allclose(found, alone(model, inputs), atol=2e-5)


def test_the_largest_variants_come_first(model: Model) -> None:
    assert model._blocks is not None
    plan = model._blocks._plan(feed(10))
    assert [(start, stop) for _, start, stop in plan.blocks] == [(0, 4), (4, 8), (8, 9), (9, 10)]


def test_a_batch_of_none(model: Model) -> None:
    (found,) = model.run(feed(0)).values()
    assert found.shape == (0, LENGTH, 128)


def test_outputs_that_are_given(model: Model) -> None:
    inputs = feed(6)
    (expected,) = model.run(inputs).values()
    out = np.full(expected.shape, np.nan, np.float32)
    found = model(inputs["ids"], inputs["mask"], out=out)
    assert found is out
    np.testing.assert_array_equal(out, expected)
    with pytest.raises(UsageError, match=r"the output is|`out` of"):
        model.run(inputs, out[:5])


def test_an_output_that_an_input_lies_in(model: Model) -> None:
    """It is written when everything is read."""
    inputs = feed(9)
    (expected,) = model.run(inputs).values()
    memory = np.zeros(expected.size, np.float32)
    ids = memory[: 2 * inputs["ids"].size].view(np.int64).reshape(inputs["ids"].shape)
    ids[...] = inputs["ids"]
    model.run({**inputs, "ids": ids}, memory.reshape(expected.shape))
    np.testing.assert_array_equal(memory.reshape(expected.shape), expected)


@pytest.mark.parametrize(
    "change",
    [
        lambda x: {**x, "mask": x["mask"][:2]},
        lambda x: {n: a[:, :5] for n, a in x.items()},
        lambda x: {n: a[0] for n, a in x.items()},
    ],
)
def test_shapes_that_no_blocks_make_up(model: Model, change: object) -> None:
    assert callable(change)
    with pytest.raises(UsageError, match=r"no variant|has shape") as caught:
        model.run(change(feed(3)))
    assert "with any 'batch'" in str(caught.value.hint) or "has shape" in str(caught.value)


def test_copies_keep_it(model: Model, tmp_path: Path) -> None:
    inputs = feed(3)
    (expected,) = model.run(inputs).values()
    model.artifact.save(tmp_path / "again.atn")
    for other in (pickle.loads(pickle.dumps(model)), autotune.load(tmp_path / "again.atn")):
        np.testing.assert_array_equal(other.run(inputs)["y"], expected)
        assert [m.artifact.split for m in other.variants[1:]] == [None]


def test_a_model_at_an_extent_says_so(model: Model) -> None:
    at = model.at({"ids": (7, LENGTH), "mask": (7, LENGTH)})
    assert [end.shape for end in at.output_info] == [(7, LENGTH, 128)]
    assert at.run(random_inputs(at.input_info))["y"].shape == (7, LENGTH, 128)
    with pytest.raises(UsageError, match="no dimension of any extent"):
        model.variants[1].at({})


@pytest.mark.parametrize(
    "split",
    [{"dimension": "batch", "axes": {"ids": [5, 1]}}, {"dimension": 1, "axes": {}}, [], 3],
)
def test_a_split_that_cannot_be(model: Model, split: object, tmp_path: Path) -> None:
    model.artifact.save(tmp_path / "a.atn")
    parts = read_parts(tmp_path / "a.atn")
    manifest = json.loads(parts["manifest.json"])
    write_parts(tmp_path / "b.atn", parts, {**manifest, "split": split})
    with pytest.raises(ArtifactError, match="damaged"):
        read_artifact(tmp_path / "b.atn")


@pytest.mark.parametrize(
    ("dims", "split", "message"),
    [
        ({"batch": (2, 4), "sequence": 4}, "batch", "where a variant has extent 1"),
        ({"batch": 1, "sequence": 4}, "bath", "has no dimension 'bath'"),
        ({"batch": 1, "sequence": (1, 4)}, "sequence", "'sequence' cannot be any"),
    ],
)
def test_dimensions_that_cannot_be_split(
    dims: dict[str, int], split: str, message: str, tmp_path: Path
) -> None:
    path = encoder(tmp_path / "encoder.onnx")
    with pytest.raises(UsageError, match=message):
        autotune.compile(path, dims=dims, split=split)


def test_tensors_without_elements_are_refused(tmp_path: Path) -> None:
    node = helper.make_node("Relu", ["x"], ["y"])
    shape = "batch", 0, 4
    ports = [[helper.make_tensor_value_info(n, TensorProto.FLOAT, shape)] for n in "xy"]
    opset = helper.make_opsetid("", 18)
    graph = helper.make_graph([node], "empty", *ports)
    model = helper.make_model(graph, opset_imports=[opset], ir_version=8)
    onnx.save(model, tmp_path / "m.onnx")
    with pytest.raises(UsageError, match="no elements"):
        autotune.compile(tmp_path / "m.onnx", dims={"batch": (1, 4)}, split="batch")


def test_the_axes_are_those_of_inputs_and_outputs(model: Model) -> None:
    axes = {"ids": (0, 1), "mask": (0, 1), "y": (0, 1)}
    assert model.artifact.split == BatchSplit("batch", axes)
