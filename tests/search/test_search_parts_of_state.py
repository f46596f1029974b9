"""Products over the filled places of a state: all threads have parts of them."""

from __future__ import annotations

import numpy as np

from autotune.graph.ir import Graph, Node, TensorType
from autotune.graph.network import graph_network
from autotune.graph.operators.state import MATMUL_BELOW, SOFTMAX_BELOW
from autotune.network.compile.compiler import compile_network
from autotune.network.runtime.runtime import Model
from autotune.search.defaults import default_candidate
from autotune.search.sketch import generate_sketches
from autotune.target import host_target

ROWS, PLACES, SIZE, THREADS = 3, 2048, 16, 8


def test_a_product_with_one_head_of_values_runs_on_all_threads() -> None:
    """Its results are fewer than the threads have registers for; any length gives the same sum."""
    types = {
        "p": TensorType((1, ROWS, PLACES), "float32"),
        "v": TensorType((1, PLACES, SIZE), "float32"),
        "n": TensorType((1,), "int64"),
        "y": TensorType((1, ROWS, SIZE), "float32"),
    }
    node = Node("y", MATMUL_BELOW, ("p", "v", "n"), ("y",))
    network = graph_network(Graph(("p", "v", "n"), ("y",), (node,), {}, types, 22), "m", "")
    (key,), target = network.tasks, host_target()
    steps = default_candidate(network.tasks[key], target, THREADS).steps
    artifact = compile_network(network, {key: steps}, target, 1)
    assert artifact.kernels[0].extent >= THREADS
    rng, model = np.random.default_rng(0), Model(artifact)
    p = rng.standard_normal((1, ROWS, PLACES)).astype(np.float32)
    v = rng.standard_normal((1, PLACES, SIZE)).astype(np.float32)
    for length in (1, 255, 256, 300, PLACES):
        expected = p[..., :length].astype(np.float64) @ v[:, :length]
        found = model.run({"p": p, "v": v, "n": np.array([length])})["y"]
        np.testing.assert_allclose(found, expected, atol=1e-4)


def test_a_softmax_over_places_has_sketches_that_copy_its_rows() -> None:
    """Of the scores, for each of its sums; the length is a single number."""
    types = {
        "x": TensorType((1792, PLACES), "float32"),
        "n": TensorType((1,), "int64"),
        "y": TensorType((1792, PLACES), "float32"),
    }
    node = Node("y", SOFTMAX_BELOW, ("x", "n"), ("y",))
    network = graph_network(Graph(("x", "n"), ("y",), (node,), {}, types, 22), "m", "")
    (dag,) = network.tasks.values()
    assert generate_sketches(dag, host_target())
