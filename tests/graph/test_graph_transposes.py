"""Transposes with dimensions of 1 that come and go between them: one Transpose, equal numbers."""

from __future__ import annotations

import numpy as np
import pytest

from autotune.graph.ir import Graph, Node, TensorType
from autotune.graph.passes.driver import rewrite
from autotune.graph.passes.transposes import TRANSPOSE


def run(graph: Graph, x: np.ndarray) -> np.ndarray:
    """The graph by NumPy."""
    found = {"x": x}
    for node in graph.nodes:
        value = found[node.inputs[0]]
        if node.op == "Transpose":
            found[node.output] = value.transpose(node.attrs["perm"])
        else:
            found[node.output] = value.reshape(graph.types[node.output].shape)
    return found[graph.outputs[0]]


def with_ones(shape: tuple[int, ...], rng: np.random.Generator) -> tuple[int, ...]:
    """`shape` with dimensions of 1 at other places."""
    out = [n for n in shape if n != 1]
    for _ in range(int(rng.integers(0, 3))):
        out.insert(int(rng.integers(0, len(out) + 1)), 1)
    return tuple(out)


@pytest.mark.parametrize("seed", range(60))
def test_a_chain_is_at_most_one_transpose(seed: int) -> None:
    rng = np.random.default_rng(seed)
    shape = with_ones((2, 3, 4), rng)
    types, nodes, last = {"x": TensorType(shape, "float32")}, [], "x"
    for n in range(int(rng.integers(2, 6))):
        perm = tuple(int(p) for p in rng.permutation(len(shape)))
        shape = tuple(shape[p] for p in perm)
        nodes.append(Node(f"t{n}", "Transpose", (last,), (f"t{n}",), {"perm": perm}))
        types[f"t{n}"] = TensorType(shape, "float32")
        shape = with_ones(shape, rng)
        nodes.append(Node(f"r{n}", "Reshape", (f"t{n}",), (f"r{n}",)))
        types[f"r{n}"] = TensorType(shape, "float32")
        last = f"r{n}"
    graph = Graph(("x",), (last,), tuple(nodes), {}, types)
    merged = rewrite(graph, TRANSPOSE)
    x = np.arange(24, dtype=np.float32).reshape(types["x"].shape)
    np.testing.assert_array_equal(run(merged, x), run(graph, x))
    made = {node.output: node for node in merged.nodes}
    path, name = [], last
    while name in made:
        path.append(made[name].op)
        name = made[name].inputs[0]
    assert path.count("Transpose") <= 1
