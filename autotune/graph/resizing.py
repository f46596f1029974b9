"""① Resize: nearest neighbours by whole factors stay, all else is a known matrix for every axis.

    Resize(x) -> Interpolate(x, first, weight, …)   where few neighbours make a result
               | MatMul(W, x)                       along other axes;  W[out, in]

A result lies at some coordinate of the source and takes the sources around it, weighed by a kernel:
a triangle ('linear') or Keys' cubic. Antialiasing widens the kernel when an axis shrinks. Formulas:
ONNX operator reference. Runs on the layout that is stored.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import replace

import numpy as np

from autotune.graph.ir import Array, Editor, Node, Shape, float_array, to_last, unsupported

_RADIUS = {"linear": 1, "cubic": 2}
_MOST_TAPS = 64
"""Neighbours of all axes together that are written out one by one."""
_DENSE = 80
"""How many times more multiplications a matrix product may do, if rows are single elements: it
does them in vectors, while neighbours are then found element by element."""


def resize(editor: Editor, node: Node) -> None:
    """Rewrite one Resize; see the module."""
    shape, out = editor.types[node.inputs[0]].shape, editor.types[node.output].shape
    matrices = {a: _interpolation(editor, node, a) for a in range(len(out)) if shape[a] != out[a]}
    if all(_repeats(m) for m in matrices.values()):
        editor.emit(replace(node, inputs=node.inputs[:1], attrs={}))
        return
    source = node.inputs[0]
    sparse = _sparse_axes(matrices, out, editor.types[source].dtype)
    for axis, matrix in matrices.items():
        if axis in sparse:
            continue
        before, after = math.prod(shape[:axis]), math.prod(shape[axis + 1 :])
        flat = editor.new(f"{node.output}.flat", (before, shape[axis], after))
        made = editor.new(f"{node.output}.axis", (before, out[axis], after))
        shape = (*shape[:axis], out[axis], *shape[axis + 1 :])
        target = node.output if shape == out else editor.new(f"{node.output}.partly", shape)
        weights = editor.constant(f"{node.output}.weights", float_array(matrix))
        editor.emit(Node(node.name, "Reshape", (source,), (flat,)))
        editor.emit(Node(node.name, "MatMul", (weights, flat), (made,)))
        editor.emit(Node(node.name, "Reshape", (made,), (target,)))
        source = target
    if sparse:
        tables = [name for axis in sparse for name in _tables(editor, node, matrices[axis])]
        attrs = {"axes": tuple(sparse)}
        editor.emit(Node(node.name, "Interpolate", (source, *tables), node.outputs, attrs))


def _sparse_axes(matrices: Mapping[int, Array], out: Shape, dtype: str) -> list[int]:
    """The axes along which a few neighbours are added up faster than a whole matrix multiplies.

    Where no sum is needed, every type of elements will do.
    """
    found: list[int] = []
    left = _MOST_TAPS
    for axis, matrix in matrices.items():
        _, n = _taps(matrix)
        is_faster = matrix.shape[1] * math.prod(out[axis + 1 :]) >= _DENSE * n
        if n <= left and (is_faster if dtype == "float32" else n == 1):
            found.append(axis)
            left //= n
    return found


def _tables(editor: Editor, node: Node, matrix: Array) -> tuple[str, str]:
    """Names of two constants: the first source of every result, and what it and those behind it
    are worth; none where that is always one source.
    """
    first, n = _taps(matrix)
    begin = editor.constant(f"{node.output}.first", first)
    if n == 1:
        return begin, ""
    weights = np.take_along_axis(matrix, first[:, None] + np.arange(n), 1)
    return begin, editor.constant(f"{node.output}.weights", float_array(weights))


def _taps(matrix: Array) -> tuple[Array, int]:
    """The first of the neighbours that make each result, [out], and how many they are at most."""
    size = matrix.shape[1]
    used = matrix != 0
    first, last = used.argmax(1), size - 1 - used[:, ::-1].argmax(1)
    n = int((last - first).max()) + 1
    return np.minimum(first, size - n), n


def _repeats(matrix: Array) -> bool:
    """Whether every element is taken equally often, one after the other."""
    out, size = matrix.shape
    whole = out % size == 0
    return whole and np.array_equal(matrix, np.repeat(np.eye(size), out // size, axis=0))


def _interpolation(editor: Editor, node: Node, axis: int) -> Array:
    """What every element of the source along `axis` is worth for every result: [out, size]."""
    size, out = editor.types[node.inputs[0]].shape[axis], editor.types[node.output].shape[axis]
    scale = _scale(editor, node, axis)
    at = _coordinates(editor, node, size, out, scale)
    weights: Array = np.zeros((out, size))
    rows = np.arange(out)
    mode = node.attrs.get("mode", "nearest")
    if mode == "nearest":
        weights[rows, np.clip(_nearest(node, at), 0, size - 1)] = 1.0
        return weights
    smooth, at = bool(node.attrs.get("antialias", 0)), at.astype(np.float64)
    narrow = min(1.0, float(scale)) if smooth else 1.0
    reach = math.ceil(_RADIUS[mode] / narrow)
    for step in range(1 - reach, reach + 1):
        index = np.floor(at).astype(np.int64) + step
        share = _kernel(node, np.abs(index - at) * narrow)
        if node.attrs.get("exclude_outside", 0) and (smooth or mode == "cubic"):
            share = np.where((index >= 0) & (index < size), share, 0.0)
        np.add.at(weights, (rows, np.clip(index, 0, size - 1)), share)
    weights /= weights.sum(1, keepdims=True)
    return weights


def _kernel(node: Node, distance: Array) -> Array:
    """What a source at some distance is worth, before the sum is brought to 1."""
    if node.attrs["mode"] == "linear":
        return (1.0 - distance).clip(min=0.0)
    a = node.attrs.get("cubic_coeff_a", -0.75)
    near = ((a + 2) * distance - (a + 3)) * distance**2 + 1
    far = ((a * distance - 5 * a) * distance + 8 * a) * distance - 4 * a
    share: Array = np.where(distance <= 1, near, np.where(distance < 2, far, 0.0))
    return share


def _scale(editor: Editor, node: Node, axis: int) -> np.float32:
    """The factor of an axis: given, or that of the sizes, for all axes alike where asked for."""
    shape, out = editor.types[node.inputs[0]].shape, editor.types[node.output].shape
    rank, axis = len(shape), to_last(len(shape))[axis]
    names = (*node.inputs, "", "", "")
    sizes = {to_last(rank)[n]: pair for n, pair in enumerate(zip(shape, out, strict=True))}
    axes = [a % rank for a in node.attrs.get("axes", range(rank))]
    given, asked = (editor.constants.get(name) for name in names[2:4])
    if given is not None and given.size and axis in axes:
        return np.float32(given[axes.index(axis)])
    policy = node.attrs.get("keep_aspect_ratio_policy", "stretch")
    if asked is not None and asked.size and policy != "stretch":
        ratios = [n / sizes[a][0] for n, a in zip(asked.tolist(), axes, strict=True)]
        return np.float32(min(ratios) if policy == "not_larger" else max(ratios))
    return np.float32(sizes[axis][1] / sizes[axis][0])


def _coordinates(editor: Editor, node: Node, size: int, out: int, scale: np.float32) -> Array:
    """Where every result lies in the source, in elements; in float32, as ties depend on that."""
    at: Array = np.arange(out, dtype=np.float32)
    half = np.float32(0.5)
    match node.attrs.get("coordinate_transformation_mode", "half_pixel"):
        case "align_corners":
            return at * np.float32((size - 1) / max(out - 1, 1))
        case "asymmetric":
            return at / scale
        case "half_pixel":
            return (at + half) / scale - half
        case "half_pixel_symmetric":
            centre = np.float32(size / 2 * (1 - out / (float(scale) * size)))
            return centre + (at + half) / scale - half
        case "pytorch_half_pixel":
            return (at + half) / scale - half if out > 1 else at
        case mode:
            raise unsupported(node, editor.graph, f"coordinates '{mode}'")


def _nearest(node: Node, at: Array) -> Array:
    """Nearest whole coordinates."""
    match node.attrs.get("nearest_mode", "round_prefer_floor"):
        case "floor":
            picked = np.floor(at)
        case "ceil":
            picked = np.ceil(at)
        case "round_prefer_ceil":
            picked = np.floor(at + 0.5)
        case _:
            picked = np.ceil(at - 0.5)
    return picked.astype(np.int64)
