"""The values of a graph's outputs in NumPy, node by node, wherever the graph is between two passes.

    GraphValues([by_onnxruntime])(graph, form, rest, feeds)

What a node means is told by somebody who has no part in the passes, where there is one: ONNX
Runtime or `onnx.reference` for a node of the standard, else the definition of its operator. What is
left (operators of ONNX Runtime that a pass rewrites) is what the passes that follow make of the
node alone.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import onnxruntime
from numpy.typing import NDArray
from onnx import ModelProto, helper
from onnx.reference import ReferenceEvaluator

from autotune.graph.ir import OPSET, Graph, Node, TensorType
from autotune.graph.network import stored_network
from autotune.graph.passes.pipeline import Form, GraphPass
from autotune.graph.reader.onnx_nodes import proto_of, value_info
from autotune.graph.tasks.subgraph import definition_of
from autotune.graph.verify import is_resolved, is_standard
from autotune.te.evaluate import evaluate
from tests.graph.onnx_models import execute

Array = NDArray[Any]
Oracle = Callable[[Graph, Node, Mapping[str, Array]], list[Array]]


class GraphValues:
    """Evaluates graphs; a node that it has met is not evaluated again on equal operands."""

    def __init__(self, oracles: Sequence[Oracle]) -> None:
        """`oracles`: who tells what a node of the standard means, the first one that has it."""
        self._oracles = oracles
        self._known: dict[object, list[Array]] = {}

    def __call__(
        self, graph: Graph, form: Form, rest: Sequence[GraphPass], feeds: Mapping[str, Array]
    ) -> list[Array]:
        """The outputs of a graph in `form`; `rest`: the passes that have not run."""
        values = {**graph.constants, **{n: feeds[n] for n in graph.inputs}}
        for node in graph.nodes:
            operands = {n: values[n] for n in node.inputs if n}
            key = _key(graph, form, node, operands)
            if key not in self._known:
                self._known[key] = self._values(graph, form, rest, node, operands)
            values |= zip(filter(None, node.outputs), self._known[key], strict=True)
        return [values[n] for n in graph.outputs]

    def _values(
        self,
        graph: Graph,
        form: Form,
        rest: Sequence[GraphPass],
        node: Node,
        operands: Mapping[str, Array],
    ) -> list[Array]:
        if form is Form.ONNX and is_standard(graph, node):
            for oracle in self._oracles:
                try:
                    found = oracle(graph, node, operands)
                except Exception:  # it has no kernel for the node
                    continue
                if [TensorType(a.shape, str(a.dtype)) for a in found] == _types(graph, node):
                    return found
        if node.op == "Reshape":
            return [operands[node.inputs[0]].reshape(graph.shape(node.output))]
        if is_resolved(graph, node, form):
            dag, names = definition_of(graph, node)
            (result,) = evaluate(dag, {n: operands[name] for n, name in names.items()}).values()
            return [result.reshape(graph.shape(node.output))]
        return _by_passes(graph, rest, node, operands)


def _key(graph: Graph, form: Form, node: Node, operands: Mapping[str, Array]) -> object:
    """All that the results of a node depend on."""
    attrs = tuple(
        (name, value.tobytes() if isinstance(value, np.ndarray) else repr(value))
        for name, value in node.attrs.items()
    )
    read = tuple((a.tobytes(), a.shape, str(a.dtype)) for a in operands.values())
    places = tuple(list(operands).index(n) if n else -1 for n in node.inputs)
    constants = tuple(n in graph.constants for n in operands)
    return form, node.op, attrs, read, places, constants, tuple(_types(graph, node))


def _types(graph: Graph, node: Node) -> list[TensorType]:
    return [graph.types[n] for n in node.outputs if n]


def _model(graph: Graph, node: Node) -> ModelProto:
    """A model of one node of the standard."""
    inputs = [value_info(n, graph.types[n]) for n in dict.fromkeys(filter(None, node.inputs))]
    outputs = [value_info(n, graph.types[n]) for n in node.outputs if n]
    body = helper.make_graph([proto_of(node)], "node", inputs, outputs)
    proto = helper.make_model(body, opset_imports=[helper.make_opsetid("", OPSET)])
    proto.ir_version = 10
    return proto


def by_onnxruntime(graph: Graph, node: Node, operands: Mapping[str, Array]) -> list[Array]:
    options = onnxruntime.SessionOptions()
    options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
    options.intra_op_num_threads = options.inter_op_num_threads = 1
    options.log_severity_level = 4
    data = _model(graph, node).SerializeToString()
    session = onnxruntime.InferenceSession(data, options, providers=["CPUExecutionProvider"])
    return [np.asarray(v) for v in session.run(None, dict(operands))]


def by_reference(graph: Graph, node: Node, operands: Mapping[str, Array]) -> list[Array]:
    found = ReferenceEvaluator(_model(graph, node)).run(None, dict(operands))
    return [np.asarray(v) for v in found]


def _by_passes(
    graph: Graph, rest: Sequence[GraphPass], node: Node, operands: Mapping[str, Array]
) -> list[Array]:
    inputs = tuple(n for n in operands if n not in graph.constants)
    alone = Graph(
        inputs=inputs,
        outputs=tuple(filter(None, node.outputs)),
        nodes=(node,),
        constants={n: a for n, a in operands.items() if n in graph.constants},
        types={n: graph.types[n] for n in (*operands, *filter(None, node.outputs))},
        opset=graph.opset,
    )
    stored = alone
    for step in rest:
        stored = step.run(stored)
    network = stored_network(alone, stored, "node", "")
    found = execute(network, operands)
    return [found[n] for n in alone.outputs]


ORACLES: tuple[Oracle, ...] = (by_onnxruntime, by_reference)
