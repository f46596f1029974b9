"""① Weights in blocks of few bits, as the operators of com.microsoft have them.

    MatMulNBits(a, B, scales, zeros, groups, bias)   -> WeightOnlyMatMul of columns of a, or
                                                        BlockMatMul with `accuracy_level` 4
    MatMulBnb4(a, B, absmax)                         -> WeightOnlyMatMul with 16 values
    GatherBlockQuantized(data, index, scales, zeros) -> GatherBlocks, Reshape

Columns of `a` that are no whole block are padded with zeros; columns in groups (`g_idx`, which
quantisers write that sort columns) are brought into the order of their groups.

Source: https://github.com/microsoft/onnxruntime/blob/main/docs/ContribOperators.md
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from math import gcd, prod

import numpy as np

from autotune.graph.ir import Array, Node, Shape, TensorType, malformed
from autotune.graph.operators.converted import converted, key_of_weights
from autotune.graph.operators.definition import (
    POINT,
    Factors,
    Operands,
    Operator,
    Scope,
    Types,
    axes_of,
    optional,
    require,
    tensor,
    typed,
)
from autotune.graph.operators.gather import check_indices, chosen, extents_along
from autotune.graph.operators.integer_blocks import block_product, takes_integers
from autotune.graph.operators.weight_only import SmallWeights, weight_only_product
from autotune.graph.operators.whole_terms import with_zeros, zeros_behind
from autotune.graph.rewriter import Rewriter
from autotune.te.expr import (
    Const,
    Expr,
    Tensor,
    binary,
    cast,
    idx,
    select,
)

_ATTRIBUTES = {"N": 0, "K": 0, "block_size": 32, "bits": 4}
_BITS = (2, 4, 8)
LEVEL_OF_BYTES = 4
"""The `accuracy_level` that permits to round the data to bytes."""
_LEAST_BLOCK = 64
"""Bits of a block whose data are."""
_NIBBLE, _LOWER = Const(16, "int32"), Const(15, "int32")


def _n_bits(rw: Rewriter) -> None:
    """B (n, blocks, bytes of a block) with `bits` a weight, the first one in the lowest bits."""
    packed, scales, zeros, groups = _constants(rw, 1, 2, 3, 4)
    n, k, block, bits = (rw.attr(a, d) for a, d in _ATTRIBUTES.items())
    n_blocks = -(-k // block)
    if bits not in _BITS:
        raise rw.refuse(f"{bits} bits")
    if packed is None or scales is None or packed.size * 8 != n * n_blocks * block * bits:
        raise malformed(rw.node, f"B is no {n} x {n_blocks} blocks of {block} times {bits} bits")
    scale = scales.reshape(n, n_blocks).astype(np.float64)
    zero = zero_points(zeros, scale.shape, bits)
    order, of_block = _columns(rw.node, k, block, groups)
    data = _with_columns(rw, rw.input(0), order)

    def columns() -> Array:
        q: Array = with_zeros(unpacked(packed.reshape(n, -1), bits)[:, :k], 1, 1)[:, order].T
        return q

    key = key_of_weights(packed, order, n, bits)
    scale, zero = scale[:, of_block].T, zero[:, of_block].T
    weights = SmallWeights(columns, scale, zero, block, bits, key=key)
    permits_bytes = rw.attr("accuracy_level", 0) == LEVEL_OF_BYTES and groups is None
    # as onnxruntime, which has no such product of blocks as small as these
    is_of_bytes = permits_bytes and takes_integers(weights) and block * bits >= _LEAST_BLOCK
    (block_product if is_of_bytes else weight_only_product)(rw, weights, data, rw.input(5))


def _constants(rw: Rewriter, *positions: int) -> list[Array | None]:
    """The values of some operands; None for those that are left out."""
    names = [rw.input(n) for n in positions]
    if any(name and name not in rw.constants for name in names):
        raise rw.refuse("its weights are computed at run time")
    return [rw.constants[name] if name else None for name in names]


def zero_points(zeros: Array | None, shape: Shape, bits: int) -> Array:
    """Zero points of `shape`, given in `bits` along the last dimension, as floats, or not at all.

    Those that are left out are in the middle of the range.
    """
    if zeros is None:
        return np.full(shape, float(1 << (bits - 1)))
    if zeros.dtype == np.uint8:
        zeros = unpacked(zeros.reshape(*shape[:-1], -1), bits)[..., : shape[-1]]
    return zeros.reshape(shape).astype(np.float64)


def _columns(node: Node, k: int, block: int, groups: Array | None) -> tuple[Array, list[int]]:
    """Columns of the data block by block, `k` where there is none, and the group of each block."""
    group = np.arange(k) // block if groups is None else groups.reshape(-1)
    n_groups = -(-k // block)
    if len(group) != k or group.min() < 0 or group.max() >= n_groups:
        raise malformed(node, f"g_idx has not one of {n_groups} groups for each of {k} columns")
    order, of_block = [], []
    for n in range(n_groups):
        members = np.flatnonzero(group == n)
        missing = -len(members) % block
        order += [*members, *(k,) * missing]
        of_block += [n] * ((len(members) + missing) // block)
    return np.array(order), of_block


def _with_columns(rw: Rewriter, name: str, order: Array) -> str:
    """Data with columns in `order`; those behind the last one are zeros."""
    rows, k = rw.types[name].shape[:-1], rw.types[name].shape[-1]
    is_sorted = bool((order[:k] == np.arange(k)).all())
    missing = len(order) - k
    if missing:
        name = zeros_behind(rw, name, len(rows), missing if is_sorted else 1)
    if not is_sorted:
        index = rw.array(order.astype(np.int64))
        name = rw("Gather", name, index, axis=len(rows), shape=(*rows, len(order)))
    return name


def unpacked(packed: Array, bits: int) -> Array:
    """Whole numbers of `bits` bits along the last dimension, lowest bits first."""
    shifts = np.arange(0, 8, bits, dtype=np.uint8)
    parts = (packed[..., None] >> shifts) & ((1 << bits) - 1)
    wide: Array = parts.astype(np.uint8).reshape(*packed.shape[:-1], -1)
    return wide


def _product_type(rw: Rewriter) -> Types:
    data, k = rw.kind(0).shape, rw.attr("K", 0)
    if not data or data[-1] != k:
        raise malformed(rw.node, f"K is {k} for data of {data}")
    return [TensorType((*data[:-1], rw.attr("N", 0)), rw.kind(0).dtype)]


# --- values of bitsandbytes -------------------------------------------------------------------

_FP4 = (0.0, 0.0625, 8.0, 12.0, 4.0, 6.0, 2.0, 3.0)
"""Twelfths."""
_NF4 = (
    *(-1.0, -0.6961928009986877, -0.5250730514526367, -0.39491748809814453),
    *(-0.28444138169288635, -0.18477343022823334, -0.09105003625154495, 0.0),
    *(0.07958029955625534, 0.16093020141124725, 0.24611230194568634, 0.33791524171829224),
    *(0.44070982933044434, 0.5626170039176941, 0.7229568362236023, 1.0),
)
_VALUES = (np.array([*_FP4, *(-v for v in _FP4)]) / 12, np.array(_NF4))
"""By `quant_type`: 4-bit floats with the sign in front, and quantiles of the normal distribution.
Source: Dettmers et al., QLoRA, 2023, and bitsandbytes."""


def _bnb4(rw: Rewriter) -> None:
    """B (n · k / 2): rows one behind another, the first of two weights in the upper half."""
    packed, absmax = _constants(rw, 1, 2)
    n, k, block = (rw.attr(name, 0) for name in ("N", "K", "block_size"))
    own, kind = gcd(block, k), rw.attr("quant_type", 0)
    if kind not in (0, 1) or own % 2 or rw.attr("transB", 1) != 1:
        raise rw.refuse(f"quant_type {kind}, blocks of {block} of {k}")
    if packed is None or absmax is None or packed.size * 2 != n * k:
        raise malformed(rw.node, f"B has not {n} x {k} weights")
    bytes_of = packed.reshape(-1, 1)
    q = np.concatenate([bytes_of >> 4, bytes_of & 15], axis=1).reshape(n, k)
    scale = absmax.reshape(-1)[np.arange(n * k // own) * own // block].reshape(n, k // own)
    zero = np.zeros(scale.T.shape)
    weights = SmallWeights(lambda: q.T, scale.T, zero, own, 4, _VALUES[kind])
    weight_only_product(rw, weights, rw.input(0))


# --- rows of tables ---------------------------------------------------------------------------


def _define_gather(scope: Scope, node: Node, operands: Operands, shape: Shape) -> Tensor:
    """y[a…, i…, b…] = (q - zero) · scale, all of them at [a…, index[i…], b…].

    Scales and zero points of dimension `along` are those of blocks. Where q is packed, a byte holds
    columns k and k + n/2 of n, and the result has a dimension of the two halves.
    """
    q, index, scale = (tensor(operands, n) for n in range(3))
    axis, along, is_packed = (node.attrs[name] for name in ("axis", "along", "is_packed"))
    axes = axes_of(shape)
    at: list[Expr] = [x.var for x in axes]
    if is_packed:
        half, byte = at[-2:]
        at[-2:] = [half * q.shape[-1] + byte]
    last = axis + len(at) - len(q.shape) + 1
    row = index[tuple(at[axis:last]) or (idx(0),)]
    place = [*at[:axis], chosen(row, q.shape[axis]), *at[last:]]
    block = [*place]
    block[along] = place[along] // node.attrs["block"]
    if is_packed:
        both = cast("int32", q[(*place[:-1], byte)])
        is_lower = half < 1
        value = select(is_lower, both % _NIBBLE, both // _NIBBLE)
    else:
        value = cast("int32", q[tuple(place)])
    zeros = optional(operands, 3)
    zero = Const(node.attrs["zero"], "int32") if zeros is None else zeros[tuple(block)]
    real = cast("float32", value - cast("int32", zero)) * scale[tuple(block)]
    return scope.compute("gather", axes or POINT, real)


def _define_gather_words(scope: Scope, node: Node, operands: Operands, shape: Shape) -> Tensor:
    """y[i…, g, w, n] = (weight n of words[w, g, index[i…]] - zero) · scale of its row and block."""
    words, index, scale = (tensor(operands, n) for n in range(3))
    axes = axes_of(shape)
    *rows, group, word, n = (x.var for x in axes)
    row = chosen(index[tuple(rows) or (idx(0),)], words.shape[2])
    block = ((group * words.shape[0] + word) * 8 + n) // node.attrs["block"]
    first = (n % 4) * 8 + n // 4 * 4  # see `places_in_word`
    value = binary("bitand", binary("shr", words[word, group, row], cast("int32", first)), _LOWER)
    zeros = optional(operands, 3)
    zero = Const(node.attrs["zero"], "int32") if zeros is None else zeros[row, block]
    real = cast("float32", value - cast("int32", zero)) * scale[row, block]
    return scope.compute("gather", axes, real)


def _gather(rw: Rewriter) -> None:
    """Constant integers, packed where they have 4 bits, with their scales and zero points."""
    q, scale, zeros = _constants(rw, 0, 2, 3)
    assert q is not None
    assert scale is not None
    axis, along, block = _gather_attributes(rw.node, q.ndim)
    bits, n_packed = rw.attr("bits", 4), _n_packed(rw)
    # of a type of 4 bits the default is 0
    zero = 1 << (bits - 1) if n_packed > 1 or bits == 8 else 0
    if n_packed > 1 and zeros is not None:
        zeros = zero_points(zeros, scale.shape, bits)
    whole = (*q.shape[:-1], q.shape[-1] * max(1, n_packed))
    extents = tuple(-(-n // block) if d == along else n for d, n in enumerate(whole))
    if scale.shape != extents or (zeros is not None and zeros.shape != extents):
        raise malformed(rw.node, f"scales or zero points are not of shape {extents}")
    kept = [a for a in (q, zeros) if a is not None]
    low = 0 if n_packed > 1 else min(int(a.min(initial=0)) for a in kept)
    zero -= low
    is_packed = bits <= 4 and whole[-1] % 2 == 0 and axis != q.ndim - 1
    attrs = {"axis": axis, "along": along, "block": block, "zero": zero, "is_packed": is_packed}

    def numbers() -> Array:
        wide = unpacked(q, bits) if n_packed > 1 else q
        wide = (wide.astype(np.int16) - low).astype(np.uint8)
        return np.ascontiguousarray(_halves(wide) if is_packed else wide)

    key = key_of_weights(q, n_packed, bits, low, is_packed)
    constants = [converted(numbers, "table", key), scale.astype(np.float32)]
    if zeros is not None:
        constants.append((zeros.astype(np.int16) - low).astype(np.uint8))
    table, *rest = (rw.array(np.ascontiguousarray(a)) for a in constants)
    shape = rw.type.shape
    if not is_packed or not prod(shape):
        rw.result("GatherBlocks", table, rw.input(1), *rest, **attrs)
        return
    halves = (*shape[:-1], 2, shape[-1] // 2)
    rw.result(
        "Reshape",
        rw("GatherBlocks", table, rw.input(1), *rest, shape=halves, dtype="float32", **attrs),
    )


def _halves(q: Array) -> Array:
    """The first half of the last dimension in the lower bits, the second one in the upper bits."""
    n = q.shape[-1] // 2
    packed: Array = q[..., :n] | (q[..., n:] << 4)
    return packed


def _gather_attributes(node: Node, rank: int) -> tuple[int, int, int]:
    """Dimension of the index, dimension of blocks, and elements of a block."""
    axis, along = (node.attrs.get(n, d) % rank for n, d in _GATHER_AXES.items())
    return axis, along, node.attrs.get("block_size", 128)


_GATHER_AXES = {"gather_axis": 0, "quantize_axis": 1}


def _n_packed(rw: Rewriter) -> int:
    """Integers in an element of the table: those of uint8 hold several of few bits."""
    out, data = rw.type.shape, rw.kind(0).shape
    return out[-1] // data[-1] if out and data[-1] else 1


def _gather_type(rw: Rewriter) -> Types:
    kind, index = (rw.types[n] for n in rw.node.inputs[:2])
    bits = rw.attr("bits", 4)
    n_packed = 8 // bits if kind.dtype == "uint8" and bits in _BITS else 1
    axis = rw.attr("gather_axis", 0) % len(kind.shape)
    data = (*kind.shape[:-1], kind.shape[-1] * n_packed)
    require(rw, partial(check_indices, axis=axis))
    return [TensorType((*data[:axis], *index.shape, *data[axis + 1 :]), rw.kind(2).dtype)]


OPERATORS: Mapping[str, Operator] = {
    "com.microsoft.MatMulNBits": Operator(canonical=_n_bits, typing=typed(own=_product_type)),
    "com.microsoft.MatMulBnb4": Operator(canonical=_bnb4, typing=typed(own=_product_type)),
    "com.microsoft.GatherBlockQuantized": Operator(
        canonical=_gather, typing=typed(own=_gather_type)
    ),
    "GatherBlocks": Operator(
        define=_define_gather,
        roles=("table", "index", "scale", "zero"),
        factors=Factors(weight_input=0),
        indexed=extents_along,
    ),
    "GatherWords": Operator(
        define=_define_gather_words,
        roles=("table", "index", "scale", "zero"),
        factors=Factors(weight_input=0),
        indexed=extents_along,
    ),
}
