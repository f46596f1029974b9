"""① An If or a Loop that data decide: its branches or its body as models of their own.

If(data) {then} {else}      ->  Control: a Cut of each branch; results are of one type
Loop(n, data, x) {body}     ->  Control: a Cut of one iteration; carried tensors are of one type
Scan(x, rows) {body}        ->  Loop(n, x) {Gather(rows, k), body}

What a body reads of the graph around it becomes an input, or a weight where it is constant. What is
carried has the extents that it has in every iteration: those that change are found by cutting the
body until nothing changes. Left to ONNX Runtime as a whole: sequences and optionals, and bodies of
which nothing can be compiled.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType

import numpy as np
from onnx import (
    FunctionProto,
    GraphProto,
    ModelProto,
    NodeProto,
    ValueInfoProto,
    helper,
    inliner,
    numpy_helper,
)

from autotune.graph.constant_values import MOST_ELEMENTS
from autotune.graph.fallback.cuts import Control, Cut
from autotune.graph.ir import Array, TensorType
from autotune.graph.network import Port
from autotune.graph.reader.node_order import bodies, names_read
from autotune.graph.reader.onnx_nodes import type_of, value_info
from autotune.graph.reader.onnx_reader import OnnxModel
from autotune.graph.reader.survey import DeclaredTypes, Survey

CONTROL = ("If", "Loop", "Scan")

CutBody = Callable[[OnnxModel], tuple[Cut, Mapping[str, Array]]]
"""Cuts a body; also the outputs of it that are constant. Raises AutotuneError."""

_SCAN_OPSET = 9
"""The opset since which a Scan has no batch."""
_SMALL = 1024
"""Elements of a constant that may decide a shape."""


@dataclass(frozen=True)
class _Outer:
    """The graph around a body, and facts of its tensors."""

    model: OnnxModel
    found: Survey
    declared: DeclaredTypes

    def type_of(self, name: str) -> TensorType | None:
        """The type of a tensor; None for other values and for unknown types."""
        if name in self.found.constants:
            value = self.found.constants[name]
            return TensorType(value.shape, str(value.dtype))
        if name in self.found.types:
            return self.found.types[name]
        kind = self.declared.of(name)
        if kind is None or kind.WhichOneof("value") != "tensor_type":
            return None
        return type_of(kind) if kind.tensor_type.elem_type else None


def without_decided_functions(model: ModelProto) -> ModelProto:
    """The model with its functions inlined where one of them has a node that data may decide.

    y = my.Function(x)      ->  c = Greater(x, 0); y = If(c) {then} {else}
    """
    if not any(map(has_control, model.functions)):
        return model
    try:
        return inliner.inline_local_functions(model)
    except Exception:  # a fault of the package, or of the model: the calls stay
        return model


def has_control(graph: GraphProto | FunctionProto) -> bool:
    """Whether a graph has a node that data may decide."""
    return any(node.op_type in CONTROL for node in graph.node)


def control_of(
    model: OnnxModel, found: Survey, declared: DeclaredTypes, node: NodeProto, cut: CutBody
) -> Control | None:
    """The node as one whose bodies are compiled; None where ONNX Runtime is to run all of it.

    Raises AutotuneError where a body cannot be cut.
    """
    outer = _Outer(model, found, declared)
    match node.op_type:
        case "If":
            control = _branches(outer, node, cut)
        case "Loop":
            control = _loop(outer, node, cut)
        case _:
            control = _scan(outer, node, cut)
    if control is None or not _is_worth_it(control):
        return None
    return control


def _is_worth_it(control: Control) -> bool:
    """Whether something is compiled, or nothing is not."""
    return not control.needs_onnxruntime or any(n.calls for n, _ in control.networks)


def _branches(outer: _Outer, node: NodeProto, cut: CutBody) -> Control | None:
    graphs = {a.name: a.g for a in node.attribute}
    cuts = []
    for graph in (graphs["then_branch"], graphs["else_branch"]):
        model = _body(outer, graph, (), {})
        if model is None:
            return None
        cuts.append(cut(model)[0])
    pairs = zip(cuts[0].outputs, cuts[1].outputs, strict=True)
    types = [_joined(_type(a), _type(b)) for a, b in pairs]
    return _control(node, tuple(node.input), cuts, types, {})


def _loop(
    outer: _Outer, node: NodeProto, cut: CutBody, more: Mapping[str, Array] = MappingProxyType({})
) -> Control | None:
    """`more`: operands that are known and no tensors of the graph."""
    graph = next(a.g for a in node.attribute if a.name == "body")
    limit, condition, *initial = (*node.input, "", "")[: max(2, len(node.input))]
    known = {n: outer.found.constants[n] for n in node.input if n in outer.found.constants}
    known |= more
    carried = [outer.type_of(name) for name in initial]
    while True:
        fixed = [kind for kind in carried if kind is not None]
        if len(fixed) < len(carried):
            return None
        model = _iteration(outer, graph, fixed)
        if model is None:
            return None
        body, constants = cut(model)
        ports = zip(body.outputs[1:], fixed, strict=False)
        made = [_joined(_type(port), kind) for port, kind in ports]
        if made == carried:
            break
        carried = made
    is_counted = constants.get(body.outputs[0].name, np.array(False)).all()
    first = known.get(condition, np.array(not condition))
    n_rows = int(known[limit].item()) if limit in known and is_counted and first.all() else -1
    rows = [_stacked(_type(port), n_rows) for port in body.outputs[1 + len(initial) :]]
    if sum(value.size for value in known.values()) > MOST_ELEMENTS:  # a manifest has them as text
        return None
    return _control(node, (limit, condition, *initial), [body], [*carried, *rows], known)


def _scan(outer: _Outer, node: NodeProto, cut: CutBody) -> Control | None:
    """A Loop over the indices of scanned tensors; None where rows are collected in another way."""
    attrs = {a.name: a for a in node.attribute}
    graph, n_scanned = attrs["body"].g, attrs["num_scan_inputs"].i
    n_carried = len(node.input) - n_scanned
    named = ("scan_input_axes", "scan_input_directions", "scan_output_axes")
    axes, turned, *others = (list(attrs[n].ints) if n in attrs else [0] * n_scanned for n in named)
    others += [list(attrs[n].ints) for n in ("scan_output_directions",) if n in attrs]
    scanned = node.input[n_carried:]
    kinds = [outer.type_of(name) for name in scanned]
    if outer.model.opset < _SCAN_OPSET or any(map(any, others)) or None in kinds:
        return None
    extents = {k.shape[axis] for k, axis in zip(kinds, axes, strict=True) if k is not None}
    if len(extents) != 1 or min(extents) < 0:
        return None
    n_steps, made = extents.pop(), node.output[0] or node.output[-1]
    number, holds, limit, last = (f"{made}[{what}]" for what in ("k", "holds", "steps", "last"))
    body = GraphProto()
    body.CopyFrom(graph)
    rows = [value.name for value in graph.input[n_carried:]]
    del body.input[:], body.node[:], body.output[:]
    body.initializer.append(numpy_helper.from_array(np.array(n_steps - 1), last))
    body.node.append(helper.make_node("Sub", [last, number], [f"{number} from the end"]))
    for row, source, axis, is_turned in zip(rows, scanned, axes, turned, strict=True):
        at = f"{number} from the end" if is_turned else number
        body.node.append(helper.make_node("Gather", [source, at], [row], axis=axis))
    body.node.extend(graph.node)
    body.input.append(_declared(number, TensorType((), "int64")))
    body.input.append(_declared(holds, TensorType((), "bool")))
    body.input.extend(graph.input[:n_carried])
    body.output.append(_declared(holds, TensorType((), "bool")))
    body.output.extend(graph.output)
    operands = [limit, "", *node.input[:n_carried]]
    loop = helper.make_node("Loop", operands, node.output, name=node.name, body=body)
    return _loop(outer, loop, cut, {limit: np.array(n_steps)})


def _control(
    node: NodeProto,
    operands: tuple[str, ...],
    cuts: Sequence[Cut],
    types: Sequence[TensorType | None],
    constants: Mapping[str, Array],
) -> Control | None:
    known = tuple(kind for kind in types if kind is not None)
    if len(known) < len(types):
        return None
    results = (*node.output, *("" for _ in types))[: len(types)]
    name = node.name or next(filter(None, node.output), node.op_type)
    return Control(node.op_type, name, operands, results, tuple(cuts), constants, known)


def _iteration(outer: _Outer, graph: GraphProto, carried: Sequence[TensorType]) -> OnnxModel | None:
    """One iteration: whatever runs at all runs while the condition holds."""
    number, condition, *names = (value.name for value in graph.input)
    kinds = zip(names, carried, strict=True)
    inputs = [_declared(number, TensorType(_extents(graph.input[0]), "int64"))]
    inputs += [_declared(name, kind) for name, kind in kinds]
    holds = np.full(_extents(graph.input[1]), True)
    return _body(outer, graph, inputs, {condition: holds})


def _extents(value: ValueInfoProto) -> tuple[int, ...]:
    """Of a number of which a body states the shape, as none or one dimension."""
    return (1,) if len(value.type.tensor_type.shape.dim) == 1 else ()


def _body(
    outer: _Outer,
    graph: GraphProto,
    inputs: Iterable[ValueInfoProto],
    constants: Mapping[str, Array],
) -> OnnxModel | None:
    """A branch or body with captured tensors as inputs; None where one is no tensor."""
    proto = ModelProto(ir_version=outer.model.proto.ir_version)
    proto.opset_import.extend(outer.model.proto.opset_import)
    proto.functions.extend(outer.model.proto.functions)
    proto.graph.CopyFrom(graph)
    proto.graph.name = graph.name or "body"
    del proto.graph.input[:]
    proto.graph.input.extend(inputs)
    _tell_outputs_apart(proto.graph)
    weights = dict(constants)
    for name in _captured(graph):
        if name in outer.found.constants:
            weights[name] = outer.found.constants[name]
            continue
        kind = outer.type_of(name)
        if kind is None:
            return None
        proto.graph.input.append(_declared(name, kind))
    for name, value in list(weights.items()):
        if value.size <= _SMALL:
            proto.graph.initializer.append(numpy_helper.from_array(value, name))
            del weights[name]
        else:
            proto.graph.input.append(_declared(name, TensorType(value.shape, str(value.dtype))))
    return OnnxModel(proto, weights, outer.model.opset)


def _captured(graph: GraphProto) -> list[str]:
    """Outer-scope names that a graph captures."""
    own = {v.name for v in graph.input} | {t.name for t in graph.initializer}
    own |= {o for node in graph.node for o in node.output}
    read = (*names_read(graph), *(o.name for o in graph.output))
    inner = {name for node in graph.node for name in _made_inside(node)}
    return [n for n in dict.fromkeys(read) if n and n not in own and n not in inner]


def _made_inside(node: NodeProto) -> Iterable[str]:
    for body in bodies(node):
        yield from (v.name for v in body.input)
        yield from (t.name for t in body.initializer)
        for inner in body.node:
            yield from inner.output
            yield from _made_inside(inner)


def _tell_outputs_apart(graph: GraphProto) -> None:
    """Let every output be made by a node, under a name of its own."""
    free = {o for node in graph.node for o in node.output if o}
    for n, output in enumerate(graph.output):
        if output.name in free:
            free.remove(output.name)
            continue
        name = f"{output.name}[{n}]"
        graph.node.append(helper.make_node("Identity", [output.name], [name], name=name))
        output.name = name


def _declared(name: str, kind: TensorType) -> ValueInfoProto:
    """A tensor as ONNX declares it; one dimension of unknown extent may be any number of them."""
    value = value_info(name, kind)
    shape = value.type.tensor_type.shape
    for dim, extent in zip(shape.dim, kind.shape, strict=True):
        if extent < 0:
            dim.Clear()
    if kind.shape == (-1,):
        value.type.tensor_type.ClearField("shape")
    return value


def _type(port: Port) -> TensorType | None:
    """The type of an output of a body; None for other than tensors."""
    if not port.dtype:
        return None
    return TensorType(port.shape, "object" if port.dtype == "string" else port.dtype)


def _joined(a: TensorType | None, b: TensorType | None) -> TensorType | None:
    """Least upper bound of two types, -1 where extents differ; None if there is none."""
    if a is None or b is None or a.dtype != b.dtype:
        return None
    if len(a.shape) != len(b.shape):
        return TensorType((-1,), a.dtype)
    pairs = zip(a.shape, b.shape, strict=True)
    return TensorType(tuple(m if m == n else -1 for m, n in pairs), a.dtype)


def _stacked(row: TensorType | None, n_rows: int) -> TensorType | None:
    """The type of the rows of all iterations."""
    if row is None or row.shape == (-1,):  # without a row the extents are unknown
        return None
    return TensorType((n_rows, *row.shape), row.dtype)


def static_types(controls: Iterable[Control]) -> dict[str, TensorType]:
    """The types of results all of whose extents are known, by name."""
    pairs = ((n, t) for c in controls for n, t in zip(c.results, c.types, strict=True))
    return {name: kind for name, kind in pairs if name and min(kind.shape, default=0) >= 0}
