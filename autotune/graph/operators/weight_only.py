"""① Weight-only quantisation: float data times small integers, widened while they are read.

    MatMulNBits(a, B, scales, zero points)          -> WeightOnlyMatMul(a, q, scale, …)
    MatMul(a, DequantizeLinear(q, scales, zeros))   -> the same (see `passes.quantised`)

    y[…, n] = Σ scale[k/block, n]·(Σ a[…, k]·value(q[k, n]) - zero[k/block, n]·Σ a[…, k])

The inner sums are over a few k of one block, so that a weight costs its product and no scaling.
`q` is uint8 or int8 of shape (k, n), or with 4 bits (k/2, n), the even k in the lower half; the
value of 4 bits is looked up in a table of 16 floats. A zero point that all weights share is part
of the values; others are multiplied by sums of the data, which a node of its own computes once.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from math import gcd

import numpy as np

from autotune.graph.ir import Array, Editor, Node, Shape, malformed, unsupported
from autotune.graph.operators.definition import (
    POINT,
    Operands,
    Operator,
    Scope,
    axes_of,
    biased,
    optional,
    tensor,
)
from autotune.te.expr import (
    INDEX,
    Axis,
    Const,
    Expr,
    Reduce,
    Tensor,
    Var,
    add,
    cast,
    floordiv,
    idx,
    mod,
    mul,
    sub,
)

_N_VALUES = 16
_VALUES = Const(_N_VALUES, "int32")
_MOST_TERMS = 8
"""Products that are summed before they are scaled: each is a weight that waits in a register."""


def _define(scope: Scope, node: Node, operands: Operands, shape: Shape) -> Tensor:
    a, scale = tensor(operands, 0), tensor(operands, 2)
    block = node.attrs["block"]
    n_terms = _n_terms(block)
    axes = axes_of(shape)
    b, j = Axis("b", a.shape[-1] // block), Axis("k", block // n_terms)
    first = add(mul(b.var, idx(block)), mul(j.var, idx(n_terms)))
    rows, column = [x.var for x in axes[:-1]], axes[-1].var
    weights = _weights(operands, first, column, n_terms)
    products: list[Expr] = [
        mul(a[(*rows, add(first, idx(n)))], weight) for n, weight in enumerate(weights)
    ]
    total = _sum(products)
    zero, sums = optional(operands, 4), optional(operands, 5)
    if zero is not None and sums is not None:
        at = add(mul(b.var, idx(j.extent)), j.var)
        total = sub(total, mul(cast("float32", zero[b.var, column]), sums[(*rows, at)]))
    body = mul(total, scale[b.var, column])
    result = scope.compute("matmul", axes or POINT, Reduce("sum", body, (b, j)))
    return biased(scope, result, optional(operands, 6))


def _sum(terms: list[Expr]) -> Expr:
    total = terms[0]
    for term in terms[1:]:
        total = add(total, term)
    return total


def _weights(operands: Operands, first: Expr, column: Var, n_terms: int) -> list[Expr]:
    """The values of `n_terms` weights of a column from row `first` on."""
    q, values = tensor(operands, 1), optional(operands, 3)
    if values is None:
        return [cast("float32", q[add(first, idx(n)), column]) for n in range(n_terms)]
    found: list[Expr] = []
    for n in range(n_terms):
        row = add(floordiv(first, idx(2)), idx(n // 2))
        half = floordiv if n % 2 else mod
        found.append(values[cast(INDEX, half(cast("int32", q[row, column]), _VALUES))])
    return found


def _n_terms(block: int) -> int:
    """Products of one block that are summed before they are scaled."""
    return gcd(block, _MOST_TERMS)


@dataclass(frozen=True, slots=True)
class SmallWeights:
    """Weights (q - zero) · scale: `q` is (k, n), scale and zero are (k/block, n).

    With `bits` = 4 the values of `q` are below 16, and `block` is even.
    """

    q: Array
    scale: Array
    zero: Array
    block: int
    bits: int


def weight_only_product(editor: Editor, node: Node, weights: SmallWeights, bias: str = "") -> None:
    """Emit the product of input 0 of `node` with `weights`."""
    stem = f"{node.output}.weight"
    q, values, zero = _stored(weights)
    names = [
        node.inputs[0],
        editor.constant(f"{stem}.q", np.ascontiguousarray(q)),
        editor.constant(f"{stem}.scale", np.ascontiguousarray(weights.scale, np.float32)),
        "" if values is None else editor.constant(f"{stem}.values", values),
        "" if zero is None else editor.constant(f"{stem}.zero", np.ascontiguousarray(zero)),
        "" if zero is None else _sums(editor, node, _n_terms(weights.block)),
        bias,
    ]
    while not names[-1]:
        names.pop()
    attrs = {"bits": weights.bits, "block": weights.block}
    editor.emit(Node(node.name, "WeightOnlyMatMul", tuple(names), node.outputs, attrs))


def _stored(w: SmallWeights) -> tuple[Array, Array | None, Array | None]:
    """The integers as they are stored, the values of 4 bits, and the zero points that are left."""
    shared = w.zero.flat[0] if w.zero.size and (w.zero == w.zero.flat[0]).all() else None
    if w.bits == 4:
        around = 8 if shared is None else shared
        values = (np.arange(_N_VALUES) - around).astype(np.float32)
        packed = w.q[0::2] | (w.q[1::2] << 4)
        return packed, values, None if shared is not None else _small(w.zero - around)
    moved = None if shared is None else w.q - shared
    if moved is not None and (moved == moved.astype(np.int8)).all():
        return moved.astype(np.int8), None, None
    return w.q, None, _small(w.zero)


def _small(zero: Array) -> Array:
    """Zero points as bytes where these hold them, else as floats."""
    for dtype in (np.int8, np.uint8):
        if (zero == zero.astype(dtype)).all():
            return zero.astype(dtype)
    return zero.astype(np.float32)


def _sums(editor: Editor, node: Node, n_terms: int) -> str:
    """Sums of `n_terms` neighbours along the rows of input 0."""
    name = node.inputs[0]
    *rows, k = editor.types[name].shape
    parts = editor.new(f"{name}.parts", (*rows, k // n_terms, n_terms))
    sums = editor.new(f"{name}.sums", (*rows, k // n_terms))
    editor.emit(Node(node.name, "Reshape", (name,), (parts,)))
    attrs = {"axes": (len(rows) + 1,), "keepdims": 0}
    editor.emit(Node(node.name, "ReduceSum", (parts,), (sums,), attrs))
    return sums


def _n_bits(editor: Editor, node: Node) -> None:
    """B (n, k/block, bytes of a block) with `bits` a weight, the first one in the lowest bits."""
    names = (*node.inputs, "", "", "")
    values = [editor.constants.get(name) if name else None for name in names[:4]]
    packed, scales, zeros = values[1], values[2], values[3]
    if packed is None or scales is None or (names[3] and zeros is None):
        raise unsupported(node, editor.graph, "its weights are computed at run time")
    n, k, block, bits = (node.attrs.get(a, d) for a, d in _ATTRIBUTES.items())
    if bits not in (2, 4, 8) or names[4] or k % block:
        raise unsupported(node, editor.graph, f"{bits} bits in blocks of {block} of {k}, reordered")
    n_blocks = k // block
    q = _unpacked(packed.reshape(n, n_blocks, -1), bits).reshape(n, k)
    if zeros is None:
        zero = np.full((n, n_blocks), float(1 << (bits - 1)))
    elif zeros.dtype == np.uint8:
        zero = _unpacked(zeros.reshape(n, -1), bits)[:, :n_blocks].astype(np.float64)
    else:
        zero = zeros.reshape(n, n_blocks).astype(np.float64)
    scale = scales.reshape(n, n_blocks).astype(np.float64)
    bits = bits if bits == 4 else 8
    weights = SmallWeights(q.T, scale.T, zero.T, block, bits)
    weight_only_product(editor, node, weights, names[5])


_ATTRIBUTES = {"N": 0, "K": 0, "block_size": 32, "bits": 4}


def _unpacked(packed: Array, bits: int) -> Array:
    """Whole numbers of `bits` bits along the last dimension, lowest bits first."""
    shifts = np.arange(0, 8, bits, dtype=np.uint8)
    parts = (packed[..., None] >> shifts) & ((1 << bits) - 1)
    wide: Array = parts.astype(np.uint8).reshape(*packed.shape[:-1], -1)
    return wide


def _n_bits_shape(editor: Editor, node: Node) -> Shape | None:
    data, k = editor.types[node.inputs[0]].shape, node.attrs.get("K", 0)
    if not data or data[-1] != k:
        raise malformed(node, f"K is {k} for data of {data}")
    return (*data[:-1], node.attrs.get("N", 0))


OPERATORS: Mapping[str, Operator] = {
    "com.microsoft.MatMulNBits": Operator(canonical=_n_bits, shape=_n_bits_shape),
    "WeightOnlyMatMul": Operator(
        define=_define,
        takes_prologue=True,
        any_type=True,
        roles=("x", "weight", "scale", "values", "zero", "sums", "bias"),
        weight_input=1,
    ),
}
