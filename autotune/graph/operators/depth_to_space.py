"""① Blocks of channels that become neighbours in space, and back.

DepthToSpace(x)   -> Interleave                     in ONNX's order of dimensions
Interleave(x)     -> Reshape, Transpose, Reshape    on the stored layout
SpaceToDepth(x)   -> Reshape, Transpose, Reshape    on the stored layout
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import replace

from autotune.graph.ir import Editor, Node, Shape
from autotune.graph.operators.definition import Layout, Operator


def _depth_to_space(editor: Editor, node: Node) -> None:
    """DepthToSpace -> Interleave."""
    rank = len(editor.types[node.output].shape)
    attrs = {
        "blocks": (node.attrs["blocksize"],) * (rank - 2),
        "groups": 1,
        "blocks_first": node.attrs.get("mode", "DCR") == "DCR",
    }
    editor.emit(replace(node, op="Interleave", attrs=attrs))


def _interleave(editor: Editor, node: Node) -> None:
    """(n, …h…, g·b·c) -> (n, …h·b…, g·c), blocks in front of the channels of a group or behind."""
    n, *size, channels = editor.types[node.inputs[0]].shape
    blocks, groups = tuple(node.attrs["blocks"]), node.attrs["groups"]
    rest = channels // (groups * math.prod(blocks))
    at = len(size) + 1  # of the groups
    first = node.attrs["blocks_first"]
    split = (n, *size, groups, *((*blocks, rest) if first else (rest, *blocks)))
    block_axes = range(at + 1 + (not first), at + 1 + (not first) + len(blocks))
    pairs = [a for pair in zip(range(1, at), block_axes, strict=True) for a in pair]
    _rearrange(editor, node, split, (0, *pairs, at, at + 1 + len(blocks) * first))


def _space_to_depth(editor: Editor, node: Node) -> None:
    """(n, …h·b…, c) -> (n, …h…, b·c)."""
    n, *size, channels = editor.types[node.inputs[0]].shape
    block = node.attrs["blocksize"]
    pairs = [d for h in size for d in (h // block, block)]
    last = 2 * len(size) + 1
    order = (0, *range(1, last, 2), *range(2, last, 2), last)
    _rearrange(editor, node, (n, *pairs, channels), order)


def _rearrange(editor: Editor, node: Node, split: Shape, perm: Shape) -> None:
    """Reshape to `split`, Transpose, Reshape to the shape of the node's output."""
    dtype = editor.types[node.output].dtype
    apart = editor.new(f"{node.output}.apart", split, dtype)
    moved = editor.new(f"{node.output}.moved", (split[p] for p in perm), dtype)
    editor.emit(Node(node.name, "Reshape", node.inputs[:1], (apart,)))
    editor.emit(Node(node.name, "Transpose", (apart,), (moved,), {"perm": perm}))
    editor.emit(Node(node.name, "Reshape", (moved,), node.outputs))


def _check_blocks(editor: Editor, node: Node) -> str:
    """Channels (DepthToSpace) or spatial extents (SpaceToDepth) are whole blocks."""
    shape, block = editor.types[node.inputs[0]].shape, node.attrs["blocksize"]
    parts = [shape[1]] if node.op == "DepthToSpace" else shape[2:]
    size = block ** len(shape[2:]) if node.op == "DepthToSpace" else block
    wrong = [n for n in parts if n % size]
    return f"{wrong[0]} elements in blocks of {size}" if wrong else ""


OPERATORS: Mapping[str, Operator] = {
    "DepthToSpace": Operator(canonical=_depth_to_space, check=_check_blocks),
    "Interleave": Operator(layout=Layout.SPATIAL, resolve=_interleave),
    "SpaceToDepth": Operator(layout=Layout.SPATIAL, resolve=_space_to_depth, check=_check_blocks),
}
