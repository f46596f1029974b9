"""① What every operator means: ONNX semantics as te computations.

`OPERATORS[op]` defines an operator on tensors as they are stored (see `layout`): it takes the scope
of the subgraph, the node, its operands and the shape of its result, and returns the tensor that it
defines. To add an operator, write its definition and enter it in the table.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeAlias

from autotune.graph.ir import Node, Shape
from autotune.graph.operators.elementwise import ELEMENTWISE
from autotune.graph.operators.grid_sample import grid_sample, interpolate
from autotune.graph.operators.indices import (
    arg_extremum,
    gather,
    gather_elements,
    gather_nd,
    running_sum,
)
from autotune.graph.operators.products import (
    REDUCTIONS,
    einsum,
    global_pool,
    log_sum_exp,
    lrn,
    matmul,
    normalise,
    normalise_groups,
    reduction,
    softmax,
)
from autotune.graph.operators.ranking import rank, ranked
from autotune.graph.operators.recurrent import lstm_output, lstm_state
from autotune.graph.operators.scope import (
    Operands,
    Scope,
    axes_of,
    broadcast_shape,
    inside,
    read,
    tensor,
)
from autotune.graph.operators.user_operators import DEFINED, defined
from autotune.graph.operators.windows import average_pool, conv, lp_pool, max_pool, padded
from autotune.te.expr import (
    Expr,
    Tensor,
    add,
    binary,
    compare,
    identity,
    idx,
    minimum,
    mod,
    mul,
    select,
    sub,
)

Definition: TypeAlias = Callable[[Scope, Node, Operands, Shape], Tensor]


def elementwise(scope: Scope, node: Node, operands: Operands, shape: Shape) -> Tensor:
    """y[i…] = f(a[i…], b[i…], …) with broadcasting."""
    axes = axes_of(broadcast_shape([o for o in operands if o is not None]) or (1,))
    elements = [None if o is None else read(o, axes) for o in operands]
    return scope.compute(node.op.lower(), axes, ELEMENTWISE[node.op](node.attrs, *elements))


def transpose(scope: Scope, node: Node, operands: Operands, shape: Shape) -> Tensor:
    """y[i…] = x[i permuted]."""
    x = tensor(operands, 0)
    perm = node.attrs["perm"]
    axes = axes_of([x.shape[p] for p in perm])
    return scope.compute("transpose", axes, x[tuple(axes[perm.index(n)] for n in range(len(perm)))])


def pad(scope: Scope, node: Node, operands: Operands, shape: Shape) -> Tensor:
    """Constant, edge, reflect or wrap padding by `node.attrs["amounts"]`.

    Negative amounts crop, before anything is padded: what is repeated is what they leave.
    """
    x = tensor(operands, 0)
    amounts = node.attrs["amounts"]
    begin, end = amounts[: len(x.shape)], amounts[len(x.shape) :]
    mode = node.attrs.get("mode", "constant")
    if mode == "constant":
        return padded(scope, x, begin, end, node.attrs.get("fill", 0.0))
    axes = axes_of(shape)
    index: list[Expr] = []
    for a, b, e, n in zip(axes, begin, end, x.shape, strict=True):
        first, last = max(0, -b), n - 1 - max(0, -e)
        size = last - first + 1
        place = sub(a.var, idx(b + first))  # among what is left
        if max(b, e) > 0:
            place = _REPEATED[mode](place, size, max(b, e))
        index.append(add(place, idx(first)))
    return scope.compute("pad", axes, x[tuple(index)])


def _edge(place: Expr, size: int, most: int) -> Expr:
    """A place outside of `size` elements -> the one at that end."""
    return inside(place, size)


def _reflect(place: Expr, size: int, most: int) -> Expr:
    """A place outside of `size` elements, by at most `most`, mirrored at the ends."""
    if size == 1:
        return idx(0)
    if most >= size:  # more than once
        place = mod(place, idx(2 * size - 2))
        return minimum(place, sub(idx(2 * size - 2), place))
    place = select(compare("lt", place, idx(0)), sub(idx(0), place), place)
    place = select(compare("ge", place, idx(size)), sub(idx(2 * size - 2), place), place)
    return inside(place, size)


def _wrap(place: Expr, size: int, most: int) -> Expr:
    """A place outside of `size` elements counted on from the other end."""
    return inside(mod(place, idx(size)), size)


_REPEATED = {"edge": _edge, "reflect": _reflect, "wrap": _wrap}


def slice_(scope: Scope, node: Node, operands: Operands, shape: Shape) -> Tensor:
    """y[i…] = x[start + step·i…] with `node.attrs["starts"]`, `["steps"]` per dimension."""
    x = tensor(operands, 0)
    axes = axes_of(shape)
    parts = zip(axes, node.attrs["starts"], node.attrs["steps"], strict=True)
    index = [add(mul(a.var, idx(step)), idx(start)) for a, start, step in parts]
    return scope.compute("slice", axes, x[tuple(index)])


def triangle(scope: Scope, node: Node, operands: Operands, shape: Shape) -> Tensor:
    """The elements of x on one side of diagonal `node.attrs["k"]` of its last two dimensions."""
    x = tensor(operands, 0)
    axes = axes_of(shape)
    row, column = add(axes[-2].var, idx(node.attrs["k"])), axes[-1].var
    kept = compare("ge" if node.attrs.get("upper", 1) else "le", column, row)
    return scope.compute("triangle", axes, select(kept, x[axes], identity("sum", x.dtype)))


def concat(scope: Scope, node: Node, operands: Operands, shape: Shape) -> Tensor:
    """Selects between the operands by position; used only where windows cannot do it."""
    tensors = [o for o in operands if isinstance(o, Tensor)]
    axis = node.attrs["axis"] % len(shape)
    axes = axes_of(shape)
    at = axes[axis].var
    body: Expr | None = None
    start = shape[axis]
    for x in reversed(tensors):
        start -= x.shape[axis]
        index = [sub(at, idx(start)) if n == axis else a.var for n, a in enumerate(axes)]
        element: Expr = x[tuple(index)]
        if body is not None:
            element = select(compare("lt", at, idx(start + x.shape[axis])), element, body)
        body = element
    assert body is not None
    return scope.compute("concat", axes, body)


def expand(scope: Scope, node: Node, operands: Operands, shape: Shape) -> Tensor:
    """Broadcast to `shape`; a number is stored as one element."""
    x = tensor(operands, 0)
    axes = axes_of(shape or (1,))
    return scope.compute("expand", axes, read(x, axes))


def upsample(scope: Scope, node: Node, operands: Operands, shape: Shape) -> Tensor:
    """Nearest neighbour by whole factors: y[i…] = x[i // factor…]."""
    x = tensor(operands, 0)
    axes = axes_of(shape)
    factors = [out // n for out, n in zip(shape, x.shape, strict=True)]
    index = [binary("floordiv", a.var, idx(f)) for a, f in zip(axes, factors, strict=True)]
    return scope.compute("upsample", axes, x[tuple(index)])


OPERATORS: dict[str, Definition] = {
    **dict.fromkeys(ELEMENTWISE, elementwise),
    **dict.fromkeys(REDUCTIONS, reduction),
    "Conv": conv,
    "MaxPool": max_pool,
    "AveragePool": average_pool,
    "LpPool": lp_pool,
    "GlobalAveragePool": global_pool,
    "GlobalMaxPool": global_pool,
    "MatMul": matmul,
    "Softmax": softmax,
    "LogSoftmax": softmax,
    "ReduceLogSumExp": log_sum_exp,
    "Einsum": einsum,
    "LRN": lrn,
    "InstanceNormalization": normalise,
    "GroupNormalization": normalise_groups,
    "LayerNormalization": normalise,
    "Transpose": transpose,
    "Pad": pad,
    "Slice": slice_,
    "Trilu": triangle,
    "Concat": concat,
    "Expand": expand,
    "Resize": upsample,
    "GridSample": grid_sample,
    "Interpolate": interpolate,
    "Gather": gather,
    "GatherElements": gather_elements,
    "GatherND": gather_nd,
    "ArgMax": arg_extremum,
    "ArgMin": arg_extremum,
    "CumSum": running_sum,
    "Rank": rank,
    "Ranked": ranked,
    "LstmState": lstm_state,
    "LstmOutput": lstm_output,
    DEFINED: defined,
}

DTYPES = ("float32", "int64", "int32", "bool", "uint8", "int8", "float64")
"""Types of elements: the first for every operator, all of them for those in `ANY_TYPE`."""

ANY_TYPE = frozenset(
    (
        *("Identity", "Cast", "Where", "Equal", "Less", "LessOrEqual", "Greater", "GreaterOrEqual"),
        *("Mod", "IsNaN", "IsInf", "And", "Or", "Xor", "Not"),
        *("Add", "Sub", "Mul", "Max", "Min", "Clip", "Abs", "Neg"),
        *("Transpose", "Slice", "Concat", "Expand", "Gather", "GatherElements", "GatherND"),
        *("Trilu", "ArgMax", "ArgMin", "CumSum", "Rank", "Ranked", "Resize", "Interpolate"),
        *("ReduceSum", "ReduceMax", "ReduceMin", "ReduceProd", DEFINED),
    )
)
"""Operators that mean the same for integers as for floats."""

NATIVE = frozenset(OPERATORS) | {
    *("BatchNormalization", "Gemm", "Sum", "Split", "Dropout"),
    *("ConvTranspose", "Col2Im", "DepthToSpace", "SpaceToDepth", "ScatterND", "ScatterElements"),
    *("Mean", "Tile", "GlobalLpPool", "LpNormalization", "RNN", "GRU", "LSTM", "TopK", "OneHot"),
    *("Constant", "ConstantOfShape", "Shape", "Size", "Range"),
    *("Reshape", "Flatten", "Squeeze", "Unsqueeze"),
}
"""ONNX operators with a definition here or a pass that rewrites or folds them."""
