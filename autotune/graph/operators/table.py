"""① The table of all operators: the tables of all families."""

from __future__ import annotations

from collections.abc import Callable

from autotune.graph.ir import Node
from autotune.graph.operators import (
    bits,
    block_quantised,
    contraction,
    convolution,
    cumulative_sum,
    decoders,
    depth_to_space,
    elementwise,
    experts,
    folded,
    gather,
    grid_sample,
    integer_blocks,
    integer_products,
    lookup,
    movement,
    normalisation,
    pooling,
    quantisation,
    recurrent,
    reductions,
    regions,
    resize,
    scatter,
    selection,
    small_types,
    state,
    substitution,
    suppression,
    top_k,
    trees,
    unique,
    user_operators,
    weight_only,
    written_lengths,
)
from autotune.graph.operators.definition import UNKNOWN, Layout, Operator, ViewKind

FAMILIES = (
    *(elementwise, bits, contraction, convolution, pooling, reductions, normalisation),
    *(movement, depth_to_space, resize, grid_sample, regions, gather, scatter),
    *(quantisation, integer_products, weight_only, integer_blocks, block_quantised),
    *(lookup, small_types, trees, written_lengths, suppression, unique, experts, substitution),
    *(cumulative_sum, top_k, selection, recurrent, folded, state, decoders, user_operators),
)

OPERATORS: dict[str, Operator] = {
    name: operator for family in FAMILIES for name, operator in family.OPERATORS.items()
}

NATIVE = frozenset(name for name, operator in OPERATORS.items() if operator.is_native)
"""ONNX operators with a definition here or a pass that rewrites or folds them."""


def operator_of(name: str) -> Operator:
    """The record of an operator; an empty one for a name that is not in the table."""
    return OPERATORS.get(name, UNKNOWN)


def view_of(node: Node) -> ViewKind | None:
    """The kind of view that a node is; None for a computation."""
    return operator_of(node.op).view


def permutes(node: Node) -> bool:
    """Whether a node brings dimensions into another order."""
    return operator_of(node.op).layout is Layout.TRANSPOSE


def data_of(node: Node) -> tuple[str, ...]:
    """The operands whose elements a node moves."""
    return node.inputs if view_of(node) is ViewKind.JOINED else node.inputs[:1]


def operators_with(has: Callable[[Operator], object]) -> frozenset[str]:
    """The names of all operators whose record has something."""
    return frozenset(name for name, operator in OPERATORS.items() if has(operator))


REARRANGING = operators_with(lambda op: op.view is ViewKind.WHOLE or op.layout is Layout.TRANSPOSE)
"""Operators that bring all elements into another shape, or dimensions into another order."""
PRODUCTS = operators_with(lambda op: op.factors.channel_axis is not None)
"""Operators that sum products of data and weights with output channels."""
