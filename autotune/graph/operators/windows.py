"""① Sliding windows over the spatial dimensions, and their padding.

Padding is a computation of its own, so that the scheduler may inline it, compute it per tile, or
once.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import reduce
from typing import Any

import numpy as np

from autotune.dtypes import DTYPES
from autotune.graph.ir import Node, Shape
from autotune.graph.operators.definition import Scope, axes_of
from autotune.graph.rewriter import Rewriter
from autotune.te.expr import (
    Axis,
    Const,
    Expr,
    Tensor,
    both,
    select,
    substitute,
)

OPEN_ENDS = "open_ends"
"""Attribute of a node whose spatial dimensions follow a number: of which the window may reach in
front of the input, and of which behind it, at some sizes. There conditions are told at all."""


def open_ends_of(node: Node) -> dict[str, Any]:
    """The attribute of a node that says where it is open, if it has it."""
    return {OPEN_ENDS: node.attrs[OPEN_ENDS]} if OPEN_ENDS in node.attrs else {}


class Window:
    """A sliding window over the spatial dimensions: kernel, strides, dilations, padding.

    `begin` is the padding before each dimension; that after it follows from the output's extent.
    """

    def __init__(self, node: Node, kernel: Shape, size: Shape, out: Shape) -> None:
        n = len(kernel)
        self.kernel, self.size, self.out = kernel, size, out
        self.strides = tuple(node.attrs.get("strides", (1,) * n))
        self.dilations = tuple(node.attrs.get("dilations", (1,) * n))
        pads = tuple(node.attrs.get("pads", (0,) * 2 * n))
        self.begin, self.end = pads[:n], pads[n:]
        ends = tuple(node.attrs.get(OPEN_ENDS, (False,) * 2 * n))
        self.open = list(zip(ends[:n], ends[n:], strict=True))
        mode = node.attrs.get("auto_pad", "NOTSET")
        if mode in ("SAME_UPPER", "SAME_LOWER", "VALID"):
            total = [max(0, r - s) for r, s in zip(self.reach, size, strict=True)]
            total = [0] * n if mode == "VALID" else total
            self.begin = tuple(t // 2 if mode == "SAME_UPPER" else t - t // 2 for t in total)
            self.end = tuple(t - b for t, b in zip(total, self.begin, strict=True))

    @property
    def reach(self) -> Shape:
        """Extent of the padded input that the outputs touch."""
        return tuple(
            (o - 1) * s + (k - 1) * d + 1
            for o, s, k, d in zip(self.out, self.strides, self.kernel, self.dilations, strict=True)
        )

    def live(self) -> tuple[tuple[range, ...], dict[str, object]]:
        """The taps of every dimension that read the input at all, and the window's attributes then.

        All taps of a dimension where none reads it, or where the first one left would begin inside
        the input.
        """
        kept, pads = [], []
        window = zip(self.out, self.strides, self.kernel, self.dilations, strict=True)
        for (o, s, k, d), b, e, h in zip(window, self.begin, self.end, self.size, strict=True):
            at = np.arange(k) * d - b  # of the first result; s further for each of the next
            first_met, last_met = np.maximum(0, -(at // s)), np.minimum(o - 1, (h - 1 - at) // s)
            met = np.flatnonzero(first_met <= last_met)
            first, last = (int(met[0]), int(met[-1])) if met.size else (0, k - 1)
            cut = first * d, (k - 1 - last) * d
            fits = cut[0] <= b
            kept.append(range(first, last + 1) if fits else range(k))
            pads.append((b - cut[0], max(0, e - cut[1])) if fits else (b, e))
        ends = (*(b for b, _ in pads), *(e for _, e in pads))
        attrs: dict[str, object] = {"pads": ends, "auto_pad": "NOTSET"}
        return tuple(kept), {**attrs, "kernel_shape": tuple(map(len, kept))}

    @property
    def taps(self) -> tuple[Axis, ...]:
        """Reduction axes over the kernel."""
        names = _names(_TAPS, len(self.kernel), "k")
        return tuple(Axis(name, extent) for name, extent in zip(names, self.kernel, strict=True))

    def at(self, outs: Sequence[Axis], taps: Sequence[Axis]) -> list[Expr]:
        """Index into the padded input of each spatial dimension."""
        parts = zip(outs, self.strides, taps, self.dilations, strict=True)
        return [o * s + t * d for o, s, t, d in parts]

    def pad(self, scope: Scope, x: Tensor, value: float) -> Tensor:
        """x with `value` around the spatial dimensions, only as far as it is read."""
        n = len(self.kernel)
        parts = list(zip(self.begin, self.reach, self.size, strict=True))
        behind = [r - b - s for b, r, s in parts]
        tests = [
            (before or b > 0, after or e > 0)
            for b, e, (before, after) in zip(self.begin, behind, self.open, strict=True)
        ]
        if not any(map(any, tests)):
            return x
        rest = len(x.shape) - n - 1
        begin, end = ((0, *ends, *(0,) * rest) for ends in (self.begin, behind))
        none = (False, False)
        return padded(scope, x, begin, end, value, (none, *tests, *(none,) * rest))


def space_axes(extents: Shape) -> tuple[Axis, ...]:
    """The spatial axes of a result."""
    names = _names(_SPACE, len(extents), "d")
    return tuple(Axis(a, e) for a, e in zip(names, extents, strict=True))


_TAPS = {1: ("kw",), 2: ("kh", "kw"), 3: ("kd", "kh", "kw")}
_SPACE = {1: ("w",), 2: ("h", "w"), 3: ("d", "h", "w")}


def _names(usual: Mapping[int, tuple[str, ...]], n: int, stem: str) -> tuple[str, ...]:
    """Names of `n` axes: the usual ones, or numbered."""
    return usual.get(n) or tuple(f"{stem}{i}" for i in range(n))


def padded(
    scope: Scope,
    x: Tensor,
    begin: Sequence[int],
    end: Sequence[int],
    value: float,
    ends: Sequence[tuple[bool, bool]] = (),
) -> Tensor:
    """pad[i…] = x[i - begin…] where that lies inside, else `value`; negative amounts crop.

    `ends`: whether it may lie in front of a dimension, and behind it; by default
    where an amount is more than 0.
    """
    ends = ends or [(b > 0, e > 0) for b, e in zip(begin, end, strict=True)]
    shape = [b + n + e for b, n, e in zip(begin, x.shape, end, strict=True)]
    axes = axes_of(shape)
    tests: list[Expr] = []
    for a, b, n, (before, after) in zip(axes, begin, x.shape, ends, strict=True):
        tests += [a >= b] if before else []
        tests += [a < b + n] if after else []
    body = _through(scope, x, [a - b for a, b in zip(axes, begin, strict=True)])
    if tests:
        outside = Const(DTYPES[x.dtype].literal(value), x.dtype)
        body = select(reduce(both, tests), body, outside)
    return scope.compute("pad", axes, body)


def _through(scope: Scope, x: Tensor, index: Sequence[Expr]) -> Expr:
    """x[index]; where x is a Transpose of another tensor, that tensor is read directly."""
    copied = scope.take_copy(x)
    if copied is None:
        return x[tuple(index)]
    return substitute(copied.body, {a.name: i for a, i in zip(copied.axes, index, strict=True)})


# --- attributes -------------------------------------------------------------------------------

_PADDING = ("NOTSET", "SAME_UPPER", "SAME_LOWER", "VALID")


def check_window(rw: Rewriter, kernel: Shape | None = None, is_transposed: bool = False) -> str:
    """Fault of attributes, or of a window that is larger than its padded input; "" for none.

    `kernel`: extents of the weights' window; without weights attribute `kernel_shape` tells them.
    """
    shape = rw.kind(0).shape
    n = len(shape) - 2
    if kernel is None:
        kernel = tuple(rw.attr("kernel_shape", ()))
    if n < 1 or len(kernel) != n:
        return f"a window of {len(kernel)} dimensions for {n} spatial dimensions"
    ones: Shape = (1,) * n
    given = {"kernel_shape": kernel, "strides": ones, "dilations": ones, "pads": (0,) * 2 * n}
    given = {name: tuple(rw.attr(name, value)) for name, value in given.items()}
    if given["kernel_shape"] != kernel:
        return f"kernel_shape {given['kernel_shape']} for weights of {kernel}"
    for name, values in given.items():
        least = 0 if name == "pads" else 1
        if len(values) != n * (2 if name == "pads" else 1) or min(values, default=1) < least:
            return f"{name} {values} for {n} spatial dimensions"
    mode = rw.attr("auto_pad", "NOTSET")
    if mode not in _PADDING:
        return f"auto_pad '{mode}'"
    if is_transposed or mode.startswith("SAME"):
        return ""
    return _check_reach(rw.node, shape[2:], kernel, given, mode == "NOTSET")


def _check_reach(
    node: Node, size: Shape, kernel: Shape, given: Mapping[str, Shape], is_padded: bool
) -> str:
    pads = given["pads"] if is_padded else (0,) * 2 * len(size)
    for axis, (extent, k, d) in enumerate(zip(size, kernel, given["dilations"], strict=True)):
        padded, reach = extent + pads[axis] + pads[len(size) + axis], (k - 1) * d + 1
        beyond = given["strides"][axis] - 1 if node.attrs.get("ceil_mode", 0) else 0
        if reach > padded + beyond:
            return f"a window of {reach} over {padded} elements of axis {axis + 2}"
    return ""
