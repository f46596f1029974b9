"""Operators whose results have a length that data decide, against ONNX Runtime."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray
from onnx import ModelProto, NodeProto, numpy_helper, shape_inference

from autotune.extent import Extents, Length
from autotune.graph.lengths.imports import NotLifted
from autotune.graph.network import Network
from autotune.network.check.evaluation import evaluate_network
from tests.graph.lifted import lifted
from tests.graph.onnx_models import model as untyped
from tests.graph.onnx_models import node, onnxruntime_outputs

Array = NDArray[Any]
Feeds = Mapping[str, Array]


def model(*given: Any, **options: Any) -> ModelProto:
    """A model whose outputs have the types that its nodes give them."""
    proto = untyped(*given, **options)
    names = [x.name for x in proto.graph.output]
    del proto.graph.output[:]
    known = shape_inference.infer_shapes(proto).graph.value_info
    found = {x.name: x for x in known}
    for name in names:
        found[name].type.tensor_type.ClearField("shape")
        proto.graph.output.append(found[name])
    return proto


def assert_written(proto: ModelProto, every: Iterable[Feeds], folder: Path) -> Network:
    """Equal in every element, in shape and dtype, to ONNX Runtime; open dimensions are up to 12."""
    dims: dict[str, Extents] = {
        x.name: tuple(
            Length(d.dim_param, 12) if d.dim_param else d.dim_value
            for d in x.type.tensor_type.shape.dim
        )
        for x in proto.graph.input
    }
    network = lifted(proto, dims, folder)
    for feeds in every:
        found, expected = evaluate_network(network, feeds), onnxruntime_outputs(proto, dict(feeds))
        for name, want in expected.items():
            assert (found[name].shape, found[name].dtype) == (want.shape, want.dtype)
            np.testing.assert_array_equal(found[name], want)
    return network


def flags(rng: np.random.Generator, *shape: int) -> list[Feeds]:
    return [{"x": (rng.random(shape) < p).astype(np.float32)} for p in (0.4, 0, 1)]


@pytest.mark.parametrize("shape", [(1,), (20,), (3, 4, 5), (70, 64)])
def test_places_that_are_not_zero(
    shape: tuple[int, ...], rng: np.random.Generator, tmp_path: Path
) -> None:
    proto = model([node("NonZero", "x", "y")], {"x": shape})
    assert_written(proto, flags(rng, *shape), tmp_path)


@pytest.mark.parametrize("shape", [("n", 3), (7, "n"), (2, "n", 3), ("m", "n"), ("m", 2, "n")])
def test_places_of_an_image_of_any_size(
    shape: tuple[int | str, ...], rng: np.random.Generator, tmp_path: Path
) -> None:
    """As `torch.where` of one mask has them, and what lies there."""
    nodes = [
        node("NonZero", "x", "places"),
        node("Transpose", "places", "rows", perm=[1, 0]),
        node("GatherND", "x rows", "found"),
        node("Split", "rows", " ".join(f"i{n}" for n in range(len(shape))), axis=1),
        node("Reshape", "x all", "row"),
        node("Cast", "row", "holds", to=9),
        node("Compress", "x holds", "chosen"),
    ]
    proto = model(nodes, {"x": shape}, {"all": np.full(1, -1)}, "found i0 i1 chosen")
    every = []
    for share in (0, 0.3, 0.6, 1):
        numbers = {name: int(rng.integers(1, 13)) for name in "mn"}
        size = [numbers.get(str(extent), extent) for extent in shape]
        image = rng.standard_normal(size) * (rng.random(size) < share)
        every.append({"x": image.astype(np.float32)})
    assert_written(proto, every, tmp_path)


def test_what_follows_has_that_length(rng: np.random.Generator, tmp_path: Path) -> None:
    nodes = [
        node("NonZero", "x", "places"),
        node("Squeeze", "places first", "at"),
        node("Gather", "x at", "taken"),
        node("Add", "taken taken", "twice"),
        node("Concat", "twice taken", "joined", axis=0),
        node("Slice", "twice first four", "few"),
        node("Mul", "few few", "squares"),
        node("NonZero", "taken", "again"),
    ]
    known = {"first": np.zeros(1, np.int64), "four": np.full(1, 4, np.int64)}
    proto = model(nodes, {"x": (20,)}, known, "at joined squares again")
    feeds = [{"x": one["x"] * np.float32(3)} for one in flags(rng, 20)]
    network = assert_written(proto, feeds, tmp_path)
    assert len(network.written) == 3


@pytest.mark.parametrize("axis", [None, 0, 1])
def test_rows_that_a_computed_condition_chooses(
    axis: int | None, rng: np.random.Generator, tmp_path: Path
) -> None:
    attrs = {} if axis is None else {"axis": axis}
    nodes = [node("Cast", "c", "holds", to=9), node("Compress", "x holds", "y", **attrs)]
    n = 20 if axis is None else (4, 5)[axis]
    proto = model(nodes, {"x": (4, 5), "c": (n,)})
    feeds = [
        {"x": rng.standard_normal((4, 5)).astype(np.float32), "c": c["x"]} for c in flags(rng, n)
    ]
    assert_written(proto, feeds, tmp_path)


@pytest.mark.parametrize("largest", [0, 1])
def test_as_many_of_the_largest_as_data_say(
    largest: int, rng: np.random.Generator, tmp_path: Path
) -> None:
    nodes = [
        node("Cast", "n", "k", to=7),
        node("TopK", "x k", "best where", largest=largest),
    ]
    proto = model(nodes, {"x": (3, 9), "n": (1,)}, outputs="best where")
    x = rng.integers(0, 4, (3, 9)).astype(np.float32)
    every = [{"x": x, "n": np.full(1, n, np.float32)} for n in (1, 4, 9)]
    assert_written(proto, every, tmp_path)


def test_at_most_so_many_of_a_length(rng: np.random.Generator, tmp_path: Path) -> None:
    """As detectors have it: the best of those above a threshold, 5 at most."""
    nodes = [
        node("NonZero", "x", "places"),
        node("Squeeze", "places first", "at"),
        node("Gather", "x at", "taken"),
        node("Shape", "taken", "n"),
        node("Concat", "n five", "both", axis=0),
        node("ReduceMin", "both", "k", keepdims=1),
        node("TopK", "taken k", "best where"),
        node("Gather", "at where", "y"),
    ]
    known = {"first": np.zeros(1, np.int64), "five": np.full(1, 5, np.int64)}
    proto = model(nodes, {"x": (30,)}, known, "best y")
    x = rng.standard_normal(30).astype(np.float32)
    few = np.where(np.arange(30) < 3, x, 0).astype(np.float32)
    assert_written(proto, [{"x": x}, {"x": few}, {"x": 0 * x}], tmp_path)


@pytest.mark.parametrize("n_classes", [2, 13])
def test_what_classes_have_is_joined_with_their_labels(
    rng: np.random.Generator, n_classes: int, tmp_path: Path
) -> None:
    """As the tails of detectors that look at class after class; some classes have nothing."""
    nodes, known = [], {"first": np.zeros(1, np.int64), "three": np.full(1, 3, np.int64)}
    for c in range(n_classes):
        known[f"class{c}"] = np.array(c)
        label = numpy_helper.from_array(np.full(1, c + 1, np.float32))
        nodes += [
            node("Gather", f"x class{c}", f"row{c}", axis=0),
            node("NonZero", f"row{c}", f"places{c}"),
            node("Squeeze", f"places{c} first", f"at{c}"),
            node("Gather", f"row{c} at{c}", f"taken{c}"),
            node("Shape", f"taken{c}", f"n{c}"),
            node("Concat", f"n{c} three", f"both{c}", axis=0),
            node("ReduceMin", f"both{c}", f"k{c}", keepdims=1),
            node("TopK", f"taken{c} k{c}", f"best{c} where{c}"),
            node("Shape", f"best{c}", f"size{c}"),
            node("ConstantOfShape", f"size{c}", f"label{c}", value=label),
        ]
    for name, part in (("found", "best"), ("labels", "label")):
        parts = " ".join(f"{part}{c}" for c in range(n_classes))
        nodes.append(node("Concat", parts, name, axis=0))
    nodes += [
        node("Mul", "found labels", "marked"),
        node("NonZero", "marked", "all"),
        node("Squeeze", "all first", "at"),
        node("Gather", "marked at", "y"),
    ]
    proto = model(nodes, {"x": (n_classes, 7)}, known)
    x = rng.standard_normal((n_classes, 7)).astype(np.float32)
    some = np.where(rng.random(x.shape) < 0.3, x, 0).astype(np.float32)
    network = assert_written(proto, [{"x": x}, {"x": some}, {"x": 0 * x}], tmp_path)
    assert network.written == {"all": "length.all"}, "numbers of no result are results"


def suppression(batch: int, n: int, classes: int, center: int, **given: Any) -> ModelProto:
    names = ["boxes", "scores", *(k if v is not None else "" for k, v in given.items())]
    while not names[-1]:
        names.pop()
    made = node("NonMaxSuppression", "boxes scores", "y", center_point_box=center)
    made.input[:] = names
    known = {k: np.array([v]) for k, v in given.items() if v is not None}
    return model([made], {"boxes": (batch, n, 4), "scores": (batch, classes, n)}, known)


@pytest.mark.sampled(4)
@pytest.mark.parametrize("seed", range(100))
def test_boxes_that_no_better_one_overlaps(seed: int, tmp_path: Path) -> None:
    rng = np.random.default_rng(seed)
    batch, n, classes = (int(rng.integers(1, most)) for most in (3, 60, 4))
    proto = suppression(
        *(batch, n, classes, int(rng.integers(2))),
        most=np.int64(rng.choice([1, 3, 1000])),
        limit=rng.choice([None, np.float32(0.2), np.float32(0.5), np.float32(0)]),
        least=rng.choice([None, np.float32(0.3), np.float32(0.95), np.float32(2)]),
    )
    every = []
    for steps in (0, 4, 1):  # ties, and boxes that are equal; overlaps are exact
        boxes, scores = rng.random((batch, n, 4)), rng.random((batch, classes, n))
        if steps:
            boxes, scores = (np.round(a * steps) / steps for a in (boxes, scores))
        every.append({"boxes": boxes.astype(np.float32), "scores": scores.astype(np.float32)})
    assert_written(proto, every, tmp_path)


@pytest.mark.sampled(5)
@pytest.mark.parametrize("shape", [(1,), (30,), (4, 5), (12, 3, 2)])
@pytest.mark.parametrize("axis", [None, 0, -1])
@pytest.mark.parametrize("ordered", [1, 0])
@pytest.mark.parametrize("dtype", ["float32", "int64"])
def test_what_occurs_with_places_and_counts(
    ordered: int,
    axis: int | None,
    shape: tuple[int, ...],
    dtype: str,
    rng: np.random.Generator,
    tmp_path: Path,
) -> None:
    attrs = {"sorted": ordered} if axis is None else {"sorted": ordered, "axis": axis}
    proto = model(
        [node("Unique", "x", "y first of counts", **attrs)],
        {"x": shape},
        outputs="y first of counts",
    )
    if dtype != "float32":
        proto.graph.input[0].type.tensor_type.elem_type = 7
        for x in proto.graph.output[:1]:
            x.type.tensor_type.elem_type = 7
    every = [{"x": rng.integers(0, most, shape).astype(dtype)} for most in (1, 2, 30)]
    assert_written(proto, every, tmp_path)


def ends(after: int) -> list[NodeProto]:
    """As many of x as there are places, and some more or fewer."""
    return [
        node("NonZero", "x", "places"),
        node("Squeeze", "places first", "at"),
        node("Shape", "at", "n"),
        node("Add", "n more", "end"),
        node("Slice", "at first end" if after < 0 else "x first end", "y"),
    ]


def test_one_fewer_than_none_are_none(rng: np.random.Generator, tmp_path: Path) -> None:
    known = {"first": np.zeros(1, np.int64), "more": np.full(1, -1, np.int64)}
    proto = model(ends(-1), {"x": (20,)}, known)
    one = {"x": (np.arange(20) == 3).astype(np.float32)}
    assert_written(proto, [*flags(rng, 20), one], tmp_path)


def test_a_network_for_some_numbers_alone_is_refused(tmp_path: Path) -> None:
    """From 18 places on all 20 elements are taken, and data may give fewer."""
    known = {"first": np.zeros(1, np.int64), "more": np.full(1, 2, np.int64)}
    with pytest.raises(NotLifted, match="places"):
        lifted(model(ends(2), {"x": (20,)}, known), {"x": (20,)}, tmp_path)
