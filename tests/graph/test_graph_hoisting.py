"""Elementwise operators in front of what rearranges their operands: when, and that numbers stay."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from onnx import NodeProto

from tests.graph.onnx_models import assert_matches, model, node

RNG = np.random.default_rng(0)


def values(rng: np.random.Generator, *shape: int) -> np.ndarray:
    return rng.standard_normal(shape).astype(np.float32)


def ints(*numbers: int) -> np.ndarray:
    return np.array(numbers, np.int64)


CONSTANTS: dict[str, np.ndarray] = {
    "w": values(RNG, 8, 12),
    "back": values(RNG, 12, 8),
    "bias": values(RNG, 12),
    "half": np.float32(0.5).reshape(1, 1, 1, 1),
    "eighth": np.full(1, 0.125, np.float32),
    "table": values(RNG, 1, 6, 12),
    "column": values(RNG, 1, 6, 1),
    "heads": ints(1, 6, 3, 4),
    "rows": ints(1, 6, 12),
    "flat": ints(6, 12),
    "first": ints(0),
    "third": ints(2),
    "channels": ints(1),
}
PRODUCT = node("Gemm", "x w bias", "p")


def labels(
    nodes: list[NodeProto], folder: Path, outputs: str = "y", **more: tuple[int, ...]
) -> list[str]:
    proto = model(nodes, {"x": (6, 8), **more}, CONSTANTS, outputs)
    return [call.label for call in assert_matches(proto, folder).calls]


def test_a_scale_of_rearranged_results_moves_into_the_weights(tmp_path: Path) -> None:
    nodes = [
        PRODUCT,
        node("Reshape", "p heads", "r"),
        node("Transpose", "r", "t", perm=[0, 2, 1, 3]),
    ]
    assert labels([*nodes, node("Mul", "t half")], tmp_path) == ["MatMul", "Transpose"]


def test_operators_of_one_operand_join_the_product(tmp_path: Path) -> None:
    nodes = [PRODUCT, node("Reshape", "p heads", "r"), node("HardSwish", "r", "h")]
    nodes += [node("Transpose", "h", "t", perm=[0, 2, 1, 3]), node("Tanh", "t")]
    assert labels(nodes, tmp_path) == ["MatMul+HardSwish+Tanh", "Transpose"]


@pytest.mark.parametrize("other", ["residual", "table", "column"])
@pytest.mark.parametrize("swapped", [False, True])
def test_a_leading_one_keeps_no_sum_from_its_product(
    other: str, swapped: bool, tmp_path: Path
) -> None:
    operands = f"{other} r" if swapped else f"r {other}"
    nodes = [PRODUCT, node("Reshape", "p rows", "r"), node("Add", operands, "s"), node("Relu", "s")]
    assert labels(nodes, tmp_path, residual=(1, 6, 12)) == ["MatMul+Add+Relu"]


@pytest.mark.parametrize(("perm", "still_there"), [((1, 0, 2), False), ((2, 0, 1), True)])
def test_a_transpose_of_axes_with_one_element_moves_nothing(
    perm: tuple[int, ...], still_there: bool, tmp_path: Path
) -> None:
    """Behind convolutions whose weights are computed for one image (CondConv)."""
    nodes = [PRODUCT, node("Reshape", "p rows", "r"), node("Transpose", "r", "t", perm=perm)]
    nodes += [node("Reshape", "t rows", "back_again"), node("Relu", "back_again")]
    assert ("Transpose" in labels(nodes, tmp_path)) is still_there


def test_what_is_read_several_times_joins_too(tmp_path: Path) -> None:
    """The Gelu of GPT-2 between two products of matrices."""
    nodes = [PRODUCT, node("Reshape", "p rows", "r"), node("Tanh", "r", "t")]
    nodes += [node("Mul", "r t", "m"), node("Add", "m r", "a"), node("Reshape", "a flat", "f")]
    nodes.append(node("MatMul", "f back"))
    assert labels(nodes, tmp_path) == ["MatMul+Tanh+Mul+Add", "MatMul"]


def test_several_readers_of_one_product_join_it(tmp_path: Path) -> None:
    """They move in front of its Reshape one after the other, each as if it alone read it."""
    nodes = [PRODUCT, node("Reshape", "p rows", "r"), node("Mul", "r eighth", "h")]
    nodes += [node("Tanh", "r", "t"), node("Mul", "h t", "m"), node("Reshape", "m flat", "f")]
    nodes.append(node("MatMul", "f back"))
    assert labels(nodes, tmp_path) == ["MatMul+Mul+Tanh+Mul", "MatMul"]


def test_nothing_moves_where_it_would_be_on_its_own(tmp_path: Path) -> None:
    """Behind a part of a tensor, another reader of the source, or its maker."""
    part = node("Slice", "p first third channels", "part")
    nodes = [PRODUCT, part, node("Transpose", "part", "t"), node("Relu", "t", "y")]
    nodes += [node("Reshape", "p heads", "r"), node("Sigmoid", "r", "z")]
    found = labels([*nodes, node("Mul", "z half", "q")], tmp_path, "y q")
    assert sorted(found) == ["MatMul", "Sigmoid+Mul", "Transpose+Relu"]
    nodes = [PRODUCT, node("Gemm", "x w bias", "q"), node("Reshape", "q rows", "r")]
    other = [node("Reshape", "p rows", "s"), node("Softmax", "s", "e", axis=-1)]
    assert labels([*nodes, *other, node("Add", "e r")], tmp_path)[-1].endswith("Softmax+Add")


@pytest.mark.parametrize("operand", ["bias", "table", "column"])
def test_operands_take_the_dimensions_that_a_reshape_joins(operand: str, tmp_path: Path) -> None:
    """Whatever their rank: (12) and (1, 6, 12) in front of a Reshape from 1×6×3×4."""
    nodes = [
        PRODUCT,
        node("Reshape", "p heads", "r"),
        node("Softmax", "r", "s"),
        node("Reshape", "s rows", "f"),
        node("Mul", f"f {operand}"),
    ]
    assert labels(nodes, tmp_path) == ["MatMul", "Softmax+Mul"]


@pytest.mark.parametrize("mode", ["together", "one by one", "cut", "DCR", "CRD"])
@pytest.mark.parametrize("behind", ["Relu", "PRelu", "Clip", "BatchNormalization"])
def test_what_follows_interleaved_channels_joins_their_convolution(
    mode: str, behind: str, tmp_path: Path
) -> None:
    rng = np.random.default_rng(1)
    n_out = {"together": 3, "one by one": 16}.get(mode, 4)
    constants = {
        "deconv": values(rng, 5, n_out, 4, 4),
        "conv": values(rng, 4 * n_out, 5, 3, 3),
        "slope": values(rng, n_out, 1, 1),
        **{"low": np.float32(-0.5), "high": np.float32(0.5)},
        **{name: values(rng, n_out) for name in ("scale", "shift", "mean")},
        "variance": np.abs(values(rng, n_out)) + 0.5,
    }
    if mode in ("DCR", "CRD"):
        first = [node("Conv", "x conv", "c")]
        first += [node("DepthToSpace", "c", "t", blocksize=2, mode=mode)]
    else:
        pads = [1] * 4 if mode == "one by one" else [1, 0, 2, 1]
        first = [node("ConvTranspose", "x deconv", "t", strides=[2, 2], pads=pads)]
    inputs = {
        "PRelu": "t slope",
        "Clip": "t low high",
        "BatchNormalization": "t scale shift mean variance",
    }
    nodes = [*first, node(behind, inputs.get(behind, "t"), "b"), node("Relu", "b")]
    proto = model(nodes, {"x": (1, 5, 6, 7)}, constants)
    network = assert_matches(proto, tmp_path, 1e-5)
    alone = {"Transpose", "Slice", "Concat", "Reshape", "Copy"}
    assert all("Conv" in call.label or call.label in alone for call in network.calls)


def test_a_pixel_shuffle_of_few_channels_copies_a_block_of_them_at_a_time(tmp_path: Path) -> None:
    nodes = [node("DepthToSpace", "x", "y", blocksize=2, mode="DCR")]
    network = assert_matches(model(nodes, {"x": (1, 12, 8, 8)}, {}, "y"), tmp_path)
    shapes = [op.tensor.shape for task in network.tasks.values() for op in task.computes]
    assert (8, 2, 8, 6) in shapes
