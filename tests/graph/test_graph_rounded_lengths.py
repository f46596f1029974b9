"""Windows that go several places at once, over images of any size: extents are rounded."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import numpy as np
import pytest
from onnx import ModelProto, NodeProto

from autotune.extent import Length, at
from autotune.graph.bound_model import BoundModel
from autotune.graph.lengths.formulas import Quotient, whole
from autotune.graph.lengths.imports import NotLifted
from autotune.graph.lengths.lift import open_model
from autotune.graph.lengths.rounding import quotients_in
from autotune.graph.network import Network, chosen, network_at
from tests.graph.lifted import execute_lifted, lifted
from tests.graph.onnx_models import execute, model, node, random_feeds

CHANNELS = 4
DIMS = {"x": (Length("n", 3), CHANNELS, Length("h", 45), Length("w", 38))}


class Stack:
    """Convolutions and pools with strides, one behind the other, with branches and joints."""

    def __init__(self, seed: int) -> None:
        self.rng = np.random.default_rng(seed)
        self.nodes: list[NodeProto] = []
        self.constants: dict[str, object] = {}

    def add(self, op: str, inputs: str, **attrs: object) -> str:
        name = f"t{len(self.nodes)}"
        self.nodes.append(node(op, inputs, name, **attrs))
        return name

    def window(self, x: str) -> str:
        stride, kernel = int(self.rng.integers(1, 4)), int(self.rng.integers(1, 4))
        attrs: dict[str, object] = {"strides": [stride, stride]}
        begin, end = (int(self.rng.integers(kernel)) for _ in range(2))
        if stride < 3 and self.rng.integers(3) == 0:
            attrs["auto_pad"] = str(self.rng.choice(["SAME_UPPER", "SAME_LOWER", "VALID"]))
        else:
            attrs["pads"] = [begin, begin, end, end]
        if self.rng.integers(2):
            name = f"k{len(self.constants)}"
            shape = CHANNELS, CHANNELS, kernel, kernel
            self.constants[name] = self.rng.normal(size=shape).astype(np.float32)
            return self.add("Conv", f"{x} {name}", **attrs)
        pool = str(self.rng.choice(["MaxPool", "AveragePool"]))
        if pool == "MaxPool" and "pads" in attrs and self.rng.integers(2):
            attrs["ceil_mode"] = 1
        if pool == "AveragePool":
            attrs["count_include_pad"] = 1
        return self.add(pool, x, kernel_shape=[kernel, kernel], **attrs)

    def model(self) -> ModelProto:
        x, outputs = "x", []
        for _ in range(int(self.rng.integers(1, 4))):
            x = self.window(x)
            if self.rng.integers(3) == 0:
                other = self.add("Relu", x)
                x = self.add("Concat", f"{x} {other}", axis=2)
                x = self.add("Add", f"{x} {x}")
            outputs.append(self.add("Sigmoid", x))
        if self.rng.integers(2):
            outputs.append(self.add("GlobalAveragePool", x))
        if self.rng.integers(2):
            self.constants["flat"] = np.array([0, CHANNELS, -1])
            rows = self.add("Reshape", f"{x} flat")
            outputs.append(self.add("ReduceMax", rows, axes=[2], keepdims=0))
        return model(
            self.nodes, {"x": ("n", CHANNELS, "h", "w")}, self.constants, " ".join(outputs)
        )


def assert_same(proto: ModelProto, every: list[Mapping[str, int]], folder: Path) -> Network:
    """The network for all sizes computes what those of single sizes do."""
    network, bound = lifted(proto, DIMS, folder), BoundModel(folder / "model.onnx")
    opened = open_model(bound, DIMS, "f32")
    formulas = quotients_in(lambda numbers: opened.read_at(numbers)[1], opened.mosts)
    leasts = {e.name: e.least for p in network.inputs for e in p.extents if isinstance(e, Length)}
    for numbers in ({n: max(k, leasts[n]) for n, k in size.items()} for size in every):
        alone = chosen(network_at(bound, {"x": at(DIMS["x"], numbers)}), {})
        feeds = random_feeds(alone)
        found = execute_lifted(network, feeds, whole(formulas, numbers))
        for name, array in execute(alone, feeds).items():
            assert found[name].shape == array.shape
            np.testing.assert_allclose(found[name], array, rtol=1e-4, atol=1e-5, err_msg=name)
    return network


@pytest.mark.sampled(3)
@pytest.mark.parametrize("seed", range(40))
def test_images_of_any_size_pass_strides(seed: int, tmp_path: Path) -> None:
    rng = np.random.default_rng(seed)
    most = {e.name: e.most for e in DIMS["x"] if isinstance(e, Length)}
    drawn = [{n: int(rng.integers(1, k + 1)) for n, k in most.items()} for _ in range(5)]
    try:
        assert_same(Stack(seed).model(), [most, dict.fromkeys(most, 1), *drawn], tmp_path)
    except NotLifted as error:
        pytest.skip(error.message)


def test_halves_of_halves_are_numbers(tmp_path: Path) -> None:
    """Five strides of two: as networks have them that halve an image."""
    pool = {"kernel_shape": [3, 3], "strides": [2, 2], "pads": [1, 1, 1, 1]}
    nodes = [node("MaxPool", "x" if n == 0 else f"y{n}", f"y{n + 1}", **pool) for n in range(5)]
    proto = model(nodes, {"x": (1, 2, "h", 8)}, {}, "y5")
    dims = {"x": (1, 2, Length("h", 640), 8)}
    network = lifted(proto, dims, tmp_path)
    halves = {"h" + n * "'": Quotient("h" + (n - 1) * "'", 1, 1, 2) for n in range(1, 6)}
    for h in (1, 32, 33, 637):
        found = execute_lifted(
            network, {"x": np.full((1, 2, h, 8), h, np.float32)}, whole(halves, {"h": h})
        )
        assert found["y5"].shape == (1, 2, -(-h // 32), 1)
        assert (found["y5"] == h).all()


def test_windows_of_a_signal_may_have_any_number_of_samples(tmp_path: Path) -> None:
    """Seven strides make a place of 320 samples, as encoders of speech have them."""
    windows = [(10, 5), *[(3, 2)] * 4, *[(2, 2)] * 2]
    nodes = [
        node("MaxPool", f"y{n}", f"y{n + 1}", kernel_shape=[size], strides=[stride])
        for n, (size, stride) in enumerate(windows)
    ]
    nodes.append(
        node("AveragePool", "y7", "y", kernel_shape=[16], pads=[8, 8], count_include_pad=1)
    )
    proto = model(nodes, {"y0": (1, 2, "samples")}, {}, "y")
    dims = {"y0": (1, 2, Length("samples", 40000))}
    network, bound = lifted(proto, dims, tmp_path), BoundModel(tmp_path / "model.onnx")
    opened = open_model(bound, dims, "f32")
    formulas = quotients_in(lambda numbers: opened.read_at(numbers)[1], opened.mosts)
    for n in (400, 719, 720, 16001, 40000):
        alone = chosen(network_at(bound, {"y0": (1, 2, n)}), {})
        feeds = random_feeds(alone)
        found = execute_lifted(network, feeds, whole(formulas, {"samples": n}))
        (want,) = execute(alone, feeds).values()
        np.testing.assert_allclose(found["y"], want, rtol=1e-5, atol=1e-6)
