"""① Parts of a decoder that exporters write as many nodes, each of which would be a kernel.

x · cos + Concat(-b, a) · sin                  ->  Rotated(x, cos, sin)       a, b: halves of x
Concat(a · cos - b · sin, a · sin + b · cos)   ->  the same                   half as long tables
x / Sqrt(ReduceMean(x · x) + ε)                ->  DividedByRms(x)

Only models with a growing state have them: a step of one token is many small kernels.
"""

from __future__ import annotations

import numpy as np

from autotune.graph.ir import Array, Graph, Node
from autotune.graph.operators.decoders import DIVIDED_BY_RMS, ROTATED
from autotune.graph.passes.driver import rewrite
from autotune.graph.passes.simplify import IDENTITY
from autotune.graph.rewriter import Rewriter, Rule


def join_decoder(graph: Graph) -> Graph:
    """`graph` with operators of decoders in place of what they are written as.

    What all layers compute alike, such as masks and rows of tables, is computed once.
    """
    return rewrite(graph, IDENTITY, _ROTATION, _TABLES, _RMS, merges_all=True)


# --- rotation ---------------------------------------------------------------------------------


def _rotation(rw: Rewriter) -> None:
    """x · cos + Concat(-b, a) · sin -> Rotated(x, cos, sin)"""
    products = [rw.maker(name, "Mul") for name in rw.node.inputs]
    if None in products or rw.type.dtype != "float32":
        return
    for first, second in (products, products[::-1]):
        assert first is not None
        assert second is not None
        for turned, sin in (second.inputs, second.inputs[::-1]):
            x = _turned(rw, turned)
            if x and x in first.inputs:
                cos = next((n for n in first.inputs if n != x), x)
                return _as_rotated(rw, x, cos, sin)


def _turned(rw: Rewriter, name: str) -> str:
    """The tensor of whose halves a, b one is Concat(-b, a); "" for none."""
    joined = rw.maker(name, "Concat")
    if joined is None or len(joined.inputs) != 2 or not _is_last(rw, name, joined):
        return ""
    minus = rw.maker(joined.inputs[0], "Neg")
    return _whole(rw, joined.inputs[1], minus.inputs[0]) if minus else ""


def _tables(rw: Rewriter) -> None:
    """Concat(a · cos - b · sin, a · sin + b · cos) -> Rotated(x, cos, sin)"""
    if len(rw.node.inputs) != 2 or not _is_last(rw, rw.node.output, rw.node):
        return
    real, imaginary = (
        rw.maker(n, op) for n, op in zip(rw.node.inputs, ("Sub", "Add"), strict=True)
    )
    parts = [rw.maker(n, "Mul") for node in (real, imaginary) if node for n in node.inputs]
    if len(parts) != 4 or None in parts or rw.type.dtype != "float32":
        return
    (a, cos), (b, sin), *others = (part.inputs for part in parts if part)
    x = _whole(rw, a, b)
    if x and {frozenset(pair) for pair in others} == {frozenset((a, sin)), frozenset((b, cos))}:
        _as_rotated(rw, x, cos, sin)


def _as_rotated(rw: Rewriter, x: str, cos: str, sin: str) -> None:
    *lead, size = rw.types[x].shape
    if rw.type.shape != (*lead, size) or size % 2:
        return
    tables = []
    for name in (cos, sin):
        *rows, extent = rw.types[name].shape or (1,)
        if extent not in (size, size // 2) or len(rows) > len(lead):
            return
        tables.append(_reshaped(rw, name, *rows, 2 * extent // size, size // 2))
    turned = rw(ROTATED, _reshaped(rw, x, *lead, 2, size // 2), *tables)
    rw.result("Reshape", turned, rw.integers(*lead, size))


def _reshaped(rw: Rewriter, x: str, *shape: int) -> str:
    return rw("Reshape", x, rw.integers(*shape), shape=shape)


def _is_last(rw: Rewriter, name: str, joined: Node) -> bool:
    """Whether a Concat joins along the last dimension."""
    rank = len(rw.types[name].shape)
    return rank > 0 and joined.attrs.get("axis", 0) % rank == rank - 1


def _whole(rw: Rewriter, a: str, b: str) -> str:
    """The tensor of whose last dimension `a` is the first half and `b` the second; "" for none."""
    first, second = (rw.maker(n, "Split", "Slice") for n in (a, b))
    if first is None or second is None or first.inputs[0] != second.inputs[0]:
        return ""
    x = first.inputs[0]
    *lead, size = rw.types[x].shape
    if any(rw.types[n].shape != (*lead, size // 2) for n in (a, b)) or size % 2:
        return ""
    if first is second:
        is_halved = first.outputs == (a, b)
    else:
        is_halved = _start(rw, first) == 0 and _start(rw, second) == size // 2
    return x if is_halved else ""


def _start(rw: Rewriter, node: Node) -> int | None:
    """The first place of a Slice along one dimension, with a step of 1, if it is known."""
    values = [rw.constants.get(name) for name in node.inputs[1:]]
    if node.op != "Slice" or not values or values[0] is None or values[0].size != 1:
        return None
    is_plain = len(values) < 4 or (values[3] is not None and values[3].reshape(-1)[0] == 1)
    return int(values[0].reshape(-1)[0]) if is_plain else None


# --- normalisation ----------------------------------------------------------------------------


def _rms(rw: Rewriter) -> None:
    """x / Sqrt(ReduceMean(x · x) + ε) -> DividedByRms(x)"""
    is_quotient = rw.node.op == "Div"
    for x, factor in (rw.node.inputs, rw.node.inputs[::-1]):
        root = factor if is_quotient else _inverse(rw, factor)
        epsilon = _epsilon(rw, x, root)
        if epsilon is not None and rw.type.dtype == "float32":
            return rw.result(DIVIDED_BY_RMS, x, epsilon=epsilon)
        if is_quotient:
            return


def _inverse(rw: Rewriter, name: str) -> str:
    """The tensor whose reciprocal another is; "" for none."""
    maker = rw.maker(name, "Reciprocal", "Div")
    if maker is None or (maker.op == "Div" and not _is(rw.constants.get(maker.inputs[0]), 1.0)):
        return ""
    return maker.inputs[-1]


def _epsilon(rw: Rewriter, x: str, root: str) -> float | None:
    """ε where a tensor is the root of the mean of the squares of `x`, and ε."""
    maker = rw.maker(root, "Sqrt")
    total = rw.maker(maker.inputs[0], "Add") if maker else None
    if total is None:
        return None
    for name, added in (total.inputs, total.inputs[::-1]):
        mean, value = rw.maker(name, "ReduceMean"), rw.constants.get(added)
        if mean is not None and value is not None and value.size == 1:
            return float(value.reshape(-1)[0]) if _is_of_squares(rw, mean, x) else None
    return None


def _is_of_squares(rw: Rewriter, mean: Node, x: str) -> bool:
    """Whether a ReduceMean is that of the squares of `x` along its last dimension."""
    axes = rw.constants.get(mean.inputs[1]) if len(mean.inputs) > 1 else None
    axes = np.array(mean.attrs.get("axes", ())) if axes is None else axes
    is_row = axes.size == 1 and int(axes.reshape(-1)[0]) in (-1, len(rw.types[x].shape) - 1)
    square = rw.maker(mean.inputs[0], "Pow", "Mul")
    if square is None or not is_row or not mean.attrs.get("keepdims", 1):
        return False
    base, other = square.inputs
    return base == x and (other == x if square.op == "Mul" else _is(rw.constants.get(other), 2.0))


def _is(value: Array | None, number: float) -> bool:
    return value is not None and bool((value == number).all())


_ROTATION = Rule("rotation", _rotation, {"Add"})
_TABLES = Rule("rotation-of-halves", _tables, {"Concat"})
_RMS = Rule("divided-by-rms", _rms, {"Mul", "Div"})
