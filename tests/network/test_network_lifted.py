"""Networks of models with open dimensions, compiled once and called at any size."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from autotune.extent import at
from autotune.graph.network import chosen
from autotune.network.compile.compiler import compile_variants
from autotune.network.compile.variants import tasks_of, unified
from autotune.network.runtime.runtime import Model
from autotune.search.defaults import default_steps
from autotune.target import host_target
from tests.graph.lifted import lifted
from tests.graph.onnx_models import onnxruntime_outputs
from tests.graph.test_graph_lengths import Case, encoder, image


@pytest.mark.parametrize(
    ("drawn", "is_joined"), [(encoder, False), (encoder, True), (image, False)]
)
def test_a_compiled_network_computes_what_onnxruntime_does_at_any_size(
    drawn: Callable[[], Case], is_joined: bool, tmp_path: Path, rng: np.random.Generator
) -> None:
    case = drawn()
    network = lifted(case.proto, case.dims, tmp_path)
    assert bool(network.chains) or not is_joined
    network = chosen(network, dict.fromkeys(network.parts, 0.0) if is_joined else {})
    made, target = unified([network]), host_target()
    steps = {key: default_steps(dag, target, 2) for key, dag in tasks_of(made).items()}
    model = Model(compile_variants(made, steps, target, 2))
    for numbers in case.numbers:
        inputs = {}
        for port in network.inputs[: len(case.dims)]:
            shape = at(case.dims[port.name], numbers)
            is_float = port.dtype == "float32"
            array = rng.standard_normal(shape) if is_float else rng.integers(0, port.limit, shape)
            inputs[port.name] = array.astype(port.dtype)
        for name, wanted in onnxruntime_outputs(case.proto, inputs).items():
            found = model.run(inputs)[name]
            np.testing.assert_allclose(found, wanted, rtol=1e-3, atol=1e-4, err_msg=name)
