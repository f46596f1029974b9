"""① Products of dequantised tensors become products of integers.

    MatMul((q - z)·s, (w - v)·r)  ->  float(Σ q·w + rest) · (s·r)      w - v: constant

The sums are exact, so the result is that of the definition but for its last rounding. What goes
with them (bias, activation, quantising again: `passes.requantisation`) is fused behind the product
as for any other. Where a product has no such form, its operands are dequantised while it reads
them.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import partial
from math import prod

import numpy as np

from autotune.graph.ir import Array, Editor, Graph, Node
from autotune.graph.operators.integer_products import (
    MAX_TERMS,
    emit_product,
    signed_weights,
    unsigned,
)
from autotune.graph.operators.quantisation import check_zero, dequantised, spread
from autotune.graph.operators.table import operator_of
from autotune.graph.operators.weight_only import SmallWeights, weight_only_product
from autotune.graph.passes.small_types import exact_small_float
from autotune.graph.passes.whole_terms import WholeTerms

_NIBBLE, _LEAST_BLOCK = 16, 8
_MOST_FLOAT_TERMS = 2**24 // (255 * 255)
"""Products of bytes less their zero points whose sum float32 holds: of more, digits are lost when
the zero point's share is taken away."""
_TERMS = 4
"""Products of bytes that one instruction adds up: the channels are padded to a multiple of it."""


def dequantise_constants(graph: Graph) -> Graph:
    """DequantizeLinear(constants) -> constant, except for weights of products and for tables."""
    readers, editor = graph.consumers(), Editor(graph)
    for original in graph.nodes:
        node = editor.updated(original)
        is_kept = node.op != "DequantizeLinear" or _stays_small(readers, node.output)
        value = None if is_kept else _real_constant(editor, node)
        if value is None:
            editor.emit(node)
        else:
            editor.set_constant(node.output, value)
    return editor.build()


def _stays_small(readers: dict[str, list[Node]], name: str) -> bool:
    """Whether only products read a tensor, as their weights, some of them moved, and look-ups."""
    return bool(readers.get(name)) and all(_keeps(readers, u, name) for u in readers[name])


def _keeps(readers: dict[str, list[Node]], user: Node, name: str) -> bool:
    """Whether `user` reads tensor `name` as its weight, or as the table of a look-up."""
    operator, position = operator_of(user.op), list(user.inputs).index(name)
    if operator.indexed is not None:
        return position == 0
    if operator.moves:
        return _stays_small(readers, user.output)
    return operator.weight_input == position


def _real_constant(editor: Editor, node: Node) -> Array | None:
    """The result of DequantizeLinear where its operands are constant."""
    given = [editor.constants.get(n) for n in node.inputs if n]
    known = [a for a in given if a is not None]
    if len(known) < len(given):
        return None
    q, *rest = known
    check_zero(node, rest[0].shape, rest[1].shape if len(rest) > 1 else None)
    return dequantised(q, *(spread(node, a, q.shape) for a in rest))


def integer_products(graph: Graph) -> Graph:
    """Conv and MatMul of dequantised operands -> of integers; what is left constant is one."""
    return _Products(graph).run()


def unsigned_activations(graph: Graph) -> Graph:
    """int8 tensors that are only quantised and dequantised -> uint8, zero points 128 higher."""
    readers, editor = graph.consumers(), Editor(graph)
    moved: set[str] = set()
    for original in graph.nodes:
        node = editor.updated(original)
        name = node.output
        if node.op == "Quantize" and node.attrs == {"to": "int8"} and _has_known_zero(editor, node):
            users = [u for u in readers.get(name, []) if _dequantises(editor, u, name)]
            if name not in graph.outputs and len(users) == len(readers.get(name, [])):
                moved.add(name)
                editor.types[name] = replace(editor.types[name], dtype="uint8")
                node = _raised(editor, replace(node, attrs={"to": "uint8"}))
        elif node.op == "Dequantize" and node.inputs[0] in moved:
            node = _raised(editor, node)
        editor.emit(node)
    return editor.build()


def _dequantises(editor: Editor, node: Node, name: str) -> bool:
    return node.op == "Dequantize" and node.inputs[0] == name and _has_known_zero(editor, node)


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
    zero: Array | None = None


class _Products:
    def __init__(self, graph: Graph) -> None:
        self.graph, self.editor = graph, Editor(graph)
        self.made: dict[str, Node] = {}
        self.whole = WholeTerms(self.editor, _TERMS)

    def run(self) -> Graph:
        for original in self.graph.nodes:
            node = self.editor.updated(original)
            self.made[node.output] = node
            if not self._is_constant(node) and not self._rewritten(node):
                for name in node.inputs:
                    self._set_constant(name)
                self.editor.emit(node)
        for name in self.graph.outputs:
            self._set_constant(name)
        return self.editor.build()

    def _is_constant(self, node: Node) -> bool:
        """Whether it dequantises a constant."""
        return node.op == "Dequantize" and all(n in self.editor.constants for n in node.inputs)

    def _set_constant(self, name: str) -> None:
        """Compute tensor `name`, which somebody reads, if it is a dequantised constant."""
        maker = self.made.get(name)
        if maker is not None and self._is_constant(maker) and name not in self.editor.constants:
            self.editor.set_constant(
                name, dequantised(*(self.editor.constants[n] for n in maker.inputs))
            )

    def _quantised(self, name: str) -> _Quantised | None:
        """What a tensor was dequantised from, by a known scale and zero point."""
        maker = self.made.get(name)
        if maker is None or maker.op != "Dequantize":
            return None
        name, *names = maker.inputs
        known = [self.editor.constants[n] for n in names if n in self.editor.constants]
        if len(known) < len(names) or self.editor.types[name].dtype not in ("int8", "uint8"):
            return None
        # what is infinite or NaN moves out of no sum: 0 · inf is NaN in one term
        return _Quantised(name, *known) if np.isfinite(known[0]).all() else None

    def _rewritten(self, node: Node) -> bool:
        """Emit the integer form of a product, if it has one."""
        if node.op not in ("Conv", "MatMul"):
            return False
        if self._is_of_small_floats(node):
            return True
        x, w = (self._quantised(name) for name in node.inputs[:2])
        value = self.editor.constants.get(w.name) if w is not None else None
        if x is None or w is None or value is None or not _is_one(x):
            return w is not None and value is not None and self._is_weight_only(node, w, value)
        weights = signed_weights(value, w.zero)
        axis = _channel_axis(node, weights.ndim)
        scales = _per_channel(w.scale, weights.ndim, axis)
        terms = prod(weights.shape) // weights.shape[axis]
        is_batched = node.op == "MatMul" and weights.ndim != 2
        in_floats = node.attrs.get("group", 1) != 1 and not _fits_groups(weights)
        most = _MOST_FLOAT_TERMS if in_floats else MAX_TERMS
        if scales is None or node.attrs.get("trans_a", 0) or is_batched or terms > most:
            return False
        self._emit(node, x, weights, scales, "float32" if in_floats else "int32")
        return True

    def _is_of_small_floats(self, node: Node) -> bool:
        """Emit the product of floats and weights that a float of 8 or 4 bits has exactly."""
        maker = self.made.get(node.inputs[1])
        if node.op != "MatMul" or maker is None or not self._is_constant(maker):
            return False
        value, scale = (self.editor.constants[n] for n in maker.inputs[:2])
        kind = exact_small_float(value)
        if kind is None or value.ndim != 2 or len(maker.inputs) > 2 or node.attrs.get("trans_a", 0):
            return False
        if node.attrs.get("trans_b", 0):
            value, scale = value.T, scale.T
        block = _block(value.shape[0], scale, np.zeros((), np.int32))
        if not block or (kind.bits == 4 and block % 2):
            return False
        rows = np.broadcast_to(scale, value.shape)[::block].astype(np.float64)
        bits = np.ascontiguousarray(value.astype(kind.numpy)).view(np.int8)
        weights = SmallWeights(bits, rows, np.zeros(rows.shape), block, 8, small_type=kind.name)
        if kind.bits == 4:
            values = np.arange(_NIBBLE, dtype=np.uint8).view(kind.numpy).astype(np.float32)
            q = bits.view(np.uint8)
            weights = replace(weights, q=q, bits=4, values=values, small_type="")
        bias = node.inputs[2] if len(node.inputs) > 2 else ""
        weight_only_product(self.editor, node, weights, bias)
        return True

    def _is_weight_only(self, node: Node, w: _Quantised, value: Array) -> bool:
        """Emit the product of floats and integers that are widened while they are read."""
        if node.op != "MatMul" or value.ndim != 2 or node.attrs.get("trans_a", 0):
            return False
        scale, zero = w.scale, np.zeros((), np.int32) if w.zero is None else w.zero.astype(np.int32)
        if node.attrs.get("trans_b", 0):
            value, scale, zero = value.T, scale.T, zero.T
        k, n = value.shape
        block = _block(k, scale, zero)
        if not block:
            return False
        q, low = value.astype(np.int32), int(value.min(initial=0))
        bits = 4 if int(value.max(initial=0)) - low < _NIBBLE and block % 2 == 0 else 8
        if bits == 4:
            q, zero = (q - low).astype(np.uint8), zero - low
        else:
            q = value
        rows = [np.broadcast_to(a, (k, n))[::block].astype(np.float64) for a in (scale, zero)]
        bias = node.inputs[2] if len(node.inputs) > 2 else ""
        weights = SmallWeights(q, rows[0], rows[1], block, bits)
        weight_only_product(self.editor, node, weights, bias)
        return True

    def _emit(self, node: Node, x: _Quantised, weights: Array, scales: Array, sums: str) -> None:
        """float(sum of integers + rest) · scale + bias; `sums`: a type that holds them."""
        editor, name = self.editor, x.name
        zero = 0 if x.zero is None else int(x.zero.reshape(-1)[0])
        if sums == "float32":
            name, weights = self._as_floats(node, name), weights.astype(np.float32)
        elif editor.types[name].dtype == "int8":
            name, zero = unsigned(editor, node, name), zero + 128
        trailing = (1,) * (len(editor.types[node.output].shape) - 2) if node.op == "Conv" else ()
        real = total = self._sum(node, name, weights, zero, trailing)
        if sums != "float32":
            real = editor.new(f"{node.output}.real", editor.types[node.output].shape)
            editor.emit(Node(node.name, "Cast", (total,), (real,), {"to": "float32"}))
        factor = (x.scale.reshape(-1)[0].astype(np.float64) * scales).astype(np.float32)
        if factor.size == 1:  # data, so that layers that differ in it alone are one task
            factor = np.repeat(factor, weights.shape[_channel_axis(node, weights.ndim)])
        shaped = factor.reshape(-1, *trailing)
        scale = editor.constant(f"{node.output}.scale", shaped)
        bias = node.inputs[2] if len(node.inputs) > 2 else ""
        if not bias:
            editor.emit(Node(node.name, "Mul", (real, scale), (node.output,)))
            return
        self._set_constant(bias)
        scaled = editor.new(f"{node.output}.scaled", editor.types[node.output].shape)
        editor.emit(Node(node.name, "Mul", (real, scale), (scaled,)))
        shift = editor.constants.get(bias)
        if shift is not None and trailing:
            bias = editor.constant(f"{bias}.along", shift.reshape(-1, *trailing))
        editor.emit(Node(node.name, "Add", (scaled, bias), (node.output,)))

    def _as_floats(self, node: Node, name: str) -> str:
        """The integers of a tensor as floats."""
        real = self.editor.new(f"{name}.integers", self.editor.types[name].shape)
        self.editor.emit(Node(node.name, "Cast", (name,), (real,), {"to": "float32"}))
        return real

    def _sum(
        self, node: Node, name: str, weights: Array, zero: int, trailing: tuple[int, ...]
    ) -> str:
        """Σ (q - zero)·w in int32, or for floats in float32.

        `trailing`: the dimensions behind the channels.
        """
        editor, out = self.editor, self.editor.types[node.output].shape
        is_float = editor.types[name].dtype == "float32"
        sums = "float32" if is_float else "int32"
        axis = _channel_axis(node, weights.ndim)
        others = tuple(n for n in range(weights.ndim) if n != axis)
        rest = (-zero * weights.astype(np.int64).sum(axis=others)).astype(sums)
        attrs = {**node.attrs, "pad_value": zero} if node.op == "Conv" else node.attrs
        total = editor.new(f"{node.output}.sum", out, sums)
        if is_float:
            w = editor.constant(f"{node.inputs[1]}.signed", weights)
            editor.emit(Node(node.name, node.op, (name, w), (total,), attrs))
        else:
            padded = partial(self.whole.of, node)
            emit_product(editor, node, (name, weights), axis, total, attrs, padded)
        if not rest.any():
            return total
        less = editor.new(f"{node.output}.total", out, sums)
        known = editor.constant(f"{node.output}.rest", rest.reshape(-1, *trailing))
        editor.emit(Node(node.name, "Add", (total, known), (less,)))
        return less


def _is_one(x: _Quantised) -> bool:
    """Whether a tensor has one scale and one zero point."""
    return x.scale.size == 1 and (x.zero is None or x.zero.size == 1)


def _fits_groups(weights: Array) -> bool:
    """Whether instructions add up products of bytes over the channels of each group."""
    return weights.dtype == np.int8 and weights.shape[1] % _TERMS == 0


def _block(k: int, scale: Array, zero: Array) -> int:
    """Rows of weights that share scale and zero point; 0 where that is no regular number."""
    found = k
    for a in (scale, zero):
        if a.ndim == 2 and a.shape[0] == k and k > 1:
            changes = np.flatnonzero((a[1:] != a[:-1]).any(axis=1)) + 1
            found = int(np.gcd.reduce([found, *changes]))
    return found if found >= _LEAST_BLOCK or found == k else 0


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
