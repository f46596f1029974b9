"""Operators that are written in terms of others, and what exporters make of them."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import pytest

from autotune.errors import UnsupportedOperator
from autotune.graph.network import build_network
from tests.graph.onnx_models import assert_matches, execute, model, node, save

RNG = np.random.default_rng(0)
IMAGE = {"x": (2, 6, 9, 7)}


def values(rng: np.random.Generator, *shape: int) -> np.ndarray:
    return rng.standard_normal(shape).astype(np.float32)


CONV = node("Conv", "x w", "t", pads=[1, 1, 1, 1])
WEIGHT = {"w": values(RNG, 6, 6, 3, 3)}


@pytest.mark.parametrize(
    ("equation", "shapes"),
    [
        ("bij,bjk->bik", [(2, 3, 4), (2, 4, 5)]),
        ("bhid,bhjd->bhij", [(1, 2, 3, 4), (1, 2, 5, 4)]),
        ("bcij,kc->bkij", [(2, 6, 3, 4), (5, 6)]),
        ("nkctv,kvw->nctw", [(1, 2, 3, 4, 5), (2, 5, 5)]),
        ("...ij,jk->...ik", [(2, 3, 4), (4, 5)]),
        ("...ij,...jk", [(2, 1, 3, 4), (1, 3, 4, 5)]),
        ("abc,cd,de->abe", [(2, 3, 4), (4, 5), (5, 6)]),
        ("i,j->ij", [(3,), (4,)]),
        ("bijk->bi", [(2, 3, 4, 5)]),
        ("ij->ji", [(3, 4)]),
        ("ii->i", [(3, 3)]),
        ("ij,ij->", [(3, 4), (3, 4)]),
    ],
)
def test_einsum(equation: str, shapes: list[tuple[int, ...]], tmp_path: Path) -> None:
    names = "abc"[: len(shapes)]
    op = node("Einsum", " ".join(names), equation=equation)
    assert_matches(model(op, dict(zip(names, shapes, strict=True))), tmp_path)


def test_einsum_behind_a_convolution(rng: np.random.Generator, tmp_path: Path) -> None:
    nodes = [CONV, node("Einsum", "t m", "u", equation="bchw,oc->bohw"), node("Relu", "u")]
    assert_matches(model(nodes, IMAGE, WEIGHT | {"m": values(rng, 5, 6)}), tmp_path, 1e-5)


def test_product_of_vectors(tmp_path: Path) -> None:
    assert_matches(model(node("MatMul", "a b"), {"a": (5,), "b": (5,)}), tmp_path)


@pytest.mark.parametrize("scales", [(2, 1.5), (0.6, 1.5), (0.5, 0.7)])
@pytest.mark.parametrize(
    "attrs",
    [
        {"mode": "cubic"},
        {"mode": "cubic", "cubic_coeff_a": -0.5, "exclude_outside": 1},
        {"mode": "cubic", "antialias": 1},
        {"mode": "linear", "antialias": 1},
        {"mode": "linear", "antialias": 1, "exclude_outside": 1},
        {"mode": "linear", "coordinate_transformation_mode": "half_pixel_symmetric"},
    ],
    ids=str,
)
def test_resize_by_kernels(
    attrs: dict[str, object], scales: tuple[float, float], tmp_path: Path
) -> None:
    constants = {"s": np.array([1, 1, *scales], np.float32)}
    proto = model(node("Resize", "x _ s", **attrs), IMAGE, constants, opset=19)
    assert_matches(proto, tmp_path, 1e-5)


@pytest.mark.parametrize("scales", [(2, 1.5), (3, 0.6)])
@pytest.mark.parametrize("attrs", [{"mode": "nearest"}, {"mode": "linear"}, {"mode": "cubic"}])
def test_resize_of_many_channels_adds_up_neighbours(
    attrs: dict[str, object], scales: tuple[float, float], tmp_path: Path
) -> None:
    constants = {"s": np.array([1, 1, *scales], np.float32)}
    nodes = [node("Resize", "x _ s", "r", **attrs), node("Relu", "r")]
    proto = model(nodes, {"x": (2, 48, 9, 7)}, constants, opset=19)
    network = assert_matches(proto, tmp_path, 1e-5)
    assert [c.label for c in network.calls] == ["Transpose", "Interpolate+Relu", "Transpose"]


def test_resize_by_many_neighbours_is_a_product(tmp_path: Path) -> None:
    attrs = {"mode": "linear", "antialias": 1}
    constants = {"s": np.array([1, 1, 2, 1 / 32], np.float32)}
    proto = model(node("Resize", "x _ s", **attrs), {"x": (1, 16, 5, 160)}, constants, opset=19)
    network = assert_matches(proto, tmp_path, 1e-5)
    assert [c.label for c in network.calls] == ["Transpose", "MatMul", "Interpolate", "Transpose"]


@pytest.mark.parametrize("scale", [2, 1.5])
def test_resize_of_integers(scale: float, tmp_path: Path) -> None:
    nodes = [
        node("Cast", "x", "i", to=onnx.TensorProto.INT32),
        node("Resize", "i _ s", "r", mode="nearest"),
        node("Cast", "r", to=onnx.TensorProto.FLOAT),
    ]
    constants = {"s": np.array([1, 1, scale, scale], np.float32)}
    assert_matches(model(nodes, IMAGE, constants, opset=19), tmp_path)


@pytest.mark.parametrize("policy", ["stretch", "not_larger", "not_smaller"])
def test_resize_of_some_axes(policy: str, tmp_path: Path) -> None:
    attrs = {"mode": "linear", "keep_aspect_ratio_policy": policy, "axes": [3, 2]}
    proto = model(node("Resize", "x _ _ n", **attrs), IMAGE, {"n": np.array([5, 12])}, opset=18)
    assert_matches(proto, tmp_path, 1e-5)


@pytest.mark.parametrize("mode", ["nearest", "linear"])
@pytest.mark.parametrize(("op", "opset"), [("Upsample", 9), ("Resize", 10)])
def test_resize_of_old_opsets_is_asymmetric(op: str, opset: int, mode: str, tmp_path: Path) -> None:
    constants = {"s": np.array([1, 1, 2, 1.5], np.float32)}
    proto = model(node(op, "x s", mode=mode), IMAGE, constants, opset=opset)
    assert_matches(proto, tmp_path, 1e-5)


@pytest.mark.parametrize(
    ("block", "attrs"),
    [
        ((2, 2), {"strides": [2, 2]}),
        ((3, 2), {"strides": [1, 1]}),
        ((3, 3), {"strides": [2, 1], "pads": [1, 0, 1, 2]}),
        ((2, 2), {"dilations": [2, 1]}),
    ],
    ids=str,
)
def test_columns_to_image(
    block: tuple[int, int], attrs: dict[str, list[int]], tmp_path: Path
) -> None:
    size, n = (6, 8), 1
    for a in range(2):
        taps = attrs.get("dilations", [1, 1])[a] * (block[a] - 1) + 1
        pads = attrs.get("pads", [0] * 4)
        n *= (size[a] + pads[a] + pads[2 + a] - taps) // attrs.get("strides", [1, 1])[a] + 1
    op = node("Col2Im", "x s b", **attrs)
    constants = {"s": np.array(size), "b": np.array(block)}
    proto = model(op, {"x": (2, 3 * block[0] * block[1], n)}, constants, opset=18)
    assert_matches(proto, tmp_path)


@pytest.mark.parametrize("p", [1, 2, 3])
def test_pooling_by_norms(p: int, tmp_path: Path) -> None:
    attrs = {"kernel_shape": [3, 2], "strides": [2, 1], "pads": [1, 0, 1, 1]}
    assert_matches(model(node("LpPool", "x", p=p, **attrs), IMAGE), tmp_path, 1e-5)


@pytest.mark.parametrize("p", [1, 2])
@pytest.mark.parametrize("axis", [0, 1, -1])
def test_division_by_norms(axis: int, p: int, tmp_path: Path) -> None:
    nodes = [node("Relu", "x", "r"), node("LpNormalization", "r", axis=axis, p=p)]
    proto = model([*nodes, node("Mul", "y zero", "z")], IMAGE, {"zero": np.float32(0)}, "y z")
    assert_matches(proto, tmp_path, 1e-5)


@pytest.mark.parametrize("p", [1, 2, 3])
def test_global_pooling_by_norms(p: int, tmp_path: Path) -> None:
    nodes = [CONV, node("GlobalLpPool", "t", p=p)]
    assert_matches(model(nodes, IMAGE, WEIGHT), tmp_path, 1e-5)


@pytest.mark.parametrize("op", ["AveragePool", "MaxPool"])
def test_pooling_beyond_the_image_has_no_more_taps_than_it(op: str, tmp_path: Path) -> None:
    pool = node(op, "x", kernel_shape=[50, 60], strides=[50, 60], ceil_mode=1)
    network = assert_matches(model(pool, IMAGE, opset=19), tmp_path)
    assert sum(dag.flops for dag in network.tasks.values()) < 4 * 2 * 6 * 9 * 7


@pytest.mark.parametrize("keep", [0, 1])
@pytest.mark.parametrize("axes", [[1], [2, 3], [0, 1, 2, 3]])
def test_log_sum_exp(axes: list[int], keep: int, tmp_path: Path) -> None:
    nodes = [node("Mul", "x c", "t"), node("ReduceLogSumExp", "t a", keepdims=keep)]
    constants = {"a": np.array(axes), "c": np.float32(60)}
    assert_matches(model(nodes, IMAGE, constants, opset=18), tmp_path, 1e-5)


@pytest.mark.parametrize("n_groups", [1, 2, 6])
@pytest.mark.parametrize("behind", [False, True])
def test_group_normalization(
    rng: np.random.Generator, n_groups: int, behind: bool, tmp_path: Path
) -> None:
    nodes = [
        CONV if behind else node("Identity", "x", "t"),
        node("GroupNormalization", "t s b", "u", num_groups=n_groups),
        node("Relu", "u"),
    ]
    constants = WEIGHT | {"s": values(rng, 6), "b": values(rng, 6)}
    assert_matches(model(nodes, IMAGE, constants, opset=21), tmp_path, 2e-5)


def test_group_normalization_as_exporters_write_it(
    rng: np.random.Generator, tmp_path: Path
) -> None:
    nodes = [
        CONV,
        node("Reshape", "t split", "g"),
        node("InstanceNormalization", "g one zero", "i"),
        node("Reshape", "i back", "u"),
        node("Mul", "u scale", "v"),
        node("Add", "v shift", "z"),
        node("Conv", "z w"),
    ]
    constants = WEIGHT | {
        **{"split": np.array([0, 3, -1]), "back": np.array([2, 6, 9, 7])},
        **{"one": np.ones(3, np.float32), "zero": np.zeros(3, np.float32)},
        **{"scale": values(rng, 6, 1, 1), "shift": values(rng, 6, 1, 1)},
    }
    network = assert_matches(model(nodes, IMAGE, constants), tmp_path, 2e-5)
    labels = ["Transpose+Conv", "GroupNormalization+Mul+Add", "Conv", "Transpose"]
    assert [c.label for c in network.calls] == labels


@pytest.mark.parametrize(("n_groups", "n_out"), [(1, 4), (4, 16), (2, 8)])
def test_weights_that_are_a_row_of_a_product_come_in_the_order_of_the_convolution(
    rng: np.random.Generator, n_groups: int, n_out: int, tmp_path: Path
) -> None:
    dims = np.array([n_out, 4 // n_groups, 3, 3])
    nodes = [node("Softmax", "r", "s"), node("MatMul", "s experts", "m")]
    nodes += [node("Reshape", "m dims", "w"), node("Conv", "x w", pads=[1] * 4, group=n_groups)]
    constants = {"experts": values(rng, 3, int(dims.prod())), "dims": dims}
    proto = model(nodes, {"x": (1, 4, 9, 7), "r": (1, 3)}, constants)
    labels = [c.label for c in assert_matches(proto, tmp_path).calls]
    assert " ".join(labels).count("Transpose") == 2  # of the image and of the result


def test_weights_that_somebody_else_reads_too_are_put_in_order_apart(
    rng: np.random.Generator, tmp_path: Path
) -> None:
    nodes = [node("MatMul", "r experts", "m"), node("Reshape", "m dims", "w")]
    nodes += [node("Conv", "x w", pads=[1] * 4), node("Relu", "m", "z")]
    constants = {"experts": values(rng, 3, 144), "dims": np.array([4, 4, 3, 3])}
    proto = model(nodes, {"x": (1, 4, 9, 7), "r": (1, 3)}, constants, "y z")
    labels = [c.label for c in assert_matches(proto, tmp_path).calls]
    assert labels.count("MatMul") == 1


def test_tokens_become_an_image_and_tokens_again_without_transposes(
    rng: np.random.Generator, tmp_path: Path
) -> None:
    nodes = [
        node("MatMul", "x m", "a"),
        node("Transpose", "a", "b", perm=[0, 2, 1]),
        node("Reshape", "b image", "c"),
        node("Conv", "c k", "d", group=8, pads=[1, 1, 1, 1]),
        node("Reshape", "d tokens", "e"),
        node("Transpose", "e", "f", perm=[0, 2, 1]),
        node("MatMul", "f n"),
    ]
    constants = {
        **{"m": values(rng, 5, 8), "k": values(rng, 8, 1, 3, 3), "n": values(rng, 8, 5)},
        **{"image": np.array([2, 8, 4, 3]), "tokens": np.array([2, 8, -1])},
    }
    network = assert_matches(model(nodes, {"x": (2, 12, 5)}, constants), tmp_path, 1e-5)
    assert [c.label for c in network.calls] == ["MatMul", "Conv", "MatMul"]


@pytest.mark.parametrize("behind", [False, True])
def test_tile(behind: bool, tmp_path: Path) -> None:
    first = CONV if behind else node("Relu", "x", "t")
    proto = model([first, node("Tile", "t r")], IMAGE, WEIGHT | {"r": np.array([1, 2, 1, 3])})
    assert_matches(proto, tmp_path, 1e-5)


@pytest.mark.parametrize("upper", [0, 1])
@pytest.mark.parametrize("k", [-2, 0, 3])
def test_triangle(upper: int, k: int, tmp_path: Path) -> None:
    assert_matches(model(node("Trilu", "x k", upper=upper), IMAGE, {"k": np.array(k)}), tmp_path)


def test_padding_around_a_torus(tmp_path: Path) -> None:
    op = node("Pad", "x p", mode="wrap")
    proto = model(op, IMAGE, {"p": np.array([0, 0, 1, 2, 0, 0, 3, 1])}, opset=19)
    assert_matches(proto, tmp_path)


def test_mean_of_several(tmp_path: Path) -> None:
    shapes = {"x": (2, 3), "z": (2, 1), "q": (3,)}
    assert_matches(model(node("Mean", "x z q"), shapes), tmp_path)


@pytest.mark.parametrize("op", ["Sin", "Cos"])
@pytest.mark.parametrize("scale", [1, 100])
def test_sine(op: str, scale: float, tmp_path: Path) -> None:
    proto = model([node("Mul", "x c", "t"), node(op, "t")], IMAGE, {"c": np.float32(scale)})
    assert_matches(proto, tmp_path, 1e-6 * scale)


@pytest.mark.parametrize(
    "op", ["Tan", "Asin", "Acos", "Atan", "Sinh", "Cosh", "Asinh", "Acosh", "Atanh"]
)
@pytest.mark.parametrize("scale", [1e-3, 0.3, 0.999, 1, 5, 80])
def test_trigonometry(op: str, scale: float, tmp_path: Path) -> None:
    """On both sides of zero, from 0 to `scale`, beyond 1 where that has a value at all."""
    if op in ("Asin", "Acos", "Atanh"):
        scale = min(scale, 1)
    points = np.concatenate([np.linspace(-scale, scale, 4001), [0.0]]).astype(np.float32)
    if op == "Acosh":
        points = np.abs(points) + np.float32(1)
    if op == "Atanh":
        points *= np.float32(0.99)
    proto = model(node(op, "x"), {"x": points.shape})
    network = build_network(save(proto, tmp_path))
    with np.errstate(over="ignore"):
        expected = getattr(np, op.lower().replace("a", "arc", 1) if op[0] == "A" else op.lower())(
            points.astype(np.float64)
        )
    found = execute(network, {"x": points})["y"]
    bound = np.maximum(np.abs(expected), 1.0) * (3e-7 if op != "Tan" else 3e-6 * scale**2 + 3e-7)
    assert (np.abs(found - expected) <= bound * np.maximum(np.abs(expected), 1.0)).all()


@pytest.mark.parametrize("kind", ["float32", "int64", "int32"])
def test_remainder(rng: np.random.Generator, kind: str, tmp_path: Path) -> None:
    """Of floats with the sign of the dividend, of whole numbers with that of the divisor."""
    x = (rng.standard_normal((6, 9)) * 30).astype(kind)
    y = np.array([3, -3, 7, -7, 5, 1, 2, -2, 11], kind)
    op = node("Mod", "x d", fmod=int(kind == "float32"))
    path = save(model(op, {"x": x.shape}, {"d": y}, types={"x": kind, "y": kind}), tmp_path)
    expected = np.fmod(x, y) if kind == "float32" else np.mod(x, y)
    found = execute(build_network(path), {"x": x})["y"]
    assert found.dtype == x.dtype
    np.testing.assert_allclose(found, expected, atol=1e-5)


@pytest.mark.parametrize(("above", "below"), [(1, 1), (1, 0), (0, 1)])
def test_infinities(above: int, below: int, tmp_path: Path) -> None:
    x = np.array([0, np.inf, -np.inf, np.nan, 3.4e38], np.float32)
    op = node("IsInf", "x", detect_positive=above, detect_negative=below)
    path = save(model(op, {"x": x.shape}, types={"y": "bool"}), tmp_path)
    expected = [False, bool(above), bool(below), False, False]
    assert execute(build_network(path), {"x": x})["y"].tolist() == expected


@pytest.mark.parametrize("padding", ["zeros", "border", "reflection"])
@pytest.mark.parametrize("aligned", [0, 1])
@pytest.mark.parametrize("mode", ["linear", "nearest"])
@pytest.mark.parametrize("rank", [2, 3])
def test_reading_between_pixels(
    mode: str, aligned: int, padding: str, rank: int, tmp_path: Path
) -> None:
    """Places of a standard normal grid are inside, at the edge of and beyond the image."""
    op = node("GridSample", "t g", mode=mode, align_corners=aligned, padding_mode=padding)
    shapes = {"x": (2, 5, *(4, 9, 7)[-rank:]), "g": (2, *(3, 6, 4)[-rank:], rank)}
    nodes = [node("Relu", "x", "t"), op]
    assert_matches(model(nodes, shapes, opset=20), tmp_path, 1e-5)


@pytest.mark.parametrize("opset", [16, 20])
def test_reading_between_the_pixels_of_a_convolution(
    rng: np.random.Generator, opset: int, tmp_path: Path
) -> None:
    """A grid that a convolution makes, of an image that another one does."""
    nodes = [
        CONV,
        node("Conv", "x v", "o", pads=[1, 1, 1, 1]),
        node("Tanh", "o", "p"),
        node("Transpose", "p", "g", perm=[0, 2, 3, 1]),
        node("GridSample", "t g", "s", mode="bilinear" if opset < 20 else "linear"),
        node("Relu", "s"),
    ]
    constants = WEIGHT | {"v": values(rng, 2, 6, 3, 3) / 5}
    assert_matches(model(nodes, IMAGE, constants, opset=opset), tmp_path, 1e-4)


def test_power_of_a_whole_number(tmp_path: Path) -> None:
    assert_matches(model(node("Pow", "x p"), IMAGE, {"p": np.array(3)}), tmp_path)


def test_an_output_may_be_a_constant(rng: np.random.Generator, tmp_path: Path) -> None:
    nodes = [node("Relu", "x", "y"), node("Identity", "c", "z")]
    proto = model(nodes, IMAGE, {"c": values(rng, 3, 2)}, "y z")
    assert_matches(proto, tmp_path)


def test_equal_tasks_of_other_operators_are_called_by_one_name(tmp_path: Path) -> None:
    nodes = [
        node("Resize", "x _ s", "a", mode="nearest"),
        node("Expand", "x e", "b"),
    ]
    constants = {"s": np.array([5, 1, 1], np.float32), "e": np.array([5, 4, 3])}
    proto = model(nodes, {"x": (1, 4, 3)}, constants, "a b", opset=13)
    network = assert_matches(proto, tmp_path)
    for call in network.calls:
        assert tuple(call.outputs) == network.tasks[call.task].outputs


def test_operators_newer_than_what_models_are_brought_to(
    rng: np.random.Generator, tmp_path: Path
) -> None:
    proto = model(node("Swish", "x"), IMAGE, opset=24)
    path = save(proto, tmp_path)
    network = build_network(path)
    x = values(rng, *IMAGE["x"])
    assert onnx.load(path).opset_import[0].version == 24
    np.testing.assert_allclose(execute(network, {"x": x})["y"], x / (1 + np.exp(-x)), rtol=1e-5)


@pytest.mark.parametrize("largest", [0, 1])
@pytest.mark.parametrize(
    ("shape", "axis", "k"),
    [
        ((2, 6, 9), -1, 3),
        ((2, 6, 9), 1, 1),
        ((2, 6, 9), 0, 2),
        ((2, 6, 9), 2, 9),
        ((2, 131), -1, 2),
        ((3, 500, 2), 1, 20),
        ((2, 900, 2), 1, 40),
        ((1, 17_000), -1, 3_000),
    ],
)
def test_top_k(shape: tuple[int, ...], axis: int, k: int, largest: int, tmp_path: Path) -> None:
    """Rounded values are equal now and then: the first of them comes first, also among blocks."""
    nodes = [
        node("Round", "x", "r"),
        node("TopK", "r k", "y i", axis=axis, largest=largest),
    ]
    proto = model(nodes, {"x": shape}, {"k": np.array([k])}, "y i")
    proto.graph.output[1].type.tensor_type.elem_type = onnx.TensorProto.INT64
    assert_matches(proto, tmp_path)


@pytest.mark.parametrize("fill", [-np.inf, np.inf])
def test_top_k_of_elements_that_come_last_anyway(fill: float, tmp_path: Path) -> None:
    """What fills up the last block is never among them."""
    nodes = [node("Where", "some x fill", "r"), node("TopK", "r k", "y i", largest=int(fill < 0))]
    some = np.isin(np.arange(101), (3, 50, 99))
    constants = {"some": some, "fill": np.float32(fill), "k": np.array([5])}
    proto = model(nodes, {"x": (1, 101)}, constants, "i")
    proto.graph.output[0].type.tensor_type.elem_type = onnx.TensorProto.INT64
    assert_matches(proto, tmp_path)


def test_top_k_of_integers_behind_a_convolution(tmp_path: Path) -> None:
    nodes = [
        CONV,
        node("Reshape", "t flat", "f"),
        node("TopK", "f k", "best at", axis=1),
        node("TopK", "at k", "z y", axis=1, largest=0),
        node("Cast", "z", "zf", to=onnx.TensorProto.FLOAT),
        node("Add", "zf best", "w2"),
    ]
    constants = WEIGHT | {"flat": np.array([2, -1]), "k": np.array([5])}
    assert_matches(model(nodes, IMAGE, constants, "w2"), tmp_path, 1e-5)


def test_top_k_of_too_many_is_refused(tmp_path: Path) -> None:
    proto = model(node("TopK", "x k", "y i"), {"x": (1, 20_000)}, {"k": np.array([17_000])}, "y")
    with pytest.raises(UnsupportedOperator, match="ranks more than 16384"):
        build_network(save(proto, tmp_path))


@pytest.mark.parametrize("axis", [-1, 0, 1])
def test_one_hot(axis: int, tmp_path: Path) -> None:
    """Indices from behind, and one that is nowhere."""
    nodes = [
        node("Add", "x some", "i"),
        node("OneHot", "i depth pair", "y", axis=axis),
    ]
    constants = {
        "some": np.array([[0, 1, -1], [4, -5, 9]]),
        "depth": np.array(5),
        "pair": np.array([0.25, 3], np.float32),
    }
    proto = model(nodes, {"x": (2, 3)}, constants, types={"x": "int64"})
    assert_matches(proto, tmp_path)


def test_an_optional_that_holds_a_tensor_is_that_tensor(tmp_path: Path) -> None:
    nodes = [
        node("Optional", "x", "o"),
        node("OptionalHasElement", "o", "has"),
        node("OptionalGetElement", "o", "e"),
        node("Relu", "e"),
    ]
    proto = model(nodes, {"x": (3, 4)}, outputs="y has", opset=18, types={"has": "bool"})
    assert_matches(proto, tmp_path)


def test_an_optional_holds_a_sequence_or_nothing(tmp_path: Path) -> None:
    kind = onnx.helper.make_tensor_type_proto(onnx.TensorProto.FLOAT, None)
    nodes = [
        node("SequenceConstruct", "x x", "s"),
        node("Optional", "s", "o"),
        node("OptionalHasElement", "o", "has"),
        node("OptionalGetElement", "o", "e"),
        node("ConcatFromSequence", "e", "y", axis=0),
        node("Optional", "", "nothing", type=kind),
        node("OptionalHasElement", "nothing", "has_not"),
        node("OptionalHasElement", "", "neither"),
        node("OptionalHasElement", "_", "nor"),
    ]
    answers = ("has", "has_not", "neither", "nor")
    types = dict.fromkeys(answers, "bool")
    proto = model(nodes, {"x": (3, 4)}, outputs=f"y {' '.join(answers)}", opset=18, types=types)
    network = build_network(save(proto, tmp_path))
    x = np.ones((3, 4), np.float32)
    found = execute(network, {"x": x})
    assert np.array_equal(found["y"], np.concatenate([x, x]))
    assert [bool(found[name]) for name in answers] == [True, False, False, False]
