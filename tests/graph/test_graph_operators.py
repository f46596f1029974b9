"""Every operator against onnxruntime, on small models made by hand."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from onnx import NodeProto, numpy_helper

from autotune.graph.network import build_network
from autotune.te.expr import variables
from tests.graph.onnx_models import assert_matches, model, node, save

IMAGE = {"x": (2, 6, 9, 7)}


def values(rng: np.random.Generator, *shape: int) -> np.ndarray:
    return rng.standard_normal(shape).astype(np.float32)


UNARY = [
    node("Relu", "x"),
    node("Sigmoid", "x"),
    node("Tanh", "x"),
    node("Exp", "x"),
    node("Abs", "x"),
    node("Neg", "x"),
    node("Floor", "x"),
    node("Ceil", "x"),
    node("Round", "x"),
    node("Erf", "x"),
    node("Reciprocal", "x"),
    node("Softplus", "x"),
    node("Softsign", "x"),
    node("Sign", "x"),
    node("Identity", "x"),
    node("LeakyRelu", "x", alpha=0.1),
    node("Elu", "x", alpha=0.7),
    node("Selu", "x"),
    node("Celu", "x", alpha=0.6),
    node("ThresholdedRelu", "x", alpha=0.3),
    node("HardSigmoid", "x", alpha=0.3, beta=0.4),
    node("HardSwish", "x"),
    node("Mish", "x"),
    node("Dropout", "x"),
    node("Softmax", "x", axis=1),
    node("Softmax", "x", axis=-1),
    node("LogSoftmax", "x", axis=1),
    node("LRN", "x", size=3, alpha=0.1, beta=0.6, bias=1.5),
    node("LRN", "x", size=5),
    node("GlobalAveragePool", "x"),
    node("GlobalMaxPool", "x"),
    node("Flatten", "x", axis=2),
    node("Transpose", "x", perm=[0, 2, 3, 1]),
    node("Transpose", "x"),
]


@pytest.mark.parametrize("op", UNARY, ids=lambda n: n.op_type)
def test_unary(op: NodeProto, tmp_path: Path) -> None:
    assert_matches(model(op, IMAGE, opset=18), tmp_path)


@pytest.mark.parametrize("op", UNARY, ids=lambda n: n.op_type)
def test_unary_behind_a_convolution(
    rng: np.random.Generator, op: NodeProto, tmp_path: Path
) -> None:
    copied = NodeProto()
    copied.CopyFrom(op)
    copied.input[0] = "t"
    nodes = [node("Conv", "x w b", "t", pads=[1, 1, 1, 1]), copied]
    constants = {"w": values(rng, 4, 6, 3, 3), "b": values(rng, 4)}
    tolerance = 1.0 if op.op_type in ("Floor", "Ceil", "Round", "Sign") else 1e-5
    tolerance = 2e-2 if op.op_type == "Reciprocal" else tolerance
    assert_matches(model(nodes, IMAGE, constants, opset=18), tmp_path, tolerance)


@pytest.mark.parametrize("op", ["Sqrt", "Log"])
def test_positive_domain(op: str, tmp_path: Path) -> None:
    assert_matches(model([node("Abs", "x", "a"), node(op, "a")], IMAGE), tmp_path)


@pytest.mark.parametrize("op", ["Add", "Sub", "Mul", "Div", "Max", "Min", "PRelu"])
@pytest.mark.parametrize("shape", [(2, 6, 9, 7), (6, 1, 1), (7,), (1,), (2, 1, 9, 1), ()])
def test_binary_with_constant(
    rng: np.random.Generator, op: str, shape: tuple[int, ...], tmp_path: Path
) -> None:
    constant = values(rng, *shape) if shape else np.float32(1.5)
    assert_matches(model(node(op, "x c"), IMAGE, {"c": constant}), tmp_path)


@pytest.mark.parametrize("op", ["Add", "Sub", "Mul", "Div", "Max", "Min", "Sum"])
@pytest.mark.parametrize("shape", [(2, 6, 9, 7), (6, 1, 1), (7,), (2, 1, 9, 1)])
def test_binary_of_inputs(op: str, shape: tuple[int, ...], tmp_path: Path) -> None:
    assert_matches(model(node(op, "x z"), {**IMAGE, "z": shape}), tmp_path)


@pytest.mark.parametrize("op", ["Add", "Sub", "Mul", "Div"])
def test_constant_on_the_left(rng: np.random.Generator, op: str, tmp_path: Path) -> None:
    assert_matches(model(node(op, "c x"), IMAGE, {"c": values(rng, 6, 1, 1)}), tmp_path)


def test_power(tmp_path: Path) -> None:
    nodes = [node("Abs", "x", "a"), node("Pow", "a p")]
    assert_matches(model(nodes, IMAGE, {"p": np.float32(1.7)}), tmp_path)


@pytest.mark.parametrize("bounds", ["lo hi", "lo", "_ hi"])
@pytest.mark.parametrize("opset", [9, 11, 17])
def test_clip(bounds: str, opset: int, tmp_path: Path) -> None:
    if opset < 11:
        op, constants = node("Clip", "x", min=-0.5, max=0.6), {}
    else:
        op, constants = node("Clip", f"x {bounds}"), {"lo": np.float32(-0.5), "hi": np.float32(0.6)}
    assert_matches(model(op, IMAGE, constants, opset=opset), tmp_path)


@settings(
    max_examples=25, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(data=st.data())
def test_convolution(data: st.DataObject, tmp_path: Path) -> None:
    n_groups, per_group, n_out = (data.draw(st.integers(1, 3)) for _ in range(3))
    rank = data.draw(st.integers(1, 3))
    kernel = [data.draw(st.integers(1, 3)) for _ in range(rank)]
    attrs = {
        "strides": [data.draw(st.integers(1, 2)) for _ in range(rank)],
        "dilations": [data.draw(st.integers(1, 2)) for _ in range(rank)],
        "group": n_groups,
    }
    mode = data.draw(st.sampled_from(["NOTSET", "SAME_UPPER", "SAME_LOWER", "VALID"]))
    if mode == "NOTSET":
        attrs["pads"] = [data.draw(st.integers(0, 2)) for _ in range(2 * rank)]
    else:
        attrs["auto_pad"] = mode
        attrs["dilations"] = [1] * rank
    size = [data.draw(st.integers(5, 7)) for _ in range(rank)]
    batch = data.draw(st.integers(1, 2))
    nodes = [node("Conv", "x w b", "t", **attrs), node("Relu", "t")]
    rng = np.random.default_rng(data.draw(st.integers(0, 1 << 32)))
    shapes = {"w": (n_groups * n_out, per_group, *kernel), "b": (n_groups * n_out,)}
    constants = {name: rng.standard_normal(shape, np.float32) for name, shape in shapes.items()}
    computed = data.draw(st.sets(st.sampled_from(sorted(constants))))
    inputs = {name: constants.pop(name).shape for name in computed}
    proto = model(nodes, {"x": (batch, n_groups * per_group, *size), **inputs}, constants)
    assert_matches(proto, tmp_path, 1e-5)


@settings(
    max_examples=25, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(data=st.data())
def test_pooling(data: st.DataObject, tmp_path: Path) -> None:
    op = data.draw(st.sampled_from(["MaxPool", "AveragePool"]))
    kernel = [data.draw(st.integers(2, 3)) for _ in range(2)]
    attrs: dict[str, object] = {
        "kernel_shape": kernel,
        "strides": [data.draw(st.integers(1, 2)) for _ in range(2)],
        "ceil_mode": data.draw(st.integers(0, 1)),
        "pads": [data.draw(st.integers(0, 1)) for _ in range(4)],
    }
    if op == "AveragePool":
        attrs["count_include_pad"] = data.draw(st.integers(0, 1))
    height, width = data.draw(st.integers(4, 8)), data.draw(st.integers(4, 8))
    nodes = [node(op, "x", "t", **attrs), node("Relu", "t")]
    assert_matches(model(nodes, {"x": (1, 3, height, width)}, opset=19), tmp_path)


@pytest.mark.parametrize("mode", ["SAME_UPPER", "SAME_LOWER", "VALID"])
@pytest.mark.parametrize("op", ["MaxPool", "AveragePool"])
def test_pooling_with_automatic_padding(op: str, mode: str, tmp_path: Path) -> None:
    attrs = {"kernel_shape": [3, 2], "strides": [2, 2], "auto_pad": mode}
    assert_matches(model(node(op, "x", **attrs), IMAGE), tmp_path)


@pytest.mark.parametrize("trans_a", [0, 1])
@pytest.mark.parametrize("trans_b", [0, 1])
@pytest.mark.parametrize("bias", [(5,), (1, 5), (4, 1), (4, 5), (1,)])
def test_gemm(
    rng: np.random.Generator, trans_a: int, trans_b: int, bias: tuple[int, ...], tmp_path: Path
) -> None:
    attrs = {"transA": trans_a, "transB": trans_b, "alpha": 0.5, "beta": 0.25}
    shape = (3, 4) if trans_a else (4, 3)
    constants = {"b": values(rng, 5, 3) if trans_b else values(rng, 3, 5), "c": values(rng, *bias)}
    assert_matches(model(node("Gemm", "x b c", **attrs), {"x": shape}, constants), tmp_path)


def test_gemm_of_inputs(tmp_path: Path) -> None:
    shapes = {"a": (4, 3), "b": (5, 3), "c": (4, 5)}
    proto = model(node("Gemm", "a b c", transB=1, alpha=2.0, beta=3.0), shapes)
    assert_matches(proto, tmp_path)


@pytest.mark.parametrize(
    ("a", "b"),
    [
        ((4, 3), (3, 5)),
        ((2, 4, 3), (3, 5)),
        ((2, 4, 3), (2, 3, 5)),
        ((2, 1, 4, 3), (6, 3, 5)),
        ((3,), (3, 5)),
        ((2, 4, 3), (3,)),
        ((1, 2, 4, 3), (1, 2, 3, 5)),
    ],
)
@pytest.mark.parametrize("constant", [False, True])
def test_matmul(
    rng: np.random.Generator, a: tuple[int, ...], b: tuple[int, ...], constant: bool, tmp_path: Path
) -> None:
    op = node("MatMul", "a b")
    proto = model(op, {"a": a}, {"b": values(rng, *b)}) if constant else model(op, {"a": a, "b": b})
    assert_matches(proto, tmp_path)


REDUCED = ["Mean", "Sum", "Max", "Min", "L1", "L2", "SumSquare"]


@pytest.mark.parametrize("op", REDUCED)
@pytest.mark.parametrize("keep", [0, 1])
@pytest.mark.parametrize("axes", [[2, 3], [1], [-1], [0, 1, 2, 3]])
def test_reduction(op: str, keep: int, axes: list[int], tmp_path: Path) -> None:
    nodes = [node("Relu", "x", "r"), node(f"Reduce{op}", "r", axes=axes, keepdims=keep)]
    assert_matches(model(nodes, IMAGE, opset=11), tmp_path)


@pytest.mark.parametrize("keep", [0, 1])
def test_reduction_behind_a_convolution(
    rng: np.random.Generator, keep: int, tmp_path: Path
) -> None:
    nodes = [
        node("Conv", "x w", "t"),
        node("ReduceMean", "t a", "m", keepdims=keep),
        node("Sigmoid", "m"),
    ]
    constants = {"w": values(rng, 4, 6, 3, 3), "a": np.array([2, 3])}
    assert_matches(model(nodes, IMAGE, constants, opset=18), tmp_path, 1e-5)


def test_squeeze_and_excite(rng: np.random.Generator, tmp_path: Path) -> None:
    nodes = [
        node("Conv", "x w", "t"),
        node("GlobalAveragePool", "t", "g"),
        node("Conv", "g v b", "s"),
        node("HardSigmoid", "s", "h"),
        node("Mul", "t h"),
    ]
    constants = {"w": values(rng, 4, 6, 3, 3), "v": values(rng, 4, 4, 1, 1), "b": values(rng, 4)}
    assert_matches(model(nodes, IMAGE, constants), tmp_path, 1e-5)


@pytest.mark.parametrize("mode", ["constant", "edge", "reflect"])
@pytest.mark.parametrize("behind", [False, True])
def test_pad(rng: np.random.Generator, mode: str, behind: bool, tmp_path: Path) -> None:
    constants = {
        "p": np.array([0, 0, 1, 2, 0, 0, 3, 1]),
        "v": np.float32(0.5),
        "w": values(rng, 4, 6, 1, 1),
    }
    pad = node("Pad", "t p v" if mode == "constant" else "t p", mode=mode)
    first = node("Conv", "x w", "t") if behind else node("Relu", "x", "t")
    assert_matches(model([first, pad], IMAGE, constants, opset=13), tmp_path, 1e-5)


def test_padding_of_nothing_is_nothing(rng: np.random.Generator, tmp_path: Path) -> None:
    constants = {"p": np.zeros(8, np.int64), "w": values(rng, 4, 6, 1, 1)}
    conv, relu = node("Conv", "x w", "t"), node("Relu", "u")
    padded = [conv, node("Pad", "t p", "u", mode="edge"), relu]
    bare = [conv, node("Identity", "t", "u"), relu]
    tasks = [
        assert_matches(model(nodes, IMAGE, constants, opset=13), tmp_path, 1e-5).tasks
        for nodes in (padded, bare)
    ]
    assert tasks[0].keys() == tasks[1].keys()


def test_padding_of_a_number_is_the_number(tmp_path: Path) -> None:
    nodes = [node("Relu", "x", "t"), node("Pad", "t p", mode="wrap")]
    network = build_network(
        save(model(nodes, {"x": ()}, {"p": np.zeros(0, np.int64)}, opset=19), tmp_path)
    )
    assert len(network.tasks) == 1


@pytest.mark.parametrize("behind", [False, True])
@pytest.mark.parametrize(
    ("starts", "ends", "axes", "steps"),
    [
        ([1], [4], [1], [1]),
        ([2], [7], [2], [1]),
        ([1, 0], [5, 6], [1, 3], [1, 1]),
        ([0], [9], [2], [2]),
        ([-1], [-100], [3], [-1]),
    ],
)
def test_slice(
    rng: np.random.Generator,
    behind: bool,
    starts: list[int],
    ends: list[int],
    axes: list[int],
    steps: list[int],
    tmp_path: Path,
) -> None:
    constants: dict[str, object] = {"w": values(rng, 6, 6, 1, 1)}
    constants |= {n: np.array(v) for n, v in zip("beas", (starts, ends, axes, steps), strict=True)}
    first = node("Conv", "x w", "t") if behind else node("Relu", "x", "t")
    nodes = [first, node("Slice", "t b e a s", "u"), node("Relu", "u")]
    assert_matches(model(nodes, IMAGE, constants), tmp_path, 1e-5)


@pytest.mark.parametrize("axis", [0, 1, 2, 3])
@pytest.mark.parametrize("behind", [False, True])
def test_split_and_concat(
    rng: np.random.Generator, axis: int, behind: bool, tmp_path: Path
) -> None:
    shape = (2, 6, 8, 4)
    nodes = [
        node("Conv", "x w", "t") if behind else node("Relu", "x", "t"),
        node("Split", "t", "a b", axis=axis),
        node("Sigmoid", "a", "c"),
        node("Concat", "b c b x", axis=axis),
    ]
    proto = model(nodes, {"x": shape}, {"w": values(rng, 6, 6, 1, 1)}, opset=13)
    assert_matches(proto, tmp_path, 1e-5)


def test_concat_with_a_constant(rng: np.random.Generator, tmp_path: Path) -> None:
    proto = model(node("Concat", "x c", axis=1), IMAGE, {"c": values(rng, 2, 1, 9, 7)})
    assert_matches(proto, tmp_path)


@pytest.mark.parametrize("shape", [(2, -1), (2, 9, 42), (0, 2, 3, 9, 7), (108, 7)])
@pytest.mark.parametrize("behind", [False, True])
def test_reshape(
    rng: np.random.Generator, shape: tuple[int, ...], behind: bool, tmp_path: Path
) -> None:
    first = node("Conv", "x w", "t") if behind else node("Relu", "x", "t")
    nodes = [first, node("Reshape", "t s", "u"), node("Tanh", "u")]
    constants = {"s": np.array(shape), "w": values(rng, 6, 6, 1, 1)}
    assert_matches(model(nodes, IMAGE, constants), tmp_path, 1e-5)


def test_flatten_before_gemm_permutes_the_weights(rng: np.random.Generator, tmp_path: Path) -> None:
    nodes = [
        node("Conv", "x w", "t"),
        node("Flatten", "t", "f"),
        node("Gemm", "f m b", "g", transB=1),
        node("Relu", "g"),
    ]
    constants = {"w": values(rng, 4, 6, 3, 3), "m": values(rng, 10, 140), "b": values(rng, 10)}
    network = assert_matches(model(nodes, IMAGE, constants), tmp_path, 1e-5)
    assert [c.label for c in network.calls] == ["Transpose+Conv", "MatMul+Relu"]


def test_channel_shuffle_is_one_copy(rng: np.random.Generator, tmp_path: Path) -> None:
    nodes = [
        node("Conv", "x w", "t", group=3),
        node("Reshape", "t s", "u"),
        node("Transpose", "u", "v", perm=[0, 2, 1, 3, 4]),
        node("Reshape", "v r", "z"),
        node("Conv", "z q", "y", group=6),
    ]
    constants = {
        "w": values(rng, 6, 2, 3, 3),
        "s": np.array([2, 3, 2, 7, 5]),
        "r": np.array([2, 6, 7, 5]),
        "q": values(rng, 6, 1, 3, 3),
    }
    network = assert_matches(model(nodes, IMAGE, constants), tmp_path, 1e-5)
    labels = ["Transpose", "Conv", "Transpose", "Conv", "Transpose"]
    assert [c.label for c in network.calls] == labels


@pytest.mark.parametrize("scales", [(2, 3), (1.5, 2), (0.5, 1), (1.7, 1.3)])
@pytest.mark.parametrize(
    ("mode", "coordinates", "nearest"),
    [
        ("nearest", "asymmetric", "floor"),
        ("nearest", "half_pixel", "round_prefer_floor"),
        ("nearest", "half_pixel", "ceil"),
        ("linear", "half_pixel", ""),
        ("linear", "pytorch_half_pixel", ""),
        ("linear", "asymmetric", ""),
    ],
)
def test_resize(
    mode: str, coordinates: str, nearest: str, scales: tuple[float, float], tmp_path: Path
) -> None:
    attrs = {"nearest_mode": nearest} if nearest else {}
    op = node("Resize", "r _ s", mode=mode, coordinate_transformation_mode=coordinates, **attrs)
    constants = {"s": np.array([1, 1, *scales], np.float32)}
    proto = model([node("Relu", "x", "r"), op], IMAGE, constants, opset=13)
    assert_matches(proto, tmp_path, 1e-5)


@pytest.mark.parametrize("mode", ["nearest", "linear"])
def test_resize_of_all_dimensions(mode: str, tmp_path: Path) -> None:
    attrs = {"coordinate_transformation_mode": "asymmetric", "nearest_mode": "floor"}
    op = node("Resize", "x _ s", mode=mode, **attrs)
    constants = {"s": np.array([1, 2, 1, 3] if mode == "nearest" else [1, 1, 3, 1], np.float32)}
    assert_matches(model(op, IMAGE, constants, opset=13), tmp_path, 1e-5)


def test_resize_to_a_size(rng: np.random.Generator, tmp_path: Path) -> None:
    nodes = [node("Conv", "x w", "c"), node("Resize", "c _ _ n", mode="linear")]
    constants = {"w": values(rng, 5, 6, 3, 3), "n": np.array([2, 5, 20, 11])}
    assert_matches(model(nodes, IMAGE, constants, opset=13), tmp_path, 1e-5)


@pytest.mark.parametrize("bias", [False, True])
@pytest.mark.parametrize("group", [1, 2, 6])
@pytest.mark.parametrize(
    "attrs",
    [
        {"strides": [2, 2]},
        {"strides": [2, 3], "pads": [1, 0, 1, 2]},
        {"strides": [3, 1], "dilations": [2, 2]},
        {"strides": [2, 2], "pads": [1, 1, 1, 1], "output_padding": [1, 1]},
        {"strides": [4, 4], "output_padding": [3, 2]},
        {"strides": [2, 2], "auto_pad": "SAME_UPPER"},
        {"strides": [2, 2], "auto_pad": "SAME_LOWER"},
        {"strides": [2, 2], "output_shape": [18, 13]},
    ],
    ids=str,
)
def test_transposed_convolution(
    rng: np.random.Generator, attrs: dict[str, object], group: int, bias: bool, tmp_path: Path
) -> None:
    inputs = "x w b" if bias else "x w"
    nodes = [node("ConvTranspose", inputs, "t", group=group, **attrs), node("Relu", "t")]
    constants = {"w": values(rng, 6, 4, 3, 3)} | ({"b": values(rng, 4 * group)} if bias else {})
    assert_matches(model(nodes, IMAGE, constants), tmp_path, 1e-5)


@pytest.mark.parametrize("group", [1, 2])
@pytest.mark.parametrize(
    "attrs",
    [
        {"strides": [2, 3], "pads": [1, 0, 1, 2]},
        {"strides": [3, 1], "dilations": [2, 2]},
        {"strides": [2, 2], "output_shape": [18, 13]},
    ],
    ids=str,
)
def test_transposed_convolution_with_computed_weights(
    attrs: dict[str, object], group: int, tmp_path: Path
) -> None:
    one = node("ConvTranspose", "x w b", group=group, **attrs)
    assert_matches(model(one, IMAGE | {"w": (6, 4, 3, 3), "b": (4 * group,)}), tmp_path, 1e-5)


@pytest.mark.parametrize("kernel", [(2,), (3, 2, 4)])
def test_transposed_convolution_of_other_dimensions(
    rng: np.random.Generator, kernel: tuple[int, ...], tmp_path: Path
) -> None:
    proto = model(
        node("ConvTranspose", "x w", strides=[2] * len(kernel)),
        {"x": (1, 3, 5, 4, 6)[: 2 + len(kernel)]},
        {"w": values(rng, 3, 5, *kernel)},
    )
    assert_matches(proto, tmp_path, 1e-5)


@pytest.mark.parametrize("behind", [False, True])
@pytest.mark.parametrize("mode", ["DCR", "CRD"])
def test_depth_to_space_and_back(
    rng: np.random.Generator, mode: str, behind: bool, tmp_path: Path
) -> None:
    nodes = [
        node("Conv", "x w", "c") if behind else node("Relu", "x", "c"),
        node("DepthToSpace", "c", "d", blocksize=2, mode=mode),
        node("Sigmoid", "d", "e"),
        node("SpaceToDepth", "e", "f", blocksize=2),
        node("Add", "f f"),
    ]
    image = {"x": (2, 8, 6, 4)}
    assert_matches(model(nodes, image, {"w": values(rng, 8, 8, 1, 1)}), tmp_path, 1e-5)


@pytest.mark.parametrize(
    ("dilations", "pads", "n_taps"),
    [([9, 7], [9, 7, 9, 7], 1), ([9, 3], [9, 3, 9, 3], 3), ([1, 2], [3, 2, 1, 2], 9)],
)
def test_taps_that_meet_only_padding_are_dropped(
    rng: np.random.Generator, dilations: list[int], pads: list[int], n_taps: int, tmp_path: Path
) -> None:
    op = node("Conv", "x w", dilations=dilations, pads=pads)
    network = assert_matches(model(op, IMAGE, {"w": values(rng, 4, 6, 3, 3)}), tmp_path, 1e-5)
    assert {a.size for c in network.calls for a in c.constants.values()} == {n_taps * 4 * 6}


@pytest.mark.parametrize("mode", ["SAME_UPPER", "SAME_LOWER"])
def test_a_kernel_larger_than_the_image_that_is_padded_automatically(
    rng: np.random.Generator, mode: str, tmp_path: Path
) -> None:
    op = node("Conv", "x w", auto_pad=mode, strides=[2, 1])
    proto = model(op, {"x": (1, 6, 4, 3)}, {"w": values(rng, 4, 6, 11, 8)})
    assert_matches(proto, tmp_path, 1e-5)


def test_upsample_of_opset_9(tmp_path: Path) -> None:
    op = node("Upsample", "x s", mode="nearest")
    constants = {"s": np.array([1, 1, 2, 2], np.float32)}
    assert_matches(model(op, IMAGE, constants, opset=9), tmp_path)


@pytest.mark.parametrize("op", ["Squeeze", "Unsqueeze"])
def test_dimensions_of_one(rng: np.random.Generator, op: str, tmp_path: Path) -> None:
    nodes = [node("Conv", "x w", "t"), node(op, "t a", "u"), node("Relu", "u")]
    constants = {"w": values(rng, 1, 6, 3, 3), "a": np.array([1])}
    assert_matches(model(nodes, IMAGE, constants), tmp_path, 1e-5)


def test_expand(tmp_path: Path) -> None:
    proto = model(node("Expand", "x s"), {"x": (3, 1, 4)}, {"s": np.array([2, 3, 5, 4])})
    assert_matches(proto, tmp_path)


@pytest.mark.parametrize("axis", [1, 2])
@pytest.mark.parametrize(
    "index",
    [-2, [3], [0, 1, 2], [[4, 2], [0, -1]], [1, 1, 4, 0], np.arange(4).reshape(1, 4, 1)],
    ids=str,
)
def test_gather_of_constant_indices(index: object, axis: int, tmp_path: Path) -> None:
    nodes = [node("Relu", "x", "r"), node("Gather", "r i", axis=axis)]
    assert_matches(model(nodes, IMAGE, {"i": np.array(index)}), tmp_path)


def test_gather_that_would_take_too_many_slices(tmp_path: Path) -> None:
    proto = model(node("Gather", "x i"), {"x": (200, 3)}, {"i": np.arange(200) ** 2 % 200})
    network = assert_matches(proto, tmp_path)
    assert [c.label for c in network.calls] == ["Gather"]


def test_shape_arithmetic_folds_away(tmp_path: Path) -> None:
    nodes = [
        node("Relu", "x", "r"),
        node("Shape", "r", "s"),
        node("Gather", "s zero", "n", axis=0),
        node("Unsqueeze", "n axes", "m"),
        node("Concat", "m rest", "target", axis=0),
        node("Reshape", "r target", "y"),
    ]
    constants = {"zero": np.array(0), "axes": np.array([0]), "rest": np.array([-1])}
    network = assert_matches(model(nodes, IMAGE, constants), tmp_path)
    assert [c.label for c in network.calls if c.label != "Identity"] == ["Relu"]


def test_shapes_that_are_computed_from_shapes(tmp_path: Path) -> None:
    """Expand as exporters write it; ONNX's own inference gives up before it."""
    nodes = [
        node("ConstantOfShape", "rank", "ones", value=numpy_helper.from_array(np.array([1]))),
        node("Mul", "ones minus", "open"),
        node("Equal", "wanted open", "is_open"),
        node("Where", "is_open ones wanted", "target"),
        node("Expand", "x target", "wide"),
        node("Relu", "wide"),
    ]
    constants = {"rank": np.array([4]), "minus": np.array(-1), "wanted": np.array([2, -1, 5, 4])}
    network = assert_matches(model(nodes, {"x": (3, 1, 4)}, constants), tmp_path)
    assert network.outputs[0].shape == (2, 3, 5, 4)


def test_a_single_number_of_constant_shape(tmp_path: Path) -> None:
    nodes = [node("ConstantOfShape", "empty", "zero"), node("Add", "x zero")]
    assert_matches(model(nodes, {"x": (3, 4)}, {"empty": np.zeros(0, np.int64)}), tmp_path)


def test_layer_normalization(rng: np.random.Generator, tmp_path: Path) -> None:
    constants = {"s": values(rng, 8), "b": values(rng, 8)}
    proto = model(node("LayerNormalization", "x s b"), {"x": (2, 5, 8)}, constants)
    assert_matches(proto, tmp_path, 2e-5)


def test_instance_normalization(rng: np.random.Generator, tmp_path: Path) -> None:
    constants = {"s": values(rng, 6), "b": values(rng, 6)}
    proto = model(node("InstanceNormalization", "x s b"), IMAGE, constants)
    assert_matches(proto, tmp_path, 2e-5)


@pytest.mark.parametrize("stated", [False, True])
def test_operator_defined_by_others_in_the_standard(stated: bool, tmp_path: Path) -> None:
    attrs = {"axes": [0, 2, 3]} if stated else {}
    proto = model(node("MeanVarianceNormalization", "x", **attrs), IMAGE)
    assert_matches(proto, tmp_path, 2e-5)


def test_batch_normalization_alone_is_a_scale_and_a_shift(
    rng: np.random.Generator, tmp_path: Path
) -> None:
    constants = {n: values(rng, 6) for n in "sbm"} | {"v": np.abs(values(rng, 6)) + 0.5}
    nodes = [node("BatchNormalization", "x s b m v", "t"), node("Relu", "t")]
    network = assert_matches(model(nodes, IMAGE, constants), tmp_path)
    assert [c.label for c in network.calls] == ["Mul+Add+Relu"]


def test_normalisation_scale_and_shift_fold_into_the_convolution(
    rng: np.random.Generator, tmp_path: Path
) -> None:
    constants = {n: values(rng, 4) for n in "sbm"} | {"v": np.abs(values(rng, 4)) + 0.5}
    constants |= {
        "w": values(rng, 4, 6, 3, 3),
        "k": values(rng, 4, 1, 1),
        "t": values(rng, 4, 1, 1),
    }
    nodes = [
        node("Conv", "x w", "c", pads=[1, 1, 1, 1]),
        node("BatchNormalization", "c s b m v", "n"),
        node("Mul", "n k", "o"),
        node("Add", "t o", "p"),
        node("Relu", "p"),
    ]
    network = assert_matches(model(nodes, IMAGE, constants), tmp_path, 1e-5)
    assert [c.label for c in network.calls] == ["Transpose+Conv+Relu", "Transpose"]


def test_preactivation_is_fused_into_the_convolution_behind_it(
    rng: np.random.Generator, tmp_path: Path
) -> None:
    nodes = [
        node("Conv", "x w", "t"),
        node("Relu", "t", "u"),
        node("Mul", "u k", "m"),
        node("Relu", "m", "v"),
        node("Conv", "v w2", "q", pads=[1, 1, 1, 1]),
        node("Concat", "u q", axis=1),
    ]
    constants = {
        "w": values(rng, 4, 6, 3, 3),
        "w2": values(rng, 4, 4, 3, 3),
        "k": values(rng, 4, 1, 1),
    }
    network = assert_matches(model(nodes, IMAGE, constants), tmp_path, 1e-5)
    labels = ["Transpose+Conv+Relu", "Mul+Relu+Conv", "Transpose"]
    assert [c.label for c in network.calls] == labels


def test_residual_sum_joins_the_longer_branch(rng: np.random.Generator, tmp_path: Path) -> None:
    nodes = [
        node("Conv", "x w", "t"),
        node("Conv", "t v", "a"),
        node("Relu", "a", "b"),
        node("Conv", "b v", "c"),
        node("Conv", "t u", "s"),
        node("Add", "c s", "d"),
        node("Relu", "d"),
    ]
    constants = {
        "w": values(rng, 4, 6, 3, 3),
        "v": values(rng, 4, 4, 1, 1),
        "u": values(rng, 4, 4, 1, 1),
    }
    network = assert_matches(model(nodes, IMAGE, constants), tmp_path, 1e-5)
    labels = ["Transpose+Conv", "Conv+Relu", "Conv", "Conv+Add+Relu", "Transpose"]
    assert [c.label for c in network.calls] == labels


@pytest.mark.parametrize("act", ["Relu", "Tanh", "Sigmoid", "Gelu"])
def test_multilayer_perceptron(rng: np.random.Generator, act: str, tmp_path: Path) -> None:
    nodes = [
        node("MatMul", "x w1", "a"),
        node("Add", "a b1", "c"),
        node(act, "c", "d"),
        node("Gemm", "d w2 b2", "e", transB=1),
        node("Softmax", "e"),
    ]
    shapes = {"w1": (20, 30), "b1": (30,), "w2": (10, 30), "b2": (10,)}
    constants = {n: values(rng, *s) for n, s in shapes.items()}
    network = assert_matches(model(nodes, {"x": (4, 20)}, constants, opset=20), tmp_path, 1e-5)
    assert [c.label for c in network.calls] == [f"MatMul+{act}", "MatMul", "Softmax"]


SWISH = [node("Sigmoid", "c", "s"), node("Mul", "c s")]
GELU = [
    node("Div", "c root", "d"),
    node("Erf", "d", "e"),
    node("Add", "e one", "f"),
    node("Mul", "c f", "g"),
    node("Mul", "g half"),
]
SQUARE = [node("Mul", "c c")]
ALSO_POOLED = [*SWISH[:1], node("Mul", "c s", "t"), node("GlobalAveragePool", "c", "p")]
ALSO_POOLED += [node("Mul", "t p")]


@pytest.mark.parametrize(
    ("tail", "label"),
    [
        (SWISH, "Conv+Sigmoid+Mul"),
        (GELU, "Conv+Mul+Erf+Add+Mul+Mul"),
        (SQUARE, "Conv+Mul"),
        ([SWISH[0], node("Mul", "c s", "t"), node("Add", "t x")], "Conv+Sigmoid+Mul+Add"),
        (ALSO_POOLED, "Conv"),
    ],
    ids=["swish", "gelu", "square", "residual", "met by a reduction"],
)
def test_readers_that_meet_again_are_fused(
    rng: np.random.Generator, tail: list[NodeProto], label: str, tmp_path: Path
) -> None:
    constants = {"w": values(rng, 6, 6, 1, 1)} | {
        name: np.full(1, value, np.float32)
        for name, value in [("root", 1.4), ("one", 1.0), ("half", 0.5)]
    }
    proto = model([node("Conv", "x w", "c"), *tail], IMAGE, constants)
    network = assert_matches(proto, tmp_path, 1e-5)
    labels = [c.label.removeprefix("Transpose+") for c in network.calls]
    assert [found for found in labels if "Conv" in found] == [label]


@pytest.mark.parametrize(
    ("split", "perm"),
    [
        ((1, 2, 3, 5, 5), (0, 1, 3, 4, 2)),
        ((1, 2, 3, 25), (0, 1, 3, 2)),
        ((1, 1, 6, 25), (0, 3, 1, 2)),
        ((1, 3, 1, 2, 5, 5), (0, 4, 5, 1, 2, 3)),
    ],
)
def test_parts_of_the_channels_moved_to_the_end(
    rng: np.random.Generator, split: tuple[int, ...], perm: tuple[int, ...], tmp_path: Path
) -> None:
    """As the heads of detectors do: they end where they are stored, so vectors stay vectors."""
    nodes = [
        node("Conv", "x w", "c"),
        node("Reshape", "c split", "r"),
        node("Transpose", "r", "t", perm=perm),
        node("Sigmoid", "t"),
    ]
    constants = {"w": values(rng, 6, 6, 1, 1), "split": np.array(split)}
    network = assert_matches(model(nodes, {"x": (1, 6, 5, 5)}, constants), tmp_path, 1e-5)
    assert len(network.calls) == 2
    computes = network.tasks[network.calls[-1].task].computes
    assert all(variables(x.indices[-1]) <= {op.axes[-1].name} for op in computes for x in op.reads)


def test_two_tensors_whose_readers_meet_in_the_same_node(
    rng: np.random.Generator, tmp_path: Path
) -> None:
    """Either could take in what both lead to; one does."""
    nodes = [
        node("Conv", "x w", "c"),
        node("Conv", "x v", "d"),
        node("Sigmoid", "c", "s"),
        node("Mul", "s d", "p"),
        node("Relu", "d", "r"),
        node("Add", "c r", "q"),
        node("Sub", "p q"),
    ]
    constants = {"w": values(rng, 6, 6, 1, 1), "v": values(rng, 6, 6, 1, 1)}
    network = assert_matches(model(nodes, IMAGE, constants), tmp_path, 1e-5)
    assert sum(c.label.count("Sub") for c in network.calls) == 1


def test_a_tensor_that_leaves_the_network_is_not_fused_away(
    rng: np.random.Generator, tmp_path: Path
) -> None:
    nodes = [node("Conv", "x w", "c"), node("Sigmoid", "c", "s"), node("Mul", "c s")]
    proto = model(nodes, IMAGE, {"w": values(rng, 6, 6, 1, 1)}, outputs="y s")
    network = assert_matches(proto, tmp_path, 1e-5)
    assert "Conv+Sigmoid+Mul" not in [c.label for c in network.calls]


def test_places_of_extrema_are_read_by_a_reduction(tmp_path: Path) -> None:
    """A run of groups is defined as one, which keeps the dimension of the place."""
    nodes = [
        node("ArgMax", "x", "places", axis=2),
        node("Cast", "places", "floats", to=1),
        node("ReduceMean", "floats", axes=[2]),
    ]
    assert_matches(model(nodes, {"x": (5, 14, 6)}), tmp_path)
