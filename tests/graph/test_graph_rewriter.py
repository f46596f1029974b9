"""The driver of rules: what it shares and drops."""

from __future__ import annotations

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
