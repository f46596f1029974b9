"""Every model of these tests is verified where the form of its graph changes."""

from __future__ import annotations

import pytest

from autotune.graph import network
from autotune.graph.ir import Graph
from autotune.graph.passes.pipeline import PASSES, Form, prepared
from autotune.graph.verify import verify

LAST_OF_FORM = {step.form: step.name for step in PASSES}


def verified(graph: Graph, dtype: str = "float32") -> Graph:
    verify(graph, Form.ONNX)
    for step, result in prepared(graph, dtype):
        graph = result
        if LAST_OF_FORM[step.form] == step.name:
            verify(graph, step.form)
    return graph


@pytest.fixture(autouse=True)
def _verified_passes(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    if not request.module.__name__.endswith("test_graph_scale"):  # it compares import times
        monkeypatch.setattr(network, "prepare", verified)
