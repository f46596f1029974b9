"""Models that come with the onnx package, against onnxruntime on the same weights.

vgg19 and zfnet512 are not among them: 800 MB of weights, and no operator that others lack.
"""

from __future__ import annotations

import numpy as np
import pytest

from autotune.graph.network import Network, build_network, graph_network
from autotune.graph.reader.importer import import_graph
from autotune.graph.reader.onnx_reader import load_model, prepare_model
from tests.graph.onnx_models import LIGHT, both_choices, execute, onnxruntime_outputs, random_feeds

# model -> number of tasks (those of whole chains included), number of calls
TASKS = {
    "bvlc_alexnet": (14, 14),
    "densenet121": (72, 126),
    "inception_v1": (71, 75),
    "inception_v2": (57, 84),
    "resnet50": (28, 57),
    "shufflenet": (31, 75),
    "squeezenet": (26, 31),
}
FAST = ("shufflenet", "squeezenet")


@pytest.mark.sampled(2)
@pytest.mark.parametrize(
    "name", [n if n in FAST else pytest.param(n, marks=pytest.mark.slow) for n in TASKS]
)
def test_light_model_matches_onnxruntime(name: str) -> None:
    path = LIGHT / f"light_{name}.onnx"
    source = load_model(path, random_weights=True)
    network = graph_network(import_graph(source), name, "")
    feeds = random_feeds(network)
    expected = onnxruntime_outputs(source.complete(), feeds)
    for output, want in expected.items():
        assert np.isfinite(want).all()
        for choice in both_choices(network):
            results = execute(choice, feeds)
            assert results[output].shape == want.shape
            assert np.abs(results[output] - want).max() <= 1e-5 * np.abs(want).max()
        if want.min() >= 0:  # a softmax: neither saturated nor equal everywhere
            assert want.max() < 0.9
            assert want.std() > 1e-5
    assert (len(network.tasks), len(network.calls)) == TASKS[name]


@pytest.fixture(scope="module")
def resnet() -> Network:
    return build_network(LIGHT / "light_resnet50.onnx", random_weights=True)


def test_weights_count_occurrences(resnet: Network) -> None:
    assert sum(resnet.weights.values()) == len(resnet.calls)
    assert set(resnet.weights) == set(resnet.tasks)
    assert resnet.n_constant_bytes == pytest.approx(102e6, rel=0.01)
    assert resnet.flops == pytest.approx(8.2e9, rel=0.01)


def test_resnet_has_no_copies_and_no_lone_elementwise_tasks(resnet: Network) -> None:
    labels = set(resnet.labels.values())
    assert labels == {
        "Transpose+Conv+Relu",
        "MaxPool",
        "Conv",
        "Conv+Relu",
        "Conv+Add+Relu",
        "AveragePool",
        "MatMul",
        "Softmax",
    }


def test_pointwise_convolution_is_a_matrix_product(resnet: Network) -> None:
    key = next(c.task for c in resnet.calls if c.label == "Conv+Add+Relu")
    assert str(resnet.tasks[key]) == (
        "x = input(3136, 64) float32\n"
        "weight = constant(64, 256) float32\n"
        "bias = constant(256) float32\n"
        "conv[hw<3136, o<256] = sum(x[hw, i] * weight[i, o], over i<64)\n"
        "add[hw<3136, c<256] = conv[hw, c] + bias[c]\n"
        "y = input(3136, 256) float32\n"
        "add2[hw<3136, c<256] = add[hw, c] + y[hw, c]\n"
        "output relu[hw<3136, c<256] = max(0, add2[hw, c])"
    )


def test_input_transpose_is_part_of_the_padding(resnet: Network) -> None:
    first = resnet.calls[0]
    assert first.label == "Transpose+Conv+Relu"
    assert "x[c, h - 3, w - 3]" in str(resnet.tasks[first.task])


@pytest.mark.sampled(2)
@pytest.mark.slow
@pytest.mark.parametrize("name", ["densenet121", "squeezenet", "inception_v1", "inception_v2"])
def test_concatenations_cost_nothing(name: str) -> None:
    network = build_network(LIGHT / f"light_{name}.onnx", random_weights=True)
    labels = set(network.labels.values())
    assert not any("Concat" in label or "Identity" in label for label in labels)
    assert any(v.parent for v in network.values.values())


def test_seed_of_random_weights_is_fixed() -> None:
    path = LIGHT / "light_squeezenet.onnx"
    assert prepare_model(path, {}, True) == prepare_model(path, {}, True)


def test_other_sizes_of_the_input() -> None:
    path = LIGHT / "light_squeezenet.onnx"
    shapes = {"data_0": (2, 3, 96, 128)}
    network = build_network(path, shapes, random_weights=True)
    feeds = random_feeds(network)
    want = onnxruntime_outputs(prepare_model(path, shapes, True), feeds)["softmaxout_1"]
    got = execute(network, feeds)["softmaxout_1"]
    assert got.shape == (2, 1000, 1, 1)
    assert np.abs(got - want).max() <= 1e-5 * want.max()
