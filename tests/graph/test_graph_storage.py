"""Rows a multiple of 4 KiB long are stored a line apart, where that costs no copy."""

from __future__ import annotations

from pathlib import Path

import numpy as np
from onnx import NodeProto

from autotune.graph.network import Network
from autotune.graph.tasks.storage import reshape_strides
from tests.graph.onnx_models import assert_matches, model, node, upsampled_beside_a_skip

PADDED = (1040, 1)


def weights(rng: np.random.Generator, *shape: int) -> np.ndarray:
    return (rng.standard_normal(shape) / 32).astype(np.float32)


def checked(
    rng: np.random.Generator, nodes: list[NodeProto], folder: Path, n_outputs: int = 16
) -> Network:
    """A network of matrix products over rows of 1024, run on its storages and compared."""
    constants = {
        "a": weights(rng, 16, 1024),
        "b": weights(rng, 1024, 1024),
        "c": weights(rng, 1024, n_outputs),
    }
    used = {name for n in nodes for name in n.input}
    constants = {n: w for n, w in constants.items() if n in used}
    return assert_matches(model(nodes, {"x": (6, 16)}, constants), folder)


def row_strides(network: Network) -> list[tuple[int, ...]]:
    """Last two strides of every value that is not a port."""
    ports = {p.value for p in (*network.inputs, *network.outputs)}
    return [v.strides[-2:] for name, v in network.values.items() if name not in ports]


def test_what_lies_between_two_products_has_padded_rows(
    rng: np.random.Generator, tmp_path: Path
) -> None:
    nodes = [node("MatMul", "x a", "s"), node("Relu", "s", "t"), node("MatMul", "t c", "y")]
    assert row_strides(checked(rng, nodes, tmp_path)) == [PADDED]


def test_inputs_and_outputs_are_dense(rng: np.random.Generator, tmp_path: Path) -> None:
    nodes = [node("MatMul", "x a", "s"), node("MatMul", "s b", "y")]
    network = checked(rng, nodes, tmp_path)
    assert row_strides(network) == [PADDED]
    assert network.values[network.outputs[0].value].strides[-2:] == (1024, 1)


def test_a_concat_is_written_into_padded_rows(rng: np.random.Generator, tmp_path: Path) -> None:
    nodes = [
        node("MatMul", "x a", "s"),
        node("Split", "s", "p q", axis=1),
        node("Sigmoid", "p", "u"),
        node("Tanh", "q", "v"),
        node("Concat", "u v", "t", axis=1),
        node("MatMul", "t c", "y"),
    ]
    assert set(row_strides(checked(rng, nodes, tmp_path))) == {PADDED}


def test_who_needs_dense_rows_gets_them_without_a_copy(
    rng: np.random.Generator, tmp_path: Path
) -> None:
    nodes = [
        node("MatMul", "x a", "s"),
        node("Relu", "s", "t"),
        node("Flatten", "t", "u", axis=0),
        node("ReduceSum", "u", "y", keepdims=1),
    ]
    network = checked(rng, nodes, tmp_path)
    assert PADDED not in row_strides(network)
    assert not any(call.label == "Identity" for call in network.calls)


def test_what_is_reshaped_on_the_way_to_a_concat_is_computed_in_place(tmp_path: Path) -> None:
    network = assert_matches(upsampled_beside_a_skip(n_skipped=3), tmp_path)
    assert not any("Identity" in call.label for call in network.calls)


def test_strides_of_other_shapes_are_those_of_numpy() -> None:
    base = np.zeros((4, 6, 40), np.int8)
    for array in (base, base[..., :32], base[:, :, ::2], base[:, :4], base[:2]):
        for shape in ((24, 40), (8, 3, 40), (2, 12, 32), (2, 2, 3, 2, 20), (4, 160), (2, 6, 2, 20)):
            if np.prod(shape) != array.size:
                continue
            view = array.view()
            try:
                view.shape = shape
                expected = view.strides
            except AttributeError:
                expected = None
            assert reshape_strides(array.shape, array.strides, shape) == expected
