"""⑩ A network by plain NumPy: its tasks, evaluated one after another over its storages."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.lib.stride_tricks import as_strided
from numpy.typing import NDArray

from autotune.dtypes import PORT_TYPES, is_float
from autotune.extent import at
from autotune.graph.network import Network, Port
from autotune.network.artifact.artifact import Endpoint
from autotune.network.artifact.numbers import numbers_of
from autotune.network.compile.memory import StoragePlace, place_of
from autotune.strides import spanned
from autotune.te.evaluate import evaluate

Array = NDArray[Any]


def evaluate_network(network: Network, inputs: Mapping[str, Array]) -> dict[str, Array]:
    """Outputs by plain NumPy: every call's DAG evaluated on strided views of the storages.

    Of a network with lengths, inputs have any size that it is for.
    """
    storages: dict[str, Array] = {}
    hidden = {port: name for name, port in network.lengths.items()}
    own = [Endpoint(p.name, p.shape, p.dtype, 0, extents=p.extents) for p in network.inputs]
    given = [end for end in own if end.name not in hidden]
    numbers = numbers_of(given, {end.name: inputs[end.name].shape for end in given})

    def view(name: str) -> Array:
        return _view(storages, network, place_of(network.values, name))

    def window(port: Port) -> Array:
        """The elements of a port that count."""
        if not port.extents:
            return view(port.value)
        whole = view(port.value).reshape(port.shape, copy=False)
        return whole[tuple(map(slice, at(port.extents, numbers)))]

    for port in network.inputs:
        target, name = window(port), hidden.get(port.name)
        array = inputs[port.name] if name is None else np.array([numbers[name]])
        target[...] = array.reshape(target.shape)
    numbers = dict(numbers)
    for call in network.calls:
        arrays = {p: view(value) for p, value in call.inputs.items()} | dict(call.constants)
        results = evaluate(network.tasks[call.task], arrays)
        for name, value in call.outputs.items():
            target = view(value)
            target[...] = results[name].reshape(target.shape)
    values = {port.name: port.value for port in network.outputs}
    numbers |= {name: view(values[port]).item() for name, port in network.written.items()}
    return {p.name: _user(window(p), p, numbers) for p in network.outputs}


def _view(storages: dict[str, Array], network: Network, place: StoragePlace) -> Array:
    if place.root not in storages:
        root = network.values[place.root]
        # NaN marks storage that no kernel wrote
        unset = np.nan if is_float(root.dtype) else 0
        storages[place.root] = np.full(spanned(root.shape, root.strides), unset, root.dtype)
    flat = storages[place.root]
    strides = [s * flat.itemsize for s in place.strides]
    return as_strided(flat[place.offset :], place.shape, strides)


def _user(array: Array, port: Port, numbers: Mapping[str, int]) -> Array:
    shape = at(port.extents or port.shape, numbers)
    with np.errstate(over="ignore"):
        return np.array(array).reshape(shape).astype(PORT_TYPES[port.dtype].numpy)
