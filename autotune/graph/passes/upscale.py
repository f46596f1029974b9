"""① Operators that enlarge, in terms of others that the rest knows.

    ConvTranspose(x, W, b)  -> Conv, Interleave, Slice      every phase of it is a convolution
    DepthToSpace(x)         -> Interleave
    Col2Im(x)               -> Interleave, or ConvTranspose where blocks overlap
    Interleave(x)           -> Reshape, Transpose, Reshape  blocks of channels become neighbours
    SpaceToDepth(x)         -> Reshape, Transpose, Reshape

The first three are rewritten in ONNX's order of dimensions, the others where channels are last.

A transposed convolution of stride s adds W[k] to y[s·i + k] for every x[i]. Of y[s·q + r] only the
taps k = s·t + r are part, so with T = ⌈K/s⌉ it is Σ x[q - t]·W[s·t + r] over t < T: an ordinary
convolution of T taps, reversed, with a set of output channels for every r.
"""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np

from autotune.graph.ir import Array, Editor, Node, Shape, float_array, unsupported
from autotune.graph.limits import check_constant

# --- channels in front ------------------------------------------------------------------------


def transposed_convolution(editor: Editor, node: Node) -> None:
    """ConvTranspose -> Conv, Interleave and, unless that is all of the result, Slice."""
    weight = editor.constants.get(node.inputs[1])
    if weight is None:
        raise unsupported(node, editor.graph, "its weights are computed at run time")
    shape, out = editor.types[node.inputs[0]].shape, editor.types[node.output].shape
    groups, size = node.attrs.get("group", 1), shape[2:]
    strides = tuple(node.attrs.get("strides", (1,) * len(size)))
    kernel = _with_holes(node, weight)
    begin = _begins(node, size, strides, kernel.shape[2:], out[2:])
    taps, pads, offset = [], [], []
    for h, s, k, b, o in zip(size, strides, kernel.shape[2:], begin, out[2:], strict=True):
        t = max(-(-k // s), -(-(b + o) // s) - h + 1)
        first, last = min(b // s, t - 1), (b + o - 1) // s
        taps.append(t)
        pads.append((t - 1 - first, max(0, last - h + 1)))
        offset.append(b - s * first)
    phased = (t * s for t, s in zip(taps, strides, strict=True))
    check_constant(node, 4 * math.prod(weight.shape[:2]) * math.prod(phased))
    inputs = [
        node.inputs[0],
        editor.constant(f"{node.inputs[1]}.phases", _phases(kernel, groups, taps, strides)),
    ]
    if len(node.inputs) > 2 and node.inputs[2]:
        inputs.append(_repeated_bias(editor, node, groups, math.prod(strides)))
    counts = [h + sum(p) - t + 1 for h, p, t in zip(size, pads, taps, strict=True)]
    phases = editor.new(f"{node.output}.phases", (shape[0], out[1] * math.prod(strides), *counts))
    attrs = {
        "group": groups,
        "kernel_shape": tuple(taps),
        "pads": (*(p for p, _ in pads), *(p for _, p in pads)),
    }
    editor.emit(Node(node.name, "Conv", tuple(inputs), (phases,), attrs))
    whole = (*out[:2], *(s * n for s, n in zip(strides, counts, strict=True)))
    name = node.output if whole == out else editor.new(f"{node.output}.whole", whole)
    attrs = {"blocks": strides, "groups": groups, "blocks_first": True}
    editor.emit(Node(node.name, "Interleave", (phases,), (name,), attrs))
    if whole != out:
        ends = [a + o for a, o in zip(offset, out[2:], strict=True)]
        bounds = (offset, ends, range(2, len(out)))
        made = [editor.constant(f"{node.output}.bounds", np.array(b, np.int64)) for b in bounds]
        editor.emit(Node(node.name, "Slice", (name, *made), node.outputs))


def depth_to_space(editor: Editor, node: Node) -> None:
    """DepthToSpace -> Interleave."""
    rank = len(editor.types[node.output].shape)
    attrs = {
        "blocks": (node.attrs["blocksize"],) * (rank - 2),
        "groups": 1,
        "blocks_first": node.attrs.get("mode", "DCR") == "DCR",
    }
    editor.emit(replace(node, op="Interleave", attrs=attrs))


def columns_to_image(editor: Editor, node: Node) -> None:
    """Col2Im -> Interleave; where blocks overlap or have holes, ConvTranspose with unit kernels."""
    n, rows, _ = editor.types[node.inputs[0]].shape
    shape = editor.types[node.output].shape
    known = [editor.constants.get(name) for name in node.inputs[1:]]
    if any(value is None for value in known):
        raise unsupported(node, editor.graph, "its shape is computed at run time")
    block = tuple(int(b) for b in known[1].reshape(-1)) if known[1] is not None else ()
    rank = len(block)
    strides, dilations = (node.attrs.get(a, (1,) * rank) for a in ("strides", "dilations"))
    pads = node.attrs.get("pads", (0,) * 2 * rank)
    counts = [
        (h + pads[a] + pads[rank + a] - dilations[a] * (block[a] - 1) - 1) // strides[a] + 1
        for a, h in enumerate(shape[2:])
    ]
    columns = editor.new(f"{node.output}.columns", (n, rows, *counts))
    editor.emit(Node(node.name, "Reshape", node.inputs[:1], (columns,)))
    whole = tuple(c * b for c, b in zip(counts, block, strict=True))
    if strides == block and whole == shape[2:] and not any(pads) and set(dilations) == {1}:
        attrs = {"blocks": block, "groups": 1, "blocks_first": False}
        editor.emit(Node(node.name, "Interleave", (columns,), node.outputs, attrs))
        return
    check_constant(node, 4 * shape[1] * math.prod(block) ** 2)
    units = np.eye(math.prod(block), dtype=np.float32).reshape(-1, 1, *block)
    kernel = editor.constant(f"{node.output}.units", np.tile(units, (shape[1], *(1,) * (rank + 1))))
    attrs = {"strides": strides, "dilations": dilations, "pads": pads, "group": shape[1]}
    overlapping = Node(node.name, "ConvTranspose", (columns, kernel), node.outputs, attrs)
    transposed_convolution(editor, overlapping)


def _with_holes(node: Node, weight: Array) -> Array:
    """The kernel (in, out/groups, …) with zeros between its taps."""
    dilations = node.attrs.get("dilations", (1,) * (weight.ndim - 2))
    taps = [(k - 1) * d + 1 for k, d in zip(weight.shape[2:], dilations, strict=True)]
    check_constant(node, 4 * math.prod(weight.shape[:2]) * math.prod(taps))
    out = np.zeros((*weight.shape[:2], *taps), weight.dtype)
    steps = tuple(slice(None, None, d) for d in (1, 1, *dilations))
    out[steps] = weight
    return out


def _begins(node: Node, size: Shape, strides: Shape, kernel: Shape, out: Shape) -> list[int]:
    """How much of the whole result is cut off in front; negative: how much lies before it."""
    mode = node.attrs.get("auto_pad", "NOTSET")
    if mode in ("NOTSET", "VALID") and "output_shape" not in node.attrs:
        return list(node.attrs.get("pads", (0,) * 2 * len(size)))[: len(size)]
    extra = node.attrs.get("output_padding", (0,) * len(size))
    whole = [(h - 1) * s + k + e for h, s, k, e in zip(size, strides, kernel, extra, strict=True)]
    cut = [n - o for n, o in zip(whole, out, strict=True)]
    if "output_shape" in node.attrs:  # what is asked for beyond the windows lies behind them
        cut = [max(0, n) for n in cut]
    return [n // 2 if mode == "SAME_UPPER" else n - n // 2 for n in cut]


def _phases(kernel: Array, groups: int, taps: list[int], strides: Shape) -> Array:
    """(in, out/groups, …) -> (groups · …phase… · out/groups, in/groups, …tap…), taps reversed."""
    n_in, n_out = kernel.shape[:2]
    missing = [t * s - k for t, s, k in zip(taps, strides, kernel.shape[2:], strict=True)]
    full = np.pad(kernel, [(0, 0), (0, 0), *((0, m) for m in missing)])
    pairs = [n for pair in zip(taps, strides, strict=True) for n in pair]
    split = full.reshape(groups, n_in // groups, n_out, *pairs)
    tap_axes = range(3, 3 + len(pairs), 2)
    split = np.flip(split, tuple(tap_axes))
    order = (0, *(a + 1 for a in tap_axes), 2, 1, *tap_axes)
    return float_array(split.transpose(order).reshape(-1, n_in // groups, *taps))


def _repeated_bias(editor: Editor, node: Node, groups: int, n_phases: int) -> str:
    bias = editor.constants.get(node.inputs[2])
    if bias is None:
        raise unsupported(node, editor.graph, "its bias is computed at run time")
    parts = np.repeat(bias.reshape(groups, 1, -1), n_phases, axis=1)
    return editor.constant(f"{node.inputs[2]}.phases", float_array(parts.reshape(-1)))


# --- channels last ----------------------------------------------------------------------------


def interleave(editor: Editor, node: Node) -> None:
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


def space_to_depth(editor: Editor, node: Node) -> None:
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
