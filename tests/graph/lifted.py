"""Networks for all lengths, run in NumPy with garbage behind every length."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
from numpy.lib.stride_tricks import as_strided
from numpy.typing import NDArray
from onnx import ModelProto

from autotune.extent import Extents, at
from autotune.graph.bound_model import BoundModel
from autotune.graph.lengths.lift import lifted_network
from autotune.graph.network import Network, chosen, network_at
from autotune.strides import spanned
from autotune.te.evaluate import evaluate
from tests.graph.onnx_models import execute, random_feeds, save

Array = NDArray[Any]


def lifted(proto: ModelProto, dims: Mapping[str, Extents], folder: Path) -> Network:
    return lifted_network(BoundModel(save(proto, folder)), dims)


def execute_lifted(
    network: Network, feeds: Mapping[str, Array], numbers: Mapping[str, int]
) -> dict[str, Array]:
    """Run a network over storage that begins as garbage, of which `feeds` cover the first part."""
    rng = np.random.default_rng(1)
    roots = [v for v in network.values.values() if v.parent is None]
    memory = {v.name: _garbage(spanned(v.shape, v.strides), v.dtype, rng) for v in roots}
    held = {port: numbers[name] for name, port in network.lengths.items()}

    def window(name: str) -> Array:
        value = network.values[name]
        base = memory[value.root][value.offset :]
        return as_strided(base, value.shape, [s * base.itemsize for s in value.strides])

    for port in network.inputs:
        whole = window(port.value)
        given = np.array([held[port.name]]) if port.name in held else feeds[port.name]
        assert given.shape == at(port.extents or port.shape, numbers)
        whole[tuple(map(slice, given.shape))] = given
    for call in network.calls:
        inputs = {name: window(value) for name, value in call.inputs.items()}
        results = evaluate(network.tasks[call.task], inputs | call.constants)
        for name, value in call.outputs.items():
            target = window(value)
            target[...] = results[name].reshape(target.shape)
    found = {}
    for port in network.outputs:
        part = tuple(map(slice, at(port.extents or port.shape, numbers)))
        found[port.name] = np.array(window(port.value)).reshape(port.shape)[part]
    return found


def _garbage(size: int, dtype: str, rng: np.random.Generator) -> Array:
    if np.dtype(dtype).kind == "f":
        return rng.choice([np.nan, np.inf, -1e30, 3.0], size).astype(dtype)
    return rng.integers(-(1 << 31), 1 << 31, size).astype(dtype)


def assert_lifted(
    proto: ModelProto,
    dims: Mapping[str, Extents],
    every: Iterable[Mapping[str, int]],
    folder: Path,
) -> Network:
    """The network for all numbers computes what the network for each of `every` does."""
    network = lifted(proto, dims, folder)
    bound = BoundModel(folder / "model.onnx")
    for numbers in every:
        shapes = {name: at(extents, numbers) for name, extents in dims.items()}
        alone = chosen(network_at(bound, shapes), {})
        feeds = random_feeds(alone)
        expected, found = execute(alone, feeds), execute_lifted(network, feeds, numbers)
        assert found.keys() == expected.keys()
        for name, array in expected.items():
            assert found[name].dtype == array.dtype
            np.testing.assert_allclose(
                found[name], array, rtol=1e-4, atol=1e-5, err_msg=f"{name} at {numbers}"
            )
    return network
