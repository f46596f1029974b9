"""Small ONNX models, and a reference executor of networks: one NumPy evaluation per call."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime
from numpy.lib.stride_tricks import as_strided
from numpy.typing import NDArray
from onnx import ModelProto, NodeProto, TensorProto, ValueInfoProto, helper, numpy_helper
from onnx.reference import ReferenceEvaluator

from autotune.graph.network import Network, build_network, chosen
from autotune.graph.reader.onnx_reader import prepare_model
from autotune.strides import spanned
from autotune.te.evaluate import evaluate

Array = NDArray[Any]
LIGHT = Path(onnx.__file__).parent / "backend" / "test" / "data" / "light"

onnxruntime.set_default_logger_severity(3)


def node(op: str, inputs: str, outputs: str = "y", **attrs: object) -> NodeProto:
    """`node("Add", "a b", "y")`; "_" stands for an absent input."""
    names = ["" if name == "_" else name for name in inputs.split()]
    return helper.make_node(op, names, outputs.split(), **attrs)


def model(
    nodes: NodeProto | Sequence[NodeProto],
    inputs: Mapping[str, Sequence[int | str]],
    constants: Mapping[str, object] | None = None,
    outputs: str = "y",
    opset: int = 17,
    types: Mapping[str, str] | None = None,
) -> ModelProto:
    """A model whose outputs have inferred shapes; inputs and outputs are floats but for `types`."""
    kinds = {n: helper.np_dtype_to_tensor_dtype(np.dtype(t)) for n, t in (types or {}).items()}

    def port(name: str, shape: Sequence[int | str] | None) -> ValueInfoProto:
        return helper.make_tensor_value_info(name, kinds.get(name, TensorProto.FLOAT), shape)

    nodes = [nodes] if isinstance(nodes, NodeProto) else list(nodes)
    arrays = {n: np.asarray(a) for n, a in (constants or {}).items()}
    graph = helper.make_graph(
        nodes,
        "test",
        [port(n, s) for n, s in inputs.items()],
        [port(n, None) for n in outputs.split()],
        [numpy_helper.from_array(a, n) for n, a in arrays.items()],
    )
    proto = helper.make_model(graph, opset_imports=[helper.make_opsetid("", opset)])
    proto.ir_version = 8
    return proto


def upsampled_beside_a_skip(n_skipped: int) -> ModelProto:
    """A level of a U-Net: what is upsampled, joined with `n_skipped` other channels, convolved."""
    nodes = [
        node("ConvTranspose", "x w", "up", strides=[2, 2]),
        node("Relu", "x2", "skip"),
        node("Concat", "skip up", "t", axis=1),
        node("Conv", "t v", "y"),
    ]
    rng = np.random.default_rng(0)
    shapes = {"w": (8, 4, 2, 2), "v": (5, n_skipped + 4, 1, 1)}
    constants = {n: rng.standard_normal(s).astype(np.float32) / 4 for n, s in shapes.items()}
    return model(nodes, {"x": (1, 8, 6, 5), "x2": (1, n_skipped, 12, 10)}, constants)


def execute(network: Network, feeds: Mapping[str, Array]) -> dict[str, Array]:
    """Run a network over storage that begins as NaN, so that what is not written shows."""
    roots = [v for v in network.values.values() if v.parent is None]
    unset = {v.name: np.nan if v.dtype == "float32" else 0 for v in roots}
    memory = {v.name: np.full(spanned(v.shape, v.strides), unset[v.name], v.dtype) for v in roots}

    def window(name: str) -> Array:
        value = network.values[name]
        base = memory[value.root][value.offset :]
        strides = [s * base.itemsize for s in value.strides]
        assert base.size >= spanned(value.shape, value.strides)
        return as_strided(base, value.shape, strides)

    for port in network.inputs:
        window(port.value)[...] = feeds[port.name].reshape(network.values[port.value].shape)
    for call in network.calls:
        inputs = {name: window(value) for name, value in call.inputs.items()}
        results = evaluate(network.tasks[call.task], inputs | call.constants)
        for name, value in call.outputs.items():
            target = window(value)
            target[...] = results[name].reshape(target.shape)
    return {p.name: np.array(window(p.value)).reshape(p.shape) for p in network.outputs}


def random_feeds(network: Network, seed: int = 0) -> dict[str, Array]:
    """Normal values for every input, or numbers from -limit on that are valid indices."""
    rng = np.random.default_rng(seed)
    return {
        p.name: rng.standard_normal(p.shape, np.float32)
        if network.values[p.value].dtype == "float32"
        else rng.integers(0 if p.dtype == "bool" else -p.limit, p.limit, p.shape).astype(p.dtype)
        for p in network.inputs
    }


EXACT_BYTES = ("session.x64quantprecision", "1")
"""Sums of products of bytes that do not saturate where the CPU has no dot products of bytes."""


def onnxruntime_outputs(proto: ModelProto, feeds: Mapping[str, Array]) -> dict[str, Array]:
    """The oracle of whole models: exact products of bytes, or node by node where that fails."""
    exact, plain = onnxruntime.SessionOptions(), onnxruntime.SessionOptions()
    exact.add_session_config_entry(*EXACT_BYTES)
    exact.log_severity_level = 4
    plain.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
    try:
        return _outputs(proto, feeds, exact)
    except Exception:  # its rewriting of weights is wrong for some models
        return _outputs(proto, feeds, plain)


def _outputs(
    proto: ModelProto, feeds: Mapping[str, Array], options: onnxruntime.SessionOptions
) -> dict[str, Array]:
    session = onnxruntime.InferenceSession(
        proto.SerializeToString(), options, providers=["CPUExecutionProvider"]
    )
    names = [o.name for o in session.get_outputs()]
    return dict(zip(names, session.run(names, dict(feeds)), strict=True))


def save(proto: ModelProto, folder: Path) -> Path:
    """Write a model into a folder."""
    path = folder / "model.onnx"
    onnx.save(proto, path)
    return path


def both_choices(network: Network) -> tuple[Network, Network]:
    """The network with no chain joined, and with every one."""
    return chosen(network, {}), chosen(network, dict.fromkeys(network.parts, 0.0))


def error_against_onnxruntime(path: Path, original: ModelProto | None = None) -> float:
    """Largest absolute difference over the largest output; compares shapes and dtypes too."""
    return _error_of(build_network(path), original or prepare_model(path))


def _error_of(network: Network, original: ModelProto) -> float:
    feeds = random_feeds(network)
    expected = onnxruntime_outputs(original, feeds)
    return max(_error(execute(n, feeds), expected) for n in both_choices(network))


def reference_outputs(proto: ModelProto, feeds: Mapping[str, Array]) -> dict[str, Array]:
    """What the reference implementation of ONNX computes, which is the standard in code."""
    names = [o.name for o in proto.graph.output]
    return dict(zip(names, ReferenceEvaluator(proto).run(names, dict(feeds)), strict=True))


def error_against_reference(proto: ModelProto, folder: Path) -> float:
    """As `error_against_onnxruntime`, of what the reference implementation computes."""
    network = build_network(save(proto, folder))
    feeds = random_feeds(network)
    expected = reference_outputs(proto, feeds)
    return max(_error(execute(n, feeds), expected) for n in both_choices(network))


def _error(results: Mapping[str, Array], expected: Mapping[str, Array]) -> float:
    assert results.keys() == expected.keys()
    worst = 0.0
    for name, want in expected.items():
        assert results[name].shape == want.shape
        assert results[name].dtype == want.dtype
        found, want = results[name].astype(np.float64), want.astype(np.float64)
        scale = max(float(np.abs(want).max()), 1e-6)
        worst = max(worst, float(np.abs(found - want).max()) / scale)
    return worst


def assert_matches(proto: ModelProto, folder: Path, tolerance: float = 2e-6) -> Network:
    """Build `proto` and compare the network with onnxruntime running `proto` itself."""
    network = build_network(save(proto, folder))
    assert _error_of(network, proto) <= tolerance
    return network
