"""① Blocks of channels that become neighbours in space, and back.

DepthToSpace(x)   -> Interleave                     in ONNX's order of dimensions
Interleave(x)     -> Reshape, Transpose, Reshape    on the stored layout
SpaceToDepth(x)   -> Reshape, Transpose, Reshape    on the stored layout
"""

from __future__ import annotations

import math
from collections.abc import Mapping

from autotune.graph.ir import Shape
from autotune.graph.operators.definition import Layout, Operator, typed
from autotune.graph.rewriter import Rewriter

_MANY_CHANNELS = 16
"""Channels that fill a line of the cache: more are copied as well one block at a time."""


def _depth_to_space(rw: Rewriter) -> None:
    """DepthToSpace -> Interleave."""
    blocks = (rw.attr("blocksize"),) * (len(rw.type.shape) - 2)
    is_first = rw.attr("mode", "DCR") == "DCR"
    rw.result("Interleave", rw.input(0), blocks=blocks, groups=1, blocks_first=is_first)


def _interleave(rw: Rewriter) -> None:
    """(n, …h…, g·b·c) -> (n, …h·b…, g·c), blocks in front of the channels of a group or behind."""
    n, *size, channels = rw.kind(0).shape
    blocks, groups, first = tuple(rw.attr("blocks")), rw.attr("groups"), rw.attr("blocks_first")
    rest = channels // (groups * math.prod(blocks))
    at = len(size) + 1  # of the groups
    apart = (groups,) if groups > 1 else ()
    split = (n, *size, *apart, *((*blocks, rest) if first else (rest, *blocks)))
    begin = at + len(apart)
    block_axes = range(begin + (not first), begin + (not first) + len(blocks))
    pairs = [a for pair in zip(range(1, at), block_axes, strict=True) for a in pair]
    outer = range(at, begin)
    _rearrange(rw, split, (0, *pairs, *outer, begin + len(blocks) * first))


def _space_to_depth(rw: Rewriter) -> None:
    """(n, …h·b…, c) -> (n, …h…, b·c)."""
    n, *size, channels = rw.kind(0).shape
    block = rw.attr("blocksize")
    pairs = [d for h in size for d in (h // block, block)]
    last = 2 * len(size) + 1
    order = (0, *range(1, last, 2), *range(2, last, 2), last)
    _rearrange(rw, (n, *pairs, channels), order)


def _rearrange(rw: Rewriter, split: Shape, perm: Shape) -> None:
    """Reshape to `split`, Transpose, Reshape to the shape of the node's output.

    Dimensions that stay the innermost ones are one, so that few channels are copied with a block;
    not before a Concat: what is written into a part of its rows has its channels apart.
    """
    is_part = any(reader.op == "Concat" for reader in rw.readers(rw.node.output))
    few = not is_part and split[-1] < _MANY_CHANNELS
    while few and perm[-2:] == (len(split) - 2, len(split) - 1):
        split, perm = (*split[:-2], split[-2] * split[-1]), perm[:-1]
    apart = rw("Reshape", rw.input(0), shape=split)
    rw.result("Reshape", rw("Transpose", apart, perm=perm))


def _check_channels(rw: Rewriter) -> str:
    """Channels are whole blocks."""
    _, channels, *space = rw.kind(0).shape
    return _fault((channels,), rw.node.attrs["blocksize"] ** len(space))


def _check_space(rw: Rewriter) -> str:
    """Spatial extents are whole blocks."""
    return _fault(rw.kind(0).shape[2:], rw.node.attrs["blocksize"])


def _fault(parts: Shape, size: int) -> str:
    wrong = [n for n in parts if n % size]
    return f"{wrong[0]} elements in blocks of {size}" if wrong else ""


OPERATORS: Mapping[str, Operator] = {
    "DepthToSpace": Operator(canonical=_depth_to_space, typing=typed(_check_channels)),
    "Interleave": Operator(layout=Layout.SPATIAL, resolve=_interleave),
    "SpaceToDepth": Operator(
        layout=Layout.SPATIAL, resolve=_space_to_depth, typing=typed(_check_space)
    ),
}
