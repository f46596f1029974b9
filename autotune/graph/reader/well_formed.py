"""① What operators need to be well formed, before their shapes are inferred.

The `onnx` package checks most of it, but not that windows fit, and it reads outside of a shape
where an axis lies outside of it.
"""

from __future__ import annotations

from collections.abc import Mapping

from autotune.errors import ModelError
from autotune.graph.ir import Editor, Node, Shape

WINDOWED = ("Conv", "ConvTranspose", "MaxPool", "AveragePool", "LpPool")
_PADDING = ("NOTSET", "SAME_UPPER", "SAME_LOWER", "VALID")


_AXIS_BEYOND = {"Flatten": 1, "OneHot": 1, "ConcatFromSequence": 1}
"""Operators whose axis may be that behind the dimensions of their first input."""


def check_axis(editor: Editor, node: Node) -> None:
    """Raises ModelError where attribute `axis` names no dimension of the first input."""
    axis = node.attrs.get("axis")
    if axis is None or not node.inputs or node.inputs[0] not in editor.types:
        return
    rank = len(editor.types[node.inputs[0]].shape)
    most = rank + _AXIS_BEYOND.get(node.op, 0)
    is_single = isinstance(axis, int)
    if not is_single or not (-most <= axis < most or rank == 0 == axis):
        raise _wrong(node, f"axis {axis} of {rank} dimensions")


def check_window(editor: Editor, node: Node) -> Shape | None:
    """Raises ModelError where attributes do not fit to an input, or a window is larger than it.

    The shape of the result is left to others.
    """
    shape = editor.types[node.inputs[0]].shape
    n = len(shape) - 2
    kernel = _kernel(editor, node, n)
    ones: Shape = (1,) * n
    given = {"kernel_shape": kernel, "strides": ones, "dilations": ones, "pads": (0,) * 2 * n}
    given = {name: tuple(node.attrs.get(name, value)) for name, value in given.items()}
    if given["kernel_shape"] != kernel:
        raise _wrong(node, f"kernel_shape {given['kernel_shape']} for weights of {kernel}")
    for name, values in given.items():
        least = 0 if name == "pads" else 1
        if len(values) != n * (2 if name == "pads" else 1) or min(values, default=1) < least:
            raise _wrong(node, f"{name} {values} for {n} spatial dimensions")
    mode = node.attrs.get("auto_pad", "NOTSET")
    if mode not in _PADDING:
        raise _wrong(node, f"auto_pad '{mode}'")
    if node.op != "ConvTranspose" and not mode.startswith("SAME"):
        _check_reach(node, shape[2:], kernel, given, mode == "NOTSET")
    return None


def _kernel(editor: Editor, node: Node, n: int) -> Shape:
    """The extents of the window; those of the weights where there are any."""
    if not node.op.startswith("Conv"):
        kernel = tuple(node.attrs.get("kernel_shape", ()))
        rank = n + 2
    else:
        weights, channels = editor.types[node.inputs[1]].shape, editor.types[node.inputs[0]].shape
        kernel, rank = weights[2:], len(weights)
        _check_groups(node, channels, weights)
    if n < 1 or rank != n + 2 or len(kernel) != n:
        raise _wrong(node, f"a window of {len(kernel)} dimensions for {n} spatial dimensions")
    return kernel


def _check_groups(node: Node, shape: Shape, weights: Shape) -> None:
    groups = node.attrs.get("group", 1)
    if groups < 1 or len(shape) < 2 or len(weights) < 2:
        raise _wrong(node, f"{groups} groups, data {shape} and weights {weights}")
    fits = weights[1] * groups == shape[1] and weights[0] % groups == 0
    if node.op == "ConvTranspose":
        fits = weights[0] == shape[1] and shape[1] % groups == 0
    if not fits:
        raise _wrong(node, f"{groups} groups, {shape[1]} channels and weights {weights}")


def _check_reach(
    node: Node, size: Shape, kernel: Shape, given: Mapping[str, Shape], is_padded: bool
) -> None:
    pads = given["pads"] if is_padded else (0,) * 2 * len(size)
    for axis, (extent, k, d) in enumerate(zip(size, kernel, given["dilations"], strict=True)):
        padded, reach = extent + pads[axis] + pads[len(size) + axis], (k - 1) * d + 1
        beyond = given["strides"][axis] - 1 if node.attrs.get("ceil_mode", 0) else 0
        if reach > padded + beyond:
            raise _wrong(node, f"a window of {reach} over {padded} elements of axis {axis + 2}")


def _wrong(node: Node, reason: str) -> ModelError:
    return ModelError(
        f"operator '{node.op}' (node '{node.name}') is not well formed: {reason}",
        "check the shapes given with --shape, or export the model again",
    )
