"""Networks of equal blocks for gates."""

from __future__ import annotations

import onnx
import pytest

from benchmarks.gates import KINDS, network


@pytest.mark.parametrize("name", KINDS)
def test_a_block_more_is_as_many_nodes_more(name: str) -> None:
    some, more = (network(KINDS[name], n) for n in (20, 21))
    onnx.checker.check_model(more, full_check=True)
    n_nodes = len(KINDS[name].block.split(" = "))
    assert len(more.graph.node) - len(some.graph.node) in range(2, n_nodes + 1)
    assert len(more.graph.initializer) - len(some.graph.initializer) == len(KINDS[name].weights)
