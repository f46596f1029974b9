"""① Consistency of a graph between passes, checked without running it.

`verify(graph, form)` holds behind every pass (see `passes.pipeline`). What it proves:

- every tensor is made once, before it is read, and has a type; constants have the shape and dtype
  of theirs;
- the type of every result is the one that follows from the operands: by the inference of the `onnx`
  package for operators in ONNX's form, else by the definition of the operator.

Left out are operators that a later pass resolves or `require_supported` refuses. How many places a
window or a Slice takes is told by the declared shape alone, so behind the layout pass its own
extents there are not checked; those of its readers are.
"""

from __future__ import annotations

from collections.abc import Iterator
from math import prod

from autotune.dtypes import tensor_type
from autotune.graph.ir import OPSET, Editor, Graph, Node, TensorType
from autotune.graph.operators.definition import Layout
from autotune.graph.operators.table import operator_of
from autotune.graph.passes.pipeline import Form
from autotune.graph.reader.inference import Inference
from autotune.graph.reader.opsets import schema_of
from autotune.graph.refusals import is_refused
from autotune.graph.tasks.partition import Group
from autotune.graph.tasks.subgraph import defined_type

"""Types whose name in ONNX is another one."""


class MalformedGraph(Exception):
    """Violated invariant of a graph; a fault of a pass, not of a model."""


def verify(graph: Graph, form: Form = Form.ONNX) -> None:
    """Raises MalformedGraph that names the first node that is not consistent."""
    made = {*graph.inputs, *graph.constants}
    _verify_constants(graph)
    infer = Inference(Editor(graph))
    for node in graph.nodes:
        for name in filter(None, node.inputs):
            if name not in made or name not in graph.types:
                raise MalformedGraph(f"{_told(node)} reads '{name}' before it is made")
        for name in filter(None, node.outputs):
            if name in made or name not in graph.types:
                raise MalformedGraph(f"{_told(node)} makes '{name}' twice or without a type")
            made.add(name)
        if not is_refused(node):
            _verify_types(graph, node, form, infer)
    missing = set(graph.outputs) - made
    if missing:
        raise MalformedGraph(f"no node makes output '{min(missing)}'")


def _verify_constants(graph: Graph) -> None:
    for name, value in graph.constants.items():
        if graph.types[name] != TensorType(value.shape, str(value.dtype)):
            raise MalformedGraph(f"constant '{name}' is {value.dtype}{list(value.shape)}")


def _verify_types(graph: Graph, node: Node, form: Form, infer: Inference) -> None:
    for name, expected in _expected(graph, node, form, infer):
        declared = graph.types[name]
        if declared != expected:
            text = f"gives '{name}' {_text(expected)}, declared {_text(declared)}"
            raise MalformedGraph(f"{_told(node)} {text}")


def _expected(
    graph: Graph, node: Node, form: Form, infer: Inference
) -> Iterator[tuple[str, TensorType]]:
    """Outputs whose type can be told, and that type."""
    operator = operator_of(node.op)
    if form is Form.ONNX and is_standard(graph, node):
        yield from infer.types_of(node).items()
    elif operator.define is None and (operator.is_defined or operator.resolve is not None):
        source, results = graph.types[node.inputs[0]], [graph.types[n] for n in node.outputs]
        n_elements = sum(prod(kind.shape) for kind in results)
        if n_elements != prod(source.shape) or {k.dtype for k in results} != {source.dtype}:
            raise MalformedGraph(f"{_told(node)} makes {n_elements} elements of {_text(source)}")
    elif is_resolved(graph, node, form):
        yield node.output, defined_type(graph, Group([node]))


def is_standard(graph: Graph, node: Node) -> bool:
    """Whether a node is one of opset 22, in attributes, operands and their types."""
    schema = schema_of(node.op, OPSET)
    if schema is None or not set(node.attrs) <= set(schema.attributes):
        return False
    if not schema.min_input <= len(node.inputs) <= schema.max_input:
        return False
    if isinstance(node.attrs.get("to"), str):
        return False
    last = len(schema.inputs) - 1
    kinds = ((schema.inputs[min(i, last)], graph.types[n]) for i, n in enumerate(node.inputs) if n)
    return all(tensor_type(k.dtype) in given.types for given, k in kinds)


def is_resolved(graph: Graph, node: Node, form: Form) -> bool:
    """Whether an operator has a definition that applies to a node in this form."""
    operator = operator_of(node.op)
    dtypes = {graph.types[n].dtype for n in node.inputs if n}
    if operator.define is None or not dtypes <= operator.dtypes:
        return False
    if form is Form.ONNX and operator.layout is Layout.SPATIAL:
        return False
    return form is Form.RESOLVED or operator.resolve is None


def _told(node: Node) -> str:
    return f"{node.op} (node '{node.name}')"


def _text(kind: TensorType) -> str:
    return f"{kind.dtype}[{', '.join(map(str, kind.shape))}]"
