"""① Data movement: reshape, transpose, pad, slice, split, concatenate, repeat."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from autotune.graph.ir import Array, Node, Shape, TensorType, moves_nothing
from autotune.graph.operators.definition import (
    NO_TRAITS,
    Fusion,
    Layout,
    Operands,
    Operator,
    Scope,
    Trait,
    Types,
    ViewKind,
    axes_of,
    inside,
    read,
    tensor,
    typed,
)
from autotune.graph.operators.moves import moved
from autotune.graph.operators.windows import OPEN_ENDS, open_ends_of, padded
from autotune.graph.rewriter import Rewriter
from autotune.te.expr import Expr, Tensor, add, compare, idx, minimum, select
from autotune.te.reductions import identity
from autotune.units import format_shape


def _transpose(scope: Scope, node: Node, operands: Operands, shape: Shape) -> Tensor:
    """y[i…] = x[i permuted]."""
    x = tensor(operands, 0)
    perm = node.attrs["perm"]
    axes = axes_of([x.shape[p] for p in perm])
    return scope.compute("transpose", axes, x[tuple(axes[perm.index(n)] for n in range(len(perm)))])


def _pad(scope: Scope, node: Node, operands: Operands, shape: Shape) -> Tensor:
    """Constant, edge, reflect or wrap padding by `node.attrs["amounts"]`.

    Negative amounts crop first; the modes repeat elements that are left.
    """
    x = tensor(operands, 0)
    amounts = node.attrs["amounts"]
    begin, end = amounts[: len(x.shape)], amounts[len(x.shape) :]
    mode = node.attrs.get("mode", "constant")
    if mode == "constant":
        ends = node.attrs.get(OPEN_ENDS, ())
        apart = tuple(zip(ends[: len(x.shape)], ends[len(x.shape) :], strict=True))
        return padded(scope, x, begin, end, node.attrs.get("fill", 0.0), apart)
    axes = axes_of(shape)
    index: list[Expr] = []
    for a, b, e, n in zip(axes, begin, end, x.shape, strict=True):
        first, last = max(0, -b), n - 1 - max(0, -e)
        size = last - first + 1
        place = a - (b + first)  # relative to the cropped operand
        if max(b, e) > 0:
            place = _REPEATED[mode](place, size, max(b, e))
        index.append(place + first)
    return scope.compute("pad", axes, x[tuple(index)])


def _edge(place: Expr, size: int, most: int) -> Expr:
    """An index outside of `size` elements -> the nearest end."""
    return inside(place, size)


def _reflect(place: Expr, size: int, most: int) -> Expr:
    """An index outside of `size` elements, by at most `most`, mirrored at the ends."""
    if size == 1:
        return idx(0)
    if most >= size:  # reflected more than once
        place = place % (2 * size - 2)
        return minimum(place, 2 * size - 2 - place)
    place = select(place < 0, 0 - place, place)
    place = select(place >= size, 2 * size - 2 - place, place)
    return inside(place, size)


def _wrap(place: Expr, size: int, most: int) -> Expr:
    """An index outside of `size` elements, modulo `size`."""
    return inside(place % size, size)


_REPEATED = {"edge": _edge, "reflect": _reflect, "wrap": _wrap}


def _slice(scope: Scope, node: Node, operands: Operands, shape: Shape) -> Tensor:
    """y[i…] = x[start + step·i…] with `node.attrs["starts"]`, `["steps"]` per dimension."""
    x = tensor(operands, 0)
    axes = axes_of(shape)
    parts = zip(axes, node.attrs["starts"], node.attrs["steps"], strict=True)
    index = [a * step + start for a, start, step in parts]
    return scope.compute("slice", axes, x[tuple(index)])


def _oblique(scope: Scope, node: Node, operands: Operands, shape: Shape) -> Tensor:
    """y[i…] = x[start + rows·i…] with `node.attrs["rows"]`, `["starts"]` per dimension of x."""
    x = tensor(operands, 0)
    axes = axes_of(shape)
    index: list[Expr] = []
    for row, start in zip(node.attrs["rows"], node.attrs["starts"], strict=True):
        place: Expr = idx(start)
        for a, step in zip(axes, row, strict=True):
            place = add(place, a * step) if step else place
        index.append(place)
    return scope.compute("oblique", axes, x[tuple(index)])


def _triangle(scope: Scope, node: Node, operands: Operands, shape: Shape) -> Tensor:
    """The elements of x on one side of diagonal `node.attrs["k"]` of its last two dimensions."""
    x = tensor(operands, 0)
    axes = axes_of(shape)
    row, column = axes[-2] + node.attrs["k"], axes[-1].var
    kept = compare("ge" if node.attrs.get("upper", 1) else "le", column, row)
    return scope.compute("triangle", axes, select(kept, x[axes], identity("sum", x.dtype)))


def _concat(scope: Scope, node: Node, operands: Operands, shape: Shape) -> Tensor:
    """Select between the operands by position; only where `storage` cannot place them as views."""
    tensors = [o for o in operands if isinstance(o, Tensor)]
    axis = node.attrs["axis"] % len(shape)
    axes = axes_of(shape)
    at = axes[axis].var
    body: Expr | None = None
    start = shape[axis]
    for x in reversed(tensors):
        start -= x.shape[axis]
        index = [at - start if n == axis else a.var for n, a in enumerate(axes)]
        element: Expr = x[tuple(index)]
        if body is not None:
            element = select(at < start + x.shape[axis], element, body)
        body = element
    assert body is not None
    return scope.compute("concat", axes, body)


def _expand(scope: Scope, node: Node, operands: Operands, shape: Shape) -> Tensor:
    """Broadcast to `shape`; a number is stored as one element."""
    x = tensor(operands, 0)
    axes = axes_of(shape or (1,))
    return scope.compute("expand", axes, read(x, axes))


# --- rewrites in ONNX's order -----------------------------------------------------------------


def _to_reshape(rw: Rewriter) -> None:
    """Reshape, Flatten, Squeeze, Unsqueeze -> Reshape of one input: the output has the shape."""
    rw.result("Reshape", rw.input(0))


def _without_transposing(rw: Rewriter) -> None:
    """Transpose -> Reshape where only dimensions of extent 1 move, else with explicit `perm`."""
    shape = rw.kind(0).shape
    axes = rw.attr("perm", range(len(shape))[::-1])
    if moves_nothing(axes, shape):
        _to_reshape(rw)
    else:
        rw.again(perm=tuple(axes))


def _to_expand(rw: Rewriter) -> None:
    """Tile -> Reshape to (…, 1, n, …), Expand to (…, repeats, n, …), Reshape."""
    repeats, shape = rw.value(1), rw.kind(0).shape
    if repeats is None:
        raise rw.refuse("its repeats are computed at run time")
    apart = rw("Reshape", rw.input(0), shape=[d for n in shape for d in (1, n)])
    pairs = zip(repeats.tolist(), shape, strict=True)
    rw.result("Reshape", rw("Expand", apart, shape=[d for pair in pairs for d in pair]))


# --- rewrites on the stored layout ------------------------------------------------------------


def pad_amounts(node: Node, constants: dict[str, Array], rank: int) -> list[int] | None:
    """Begin and end padding of all dimensions; None if computed at run time."""
    if any(name and name not in constants for name in node.inputs[1:]):
        return None
    given = constants[node.inputs[1]].reshape(-1)
    axes = list(range(rank))
    if len(node.inputs) > 3 and node.inputs[3]:
        axes = [int(a) % rank for a in constants[node.inputs[3]].reshape(-1)]
    full = [0] * (2 * rank)
    for n, axis in enumerate(axes):
        full[axis], full[rank + axis] = int(given[n]), int(given[len(given) // 2 + n])
    return full


def _resolve_pad(rw: Rewriter) -> None:
    """Amounts and fill value become attributes; a computed fill is chosen by each padded axis."""
    shape, rank, mode = rw.type.shape, len(rw.type.shape), rw.attr("mode", "constant")
    x, by, fill, *rest = (*rw.node.inputs, "", "")
    value = rw.value(2)
    is_computed = mode == "constant" and bool(fill) and value is None
    given = replace(rw.node, inputs=(x, by, "" if is_computed else fill, *rest))
    amounts = pad_amounts(given, rw.constants, rank)
    if amounts is None:
        raise rw.refuse("its padding is computed at run time")
    ends = open_ends_of(rw.node)
    if not any(amounts) and not ends:
        rw.alias(x)
        return
    _check_padding(rw, mode, amounts)
    number = 0.0 if value is None else float(value.reshape(-1)[0])
    y = rw("Pad", x, shape=shape, mode=mode, amounts=tuple(amounts), fill=number, **ends)
    for axis, extent in enumerate(shape):
        if is_computed and max(amounts[axis], amounts[rank + axis]) > 0:
            at = np.arange(extent)
            inside = (at >= amounts[axis]) & (at < extent - amounts[rank + axis])
            along = inside.reshape([-1 if a == axis else 1 for a in range(rank)])
            y = rw("Where", rw.array(along), y, fill)
    rw.returns(y)


def _check_padding(rw: Rewriter, mode: str, amounts: list[int]) -> None:
    """Refuse unknown modes, and repetition along an axis that is cropped to nothing."""
    if mode not in ("constant", "edge", "reflect", "wrap"):
        raise rw.refuse(f"mode '{mode}'")
    shape = rw.kind(0).shape
    pairs = zip(amounts[: len(shape)], amounts[len(shape) :], shape, strict=True)
    if mode != "constant" and any(n + min(b, 0) + min(e, 0) < 1 for b, e, n in pairs):
        raise rw.refuse(f"mode '{mode}' of an axis cropped to nothing")


def _resolve_slice(rw: Rewriter) -> None:
    """Starts and steps of every dimension become attributes."""
    if any(name and name not in rw.constants for name in rw.node.inputs[1:]):
        raise rw.refuse("its bounds are computed at run time")
    shape = rw.kind(0).shape
    begin, end = (rw.constants[rw.input(n)].reshape(-1) for n in (1, 2))
    axes = rw.constants.get(rw.input(3), np.arange(begin.size))
    steps = rw.constants.get(rw.input(4), np.ones(begin.size, np.int64))
    starts, strides = [0] * len(shape), [1] * len(shape)
    for b, e, a, s in zip(begin, end, axes, steps, strict=True):
        axis = int(a) % len(shape)
        taken = range(shape[axis])[slice(int(b), _end(int(e), int(s), shape[axis]), int(s))]
        starts[axis], strides[axis] = taken.start, taken.step
    rw.returns(taken_from(rw, rw.type.shape, starts, strides))


def _end(end: int, step: int, extent: int) -> int | None:
    """ONNX's end as Python's: far below zero with a negative step means to the beginning."""
    return None if step < 0 and end < -extent else end


def _split(rw: Rewriter) -> None:
    """Split(x) -> one Slice per output."""
    rank = len(rw.kind(0).shape)
    axis, start, parts = rw.attr("axis", 0) % rank, 0, []
    for shape in (rw.types[name].shape for name in rw.node.outputs):
        starts = [start if a == axis else 0 for a in range(rank)]
        parts.append(taken_from(rw, shape, starts, [1] * rank))
        start += shape[axis]
    rw.returns(*parts)


def taken_from(rw: Rewriter, shape: Shape, starts: Sequence[int], steps: Sequence[int]) -> str:
    """A Slice of the first input with resolved bounds, or that input where all is taken."""
    x = rw.input(0)
    ends = open_ends_of(rw.node)
    if rw.types[x].shape == shape and all(step == 1 for step in steps) and not ends:
        return x
    return rw("Slice", x, shape=shape, starts=tuple(starts), steps=tuple(steps), **ends)


def _resolve_triangle(rw: Rewriter) -> None:
    """The diagonal becomes an attribute."""
    k = rw.value(1) if len(rw.node.inputs) > 1 else np.zeros(1)
    if k is None:
        raise rw.refuse("its diagonal is computed at run time")
    rw.again(rw.input(0), k=int(k.reshape(-1)[0]))


def _resolve_expand(rw: Rewriter) -> None:
    """The output has the shape."""
    rw.again(rw.input(0))


def _check_reshape(rw: Rewriter) -> str:
    before, after = rw.kind(0).shape, rw.type.shape
    if min(after, default=0) < 0 or math.prod(before) == math.prod(after):
        return ""
    return f"{format_shape(before)} has not as many elements as {format_shape(after)}"


def _moved_type(rw: Rewriter, n_data: int = 1) -> Types:
    """Type of the result, by moving arrays that hold one element."""
    inputs = rw.node.inputs
    known = [rw.constants[n] for n in inputs[n_data:] if n in rw.constants]
    if len(known) < len(inputs) - n_data:
        return []
    given = (np.broadcast_to(np.zeros((), bool), rw.types[n].shape) for n in inputs[:n_data])
    result = moved(rw.node, [*given, *known])
    return [] if result is None else [TensorType(result.shape, rw.kind(0).dtype)]


def _moving(traits: Trait = NO_TRAITS, **fields: Any) -> Operator:
    """The record of an operator that moves elements of any type."""
    traits |= Trait.MOVES | Trait.KEEPS_RANGE
    return Operator(**{"traits": traits, "typing": typed(fallback=_moved_type), **fields})


OPERATORS: Mapping[str, Operator] = {
    "Reshape": _moving(
        fusion=Fusion.VIEW,
        view=ViewKind.WHOLE,
        layout=Layout.RESHAPE,
        canonical=_to_reshape,
        typing=typed(_check_reshape),
    ),
    "Flatten": Operator(traits=Trait.MOVES | Trait.AXIS_MAY_BE_RANK, canonical=_to_reshape),
    "Squeeze": Operator(traits=Trait.MOVES, canonical=_to_reshape),
    "Unsqueeze": Operator(traits=Trait.MOVES, canonical=_to_reshape),
    "Transpose": _moving(
        define=_transpose,
        fusion=Fusion.INJECTIVE,
        traits=Trait.CHEAP,
        layout=Layout.TRANSPOSE,
        canonical=_without_transposing,
    ),
    "Pad": Operator(
        traits=Trait.MOVES | Trait.CHEAP,
        define=_pad,
        typing=typed(fallback=_moved_type),
        fusion=Fusion.INJECTIVE,
        layout=Layout.PAD,
        resolve=_resolve_pad,
    ),
    "Slice": _moving(
        define=_slice,
        fusion=Fusion.VIEW,
        view=ViewKind.PART,
        traits=Trait.SELECTS,
        layout=Layout.SLICE,
        resolve=_resolve_slice,
    ),
    "Oblique": _moving(define=_oblique, fusion=Fusion.INJECTIVE, traits=Trait.CHEAP),
    "Split": Operator(traits=Trait.MOVES | Trait.SELECTS, layout=Layout.AXIS, resolve=_split),
    "Concat": _moving(
        define=_concat,
        fusion=Fusion.VIEW,
        view=ViewKind.JOINED,
        traits=Trait.SELECTS,
        layout=Layout.AXIS,
        typing=typed(fallback=lambda rw: _moved_type(rw, len(rw.node.inputs))),
        is_identity=lambda rw: len(rw.node.inputs) == 1,
    ),
    "Expand": _moving(define=_expand, fusion=Fusion.INJECTIVE, resolve=_resolve_expand),
    "Tile": Operator(canonical=_to_expand),
    "Trilu": Operator(define=_triangle, resolve=_resolve_triangle),
}
