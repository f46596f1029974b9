"""① Weight-only quantisation: float data times small integers, widened while they are read.

    MatMulNBits(a, B, scales, zero points)          -> WeightOnlyMatMul(a, q, scale, …)
    MatMulBnb4(a, B, absmax)                        -> the same (see `block_quantised`)
    MatMul(a, DequantizeLinear(q, scales, zeros))   -> the same (see `passes.quantised`)

    y[…, n] = Σ scale[k/block, n]·(Σ a[…, k]·value(q[k, n]) - zero[k/block, n]·Σ a[…, k])

The inner sums are over a few k of one block, so that a weight costs its product and no scaling.
`q` is uint8 or int8 of shape (k, n), or with 2 or 4 bits int32 words (1, k/16 or k/8, n) of
neighbours along k (see `places_in_word`). Those are widened by no conversion: bits within the
fraction of a float whose exponent makes them whole numbers, 2^e + q, less 2^e. Other values of 4
bits, and blocks that are no multiple of a word, are uint8 of (k/2, n), the even k in the lower
half, and are looked up in a table of 16 floats.
Weights of float8 are int8 of their bits, which are moved to the places that a float32 has for them.
A zero point that all weights share is part of the values; others are multiplied by sums of the
data, which a node of its own computes once.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import reduce
from math import gcd, log2

import numpy as np

from autotune.dtypes import SMALL_TYPES, SmallType
from autotune.graph.ir import Array, Node, Shape
from autotune.graph.operators.converted import converted
from autotune.graph.operators.definition import (
    POINT,
    Factors,
    Operands,
    Operator,
    Scope,
    axes_of,
    biased,
    optional,
    tensor,
)
from autotune.graph.operators.gather import chosen
from autotune.graph.rewriter import Rewriter
from autotune.te.expr import (
    INDEX,
    Axis,
    Const,
    Expr,
    Reduce,
    Tensor,
    Var,
    add,
    binary,
    call,
    cast,
    f32,
    floordiv,
    idx,
    mod,
    select,
)

WEIGHT_ONLY = "WeightOnlyMatMul"
_N_VALUES = 16
_VALUES = Const(_N_VALUES, "int32")
_FRACTION = 23
_BIAS = 127
_ONE = Const(1 << _FRACTION, "int32")
"""Bits of the fraction of a float32, the bias of its exponent, and an exponent of 1."""
_MOST_TERMS = 8
"""Products that are summed before they are scaled: each is a weight that waits in a register."""


def _define(scope: Scope, node: Node, operands: Operands, shape: Shape) -> Tensor:
    a, scale = tensor(operands, 0), tensor(operands, 2)
    block = node.attrs["block"]
    bits = node.attrs["bits"]
    n_terms = _n_terms(block, bits)
    axes = axes_of(shape)
    b, j = Axis("b", a.shape[-1] // block), Axis("k", block // n_terms)
    first = b * block + j * n_terms
    rows, column = [x.var for x in axes[:-1]], axes[-1].var
    of = _expert(operands, rows)
    if tensor(operands, 1).dtype == "int32":
        word = tensor(operands, 1)[(*(of or (idx(0),)), first // n_in_word(bits), column)]
        weights = [_of_word(word, n, bits, node.attrs["zero"]) for n in range(n_terms)]
    elif kind := SMALL_TYPES.get(node.attrs["small_type"]):
        q = tensor(operands, 1)
        weights = [_of_float8(q[first + n, column], kind) for n in range(n_terms)]
    else:
        weights = _weights(operands, of, first, column, n_terms)
    products: list[Expr] = [a[(*rows, first + n)] * weight for n, weight in enumerate(weights)]
    total = _sum(products)
    zero, sums = optional(operands, 4), optional(operands, 5)
    if zero is not None and sums is not None:
        at = b * j.extent + j
        total = total - cast("float32", zero[(*of, b.var, column)]) * sums[(*rows, at)]
    body = total * scale[(*of, b.var, column)]
    result = scope.compute("matmul", axes or POINT, Reduce("sum", body, (b, j)))
    return biased(scope, result, optional(operands, 6))


def _expert(operands: Operands, rows: list[Var]) -> tuple[Expr, ...]:
    """The first index of weights that are those of several experts; () where they are of none."""
    expert = optional(operands, 7)
    scale = tensor(operands, 2)
    return () if expert is None else (chosen(expert[rows[0]], scale.shape[0]),)


def _sum(terms: list[Expr]) -> Expr:
    """Their sum in two chains of multiply-adds, half as long as one would be.

    A CPU looks ahead over some dozens of instructions.
    """
    half = -(-len(terms) // 2)
    parts = [reduce(add, part) for part in (terms[:half], terms[half:]) if part]
    return reduce(add, parts)


def _weights(
    operands: Operands, of: tuple[Expr, ...], first: Expr, column: Var, n_terms: int
) -> list[Expr]:
    """The values of `n_terms` weights of a column from row `first` on."""
    q, values = tensor(operands, 1), optional(operands, 3)
    if values is None:
        return [cast("float32", q[(*of, first + n, column)]) for n in range(n_terms)]
    found: list[Expr] = []
    for n in range(n_terms):
        row = first // 2 + n // 2
        half = floordiv if n % 2 else mod
        byte = cast("int32", q[(*of, row, column)])
        found.append(values[cast(INDEX, half(byte, _VALUES))])
    return found


def n_in_word(bits: int) -> int:
    """Weights of so many bits in an int32."""
    return 32 // bits


def places_in_word(bits: int) -> list[int]:
    """The first bit of each weight in a word: byte t holds the weights t, t + 4, …

    So one mask yields four of them as bytes.
    """
    return [8 * (n % 4) + bits * (n // 4) for n in range(n_in_word(bits))]


def _of_word(word: Expr, n: int, bits: int, zero: int) -> Expr:
    """Weight `n` of a word, less `zero`; exact."""
    at = places_in_word(bits)[n]
    if at + bits > _FRACTION:
        word, at = binary("shr", word, Const(12, "int32")), at - 12
    exponent = _FRACTION - at
    own = binary("bitand", word, Const(((1 << bits) - 1) << at, "int32"))
    real = binary("bitor", own, Const((_BIAS + exponent) << _FRACTION, "int32"))
    return call("bits_as_float32", real) - f32(float((1 << exponent) + zero))


def _of_float8(byte: Expr, kind: SmallType) -> Expr:
    """The finite value of `kind` whose bits are an int8.

    Sign, exponent and fraction are moved to the places that a float32 has for them, and the
    difference of the biases is added. Below the smallest normal number s, 0.f · s is then read as
    1.f · s/2: twice that less s is the value. No step has denormal numbers, which a CPU may be told
    to take for zeros.
    """
    unit, sign = 1 << (_FRACTION - kind.digits), -(1 << 31)
    exponent = Const((_BIAS - 1 + int(log2(kind.smallest))) << _FRACTION, "int32")
    least = Const((_BIAS + int(log2(kind.smallest))) << _FRACTION, "int32")
    moved = cast("int32", byte) * Const(unit, "int32")
    bits = binary("bitand", moved, Const(127 * unit + sign, "int32"))
    real = call("bits_as_float32", bits + exponent)
    is_small = binary("bitand", moved, Const(127 * unit, "int32")) < _ONE
    signed = binary("bitor", binary("bitand", moved, Const(sign, "int32")), least)
    below = real * 2 - call("bits_as_float32", signed)
    return select(is_small, below, real)


def _n_terms(block: int, bits: int) -> int:
    """Products of one block that are summed before they are scaled: those of a word at least."""
    return gcd(block, max(_MOST_TERMS, n_in_word(bits)))


@dataclass(frozen=True, slots=True)
class SmallWeights:
    """Weights (q - zero) · scale: `q` is (k, n), scale and zero are (k/block, n).

    `make_q`: makes it, which is a large one. `key`: what it is made of, see `converted`. With
    `bits` = 2 the values of `q` are below 4, and `block` is a multiple of 16. With 4 they are below
    16, and `block` is even. They then may stand for any 16 floats instead, `values`: the weights
    are values[q] · scale. `small_type`: name of the float8 whose bits `q` holds as int8, without
    zero points.
    """

    make_q: Callable[[], Array]
    scale: Array
    zero: Array
    block: int
    bits: int
    values: Array | None = None
    small_type: str = ""
    key: str = ""

    @property
    def q(self) -> Array:
        """The numbers as they are before `zero` is taken away."""
        return self.make_q()


def weight_only_product(rw: Rewriter, weights: SmallWeights, data: str, bias: str = "") -> None:
    """Make the product of `data` with `weights` the result of the node."""
    q, values, zero, shared = _stored(weights)
    attrs = {"bits": weights.bits, "block": weights.block, "zero": shared}
    rw.result(
        WEIGHT_ONLY,
        data,
        rw.array(np.ascontiguousarray(q)),
        rw.array(np.ascontiguousarray(weights.scale, np.float32)),
        "" if values is None else rw.array(values),
        "" if zero is None else rw.array(np.ascontiguousarray(zero)),
        "" if zero is None else _sums(rw, data, _n_terms(weights.block, weights.bits)),
        bias,
        **attrs,
        small_type=weights.small_type,
    )


def expert_product(rw: Rewriter, weights: SmallWeights, n: int, data: str, expert: str) -> None:
    """Make the product of each row (s, 1, k) of `data` with the matrix that `expert` (s) says the
    result of the node.

    `weights`: those of `n` experts, with the columns of all of them side by side.
    """
    q, values, zero, shared = _stored(weights)

    def own(a: Array, dtype: str = "") -> str:
        parts = a.reshape(a.shape[-2], n, -1).swapaxes(0, 1)
        return rw.array(np.ascontiguousarray(parts, dtype or a.dtype))

    rw.result(
        WEIGHT_ONLY,
        data,
        own(q),
        own(weights.scale, "float32"),
        "" if values is None else rw.array(values),
        "" if zero is None else own(zero),
        "" if zero is None else _sums(rw, data, _n_terms(weights.block, weights.bits)),
        "",
        expert,
        bits=weights.bits,
        block=weights.block,
        zero=shared,
        small_type=weights.small_type,
    )


def _stored(w: SmallWeights) -> tuple[Array, Array | None, Array | None, int]:
    """The integers as they are stored, the values of 4 bits, the zero points that are left, and the
    one that all weights of few bits share."""
    if w.values is not None:
        return _packed(w.q), w.values.astype(np.float32), None, 0
    if w.small_type:
        return w.q, None, None, 0
    shared = w.zero.flat[0] if w.zero.size and (w.zero == w.zero.flat[0]).all() else None
    if w.bits < 8:
        is_whole = shared is not None and float(shared).is_integer()
        around = int(float(shared)) if shared is not None and is_whole else 1 << (w.bits - 1)
        rest = None if is_whole else _small(w.zero - around)
        if w.block % n_in_word(w.bits) == 0:
            words = converted(lambda: in_words(w.q, w.bits), "words", w.key)
            return words[None], None, rest, around
        values = (np.arange(_N_VALUES) - around).astype(np.float32)
        return _packed(w.q), values, rest, around
    moved = None if shared is None else w.q - shared
    if moved is not None and (moved == moved.astype(np.int8)).all():
        return moved.astype(np.int8), None, None, 0
    return w.q, None, _small(w.zero), 0


def in_words(q: Array, bits: int) -> Array:
    """Rows of small numbers, as many in an int32 as it holds: see `places_in_word`."""
    n, places = n_in_word(bits), places_in_word(bits)
    words = np.zeros((q.shape[0] // n, q.shape[1]), np.int32)
    bits_of = words.view(np.uint32)
    for row, place in enumerate(places):
        bits_of |= q[row::n].astype(np.uint32) << place
    return words


def _packed(q: Array) -> Array:
    """Two rows of 4 bits in a byte, the even one in the lower half."""
    packed: Array = q[0::2] | (q[1::2] << 4)
    return packed


def _small(zero: Array) -> Array:
    """Zero points as bytes where these hold them, else as floats."""
    for dtype in (np.int8, np.uint8):
        if (zero == zero.astype(dtype)).all():
            return zero.astype(dtype)
    return zero.astype(np.float32)


def _sums(rw: Rewriter, name: str, n_terms: int) -> str:
    """Sums of `n_terms` neighbours along the rows of a tensor."""
    *rows, k = rw.types[name].shape
    parts = rw("Reshape", name, shape=(*rows, k // n_terms, n_terms))
    return rw("ReduceSum", parts, axes=(len(rows) + 1,), keepdims=0)


OPERATORS: Mapping[str, Operator] = {
    WEIGHT_ONLY: Operator(
        define=_define,
        factors=Factors(weight_input=1, takes_prologue=True),
        roles=("x", "weight", "scale", "values", "zero", "sums", "bias", "expert"),
    ),
}
