"""① Products with matrices that data choose, as those of experts are.

    ExpertMatMul(x, W, e)[s, m, n] = Σ_k x[s, m, k] · W[e[s], k, n]

Matrices that no row chooses are not read.
"""

from __future__ import annotations

from collections.abc import Mapping

from autotune.graph.ir import Node, Shape, TensorType, malformed
from autotune.graph.operators.contraction import row_length
from autotune.graph.operators.definition import (
    Factors,
    Operands,
    Operator,
    Scope,
    Types,
    product_of,
    tensor,
    typed,
)
from autotune.graph.operators.gather import chosen
from autotune.graph.operators.weight_only import SmallWeights, expert_product
from autotune.graph.rewriter import Rewriter
from autotune.te.expr import Axis, Reduce, Tensor

EXPERT_MATMUL = "ExpertMatMul"
EXPERT_BLOCKS = "ExpertBlocks"
"""The same of weights in blocks of few bits, as the reader writes it."""


def _expert_matmul(scope: Scope, node: Node, operands: Operands, shape: Shape) -> Tensor:
    x, weight, expert = (tensor(operands, n) for n in range(3))
    s, m, n = (Axis(a, e) for a, e in zip("smn", shape, strict=True))
    k = Axis("k", x.shape[-1])
    own = weight[chosen(expert[s], weight.shape[0]), k, n]
    return scope.compute("matmul", (s, m, n), Reduce("sum", product_of(x[s, m, k], own), (k,)))


def _matmul_type(rw: Rewriter) -> Types:
    x, weight = rw.kind(0), rw.kind(1).shape
    if len(x.shape) != 3 or x.shape[-1] != weight[1]:
        raise malformed(rw.node, f"weights {list(weight)}, rows of {x.shape[-1]}")
    return [TensorType((*x.shape[:-1], weight[2]), x.dtype)]


def _blocks(rw: Rewriter) -> None:
    """x (s, 1, k), experts (s), q, scales, zero points (experts, n, blocks) -> WeightOnlyMatMul."""
    q, scale, zero = (rw.constants[name] for name in rw.node.inputs[2:])
    n_experts, n, k = q.shape
    columns = [a.reshape(n_experts * n, -1).T for a in (q, scale, zero)]
    block = k // scale.shape[2]
    weights = SmallWeights(lambda: columns[0], columns[1], columns[2], block, rw.attr("bits"))
    expert_product(rw, weights, n_experts, rw.input(0), rw.input(1))


def _blocks_type(rw: Rewriter) -> Types:
    x, q, scale = rw.kind(0), rw.kind(2).shape, rw.kind(3).shape
    if x.shape[-1] != q[-1] or scale[-1] == 0 or q[-1] % scale[-1]:
        raise malformed(rw.node, f"weights {list(q)}, scales {list(scale)}, rows of {x.shape[-1]}")
    return [TensorType((*x.shape[:-1], q[1]), x.dtype)]


OPERATORS: Mapping[str, Operator] = {
    EXPERT_MATMUL: Operator(
        define=_expert_matmul,
        factors=Factors(weight_input=1, takes_prologue=True, n_terms=row_length),
        roles=("x", "weight", "expert"),
        typing=typed(own=_matmul_type),
    ),
    EXPERT_BLOCKS: Operator(canonical=_blocks, typing=typed(own=_blocks_type)),
}
