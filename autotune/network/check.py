"""⑩ Are the numbers right? A compiled network beside an oracle that shares no code with it.

The oracle is ONNX Runtime on the original model where it is installed, or the plain NumPy
evaluation of the network's tasks.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.lib.stride_tricks import as_strided
from numpy.typing import NDArray

from autotune.errors import WrongNumbers
from autotune.graph.network import Network, Port
from autotune.network.artifact import numpy_dtype
from autotune.network.memory import Place, place_of
from autotune.network.opponents import opponent
from autotune.network.runtime import Model, random_inputs
from autotune.te.evaluate import evaluate
from autotune.te.pitch import spanned

TOLERANCE = 1e-4
"""Largest absolute error over the largest absolute output.

A float32 sum of k products in another order differs by about √k·6e-8 of its terms: 4e-6 for the
longest sums of common networks (k ≈ 5,000), and a few times that after a hundred layers. A single
wrong, missing or doubled term of such a sum is 1e-3 and more.
"""

_LEAST_SCALE = 1e-30
"""Outputs smaller than this come of denormal numbers, which count as zero: no error is relative to
them."""

Array = NDArray[Any]


def check_onnxruntime(model: Model, onnx_model: Any, seed: int = 0) -> float:
    """Error against ONNX Runtime on the same weights (path or ModelProto), as `max_error`.

    Raises WrongNumbers above `TOLERANCE`, MissingDependency without ONNX Runtime, ModelError where
    that cannot run the model.
    """
    inputs = random_inputs(model.input_info, seed)
    expected = opponent("onnxruntime", onnx_model, model.n_threads)(inputs)
    return _require(model.run(inputs), expected)


def check_network(model: Model, network: Network, seed: int = 0) -> float:
    """Error against `evaluate_network`; slow for large models. Raises WrongNumbers."""
    inputs = random_inputs(model.input_info, seed)
    return _require(model.run(inputs), evaluate_network(network, inputs))


def max_error(actual: Array, expected: Array) -> float:
    """Largest absolute difference over the largest absolute expected value; inf for a NaN.

    Over one where all that is expected is zero.
    """
    if actual.shape != expected.shape:
        return float("inf")
    largest = float(np.max(np.abs(expected), initial=0.0))
    scale = max(largest, _LEAST_SCALE) if largest else 1.0
    same = (actual == expected) | (np.isnan(actual) & np.isnan(expected))
    with np.errstate(invalid="ignore"):
        error = np.abs(actual.astype(np.float64) - expected)
    worst = float(np.max(np.where(same, 0.0, error), initial=0.0)) / scale
    return worst if np.isfinite(worst) else float("inf")


def evaluate_network(network: Network, inputs: Mapping[str, Array]) -> dict[str, Array]:
    """Outputs by plain NumPy: every call's DAG evaluated on strided views of the storages."""
    storages: dict[str, Array] = {}

    def view(name: str) -> Array:
        return _view(storages, network, place_of(network.values, name))

    for port in network.inputs:
        target = view(port.value)
        target[...] = inputs[port.name].reshape(target.shape)
    for call in network.calls:
        arrays = {p: view(value) for p, value in call.inputs.items()} | dict(call.constants)
        results = evaluate(network.tasks[call.task], arrays)
        for name, value in call.outputs.items():
            target = view(value)
            target[...] = results[name].reshape(target.shape)
    return {p.name: _user(view(p.value), p) for p in network.outputs}


def _view(storages: dict[str, Array], network: Network, place: Place) -> Array:
    if place.root not in storages:
        root = network.values[place.root]
        # storage that nothing wrote must not look like a number
        unset = np.nan if root.dtype.startswith("float") else 0
        storages[place.root] = np.full(spanned(root.shape, root.strides), unset, root.dtype)
    flat = storages[place.root]
    strides = [s * flat.itemsize for s in place.strides]
    return as_strided(flat[place.offset :], place.shape, strides)


def _user(array: Array, port: Port) -> Array:
    with np.errstate(over="ignore"):
        return np.array(array).reshape(port.shape).astype(numpy_dtype(port.dtype))


def _require(actual: Mapping[str, Array], expected: Mapping[str, Array]) -> float:
    errors = {name: max_error(actual[name], expected[name]) for name in expected}
    name, worst = max(errors.items(), key=lambda item: item[1])
    if not worst <= TOLERANCE:
        raise WrongNumbers(
            f"output '{name}' differs from the oracle by {worst:.2g} of its largest value, "
            f"{TOLERANCE:g} is allowed",
            "this is a bug: please report the model and the log it was compiled from",
        )
    return worst
