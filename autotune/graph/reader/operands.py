"""① What operands of an operator have to fit to, where inference of the `onnx` package asks less.

It compares ranks, or nothing: a bias of five elements for two channels, an index beyond its table
and a Reshape to fewer elements pass, and would read or leave what nobody meant.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence

import numpy as np

from autotune.errors import ModelError
from autotune.graph.ir import Editor, Node, Shape


def check_operands(editor: Editor, node: Node) -> None:
    """Raises ModelError where operands of `node`, whose types are known, do not fit together."""
    check = _CHECKS.get(node.op)
    if check is not None and all(n in editor.types for n in (*node.inputs, *node.outputs) if n):
        reason = check(editor, node)
        if reason:
            raise ModelError(
                f"operator '{node.op}' (node '{node.name}') is not well formed: {reason}",
                "check the shapes given with --shape, or export the model again",
            )


def _shapes(editor: Editor, node: Node) -> list[Shape]:
    return [editor.types[n].shape if n else () for n in node.inputs]


def _told(shape: Sequence[int]) -> str:
    return "x".join(map(str, shape)) or "scalar"


def _reshape(editor: Editor, node: Node) -> str:
    before, after = editor.types[node.inputs[0]].shape, editor.types[node.output].shape
    if min(after, default=0) < 0 or math.prod(before) == math.prod(after):
        return ""
    return f"{_told(before)} has not as many elements as {_told(after)}"


def _bias(editor: Editor, node: Node) -> str:
    """A bias of a convolution has an element for every channel of the result."""
    shapes = _shapes(editor, node)
    channels = editor.types[node.output].shape[1]
    fits = len(shapes) < 3 or not node.inputs[2] or shapes[2] == (channels,)
    return "" if fits else f"a bias of {_told(shapes[2])} for {channels} channels"


def _per_channel(editor: Editor, node: Node) -> str:
    x, *rest = _shapes(editor, node)
    wrong = [s for n, s in zip(node.inputs[1:], rest, strict=True) if n and s != (x[1],)]
    return f"a parameter of {_told(wrong[0])} for {x[1]} channels" if wrong else ""


def _spreads(small: Shape, large: Shape) -> bool:
    """Whether one tensor repeats along the dimensions of another."""
    tail = large[len(large) - len(small) :]
    fits = (a in (1, b) for a, b in zip(small, tail, strict=False))
    return len(small) <= len(large) and all(fits)


def _of_rows(editor: Editor, node: Node) -> str:
    x, *rest = _shapes(editor, node)
    rows = x[node.attrs.get("axis", -1) % len(x) :]
    wrong = [s for n, s in zip(node.inputs[1:], rest, strict=True) if n and not _spreads(s, rows)]
    return f"a parameter of {_told(wrong[0])} for rows of {_told(rows)}" if wrong else ""


def _last(editor: Editor, node: Node) -> str:
    """The last operand of PRelu and Gemm repeats along the result, which it does not widen."""
    shapes, out = _shapes(editor, node), editor.types[node.output].shape
    least = {"PRelu": 2, "Gemm": 3}[node.op]
    fits = len(shapes) < least or _spreads(shapes[-1], out)
    return "" if fits else f"an operand of {_told(shapes[-1])} for a result of {_told(out)}"


def _axis(editor: Editor, node: Node) -> str:
    axis, rank = editor.constants.get(node.inputs[1]), len(_shapes(editor, node)[0])
    at = None if axis is None or axis.size != 1 else int(axis.reshape(-1)[0])
    return f"axis {at} of {rank} dimensions" if at is not None and not -rank <= at < rank else ""


def _indices(editor: Editor, node: Node) -> str:
    """Known indices lie inside of their table; others are moved there when the network runs."""
    index, shape = editor.constants.get(node.inputs[1]), _shapes(editor, node)[0]
    if index is None or not index.size:
        return ""
    if node.op.endswith("ND"):
        first = node.attrs.get("batch_dims", 0)
        extents = np.array(shape[first : first + index.shape[-1]])
    else:
        extents = np.array(shape[node.attrs.get("axis", 0)])
    outside = (index < -extents) | (index >= extents)
    return f"index {index[outside][0]} outside of {_told(shape)}" if outside.any() else ""


def _blocks(editor: Editor, node: Node) -> str:
    shape, block = _shapes(editor, node)[0], node.attrs["blocksize"]
    parts = [shape[1]] if node.op == "DepthToSpace" else shape[2:]
    size = block ** len(shape[2:]) if node.op == "DepthToSpace" else block
    wrong = [n for n in parts if n % size]
    return f"{wrong[0]} elements in blocks of {size}" if wrong else ""


def _size(editor: Editor, node: Node) -> str:
    size = node.attrs.get("size", 1)
    return "" if size > 0 else f"size {size}"


_CHECKS: Mapping[str, Callable[[Editor, Node], str]] = {
    "Reshape": _reshape,
    "Conv": _bias,
    "ConvTranspose": _bias,
    "InstanceNormalization": _per_channel,
    "GroupNormalization": _per_channel,
    "LayerNormalization": _of_rows,
    "PRelu": _last,
    "Gemm": _last,
    "CumSum": _axis,
    **dict.fromkeys(("Gather", "GatherElements", "GatherND"), _indices),
    **dict.fromkeys(("ScatterND", "ScatterElements"), _indices),
    "DepthToSpace": _blocks,
    "SpaceToDepth": _blocks,
    "LRN": _size,
}
