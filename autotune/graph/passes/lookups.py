"""① Functions of one byte become lookup tables of 256 values.

    Quantize(Sigmoid(Dequantize(q, s, z))·Dequantize(q, s, z), t, v)  ->  Lookup(q, table)
    Quantize(Dequantize(q, s, z), s, z)                               ->  q

Any elementwise operators, however many, as long as nothing but `q` and single numbers goes in and
a byte comes out. The table has the float32 results of the definition.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from autotune.dtypes import DTYPES, is_float
from autotune.graph.ir import Array, Node
from autotune.graph.operators.lookup import N_BYTES
from autotune.graph.operators.table import operator_of, operators_with
from autotune.graph.passes.affine import BYTES
from autotune.graph.rewriter import Rewriter, Rule
from autotune.te.expr import Expr, Tensor, idx
from autotune.te.tabulate import tabulate


@dataclass(frozen=True, slots=True)
class _Function:
    """Table of a tensor by the bit pattern of bytes `source`; without a source a number.

    `has_floats`: floats are computed in between.
    """

    source: str
    values: Array
    has_floats: bool = False


def _tabulate(rw: Rewriter) -> None:
    """Elementwise functions of one byte whose result is a byte -> Lookup, or the byte itself."""
    found = _found(rw) if rw.type.dtype in BYTES else None
    if found is None or not found.has_floats or rw.node.op == "Lookup":
        return
    dtype = rw.types[found.source].dtype
    is_same = dtype == str(found.values.dtype) and np.array_equal(found.values, _patterns(dtype))
    if is_same and rw.node.output not in rw.editor.graph.outputs:
        rw.alias(found.source)
    else:
        rw.result("Lookup", found.source, rw.array(found.values))


def _found(rw: Rewriter) -> _Function | None:
    """The result of the node as a function of bytes.

    Operands before what reads them, without recursion, for an unrolled recurrence is long; where
    one is no function, the others are not looked at.
    """
    known: dict[str, _Function | None] = {}
    todo = [rw.node.output]
    while todo:
        name = todo[-1]
        node = rw.maker(name) if todo[1:] else rw.node
        operands = [] if node is None or name in rw.constants else _operands(node)
        missing = [operand for operand in operands if operand not in known]
        if missing and all(known[n] is not None for n in operands if n in known):
            todo.append(missing[0])
        else:
            known[todo.pop()] = _function(rw, name, node, known)
    return known[rw.node.output]


def _operands(node: Node) -> list[str]:
    """What an elementwise node reads; nothing of others."""
    is_elementwise = node.op != "Lookup" and operator_of(node.op).formula is not None
    return [name for name in node.inputs if name] if is_elementwise else []


def _function(
    rw: Rewriter, name: str, node: Node | None, known: Mapping[str, _Function | None]
) -> _Function | None:
    """A tensor as a function of bytes; bytes that are none of others are one of themselves."""
    value, dtype = rw.constants.get(name), rw.types[name].dtype
    if value is not None:
        return _Function("", value.reshape(1)) if value.size == 1 else None
    found = _computed(rw, node, known) if node is not None else None
    if found is None and dtype in BYTES and node is not rw.node:
        return _Function(name, _patterns(dtype))
    return found


def _computed(rw: Rewriter, node: Node, known: Mapping[str, _Function | None]) -> _Function | None:
    """The result of an elementwise node as a function of bytes of its own shape."""
    kind, formula = rw.types[node.output], operator_of(node.op).formula
    if node.op == "Lookup":
        return _Function(node.inputs[0], rw.constants[node.inputs[1]], has_floats=True)
    if formula is None or not kind.shape:
        return None
    read = {name: known.get(name) for name in node.inputs if name}
    given = {name: f for name, f in read.items() if f is not None}
    sources = {f.source for f in given.values() if f.source}
    shapes = [rw.types[name].shape for name, f in given.items() if f.source]
    if len(given) < len(read) or len(sources) != 1 or any(s != kind.shape for s in shapes):
        return None
    operands: list[Expr | None] = [
        Tensor(name, (N_BYTES,), rw.types[name].dtype)[idx(0)] if name else None
        for name in node.inputs
    ]
    try:
        values = tabulate(
            formula(node.attrs, *operands), {name: f.values for name, f in given.items()}
        )
    except ValueError:
        return None
    table = np.broadcast_to(values, (N_BYTES,)).astype(DTYPES[kind.dtype].numpy)
    has_floats = is_float(kind.dtype) or any(f.has_floats for f in given.values())
    return _Function(sources.pop(), np.ascontiguousarray(table), has_floats)


def _patterns(dtype: str) -> Array:
    """All bytes in the order of their bit patterns."""
    return np.arange(N_BYTES, dtype=np.uint8).view(DTYPES[dtype].numpy)


TABULATE = Rule("tabulate", _tabulate, operators_with(lambda operator: operator.formula))
