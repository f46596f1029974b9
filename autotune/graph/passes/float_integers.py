"""① Exact integer GEMM in floats (float32, bf16), where they give every bit of the sums.

    Conv(q, w): int32  ->  Cast(Conv(Cast(q), w')): int32    w': the same weights as floats

float32 holds each integer up to 2²⁴, bfloat16 each byte. So products of bytes are exact in both,
and so are sums in float32, in any order, as long as neither the positive products of one output
nor the negative ones can exceed 2²⁴.
"""

from __future__ import annotations

from collections.abc import Set

import numpy as np

from autotune.graph.ir import Array, Editor, Graph, Node
from autotune.graph.operators.table import PRODUCTS
from autotune.graph.operators.whole_terms import term_axis
from autotune.graph.rewriter import Rewriter, Rule
from autotune.te.exactness import EXACT_IN_FLOAT, LARGEST_BYTES


def float_integers(names: Set[str], stored: Set[str] = frozenset()) -> tuple[Rule, ...]:
    """Sums of products of bytes, those of nodes `names`, as exact sums of floats.

    `stored`: those whose data are to lie in memory as floats. What is dequantised from the same
    data is read from there too, so that the bytes need not be stored.
    """

    def is_product(editor: Editor, node: Node) -> bool:
        return node.name in names and has_exact_floats(editor, node)

    def product(rw: Rewriter) -> None:
        """Conv(q, w) -> Cast(Conv(Cast(q), w')), where the sums of floats are exact."""
        value = rw.value(1)
        if value is None or not is_product(rw.editor, rw.node):
            return
        data, weights = rw.shared("Cast", rw.input(0), to="float32"), value.astype(np.float32)
        kind, attrs = rw.type, rw.node.attrs
        total = rw(rw.node.op, data, rw.array(weights), shape=kind.shape, **attrs)
        rw.result("Cast", total, to=kind.dtype)

    def dequantised(rw: Rewriter) -> None:
        """Dequantize(q) -> Dequantize(Cast(q)), where only products read that otherwise."""
        name = rw.input(0)
        readers = rw.readers(name)
        rest = [node for node in readers if not is_product(rw.editor, node)]
        products = {node.name for node in readers if node not in rest}
        is_output = name in rw.editor.graph.outputs
        if products and products <= stored and not is_output and _dequantise(rest):
            data = rw.shared("Cast", name, to="float32")
            rw.result("Dequantize", data, *rw.node.inputs[1:])

    return (
        Rule("float-integers", product, PRODUCTS),
        Rule("dequantise-floats", dequantised, {"Dequantize"}),
    )


def _dequantise(nodes: list[Node]) -> bool:
    return all(node.op == "Dequantize" for node in nodes)


def has_exact_floats(graph: Graph | Editor, node: Node) -> bool:
    """Whether a node sums products of bytes and constant ones, and floats would do it exactly."""
    if node.op not in PRODUCTS or len(node.inputs) > 2:
        return False
    largest = LARGEST_BYTES.get(graph.types[node.inputs[0]].dtype)
    weights = graph.constants.get(node.inputs[1])
    if largest is None or weights is None or weights.dtype.kind != "i":
        return False
    return largest * _most(node, weights) <= EXACT_IN_FLOAT


def _most(node: Node, weights: Array) -> int:
    """The largest sum of weights of one sign that belong to one output."""
    if node.op == "Conv":
        others = tuple(range(1, weights.ndim))
    else:
        others = (term_axis(node.op, node.attrs, weights.ndim),)
    signs = (np.maximum(weights, 0), np.minimum(weights, 0))
    sums = (np.abs(part.sum(axis=others, dtype=np.int64)) for part in signs)
    return int(max(total.max(initial=0) for total in sums))
