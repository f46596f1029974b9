"""① Forward substitution: systems of equations with ones on the diagonal, place by place.

Substituted(a, b)[n, d, t] = b[n, t, d] - Σ over s < t of a[n, t, s] · y[n, d, s]
"""

from __future__ import annotations

from collections.abc import Mapping

from autotune.graph.ir import Node, Shape, TensorType
from autotune.graph.operators.definition import Operands, Operator, Scope, Types, tensor, typed
from autotune.graph.operators.written_lengths import scan
from autotune.graph.rewriter import Rewriter
from autotune.te.expr import Axis, Expr, Reduce, Tensor, compare, f32, idx, maximum, minimum, select

SUBSTITUTED = "Substituted"


def _substituted(scope: Scope, node: Node, operands: Operands, shape: Shape) -> Tensor:
    a, b = tensor(operands, 0), tensor(operands, 1)
    n, d, t = (Axis(name, extent) for name, extent in zip("ndt", shape, strict=True))
    s = Axis("s", shape[2], t.var + 1)

    def body(y: Tensor) -> Expr:
        before = minimum(s.var, maximum(t.var - 1, idx(0)))
        known = f32(0) - a[n, t, s] * y[n, d, before]
        return Reduce("sum", select(compare("eq", s.var, t.var), b[n, t, d], known), (s,))

    return scan(scope, "substituted", (n, d, t), "float32", body)


def _type(rw: Rewriter) -> Types:
    n, places, size = rw.kind(1).shape
    return [TensorType((n, size, places), rw.kind(1).dtype)]


OPERATORS: Mapping[str, Operator] = {
    SUBSTITUTED: Operator(define=_substituted, roles=("a", "b"), typing=typed(own=_type)),
}
