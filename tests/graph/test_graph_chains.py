"""Chains: which calls may become one, and what is left of the network either way."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest
from onnx import ModelProto, NodeProto

from autotune.graph.network import Network, build_network, chosen
from tests.graph.onnx_models import assert_matches, model, node, save


def weight(*shape: int) -> np.ndarray:
    return np.random.default_rng(len(shape)).standard_normal(shape).astype(np.float32)


def separable(*more: NodeProto, outputs: str = "y", **attrs: object) -> ModelProto:
    """x -> depthwise -> relu -> pointwise, twice; `attrs` for the first pointwise convolution."""
    nodes = [
        node("Conv", "x d1", "a", group=6, pads=[1, 1, 1, 1]),
        node("Relu", "a", "b"),
        node("Conv", "b p1", "c", **attrs),
        node("Clip", "c", "e"),
        node("Conv", "e d2", "f", group=8, pads=[1, 1, 1, 1], strides=[2, 2]),
        node("Relu", "f", "g"),
        node("Conv", "g p2", "y"),
        *more,
    ]
    constants = {
        "d1": weight(6, 1, 3, 3),
        "p1": weight(8, 6, 1, 1) if "kernel_shape" not in attrs else weight(8, 6, 3, 3),
        "d2": weight(8, 1, 3, 3),
        "p2": weight(4, 8, 1, 1),
    }
    return model(nodes, {"x": (1, 6, 9, 7)}, constants, outputs=outputs)


def tasks(network: Network) -> list[str]:
    """Tasks of the calls, without the transposes at the ends of the model."""
    return [call.task for call in network.calls[1:-1]]


def chains(proto: ModelProto, folder: Path) -> list[tuple[int, ...]]:
    return [chain.parts for chain in build_network(save(proto, folder)).chains]


@pytest.fixture
def network(tmp_path: Path) -> Network:
    return assert_matches(separable(), tmp_path, 1e-5)


def test_a_chain_is_there_beside_its_parts(network: Network) -> None:
    assert [chain.parts for chain in network.chains] == [(1, 2), (3, 4)]
    assert [network.labels[key] for key in network.parts] == [
        "Conv+Relu+Conv+Clip",
        "Conv+Relu+Conv",
    ]
    assert list(network.weights) == [*(c.task for c in network.calls), *network.parts]
    assert set(network.weights) == set(network.tasks)
    assert network.flops == chosen(network, {}).flops


def test_the_faster_alternative_is_chosen(network: Network) -> None:
    (first, (a, b)), (second, (c, d)) = network.parts.items()
    result = chosen(network, {a: 1, b: 2, first: 2.5, c: 1, d: 1, second: 2.5})
    assert tasks(result) == [first, c, d]
    assert set(result.tasks) == {call.task for call in result.calls}
    assert result.chains == ()


def test_a_chain_measured_in_part_is_left_as_an_untuned_network_has_it(network: Network) -> None:
    """Whatever its measured tasks take: the default of the others may be slower than expected."""
    (first, (a, b)), (second, (c, d)) = network.parts.items()
    guess = {first: 2.0, a: 1.0, b: 1.0, second: 1.0, c: 1.0, d: 1.0}
    untuned = tasks(chosen(network, {}, guess))
    assert untuned == [a, b, second]
    for measured in ({first: 0.1}, {a: 9.0}, {b: 9.0}, {a: 9.0, b: 9.0}, {second: 9.0}, {c: 0.1}):
        assert tasks(chosen(network, measured, guess)) == untuned
    assert tasks(chosen(network, {first: 0.1, a: 1.0}, guess)) == untuned
    assert tasks(chosen(network, {first: 0.1, a: 1.0, b: 1.0}, guess)) == [first, second]


def test_an_unmeasured_whole_has_to_be_clearly_faster(network: Network) -> None:
    (first, (a, b)), (second, (c, d)) = network.parts.items()
    guess = {first: 1.0, a: 1.0, b: 1.0, second: 1.97, c: 1.0, d: 1.0}
    assert tasks(chosen(network, {}, guess)) == [first, c, d]


def test_what_nothing_is_known_of_is_not_chosen(network: Network) -> None:
    (_, (a, b)), (second, (c, d)) = network.parts.items()
    assert tasks(chosen(network, {a: 5, b: 5, second: 9})) == [a, b, second]
    assert tasks(chosen(network, {a: 5, c: 5})) == [a, b, c, d]
    assert tasks(chosen(network, {})) == [a, b, c, d]


def test_a_result_that_others_read_ends_a_chain(tmp_path: Path) -> None:
    assert chains(separable(node("Relu", "b", "z"), outputs="y z"), tmp_path) == [(3, 4)]
    assert chains(separable(outputs="y g"), tmp_path) == [(1, 2)]


def test_a_wider_product_is_not_part_of_a_chain(tmp_path: Path) -> None:
    proto = separable(kernel_shape=[3, 3], pads=[1, 1, 1, 1])
    assert chains(proto, tmp_path) == [(3, 4)]


def test_pooling_is_a_window_too(tmp_path: Path) -> None:
    nodes = [
        node("MaxPool", "x", "a", kernel_shape=[3, 3], pads=[1, 1, 1, 1]),
        node("Conv", "a w", "b"),
        node("AveragePool", "b", "c", kernel_shape=[8, 8]),  # too large to unroll
        node("Conv", "c v", "y"),
    ]
    constants = {"w": weight(5, 6, 1, 1), "v": weight(5, 5, 1, 1)}
    proto = model(nodes, {"x": (1, 6, 9, 9)}, constants)
    assert [c.parts for c in assert_matches(proto, tmp_path, 1e-5).chains] == [(1, 2)]


def test_between_grouped_convolutions_there_is_no_chain(tmp_path: Path) -> None:
    nodes = [node("Conv", "x d", "a", group=6), node("Conv", "a w", "y", group=2)]
    constants = {"d": weight(6, 1, 3, 3), "w": weight(4, 3, 1, 1)}
    network = assert_matches(model(nodes, {"x": (1, 6, 9, 9)}, constants), tmp_path, 1e-5)
    assert network.chains == ()


def attention(
    *scores: NodeProto, more: Sequence[NodeProto] = (), outputs: str = "y", axis: int = -1
) -> ModelProto:
    """q, k, v -> product, `scores` from "a" to "s", softmax "p", product; and `more` nodes."""
    nodes = [
        node("MatMul", "q k", "a"),
        *scores,
        node("Softmax", "s", "p", axis=axis),
        node("MatMul", "p v", "y"),
        *more,
    ]
    inputs = {"q": (1, 3, 7, 4), "k": (1, 3, 4, 9), "v": (1, 3, 9, 5)}
    constants = {
        "root": np.float32(0.25),
        "mask": np.where(np.tri(7, 9) > 0, 0, -3.4e38).astype(np.float32),
        "bias": weight(1, 3, 7, 9),
        "hidden": np.tri(7, 9, -2) > 0,
        "lowest": np.float32(-1e30),
        "zero": np.float32(0),
    }
    return model(nodes, inputs, constants, outputs=outputs)


SCORES = {
    "as they are": [node("Identity", "a", "s")],
    "scaled": [node("Mul", "a root", "s")],
    "divided": [node("Div", "a root", "s")],
    "masked": [node("Mul", "a root", "b"), node("Add", "b mask", "s")],
    "chosen": [node("Where", "hidden lowest a", "s")],
    "biased": [node("Add", "a bias", "b"), node("Add", "b mask", "s")],
}


@pytest.mark.parametrize("scores", SCORES.values(), ids=SCORES)
def test_attention_is_a_chain(scores: list[NodeProto], tmp_path: Path) -> None:
    network = assert_matches(attention(*scores), tmp_path, 1e-5)
    assert [c.parts for c in network.chains] == [(0, 1, 2)]


def test_attention_as_another_exporter_writes_it(tmp_path: Path) -> None:
    """Both operands scaled, rows without any score made 0."""
    nodes = [
        node("Transpose", "q", "qt", perm=[0, 2, 1, 3]),
        node("Mul", "qt root", "qs"),
        node("Transpose", "k", "kt", perm=[0, 2, 3, 1]),
        node("Mul", "kt root", "ks"),
        node("Transpose", "v", "vt", perm=[0, 2, 1, 3]),
        node("MatMul", "qs ks", "a"),
        node("Add", "a mask", "s"),
        node("Softmax", "s", "p", axis=-1),
        node("IsNaN", "p", "n"),
        node("Where", "n zero p", "r"),
        node("MatMul", "r vt", "o"),
        node("Transpose", "o", "y", perm=[0, 2, 1, 3]),
    ]
    mask = np.where(np.tri(7) > 0, 0, -np.inf).astype(np.float32)
    constants = {"root": np.float32(0.5), "zero": np.float32(0), "mask": mask}
    proto = model(nodes, dict.fromkeys("qkv", (1, 7, 3, 4)), constants)
    network = assert_matches(proto, tmp_path, 1e-5)
    assert [network.labels[c.whole.task] for c in network.chains] == [
        "Transpose+Mul+MatMul+Add+Softmax+IsNaN+Where+MatMul"
    ]


@pytest.mark.parametrize("name", ["a", "s", "p"])
def test_scores_that_others_read_stay(name: str, tmp_path: Path) -> None:
    proto = attention(*SCORES["scaled"], more=[node("Relu", name, "z")], outputs="y z")
    assert chains(proto, tmp_path) == []


@pytest.mark.parametrize("name", ["s", "p"])
def test_scores_that_are_an_output_stay(name: str, tmp_path: Path) -> None:
    assert chains(attention(*SCORES["scaled"], outputs=f"y {name}"), tmp_path) == []


def test_columns_are_no_rows(tmp_path: Path) -> None:
    assert chains(attention(*SCORES["scaled"], axis=-2), tmp_path) == []


def test_normalised_rows_between_products_with_weights_are_a_chain(tmp_path: Path) -> None:
    nodes = [
        node("MatMul", "x a", "h"),
        node("LayerNormalization", "h scale shift", "n"),
        node("MatMul", "n b", "y"),
    ]
    constants = {"a": weight(6, 11), "b": weight(11, 5)}
    constants |= {"scale": weight(11), "shift": weight(11)}
    network = assert_matches(model(nodes, {"x": (1, 8, 6)}, constants), tmp_path, 1e-5)
    assert [c.parts for c in network.chains] == [(0, 1, 2)]


def test_three_products_are_no_chain(tmp_path: Path) -> None:
    nodes = [node("MatMul", "x a", "h"), node("MatMul", "h b", "i"), node("MatMul", "i c", "y")]
    constants = {"a": weight(6, 11), "b": weight(11, 5), "c": weight(5, 4)}
    assert chains(model(nodes, {"x": (8, 6)}, constants), tmp_path) == []
