"""① Mixtures of experts as ONNX Runtime's domain has them -> products with chosen matrices.

    com.microsoft.MoE(x, router, W1, b1, W2, b2)
    ->  w, e = TopK(Softmax(router))        Σ over the chosen e of w · (W2[e] · f(W1[e] · x))
    com.microsoft.QMoE                      the same of weights in blocks of 2, 4 or 8 bits

Meanings: https://github.com/microsoft/onnxruntime/blob/main/docs/ContribOperators.md
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from functools import partial
from typing import TypeAlias

import numpy as np

from autotune.graph.ir import Array, Node, malformed
from autotune.graph.operators.block_quantised import unpacked, zero_points
from autotune.graph.operators.experts import EXPERT_BLOCKS, EXPERT_MATMUL
from autotune.graph.rewriter import Rewrite, Rewriter


@dataclass(frozen=True, slots=True)
class _Layer:
    """Inputs of a node that are of one of its products: weights, scales, bias, zero points."""

    weight: int
    scale: int
    bias: int
    zero: int = -1


_FLOATS = (_Layer(2, -1, 3), _Layer(4, -1, 5), _Layer(6, -1, 7))
_SMALL = (_Layer(2, 3, 4, 11), _Layer(5, 6, 7, 12), _Layer(8, 9, 10, 13))
_Product: TypeAlias = Callable[[Rewriter, int, str, str, Array], str]
"""Layer, rows (s, 1, k), experts (s), order of the columns -> (s, 1, n)."""


def _moe(rw: Rewriter) -> None:
    """x, router, and for each layer its weights (experts, n, k) and biases (experts, n)."""
    _experts(rw, _FLOATS, _of_floats)


def _qmoe(rw: Rewriter) -> None:
    """The same with weights of few bits, as MatMulNBits has them, or a scale for each column."""
    if rw.attr("quant_type", "int") != "int" or any(map(rw.input, range(15, 21))):
        raise rw.refuse(f"weights of type {rw.attr('quant_type', 'int')}")
    if rw.attr("weights_prepacked", -1) == 1:
        raise rw.refuse("its weights are packed for an execution provider")
    _experts(rw, _SMALL, _of_blocks)


def _experts(rw: Rewriter, layers: tuple[_Layer, ...], product: _Product) -> None:
    if rw.attr("use_sparse_mixer", 0) or rw.attr("swiglu_limit_after_activation", 0):
        raise rw.refuse("a sparse mixer, or a limit behind the activation")
    *lead, width = rw.shape(0)
    n_rows, k = math.prod(lead), rw.attr("k", 1)
    if rw.shape(1)[0] != n_rows or not 0 < k <= rw.shape(1)[1]:
        raise malformed(rw.node, f"router_probs {list(rw.shape(1))} of {n_rows} rows, k {k}")
    shares, expert = _routes(rw, n_rows, k)
    x = rw.reshaped(rw.input(0), n_rows, 1, width)
    each = rw("Expand", x, rw.integers(n_rows, k, width))
    each = rw.reshaped(each, n_rows * k, 1, width)
    hidden = _activated(rw, partial(product, rw), layers, each, expert)
    order = np.arange(width)
    y = product(rw, 1, hidden, expert, order)
    y = rw("Mul", rw.reshaped(y, n_rows, k, width), shares)
    total = rw("ReduceSum", y, rw.integers(1), keepdims=0)
    rw.result("Reshape", total, rw.integers(*lead, width))


def _routes(rw: Rewriter, n_rows: int, k: int) -> tuple[str, str]:
    """The shares (rows, k, 1) of the chosen experts, and which these are (rows · k)."""
    # that of few bits always divides by their sum, as ONNX Runtime does
    is_normal = bool(rw.attr("normalize_routing_weights", 0)) or rw.node.op.endswith("QMoE")
    best, expert = rw.several("TopK", 2, rw.input(1), rw.integers(k), axis=-1)
    if rw.input(14):
        found = rw("GatherElements", rw.input(14), expert, axis=1)
        if rw.attr("normalize_routing_weights", 0):
            total = rw("ReduceSum", found, rw.integers(1), keepdims=1)
            found = rw("Div", found, total)
    elif is_normal:
        found = rw("Softmax", best, axis=-1)
    else:
        found = rw("GatherElements", rw("Softmax", rw.input(1), axis=-1), expert, axis=1)
    return rw.reshaped(found, n_rows, k, 1), rw.reshaped(expert, n_rows * k)


def _activated(
    rw: Rewriter,
    product: Callable[[int, str, str, Array], str],
    layers: tuple[_Layer, ...],
    x: str,
    expert: str,
) -> str:
    kind, fusion = rw.attr("activation_type", "relu"), rw.attr("swiglu_fusion", 0)
    n = rw.shape(layers[0].weight)[1]
    order, has_third = np.arange(n), bool(rw.input(layers[2].weight))
    if kind != "swiglu":
        y = product(0, x, expert, order)
        y = _function(rw, kind, y)
        return rw("Mul", y, product(2, x, expert, order)) if has_third else y
    if fusion:
        if fusion == 1:
            order = order.reshape(-1, 2).T.reshape(-1)
        both = product(0, x, expert, order)
        gate, up = rw.several("Split", 2, both, rw.integers(n // 2, n // 2), axis=-1)
    else:
        gate, up = product(0, x, expert, order), product(2, x, expert, order)
    limit = rw.attr("swiglu_limit", math.inf)
    if limit < math.inf:
        gate = rw("Min", gate, rw.scalar(limit))
        up = rw("Max", rw("Min", up, rw.scalar(limit)), rw.scalar(-limit))
    alpha, beta = rw.attr("activation_alpha", 1.0), rw.attr("activation_beta", 0.0)
    scaled = gate if alpha == 1.0 else rw("Mul", gate, rw.scalar(alpha))
    moved = up if beta == 0.0 else rw("Add", up, rw.scalar(beta))
    return rw("Mul", rw("Mul", gate, rw("Sigmoid", scaled)), moved)


def _function(rw: Rewriter, kind: str, x: str) -> str:
    match kind:
        case "relu":
            return rw("Relu", x)
        case "gelu":
            return rw("Gelu", x, approximate="tanh")
        case "silu":
            return rw("Mul", x, rw("Sigmoid", x))
        case "identity":
            return x
        case _:
            raise rw.refuse(f"activation {kind}")


def _of_floats(rw: Rewriter, layer: int, x: str, expert: str, order: Array) -> str:
    slots = _FLOATS[layer]
    weight = rw.value(slots.weight)
    if weight is None:
        raise rw.refuse("its weights are computed at run time")
    matrices = rw.array(np.ascontiguousarray(weight[:, order].swapaxes(1, 2)))
    y = rw(EXPERT_MATMUL, x, matrices, expert)
    return _biased(rw, y, slots.bias, expert, order)


def _of_blocks(rw: Rewriter, layer: int, x: str, expert: str, order: Array) -> str:
    slots = _SMALL[layer]
    packed, scales = rw.value(slots.weight), rw.value(slots.scale)
    if packed is None or scales is None:
        raise rw.refuse("its weights are computed at run time, or have no scales")
    bits = rw.attr(f"fc{layer + 1}_expert_weight_bits", rw.attr("expert_weight_bits", 4))
    if bits not in (2, 4, 8):
        raise rw.refuse(f"{bits} bits")
    n_experts, n = packed.shape[:2]
    q, scale, zeros = unpacked(packed, bits), scales.reshape(n_experts, n, -1), rw.value(slots.zero)
    if zeros is not None and scale.shape[2] == 1:
        zero = unpacked(zeros.reshape(n_experts, -1), bits)[:, :n, None]
    else:
        zero = zero_points(zeros, scale.shape, bits)
    given = (q, scale.astype(np.float32), zero.astype(np.float32))
    constants = (rw.array(np.ascontiguousarray(a[:, order])) for a in given)
    return _biased(
        rw, rw(EXPERT_BLOCKS, x, expert, *constants, bits=bits), slots.bias, expert, order
    )


N_BITS = "com.microsoft.MatMulNBits"


def takes_n_bits(node: Node, own: Collection[int]) -> bool:
    """Whether a MatMulNBits may have the operands `own` for each expert: see `chosen_n_bits`."""
    has_groups = len(node.inputs) > 4 and bool(node.inputs[4])
    is_whole = node.attrs.get("K", 0) % node.attrs.get("block_size", 32) == 0
    return {1, 2} <= {*own} <= {1, 2, 3, 5} and is_whole and not has_groups


def chosen_n_bits(rw: Rewriter, node: Node, given: Mapping[int, Array], x: str, expert: str) -> str:
    """MatMulNBits of rows x (s, 1, k) by the weights of their experts (s), without its bias.

    `given`: its constants for each expert, by their place among its operands.
    """
    n, bits = node.attrs["N"], node.attrs.get("bits", 4)
    n_experts = len(given[1])
    q = unpacked(given[1].reshape(n_experts, n, -1), bits)
    scale = given[2].reshape(n_experts, n, -1)
    zero = zero_points(given.get(3), scale.shape, bits)
    constants = (rw.array(a) for a in (q, scale.astype(np.float32), zero.astype(np.float32)))
    return rw(EXPERT_BLOCKS, x, expert, *constants, bits=bits)


def _biased(rw: Rewriter, y: str, slot: int, expert: str, order: Array) -> str:
    if not rw.input(slot):
        return y
    bias = rw.value(slot)
    if bias is None:
        raise rw.refuse("its biases are computed at run time")
    rows = rw.array(np.ascontiguousarray(bias[:, None, order]))
    return rw("Add", y, rw("Gather", rows, expert, axis=0))


COMPOSITIONS: dict[str, Rewrite] = {"com.microsoft.MoE": _moe, "com.microsoft.QMoE": _qmoe}
