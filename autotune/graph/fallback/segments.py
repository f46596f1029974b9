"""① Subgraphs of graph partitioning: an order in which compiled and other nodes alternate least.

    nodes 0 1 2 3 4, refused: 2     ─►  Span((0, 1), compiled), Span((2,)), Span((3, 4), compiled)

A segment has every node of its kind whose operands are there, so it need not be connected. Each
one becomes a model of its own: `segment_model` for the compiler, `onnx_model` for ONNX Runtime.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from onnx import ModelProto, NodeProto, TypeProto, ValueInfoProto, numpy_helper

from autotune.errors import ModelError
from autotune.graph.reader.node_order import names_read
from autotune.graph.reader.onnx_nodes import value_info
from autotune.graph.reader.onnx_reader import OnnxModel, forget_extents
from autotune.graph.reader.survey import DeclaredTypes, Survey


@dataclass(frozen=True)
class Span:
    """Nodes of one segment by position in the file, in order; tensors that it reads and makes."""

    nodes: tuple[int, ...]
    is_compiled: bool
    inputs: tuple[str, ...] = ()
    outputs: tuple[str, ...] = ()


def reads(node: NodeProto) -> list[str]:
    """The tensors that a node reads, those of its branches and bodies included."""
    inner = (n for a in node.attribute if a.HasField("g") for n in names_read(a.g))
    own = (o for a in node.attribute if a.HasField("g") for o in (v.name for v in a.g.output))
    return list(dict.fromkeys(n for n in (*node.input, *inner, *own) if n))


def needed(model: OnnxModel, found: Survey) -> list[int]:
    """The nodes that an output depends on and whose results are no constants, or outputs."""
    return _kept(model.proto.graph.node, [o.name for o in model.proto.graph.output], found)


def spans(model: OnnxModel, found: Survey, alone: Collection[int] = ()) -> list[Span]:
    """The segments of a model in the order in which they run; as few as a greedy order has.

    `alone`: nodes that are a segment each. Nodes that are not `needed` are in none.
    """
    protos = model.proto.graph.node
    outputs = [o.name for o in model.proto.graph.output]
    kept = needed(model, found)
    makers = {o: n for n in kept for o in protos[n].output if o}
    needs = {n: {makers[r] for r in reads(protos[n]) if r in makers} - {n} for n in kept}
    compiled = {n: n not in found.refused and n not in alone for n in kept}
    orders = [_alternating(kept, needs, compiled, alone, first) for first in (True, False)]
    order = min(orders, key=len)
    given = {i.name for i in model.proto.graph.input} | found.types.keys() | makers.keys()
    return [_span(protos, nodes, kept, outputs, found, makers, given, compiled) for nodes in order]


def _kept(protos: Sequence[NodeProto], outputs: Sequence[str], found: Survey) -> list[int]:
    makers = {o: n for n, node in enumerate(protos) for o in node.output if o}
    wanted = set(outputs)
    kept: set[int] = set()
    todo = [makers[o] for o in outputs if o in makers]
    while todo:
        n = todo.pop()
        if n in kept or (n in found.known and wanted.isdisjoint(protos[n].output)):
            continue
        kept.add(n)
        if n not in found.known:
            todo += [makers[r] for r in reads(protos[n]) if r in makers]
    return sorted(kept)


def _alternating(
    kept: Sequence[int],
    needs: Mapping[int, Collection[int]],
    compiled: Mapping[int, bool],
    alone: Collection[int],
    first: bool,
) -> list[list[int]]:
    """Segments that begin with a compiled one if `first`; each takes all nodes that are ready."""
    done: set[int] = set()
    out: list[list[int]] = []

    def ready(n: int) -> bool:
        return n not in done and done.issuperset(needs[n])

    kind, n_idle = first, 0
    while len(done) < len(kept):
        taken = []
        for n in kept:
            if compiled[n] == kind and n not in alone and ready(n):
                done.add(n)
                taken.append(n)
        kind, n_idle = not kind, 0 if taken else n_idle + 1
        if n_idle == 2:
            taken, n_idle = [next(n for n in kept if ready(n))], 0
            done.update(taken)
        out += [taken] if taken else []
    return out


def _span(
    protos: Sequence[NodeProto],
    nodes: Sequence[int],
    kept: Sequence[int],
    outputs: Sequence[str],
    found: Survey,
    makers: Mapping[str, int],
    given: Collection[str],
    compiled: Mapping[int, bool],
) -> Span:
    inside = set(nodes)
    made = [o for n in nodes for o in protos[n].output if o]
    outer = {r for n in kept if n not in inside for r in reads(protos[n])} | set(outputs)
    read = dict.fromkeys(r for n in nodes for r in reads(protos[n]))
    known = found.constants.keys()
    inputs = [r for r in read if r not in known and r in given]
    return Span(
        tuple(nodes),
        compiled[nodes[0]],
        tuple(r for r in inputs if makers.get(r) not in inside),
        tuple(o for o in made if o in outer),
    )


def leaks(model: OnnxModel, found: Survey, cut: Iterable[Span]) -> dict[int, str]:
    """Compiled nodes whose results cannot leave a compiled segment: sequences and optionals."""
    protos = model.proto.graph.node
    makers = {o: n for n, node in enumerate(protos) for o in node.output if o}
    return {
        makers[name]: f"'{name}' is not a tensor of static shape"
        for span in cut
        if span.is_compiled
        for name in span.outputs
        if name not in found.types
    }


def segment_model(model: OnnxModel, found: Survey, span: Span) -> OnnxModel:
    """The nodes of a segment as a model for the compiler: static inputs, constants beside it."""
    proto = _bare(model, span)
    for name in span.inputs:
        proto.graph.input.append(value_info(name, found.types[name]))
    weights = {n: found.constants[n] for n in _constants(model, found, span)}
    return OnnxModel(proto, weights, model.opset)


def onnx_model(model: OnnxModel, found: Survey, span: Span, declared: DeclaredTypes) -> bytes:
    """The nodes of a segment as an ONNX file, with its weights.

    Raises ModelError where it has more than 2 GiB, or reads a tensor of which no type is known.
    """
    proto = _bare(model, span)
    stated = {t.name: t for t in model.proto.graph.initializer}
    for name in _constants(model, found, span):
        tensor = stated.get(name)
        if tensor is None:
            tensor = numpy_helper.from_array(np.asarray(found.constants[name], order="C"), name)
        proto.graph.initializer.append(tensor)
    for name in span.inputs:
        proto.graph.input.append(_typed(name, found, declared))
    for output in proto.graph.output:
        kind = declared.of(output.name)
        if kind is not None:
            output.type.CopyFrom(kind)
            forget_extents(output)  # they may be others than were inferred
    try:
        data: bytes = proto.SerializeToString()
    except Exception as error:  # protobuf has several
        raise ModelError(
            "a part for ONNX Runtime has more than 2 GiB", "compile the model with `fallback=False`"
        ) from error
    return data


def _bare(model: OnnxModel, span: Span) -> ModelProto:
    proto = ModelProto(ir_version=model.proto.ir_version)
    proto.opset_import.extend(model.proto.opset_import)
    proto.functions.extend(model.proto.functions)
    proto.graph.name = model.proto.graph.name or "segment"
    proto.graph.node.extend(model.proto.graph.node[n] for n in span.nodes)
    proto.graph.output.extend(ValueInfoProto(name=name) for name in span.outputs)
    return proto


def _constants(model: OnnxModel, found: Survey, span: Span) -> list[str]:
    made = {o for n in span.nodes for o in model.proto.graph.node[n].output}
    read = dict.fromkeys(r for n in span.nodes for r in reads(model.proto.graph.node[n]))
    return [r for r in read if r in found.constants and r not in made]


def _typed(name: str, found: Survey, declared: DeclaredTypes) -> ValueInfoProto:
    kind: TypeProto | None = None
    if name in found.types and found.types[name].dtype != "object":
        return value_info(name, found.types[name])
    kind = declared.of(name)
    if kind is None or kind.WhichOneof("value") is None:
        raise ModelError(f"the type of '{name}' is not known", "state it in the model (value_info)")
    return ValueInfoProto(name=name, type=kind)
