"""① From an ONNX model to the graph: nodes of one opset, constants and types."""

from __future__ import annotations

import math
from collections.abc import Collection, Sequence
from dataclasses import replace

import numpy as np

from autotune.dtypes import DTYPES, SMALL_TYPES
from autotune.errors import ModelError, NotCompilable, UnsupportedOperator
from autotune.graph.ir import Graph, Node, Shape, unsupported
from autotune.graph.operators.user_operators import UserOperators
from autotune.graph.reader.constant_forms import ConstantForms, LengthFacts
from autotune.graph.reader.functions import check_calls
from autotune.graph.reader.growing import Growing
from autotune.graph.reader.growth import Growth, grown_graph, sharing_buffers
from autotune.graph.reader.import_engine import ImportEngine
from autotune.graph.reader.masked_places import MaskedPlaces
from autotune.graph.reader.onnx_nodes import functions_of, graph_of
from autotune.graph.reader.onnx_reader import OnnxModel
from autotune.graph.written import WrittenLengths

_WITHOUT = (
    "compile it without `capacity`, at each length that you need (`dims`): there ONNX Runtime may "
    "compute it"
)


def import_graph(
    model: OnnxModel,
    operators: UserOperators | None = None,
    written: WrittenLengths | None = None,
    computed: Collection[str] = (),
) -> Graph:
    """Nodes, constants and types of a model. Raises ModelError where a shape stays unknown.

    Folds constants: shapes that nodes compute from shapes are then known. `operators`: those of a
    user, see `user_operators`. `written`: lengths that operators write, whose numbers are more
    outputs; None: there may be none.
    """
    functions = functions_of(model.proto)
    check_calls(functions)
    graph = graph_of(model.proto.graph, model.opset, model.weights, functions)
    graph = ImportEngine(separate_outputs(graph), operators or {}, written, computed).run()
    _require_types(graph)
    return graph


def import_grown(
    models: Sequence[OnnxModel],
    growth: Growth,
    operators: UserOperators | None = None,
    known: ConstantForms | None = None,
    masks: bool = False,
) -> tuple[Graph, ConstantForms]:
    """`import_graph` of a model with a growing state, and what its constants are: see `growing`.

    `models`: it at the `pasts` of `growth`; at the first alone where forms are `known`. `masks`:
    whether extents stay at the capacity, see `masked_places`.
    """
    graphs = []
    for model in models:
        functions = functions_of(model.proto)
        check_calls(functions)
        graph = graph_of(model.proto.graph, model.opset, model.weights, functions)
        graphs.append(separate_outputs(sharing_buffers(graph, growth)))
    late, *others = graphs
    pairs = zip(others, growth.pasts[1:], strict=False)
    probes = [_facts(graph, growth, past, operators) for graph, past in pairs]
    if growth.static:
        probes.append(_facts(late, growth, growth.past, operators))
    engine = ImportEngine(grown_graph(late, growth), operators or {})
    growing = MaskedPlaces if masks else Growing
    engine.growing = growing(growth, engine.editor, tuple(probes), known)
    for node in engine.growing.begin():
        engine.take(node)
    try:
        graph = engine.run()
    except UnsupportedOperator as error:
        raise _with_capacity(error) from error
    engine.growing.require_appended()
    _require_types(graph)
    return graph, engine.growing.forms


def _with_capacity(error: UnsupportedOperator) -> UnsupportedOperator:
    """The error with what to do: with a state nothing runs in ONNX Runtime."""
    made = UnsupportedOperator(f"with a capacity: {error.message}", _WITHOUT, error.reason)
    made.nodes = error.nodes
    return made


def grown_shapes(
    model: OnnxModel, growth: Growth, operators: UserOperators | None = None
) -> dict[str, Shape]:
    """Shapes of inputs and outputs of a model at the past of `growth`, by name."""
    graph = graph_of(model.proto.graph, model.opset, model.weights, functions_of(model.proto))
    types = _facts(
        separate_outputs(sharing_buffers(graph, growth)), growth, growth.past, operators
    ).types
    names = (*graph.inputs, *graph.outputs)
    return {name: types[name].shape for name in names if name in types}


def _facts(graph: Graph, growth: Growth, past: int, operators: UserOperators | None) -> LengthFacts:
    """Types and constants where so many places are filled."""
    engine = ImportEngine(graph, operators or {})
    for name in growth.totals:
        kind = engine.editor.types[name]
        total = np.full(kind.shape, past + growth.chunk, kind.dtype)
        engine.editor.set_constant(name, total)
    for name in growth.positions if growth.static else ():
        kind = engine.editor.types[name]
        places = np.arange(math.prod(kind.shape)) + past
        engine.editor.set_constant(name, places.reshape(kind.shape).astype(kind.dtype))
    for name in growth.firsts:
        kind = engine.editor.types[name]
        engine.editor.set_constant(name, np.full(kind.shape, past, kind.dtype))
    for node in graph.nodes:
        engine.take(node)
    return LengthFacts(engine.editor.types, engine.editor.constants, past)


def separate_outputs(graph: Graph) -> Graph:
    """Copy outputs that are inputs to tensors of their own, and list each output once.

    outputs (x, y, y) of input x  ->  Identity(x) -> x.output;  outputs (x.output, y)
    """
    nodes, outputs, names = list(graph.nodes), [], {}
    taken = {*graph.types, *(o for n in nodes for o in n.outputs)}
    for name in dict.fromkeys(graph.outputs):
        if name in graph.inputs:
            own = f"{name}.output"
            while own in taken:
                own += "'"
            nodes.append(Node(own, "Identity", (name,), (own,)))
            names[own] = name
            name = own
        outputs.append(name)
    return replace(graph, nodes=tuple(nodes), outputs=tuple(outputs), output_names=names)


def _require_types(graph: Graph) -> None:
    for node in graph.nodes:
        for name in filter(None, node.outputs):
            if name not in graph.types or min(graph.shape(name), default=0) < 0:
                raise _unknown(node, name, graph)
            dtype = graph.types[name].dtype
            if dtype not in DTYPES and dtype not in SMALL_TYPES:
                raise unsupported(node, graph, f"type {'string' if dtype == 'object' else dtype}")


def _unknown(node: Node, name: str, graph: Graph) -> ModelError:
    for read in filter(None, node.inputs):
        if read not in graph.types:
            return NotCompilable(
                f"operator '{node.op}' (node '{node.name}') reads '{read}', which has no type",
                "tensors must be made before they are read, and be no sequences or optionals",
            )
    return NotCompilable(
        f"the shape of '{name}' (operator '{node.op}', node '{node.name}') depends on the data",
        "only models whose shapes are all static can be compiled",
    )
