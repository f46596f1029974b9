"""Machine code against what the standard says, written out in float64: no other runtime is asked.

Where the standard leaves something open, the expected values are what ONNX Runtime computes.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray
from onnx import ModelProto, NodeProto, TensorProto, helper

from autotune.errors import ModelError, UnsupportedOperator
from autotune.graph.network import build_network
from autotune.network.compile.compiler import compile_network
from autotune.network.runtime.runtime import Model
from autotune.search.defaults import default_steps
from autotune.target import host_target
from tests.graph.onnx_models import execute, model, node, onnxruntime_outputs, save

Array = NDArray[Any]
TARGET = host_target()


def values(*shape: int, seed: int = 0) -> Array:
    return np.random.default_rng(seed).standard_normal(shape).astype(np.float32)


def computed(proto: ModelProto, feeds: Mapping[str, Array], folder: Path) -> dict[str, Array]:
    """The outputs of the compiled network, which are those of the definitions of its tasks."""
    network = build_network(save(proto, folder))
    steps = {key: default_steps(dag, TARGET, 1) for key, dag in network.tasks.items()}
    found = dict(Model(compile_network(network, steps, TARGET), 1).run(dict(feeds)))
    with np.errstate(all="ignore"):
        defined = execute(network, feeds)
    for name, array in found.items():
        wide = (np.asarray(a, np.float64) for a in (array, defined[name]))
        np.testing.assert_allclose(*wide, rtol=1e-5, atol=1e-5, err_msg=name)
    return found


def contributed(op: str, inputs: str, **attrs: object) -> NodeProto:
    """A node of ONNX Runtime's own domain."""
    return helper.make_node(op, inputs.split(), ["y"], domain="com.microsoft", **attrs)


def with_contributions(proto: ModelProto) -> ModelProto:
    proto.opset_import.append(helper.make_opsetid("com.microsoft", 1))
    return proto


# --- places of an image -------------------------------------------------------------------------


def _cubic(t: float, a: float = -0.75) -> list[float]:
    def near(x: float) -> float:
        return (a + 2) * x**3 - (a + 3) * x**2 + 1

    def far(x: float) -> float:
        return a * x**3 - 5 * a * x**2 + 8 * a * x - 4 * a

    return [far(t + 1), near(t), near(1 - t), far(2 - t)]


def _taps(place: float, mode: str) -> list[tuple[int, float]]:
    """Pixels along one dimension, of any number, and their weights."""
    first = int(np.rint(place) if mode == "nearest" else np.floor(place))
    if mode == "nearest":
        return [(first, 1.0)]
    if mode == "linear":
        return [(first, 1 - (place - first)), (first + 1, place - first)]
    return list(zip(range(first - 1, first + 3), _cubic(place - first), strict=True))


def _pixel(n: float, size: int, padding: str, aligned: int) -> float | None:
    """Where a place is read that may lie outside; None where it is a zero."""
    if 0 <= n <= size - 1:
        return n
    if padding == "zeros":
        return None
    if padding == "border":
        return float(np.clip(n, 0, size - 1))
    low, span = (0.0, size - 1.0) if aligned else (-0.5, float(size))
    rest = abs(n - low) % (2 * span or 1.0)
    return low + min(rest, 2 * span - rest)


def sampled(x: Array, grid: Array, mode: str, padding: str, aligned: int) -> Array:
    """GridSample; for cubic sums each of the pixels is brought into the image, as in PyTorch."""
    sizes = x.shape[2:]
    out = np.zeros((*x.shape[:2], *grid.shape[1:-1]))
    for n, *at in np.ndindex(grid.shape[:-1]):
        taps = []
        for size, g in zip(sizes, grid[(n, *at)][::-1].astype(np.float64), strict=True):
            place = (g + 1) / 2 * (size - 1) if aligned else ((g + 1) * size - 1) / 2
            if mode != "cubic" and padding != "zeros":
                inside = _pixel(place, size, padding, aligned)
                assert inside is not None
                place = float(np.clip(inside, 0, size - 1))
            taps.append(_taps(place, mode))
        for corner in itertools.product(*taps):
            pairs = zip(corner, sizes, strict=True)
            pixels = [_pixel(p, size, padding, aligned) for (p, _), size in pairs]
            if None not in pixels:
                index = tuple(int(p) for p in pixels if p is not None)
                weight = np.prod([w for _, w in corner])
                out[(n, slice(None), *at)] += weight * x[(n, slice(None), *index)]
    return out


@pytest.mark.sampled(4)
@pytest.mark.parametrize("aligned", [0, 1])
@pytest.mark.parametrize("padding", ["zeros", "border", "reflection"])
@pytest.mark.parametrize(
    ("mode", "rank", "opset"),
    [("cubic", 2, 16), ("cubic", 2, 20), ("linear", 2, 20), ("nearest", 2, 16), ("linear", 3, 20)],
)
def test_places_beyond_the_border_of_an_image(
    mode: str, rank: int, opset: int, padding: str, aligned: int, tmp_path: Path
) -> None:
    """Also places three images away, of images of one row."""
    old = {"cubic": "bicubic", "linear": "bilinear"}
    attrs = {"mode": mode if opset >= 20 else old.get(mode, mode), "padding_mode": padding}
    op = node("GridSample", "x g", align_corners=aligned, **attrs)
    for sizes in ((2, 4, 5)[-rank:], (2, 1, 3)[-rank:]):
        x = values(2, 3, *sizes)
        grid = np.random.default_rng(1).uniform(-2, 2, (2, *(2, 3, 6)[-rank:], rank)) ** 3
        grid = grid.astype(np.float32)
        proto = model(op, {"x": x.shape, "g": grid.shape}, opset=opset)
        found = computed(proto, {"x": x, "g": grid}, tmp_path)["y"]
        np.testing.assert_allclose(found, sampled(x, grid, mode, padding, aligned), atol=2e-4)


# --- windows ------------------------------------------------------------------------------------


@pytest.mark.parametrize("shape", [(1, 1, 5, 5), (2, 3, 7, 6), (1, 2, 9), (1, 2, 3, 5, 4)])
@pytest.mark.parametrize(("size", "pad"), [(2, 0), (3, 1)])
def test_unpooling_to_odd_extents_puts_elements_where_they_were(
    shape: tuple[int, ...], size: int, pad: int, tmp_path: Path
) -> None:
    rank = len(shape) - 2
    window = {"kernel_shape": [size] * rank, "strides": [2] * rank, "pads": [pad] * 2 * rank}
    nodes = [node("MaxPool", "x", "m i", **window), node("MaxUnpool", "m i s", **window)]
    x = values(*shape)
    expected, (batch, channels, *extents) = np.zeros_like(x), shape
    counts = [(n + 2 * pad - size) // 2 + 1 for n in extents]
    for n, c, *at in np.ndindex(batch, channels, *counts):
        first = [max(0, 2 * i - pad) for i in at]
        ends = [2 * i - pad + size for i in at]
        block = x[(n, c, *(slice(a, b) for a, b in zip(first, ends, strict=True)))]
        best = np.unravel_index(int(block.argmax()), block.shape)
        expected[(n, c, *(a + b for a, b in zip(first, best, strict=True)))] = block.max()
    proto = model(nodes, {"x": shape}, {"s": np.array(shape)})
    np.testing.assert_array_equal(computed(proto, {"x": x}, tmp_path)["y"], expected)


@pytest.mark.sampled(3)
@pytest.mark.slow
@pytest.mark.parametrize("mode", ["NOTSET", "SAME_UPPER", "SAME_LOWER"])
@pytest.mark.parametrize("beyond", [-2, -1, 0])
@pytest.mark.parametrize(
    ("strides", "dilations", "extra"), [((2, 3), (1, 1), (1, 0)), ((2, 2), (2, 1), (0, 1))]
)
def test_output_shape_of_a_transposed_convolution(
    strides: tuple[int, int],
    dilations: tuple[int, int],
    extra: tuple[int, int],
    beyond: int,
    mode: str,
    tmp_path: Path,
) -> None:
    """The padding that it asks for, of which SAME_UPPER has the larger half behind."""
    x, w = values(1, 4, 3, 4), values(4, 2, 3, 2, seed=1)
    steps = list(zip(x.shape[2:], strides, w.shape[2:], dilations, strict=True))
    whole = [(h - 1) * s + (k - 1) * d + 1 for h, s, k, d in steps]
    size = [n + e + beyond for n, e in zip(whole, extra, strict=True)]
    attrs = {"strides": strides, "dilations": dilations, "output_padding": extra, "group": 2}
    y = np.zeros((1, 4, *(n + e for n, e in zip(whole, extra, strict=True))))
    for c, o, i, j, a, b in np.ndindex(4, 2, *x.shape[2:], *w.shape[2:]):
        at = i * strides[0] + a * dilations[0], j * strides[1] + b * dilations[1]
        y[(0, 2 * (c // 2) + o, *at)] += float(x[0, c, i, j]) * float(w[c, o, a, b])
    cut = -beyond
    front = cut // 2 if mode == "SAME_UPPER" else cut - cut // 2
    expected = y[:, :, front : front + size[0], front : front + size[1]]
    op = node("ConvTranspose", "x w", auto_pad=mode, output_shape=size, **attrs)
    found = computed(model(op, {"x": x.shape}, {"w": w}), {"x": x}, tmp_path)["y"]
    np.testing.assert_allclose(found, expected, atol=1e-5)


@pytest.mark.parametrize("rank", [1, 2, 3])
def test_phases_of_a_transposed_convolution_are_computed_one_by_one(
    rank: int, tmp_path: Path
) -> None:
    """Where each has the channels of a vector."""
    rng = np.random.default_rng(rank)
    for _ in range(12):
        stride, kernel, dilation = (rng.integers(1, n, rank).tolist() for n in (4, 5, 3))
        reach = [(k - 1) * d + 1 for k, d in zip(kernel, dilation, strict=True)]
        pads = [int(rng.integers(0, r)) for _ in range(2) for r in reach]
        extra = [int(rng.integers(0, s)) for s in stride]
        x, w = values(1, 2, *rng.integers(3, 6, rank)), values(2, 16, *kernel, seed=1)
        attrs = {"strides": stride, "dilations": dilation, "pads": pads, "output_padding": extra}
        op = node("ConvTranspose", "x w b", **attrs)
        proto = model(op, {"x": x.shape}, {"w": w, "b": values(16, seed=2)})
        network = build_network(save(proto, tmp_path))
        (expected,) = onnxruntime_outputs(proto, {"x": x}).values()
        (found,) = execute(network, {"x": x}).values()
        np.testing.assert_allclose(found, expected, atol=1e-5)


@pytest.mark.parametrize(("kernel", "extra"), [(3, 1), (4, 0)])
def test_transposed_convolutions_compute_no_taps_of_zeros(
    kernel: int, extra: int, tmp_path: Path
) -> None:
    w = values(8, 16, kernel, kernel)
    attrs = {"strides": [2, 2], "pads": [1, 1, 1, 1], "output_padding": [extra, extra]}
    proto = model(node("ConvTranspose", "x w", **attrs), {"x": (1, 8, 4, 4)}, {"w": w})
    assert build_network(save(proto, tmp_path)).flops == 2 * 4 * 4 * w.size


# --- quantised ----------------------------------------------------------------------------------


@pytest.mark.sampled(2)
@pytest.mark.slow
@pytest.mark.parametrize("kind", ["zeros", "positive", "negative", "both"])
def test_dynamic_quantisation_makes_no_nan(kind: str, tmp_path: Path) -> None:
    """The scale of zeros can be divided by: it is 1."""
    x = {"zeros": np.zeros((4, 8), np.float32), "both": values(4, 8)}.get(kind)
    if x is None:
        x = np.abs(values(4, 8)) * np.float32(-1 if kind == "negative" else 1)
    low, high = min(0.0, float(x.min())), max(0.0, float(x.max()))
    scale = (high - low) / 255 or 1.0
    zero = round(-low / scale)
    steps = np.clip(np.rint(x / np.float64(scale)) + zero, 0, 255)
    w = np.random.default_rng(1).integers(-100, 100, (8, 5)).astype(np.int8)
    nodes = [
        node("DynamicQuantizeLinear", "x", "q s z"),
        node("Div", "x s", "d"),
        node("MatMulInteger", "q w z", "p"),
        node("Cast", "p", "f", to=TensorProto.FLOAT),
        node("Mul", "f s"),
        contributed("DynamicQuantizeMatMul", "x w t"),
    ]
    nodes[-1].output[0] = "m"
    constants = {"w": w, "t": np.float32(0.5)}
    types = {"q": "uint8", "z": "uint8"}
    proto = model(nodes, {"x": x.shape}, constants, "y d q s z m", types=types)
    found = computed(with_contributions(proto), {"x": x}, tmp_path)
    product = (steps - zero) @ w.astype(np.float64) * scale
    expected = {"d": x / scale, "s": scale, "z": zero, "q": steps, "y": product, "m": product / 2}
    for name, array in expected.items():
        np.testing.assert_allclose(found[name], array, rtol=1e-5, atol=1e-6, err_msg=name)


# --- fused operators ----------------------------------------------------------------------------

_ACTIVATIONS: dict[str, tuple[dict[str, float], Callable[..., Array]]] = {
    "LeakyRelu": ({"alpha": 0.2}, lambda x, alpha: np.where(x < 0, alpha * x, x)),
    "HardSigmoid": (
        {"alpha": 0.3, "beta": 0.1},
        lambda x, alpha, beta: np.clip(alpha * x + beta, 0, 1),
    ),
    "Elu": ({"alpha": 0.7}, lambda x, alpha: np.where(x < 0, alpha * np.expm1(x), x)),
    "Celu": (
        {"alpha": 0.7},
        lambda x, alpha: np.maximum(0, x) + np.minimum(0, alpha * np.expm1(x / alpha)),
    ),
    "Selu": (
        {"alpha": 1.5, "gamma": 1.2},
        lambda x, alpha, gamma: gamma * np.where(x > 0, x, alpha * np.expm1(x)),
    ),
    "ThresholdedRelu": ({"alpha": 0.5}, lambda x, alpha: np.where(x > alpha, x, 0)),
    "Softplus": ({}, lambda x: np.log1p(np.exp(x))),
    "Softsign": ({}, lambda x: x / (1 + np.abs(x))),
    "Tanh": ({}, np.tanh),
}


@pytest.mark.sampled(4)
@pytest.mark.parametrize("name", _ACTIVATIONS)
def test_a_fused_product_gives_its_activation_the_parameters(name: str, tmp_path: Path) -> None:
    """`alpha` and `beta` are those of the product, `activation_alpha` that of the activation."""
    parameters, function = _ACTIVATIONS[name]
    a, b, c = values(3, 4), values(5, 4, seed=1), values(5, seed=2)
    attrs = {f"activation_{k}": v for k, v in parameters.items()}
    op = contributed("FusedGemm", "a b c", activation=name, alpha=0.5, beta=0.25, transB=1, **attrs)
    proto = with_contributions(model(op, {"a": a.shape}, {"b": b, "c": c}))
    sums = 0.5 * a.astype(np.float64) @ b.T + 0.25 * c
    found = computed(proto, {"a": a}, tmp_path)["y"]
    np.testing.assert_allclose(found, function(sums, **parameters), rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("op", ["FusedGemm", "FusedConv"])
def test_a_fused_product_without_the_parameters_is_refused(op: str, tmp_path: Path) -> None:
    shapes = {"FusedGemm": ((3, 4), (4, 5)), "FusedConv": ((1, 2, 4, 4), (3, 2, 2, 2))}[op]
    fused = contributed(op, "a b", activation="LeakyRelu")
    proto = with_contributions(model(fused, {"a": shapes[0]}, {"b": values(*shapes[1])}))
    with pytest.raises(UnsupportedOperator, match="LeakyRelu has 0 parameters, not 1"):
        build_network(save(proto, tmp_path))


@pytest.mark.parametrize("axis", [0, 1, -1])
@pytest.mark.parametrize("opset", [11, 13])
def test_quantised_softmax_of_an_older_opset_sums_over_all_that_follows(
    axis: int, opset: int, tmp_path: Path
) -> None:
    x = np.random.default_rng(0).integers(0, 256, (2, 3, 4)).astype(np.uint8)
    constants = {"s": np.float32(0.05), "z": np.uint8(120), "t": np.float32(1 / 256)}
    op = contributed("QLinearSoftmax", "x s z t v", axis=axis, opset=opset)
    types = {"x": "uint8", "y": "uint8"}
    proto = model(op, {"x": x.shape}, {**constants, "v": np.uint8(0)}, types=types)
    power = np.exp(0.05 * (x.astype(np.float64) - 120))
    over = tuple(range(axis % 3, 3)) if opset < 13 else (axis,)
    steps = 256 * power / power.sum(over, keepdims=True)
    found = computed(with_contributions(proto), {"x": x}, tmp_path)["y"]
    assert np.abs(found - np.minimum(steps, 255)).max() <= 0.5 + 1e-3


@pytest.mark.parametrize("keep", [0, 1])
def test_quantised_mean_over_some_axes(keep: int, tmp_path: Path) -> None:
    x = np.random.default_rng(0).integers(0, 256, (2, 3, 4)).astype(np.uint8)
    constants = {"s": np.float32(0.05), "z": np.uint8(120), "t": np.float32(0.02)}
    op = contributed("QLinearReduceMean", "x s z t v", axes=[0, -1], keepdims=keep)
    types = {"x": "uint8", "y": "uint8"}
    proto = model(op, {"x": x.shape}, {**constants, "v": np.uint8(100)}, types=types)
    mean = 0.05 * (x.astype(np.float64) - 120).mean((0, 2), keepdims=bool(keep))
    found = computed(with_contributions(proto), {"x": x}, tmp_path)["y"]
    assert np.abs(found - np.clip(mean / 0.02 + 100, 0, 255)).max() <= 0.5 + 1e-3


# --- axes and versions --------------------------------------------------------------------------

_REDUCTIONS: dict[str, Callable[..., Array]] = {
    "ReduceSum": np.sum,
    "ReduceMax": np.max,
    "ReduceMin": np.min,
    "ReduceMean": np.mean,
    "ReduceProd": np.prod,
    "ReduceL1": lambda x, axis, keepdims: np.abs(x).sum(axis, keepdims=keepdims),
    "ReduceL2": lambda x, axis, keepdims: np.sqrt((x * x).sum(axis, keepdims=keepdims)),
    "ReduceLogSumExp": lambda x, axis, keepdims: np.log(np.exp(x).sum(axis, keepdims=keepdims)),
}


@pytest.mark.parametrize("keep", [0, 1])
@pytest.mark.parametrize("op", _REDUCTIONS)
def test_an_axis_that_is_named_twice_is_reduced_once(op: str, keep: int, tmp_path: Path) -> None:
    """1 and -2 of three; so do ONNX Runtime and TensorFlow. The older form is an attribute."""
    x = values(2, 3, 4)
    expected = _REDUCTIONS[op](x.astype(np.float64), axis=1, keepdims=bool(keep))
    newer = model(
        node(op, "x a", keepdims=keep), {"x": x.shape}, {"a": np.array([1, -2])}, opset=18
    )
    older = model(node(op, "x", keepdims=keep, axes=[1, 1]), {"x": x.shape}, opset=11)
    for proto in (newer, older):
        found = computed(proto, {"x": x}, tmp_path)["y"]
        np.testing.assert_allclose(found, expected, rtol=1e-5, atol=1e-6)


def test_an_axis_that_is_normalised_twice_is_normalised_once(tmp_path: Path) -> None:
    x = values(2, 3, 4)
    wide = x.astype(np.float64)
    expected = (wide - wide.mean(1, keepdims=True)) / wide.std(1, keepdims=True)
    proto = model(node("MeanVarianceNormalization", "x", axes=[1, 1]), {"x": x.shape})
    np.testing.assert_allclose(computed(proto, {"x": x}, tmp_path)["y"], expected, atol=1e-5)


@pytest.mark.parametrize(
    ("op", "constants", "opset"),
    [
        (node("Resize", "x _ s", axes=[1, -2]), {"s": np.ones(2, np.float32) * 2}, 18),
        (node("Resize", "x _ _ s", axes=[1, 1]), {"s": np.array([6, 6])}, 18),
        (node("Slice", "x s e a"), {n: np.array([1, 1]) for n in "sea"}, 17),
        (node("Pad", "x p _ a"), {"p": np.array([1] * 4), "a": np.array([1, -2])}, 18),
        (node("Unsqueeze", "x a"), {"a": np.array([0, 0])}, 17),
        (node("CenterCropPad", "x s", axes=[1, -2]), {"s": np.array([2, 5])}, 18),
        (node("Transpose", "x", perm=[0, 0, 1]), {}, 17),
        (node("ReverseSequence", "x l", time_axis=0, batch_axis=0), {"l": np.array([1, 2])}, 17),
    ],
    ids=lambda x: x.op_type if isinstance(x, NodeProto) else "",
)
def test_an_axis_that_is_moved_twice_is_refused_in_one_sentence(
    op: NodeProto, constants: dict[str, Array], opset: int, tmp_path: Path
) -> None:
    """As in ONNX Runtime: two amounts for one dimension say nothing."""
    proto = model(op, {"x": (2, 3, 4)}, constants, opset=opset)
    with pytest.raises(ModelError) as caught:
        build_network(save(proto, tmp_path))
    assert "Error:" not in caught.value.message.replace("InferenceError]", "")
    assert "report" not in caught.value.hint


@pytest.mark.parametrize("in_branch", [False, True])
@pytest.mark.parametrize(("opset", "per"), [(18, 2), (20, 2), (21, 4)])
def test_group_normalisation_of_every_opset(
    opset: int, per: int, in_branch: bool, tmp_path: Path
) -> None:
    """Before opset 21, which superseded it, it has one scale and one shift per group."""
    x, scale, shift = values(2, 4, 3, 3), values(per, seed=1), values(per, seed=2)
    groups = x.astype(np.float64).reshape(2, 2, -1)
    normal = groups - groups.mean(-1, keepdims=True)
    normal = (normal / np.sqrt(groups.var(-1, keepdims=True) + 1e-5)).reshape(x.shape)
    wide = (np.repeat(a, 4 // per).reshape(4, 1, 1) for a in (scale, shift))
    factor, term = wide
    op = node("GroupNormalization", "x s b", num_groups=2)
    if in_branch:
        made = helper.make_tensor_value_info("y", TensorProto.FLOAT, None)
        body = helper.make_graph([op], "branch", [], [made])
        op = node("If", "c", then_branch=body, else_branch=body)
    constants = {"s": scale, "b": shift} | ({"c": np.array(True)} if in_branch else {})
    found = computed(model(op, {"x": x.shape}, constants, opset=opset), {"x": x}, tmp_path)["y"]
    np.testing.assert_allclose(found, normal * factor + term, atol=1e-5)


@pytest.mark.parametrize(("opset", "op"), [(11, "Scatter"), (10, "Upsample")])
def test_an_operator_that_has_another_name_by_then_is_refused(
    opset: int, op: str, tmp_path: Path
) -> None:
    """As in ONNX Runtime: it is no operator of such an opset any more."""
    shapes: dict[str, tuple[int, ...]] = {"x": (2, 3, 4, 4), "i": (2, 3, 4, 4), "u": (2, 3, 4, 4)}
    used = {"Scatter": "x i u", "Upsample": "x s"}[op]
    constants = {"s": np.float32([1, 1, 2, 2])} if op == "Upsample" else {}
    inputs = {n: shapes[n] for n in used.split() if n in shapes}
    proto = model(node(op, used), inputs, constants, types={"i": "int64"}, opset=opset)
    with pytest.raises(ModelError, match="deprecated"):
        build_network(save(proto, tmp_path))


@pytest.mark.parametrize("to", [TensorProto.STRING, TensorProto.FLOAT8E8M0])
def test_elements_that_nothing_computes_with_are_refused_by_name(to: int, tmp_path: Path) -> None:
    """So that a fallback runs the rest of the model, instead of an internal error."""
    nodes = [node("Relu", "x", "r"), node("Cast", "r", "c", to=to), node("Cast", "c", to=1)]
    proto = model(nodes, {"x": (2, 3)}, opset=24)
    with pytest.raises(UnsupportedOperator, match=r"'Cast' .*type (string|float8_e8m0)"):
        build_network(save(proto, tmp_path))


def test_a_fused_product_of_a_vector_exchanges_no_dimensions(tmp_path: Path) -> None:
    a, b = values(5), values(5, 3, seed=1)
    op = contributed("FusedMatMul", "a b", transA=1, alpha=2.0)
    proto = with_contributions(model(op, {"a": a.shape}, {"b": b}))
    found = computed(proto, {"a": a}, tmp_path)["y"]
    np.testing.assert_allclose(found, 2 * a.astype(np.float64) @ b, rtol=1e-5)
    np.testing.assert_allclose(found, onnxruntime_outputs(proto, {"a": a})["y"], rtol=1e-5)
