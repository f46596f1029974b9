"""① Weight-only quantisation: float data times small integers, widened while they are read.

    MatMulNBits(a, B, scales, zero points)          -> WeightOnlyMatMul(a, q, scale, shift)
    MatMul(a, DequantizeLinear(q, scales, zeros))   -> the same (see `passes.quantised`)

    y[…, n] = Σ a[…, k]·(q[k, n]·scale[k/block, n] + shift[k/block, n]),   shift = -zero·scale

`q` is uint8 or int8 of shape (k, n), or with 4 bits (k/2, n), the even k in the lower half.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

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
)

_HALF = Const(16, "int32")


def _define(scope: Scope, node: Node, operands: Operands, shape: Shape) -> Tensor:
    a, q, scale, shift = (tensor(operands, n) for n in range(4))
    bits, block = node.attrs["bits"], node.attrs["block"]
    per_byte = 8 // bits
    axes = axes_of(shape)
    b, k = Axis("b", a.shape[-1] // block), Axis("k", block // per_byte)
    row = add(mul(b.var, idx(k.extent)), k.var)
    column = axes[-1].var
    stored = cast("int32", q[row, column])
    terms: list[Expr] = []
    for n in range(per_byte):
        part = stored if per_byte == 1 else (mod if n == 0 else floordiv)(stored, _HALF)
        weight = _weight(cast("float32", part), scale, shift, b.var, column)
        at = add(mul(row, idx(per_byte)), idx(n))
        terms.append(mul(a[(*(x.var for x in axes[:-1]), at)], weight))
    body = terms[0] if per_byte == 1 else add(*terms)
    result = scope.compute("matmul", axes or POINT, Reduce("sum", body, (b, k)))
    return biased(scope, result, optional(operands, 4))


def _weight(q: Expr, scale: Tensor, shift: Tensor, block: Var, column: Var) -> Expr:
    return add(mul(q, scale[block, column]), shift[block, column])


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
    q, scale = weights.q, weights.scale
    if weights.bits == 4:
        q = q[0::2] | (q[1::2] << 4)
    stem = f"{node.output}.weight"
    names = (
        editor.constant(f"{stem}.q", np.ascontiguousarray(q)),
        editor.constant(f"{stem}.scale", np.ascontiguousarray(scale, np.float32)),
        editor.constant(f"{stem}.shift", np.ascontiguousarray(-weights.zero * scale, np.float32)),
    )
    attrs = {"bits": weights.bits, "block": weights.block}
    inputs = (node.inputs[0], *names, *([bias] if bias else []))
    editor.emit(Node(node.name, "WeightOnlyMatMul", inputs, node.outputs, attrs))


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
        roles=("x", "weight", "scale", "shift", "bias"),
        weight_input=1,
    ),
}
