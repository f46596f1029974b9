"""① Elementwise operators move in front of the Interleave of their operand, and of what it joins.

    Mul(Slice(Interleave(x)), s)          ->  Slice(Interleave(Mul(x, s of every phase)))
    Relu(Interleave(Concat(Conv, Conv)))  ->  Interleave(Concat(Relu(Conv), Relu(Conv)))

There they fuse with the convolutions, or fold into their weights.
"""

from __future__ import annotations

from itertools import accumulate
from math import prod

import numpy as np

from autotune.graph.ir import Array, Node
from autotune.graph.operators.definition import Trait
from autotune.graph.operators.table import operator_of, operators_with
from autotune.graph.passes.fold_scales import channel_vector
from autotune.graph.rewriter import Rewriter, Rule


def _hoist(rw: Rewriter) -> None:
    """Move elementwise operators in front of the Interleave of phases or blocks."""
    data = [n for n in rw.node.inputs if n and n not in rw.constants]
    if len(data) != 1 or Trait.PLACED in operator_of(rw.node.op).traits:
        return
    mover = rw.private(data[0], "Interleave", "Slice", "Concat")
    if mover is None or len(rw.type.shape) < 3 or rw.types[data[0]].shape != rw.type.shape:
        return
    vectors = _per_channel(rw)
    if vectors is None:
        return
    match mover.op:
        case "Interleave":
            _before_interleave(rw, mover, vectors)
        case "Slice" if _is_cut(rw, mover):
            rw.like(mover, _applied(rw, mover.inputs[0], vectors), *mover.inputs[1:])
        case "Concat" if _is_joined(rw, mover):
            _before_concat(rw, mover, vectors)


def _per_channel(rw: Rewriter) -> dict[str, Array] | None:
    """The constant operands as vectors over the channels, or of one element; else None."""
    found: dict[str, Array] = {}
    for name in rw.node.inputs:
        if name in rw.constants:
            vector = channel_vector(rw.constants[name], rw.type.shape, 1)
            if vector is None:
                return None
            found[name] = vector
    return found


def _is_cut(rw: Rewriter, mover: Node) -> bool:
    """Whether a Slice takes all channels of an Interleave that nothing else reads."""
    source = mover.inputs[0]
    same = rw.types[source].shape[:2] == rw.type.shape[:2]
    return same and rw.private(source, "Interleave") is not None


def _is_joined(rw: Rewriter, mover: Node) -> bool:
    """Whether a Concat joins channels of convolutions, to be interleaved."""
    readers = rw.readers(rw.node.output)
    while len(readers) == 1 and operator_of(readers[0].op).is_elementwise:
        readers = rw.readers(readers[0].output)
    is_read = len(readers) == 1 and readers[0].op == "Interleave"
    is_own = all(rw.private(name) is not None for name in mover.inputs)
    return is_read and is_own and mover.attrs.get("axis") == 1


def _before_interleave(rw: Rewriter, mover: Node, vectors: dict[str, Array]) -> None:
    n_blocks, groups = prod(mover.attrs["blocks"]), mover.attrs["groups"]
    if groups != 1 and any(v.size > 1 for v in vectors.values()):
        return
    spread = np.tile if mover.attrs["blocks_first"] else np.repeat
    wide = {k: spread(v, n_blocks) if v.size > 1 else v for k, v in vectors.items()}
    rw.like(mover, _applied(rw, mover.inputs[0], wide))


def _before_concat(rw: Rewriter, mover: Node, vectors: dict[str, Array]) -> None:
    counts = [rw.types[name].shape[1] for name in mover.inputs]
    begins = [0, *accumulate(counts)]
    parts = []
    for name, begin, n in zip(mover.inputs, begins, counts, strict=False):
        own = {k: v[begin : begin + n] if v.size > 1 else v for k, v in vectors.items()}
        parts.append(_applied(rw, name, own))
    rw.like(mover, *parts)


def _applied(rw: Rewriter, name: str, vectors: dict[str, Array]) -> str:
    """The operator on another tensor, with these constants along its channels."""
    shape = rw.types[name].shape
    ones = (1,) * (len(shape) - 2)
    operands = [
        name if n and n not in vectors else n and rw.array(_shaped(vectors[n], ones))
        for n in rw.node.inputs
    ]
    return rw(rw.node.op, *operands, shape=shape, dtype=rw.type.dtype, **rw.node.attrs)


def _shaped(vector: Array, ones: tuple[int, ...]) -> Array:
    """A vector over the dimension of channels, one element as a number."""
    return vector.reshape((vector.size, *ones)) if vector.size > 1 else vector.reshape(())


HOIST_PHASES = Rule(
    "hoist-phases", _hoist, operators_with(lambda operator: operator.is_elementwise)
)
