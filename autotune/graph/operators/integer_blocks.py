"""① Weights of few bits times data that are rounded to bytes, block by block.

    MatMulNBits(a, B, scales, zero points), accuracy_level 4
        ->  m = LargestInBlocks(a), QuantizeBlocks(a, m), SumBytes of it, BlockMatMul

    y[…, n] = 1/127·Σ over blocks: scale[n]·m·(Σ a'[…, k]·q[k, n] - zero[n]·Σ a'[…, k])

a' = round(a·127/m), halves to even, are four bytes in an int32, the first one lowest. `q` is int32
words (see `places_in_word`), those at the same place of all sums one behind another. A sum within a
block is one of integers, exact, and blocks are added up in float32. A zero point that all weights
share is where a sum begins. Scales stay those of the file, which half precision often holds exactly
(`passes.small_constants`).

Sources: `accuracy_level` in https://github.com/microsoft/onnxruntime/blob/main/docs/ContribOperators.md
("input A can be quantized with the same block_size to int8"). The rounding is that of ONNX Runtime.
"""

from __future__ import annotations

from collections.abc import Mapping
from math import gcd

import numpy as np

from autotune.graph.ir import Array, Node, Shape
from autotune.graph.operators.converted import converted
from autotune.graph.operators.definition import (
    Factors,
    Operands,
    Operator,
    Scope,
    axes_of,
    biased,
    optional,
    read,
    tensor,
)
from autotune.graph.operators.weight_only import SmallWeights, in_words, n_in_word
from autotune.graph.rewriter import Rewriter
from autotune.te.expr import (
    Axis,
    Const,
    Expr,
    Reduce,
    Tensor,
    binary,
    call,
    cast,
    f32,
    select,
)

_LARGEST = 127
_LEAST = 2.0**-119
"""Blocks whose largest value is smaller count as zeros: their quotients would overflow."""
_IN_WORD = 4
"""Bytes of an int32."""
_MOST_TERMS = 64
"""Rows that are summed as integers before they are scaled."""
_ONES = 0x01010101


def takes_integers(weights: SmallWeights) -> bool:
    """Whether a product with `weights` may be one of bytes: their zero points are integers."""
    zero, word = weights.zero, max(2 * _IN_WORD, n_in_word(weights.bits))
    is_whole = bool(((zero == np.rint(zero)) & (zero >= 0) & (zero < 256)).all())
    return is_whole and weights.values is None and weights.block % word == 0


def block_product(rw: Rewriter, weights: SmallWeights, data: str, bias: str = "") -> None:
    """Make the product of `data`, rounded to bytes, with `weights` the result of the node."""
    zero, block = weights.zero, weights.block
    is_shared = bool((zero == zero.flat[0]).all())
    *rows, k = rw.types[data].shape
    largest = rw("LargestInBlocks", data, block=block, shape=(*rows, k // block))
    shape = (*rows, k // _IN_WORD)
    words = rw("QuantizeBlocks", data, largest, block=block, shape=shape, dtype="int32")
    n_terms = _n_terms(block)
    times = -int(zero.flat[0]) if is_shared else 1
    n_words, shape = n_terms // _IN_WORD, (*rows, k // n_terms)
    sums = rw("SumBytes", words, n_words=n_words, times=times, shape=shape)
    rw.result(
        "BlockMatMul",
        words,
        rw.array(converted(lambda: _in_groups(weights), "groups", weights.key)),
        rw.array(np.ascontiguousarray(weights.scale, np.float32)),
        largest,
        sums,
        "" if is_shared else rw.array(zero.astype(np.uint8, order="C")),
        bias,
        bits=weights.bits,
        block=block,
    )


def _n_terms(block: int) -> int:
    """Rows of one block that are summed as integers."""
    return gcd(block, _MOST_TERMS)


def _in_groups(weights: SmallWeights) -> Array:
    """The words (words of a sum, sums, n): each load of the sum has a panel that it reads through.

    Hardware prefetches lines that a load reads one behind another.
    """
    words, n_words = in_words(weights.q, weights.bits), _n_terms(weights.block)
    groups = words.reshape(-1, n_words // n_in_word(weights.bits), words.shape[-1])
    return np.ascontiguousarray(groups.transpose(1, 0, 2))


# --- definitions ------------------------------------------------------------------------------


def _define_largest(scope: Scope, node: Node, operands: Operands, shape: Shape) -> Tensor:
    x, block = tensor(operands, 0), node.attrs["block"]
    axes, k = axes_of(shape), Axis("k", block)
    *rows, b = [a.var for a in axes]
    value = cast("float32", x[(*rows, b * block + k)])
    return scope.compute("largest", axes, Reduce("max", call("abs", value), (k,)))


def _define_quantize(scope: Scope, node: Node, operands: Operands, shape: Shape) -> Tensor:
    x, largest = tensor(operands, 0), tensor(operands, 1)
    axes = axes_of(shape)
    rows, word = [a.var for a in axes[:-1]], axes[-1].var
    size = largest[(*rows, word // (node.attrs["block"] // _IN_WORD))]
    factor = select(size > f32(_LEAST), f32(_LARGEST) / size, f32(0.0))
    total: Expr | None = None
    for n in range(_IN_WORD):
        real = cast("float32", x[(*rows, word * _IN_WORD + n)])
        steps = cast("int32", call("round", real * factor))
        if n < _IN_WORD - 1:
            steps = binary("bitand", steps, Const(255, "int32"))
        steps = binary("shl", steps, Const(8 * n, "int32")) if n else steps
        total = steps if total is None else binary("bitor", total, steps)
    assert total is not None
    return scope.compute("words", axes, total)


def _define_sums(scope: Scope, node: Node, operands: Operands, shape: Shape) -> Tensor:
    words, n_words = tensor(operands, 0), node.attrs["n_words"]
    axes, k = axes_of(shape), Axis("k", node.attrs["n_words"])
    *rows, group = [a.var for a in axes]
    word = words[(*rows, group * n_words + k)]
    total = binary("bytedot", Const(_ONES, "int32"), word)
    scaled = total * Const(node.attrs["times"], "int32")
    return scope.compute("sums", axes, Reduce("sum", scaled, (k,)))


def _define_product(scope: Scope, node: Node, operands: Operands, shape: Shape) -> Tensor:
    words, q, scale, largest, sums = (tensor(operands, n) for n in range(5))
    block, bits = node.attrs["block"], node.attrs["bits"]
    n_terms, in_word = _n_terms(block), n_in_word(bits)
    axes = axes_of(shape)
    b, j = Axis("b", scale.shape[0]), Axis("k", block // n_terms)
    group = b * j.extent + j
    rows, column = [x.var for x in axes[:-1]], axes[-1].var
    zero = optional(operands, 5)
    total: Expr = Const(0, "int32") if zero is not None else sums[(*rows, group)]
    for n in range(n_terms // _IN_WORD):
        at, place = divmod(n * _IN_WORD, in_word)
        weights = q[at, group, column]
        word = words[(*rows, group * (n_terms // _IN_WORD) + n)]
        total = total + binary("bytedot", _of_word(weights, bits, place), word)
    real = cast("float32", total)
    if zero is not None:
        moved = cast("float32", sums[(*rows, group)])
        real = real - cast("float32", zero[b.var, column]) * moved
    body = real * (cast("float32", scale[b.var, column]) * largest[(*rows, b.var)])
    summed = scope.compute("matmul", axes, Reduce("sum", body, (b, j)))
    result = scope.compute("scaled", axes, read(summed, axes) * f32(1 / _LARGEST))
    return biased(scope, result, optional(operands, 6))


def _of_word(weights: Expr, bits: int, place: int) -> Expr:
    """Four weights of a word from `place` on, as bytes: the same bits of each of its bytes."""
    if bits == 8:
        return weights
    first = bits * (place // _IN_WORD)
    shifted = binary("shr", weights, Const(first, "int32")) if first else weights
    return binary("bitand", shifted, Const(_ONES * ((1 << bits) - 1), "int32"))


OPERATORS: Mapping[str, Operator] = {
    "LargestInBlocks": Operator(define=_define_largest),
    "QuantizeBlocks": Operator(define=_define_quantize, roles=("x", "largest")),
    "SumBytes": Operator(define=_define_sums),
    "BlockMatMul": Operator(
        define=_define_product,
        roles=("x", "weight", "scale", "largest", "sums", "zero", "bias"),
        factors=Factors(weight_input=1),
    ),
}
