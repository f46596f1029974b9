"""① Parallel linear branches merge: a sum of convolutions of one input is a convolution.

    Add(Conv(x, W, b), Conv(x, V, c))      -> Conv(x, W + V, b + c)
    Add(Conv(x, W, b), Add(Mul(x, s), t))  -> Conv(x, W + s at the tap of the output itself, b + t)
    Add(Conv(x, W, b), x)                  -> the same with s = 1

and likewise for Sub. Kernels of different size are aligned by the input positions of their taps.
Networks that are trained with several branches and shipped unmerged (RepVGG, MobileOne, FastViT, …)
reduce to one convolution per block. Only where the branches have a single consumer, agree in
strides, groups and dilations, and the merged kernel has no more taps than they have together.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from autotune.graph.ir import Array, Node, Shape, float_array
from autotune.graph.passes.fold_scales import channel_vector
from autotune.graph.rewriter import Rewriter, Rule


@dataclass(frozen=True, slots=True)
class _Branch:
    """Σ weight·x over taps, plus bias. `first`: input position of the first tap, relative to the
    output. A dilation is 1 where there is one tap.
    """

    x: str
    weight: Array
    bias: Array
    group: int
    first: Shape
    strides: Shape
    dilations: Shape

    @property
    def taps(self) -> Shape:
        """Extents of the window."""
        return self.weight.shape[2:]

    @property
    def last(self) -> Shape:
        """Input position of the last tap, relative to the output."""
        parts = zip(self.first, self.taps, self.dilations, strict=True)
        return tuple(f + (k - 1) * d for f, k, d in parts)


def _merge_branches(rw: Rewriter) -> None:
    """Add(Conv(x, W, b), Conv(x, V, c)) -> Conv(x, W + V, b + c), and likewise; see the module."""
    shape = rw.type.shape
    if any(rw.types[name].shape != shape for name in rw.node.inputs):
        return
    convolutions = [_convolution_of(rw, name) for name in rw.node.inputs]
    beside = convolutions[0] or convolutions[1]
    if beside is None:
        return
    first, second = (
        found or _scaling_of(rw, name, beside)
        for name, found in zip(rw.node.inputs, convolutions, strict=True)
    )
    if first is not None and second is not None:
        merged = _sum(first, second, -1 if rw.node.op == "Sub" else 1)
        if merged is not None:
            _convolve(rw, merged)


def _convolution_of(rw: Rewriter, name: str) -> _Branch | None:
    node = rw.private(name)
    if node is None or node.op != "Conv" or node.attrs.get("auto_pad", "NOTSET") != "NOTSET":
        return None
    weight, bias = (rw.constants.get(n) for n in (*node.inputs, "")[1:3])
    if weight is None or (bias is None and len(node.inputs) > 2 and node.inputs[2]):
        return None
    n = weight.ndim - 2
    ones = (1,) * n
    dilations = node.attrs.get("dilations", ones)
    return _Branch(
        x=node.inputs[0],
        weight=weight.astype(np.float64),
        bias=np.zeros(len(weight)) if bias is None else bias.astype(np.float64),
        group=node.attrs.get("group", 1),
        first=tuple(-p for p in node.attrs.get("pads", (0,) * n)[:n]),
        strides=tuple(node.attrs.get("strides", ones)),
        dilations=tuple(
            1 if k == 1 else d for k, d in zip(weight.shape[2:], dilations, strict=True)
        ),
    )


def _scaling_of(rw: Rewriter, name: str, beside: _Branch) -> _Branch | None:
    """x, x·s, x + t or x·s + t, per channel, as a convolution like the one beside it."""
    factor: Array = np.ones(1)
    shift: Array = np.zeros(1)
    for op in ("Add", "Mul"):
        node = rw.private(name) if name != beside.x else None
        value = _channel_values(rw, node, op) if node is not None else None
        if node is None or value is None:
            continue
        factor, shift = (factor, shift + value) if op == "Add" else (value, shift)
        name = node.inputs[0]
    n_out, n_in, *taps = beside.weight.shape
    if name != beside.x or n_out != n_in * beside.group or set(beside.strides) != {1}:
        return None
    weight = np.zeros((n_out, n_in, *(1 for _ in taps)))
    weight.reshape(n_out, n_in)[range(n_out), np.arange(n_out) % n_in] = factor
    bias = np.broadcast_to(shift, (n_out,))
    here, ones = (0,) * len(taps), (1,) * len(taps)
    return _Branch(beside.x, weight, bias, beside.group, here, beside.strides, ones)


def _channel_values(rw: Rewriter, node: Node, op: str) -> Array | None:
    value = rw.constants.get(node.inputs[1]) if node.op == op else None
    if value is None or value.dtype != np.float32:
        return None
    vector = channel_vector(value, rw.types[node.output].shape, 1)
    return None if vector is None else vector.astype(np.float64)


def _convolve(rw: Rewriter, branch: _Branch) -> None:
    sizes = rw.types[branch.x].shape[2:], rw.type.shape[2:]
    parts = zip(*sizes, branch.strides, branch.last, strict=True)
    after = [max(0, (out - 1) * stride + last - (size - 1)) for size, out, stride, last in parts]
    operands = (rw.array(float_array(value)) for value in (branch.weight, branch.bias))
    rw.result(
        "Conv",
        branch.x,
        *operands,
        group=branch.group,
        kernel_shape=branch.taps,
        strides=branch.strides,
        dilations=branch.dilations,
        pads=(*(-f for f in branch.first), *after),
    )


def _sum(a: _Branch, b: _Branch, sign: int) -> _Branch | None:
    """a + sign·b as one branch, unless that needs more arithmetic than both."""
    if (a.x, a.group, a.strides) != (b.x, b.group, b.strides):
        return None
    pairs = zip(a.dilations, b.dilations, a.taps, b.taps, strict=True)
    if any(d != e and k > 1 and m > 1 for d, e, k, m in pairs):
        return None
    dilations = tuple(map(max, a.dilations, b.dilations))
    first, last = tuple(map(min, a.first, b.first)), tuple(map(max, a.last, b.last))
    taps = tuple((q - p) // d + 1 for p, q, d in zip(first, last, dilations, strict=True))
    if any(f > 0 for f in first) or math.prod(taps) > math.prod(a.taps) + math.prod(b.taps):
        return None
    weight: Array = np.zeros((*a.weight.shape[:2], *taps))
    for side, factor in ((a, 1), (b, sign)):
        begin = [f - g for f, g in zip(side.first, first, strict=True)]
        if any(n % d for n, d in zip(begin, dilations, strict=True)):
            return None
        places = zip(begin, dilations, side.taps, strict=True)
        window = [slice(n // d, n // d + k) for n, d, k in places]
        weight[(slice(None), slice(None), *window)] += factor * side.weight
    return _Branch(a.x, weight, a.bias + sign * b.bias, a.group, first, a.strides, dilations)


MERGE_BRANCHES = Rule("merge-branches", _merge_branches, {"Add", "Sub"})
