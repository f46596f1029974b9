"""① Functions of a model or of the standard -> the nodes of their bodies.

my.Norm(a) -> b,  Norm(x) = Softmax(x) -> y     ->     Softmax(a) -> y[b],  Identity(y[b]) -> b
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace
from functools import cache
from typing import Any

import onnx
from onnx import FunctionProto

from autotune.errors import ModelError
from autotune.graph.ir import AttributeReference, Graph, ModelFunction, Node, TensorType
from autotune.graph.limits import MOST_NESTED
from autotune.graph.reader.onnx_nodes import function_of, proto_of, value_info
from autotune.graph.reader.opsets import defaults_of, schema_of


def inlined(node: Node, function: ModelFunction, suffix: str) -> list[Node]:
    """The nodes of a function with the attributes, inputs and outputs of its call.

    `suffix` makes the names of its tensors unique to this call.
    """
    attrs = {**function.defaults, **node.attrs}
    given = (*node.inputs, *("" for _ in function.inputs))
    names = {"": "", **dict(zip(function.inputs, given, strict=False))}
    body = Graph(function.inputs, function.outputs, _bound(function.nodes, attrs), {}, {})
    body = renamed(body, names, suffix)
    nodes = [replace(n, name=f"{node.name}/{n.name}") for n in body.nodes]
    pairs = zip(body.outputs, node.outputs, strict=False)
    return [*nodes, *(Node(node.name, "Identity", (a,), (b,)) for a, b in pairs if b)]


def _bound(nodes: tuple[Node, ...], attrs: Mapping[str, Any]) -> tuple[Node, ...]:
    """`nodes` with the values of references; attributes that the call does not set are left out."""
    return tuple(replace(n, attrs=dict(_values(n.attrs, attrs))) for n in nodes)


def _values(own: Mapping[str, Any], attrs: Mapping[str, Any]) -> Iterator[tuple[str, Any]]:
    for name, value in own.items():
        match value:
            case AttributeReference(name=wanted):
                if wanted in attrs:
                    yield name, attrs[wanted]
            case Graph():
                yield name, replace(value, nodes=_bound(value.nodes, attrs))
            case _:
                yield name, value


def renamed(graph: Graph, names: Mapping[str, str], suffix: str) -> Graph:
    """A body whose tensors are renamed by `names`, and its other own tensors by a suffix."""
    own = {*graph.inputs, *graph.constants, *(o for n in graph.nodes for o in n.outputs if o)}
    table = {n: n + suffix for n in own} | dict(names)

    def new(old: tuple[str, ...]) -> tuple[str, ...]:
        return tuple(table.get(n, n) for n in old)

    def copied(value: object) -> object:
        return renamed(value, table, suffix) if isinstance(value, Graph) else value

    nodes = (
        replace(
            n,
            inputs=new(n.inputs),
            outputs=new(n.outputs),
            attrs={k: copied(v) for k, v in n.attrs.items()},
        )
        for n in graph.nodes
    )
    return replace(
        graph,
        inputs=new(graph.inputs),
        outputs=new(graph.outputs),
        nodes=tuple(nodes),
        constants={table.get(n, n): a for n, a in graph.constants.items()},
    )


def standard_body(node: Node, types: Mapping[str, TensorType]) -> ModelFunction | None:
    """The function body of a standard operator of its opset; None if it has none."""
    schema: Any = schema_of(node.op, node.opset)
    if schema is None:
        return None
    if schema.has_function:
        return _fixed_body(node.op, node.opset)
    if not has_body(schema):
        return None
    kinds = [_type_bytes(name, types) for name in node.inputs]
    if None in kinds:
        return None
    version = _version(schema.context_dependent_function_opset_versions, node.opset)
    attrs = {**defaults_of(schema), **node.attrs}
    proto = proto_of(replace(node, attrs=attrs))
    body = schema.get_context_dependent_function_with_opset_version(
        version, proto.SerializeToString(), kinds
    )
    return function_of(FunctionProto.FromString(body), attrs) if body else None


def has_body(schema: Any) -> bool:
    """Whether a standard operator has a function body."""
    return bool(schema.has_function or schema.has_context_dependent_function)


@cache
def _fixed_body(op: str, opset: int) -> ModelFunction:
    schema: Any = schema_of(op, opset)
    body = schema.get_function_with_opset_version(_version(schema.function_opset_versions, opset))
    return function_of(FunctionProto.FromString(body), defaults_of(schema))


def _version(versions: list[int], opset: int) -> int:
    """The newest version of a body that is not newer than an opset."""
    return max((v for v in versions if v <= opset), default=min(versions))


def _type_bytes(name: str, types: Mapping[str, TensorType]) -> bytes | None:
    """The serialised type of an operand, empty if it is absent; None if its type is not known."""
    if not name:
        return bytes(onnx.TypeProto().SerializeToString())
    if name not in types or min(types[name].shape, default=0) < 0:
        return None
    return bytes(value_info(name, types[name]).type.SerializeToString())


def check_calls(functions: Mapping[str, ModelFunction]) -> None:
    """Raises ModelError for functions that are recursive or nested too deeply."""
    depth: dict[str, int] = {}
    for start in functions:
        todo = [start]
        while todo:
            name = todo[-1]
            called = _called(functions[name].nodes, functions)
            missing = [c for c in called if c not in depth]
            cycle = next((c for c in missing if c in todo), None)
            if cycle is not None:
                raise ModelError(
                    f"function '{cycle}' calls itself", "export the model without recursion"
                )
            if missing and name not in depth:
                todo.append(missing[0])
                continue
            depth[todo.pop()] = 1 + max((depth[c] for c in called), default=0)
    deepest = max(depth, key=lambda n: depth[n], default="")
    if deepest and depth[deepest] > MOST_NESTED:
        raise ModelError(
            f"function '{deepest}' calls others {depth[deepest]} deep, {MOST_NESTED} are "
            "possible (MOST_NESTED)",
            "inline functions when the model is exported",
        )


def _called(nodes: tuple[Node, ...], functions: Mapping[str, ModelFunction]) -> set[str]:
    """The functions that some nodes and their subgraphs call."""
    found = {n.op for n in nodes if n.op in functions}
    for node in nodes:
        for value in node.attrs.values():
            if isinstance(value, Graph):
                found |= _called(value.nodes, functions)
    return found
