"""Attention with functions of its scores, which the node holds as graphs.

    FlexAttention(q, k, v) <score_mod, prob_mod>
    ->  MatMul(prob_mod(Softmax(score_mod(scale · q · kᵀ))), v)

Heads of q that share those of k and v (grouped queries) read them repeated.
"""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np

from autotune.dtypes import DTYPES
from autotune.graph.ir import Graph, Shape
from autotune.graph.reader.functions import renamed
from autotune.graph.rewriter import Rewrite, Rewriter


def _flex_attention(rw: Rewriter) -> None:
    """q[b, h, l, d], k[b, g, s, d], v[b, g, s, e] -> [b, h, l, e]."""
    shapes = [rw.shape(n) for n in range(3)]
    if any(len(s) != 4 for s in shapes) or shapes[0][1] % max(1, shapes[1][1]):
        raise rw.refuse(f"operands of {', '.join(map(str, shapes))}")
    dtype = rw.types[rw.input(0)].dtype
    keys, values = (_repeated(rw, rw.input(n), shapes[n], shapes[0][1]) for n in (1, 2))
    scores = rw("MatMul", rw.input(0), rw("Transpose", keys, perm=(0, 1, 3, 2)))
    scale = rw.attr("scale", 0.0) or 1 / math.sqrt(shapes[0][3])
    scores = rw("Mul", scores, rw.array(np.array(scale, dtype)))
    scores = _modified(rw, "score_mod", scores)
    wide = next((d.name for d in DTYPES.values() if d.onnx == rw.attr("softmax_precision", 0)), "")
    is_wider = wide == "float64" != dtype
    weights = rw("Softmax", rw.cast(scores, wide) if is_wider else scores, axis=-1)
    weights = _modified(rw, "prob_mod", rw.cast(weights, dtype) if is_wider else weights)
    rw.result("MatMul", weights, values)


def _repeated(rw: Rewriter, x: str, shape: Shape, n_heads: int) -> str:
    """x with each head as often as heads of q share it."""
    batch, own, *rest = shape
    if own == n_heads:
        return x
    apart = rw.reshaped(x, batch, own, 1, *rest)
    each = rw("Expand", apart, rw.integers(batch, own, n_heads // own, *rest))
    return rw.reshaped(each, batch, n_heads, *rest)


def _modified(rw: Rewriter, which: str, x: str) -> str:
    """Result of the graph in attribute `which` on x; x where there is none."""
    body = rw.attr(which, None)
    if not isinstance(body, Graph):
        return x
    if len(body.inputs) != 1 or len(body.outputs) != 1:
        raise rw.refuse(f"{which} takes {len(body.inputs)} tensors and gives {len(body.outputs)}")
    body = renamed(body, {body.inputs[0]: x}, f"[{rw.node.output}.{which}]")
    known = {name: rw.array(value) for name, value in body.constants.items()}
    for node in body.nodes:
        inputs = tuple(known.get(n, n) for n in node.inputs)
        rw.nodes.append(replace(node, name=f"{rw.node.name}/{node.name}", inputs=inputs))
    return known.get(body.outputs[0], body.outputs[0])


COMPOSITIONS: dict[str, Rewrite] = {"ai.onnx.preview.FlexAttention": _flex_attention}
