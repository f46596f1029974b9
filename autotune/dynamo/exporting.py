"""⑪ A functional FX graph as ONNX, by PyTorch's own exporter.

    ported(gm, constants) ─► Ported: a graph of tensors alone, and how arguments become its inputs
    exported(ported) ─► ModelProto, with every constant as an input

Parameters are inputs here, so a graph is exported once for all of their values, and kept in the
cache. A tensor that is no row-major array is given as the view of it that is one, and transposed
in the graph; so are outputs. Extents are read from tensors of the graph.
"""

from __future__ import annotations

import io
import logging
import warnings
from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, TypeAlias

import onnx
import onnxscript
import torch
from onnx import ModelProto
from torch.export import ExportedProgram
from torch.export import graph_signature as signatures
from torch.export.exported_program import ModuleCallEntry, ModuleCallSignature
from torch.utils import _pytree

from autotune.cache import key_of, package_key, program_store
from autotune.dynamo.views import NotReplayed, shared

GraphModule: TypeAlias = Any
Node: TypeAlias = Any
Order: TypeAlias = tuple[int, ...]

_LOUD = ("torch.onnx", "onnxscript", "onnx_ir")
"""Loggers of the exporter, whose notes are for its developers."""


@dataclass(frozen=True, slots=True)
class Input:
    """An input of an exported graph: the argument at `index`.

    `order`: of the axes, outermost first, that make it row-major; None where they are in order.
    """

    name: str
    index: int
    order: Order | None = None


@dataclass(frozen=True, slots=True)
class Output:
    """An output of an FX graph: `name` in the exported one, else the argument at `index`.

    `inverse`: order of the axes of the exported one that makes it the output. `view`: its number
    among the views. With none of these it is `value`.
    """

    name: str = ""
    index: int = -1
    inverse: Order | None = None
    view: int = -1
    value: Any = None


@dataclass(frozen=True, slots=True)
class Ported:
    """A graph of tensors. `inputs`: that vary. `constants`: the others; `values`: of those that
    the graph itself has, by name. `bases`: computed tensors of which outputs are views. `views`:
    makes these of all arguments and the bases.
    """

    graph: GraphModule
    inputs: tuple[Input, ...]
    constants: tuple[Input, ...]
    values: dict[str, Any]
    outputs: tuple[Output, ...]
    bases: tuple[Output, ...] = ()
    views: Callable[..., tuple[Any, ...]] | None = None

    @property
    def exported(self) -> tuple[Output, ...]:
        """What the network computes, in its order."""
        named = {port.name: port for port in (*self.bases, *self.outputs) if port.name}
        return tuple(named.values())


class NotExported(Exception):
    """A graph has something that ONNX has not; `targets`: names of the operators, if known."""

    def __init__(self, reason: str, targets: Collection[str] = ()) -> None:
        super().__init__(reason)
        self.targets = frozenset(targets)


def ported(gm: GraphModule, constants: Collection[str]) -> Ported:
    """`gm` without symbolic integers between tensors; `constants`: names of its placeholders.

    Raises NotExported for an output that is no tensor, and where nothing is computed.
    """
    graph = torch.fx.Graph()
    copies: dict[Node, Node] = {}
    graph.output(graph.graph_copy(gm.graph, copies))
    copied = torch.fx.GraphModule(gm, graph)
    places = {node.name: n for n, node in enumerate(gm.graph.find_nodes(op="placeholder"))}
    values = _lifted(copied)
    outputs, bases, views = _outputs(graph, places)
    _without_symbols(graph)
    inputs, fixed = [], {f"{_PORT}{name}" for name in constants}
    for node in graph.find_nodes(op="placeholder"):
        if not node.users:
            graph.erase_node(node)
        elif not isinstance(node.meta.get("val"), torch.Tensor):
            raise NotExported("an argument that is no tensor")
        elif node.name in places:
            order = _order(node.meta["val"])
            inputs.append(Input(_port(node), places[node.name], order))
            if order is not None:
                _transpose_input(graph, node, order)
    graph.eliminate_dead_code()
    graph.lint()
    copied.recompile()
    return Ported(
        copied,
        tuple(port for port in inputs if port.name not in fixed),
        tuple(port for port in inputs if port.name in fixed),
        values,
        outputs,
        bases,
        views,
    )


_PORT = "argument_"


def _port(node: Node) -> str:
    """Name of an input in ONNX: the exporter has nodes by the names of others in the graph."""
    return f"{_PORT}{node.name}"


def _lifted(gm: GraphModule) -> dict[str, Any]:
    """Tensors that a graph has as attributes; they become its first placeholders, in place."""
    graph = gm.graph
    values: dict[str, Any] = {}
    first = next(iter(graph.nodes))
    for node in graph.find_nodes(op="get_attr"):
        value = _attribute(gm, node.target)
        if not isinstance(value, torch.Tensor):
            raise NotExported(f"a part of its own, {node.target}")
        with graph.inserting_before(first):
            lifted = graph.placeholder(f"lifted_{len(values)}")
        lifted.meta = dict(node.meta)
        if "val" not in lifted.meta:
            raise NotExported(f"a tensor of no known kind, {node.target}")
        values[_port(lifted)] = value
        node.replace_all_uses_with(lifted)
        graph.erase_node(node)
    return values


def _attribute(gm: GraphModule, path: str) -> Any:
    value = gm
    for name in path.split("."):
        value = getattr(value, name)
    return value


def _outputs(
    graph: Any, places: dict[str, int]
) -> tuple[tuple[Output, ...], tuple[Output, ...], Callable[..., tuple[Any, ...]] | None]:
    """Outputs of a graph of which it then makes, row-major, those that are computed; see `Ported`
    for bases and views.
    """
    end = graph.output_node()
    given = end.args[0] if isinstance(end.args[0], list | tuple) else (end.args[0],)
    arguments = [node for node in graph.find_nodes(op="placeholder") if node.name in places]
    tensors = [n for n in given if isinstance(n, torch.fx.Node) and n not in arguments]
    if not all(isinstance(node.meta.get("val"), torch.Tensor) for node in tensors):
        raise NotExported("an output that is no tensor")
    try:
        views = shared(tensors, arguments, _is_dense)
    except NotReplayed as error:
        raise NotExported(str(error)) from error
    made: dict[Node, Output] = {}
    results = []
    for node in dict.fromkeys((*views.bases, *tensors)):
        if node in views.nodes:
            continue
        order = _order(node.meta["val"])
        made[node] = Output(f"output_{len(made)}", inverse=order and _inverse(order))
        results.append(_transposed(graph, end, node, order) if order else node)
    if not results:
        raise NotExported("nothing is computed")
    end.args = (tuple(results),)
    made |= {node: Output(view=n) for n, node in enumerate(views.nodes)}
    made |= {node: Output(index=places[node.name]) for node in arguments}
    outputs = [made[n] if isinstance(n, torch.fx.Node) else Output(value=n) for n in given]
    return tuple(outputs), tuple(made[node] for node in views.bases), views.make


def _is_dense(value: Any) -> bool:
    return bool(value.is_contiguous()) or _order(value) is not None


def _order(value: Any) -> Order | None:
    """Order of the axes of a dense tensor that makes it row-major; None where they are in order.

    One that is not dense is taken as it is.
    """
    if not isinstance(value, torch.Tensor) or value.ndim < 2:
        return None
    try:
        sizes = [_hint(n) for n in value.shape]
        strides = [_hint(n) for n in value.stride()]
    except (TypeError, ValueError):
        return None
    order = sorted(range(len(sizes)), key=lambda d: (-strides[d], d))
    expected = 1
    for d in reversed(order):
        if sizes[d] != 1 and strides[d] != expected:
            return None
        expected *= sizes[d]
    wide = [d for d in order if sizes[d] != 1]
    return tuple(order) if wide != sorted(wide) else None


def _hint(extent: Any) -> int:
    """Extent of the example that a graph was traced with."""
    if isinstance(extent, int):
        return extent
    return int(extent.node.hint)


def _inverse(order: Order) -> Order:
    return tuple(sorted(range(len(order)), key=order.__getitem__))


def _transposed(graph: Any, before: Node, node: Node, order: Order) -> Node:
    with graph.inserting_before(before):
        made = graph.call_function(torch.ops.aten.permute.default, (node, list(order)))
    made.meta["val"] = node.meta["val"].permute(order)
    return made


def _transpose_input(graph: Any, node: Node, order: Order) -> None:
    """Make a placeholder the row-major view of what it was, in place."""
    users = list(node.users)
    value = node.meta["val"]
    with graph.inserting_after(node):
        back = graph.call_function(torch.ops.aten.permute.default, (node, list(_inverse(order))))
    back.meta["val"] = value
    for user in users:
        user.replace_input_with(node, back)
    node.meta["val"] = value.permute(order)


def _without_symbols(graph: Any) -> None:
    """Read symbolic integers from extents of tensors, in place."""
    placeholders = graph.find_nodes(op="placeholder")
    sizes = _sizes(placeholders)
    first = next(node for node in graph.nodes if node.op != "placeholder")
    for node in placeholders:
        value = node.meta.get("val")
        if not isinstance(value, torch.SymInt) or not node.users:
            continue
        expression = value.node.expr
        if not expression.free_symbols <= sizes.keys():
            raise NotExported("an integer that is no extent")
        with graph.inserting_before(first):
            made = _expression(graph, expression, sizes)
        made.meta["val"] = value
        node.replace_all_uses_with(made)


def _sizes(placeholders: Sequence[Node]) -> dict[Any, tuple[Node, int]]:
    """Tensor and axis of every symbol."""
    found: dict[Any, tuple[Node, int]] = {}
    for node in placeholders:
        value = node.meta.get("val")
        if isinstance(value, torch.Tensor):
            for axis, extent in enumerate(value.shape):
                if isinstance(extent, torch.SymInt) and extent.node.expr.is_Symbol:
                    found.setdefault(extent.node.expr, (node, axis))
    return found


def _expression(graph: Any, expression: Any, sizes: dict[Any, tuple[Node, int]]) -> Node:
    from torch.utils._sympy.interp import sympy_interp
    from torch.utils._sympy.reference import PythonReferenceAnalysis

    known = {}
    for symbol in expression.free_symbols:
        node = graph.call_function(torch.ops.aten.sym_size.int, sizes[symbol])
        node.meta["val"] = sizes[symbol][0].meta["val"].shape[sizes[symbol][1]]
        known[symbol] = torch.fx.Proxy(node)
    return sympy_interp(PythonReferenceAnalysis, known, expression).node


def exported(found: Ported) -> ModelProto:
    """Raises NotExported."""
    store, key = program_store(), _key(found)
    kept = store.get(key)
    if kept is not None:
        return onnx.load_model_from_string(kept)
    with _quiet():
        try:
            model = _onnx(found)
        except Exception as error:  # whatever an operator's translation raises
            raise NotExported(*_reason(error)) from error
    store.put(key, model.SerializeToString(deterministic=True))
    return model


def _onnx(found: Ported) -> ModelProto:
    names = [_port(node) for node in found.graph.graph.find_nodes(op="placeholder")]
    n_outputs = len(found.exported)
    program = torch.onnx.export(
        _program(found.graph),
        dynamo=True,
        verbose=False,
        input_names=names,
        output_names=[f"output_{n}" for n in range(n_outputs)],
    )
    content = io.BytesIO()
    program.save(content)
    model = onnx.load_model_from_string(content.getvalue())
    if [value.name for value in model.graph.input] != names:
        raise ValueError("the exporter has left inputs out")
    return model


def _program(gm: GraphModule) -> ExportedProgram:
    """A graph as `torch.export` gives it: every placeholder is an input."""
    placeholders = gm.graph.find_nodes(op="placeholder")
    results = gm.graph.output_node().args[0]
    kinds = signatures.InputKind.USER_INPUT, signatures.OutputKind.USER_OUTPUT
    inputs = [signatures.TensorArgument(name=node.name) for node in placeholders]
    outputs = [signatures.TensorArgument(name=node.name) for node in results]
    signature = signatures.ExportGraphSignature(
        [signatures.InputSpec(kinds[0], argument, None) for argument in inputs],
        [signatures.OutputSpec(kinds[1], argument, None) for argument in outputs],
    )
    _, in_spec = _pytree.tree_flatten((tuple(a.name for a in inputs), {}))
    _, out_spec = _pytree.tree_flatten(tuple(a.name for a in outputs))
    call = ModuleCallSignature(inputs, outputs, in_spec, out_spec)
    modes = (node.meta["val"].fake_mode for node in placeholders)
    environment = next((mode.shape_env for mode in modes), None)
    ranges = dict(environment.var_to_range) if environment else {}
    return ExportedProgram(gm, gm.graph, signature, {}, ranges, [ModuleCallEntry("", call)], None)


def _key(found: Ported) -> str:
    graph = found.graph.graph
    types = [(n.name, str(n.meta.get("val"))) for n in graph.find_nodes(op="placeholder")]
    versions = torch.__version__, onnxscript.__version__, package_key()
    return key_of("torch graph", *versions, str(graph), repr(types))


_PREFIX = "No ONNX function found for <OpOverload(op='"


def _reason(error: BaseException) -> tuple[str, tuple[str, ...]]:
    """The innermost reason, in a line, and the operator that has no translation."""
    text, inner = str(error), error.__cause__
    while inner is not None:
        text, inner = str(inner), inner.__cause__
    line = (text.strip().splitlines() or [type(error).__name__])[0]
    if not text.startswith(_PREFIX):
        return line, ()
    name = text.removeprefix(_PREFIX).split("'")[0]
    return f"{name} has no form in ONNX", (name,)


@contextmanager
def _quiet() -> Iterator[None]:
    loggers = [logging.getLogger(name) for name in _LOUD]
    levels = [logger.level for logger in loggers]
    for logger in loggers:
        logger.setLevel(logging.CRITICAL)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        for logger, level in zip(loggers, levels, strict=True):
            logger.setLevel(level)
