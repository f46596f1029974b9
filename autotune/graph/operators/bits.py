"""① Operators on the bits of elements: shifts, logic, and reading them as another type."""

from __future__ import annotations

from collections.abc import Mapping

from autotune.dtypes import DTYPES
from autotune.graph.ir import Node, Shape, TensorType
from autotune.graph.operators.definition import (
    POINT,
    Attrs,
    Operands,
    Operator,
    Scope,
    Types,
    axes_of,
    dtype_named,
    read,
    tensor,
    typed,
)
from autotune.graph.operators.elementwise import of_formula
from autotune.graph.rewriter import Rewriter
from autotune.te.expr import BOOL, Expr, Tensor, binary, call, cast

_OPERATIONS = {"BitwiseAnd": "bitand", "BitwiseOr": "bitor", "BitwiseXor": "bitxor"}


def _shift(attrs: Attrs, a: Expr, b: Expr) -> Expr:
    return binary("shl" if attrs["direction"] == "LEFT" else "shr", a, b)


def _check_direction(rw: Rewriter) -> str:
    found = rw.attr("direction", "")
    return "" if found in ("LEFT", "RIGHT") else f"direction '{found}'"


def _bit_cast(scope: Scope, node: Node, operands: Operands, shape: Shape) -> Tensor:
    """The bits of x as elements of another type of as many.

    No float is computed in the same subgraph: the last bit of one decides a whole integer.
    """
    x, to = tensor(operands, 0), dtype_named(node.attrs["to"])
    axes = axes_of(x.shape) or POINT
    wide = "uint8" if to == BOOL else to
    bits = read(x, axes) if x.dtype == wide else call(f"bits_as_{wide}", read(x, axes))
    return scope.compute("bits", axes, cast(to, bits))


def _check_bits(rw: Rewriter) -> None:
    """Both types have as many bits."""
    source, goal = rw.kind(0).dtype, rw.type.dtype
    if DTYPES[source].bits != DTYPES[goal].bits:
        raise rw.refuse(f"it reads {source} as {goal}")


def _type(rw: Rewriter) -> Types:
    dtype = dtype_named(rw.node.attrs["to"])
    if not dtype:
        raise rw.refuse("its result is of another type")
    return [TensorType(rw.kind(0).shape, dtype)]


OPERATORS: Mapping[str, Operator] = {
    "BitShift": of_formula(_shift, before=_check_direction),
    **{
        op: of_formula(lambda attrs, a, b, name=name: binary(name, a, b))
        for op, name in _OPERATIONS.items()
    },
    "BitCast": Operator(define=_bit_cast, typing=typed(own=_type), canonical=_check_bits),
}
