"""① Operators that read where data say, find where something is, or add up along an axis.

`index_limits` tells which values are indices, and into how much, for whoever makes some up.
"""

from __future__ import annotations

from collections.abc import Iterator

from autotune.graph.ir import Graph, Node, Shape
from autotune.graph.operators.scope import Operands, Scope, axes_of, inside, tensor
from autotune.te.expr import (
    FLOAT_DTYPES,
    INDEX,
    Axis,
    Const,
    Expr,
    Reduce,
    Tensor,
    add,
    cast,
    compare,
    either,
    idx,
    select,
)


def chosen(index: Expr, extent: int) -> Expr:
    """The position that an element of an ONNX index stands for: negative ones count from the end.

    What is outside is moved to the nearest end: ONNX leaves it open, and memory must not be.
    """
    at = cast(INDEX, index)
    at = select(compare("lt", at, idx(0)), add(at, idx(extent)), at)
    return inside(at, extent)


def gather(scope: Scope, node: Node, operands: Operands, shape: Shape) -> Tensor:
    """y[a…, i…, b…] = x[a…, index[i…], b…] with the index at dimension `axis`."""
    x, index = tensor(operands, 0), tensor(operands, 1)
    axis = node.attrs.get("axis", 0) % len(x.shape)
    axes = axes_of(shape)
    last = axis + len(shape) - len(x.shape) + 1
    at = index[axes[axis:last] or (idx(0),)]
    element = x[(*axes[:axis], chosen(at, x.shape[axis]), *axes[last:])]
    return scope.compute("gather", axes or [Axis("n", 1)], element)


def gather_elements(scope: Scope, node: Node, operands: Operands, shape: Shape) -> Tensor:
    """y[i…] = x[i…] but index[i…] at dimension `axis`."""
    x, index = tensor(operands, 0), tensor(operands, 1)
    axis = node.attrs.get("axis", 0) % len(x.shape)
    axes = axes_of(shape)
    at = chosen(index[axes], x.shape[axis])
    return scope.compute("gather", axes, x[(*axes[:axis], at, *axes[axis + 1 :])])


def gather_nd(scope: Scope, node: Node, operands: Operands, shape: Shape) -> Tensor:
    """y[a…, i…, b…] = x[a…, index[a…, i…, 0], index[a…, i…, 1], …, b…]; `batch_dims` are a…"""
    x, index = tensor(operands, 0), tensor(operands, 1)
    n_batch, n_rows = node.attrs.get("batch_dims", 0), len(index.shape) - 1
    axes = axes_of(shape)
    at = [
        chosen(index[(*axes[:n_rows], idx(k))], x.shape[n_batch + k])
        for k in range(index.shape[-1])
    ]
    element = x[(*axes[:n_batch], *at, *axes[n_rows:])]
    return scope.compute("gather", axes or [Axis("n", 1)], element)


def arg_extremum(scope: Scope, node: Node, operands: Operands, shape: Shape) -> Tensor:
    """Where the largest or smallest element of dimension `axis` is: the first, or the last.

    A NaN is both, as in NumPy.
    """
    x = tensor(operands, 0)
    axis = node.attrs.get("axis", 0) % len(x.shape)
    axes = axes_of(x.shape)
    r = Axis(f"r{axes[axis].name}", x.shape[axis])
    element = x[(*axes[:axis], r, *axes[axis + 1 :])]
    outer = (*axes[:axis], *axes[axis + 1 :]) or (Axis("n", 1),)
    best = Reduce("max" if node.op == "ArgMax" else "min", element, (r,))
    extremum = scope.compute(best.op, outer, best)
    is_last = node.attrs.get("select_last_index", 0)
    is_best = compare("eq", element, extremum[outer])
    if x.dtype in FLOAT_DTYPES:
        is_best = either(is_best, compare("ne", element, element))
    at = select(is_best, r.var, idx(-1 if is_last else r.extent))
    found = Reduce("max" if is_last else "min", at, (r,))
    return scope.compute("position", outer, found)


def running_sum(scope: Scope, node: Node, operands: Operands, shape: Shape) -> Tensor:
    """y[…, i, …] = Σ x[…, r, …] over r ≤ i; `exclusive`: r < i; `reverse`: from the other end."""
    x, axis, axes = tensor(operands, 0), node.attrs["axis"], axes_of(shape)
    r = Axis(f"r{axes[axis].name}", shape[axis])
    op = "g" if node.attrs.get("reverse", 0) else "l"
    counts = compare(f"{op}{'t' if node.attrs.get('exclusive', 0) else 'e'}", r.var, axes[axis].var)
    element = select(counts, x[(*axes[:axis], r, *axes[axis + 1 :])], Const(0, x.dtype))
    return scope.compute("running", axes, Reduce("sum", element, (r,)))


# --- which values are indices -----------------------------------------------------------------

_CARRIES = (
    *("Cast", "Identity", "Reshape", "Transpose", "Slice", "Concat", "Expand", "Where"),
    *("Add", "Sub", "Max", "Min", "Clip", "Gather", "GatherElements", "GatherND"),
)
"""Operators whose result is of the size of their operands."""


def index_limits(graph: Graph) -> dict[str, int]:
    """For every tensor of indices the smallest dimension that its values choose from."""
    limits: dict[str, int] = {}
    for node in reversed(graph.nodes):
        for name, limit in _limited(node, graph, limits.get(node.output)):
            limits[name] = min(limit, limits.get(name, limit))
    return limits


def _limited(node: Node, graph: Graph, limit: int | None) -> Iterator[tuple[str, int]]:
    """The inputs of a node that are indices if its output is one below `limit`."""
    is_gather = node.op.startswith("Gather")
    if limit is not None and node.op in _CARRIES:
        known = [graph.constants[name] for name in node.inputs if name in graph.constants]
        if node.op == "Add":  # what comes on top must stay below as well
            limit = max(1, limit - sum(int(a.max()) for a in known if a.size))
        yield from ((name, limit) for name in (node.inputs[:1] if is_gather else node.inputs))
    if is_gather:
        shape = graph.shape(node.inputs[0])
        first, last = node.attrs.get("axis", 0) % len(shape), None
        if node.op == "GatherND":
            first = node.attrs.get("batch_dims", 0)
            last = first + graph.shape(node.inputs[1])[-1]
        yield node.inputs[1], min(shape[first : last or first + 1])
