"""① Matrix products and Einsum: sums of products over shared dimensions.

    MatMul(a, b, bias)               the canonical form; may transpose its operands
    Gemm(a, b, c)                    -> MatMul, Mul, Add
    Einsum("...ij,jk->...ik", a, b)  -> Einsum(a, b), labels "ABij jk ABik"
    Einsum("ab,bc,cd->ad", x, y, z)  -> Einsum(Einsum(x, y), z), labels "ab bc ac" and "ac cd ad"

A label is one letter of the equation; those of an ellipsis are letters that it does not use.
"""

from __future__ import annotations

import string
from collections import Counter
from collections.abc import Mapping, Sequence
from functools import reduce

import numpy as np

from autotune.errors import ModelError
from autotune.graph.ir import Array, Node, Shape, TensorType
from autotune.graph.operators.definition import (
    POINT,
    Factors,
    Operands,
    Operator,
    Scope,
    Types,
    accumulator_of,
    biased,
    optional,
    product_of,
    repeating,
    tensor,
    typed,
)
from autotune.graph.rewriter import Rewriter
from autotune.te.expr import (
    Axis,
    Expr,
    Reduce,
    Tensor,
    idx,
    mul,
)


def _matmul(scope: Scope, node: Node, operands: Operands, shape: Shape) -> Tensor:
    """y[…, m, n] = Σ a[…, m, k] · b[…, k, n] + bias[n], batches broadcast, vectors promoted."""
    return biased(scope, _product(scope, node, operands, shape), optional(operands, 2))


def _product(scope: Scope, node: Node, operands: Operands, shape: Shape) -> Tensor:
    """The product of the first two operands."""
    a, b = tensor(operands, 0), tensor(operands, 1)
    trans_a, trans_b = node.attrs.get("trans_a", 0), node.attrs.get("trans_b", 0)
    n_inner = a.shape[0] if len(a.shape) == 1 else a.shape[-2 if trans_a else -1]
    k = Axis("k", n_inner)
    axes = _matmul_axes(shape)
    n_rows, n_cols = int(len(a.shape) > 1), int(len(b.shape) > 1)
    rows = axes[len(axes) - n_cols - n_rows : len(axes) - n_cols]
    cols = axes[len(axes) - n_cols :]
    batch = axes[: len(axes) - n_rows - n_cols]
    left = (k, *rows) if trans_a else (*rows, k)
    right = (*cols, k) if trans_b else (k, *cols)
    product = product_of(_batched(a, batch, left), _batched(b, batch, right))
    return scope.compute("matmul", axes or POINT, Reduce("sum", product, (k,)))


def _matmul_axes(shape: Shape) -> tuple[Axis, ...]:
    names = ["b", "m", "n"][max(0, 3 - len(shape)) :]
    if len(shape) > 3:
        names = [f"b{n}" for n in range(len(shape) - 2)] + ["m", "n"]
    return tuple(Axis(a, e) for a, e in zip(names, shape, strict=True))


def _batched(x: Tensor, batch: Sequence[Axis], inner: Sequence[Axis]) -> Expr:
    n_batch = len(x.shape) - len(inner)
    lead = batch[len(batch) - n_batch :]
    pairs = zip(x.shape, lead, strict=False)
    index = [idx(0) if extent == 1 else axis.var for extent, axis in pairs]
    return x[(*index, *inner)]


def _gemm(rw: Rewriter) -> None:
    """alpha · A·B + beta · C -> MatMul, Mul, Add; factors of 1 leave no node."""
    a, b, c = (rw.input(n) for n in range(3))
    dtype, alpha, beta = rw.type.dtype, rw.attr("alpha", 1.0), rw.attr("beta", 1.0)
    trans_a, trans_b = (int(rw.attr(name, 0)) for name in ("transA", "transB"))
    if trans_b and b in rw.constants:
        b, trans_b = rw.array(rw.constants[b].T), 0
    value = rw.value(2)
    if c and beta not in (0.0, 1.0):
        factor = np.full(1, beta, dtype)
        c = rw("Mul", c, rw.array(factor)) if value is None else rw.array(value * factor[0])
    y = rw("MatMul", a, b, shape=rw.type.shape, trans_a=trans_a, trans_b=trans_b)
    if alpha != 1.0:
        y = rw("Mul", y, rw.array(np.full(1, alpha, dtype)))
    if c and beta != 0.0:
        y = rw("Add", y, c)
    rw.returns(y)


def row_length(given: Sequence[Array]) -> int:
    """Elements of a row of the first matrix."""
    return int(given[0].shape[-1]) if given[0].ndim else 1


# --- Einsum -----------------------------------------------------------------------------------


def _einsum(scope: Scope, node: Node, operands: Operands, shape: Shape) -> Tensor:
    """y[result] = Σ Π x[labels] over the labels that the result lacks; one label, one axis.

    `node.attrs["labels"]`: those of every operand, then those of the result, as in `bik bkj bij`.
    """
    *sources, result = node.attrs["labels"].split(" ")
    tensors = [tensor(operands, n) for n in range(len(sources))]
    shapes = [x.shape if labels else () for labels, x in zip(sources, tensors, strict=True)]
    extents: dict[str, int] = {}
    for labels, found in zip(sources, shapes, strict=True):
        for label, extent in zip(labels, found, strict=True):
            extents[label] = max(extent, extents.get(label, 1))
    axes = {label: Axis(label, extent) for label, extent in extents.items()}
    elements: list[Expr] = [
        x[_einsum_index(labels, found, axes) or (idx(0),)]
        for labels, found, x in zip(sources, shapes, tensors, strict=True)
    ]
    body = reduce(mul, elements)
    summed = tuple(axis for label, axis in axes.items() if label not in result)
    body = Reduce("sum", body, summed) if summed else body
    return scope.compute("einsum", [axes[a] for a in result] or POINT, body)


def _einsum_index(labels: str, shape: Shape, axes: Mapping[str, Axis]) -> tuple[Expr, ...]:
    """Index of an operand; 0 along an axis of extent 1, which broadcasts."""
    pairs = zip(labels, shape, strict=True)
    return tuple(axes[a].var if n > 1 else idx(0) for a, n in pairs)


def _pairwise(rw: Rewriter) -> None:
    """Einsum -> one of labels for one or two operands each; see the module."""
    *sources, result = _labels(rw)
    name, so_far = rw.input(0), sources[0]
    if len(sources) == 1:
        rw.result("Einsum", name, labels=f"{so_far} {result}")
        return
    for n, (other, found) in enumerate(zip(rw.node.inputs[1:], sources[1:], strict=True), 2):
        later = {*result, *"".join(sources[n:])}
        kept = "".join(a for a in dict.fromkeys(so_far + found) if a in later)
        kept = result if n == len(sources) else kept
        extents = _extents(rw, ((name, so_far), (other, found)))
        labels, shape = f"{so_far} {found} {kept}", [extents[a] for a in kept]
        name, so_far = rw("Einsum", name, other, shape=shape, labels=labels), kept
    rw.returns(name)


def _labels(rw: Rewriter) -> list[str]:
    """Labels of every operand, then of the result; without `->` those that occur once, sorted."""
    left, arrow, right = rw.node.attrs["equation"].replace(" ", "").partition("->")
    sources = left.split(",")
    ranks = [len(rw.types[name].shape) for name in rw.node.inputs]
    if len(sources) != len(ranks):
        raise _malformed(rw.node, f"it is for {len(sources)} operands, there are {len(ranks)}")
    n_dots = [
        rank - len(source.replace("...", "")) if "..." in source else 0
        for rank, source in zip(ranks, sources, strict=True)
    ]
    fits = (
        n >= 0 if "..." in source else rank == len(source)
        for source, rank, n in zip(sources, ranks, n_dots, strict=True)
    )
    if not all(fits):
        raise _malformed(rw.node, "its labels are not as many as the dimensions of an operand")
    if arrow and "..." not in right and max(n_dots) > 0:
        raise _malformed(rw.node, "its result lacks the ellipsis of its operands")
    unused = "".join(a for a in string.ascii_uppercase + string.ascii_lowercase if a not in left)
    if max(n_dots) > len(unused):
        raise rw.refuse("its operands have too many dimensions")
    dots = unused[: max(n_dots)]
    if not arrow:
        counts = Counter(left.replace("...", "").replace(",", ""))
        right = "..." + "".join(sorted(a for a, n in counts.items() if n == 1))
    full = [s.replace("...", dots[len(dots) - n :]) for s, n in zip(sources, n_dots, strict=True)]
    return [*full, right.replace("...", dots)]


def _einsum_type(rw: Rewriter) -> Types:
    """The type of the result. Raises ModelError for labels that do not fit to the operands."""
    *sources, result = _labels(rw)
    extents = _extents(rw, tuple(zip(rw.node.inputs, sources, strict=True)))
    for name, source in zip(rw.node.inputs, sources, strict=True):
        pairs = zip(source, rw.types[name].shape, strict=True)
        wrong = next((a for a, n in pairs if n not in (1, extents[a])), None)
        if wrong is not None:
            raise _malformed(rw.node, f"'{wrong}' stands for different extents")
    if len(set(result)) != len(result) or any(a not in extents for a in result):
        raise _malformed(rw.node, "its result repeats a label, or has one that no operand has")
    return [TensorType(tuple(extents[a] for a in result), rw.kind(0).dtype)]


def _malformed(node: Node, reason: str) -> ModelError:
    return ModelError(
        f"operator 'Einsum' (node '{node.name}') has equation '{node.attrs['equation']}': {reason}",
        "export the model again",
    )


def _extents(rw: Rewriter, operands: tuple[tuple[str, str], ...]) -> dict[str, int]:
    found: dict[str, int] = {}
    for name, source in operands:
        for label, extent in zip(source, rw.types[name].shape, strict=True):
            found[label] = extent if found.get(label, 1) == 1 else found[label]
    return found


def product_type(rw: Rewriter) -> Types:
    """That of a matrix product, batches broadcast; vectors lose their dimension."""
    a, b = rw.kind(0), rw.kind(1)
    left = a.shape if not rw.attr("trans_a", 0) else (*a.shape[:-2], a.shape[-1], a.shape[-2])
    right = b.shape if not rw.attr("trans_b", 0) else (*b.shape[:-2], b.shape[-1], b.shape[-2])
    batch = np.broadcast_shapes(left[:-2], right[:-2])
    shape = (*batch, *left[-2:-1], *(right[-1:] if len(right) > 1 else ()))
    return [TensorType(shape, accumulator_of(a.dtype, b.dtype))]


OPERATORS: Mapping[str, Operator] = {
    "MatMul": Operator(
        typing=typed(fallback=product_type),
        factors=Factors(
            weight_input=1, channel_axis=-1, n_narrow=2, takes_prologue=True, n_terms=row_length
        ),
        define=_matmul,
        roles=("x", "weight", "bias"),
    ),
    "Gemm": Operator(
        canonical=_gemm,
        factors=Factors(weight_input=1, n_terms=row_length),
        typing=typed(repeating(2)),
    ),
    "Einsum": Operator(
        define=_einsum,
        canonical=_pairwise,
        typing=typed(own=_einsum_type),
        factors=Factors(n_terms=lambda given: max(int(a.size) for a in given)),
    ),
}
