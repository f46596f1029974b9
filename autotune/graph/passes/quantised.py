"""① Products of dequantised tensors become products of integers.

    MatMul((q - z)·s, (w - v)·r)  ->  float(Σ q·w + rest) · (s·r)      w - v: constant
    Quantize(f·m + b, t, z)       ->  Quantize(f·(m/t) + b/t, 1, z)

The sums are exact, so the result is that of the definition but for its last rounding. What goes
with them (bias, activation, quantising again) is fused behind the product as for any other. Where a
product has no such form, its operands are dequantised while it reads them.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from math import prod

import numpy as np

from autotune.graph.ir import Array, Editor, Graph, Node
from autotune.graph.operators.integer_products import MAX_TERMS, signed_weights, unsigned
from autotune.graph.operators.quantisation import dequantised

_PRODUCTS = ("Conv", "MatMul", "Gemm")
_TERMS = 4
"""Products of bytes that one instruction adds up: the channels are padded to a multiple of it."""


def dequantise_constants(graph: Graph) -> Graph:
    """DequantizeLinear(constants) -> constant, except for the weights of products."""
    readers, editor = graph.consumers(), Editor(graph)
    for original in graph.nodes:
        node = editor.updated(original)
        value = _value(editor, node) if node.op == "DequantizeLinear" else None
        users = readers.get(node.output, [])
        is_weight = users and all(
            u.op in _PRODUCTS and list(u.inputs).index(node.output) == 1 for u in users
        )
        if value is None or (is_weight and node.output not in graph.outputs):
            editor.emit(node)
        else:
            editor.set_constant(node.output, value)
    return editor.build()


def _value(editor: Editor, node: Node) -> Array | None:
    """The result of DequantizeLinear of constants, all with one scale or one for each index."""
    if any(n not in editor.constants for n in node.inputs if n):
        return None
    q, scale, *rest = (editor.constants[n] if n else None for n in node.inputs)
    assert q is not None
    assert scale is not None
    zero, axis, block = (rest[0] if rest else None), node.attrs.get("axis", 1), 0
    block = node.attrs.get("block_size", 0)
    return dequantised(
        q, _spread(q, scale, axis, block), None if zero is None else _spread(q, zero, axis, block)
    )


def _spread(q: Array, value: Array, axis: int, block: int) -> Array:
    if value.size == 1:
        return value.reshape(())
    if block:
        wide = np.repeat(value, block, axis)
        return wide[tuple(slice(0, n) for n in q.shape)]
    axis %= q.ndim
    return value.reshape(-1, *(1,) * (q.ndim - axis - 1))


def integer_products(graph: Graph) -> Graph:
    """Conv and MatMul of dequantised operands -> of integers; weights that are left -> constants."""
    return _Products(_unsigned_activations(graph)).run()


def _unsigned_activations(graph: Graph) -> Graph:
    """int8 tensors that are only quantised and dequantised -> uint8, with zero points 128 higher."""
    readers, editor = graph.consumers(), Editor(graph)
    moved: set[str] = set()
    for original in graph.nodes:
        node = editor.updated(original)
        is_made = node.op == "Quantize" and node.attrs["to"] == "int8"
        if is_made and node.output not in graph.outputs and _has_known_zero(editor, node):
            users = readers.get(node.output, [])
            if all(
                u.op == "Dequantize" and u.inputs[0] == node.output and _has_known_zero(editor, u)
                for u in users
            ):
                moved.add(node.output)
                editor.types[node.output] = replace(editor.types[node.output], dtype="uint8")
                node = _raised(editor, replace(node, attrs={"to": "uint8"}))
        elif node.op == "Dequantize" and node.inputs[0] in moved:
            node = _raised(editor, node)
        editor.emit(node)
    return editor.build()


def _has_known_zero(editor: Editor, node: Node) -> bool:
    return len(node.inputs) < 3 or node.inputs[2] in editor.constants


def _raised(editor: Editor, node: Node) -> Node:
    """Quantize or Dequantize with its zero point 128 higher."""
    old = editor.constants[node.inputs[2]] if len(node.inputs) > 2 else np.zeros((1,), np.int8)
    name = editor.constant(f"{node.output}.zero", (old.astype(np.int32) + 128).astype(np.uint8))
    return replace(node, inputs=(*node.inputs[:2], name))


@dataclass(frozen=True, slots=True)
class _Quantised:
    """A dequantised operand: the integers, their scale and their zero point."""

    name: str
    scale: Array
    zero: Array | None


class _Products:
    def __init__(self, graph: Graph) -> None:
        self.graph, self.editor = graph, Editor(graph)
        self.made: dict[str, Node] = {}
        self.padded: dict[tuple[str, int], str] = {}

    def run(self) -> Graph:
        for original in self.graph.nodes:
            node = self.editor.updated(original)
            self.made[node.output] = node
            if node.op not in ("Conv", "MatMul") or not self._rewritten(node):
                self._keep(node)
        return self.editor.build()

    def _keep(self, node: Node) -> None:
        """The node as it is, with constants for weights that are to be dequantised."""
        for name in node.inputs:
            maker = self.made.get(name)
            if maker is not None and maker.op == "Dequantize" and name not in self.editor.constants:
                given = [self.editor.constants.get(n) for n in maker.inputs]
                if all(a is not None for a in given):
                    q, scale, *zero = (a for a in given if a is not None)
                    value = dequantised(q, scale, zero[0] if zero else None)
                    self.editor.constants[name] = value
        is_constant = node.op == "Dequantize" and all(
            n in self.editor.constants for n in node.inputs
        )
        if not is_constant:
            self.editor.emit(node)
            return
        given = [self.editor.constants[n] for n in node.inputs]
        if node.output in self.graph.outputs:
            self.editor.set_constant(node.output, dequantised(*given[:2], *(given[2:] or [None])))

    def _quantised(self, name: str) -> _Quantised | None:
        maker = self.made.get(name)
        if maker is None or maker.op != "Dequantize":
            return None
        scale = self.editor.constants.get(maker.inputs[1])
        zero = self.editor.constants.get(maker.inputs[2]) if len(maker.inputs) > 2 else None
        if scale is None or (len(maker.inputs) > 2 and zero is None):
            return None
        if self.editor.types[maker.inputs[0]].dtype not in ("int8", "uint8"):
            return None
        return _Quantised(maker.inputs[0], scale, zero)

    def _rewritten(self, node: Node) -> bool:
        """Emit the integer form of a product, if it has one."""
        x, w = (self._quantised(name) for name in node.inputs[:2])
        if x is None or w is None or x.scale.size != 1 or (x.zero is not None and x.zero.size != 1):
            return False
        value = self.editor.constants.get(w.name)
        weights = None if value is None else signed_weights(value, w.zero)
        if weights is None or value is None or node.attrs.get("group", 1) != 1 or node.attrs.get("trans_a", 0):
            return False
        axis = _channel_axis(node, weights.ndim)
        scales = _per_channel(w.scale, weights.ndim, axis)
        terms = prod(weights.shape) // weights.shape[axis]
        is_batched = node.op == "MatMul" and weights.ndim != 2
        if scales is None or is_batched or terms > MAX_TERMS:
            return False
        self._emit(node, x, weights, scales)
        return True

    def _emit(self, node: Node, x: _Quantised, weights: Array, scales: Array) -> None:
        editor, name = self.editor, x.name
        zero = 0 if x.zero is None else int(x.zero.reshape(-1)[0])
        if editor.types[name].dtype == "int8":
            name, zero = unsigned(editor, node, name), zero + 128
        axis, out = _channel_axis(node, weights.ndim), editor.types[node.output].shape
        others = tuple(n for n in range(weights.ndim) if n != axis)
        sums = weights.sum(axis=others, dtype=np.int64)
        name, weights = self._whole_terms(node, name, weights, zero)
        w = editor.constant(f"{node.inputs[1]}.signed", weights)
        attrs = {**node.attrs, "pad_value": zero} if node.op == "Conv" else node.attrs
        so_far = editor.new(f"{node.output}.sum", out, "int32")
        editor.emit(Node(node.name, node.op, (name, w), (so_far,), attrs))
        trailing = (1,) * (len(out) - 2) if node.op == "Conv" else ()
        if zero and sums.any():
            rest = editor.constant(
                f"{node.output}.rest", (-zero * sums).astype(np.int32).reshape(-1, *trailing)
            )
            total = editor.new(f"{node.output}.total", out, "int32")
            editor.emit(Node(node.name, "Add", (so_far, rest), (total,)))
            so_far = total
        real = editor.new(f"{node.output}.real", out)
        editor.emit(Node(node.name, "Cast", (so_far,), (real,), {"to": "float32"}))
        both = x.scale.reshape(-1)[0].astype(np.float64) * scales
        factor = editor.constant(
            f"{node.output}.scale",
            both.astype(np.float32).reshape(-1, *trailing)
            if scales.size > 1
            else both.astype(np.float32).reshape(1),
        )
        bias = node.inputs[2] if len(node.inputs) > 2 else ""
        scaled = editor.new(f"{node.output}.scaled", out) if bias else node.output
        editor.emit(Node(node.name, "Mul", (real, factor), (scaled,)))
        if bias:
            shift = bias
            if trailing and bias in editor.constants:
                shift = editor.constant(
                    f"{bias}.along", editor.constants[bias].reshape(-1, *trailing)
                )
            editor.emit(Node(node.name, "Add", (scaled, shift), (node.output,)))

    def _whole_terms(self, node: Node, name: str, weights: Array, zero: int) -> tuple[str, Array]:
        """Data and weights with zeros behind their channels, where these are no multiple of 4."""
        axis = 1 if node.op == "Conv" or node.attrs.get("trans_b", 0) else weights.ndim - 2
        missing = -weights.shape[axis] % _TERMS
        if not missing:
            return name, weights
        shape = self.editor.types[name].shape
        at = 1 if node.op == "Conv" else len(shape) - 1
        amounts = [(0, missing if n == axis else 0) for n in range(weights.ndim)]
        weights = np.pad(weights, amounts)
        if (name, at) not in self.padded:
            wide = tuple(n + missing if d == at else n for d, n in enumerate(shape))
            out = self.editor.new(f"{name}.whole", wide, self.editor.types[name].dtype)
            pads = np.zeros(2 * len(shape), np.int64)
            pads[len(shape) + at] = missing
            given = (
                self.editor.constant(f"{name}.pads", pads),
                self.editor.constant(f"{name}.fill", np.zeros((), self.editor.types[name].dtype)),
            )
            self.editor.emit(Node(node.name, "Pad", (name, *given), (out,)))
            self.padded[name, at] = out
        return self.padded[name, at], weights


def _channel_axis(node: Node, rank: int) -> int:
    """The dimension of the weights that counts output channels."""
    return 0 if node.op == "Conv" or node.attrs.get("trans_b", 0) else rank - 1


def _per_channel(scale: Array, rank: int, axis: int) -> Array | None:
    """The scales of output channels in float64; None where they vary along another dimension."""
    if scale.size == 1:
        return scale.reshape(-1).astype(np.float64)
    shape = (1,) * (rank - scale.ndim) + scale.shape
    varies = [n for n, extent in enumerate(shape) if extent > 1]
    return scale.reshape(-1).astype(np.float64) if varies == [axis] else None


# --- quantising again ---------------------------------------------------------------------------

_HOMOGENEOUS = ("Relu", "LeakyRelu")
"""f(a·x) = a·f(x) for a > 0."""


def fold_requantisation(graph: Graph) -> Graph:
    """Quantize(Relu(f·m + b), t, z) -> Quantize(Relu(f·(m/t) + b/t), -, z) where only it reads."""
    makers = {n.output: n for n in graph.nodes}
    readers, editor = graph.consumers(), Editor(graph)
    replaced: dict[str, Node] = {}
    for node in graph.nodes:
        scale = _single(editor, node.inputs[1]) if node.op == "Quantize" else None
        chain = _chain(node, makers, readers, graph) if scale is not None else []
        if scale is None or not chain:
            continue
        for link in chain:
            replaced[link.output] = _divided(editor, link, scale)
        replaced[node.output] = replace(node, inputs=(node.inputs[0], "", *node.inputs[2:]))
    for node in graph.nodes:
        editor.emit(replaced.get(node.output, node))
    return editor.build()


def _single(editor: Editor, name: str) -> float | None:
    value = editor.constants.get(name) if name else None
    return float(value.reshape(-1)[0]) if value is not None and value.size == 1 else None


def _chain(
    node: Node, makers: dict[str, Node], readers: dict[str, list[Node]], graph: Graph
) -> list[Node]:
    """The nodes between the scaled sum of integers and what quantises it again, both ends read by
    one node only; none where there is something else in between."""
    found: list[Node] = []
    name = node.inputs[0]
    while True:
        maker = makers.get(name)
        if maker is None or len(readers.get(name, ())) != 1 or name in graph.outputs:
            return []
        found.append(maker)
        operands = maker.inputs[1:]
        known = all(n in graph.constants for n in operands if n)
        if maker.op == "Mul" and known:
            return found
        if not (maker.op in _HOMOGENEOUS or (maker.op in ("Add", "Clip") and known)):
            return []
        name = maker.inputs[0]


def _divided(editor: Editor, node: Node, scale: float) -> Node:
    """The node with its constant operands divided by `scale`."""
    if node.op in _HOMOGENEOUS:
        return node
    names = [
        editor.constant(
            f"{n}.divided", (editor.constants[n].astype(np.float64) / scale).astype(np.float32)
        )
        if n
        else ""
        for n in node.inputs[1:]
    ]
    return replace(node, inputs=(node.inputs[0], *names))
