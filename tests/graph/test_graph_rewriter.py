"""The driver of rules: what it shares and drops."""

from __future__ import annotations

import numpy as np
import pytest

from autotune.graph.ir import Graph, Node, TensorType
from autotune.graph.passes.driver import rewrite
from autotune.graph.rewriter import Rewriter, Rule


def _of_input(rw: Rewriter) -> None:
    """Neg(a) -> Abs(x)"""
    rw.result("Abs", "x")


def test_a_node_is_not_shared_once_it_is_dead() -> None:
    """The rewrite of the second node leaves the first one without a reader; the third is equal."""
    nodes = (
        Node("first", "Erf", ("x",), ("a",)),
        Node("second", "Neg", ("a",), ("b",)),
        Node("third", "Erf", ("x",), ("c",)),
        Node("fourth", "Tanh", ("c",), ("d",)),
    )
    types = dict.fromkeys(("x", "a", "b", "c", "d"), TensorType((2,)))
    graph = rewrite(Graph(("x",), ("b", "d"), nodes, {}, types), Rule("r", _of_input, {"Neg"}))
    assert [node.op for node in graph.nodes] == ["Abs", "Erf", "Tanh"]
    assert graph.nodes[2].inputs == graph.nodes[1].outputs


@pytest.mark.parametrize("n", [4, 5000])
def test_nodes_of_equal_constants_are_one_whatever_their_size(n: int) -> None:
    """Else a model has other nodes at a larger extent."""
    places, others = np.arange(n), np.arange(n)
    others[-1] = 0
    constants = {"p": places, "q": places.copy(), "r": others}
    nodes = tuple(Node(c, "Add", ("x", c), (f"{c}.y",)) for c in constants)
    nodes += tuple(Node(f"{c}.z", "Erf", (f"{c}.y",), (f"{c}.z",)) for c in constants)
    names = ("x", *constants, *(name for node in nodes for name in node.outputs))
    types = dict.fromkeys(names, TensorType((n,), "int64"))
    outputs = tuple(f"{c}.z" for c in constants)
    graph = rewrite(Graph(("x",), outputs, nodes, constants, types), merges_all=True)
    assert [node.op for node in graph.nodes] == ["Add", "Add", "Erf", "Erf", "Erf"]
