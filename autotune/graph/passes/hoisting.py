"""① Elementwise operators move in front of the Reshape or Transpose of their operand.

    MatMul → Reshape → Transpose → Mul(·, ½)       ->  MatMul → Mul(·, ½) → Reshape → Transpose
    MatMul → Reshape (1, m, n) → Add(·, residual)  ->  MatMul → Add(·, residual) → Reshape

    MatMul → Transpose → Cast(bfloat16)            ->  MatMul → Cast(bfloat16) → Transpose

There they fuse with the producer of the operand, or fold into its weights. Behind the layout of
memory only conversions to fewer bits move: fewer bytes are moved then.
"""

from __future__ import annotations

from collections.abc import Iterator
from math import prod

from autotune.dtypes import DTYPES
from autotune.graph.ir import Node, Shape
from autotune.graph.operators.definition import Trait, ViewKind
from autotune.graph.operators.table import REARRANGING, operator_of, operators_with, view_of
from autotune.graph.rewriter import Rewriter, Rule


def _hoist_elementwise(rw: Rewriter) -> None:
    """Move elementwise operators in front of the Reshape or Transpose of their operand.

    A Reshape costs nothing anywhere; a Transpose moves only with its single consumer.
    """
    _hoist(rw)


def _hoist_narrowing(rw: Rewriter) -> None:
    """Move conversions to fewer bits in front of the Reshape or Transpose of their operand."""
    source, result = DTYPES[rw.kind(0).dtype], DTYPES[rw.type.dtype]
    if result.bits < source.bits:
        _hoist(rw)


def _hoist(rw: Rewriter) -> None:
    mover = _mover(rw)
    if mover is None:
        return
    source = mover.inputs[0]
    shape, moved = rw.types[source].shape, rw.types[mover.output].shape
    operands = (
        source if name == mover.output else _in_shape(rw, name, shape, moved)
        for name in rw.node.inputs
    )
    inner = rw(rw.node.op, *operands, shape=shape, dtype=rw.type.dtype, **rw.node.attrs)
    rw.like(mover, inner)


def _mover(rw: Rewriter) -> Node | None:
    """The Reshape or Transpose of an operand that can rearrange the result instead."""
    tensors = [n for n in rw.node.inputs if n and not _is_scalar(rw, n)]
    shape = rw.type.shape
    if any(rw.types[n].shape == shape and _follows(rw, n) for n in tensors):
        return None  # it already follows its producer
    for name in dict.fromkeys(tensors):
        mover = rw.maker(name, *REARRANGING)
        if mover is None or rw.types[name].shape != shape or not _follows_computation(rw, mover):
            continue
        if not _keeps_places(rw, mover):
            continue
        others = [n for n in tensors if n != name]
        if not others and (view_of(mover) is ViewKind.WHOLE or rw.private(name) is not None):
            return mover
        source = rw.types[mover.inputs[0]].shape
        if view_of(mover) is ViewKind.WHOLE and all(_fits(rw, n, source, shape) for n in others):
            return mover
    return None


def _keeps_places(rw: Rewriter, mover: Node) -> bool:
    """Whether elements may move behind the node."""
    if Trait.PLACED not in operator_of(rw.node.op).traits:
        return True
    lasts = {rw.types[name].shape[-1:] for name in (mover.inputs[0], mover.output)}
    return view_of(mover) is ViewKind.WHOLE and len(lasts) == 1


def _follows(rw: Rewriter, name: str) -> bool:
    """Whether a tensor of one reader is the result of a computation that this can fuse with."""
    maker = _made_for_one(rw, name)
    if maker is None or maker.op in REARRANGING:
        return False
    return Trait.SELECTS not in operator_of(maker.op).traits


def _made_for_one(rw: Rewriter, name: str, *ops: str) -> Node | None:
    """The maker of a tensor that had one reader, however many operators moved in front of it."""
    is_shared = len(rw.readers(name)) > 1 or name in rw.editor.graph.outputs
    return None if is_shared else rw.maker(name, *ops)


def _follows_computation(rw: Rewriter, mover: Node) -> bool:
    """Whether its source, through single-consumer movers, is the output of a computation."""
    source = mover.inputs[0]
    while (before := _made_for_one(rw, source, *REARRANGING)) is not None:
        source = before.inputs[0]
    return _follows(rw, source)


def _fits(rw: Rewriter, name: str, source: Shape, shape: Shape) -> bool:
    """Whether an operand that broadcasts to `shape` also broadcasts to `source`."""
    if _without_leading_ones(source) == _without_leading_ones(shape):
        return True
    mover = rw.maker(name, "Reshape")
    is_moved = mover is not None and rw.types[name].shape == shape
    if is_moved and mover is not None and rw.types[mover.inputs[0]].shape == source:
        return True
    return broadcast_in(rw.types[name].shape, shape, source) is not None


def broadcast_in(own: Shape, shape: Shape, source: Shape) -> Shape | None:
    """`own`, which broadcasts to `shape`, as it broadcasts to `source` of as many elements.

    None where it repeats along a part of the dimensions that a Reshape joins or splits.
    """
    own = (1,) * (len(shape) - len(own)) + own
    found: list[int] = []
    for a, b in runs(shape, source):
        part = own[a]
        if all(n == 1 for n in part):
            found += [1] * len(source[b])
        elif part == shape[a]:
            found += source[b]
        else:
            return None
    return tuple(found)


def runs(a: Shape, b: Shape) -> Iterator[tuple[slice, slice]]:
    """The shortest runs of dimensions of two shapes that have as many elements each."""
    m = n = 0
    while m < len(a) or n < len(b):
        begin = m, n
        m, n = min(m + 1, len(a)), min(n + 1, len(b))
        while (ours := prod(a[begin[0] : m])) != (theirs := prod(b[begin[1] : n])):
            if ours < theirs:
                m += 1
            else:
                n += 1
        yield slice(begin[0], m), slice(begin[1], n)


def _in_shape(rw: Rewriter, name: str, shape: Shape, moved: Shape) -> str:
    """An operand for a node whose shape changes from `moved` to `shape`."""
    own = rw.types[name].shape if name else ()
    if own != moved:
        split = broadcast_in(own, moved, shape) if own else None
        is_same = _without_leading_ones(shape) == _without_leading_ones(moved)
        if split is None or is_same:
            if len(own) <= len(shape):
                return name
            split = own[len(own) - len(shape) :]
        shape = split
    shape = () if _is_scalar(rw, name) else shape
    if name in rw.constants:
        return rw.array(rw.constants[name].reshape(shape))
    return rw("Reshape", name, shape=shape)


def _is_scalar(rw: Rewriter, name: str) -> bool:
    return all(n == 1 for n in rw.types[name].shape)


def _without_leading_ones(shape: Shape) -> Shape:
    """A shape without leading ones."""
    return next((shape[n:] for n, extent in enumerate(shape) if extent != 1), ())


HOIST_ELEMENTWISE = Rule(
    "hoist-elementwise",
    _hoist_elementwise,
    operators_with(lambda operator: operator.is_elementwise),
)
HOIST_NARROWING = Rule("hoist-narrowing", _hoist_narrowing, {"Cast"})
