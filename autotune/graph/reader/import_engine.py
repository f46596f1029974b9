"""① The import engine: unfolding, shape inference and constant folding, node by node.

nodes of any opset, functions, branches, loops ─unfolding─► nodes of opset 22
    ─shape inference─► types of all results    ─constant folding─► constants
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Collection
from dataclasses import replace
from functools import lru_cache, partial
from typing import Any, TypeAlias

import numpy as np
from onnx import ValueInfoProto, helper
from onnx.reference import ReferenceEvaluator

from autotune.dtypes import PORT_TYPES
from autotune.errors import UnsupportedOperator
from autotune.graph.ir import OPSET, Array, Editor, Graph, Node, TensorType, unsupported
from autotune.graph.limits import MOST_WORK, ImportBudget, check_declared, check_ports
from autotune.graph.operators.definition import Folding, ViewKind
from autotune.graph.operators.table import operator_of, view_of
from autotune.graph.operators.user_operators import (
    DEFINED,
    Composition,
    UserOperator,
    UserOperators,
    defined,
    own_operators,
)
from autotune.graph.operators.writers import WRITTEN
from autotune.graph.reader.compositions import COMPOSITIONS, is_old
from autotune.graph.reader.draws import Draws
from autotune.graph.reader.functions import has_body
from autotune.graph.reader.grouped_products import grouped_product
from autotune.graph.reader.growing import Growing
from autotune.graph.reader.inference import Inference
from autotune.graph.reader.looped_experts import looped_experts
from autotune.graph.reader.onnx_nodes import proto_of, value_info
from autotune.graph.reader.opsets import schema_of
from autotune.graph.reader.unfolding import CONTROL, Unfolding, is_unfolded
from autotune.graph.refusals import Refusals
from autotune.graph.rewriter import Rewriter
from autotune.graph.written import WrittenLengths


class ImportEngine:
    """Imports the nodes of a graph one by one.

    Functions, branches, loops and sequences are unfolded, and nodes of other opsets are converted
    to opset 22 (see `unfolding`). op(constants) becomes a constant; so do Shape and Size of static
    tensors, and tensors without elements.
    """

    def __init__(
        self,
        graph: Graph,
        operators: UserOperators,
        written: WrittenLengths | None = None,
        computed: Collection[str] = (),
    ) -> None:
        self.operators, self.computed = operators, computed
        self.growing: Growing | None = None
        self.editor = Editor(graph)
        self.editor.written = written
        self.budget = ImportBudget(graph.constants.values())
        self.unfold = Unfolding(self.editor, self.budget)
        self.infer = Inference(self.editor)
        self.draws = Draws(self.editor)
        self.refusals = Refusals()
        for name in graph.inputs:
            kind = self.editor.types.get(name)
            if kind is not None and 0 in kind.shape and kind.dtype != "object":
                self.editor.set_constant(name, np.zeros(kind.shape, kind.dtype))

    def run(self) -> Graph:
        """The graph of all nodes.

        Raises UnsupportedOperator that names all unsupported operators on which an output depends,
        ModelError where types do not fit together or a limit is exceeded.
        """
        graph = self.editor.graph
        for node in graph.nodes:
            self.take(node)
        self.refusals.check(graph.outputs, self.editor.nodes)
        self._require_outputs()
        self._drop_unread()
        if self.editor.written is not None:
            numbers = tuple(self.editor.written.tensors.values())
            self.editor.graph = replace(graph, outputs=(*graph.outputs, *dict.fromkeys(numbers)))
        return self.editor.build()

    def _require_outputs(self) -> None:
        """Raises UnsupportedOperator for an output that the definition of its node leaves out."""
        graph, editor = self.editor.graph, self.editor
        made = {*graph.inputs, *editor.constants, *(o for n in editor.nodes for o in n.outputs)}
        missing = [name for name in graph.outputs if name not in made]
        for node in graph.nodes if missing else ():
            for name in missing:
                if name in node.outputs:
                    raise unsupported(node, graph, f"its result '{name}' has no definition")

    def _drop_unread(self) -> None:
        """Forget nodes of unknown shapes that no result needs: rewrites of readers left them."""
        types, read, kept = self.editor.types, {*self.editor.graph.outputs}, []
        for node in reversed(self.editor.nodes):
            results = [types.get(name) for name in node.outputs if name]
            is_known = all(kind is not None and min(kind.shape, default=0) >= 0 for kind in results)
            if is_known or not read.isdisjoint(node.outputs):
                kept.append(node)
                read |= {*node.inputs}
        self.editor.nodes[:] = reversed(kept)

    def take(self, node: Node) -> None:
        """Unfold, fold or emit one node of the file; unsupported ones go to `refusals`."""
        waiting = deque([node])
        while waiting:
            part = waiting.popleft()
            with self.refusals.of(part):
                waiting.extendleft(reversed(self._visit(part)))

    def _visit(self, node: Node) -> list[Node]:
        """Emit a node, make its results constants, or return the nodes that replace it."""
        check_ports(node)
        if node.op in CONTROL and self.growing is not None:
            self.growing.require_decided(node)
        is_taken = self.growing is not None and self.growing.takes(node)
        nodes = None if is_taken else self._replaced(node)
        if nodes is None and self.growing is not None:
            nodes = self.growing.replaced(node)
        if nodes is not None:
            return nodes
        if node.op in CONTROL:
            self._refuse_inside(node)
            raise _undecided(
                unsupported(node, self.editor.graph, "its condition depends on the data")
            )
        node = _without_empty_parts(node, self.editor)
        if operator_of(node.op).folding is Folding.DRAWN:
            return self._drawn(node)
        is_native = operator_of(node.op).is_native
        if not is_native and not self._has_known_inputs(node):
            return self._expanded(node)
        self.infer(node)
        self.draws.see(node)
        loops = partial(looped_experts, self._part, _evaluate)
        for rule in (self.draws.times_zero, _bias_alone, grouped_product, loops):
            nodes = self.unfold.rewritten(node, rule)
            if nodes is not None:
                return nodes
        is_computed = bool(self.computed) and node.outputs[0] in self.computed
        values = None if is_computed else self._known_result(node)
        if values is not None:
            for name, value in zip(node.outputs, values, strict=False):
                self.editor.set_constant(name, value)
            if self.growing is not None:
                self.growing.note(node)
        elif not is_native:
            return self._expanded(node)
        else:
            self._check_types(node)
            self._check_broadcast(node)
            self.editor.emit(node)
        return []

    def _part(self, graph: Graph) -> Editor | None:
        """Nodes, types and constants of a part of the model; None where it is not supported."""
        part = ImportEngine(graph, self.operators)
        for node in graph.nodes:
            part.take(node)
        return None if part.refusals.found else part.editor

    def _drawn(self, node: Node) -> list[Node]:
        """Random numbers, which nothing may depend on. Raises UnsupportedOperator."""
        self.infer(node)
        self.draws.draw(node)
        return self._expanded(node)

    def _replaced(self, node: Node) -> list[Node] | None:
        """What a user's operator or a function is, or an operator of another opset; else None."""
        operator, nodes = self._operator(node), None
        rule = WRITTEN.get(node.op) if self.editor.written and node.opset == OPSET else None
        if rule is not None and operator is None:
            nodes = self.unfold.rewritten(node, rule)
            if nodes is not None:
                return nodes
        if isinstance(operator, Composition) and not is_old(node):
            nodes = self.unfold.composed(node, operator.rewrite)
        elif operator is not None and not isinstance(operator, Composition):
            nodes = self.unfold.rewritten(node, partial(defined, operator))
        return self.unfold(node) if nodes is None else nodes

    def _operator(self, node: Node) -> UserOperator | Composition | None:
        """The operator of a user, or of the own package where nothing else has that name."""
        if node.op == DEFINED:
            return None
        given, functions = self.operators.get(node.op), self.editor.graph.functions
        if given is not None or operator_of(node.op).is_native:
            return given
        is_known = node.op in functions or node.op in COMPOSITIONS
        return None if is_known else own_operators().get(node.op)

    def _check_types(self, node: Node) -> None:
        """Raises UnsupportedOperator for elements that no program computes with, as of strings."""
        kinds = {
            self.editor.types[n].dtype
            for n in (*node.inputs, *node.outputs)
            if n in self.editor.types
        }
        for kind in sorted(kinds - PORT_TYPES.keys()):
            name = "string" if kind == "object" else kind
            raise unsupported(node, self.editor.graph, f"type {name}")

    def _check_broadcast(self, node: Node) -> None:
        """Raises ModelError where an operand is a broadcast constant that is too large."""
        for value in (self.editor.constants.get(name) for name in node.inputs):
            if value is not None:
                check_declared(node, value)

    def _expanded(self, node: Node) -> list[Node]:
        expanded = self.unfold.expanded(node)
        if expanded is None:
            raise unsupported(node, self.editor.graph)
        return expanded

    def _has_known_inputs(self, node: Node) -> bool:
        return all(n in self.editor.constants for n in node.inputs if n)

    def _refuse_inside(self, node: Node) -> None:
        """Record the unsupported operators inside of branches and loops."""
        for body in (v for v in node.attrs.values() if isinstance(v, Graph)):
            for inner in body.nodes:
                self._refuse_inside(inner)
                if not self._is_known(inner):
                    made = replace(inner, outputs=node.outputs)
                    self.refusals.found.append((made, unsupported(inner, self.editor.graph)))

    def _is_known(self, node: Node) -> bool:
        if node.op in self.editor.graph.functions or node.op in COMPOSITIONS:
            return True
        if self._operator(node) is not None:
            return True
        if operator_of(node.op).is_native:
            return True
        schema = schema_of(node.op, node.opset)
        return schema is not None and (is_unfolded(node.op) or has_body(schema))

    def _known_result(self, node: Node) -> list[Array] | None:
        """The values of all outputs where they are known."""
        editor, operator = self.editor, operator_of(node.op)
        told = operator.fold(Rewriter(node, editor)) if operator.fold else None
        told = _empty_results(node, editor) if told is None else told
        if told is not None:
            return told
        if operator.folding is Folding.NEVER or not self._has_known_inputs(node):
            return None
        if operator.folding is Folding.FINITE and not _is_finite(node, editor):
            return None
        kinds = [editor.types[n] for n in node.outputs if n in editor.types]
        shapes = [(k.shape, k.dtype) for k in kinds if min(k.shape, default=0) >= 0]
        given = [editor.constants[n] for n in node.inputs if n]
        self.budget.take_constants(node, shapes, given)
        n_terms = operator.factors.n_terms(given)
        if sum(math.prod(shape) for shape, _ in shapes) * n_terms > MOST_WORK:
            return None
        if operator.evaluate is not None:
            return operator.evaluate(node, given)
        return _evaluate(node, {n: editor.constants[n] for n in node.inputs if n})


def _undecided(error: UnsupportedOperator) -> UnsupportedOperator:
    """The error with the hint that an input may decide the condition, as a sampling rate does."""
    hint = "if an input that decides it is always the same, bind it: `constants={NAME: VALUE}`"
    return UnsupportedOperator(error.message, hint, error.reason)


def _is_finite(node: Node, editor: Editor) -> bool:
    values = (editor.constants[n] for n in node.inputs if n)
    return all(np.isfinite(a).all() for a in values if a.dtype.kind == "f")


def _without_empty_parts(node: Node, editor: Editor) -> Node:
    """A Concat without the operands that have no elements."""
    if view_of(node) is not ViewKind.JOINED:
        return node
    parts = tuple(n for n in node.inputs if n not in editor.types or 0 not in editor.types[n].shape)
    return replace(node, inputs=parts or node.inputs[:1])


def _bias_alone(rw: Rewriter) -> None:
    """Gemm(no elements, no elements, bias) -> zeros + beta · bias: its sum is empty."""
    kind = rw.types.get(rw.node.output) if rw.node.op == "Gemm" else None
    is_empty = any(0 in rw.types[n].shape for n in rw.node.inputs[:2] if n in rw.types)
    if kind is not None and is_empty and rw.input(2) and 0 not in kind.shape:
        scaled = rw("Mul", rw.input(2), rw.scalar(rw.attr("beta", 1.0), kind.dtype))
        rw.result("Add", rw.array(np.zeros(kind.shape, kind.dtype)), scaled)


def _empty_results(node: Node, editor: Editor) -> list[Array] | None:
    """The results of a node where all of them have no elements."""
    kinds = [editor.types.get(n) for n in node.outputs if n]
    if any(k is None or 0 not in k.shape or -1 in k.shape for k in kinds):
        return None
    return [np.zeros(k.shape, k.dtype) for k in kinds if k is not None]


_Small: TypeAlias = tuple[np.dtype[Any], tuple[int, ...], bytes]
_MOST_KEPT = 1024
"""Elements of operands whose results are kept for further readings of a model."""


def _evaluate(node: Node, inputs: dict[str, Array]) -> list[Array] | None:
    """One operator through the reference implementation of the `onnx` package."""
    values = [inputs[n] if n else None for n in node.inputs]
    is_small = sum(v.size for v in values if v is not None) <= _MOST_KEPT
    is_plain = all(isinstance(v, int | float | str | tuple) for v in node.attrs.values())
    if not (is_small and is_plain and all(v is None or v.dtype != object for v in values)):
        return _referred(node, inputs)
    given = tuple(None if v is None else (v.dtype, v.shape, v.tobytes()) for v in values)
    attrs = tuple((name, repr(value), value) for name, value in sorted(node.attrs.items()))
    outputs = tuple(map(bool, node.outputs))
    found = _results_of(node.op, attrs, given, outputs)
    return None if found is None else [a.copy() for a in found]


@lru_cache(maxsize=8192)
def _results_of(
    op: str,
    attrs: tuple[tuple[str, str, Any], ...],
    given: tuple[_Small | None, ...],
    outputs: tuple[bool, ...],
) -> list[Array] | None:
    """The same of small operands, which a model that is read several times computes anew."""
    names = tuple(f"i{n}" if one else "" for n, one in enumerate(given))
    results = tuple(f"o{n}" if is_there else "" for n, is_there in enumerate(outputs))
    pairs = zip(names, given, strict=True)
    arrays = {n: np.frombuffer(g[2], g[0]).reshape(g[1]) for n, g in pairs if g is not None}
    return _referred(
        Node("", op, names, results, {name: value for name, _, value in attrs}), arrays
    )


def _referred(node: Node, inputs: dict[str, Array]) -> list[Array] | None:
    types = [value_info(n, TensorType(a.shape, str(a.dtype))) for n, a in inputs.items()]
    outputs = [ValueInfoProto(name=n) for n in node.outputs]
    graph = helper.make_graph([proto_of(node)], "constant", types, outputs)
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", OPSET)])
    try:
        with np.errstate(all="ignore"):  # the value may be unused
            return [np.asarray(v) for v in ReferenceEvaluator(model).run(None, inputs)]
    except Exception:  # a fault of the reference implementation: the node stays
        return None
