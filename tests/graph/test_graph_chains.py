"""Chains: which calls may become one, and what is left of the network either way."""

from __future__ import annotations

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
    """Tasks of the calls, without the transpose at the end of the model."""
    return [call.task for call in network.calls[:-1]]


def chains(proto: ModelProto, folder: Path) -> list[tuple[int, ...]]:
    return [chain.parts for chain in build_network(save(proto, folder)).chains]


@pytest.fixture
def network(tmp_path: Path) -> Network:
    return assert_matches(separable(), tmp_path, 1e-5)


def test_a_chain_is_there_beside_its_parts(network: Network) -> None:
    assert [chain.parts for chain in network.chains] == [(0, 1), (2, 3)]
    assert [network.labels[key] for key in network.parts] == [
        "Transpose+Conv+Relu+Conv+Clip",
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


def test_what_was_not_measured_is_not_chosen(network: Network) -> None:
    (first, (a, b)), (second, (c, d)) = network.parts.items()
    guess = dict.fromkeys(network.tasks, 1.0)
    assert tasks(chosen(network, {a: 5, b: 5, second: 9}, guess)) == [a, b, second]
    assert tasks(chosen(network, {a: 5, c: 5}, guess | {first: 3.0})) == [a, b, second]
    assert tasks(chosen(network, {}, guess)) == [first, second]
    assert tasks(chosen(network, {})) == [a, b, c, d]


def test_a_result_that_others_read_ends_a_chain(tmp_path: Path) -> None:
    assert chains(separable(node("Relu", "b", "z"), outputs="y z"), tmp_path) == [(2, 3)]
    assert chains(separable(outputs="y g"), tmp_path) == [(0, 1)]


def test_a_wider_product_is_not_part_of_a_chain(tmp_path: Path) -> None:
    proto = separable(kernel_shape=[3, 3], pads=[1, 1, 1, 1])
    assert chains(proto, tmp_path) == [(2, 3)]


def test_pooling_is_a_window_too(tmp_path: Path) -> None:
    nodes = [
        node("MaxPool", "x", "a", kernel_shape=[3, 3], pads=[1, 1, 1, 1]),
        node("Conv", "a w", "b"),
        node("AveragePool", "b", "c", kernel_shape=[8, 8]),  # too large to unroll
        node("Conv", "c v", "y"),
    ]
    constants = {"w": weight(5, 6, 1, 1), "v": weight(5, 5, 1, 1)}
    proto = model(nodes, {"x": (1, 6, 9, 9)}, constants)
    assert [c.parts for c in assert_matches(proto, tmp_path, 1e-5).chains] == [(0, 1)]


def test_between_grouped_convolutions_there_is_no_chain(tmp_path: Path) -> None:
    nodes = [node("Conv", "x d", "a", group=6), node("Conv", "a w", "y", group=2)]
    constants = {"d": weight(6, 1, 3, 3), "w": weight(4, 3, 1, 1)}
    network = assert_matches(model(nodes, {"x": (1, 6, 9, 9)}, constants), tmp_path, 1e-5)
    assert network.chains == ()
