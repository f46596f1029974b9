"""① Operators of decoders that exporters write as many: rotation by angles, division by the RMS.

Rotated(x, cos, sin)          x (…, 2, n) as n pairs, each turned by its angle
DividedByRms(x)               x / sqrt(mean(x²) + ε) along the last dimension
"""

from __future__ import annotations

from collections.abc import Mapping

from autotune.graph.ir import Node, Shape
from autotune.graph.operators.definition import (
    FLOAT32,
    Operands,
    Operator,
    Scope,
    axes_of,
    like_first,
    literal,
    read,
    tensor,
    typed,
)
from autotune.graph.operators.reductions import fold
from autotune.te.expr import Tensor, call, compare, f32, idx, select

ROTATED, DIVIDED_BY_RMS = "autotune.Rotated", "autotune.DividedByRms"


def _rotated(scope: Scope, node: Node, operands: Operands, shape: Shape) -> Tensor:
    """y[…, p, i] = x[…, p, i] · cos ± x[…, 1 - p, i] · sin; minus for the first of a pair."""
    x, cos, sin = (tensor(operands, n) for n in range(3))
    axes = axes_of(shape)
    *lead, part, last = axes
    other = x[(*lead, 1 - part, last)]
    turned = select(compare("lt", part.var, idx(1)), f32(-1.0) * other, other)
    return scope.compute("rotated", axes, x[axes] * read(cos, axes) + turned * read(sin, axes))


def _divided_by_rms(scope: Scope, node: Node, operands: Operands, shape: Shape) -> Tensor:
    x, axes = tensor(operands, 0), axes_of(shape)
    squares = fold(scope, "sum", x, (len(shape) - 1,), lambda e: e * e)
    mean = read(squares, axes) * literal(1 / shape[-1])
    root = call("rsqrt", mean + literal(node.attrs["epsilon"]))
    return scope.compute("norm", axes, x[axes] * root)


OPERATORS: Mapping[str, Operator] = {
    ROTATED: Operator(
        define=_rotated, roles=("x", "cos", "sin"), dtypes=FLOAT32, typing=typed(own=like_first)
    ),
    DIVIDED_BY_RMS: Operator(define=_divided_by_rms, dtypes=FLOAT32, typing=typed(own=like_first)),
}
