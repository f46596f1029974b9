"""① NonMaxSuppression: candidates by class and score, each kept unless a kept one overlaps it.

    place[k] = of the scores above the threshold, class by class
    at[k]    = where k comes in its class: as many as have a higher score, or as high a one before
    gone[k]  = any r in front of k, of its class:  not gone[r] and overlap of r and k > threshold
    y        = those that are not gone, the first ones of each class

`gone` is a scan: it reads elements of itself. Ties are in the order of boxes, as in ONNX Runtime.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import numpy as np

from autotune.graph.ir import Node, Shape
from autotune.graph.operators.definition import Operands, Operator, Scope, axes_of, inside, tensor
from autotune.graph.operators.selection import at_ranks, distinct_keys, ranks
from autotune.graph.operators.written_lengths import NONE, ONE, chosen, flat, scan, told
from autotune.graph.rewriter import Rewrite, Rewriter
from autotune.te.expr import (
    INDEX,
    Axis,
    Const,
    Expr,
    Reduce,
    Tensor,
    binary,
    both,
    cast,
    compare,
    f32,
    idx,
    maximum,
    minimum,
    select,
    sub,
)


def _suppression(rw: Rewriter) -> None:
    """NonMaxSuppression -> the above."""
    n_boxes, n_classes, most = rw.shape(0)[1], rw.shape(1)[1], rw.value(2)
    if not rw.input(2) or (most is not None and bool(np.all(most <= 0))):
        rw.fold(np.zeros((0, 3), np.int64))
        return
    scores, name = flat(rw, rw.input(1)), rw.node.outputs[0]
    if rw.input(4):
        flags = rw("Greater", scores, rw.input(4), shape=rw.types[scores].shape, dtype="bool")
    else:
        flags = rw.array(np.ones(rw.types[scores].shape, bool))
    places = chosen(rw, flags, f"{name}.candidates")
    shape = rw.types[places].shape
    whole: Mapping[str, Any] = {"shape": shape, "dtype": INDEX}
    group = rw("GroupOf", places, **whole, size=n_boxes)
    begins, ends = rw("RowBegin", group, **whole), rw("RowEnd", group, **whole)
    score = rw("Gather", scores, places, shape=shape, dtype="float32", axis=0)
    if math.prod(rw.shape(1)[:2]) == 1:
        at = ranks(rw, score, 0, largest=1)
    else:
        keys = distinct_keys(rw, score, 0, largest=1)
        at = rw("RankInRow", keys, begins, ends, **whole)
    order = at_ranks(rw, at, 0, shape)
    box = rw("BoxOf", places, order, **whole, size=n_boxes)
    sides: Mapping[str, Any] = {"n_classes": n_classes, "center": rw.attr("center_point_box", 0)}
    corners = rw("Corners", rw.input(0), group, box, shape=(4, *shape), dtype="float32", **sides)
    areas = rw("Areas", corners, shape=shape)
    limit = rw.input(3) or rw.array(np.zeros(1, np.float32))
    gone = rw("Suppressed", corners, areas, begins, limit, shape=shape, dtype="int32")
    kept = rw("KeptOf", gone, begins, **whole)
    flags = rw("TakenOf", gone, kept, rw.input(2), shape=shape, dtype="bool")
    rows = chosen(rw, flags, name)
    n = rw.types[rows].shape[0]
    told(rw, rw("SelectedOf", rows, group, box, shape=(n, 3), dtype=INDEX, n_classes=n_classes))


RULES: Mapping[str, Rewrite] = {"NonMaxSuppression": _suppression}


# --- definitions ---


def _number(operands: Operands, n: int) -> Expr:
    """The one element of an operand."""
    x = operands[n]
    return x[(idx(0),) * len(x.shape)] if isinstance(x, Tensor) else x  # type: ignore[return-value]


def _group(scope: Scope, node: Node, operands: Operands, shape: Shape) -> Tensor:
    """y[k] = the batch and class of place k: x[k] over `size`."""
    x, (k,) = tensor(operands, 0), axes_of(shape)
    return scope.compute("group", (k,), binary("quot", x[k], Const(node.attrs["size"], INDEX)))


def _box(scope: Scope, node: Node, operands: Operands, shape: Shape) -> Tensor:
    """y[k] = the box of place order[k]."""
    x, order, (k,) = tensor(operands, 0), tensor(operands, 1), axes_of(shape)
    place = x[inside(order[k], shape[0])]
    return scope.compute("box", (k,), binary("rem", place, Const(node.attrs["size"], INDEX)))


def _rank(scope: Scope, node: Node, operands: Operands, shape: Shape) -> Tensor:
    """y[k] = the place of k when each row is sorted, largest first; none is equal to another."""
    x, begins, ends = (tensor(operands, n) for n in range(3))
    (k,) = axes_of(shape)
    r = Axis("r", shape[0], ends[k] - begins[k])
    wins = compare("lt", x[k], x[begins[k] + r.var])
    rank = scope.compute("rank", (k,), Reduce("sum", select(wins, ONE, NONE), (r,)))
    return scope.compute("at", (k,), begins[k] + rank[k])


def _corners(scope: Scope, node: Node, operands: Operands, shape: Shape) -> Tensor:
    """y[d, k]: the lower of both coordinates, then the higher ones, of the box of candidate k."""
    boxes, group, box = (tensor(operands, n) for n in range(3))
    d, k = axes_of(shape)
    batch = binary("quot", group[k], Const(node.attrs["n_classes"], INDEX))
    at = inside(batch, boxes.shape[0]), inside(box[k], boxes.shape[1])
    b = [boxes[(*at, idx(n))] for n in range(4)]
    if node.attrs["center"]:
        halves = [b[n + 2] / f32(2) for n in range(2)]
        found = [b[0] - halves[0], b[1] - halves[1], b[0] + halves[0], b[1] + halves[1]]
    else:
        found = [minimum(b[0], b[2]), minimum(b[1], b[3])]
        found += [maximum(b[0], b[2]), maximum(b[1], b[3])]
    value = found[3]
    for n in (2, 1, 0):
        value = select(compare("eq", d.var, idx(n)), found[n], value)
    return scope.compute("corners", (d, k), value)


def _areas(scope: Scope, node: Node, operands: Operands, shape: Shape) -> Tensor:
    x, (k,) = tensor(operands, 0), axes_of(shape)
    sides = [x[idx(n + 2), k] - x[idx(n), k] for n in range(2)]
    return scope.compute("areas", (k,), sides[0] * sides[1])


def _row_begin(scope: Scope, node: Node, operands: Operands, shape: Shape) -> Tensor:
    """y[k] = the first place of the row of equal elements that k is in."""
    x, (k,) = tensor(operands, 0), axes_of(shape)

    def body(y: Tensor) -> Expr:
        before = maximum(sub(k.var, idx(1)), idx(0))
        goes_on = both(compare("lt", idx(0), k.var), compare("eq", x[before], x[k]))
        return select(goes_on, y[before], k.var)

    return scan(scope, "begins", (k,), INDEX, body)


def _row_end(scope: Scope, node: Node, operands: Operands, shape: Shape) -> Tensor:
    """y[k] = the place behind the row of equal elements that k is in: a scan from the last one."""
    x, (k,) = tensor(operands, 0), axes_of(shape)
    last = idx(shape[0] - 1)

    def body(y: Tensor) -> Expr:
        before = maximum(sub(k.var, idx(1)), idx(0))
        goes_on = compare("eq", x[last - before], x[last - k.var])
        return select(both(compare("lt", idx(0), k.var), goes_on), y[before], last - k.var + 1)

    ends = scan(scope, "ends", (k,), INDEX, body)
    return scope.compute("row_end", (k,), ends[last - k.var])


def _suppressed(scope: Scope, node: Node, operands: Operands, shape: Shape) -> Tensor:
    """y[k] = 1 where a kept one in front of it, from its begin on, overlaps it by more than it
    may."""
    corners, areas, begins = (tensor(operands, n) for n in range(3))
    (k,) = axes_of(shape)
    r = Axis("r", shape[0], k.var - begins[k])

    def body(y: Tensor) -> Expr:
        first = begins[k] + r.var
        sides = []
        for n in range(2):
            low = maximum(corners[idx(n), first], corners[idx(n), k])
            high = minimum(corners[idx(n + 2), first], corners[idx(n + 2), k])
            sides.append(high - low)
        shared = sides[0] * sides[1]
        union = areas[first] + areas[k] - shared
        counts = [compare("eq", y[first], Const(0, "int32"))]
        counts += [compare("gt", side, f32(0)) for side in sides]
        counts += [compare("gt", x, f32(0)) for x in (shared, areas[first], areas[k], union)]
        counts.append(compare("gt", shared / union, _number(operands, 3)))
        together = counts[0]
        for cond in counts[1:]:
            together = both(together, cond)
        return Reduce("bitor", select(together, Const(1, "int32"), Const(0, "int32")), (r,))

    return scan(scope, "gone", (k,), "int32", body)


def _kept(scope: Scope, node: Node, operands: Operands, shape: Shape) -> Tensor:
    """y[k] = how many from the begin of k to k are not gone."""
    gone, begins, (k,) = tensor(operands, 0), tensor(operands, 1), axes_of(shape)

    def body(y: Tensor) -> Expr:
        before = y[maximum(sub(k.var, idx(1)), idx(0))]
        own = select(compare("eq", gone[k], Const(0, "int32")), ONE, NONE)
        return select(compare("lt", begins[k], k.var), before, NONE) + own

    return scan(scope, "kept", (k,), INDEX, body)


def _taken(scope: Scope, node: Node, operands: Operands, shape: Shape) -> Tensor:
    """Whether k is not gone, and among the first ones of its class."""
    gone, kept, (k,) = tensor(operands, 0), tensor(operands, 1), axes_of(shape)
    is_first = compare("le", kept[k], cast(INDEX, _number(operands, 2)))
    return scope.compute("taken", (k,), both(compare("eq", gone[k], Const(0, "int32")), is_first))


def _selected(scope: Scope, node: Node, operands: Operands, shape: Shape) -> Tensor:
    """y[i] = batch, class and box of candidate rows[i]."""
    rows, group, box = (tensor(operands, n) for n in range(3))
    i, d = axes_of(shape)
    at = inside(rows[i], group.shape[0])
    n = Const(node.attrs["n_classes"], INDEX)
    value = select(compare("eq", d.var, idx(1)), binary("rem", group[at], n), box[at])
    value = select(compare("eq", d.var, idx(0)), binary("quot", group[at], n), value)
    return scope.compute("selected", (i, d), value)


OPERATORS: Mapping[str, Operator] = {
    "GroupOf": Operator(define=_group),
    "BoxOf": Operator(define=_box, roles=("x", "order")),
    "RankInRow": Operator(define=_rank, roles=("x", "begins", "ends")),
    "RowEnd": Operator(define=_row_end),
    "Corners": Operator(define=_corners, roles=("boxes", "group", "box")),
    "Areas": Operator(define=_areas),
    "RowBegin": Operator(define=_row_begin),
    "Suppressed": Operator(define=_suppressed, roles=("corners", "areas", "begins", "limit")),
    "KeptOf": Operator(define=_kept, roles=("x", "begins")),
    "TakenOf": Operator(define=_taken, roles=("x", "kept", "most")),
    "SelectedOf": Operator(define=_selected, roles=("x", "group", "box")),
}
