"""① Products of integers: MatMulInteger and ConvInteger as products of bytes, summed in int32.

    Σ (a - za)·(b - zb)  ->  Σ a·w - za·Σ w     a: uint8, w = b - zb: constant
    Σ a·w  ->  Σ a·(w - d) + d·Σ a              where w needs 9 bits; d: one for each channel

Where `w` is not constant, both operands are widened first. A convolution reads 0 where
its window leaves the picture, not za: there the sum over w is that of the taps inside.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import reduce

import numpy as np

from autotune.graph.ir import Array, Editor, Node, Shape, unsupported
from autotune.graph.operators.contraction import row_length
from autotune.graph.operators.convolution import window_size
from autotune.graph.operators.definition import Attrs, Operator
from autotune.graph.operators.elementwise import of_formula
from autotune.graph.operators.windows import Window
from autotune.te.expr import Const, Expr, add, cast, mul, sub

MAX_TERMS = (2**31 - 1) // (255 * 255)
"""Products of bytes less their zero points whose sum is an int32 for certain."""


def signed_weights(value: Array, zero: Array | None) -> Array:
    """`value - zero` of bytes as int8, or int16 where that is too large for it."""
    wide = value.astype(np.int16) - (np.int16(0) if zero is None else zero.astype(np.int16))
    fits = not wide.size or (wide.min() >= -128 and wide.max() <= 127)
    return np.ascontiguousarray(wide.astype(np.int8 if fits else np.int16))


def _unpadded(name: str, weights: Array) -> tuple[str, Array]:
    return name, weights


def emit_product(
    editor: Editor,
    node: Node,
    operands: tuple[str, Array],
    axis: int,
    out: str,
    attrs: Attrs,
    padded: Callable[[str, Array], tuple[str, Array]] = _unpadded,
) -> None:
    """MatMul or Conv of bytes `operands`, data and constant weights, with sums in int32 as `out`.

    `axis`: of the weights, that of output channels. Weights of int16 become those of int8 where
    each channel of them spans no more: one more product, with ones, adds what is missing. `padded`:
    makes data and weights fit instructions.
    """
    name, weights = operands
    op = node.op.removesuffix("Integer")
    narrow, offsets = _bytes_and_offsets(weights, axis)
    data, narrow = padded(name, narrow)
    w = editor.constant(f"{node.inputs[1]}.signed", narrow)
    if offsets is None:
        editor.emit(Node(node.name, op, (data, w), (out,), attrs))
        return
    shape = list(editor.types[out].shape)
    at = 1 if op == "Conv" else len(shape) - 1
    trailing = (1,) * (len(shape) - 1 - at)
    one_channel = [1 if n == axis else extent for n, extent in enumerate(weights.shape)]
    _, each = padded(name, np.ones(one_channel, np.int8))  # what is padded has zeros here as well
    ones = editor.constant(f"{node.inputs[1]}.ones", each)
    part, moved = (editor.new(f"{out}.{stem}", tuple(shape), "int32") for stem in ("part", "moved"))
    shape[at] = 1
    sums = editor.new(f"{out}.data", tuple(shape), "int32")
    known = editor.constant(f"{out}.offsets", offsets.reshape(-1, *trailing))
    editor.emit(Node(node.name, op, (data, w), (part,), attrs))
    editor.emit(Node(node.name, op, (data, ones), (sums,), attrs))
    editor.emit(Node(node.name, "Mul", (sums, known), (moved,)))
    editor.emit(Node(node.name, "Add", (part, moved), (out,)))


def _bytes_and_offsets(weights: Array, axis: int) -> tuple[Array, Array | None]:
    """Weights as int8 and what each channel has more; None where they are int8 or span too much."""
    others = tuple(n for n in range(weights.ndim) if n != axis)
    if weights.dtype == np.int8 or not weights.size:
        return weights, None
    low, high = (f(axis=others, keepdims=True).astype(np.int32) for f in (weights.min, weights.max))
    if (high - low > 255).any():
        return weights, None
    offsets = np.where((low >= -128) & (high <= 127), 0, low + 128).astype(np.int32)
    return (weights - offsets).astype(np.int8), offsets.reshape(-1)


def unsigned(editor: Editor, node: Node, name: str) -> str:
    """An int8 tensor plus 128, as uint8."""
    shape = editor.types[name].shape
    wide, moved, out = (
        editor.new(f"{name}.{stem}", shape, dtype)
        for stem, dtype in (("wide", "int32"), ("moved", "int32"), ("unsigned", "uint8"))
    )
    offset = editor.constant(f"{name}.offset", np.full(1, 128, np.int32))
    editor.emit(Node(node.name, "Cast", (name,), (wide,), {"to": "int32"}))
    editor.emit(Node(node.name, "Add", (wide, offset), (moved,)))
    editor.emit(Node(node.name, "Cast", (moved,), (out,), {"to": "uint8"}))
    return out


def integer_product(editor: Editor, node: Node) -> None:
    """MatMulInteger, ConvInteger -> MatMul, Conv; see the module."""
    a, b, *zeros = (*node.inputs, "", "")
    za, zb = zeros[:2]
    op = node.op.removesuffix("Integer")
    weights = _constant_weights(editor, op, b, zb)
    if weights is None or _n_terms(op, weights) > MAX_TERMS:
        _widened_product(editor, node, op, za, zb)
        return
    offset = np.int32(0)
    if editor.types[a].dtype == "int8":
        a, offset = unsigned(editor, node, a), np.int32(128)
    known = editor.constants.get(za) if za else np.zeros(1, np.int32)
    kind = editor.types[node.output]
    sums = _sums_of_weights(node, op, weights, editor.types[a].shape, kind.shape)
    total = None
    if known is not None and known.size == 1:
        total = int(known.reshape(-1)[0]) + int(offset)
    product = (
        node.output if total == 0 else editor.new(f"{node.output}.product", kind.shape, "int32")
    )
    _emit_sums(editor, node, op, (a, weights), product)
    if total:
        rest = editor.constant(f"{node.output}.rest", (sums * np.int32(-total)).astype(np.int32))
        editor.emit(Node(node.name, "Add", (product, rest), node.outputs))
    elif total is None:
        _less_zero(editor, node, op, product, za, offset, sums)


def _emit_sums(
    editor: Editor, node: Node, op: str, operands: tuple[str, Array], product: str
) -> None:
    """The sums of products of bytes, without zero points."""
    name, weights = operands
    if weights.ndim > 1 and (op == "Conv" or weights.ndim == 2) and node.attrs.get("group", 1) == 1:
        axis = 0 if op == "Conv" else 1
        emit_product(editor, node, operands, axis, product, node.attrs)
        return
    w = editor.constant(f"{node.inputs[1]}.signed", weights)
    editor.emit(Node(node.name, op, (name, w), (product,), node.attrs))


def _constant_weights(editor: Editor, op: str, b: str, zb: str) -> Array | None:
    value, zero = editor.constants.get(b), editor.constants.get(zb) if zb else None
    if value is None or (zb and zero is None):
        return None
    if zero is not None and zero.size > 1 and op == "Conv":
        zero = zero.reshape(-1, *(1,) * (value.ndim - 1))
    return signed_weights(value, zero)


def _n_terms(op: str, weights: Array) -> int:
    """Products that are summed for one element of the result."""
    if op == "Conv":
        return window_size((weights, weights))
    return int(weights.shape[max(0, weights.ndim - 2)])


def _sums_of_weights(node: Node, op: str, w: Array, data: Shape, out: Shape) -> Array:
    """Σ w for each element of the result, as an int32 that repeats along it."""
    if op == "MatMul":
        columns: Array = w.sum(axis=-2 if w.ndim > 1 else 0, keepdims=w.ndim > 1, dtype=np.int32)
        return columns
    taps = w.sum(axis=1, dtype=np.int32)  # (out channels, …kernel…)
    window = Window(node, w.shape[2:], data[2:], out[2:])
    if not any((*window.begin, *window.end)):
        total: Array = taps.reshape(len(taps), -1).sum(1, dtype=np.int32)
        return total.reshape(-1, *(1,) * len(out[2:]))
    inside = np.zeros(out[1:], np.int32)
    for tap in np.ndindex(*w.shape[2:]):
        places = []
        for n, (k, s, d, b) in enumerate(
            zip(tap, window.strides, window.dilations, window.begin, strict=True)
        ):
            at = np.arange(out[2 + n]) * s + k * d - b
            places.append((at >= 0) & (at < data[2 + n]))
        grid = reduce(np.multiply.outer, (p.astype(np.int32) for p in places))
        inside += taps[(slice(None), *tap)].reshape(-1, *(1,) * grid.ndim) * grid
    return inside


def _less_zero(
    editor: Editor,
    node: Node,
    op: str,
    product: str,
    za: str,
    offset: np.int32,
    sums: Array,
) -> None:
    """product - (za + offset)·Σ w where za is computed at run time; of a matrix, one for each row.

    One node, so that it is part of the product's task.
    """
    shape = editor.types[za].shape
    if shape not in ((), (1,)):
        if op != "MatMul":
            raise unsupported(node, editor.graph, "its zero points vary along the data")
        column = editor.new(f"{za}.column", (*shape, 1), editor.types[za].dtype)
        editor.emit(Node(node.name, "Reshape", (za,), (column,)))
        za = column
    known = editor.constant(f"{node.output}.sums", sums)
    attrs = {"offset": int(offset)}
    editor.emit(Node(node.name, "LessZero", (product, za, known), node.outputs, attrs))


def _less_zero_formula(attrs: Attrs, product: Expr, zero: Expr, sums: Expr) -> Expr:
    """product - (zero + offset)·sums in int32."""
    whole = add(cast("int32", zero), Const(attrs["offset"], "int32"))
    return sub(product, mul(whole, sums))


def _widened_product(editor: Editor, node: Node, op: str, za: str, zb: str) -> None:
    """The product of both operands less their zero points, in int32."""
    operands = []
    for position, (name, zero) in enumerate(zip(node.inputs[:2], (za, zb), strict=True)):
        kind = editor.types[name]
        wide = editor.new(f"{name}.wide", kind.shape, "int32")
        editor.emit(Node(node.name, "Cast", (name,), (wide,), {"to": "int32"}))
        if zero:
            along = _zero_along(editor, node, zero, position, op, len(kind.shape))
            moved = editor.new(f"{name}.moved", kind.shape, "int32")
            editor.emit(Node(node.name, "Sub", (wide, along), (moved,)))
            wide = moved
        operands.append(wide)
    editor.emit(Node(node.name, op, tuple(operands), node.outputs, node.attrs))


def _zero_along(editor: Editor, node: Node, zero: str, position: int, op: str, rank: int) -> str:
    """Zero points as int32 in a shape that repeats along operand `position`."""
    shape = editor.types[zero].shape
    wide = editor.new(f"{zero}.wide", shape, "int32")
    editor.emit(Node(node.name, "Cast", (zero,), (wide,), {"to": "int32"}))
    if len(shape) != 1 or shape == (1,):
        return wide
    behind = rank - 1 if op == "Conv" else 1 - position
    target = (*shape, *(1,) * behind)
    along = editor.new(f"{zero}.along", target, "int32")
    editor.emit(Node(node.name, "Reshape", (wide,), (along,)))
    return along


OPERATORS: Mapping[str, Operator] = {
    "MatMulInteger": Operator(canonical=integer_product, n_terms=row_length),
    "LessZero": of_formula(_less_zero_formula, any_type=True),
    "ConvInteger": Operator(canonical=integer_product, n_terms=window_size),
}
