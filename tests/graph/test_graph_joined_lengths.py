"""Places of two lengths that lie one behind another, as detectors have those of several images."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import numpy as np
import pytest
from onnx import ModelProto, NodeProto

from autotune.extent import Length, at
from autotune.graph.bound_model import BoundModel
from autotune.graph.lengths.imports import NotLifted
from autotune.graph.network import Network, chosen, network_at
from tests.graph.lifted import execute_lifted, lifted
from tests.graph.onnx_models import execute, model, node, random_feeds

H, W = Length("h", 5, 4), Length("w", 6, 4)
AREA = "h.w"
CHANNELS = 4


class Heads:
    """An image, halved a few times; each is read as rows of places, and all rows are joined."""

    def __init__(self, seed: int) -> None:
        self.rng = np.random.default_rng(seed)
        self.nodes: list[NodeProto] = []
        self.constants: dict[str, object] = {}

    def add(self, op: str, inputs: str, **attrs: object) -> str:
        name = f"t{len(self.nodes)}"
        self.nodes.append(node(op, inputs, name, **attrs))
        return name

    def constant(self, *values: int) -> str:
        name = f"c{len(self.constants)}"
        self.constants[name] = np.array(values, np.int64)
        return name

    def model(self) -> ModelProto:
        x, levels, places = "x", [], []
        for _ in range(int(self.rng.integers(1, 4))):
            if levels:
                pooled = str(self.rng.choice(["MaxPool", "AveragePool"]))
                x = self.add(pooled, x, kernel_shape=[2, 2], strides=[2, 2])
            levels.append(x)
            places.append(self._places(x))
        levels, places = (2 * each if len(levels) == 1 else each for each in (levels, places))
        flat = self.constant(0, CHANNELS, -1)
        rows = [self.add("Reshape", f"{level} {flat}") for level in levels]
        axis = 2
        if self.rng.integers(2):
            rows, axis = [self.add("Transpose", r, perm=[0, 2, 1]) for r in rows], 1
        y = self.add("Concat", " ".join(rows), axis=axis)
        made = [self.add("Softmax", y, axis=3 - axis), self.add("Softmax", y, axis=axis)]
        where = self.add("Concat", " ".join(places), axis=0)
        if axis == 1:
            where = self.add("Unsqueeze", f"{where} {self.constant(1)}")
        made.append(self.add("Add", f"{y} {where}"))
        if self.rng.integers(2):
            made.append(self.add("ReduceMax", y, axes=[axis], keepdims=0))
        return model(self.nodes, {"x": (1, CHANNELS, "h", "w")}, self.constants, " ".join(made))

    def _places(self, x: str) -> str:
        """The row of each place, as models count them: a constant for one size."""
        lengths = self.add("Shape", x)
        height, width = (
            self.add("Slice", f"{lengths} {self.constant(n)} {self.constant(n + 1)}")
            for n in (2, 3)
        )
        zero, one = (self.add("Squeeze", self.constant(n)) if n else "zero" for n in (0, 1))
        self.constants["zero"] = np.int64(0)
        rows = self.add("Range", f"{zero} {self.add('Squeeze', height)} {one}")
        tall = self.add("Unsqueeze", f"{self.add('Cast', rows, to=1)} {self.constant(1)}")
        size = self.add("Concat", f"{height} {width}", axis=0)
        return self.add("Reshape", f"{self.add('Expand', f'{tall} {size}')} {self.constant(-1)}")


def assert_same(proto: ModelProto, every: list[Mapping[str, int]], folder: Path) -> Network:
    """The network for all sizes computes what those of single sizes do."""
    dims = {"x": (1, CHANNELS, H, W)}
    network, bound = lifted(proto, dims, folder), BoundModel(folder / "model.onnx")
    for numbers in every:
        alone = chosen(network_at(bound, {"x": at(dims["x"], numbers)}), {})
        feeds = random_feeds(alone)
        area = numbers["h"] * numbers["w"]
        found = execute_lifted(network, feeds, {**numbers, AREA: area})
        assert found[f"length.{AREA}"].item() == area
        for name, array in execute(alone, feeds).items():
            assert found[name].dtype == array.dtype
            np.testing.assert_allclose(found[name], array, rtol=1e-4, atol=1e-5, err_msg=name)
    return network


@pytest.mark.sampled(3)
@pytest.mark.parametrize("seed", range(40))
def test_places_of_several_images_are_joined(seed: int, tmp_path: Path) -> None:
    rng = np.random.default_rng(seed)
    drawn = [{"h": int(rng.integers(1, 6)), "w": int(rng.integers(1, 7))} for _ in range(3)]
    every = [{"h": 5, "w": 6}, {"h": 1, "w": 1}, {"h": 5, "w": 1}, *drawn]
    network = assert_same(Heads(seed).model(), every, tmp_path)
    assert network.lengths.keys() == {"h", "w"}
    assert network.written == {AREA: f"length.{AREA}"}


def test_what_has_no_product_stays_refused(tmp_path: Path) -> None:
    pool = node("MaxPool", "x", "y", name="pool", kernel_shape=[3, 3], strides=[3, 3])
    proto = model(pool, {"x": (1, CHANNELS, "h", "w")})
    with pytest.raises(NotLifted, match="MaxPool 'pool' cannot follow"):
        lifted(proto, {"x": (1, CHANNELS, H, W)}, tmp_path)


def test_outputs_without_elements_have_lengths(tmp_path: Path) -> None:
    """A slice that begins behind its end, of any number of rows."""
    bounds = {"begin": np.array([2]), "end": np.array([1]), "axis": np.array([3])}
    nodes = [node("Slice", "x begin end axis"), node("Relu", "x", "z")]
    proto = model(nodes, {"x": (1, CHANNELS, "h", "w")}, bounds, "y z")
    network = lifted(proto, {"x": (1, CHANNELS, H, 4)}, tmp_path)
    feeds = {"x": np.ones((1, CHANNELS, 12, 4), np.float32)}
    assert execute_lifted(network, feeds, {"h": 3})["y"].shape == (1, CHANNELS, 12, 0)
