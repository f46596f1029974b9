"""① Attention with functions of its scores, which the node holds as graphs.

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
from autotune.graph.reader.composer import Composer, Composition
from autotune.graph.reader.functions import renamed


def _flex_attention(c: Composer) -> None:
    """q[b, h, l, d], k[b, g, s, d], v[b, g, s, e] -> [b, h, l, e]."""
    shapes = [c.shape(n) for n in range(3)]
    if any(len(s) != 4 for s in shapes) or shapes[0][1] % max(1, shapes[1][1]):
        raise c.refuse(f"operands of {', '.join(map(str, shapes))}")
    dtype = c.types[c.input(0)].dtype
    keys, values = (_repeated(c, c.input(n), shapes[n], shapes[0][1]) for n in (1, 2))
    scores = c("MatMul", c.input(0), c("Transpose", keys, perm=(0, 1, 3, 2)))
    scale = c.attr("scale", 0.0) or 1 / math.sqrt(shapes[0][3])
    scores = c("Mul", scores, c.array(np.array(scale, dtype)))
    scores = _modified(c, "score_mod", scores)
    wide = next((d.name for d in DTYPES.values() if d.onnx == c.attr("softmax_precision", 0)), "")
    is_wider = wide == "float64" != dtype
    weights = c("Softmax", c.cast(scores, wide) if is_wider else scores, axis=-1)
    weights = _modified(c, "prob_mod", c.cast(weights, dtype) if is_wider else weights)
    c.result("MatMul", weights, values)


def _repeated(c: Composer, x: str, shape: Shape, n_heads: int) -> str:
    """x with each head as often as heads of q share it."""
    batch, own, *rest = shape
    if own == n_heads:
        return x
    apart = c.reshaped(x, batch, own, 1, *rest)
    each = c("Expand", apart, c.integers(batch, own, n_heads // own, *rest))
    return c.reshaped(each, batch, n_heads, *rest)


def _modified(c: Composer, which: str, x: str) -> str:
    """What the graph in attribute `which` makes of x; x where there is none."""
    body = c.attr(which, None)
    if not isinstance(body, Graph):
        return x
    if len(body.inputs) != 1 or len(body.outputs) != 1:
        raise c.refuse(f"{which} takes {len(body.inputs)} tensors and gives {len(body.outputs)}")
    body = renamed(body, {body.inputs[0]: x}, f"[{c.node.output}.{which}]")
    known = {name: c.array(value) for name, value in body.constants.items()}
    for node in body.nodes:
        inputs = tuple(known.get(n, n) for n in node.inputs)
        c.nodes.append(replace(node, name=f"{c.node.name}/{node.name}", inputs=inputs))
    return known.get(body.outputs[0], body.outputs[0])


COMPOSITIONS: dict[str, Composition] = {"ai.onnx.preview.FlexAttention": _flex_attention}
