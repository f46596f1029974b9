"""Which nodes of a file the tasks of its network compute."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import onnx
import pytest

from autotune.api.bindings import bind
from autotune.api.compile.fallback import sources_of
from autotune.api.request import Source
from autotune.graph.file_nodes import nodes_of
from tests.compatibility.make import attention, convolutions, encoder, quantised


@pytest.mark.parametrize("make", [attention, convolutions, encoder, quantised])
def test_a_task_has_the_nodes_that_its_label_names(
    make: Callable[[], onnx.ModelProto], tmp_path: Path
) -> None:
    model = make()
    path = tmp_path / "m.onnx"
    onnx.save(model, path)
    open_dims = {d.dim_param for i in model.graph.input for d in i.type.tensor_type.shape.dim}
    dims = dict.fromkeys(sorted(open_dims - {""}), 4)
    networks = sources_of(bind(Source(path, dims=dims)), "f32")
    nodes = nodes_of(model.graph, networks.wholes)
    operators = {node.op_type for node in model.graph.node}
    assert {name for name, _, _ in nodes} <= {node.output[0] for node in model.graph.node}
    for network in networks.wholes:
        for task, label in network.labels.items():
            own = {operator for _, operator, tasks in nodes if task in tasks}
            assert own
            assert {*label.split("+")} & operators <= own, label
