"""① Operators that move elements, carried out on arrays: on constants, and for shapes."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from autotune.graph.ir import Array, Node, Shape


def moved(node: Node, given: Sequence[Array], shape: Shape | None = None) -> Array | None:
    """The result of an operator that moves elements, for those of its operands; None for others.

    `shape`: that of the result, where operands do not tell it.
    """
    x, *known = given
    match node.op:
        case "Reshape" if shape is not None:
            return x.reshape(shape)
        case "Transpose":
            return x.transpose(node.attrs["perm"])
        case "Expand":
            wide = np.broadcast_shapes(x.shape, (*known[0],)) if shape is None else shape
            return np.broadcast_to(x, wide)
        case "Slice" if known:
            return _sliced(x, *(value.tolist() for value in known))
        case "Pad" if known and "mode" not in node.attrs:
            return _padded(x, known[0].tolist(), known[1] if known[1:] else 0)
        case "Concat":
            return np.concatenate(given, node.attrs["axis"])
        case _:
            return None


def _sliced(
    x: Array, starts: list[int], ends: list[int], axes: list[int], steps: Sequence[int] = ()
) -> Array:
    at = [slice(None)] * x.ndim
    for start, end, axis, step in zip(starts, ends, axes, steps or [1] * len(axes), strict=True):
        at[axis] = slice(start, None if step < 0 and end < -x.shape[axis] else end, step)
    return x[tuple(at)]


def _padded(x: Array, amounts: list[int], fill: Array | int) -> Array:
    """Negative amounts crop."""
    pairs = [*zip(amounts[: x.ndim], amounts[x.ndim :], strict=True)]
    at = [slice(max(0, -b), n + min(0, e)) for (b, e), n in zip(pairs, x.shape, strict=True)]
    widths = [(max(0, b), max(0, e)) for b, e in pairs]
    return np.pad(x[tuple(at)], widths, constant_values=fill)
