"""① Lookup(q, table): a function of one byte, by the value that it has for each of the 256.

y[i…] = table[bits of q[i…]]        q: uint8 or int8, table: 256 bytes
"""

from __future__ import annotations

from collections.abc import Mapping

from autotune.graph.ir import Node, Shape
from autotune.graph.operators.definition import (
    Factors,
    Fusion,
    Layout,
    Operands,
    Operator,
    Scope,
    axes_of,
    read,
    tensor,
)
from autotune.te.expr import INDEX, Tensor, cast

N_BYTES = 256
"""Values of a byte: entries of a table."""


def _define(scope: Scope, node: Node, operands: Operands, shape: Shape) -> Tensor:
    q, table = tensor(operands, 0), tensor(operands, 1)
    axes = axes_of(q.shape)
    return scope.compute("lookup", axes, table[cast(INDEX, cast("uint8", read(q, axes)))])


OPERATORS: Mapping[str, Operator] = {
    "Lookup": Operator(
        define=_define,
        fusion=Fusion.ELEMENTWISE,
        layout=Layout.ELEMENTWISE,
        roles=("x", "table"),
        factors=Factors(weight_input=1),
    ),
}
