"""Integers, flags, indices and weights computed at run time: machine code against onnxruntime."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray
from onnx import ModelProto, NodeProto, TensorProto, helper

from autotune.errors import UnsupportedOperator, UsageError
from autotune.graph.network import build_network
from autotune.measure.local import local_measurer
from autotune.measure.options import MeasureOptions
from autotune.network.compile.compiler import compile_network
from autotune.network.runtime.loading import read_artifact
from autotune.network.runtime.runtime import Model, random_inputs
from autotune.search.defaults import default_steps
from autotune.target import host_target
from tests.graph.onnx_models import model, node, onnxruntime_outputs, save
from tests.graph.text_models import text_transformer

Array = NDArray[Any]
TARGET = host_target()


def values(rng: np.random.Generator, *shape: int) -> Array:
    return rng.standard_normal(shape).astype(np.float32)


def integers(
    rng: np.random.Generator, low: int, high: int, *shape: int, dtype: str = "int64"
) -> Array:
    return rng.integers(low, high, shape).astype(dtype)


def compiled(proto: ModelProto, folder: Path) -> Model:
    network = build_network(save(proto, folder))
    steps = {key: default_steps(dag, TARGET, 1) for key, dag in network.tasks.items()}
    return Model(compile_network(network, steps, TARGET), 1)


def assert_right(
    nodes: NodeProto | Sequence[NodeProto],
    feeds: Mapping[str, Array],
    folder: Path,
    constants: Mapping[str, object] | None = None,
    output: str = "float32",
    atol: float = 1e-6,
) -> Array:
    """The output of a model, which is that of onnxruntime in shape, type and every element."""
    types = {name: str(a.dtype) for name, a in feeds.items()} | {"y": output}
    proto = model(nodes, {n: a.shape for n, a in feeds.items()}, constants, types=types)
    found = compiled(proto, folder).run(feeds)["y"]
    want = onnxruntime_outputs(proto, feeds)["y"]
    assert found.dtype == want.dtype
    np.testing.assert_allclose(found, want, rtol=2e-6, atol=atol)
    return found


# --- types and weights -------------------------------------------------------------------------


def test_an_image_of_bytes(rng: np.random.Generator, tmp_path: Path) -> None:
    nodes = [
        *(node("Cast", "image", "f", to=TensorProto.FLOAT), node("Mul", "f scale", "s")),
        *(node("Transpose", "s", "t", perm=[0, 3, 1, 2]), node("Conv", "t w")),
    ]
    feeds = {"image": integers(rng, 0, 256, 1, 9, 20, 3, dtype="uint8")}
    assert_right(
        nodes, feeds, tmp_path, {"scale": np.float32(1 / 255), "w": values(rng, 8, 3, 3, 3)}
    )


@pytest.mark.parametrize("source", ["uint8", "int8", "int32", "float32", "float64"])
@pytest.mark.parametrize("goal", ["uint8", "int8", "int64", "float32", "float64"])
def test_cast(rng: np.random.Generator, source: str, goal: str, tmp_path: Path) -> None:
    to = helper.np_dtype_to_tensor_dtype(np.dtype(goal))
    low, high = (0, 128) if "uint8" in (source, goal) else (-128, 128)
    feeds = {"x": integers(rng, low, high, 5, 33, dtype=source)}
    assert_right(node("Cast", "x", to=to), feeds, tmp_path, output=goal)


@pytest.mark.parametrize("op", ["Add", "Mul", "Max", "Min"])
@pytest.mark.parametrize("dtype", ["uint8", "int8"])
def test_arithmetic_of_bytes(rng: np.random.Generator, op: str, dtype: str, tmp_path: Path) -> None:
    low, high = (0, 12) if dtype == "uint8" else (-10, 11)
    feeds = {name: integers(rng, low, high, 3, 70, dtype=dtype) for name in "xz"}
    assert_right(node(op, "x z"), feeds, tmp_path, output=dtype)


@pytest.mark.parametrize("op", ["Add", "Sub", "Mul", "Max", "Min"])
def test_arithmetic_of_doubles(rng: np.random.Generator, op: str, tmp_path: Path) -> None:
    feeds = {name: rng.standard_normal((3, 21)) for name in "xz"}
    assert_right(node(op, "x z"), feeds, tmp_path, output="float64")


@pytest.mark.parametrize("n_groups", [1, 4, 32])
@pytest.mark.parametrize("size", [1, 3])
def test_a_convolution_with_computed_weights(
    rng: np.random.Generator, size: int, n_groups: int, tmp_path: Path
) -> None:
    nodes = [
        *(node("Tanh", "v", "w"), node("Conv", "x w b", "c", group=n_groups, pads=[size // 2] * 4)),
        node("Relu", "c"),
    ]
    feeds = {"x": values(rng, 2, 32, 12, 11), "v": values(rng, 64, 32 // n_groups, size, size)}
    atol = 5e-5  # sums of up to 288 products, up to 45
    assert_right(nodes, feeds | {"b": values(rng, 64)}, tmp_path, atol=atol)


def test_correlation_with_a_template(rng: np.random.Generator, tmp_path: Path) -> None:
    nodes = [node("Relu", "x", "r"), node("Conv", "r t", group=8)]
    assert_right(nodes, {"x": values(rng, 1, 8, 15, 15), "t": values(rng, 8, 1, 5, 5)}, tmp_path)


def test_a_constant_of_one_element(rng: np.random.Generator, tmp_path: Path) -> None:
    nodes = [node("Relu", "x", "r"), node("Shape", "r", start=1, end=2)]
    assert_right(nodes, {"x": values(rng, 3, 7)}, tmp_path, output="int64")


# --- reading where data say -------------------------------------------------------------------


@pytest.mark.parametrize("dtype", ["int64", "int32"])
@pytest.mark.parametrize("shape", [(), (5,), (2, 3), (1, 40)], ids=str)
@pytest.mark.parametrize("axis", [0, 1, -1])
def test_gather(
    rng: np.random.Generator, axis: int, shape: tuple[int, ...], dtype: str, tmp_path: Path
) -> None:
    x = values(rng, 9, 7, 33)
    n = x.shape[axis]
    feeds = {"i": np.asarray(integers(rng, -n, n, *shape, dtype=dtype))}
    assert_right(node("Gather", "x i", axis=axis), feeds, tmp_path, {"x": x})


def test_gather_of_what_is_computed(rng: np.random.Generator, tmp_path: Path) -> None:
    nodes = [node("Relu", "x", "r"), node("Add", "i one", "j"), node("Gather", "r j", "g")]
    nodes.append(node("Mul", "g g", "y"))
    feeds = {"x": values(rng, 8, 20), "i": integers(rng, -9, 7, 6)}
    assert_right(nodes, feeds, tmp_path, {"one": np.array(1)})


def test_gather_of_integers(rng: np.random.Generator, tmp_path: Path) -> None:
    feeds = {"x": integers(rng, -99, 99, 6, 5), "i": integers(rng, 0, 6, 4)}
    assert_right(node("Gather", "x i"), feeds, tmp_path, output="int64")


def test_a_table_of_one_row(rng: np.random.Generator, tmp_path: Path) -> None:
    feeds = {"i": np.array([0, -1, 0])}
    assert_right(node("Gather", "x i"), feeds, tmp_path, {"x": values(rng, 1, 6)})


def test_indices_that_are_outside_take_the_nearest_row(
    rng: np.random.Generator, tmp_path: Path
) -> None:
    table, far = values(rng, 5, 12), np.iinfo(np.int64)
    indices = np.array([5, 1 << 40, -6, far.min, far.max, 2])
    proto = model(node("Gather", "x i"), {"i": (6,)}, {"x": table}, types={"i": "int64"})
    found = compiled(proto, tmp_path).run({"i": indices})["y"]
    np.testing.assert_array_equal(found, table[[4, 4, 0, 0, 4, 2]])


@pytest.mark.parametrize("padding", ["zeros", "border", "reflection"])
@pytest.mark.parametrize("mode", ["bilinear", "nearest"])
def test_places_between_pixels(
    rng: np.random.Generator, mode: str, padding: str, tmp_path: Path
) -> None:
    feeds = {"x": values(rng, 2, 20, 6, 5), "g": values(rng, 2, 4, 9, 2)}
    op = node("GridSample", "x g", mode=mode, padding_mode=padding)
    proto = model(op, {n: a.shape for n, a in feeds.items()}, opset=16)
    found = compiled(proto, tmp_path).run(feeds)["y"]
    np.testing.assert_allclose(found, onnxruntime_outputs(proto, feeds)["y"], atol=1e-5)


@pytest.mark.parametrize("padding", ["border", "reflection"])
def test_places_that_are_nowhere_are_inside_of_memory(
    rng: np.random.Generator, padding: str, tmp_path: Path
) -> None:
    """What is not a number, or beyond all numbers, still reads some pixel."""
    x = values(rng, 1, 3, 6, 5)
    places = np.array([np.nan, np.inf, -np.inf, 3e38, -3e38, 1e10], np.float32)
    grid = np.stack(np.meshgrid(places, places), -1)[None]
    op = node("GridSample", "x g", mode="nearest", padding_mode=padding)
    proto = model(op, {"x": x.shape, "g": grid.shape}, opset=16)
    found = compiled(proto, tmp_path).run({"x": x, "g": grid})["y"]
    assert np.isin(found, x).all()


@pytest.mark.parametrize("dtype", ["int64", "int32"])
@pytest.mark.parametrize("divisor", [7, -7, 8, -8, 1, [3, -3, 7, -7, 5, 1, 2, -2]], ids=str)
def test_remainder(rng: np.random.Generator, divisor: object, dtype: str, tmp_path: Path) -> None:
    feeds = {"x": integers(rng, -99, 99, 6, 8, dtype=dtype)}
    constants = {"d": np.array(divisor, dtype)}
    assert_right(node("Mod", "x d"), feeds, tmp_path, constants, output=dtype)


@pytest.mark.parametrize("op", ["Tan", "Asin", "Acos", "Atan", "Sinh", "Cosh", "Asinh", "Atanh"])
def test_trigonometry(op: str, tmp_path: Path) -> None:
    assert_right(node(op, "x"), {"x": np.linspace(-0.9, 0.9, 201, dtype=np.float32)}, tmp_path)


def test_infinities(tmp_path: Path) -> None:
    feeds = {"x": np.array([0, np.inf, -np.inf, np.nan, 3.4e38], np.float32)}
    assert_right(node("IsInf", "x"), feeds, tmp_path, output="bool")


@pytest.mark.parametrize("axis", [0, 1, -1])
def test_gather_elements(rng: np.random.Generator, axis: int, tmp_path: Path) -> None:
    x = values(rng, 4, 6, 5)
    shape = [3, 5, 4]
    shape[axis] = 9
    feeds = {"x": x, "i": integers(rng, -x.shape[axis], x.shape[axis], *shape)}
    assert_right(node("GatherElements", "x i", axis=axis), feeds, tmp_path)


@pytest.mark.parametrize("n_long", [3, 200])
def test_gather_elements_of_constants_folds(
    rng: np.random.Generator, n_long: int, tmp_path: Path
) -> None:
    constants = {"t": values(rng, 2, n_long), "i": integers(rng, 0, n_long, 1, 9)}
    nodes = [node("GatherElements", "t i", "g", axis=1), node("Add", "x g")]
    proto = model(nodes, {"x": (1, 9)}, constants)
    assert [c.label for c in build_network(save(proto, tmp_path)).calls] == ["Add"]
    assert_right(nodes, {"x": values(rng, 1, 9)}, tmp_path, constants)


@pytest.mark.parametrize(
    ("shape", "n_batch"), [((3, 2), 0), ((2, 5, 1), 0), ((4, 2), 1), ((4, 3, 1), 1)]
)
def test_gather_nd(
    rng: np.random.Generator, shape: tuple[int, ...], n_batch: int, tmp_path: Path
) -> None:
    x = values(rng, 4, 5, 6)
    limit = x.shape[n_batch]
    index = integers(rng, -limit, limit, *shape)
    assert_right(node("GatherND", "x i", batch_dims=n_batch), {"x": x, "i": index}, tmp_path)


@pytest.mark.parametrize("op", ["ScatterND", "ScatterElements"])
@pytest.mark.parametrize("dtype", ["float32", "int64"])
def test_scatter_at_constant_indices(
    rng: np.random.Generator, op: str, dtype: str, tmp_path: Path
) -> None:
    index, shape = np.array([[2, 1], [0, -1], [3, 0]]), (3, 5)
    if op == "ScatterElements":
        index, shape = np.array([[2, 1, -1], [0, 3, 2]]), (2, 3)
    feeds = {
        "x": integers(rng, -9, 9, 4, 3, 5, dtype=dtype),
        "u": integers(rng, -9, 9, *shape, dtype=dtype),
    }
    if op == "ScatterElements":
        feeds["x"] = feeds["x"][:, :, 0].copy()
    assert_right(node(op, "x i u"), feeds, tmp_path, {"i": index}, dtype)


@pytest.mark.parametrize("reduction", ["none", "add", "mul", "min", "max"])
@pytest.mark.parametrize(
    ("shape", "dtype"), [((40, 1), "float32"), ((7, 2, 2), "int64"), ((30, 3), "float32")]
)
def test_scatter_of_slices_at_computed_indices(
    rng: np.random.Generator, shape: tuple[int, ...], dtype: str, reduction: str, tmp_path: Path
) -> None:
    """Many updates of the same elements, negative indices, elements without any update."""
    x = integers(rng, -4, 5, 9, 5, 6, dtype=dtype)
    limits = np.array(x.shape[: shape[-1]])
    index = integers(rng, -5, 5, *shape)
    updates = integers(rng, -2, 3, *shape[:-1], *x.shape[shape[-1] :], dtype=dtype)
    assert (np.abs(index) <= limits).all()
    op = node("ScatterND", "x i u", reduction=reduction)
    if reduction == "none":  # ONNX Runtime keeps any of several
        index = np.unique(index.reshape(-1, shape[-1]) % limits, axis=0)
        updates = integers(rng, -2, 3, len(index), *x.shape[shape[-1] :], dtype=dtype)
    assert_right(op, {"x": x, "i": index, "u": updates}, tmp_path, output=dtype)


@pytest.mark.parametrize("reduction", ["none", "add", "mul", "min", "max"])
@pytest.mark.parametrize(
    ("shape", "axis", "dtype"),
    [
        ((9, 5, 6), 0, "float32"),
        ((4, 5, 3), 0, "int32"),
        ((4, 5, 3), 1, "float32"),
        ((9, 3, 8), -1, "uint8"),
    ],
)
def test_scatter_of_elements_at_computed_indices(
    rng: np.random.Generator,
    shape: tuple[int, ...],
    axis: int,
    dtype: str,
    reduction: str,
    tmp_path: Path,
) -> None:
    """Of several updates of an element the last one is kept, as in ONNX Runtime."""
    low = 0 if dtype == "uint8" else -2
    x, updates = (integers(rng, low, 3, *s, dtype=dtype) for s in ((9, 5, 6), shape))
    index = integers(rng, -5, 5, *shape)
    op = node("ScatterElements", "x i u", axis=axis, reduction=reduction)
    assert_right(op, {"x": x, "i": index, "u": updates}, tmp_path, output=dtype)


@pytest.mark.parametrize("op", ["ScatterND", "ScatterElements"])
def test_messages_of_a_graph_network(rng: np.random.Generator, op: str, tmp_path: Path) -> None:
    """Rows of senders, a product, and their sums at the receivers, as exporters write them."""
    into = node("Unsqueeze", "to one", "column")
    scatter = node("ScatterND", "zeros column messages", "sums", reduction="add")
    if op == "ScatterElements":
        wide = node("Expand", "column shape", "wide")
        scatter = node(op, "zeros wide messages", "sums", axis=0, reduction="add")
    nodes = [node("Gather", "x from", "rows"), node("MatMul", "rows w", "messages"), into]
    nodes += [wide] if op == "ScatterElements" else []
    nodes += [scatter, node("Relu", "sums", "y")]
    constants = {"w": values(rng, 8, 24), "one": np.array([1]), "zeros": np.zeros((30, 24), "f4")}
    constants |= {"shape": np.array([90, 24])}
    ends = integers(rng, 0, 30, 2, 90)
    feeds = {"x": values(rng, 30, 8), "from": ends[0], "to": ends[1]}
    assert_right(nodes, feeds, tmp_path, constants, atol=1e-5)


@pytest.mark.parametrize("op", ["ScatterND", "ScatterElements", "TensorScatter"])
def test_a_static_cache_at_a_position_of_run_time(
    rng: np.random.Generator, op: str, tmp_path: Path
) -> None:
    cache, new, at = values(rng, 2, 3, 16, 8), values(rng, 2, 3, 1, 8), np.array([5])
    feeds = {"cache": cache, "new": new, "at": at}
    if op == "ScatterND":  # positions first
        turned = {"cache": cache.transpose(2, 0, 1, 3), "new": new.transpose(2, 0, 1, 3)}
        feeds |= {name: a.copy() for name, a in turned.items()}
        nodes = [node("Unsqueeze", "at one", "rows"), node(op, "cache rows new")]
    elif op == "ScatterElements":
        nodes = [node("Expand", "at shape", "rows"), node(op, "cache rows new", axis=2)]
    else:
        feeds["at"] = np.array([5, 9])
        nodes = [node(op, "cache new at")]
    types = {name: str(a.dtype) for name, a in feeds.items()}
    known = {"one": np.array([1]), "shape": np.array([2, 3, 1, 8])}
    shapes = {n: a.shape for n, a in feeds.items()}
    proto = model(nodes, shapes, known, types=types, opset=24)
    want = feeds["cache"].copy()
    if op == "ScatterND":
        want[5] = feeds["new"][0]
    else:
        for batch, position in enumerate(feeds["at"] if op == "TensorScatter" else (5, 5)):
            want[batch, :, position] = new[batch, :, 0]
    found = compiled(proto, tmp_path).run(feeds)["y"]
    np.testing.assert_array_equal(found, want)


def test_the_last_of_several_updates_is_kept(rng: np.random.Generator, tmp_path: Path) -> None:
    types = {"i": "int64", "y": "float32"}
    proto = model(node("ScatterND", "x i u"), {"x": (3,), "i": (4, 1), "u": (4,)}, types=types)
    feeds = {"x": values(rng, 3), "i": np.array([[1], [0], [1], [0]]), "u": values(rng, 4)}
    found = compiled(proto, tmp_path).run(feeds)["y"]
    np.testing.assert_array_equal(found, [feeds["u"][3], feeds["u"][2], feeds["x"][2]])


@pytest.mark.sampled(2)
@pytest.mark.parametrize("order", [0, 1])
@pytest.mark.parametrize(
    ("shape", "attrs"),
    [
        ((2, 3, 6, 7), {"kernel_shape": [3, 2], "pads": [1, 1, 1, 0], "strides": [2, 1]}),
        ((2, 3, 9), {"kernel_shape": [3], "dilations": [2]}),
        ((1, 2, 4, 5, 6), {"kernel_shape": [2] * 3, "strides": [2] * 3, "ceil_mode": 1}),
        ((1, 2, 4, 5), {"kernel_shape": [2, 2], "auto_pad": "SAME_LOWER"}),
    ],
)
def test_places_of_the_largest_elements(
    rng: np.random.Generator,
    shape: tuple[int, ...],
    attrs: Mapping[str, object],
    order: int,
    tmp_path: Path,
) -> None:
    """The first one of several, whatever order the result counts them in."""
    op = node("MaxPool", "x", "_ y", storage_order=order, **attrs)
    x = integers(rng, -2, 2, *shape, dtype="float32")
    x[0, 0] = -np.inf
    assert_right(op, {"x": x}, tmp_path, output="int64")


def test_unpooling_puts_elements_where_they_were(rng: np.random.Generator, tmp_path: Path) -> None:
    window = {"kernel_shape": [2, 2], "strides": [2, 2]}
    nodes = [node("MaxPool", "x", "m i", **window), node("MaxUnpool", "m i", **window)]
    assert_right(nodes, {"x": values(rng, 2, 3, 6, 8)}, tmp_path)


@pytest.mark.parametrize("reduction", ["add", "mul", "min", "max"])
def test_flags_are_scattered_by_or_and_and(
    rng: np.random.Generator, reduction: str, tmp_path: Path
) -> None:
    flags = [integers(rng, 0, 2, *shape, dtype="bool") for shape in ((4, 3), (5, 3))]
    types = {"x": "bool", "u": "bool", "i": "int64", "y": "bool"}
    op = node("ScatterND", "x i u", reduction=reduction)
    proto = model(op, {"x": (4, 3), "i": (5, 1), "u": (5, 3)}, types=types, opset=18)
    index = np.array([[0], [2], [2], [0], [0]])
    want = flags[0].copy()
    combine = np.logical_or if reduction in ("add", "max") else np.logical_and
    for (row,), update in zip(index, flags[1], strict=True):
        want[row] = combine(want[row], update)
    found = compiled(proto, tmp_path).run({"x": flags[0], "i": index, "u": flags[1]})["y"]
    np.testing.assert_array_equal(found, want)


def test_values_of_padding_and_of_one_hot_at_run_time(
    rng: np.random.Generator, tmp_path: Path
) -> None:
    feeds = {"x": values(rng, 2, 3, 4), "f": values(rng)}
    pads = {"p": np.array([1, 0, -1, 2, 0, 3])}
    assert_right(node("Pad", "x p f"), feeds, tmp_path, pads)
    feeds = {"x": integers(rng, -4, 4, 3), "v": values(rng, 2)}
    assert_right(node("OneHot", "x d v", axis=0), feeds, tmp_path, {"d": np.array(4)})


@pytest.mark.parametrize("axis", [None, 0, -1])
def test_compress_by_a_constant(rng: np.random.Generator, axis: int | None, tmp_path: Path) -> None:
    attrs = {} if axis is None else {"axis": axis}
    constants = {"c": np.array([False, True, True])}
    assert_right(node("Compress", "x c", **attrs), {"x": values(rng, 4, 5)}, tmp_path, constants)


@pytest.mark.parametrize(
    ("op", "known"),
    [
        (node("Gather", "x n", axis=0), "NonZero"),
        (node("Gather", "x n", axis=1), "Unique"),
    ],
)
def test_what_constants_tell_is_no_operator(
    rng: np.random.Generator, op: NodeProto, known: str, tmp_path: Path
) -> None:
    folded = node(known, "c", "n" if known == "NonZero" else "u n")
    constants = {"c": np.array([3, 0, 2, 3])}
    assert_right([folded, op], {"x": values(rng, 5, 6)}, tmp_path, constants)


# --- along an axis ----------------------------------------------------------------------------


@pytest.mark.sampled(3)
@pytest.mark.parametrize(("dtype", "exclusive"), [("int64", 0), ("int32", 1), ("float32", 1)])
@pytest.mark.parametrize("reverse", [0, 1])
@pytest.mark.parametrize(
    ("shape", "axis"), [((3, 21), 0), ((3, 21), 1), ((2, 150), -1), ((1100, 2), 0)]
)
def test_running_sum(
    rng: np.random.Generator,
    shape: tuple[int, ...],
    axis: int,
    reverse: int,
    dtype: str,
    exclusive: int,
    tmp_path: Path,
) -> None:
    feeds = {"x": integers(rng, -9, 9, *shape, dtype=dtype)}
    op = node("CumSum", "x a", exclusive=exclusive, reverse=reverse)
    assert_right(op, feeds, tmp_path, {"a": np.array(axis)}, dtype)


@pytest.mark.parametrize("op", ["ArgMax", "ArgMin"])
@pytest.mark.parametrize("dtype", ["int32", "float32"])
@pytest.mark.parametrize(("axis", "keep", "last"), [(0, 1, 0), (1, 0, 0), (-1, 0, 1), (2, 1, 1)])
def test_where_the_extremum_is(
    rng: np.random.Generator, op: str, dtype: str, axis: int, keep: int, last: int, tmp_path: Path
) -> None:
    feeds = {"x": integers(rng, -3, 3, 3, 5, 40, dtype=dtype)}
    found = node(op, "x", axis=axis, keepdims=keep, select_last_index=last)
    assert_right(found, feeds, tmp_path, output="int64")


@pytest.mark.parametrize("op", ["ReduceSum", "ReduceMax", "ReduceMin", "ReduceProd"])
def test_reductions_of_integers(rng: np.random.Generator, op: str, tmp_path: Path) -> None:
    feeds = {"x": integers(rng, -4, 5, 6, 20)}
    constants = {"a": np.array([1])} if op == "ReduceSum" else {}
    chosen = node(op, "x a") if op == "ReduceSum" else node(op, "x", axes=[1])
    assert_right(chosen, feeds, tmp_path, constants, "int64")


# --- element by element -----------------------------------------------------------------------


@pytest.mark.parametrize("op", ["Equal", "Less", "LessOrEqual", "Greater", "GreaterOrEqual"])
@pytest.mark.parametrize("dtype", ["int64", "int32", "float32"])
def test_comparisons(rng: np.random.Generator, op: str, dtype: str, tmp_path: Path) -> None:
    feeds = {n: integers(rng, -2, 3, *s, dtype=dtype) for n, s in (("x", (6, 20)), ("z", (20,)))}
    assert_right(node(op, "x z"), feeds, tmp_path, output="bool")
    one = {"z": np.array([1], dtype)}
    assert_right(node(op, "x z"), {"x": feeds["x"]}, tmp_path, one, "bool")


@pytest.mark.parametrize("op", ["And", "Or", "Xor", "Equal"])
def test_logic(rng: np.random.Generator, op: str, tmp_path: Path) -> None:
    feeds = {n: integers(rng, 0, 2, *s, dtype="bool") for n, s in (("x", (6, 20)), ("z", (6, 1)))}
    assert_right([node(op, "x z", "b"), node("Not", "b")], feeds, tmp_path, output="bool")


@pytest.mark.parametrize("op", ["Add", "Sub", "Mul", "Max", "Min"])
@pytest.mark.parametrize("dtype", ["int64", "int32"])
def test_arithmetic_of_integers(
    rng: np.random.Generator, op: str, dtype: str, tmp_path: Path
) -> None:
    feeds = {n: integers(rng, -99, 99, *s, dtype=dtype) for n, s in (("x", (6, 20)), ("z", (6, 1)))}
    nodes = [node(op, "x z", "t"), node(op, "t c", "u"), node("Abs", "u", "v"), node("Neg", "v")]
    assert_right(nodes, feeds, tmp_path, {"c": np.array(7, dtype)}, dtype)


def test_clip_of_integers(rng: np.random.Generator, tmp_path: Path) -> None:
    constants = {"lo": np.array(-3), "hi": np.array(5)}
    feeds = {"x": integers(rng, -9, 9, 5, 20)}
    assert_right(node("Clip", "x lo hi"), feeds, tmp_path, constants, "int64")


@pytest.mark.parametrize("target", ["float32", "int64", "int32", "bool"])
@pytest.mark.parametrize("source", ["float32", "int64", "int32", "bool"])
def test_casts(rng: np.random.Generator, source: str, target: str, tmp_path: Path) -> None:
    to = helper.np_dtype_to_tensor_dtype(np.dtype(target))
    x = (values(rng, 5, 20) * 9 if source == "float32" else integers(rng, 0, 2, 5, 20)).astype(
        source
    )
    assert_right(node("Cast", "x", to=to), {"x": x}, tmp_path, output=target)


@pytest.mark.parametrize("dtype", ["float32", "int64"])
def test_where(rng: np.random.Generator, dtype: str, tmp_path: Path) -> None:
    feeds = {
        "c": integers(rng, 0, 2, 6, 1, dtype="bool"),
        "x": integers(rng, 0, 9, 6, 20, dtype=dtype),
    }
    feeds["z"] = integers(rng, 0, 9, 20, dtype=dtype)
    assert_right(node("Where", "c x z"), feeds, tmp_path, output=dtype)


def test_masked_scores(rng: np.random.Generator, tmp_path: Path) -> None:
    """What exporters put between mask and softmax, behind a product."""
    nodes = [
        node("MatMul", "x w", "s"),
        node("Cast", "m", "b", to=9),
        node("Where", "b s low", "k"),
        node("Softmax", "k", "p"),
        node("IsNaN", "p", "n"),
        node("Where", "n zero p"),
    ]
    feeds = {"x": values(rng, 2, 7, 12), "m": integers(rng, 0, 2, 2, 1, 20)}
    feeds["m"][1] = 0
    constants = {"w": values(rng, 12, 20), "low": np.float32(-np.inf), "zero": np.float32(0)}
    found = assert_right(nodes, feeds, tmp_path, constants)
    assert not found[1].any()


@pytest.mark.parametrize("dtype", ["int64", "int32", "bool"])
def test_moving_integers(rng: np.random.Generator, dtype: str, tmp_path: Path) -> None:
    nodes = [
        node("Transpose", "x", "t", perm=[1, 0]),
        node("Concat", "t z", "c", axis=0),
        node("Slice", "c from to", "s"),
        node("Unsqueeze", "s one", "u"),
        node("Expand", "u shape"),
    ]
    feeds = {
        "x": integers(rng, 0, 9, 5, 4, dtype=dtype),
        "z": integers(rng, 0, 9, 3, 5, dtype=dtype),
    }
    constants = {"from": np.array([1, 0]), "to": np.array([6, 4]), "one": np.array([1])}
    constants["shape"] = np.array([5, 3, 4])
    assert_right(nodes, feeds, tmp_path, constants, dtype)


def test_what_has_no_meaning_for_integers_is_refused(tmp_path: Path) -> None:
    proto = model(node("ReduceL2", "x"), {"x": (4,)}, types={"x": "int64", "y": "int64"})
    with pytest.raises(UnsupportedOperator, match=r"'ReduceL2'.*type int64"):
        build_network(save(proto, tmp_path))


# --- inputs -----------------------------------------------------------------------------------


def test_made_up_inputs_are_valid_indices_and_flags(
    rng: np.random.Generator, tmp_path: Path
) -> None:
    nodes = [
        node("Gather", "words i", "a"),
        node("CumSum", "mask axis", "n"),
        node("Gather", "positions n", "b"),
        node("Cast", "j", "k", to=7),
        node("Add", "k one", "next"),
        node("Gather", "kinds next", "c"),
        node("Sum", "a b c"),
    ]
    constants = {
        "words": values(rng, 300, 8),
        "positions": values(rng, 99, 8),
        "kinds": values(rng, 4, 8),
    }
    constants |= {"axis": np.array(0), "one": np.array(1)}
    types = {"i": "int64", "j": "int32", "mask": "int64"}
    proto = model(nodes, {"i": (64,), "j": (64,), "mask": (64,)}, constants, types=types)
    network = build_network(save(proto, tmp_path))
    assert {p.name: p.limit for p in network.inputs} == {"i": 300, "j": 3, "mask": 2}
    artifact = compile_network(network, dict.fromkeys(network.tasks, ()), TARGET)
    artifact.save(tmp_path / "m.atn")
    made = random_inputs(read_artifact(tmp_path / "m.atn").inputs)
    assert {n: (int(a.min()), int(a.max())) for n, a in made.items() if n != "i"} == {
        "j": (0, 2),
        "mask": (0, 1),
    }
    assert 0 <= made["i"].min() < 100 < 200 < made["i"].max() < 300


@pytest.mark.slow
def test_tasks_of_a_text_transformer_pass_the_oracle(tmp_path: Path) -> None:
    network = build_network(save(text_transformer(), tmp_path))
    kinds = {p.tensor.dtype for dag in network.tasks.values() for p in dag.placeholders}
    assert kinds == {"float32", "int64", "bool"}
    with local_measurer(TARGET, 1, MeasureOptions(min_repeats=1, max_repeats=1)) as measurer:
        for dag in network.tasks.values():
            (result,) = measurer.measure(dag, [default_steps(dag, TARGET, 1)])
            assert result.ok, result.error


def test_inputs_of_another_type_are_refused(rng: np.random.Generator, tmp_path: Path) -> None:
    proto = model(
        node("Gather", "x i"), {"i": (3,)}, {"x": values(rng, 5, 4)}, types={"i": "int64"}
    )
    runner = compiled(proto, tmp_path)
    with pytest.raises(UsageError, match="'i' has dtype float32, expected int64"):
        runner.run({"i": values(rng, 3)})
