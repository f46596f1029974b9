"""① Convolution and transposed convolution.

    Conv(x, W, b)           activations (n, …spatial…, c); dense, depthwise or grouped
    ConvTranspose(x, W, b)  -> Conv, Interleave, Slice      every phase of it is a convolution:
                               a set of channels of one, or one by itself (Conv …, Concat)
                               (and moves of W where it is computed)
    Col2Im(x)               -> Interleave, or ConvTranspose where blocks overlap

A transposed convolution of stride s adds W[k] to y[s·i + k] for every x[i]. Of y[s·q + r] only the
taps k = s·t + r are part, so with T = ⌈K/s⌉ it is Σ x[q - t]·W[s·t + r] over t < T: an ordinary
convolution of T taps, reversed, with a set of output channels for every r.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial

import numpy as np

from autotune.errors import ModelError
from autotune.graph.ir import Array, Node, Shape, TensorType
from autotune.graph.limits import check_constant
from autotune.graph.operators.definition import (
    Attrs,
    Factors,
    Layout,
    Operands,
    Operator,
    Scope,
    Types,
    biased,
    optional,
    product_of,
    tensor,
    typed,
)
from autotune.graph.operators.windows import Window, check_window, space_axes
from autotune.graph.rewriter import Rewriter
from autotune.te.expr import Axis, Reduce, Tensor
from autotune.units import format_shape


def _conv(scope: Scope, node: Node, operands: Operands, shape: Shape) -> Tensor:
    """Convolution, channels last: dense, depthwise or grouped by the form of the weight."""
    x, weight, bias = tensor(operands, 0), tensor(operands, 1), optional(operands, 2)
    kind = node.attrs["kind"]
    n_spatial = len(shape) - 2
    window = Window(node, weight.shape[:n_spatial], x.shape[1 : 1 + n_spatial], shape[1:-1])
    source = window.pad(scope, x, node.attrs.get("pad_value", 0))
    n, outs = Axis("n", x.shape[0]), space_axes(shape[1:-1])
    taps = window.taps
    at = (n.var, *window.at(outs, taps))
    if kind == "depthwise":
        c = Axis("c", shape[-1])
        axes, reduced = (n, *outs, c), taps
        product = product_of(source[(*at, c)], weight[(*taps, c)])
    elif kind == "dense":
        i, o = Axis("i", weight.shape[-2]), Axis("o", weight.shape[-1])
        axes, reduced = (n, *outs, o), (*taps, i)
        product = product_of(source[(*at, i)], weight[(*taps, i, o)])
    else:
        g, i, o = (Axis(a, e) for a, e in zip("gio", weight.shape[-3:], strict=True))
        axes, reduced = (n, *outs, g, o), (*taps, i)
        product = product_of(source[(*at, g, i)], weight[(*taps, g, i, o)])
    result = scope.compute("conv", axes, Reduce("sum", product, reduced))
    return biased(scope, result, bias)


def _live_taps(rw: Rewriter) -> None:
    """Drop the outer taps that read only padding, as those of a large dilation do."""
    weight = rw.value(1)
    if weight is None:
        return
    window = Window(rw.node, weight.shape[2:], rw.kind(0).shape[2:], rw.type.shape[2:])
    live, attrs = window.live()
    taps = weight[(slice(None), slice(None), *(slice(t.start, t.stop) for t in live))]
    if taps.shape != weight.shape:
        rw.again(rw.input(0), rw.array(np.ascontiguousarray(taps)), rw.input(2), **attrs)


# --- checks -----------------------------------------------------------------------------------


def _check_weights(rw: Rewriter, is_transposed: bool = False) -> str:
    """Weights (out, in/groups, …kernel…) fit to the data; transposed: (in, out/groups, …)."""
    data, weights = (rw.types[n].shape for n in rw.node.inputs[:2])
    groups = rw.attr("group", 1)
    if groups < 1 or len(data) < 2 or len(weights) < 2:
        return f"{groups} groups, data {data} and weights {weights}"
    fits = weights[1] * groups == data[1] and weights[0] % groups == 0
    if is_transposed:
        fits = weights[0] == data[1] and data[1] % groups == 0
    if not fits:
        return f"{groups} groups, {data[1]} channels and weights {weights}"
    return check_window(rw, weights[2:], is_transposed)


def _check_bias(rw: Rewriter) -> str:
    """A bias has an element for every channel of the result."""
    channels = rw.type.shape[1]
    if len(rw.node.inputs) < 3 or not rw.node.inputs[2]:
        return ""
    bias = rw.kind(2).shape
    return "" if bias == (channels,) else f"a bias of {format_shape(bias)} for {channels} channels"


def _stated_type(rw: Rewriter) -> Types:
    """Those of `output_shape`, or extent · stride with `auto_pad` SAME; else none."""
    is_same = rw.attr("auto_pad", "NOTSET") in ("SAME_UPPER", "SAME_LOWER")
    shape, weight = (rw.types[n].shape for n in rw.node.inputs[:2])
    size = tuple(rw.attr("output_shape", ()))
    if not size and not is_same:
        return []
    if not size:
        strides = rw.attr("strides", (1,) * (len(shape) - 2))
        size = tuple(n * s for n, s in zip(shape[2:], strides, strict=True))
    if len(size) != len(shape) - 2 or min(size) < 1:
        raise ModelError(
            f"operator 'ConvTranspose' (node '{rw.node.name}') has output_shape {size}",
            "give one extent for every spatial dimension",
        )
    channels = weight[1] * rw.attr("group", 1)
    return [TensorType((shape[0], channels, *size), rw.kind(0).dtype)]


def window_size(given: Sequence[Array]) -> int:
    """Elements of the weights of one output channel."""
    return max(1, int(given[1].size) // max(1, int(given[1].shape[0])))


_WIDE = 16
"""Channels that fill a vector: so many are computed for each phase of a transposed convolution by
itself, fewer with those of the other phases."""


# --- transposed -------------------------------------------------------------------------------


def _transposed_convolution(rw: Rewriter) -> None:
    """ConvTranspose -> Conv, Interleave and, unless that is all of the result, Slice."""
    rw.returns(_transposed(rw, rw.input(0), rw.input(1), rw.input(2), rw.node.attrs))


def _transposed(rw: Rewriter, x: str, weight: str, bias: str, attrs: Attrs) -> str:
    shape, kernel, out = rw.types[x].shape, rw.types[weight].shape[2:], rw.type.shape
    groups, size = attrs.get("group", 1), shape[2:]
    strides = tuple(attrs.get("strides", (1,) * len(size)))
    given = attrs.get("dilations", (1,) * len(size))
    dilations = tuple(1 if k == 1 else d for k, d in zip(kernel, given, strict=True))
    reach = tuple((k - 1) * d + 1 for k, d in zip(kernel, dilations, strict=True))
    begin = _begins(attrs, size, strides, reach, out[2:])
    taps, pads, offset = [], [], []
    for h, s, k, b, o in zip(size, strides, reach, begin, out[2:], strict=True):
        t = max(-(-k // s), -(-(b + o) // s) - h + 1)
        first, last = min(b // s, t - 1), (b + o - 1) // s
        taps.append(t)
        pads.append((t - 1 - first, max(0, last - h + 1)))
        offset.append(b - s * first)
    n_phases = math.prod(strides)
    check_constant(rw.node, 4 * math.prod((*rw.types[weight].shape[:2], *taps)) * n_phases)
    phases = _phases(rw, weight, groups, dilations, taps, strides)
    counts = [h + sum(p) - t + 1 for h, p, t in zip(size, pads, taps, strict=True)]
    if groups == 1 and out[1] >= _WIDE and max(taps) > 1:
        extents = zip(size, strides, reach, begin, out[2:], strict=True)
        apart = _one_by_one(rw, x, phases, bias, [_along(*one) for one in extents])
        if apart:
            return apart
    repeated = _repeated(rw, bias, groups, n_phases) if bias else ""
    made = rw(
        *("Conv", x, phases, repeated),
        shape=(shape[0], out[1] * n_phases, *counts),
        group=groups,
        kernel_shape=tuple(taps),
        pads=(*(p for p, _ in pads), *(p for _, p in pads)),
    )
    return _interleaved(rw, made, strides, groups, offset)


def _interleaved(
    rw: Rewriter, made: str, strides: Shape, groups: int, offset: Sequence[int]
) -> str:
    """The result, whose first element is number `offset` of the phases side by side."""
    out, counts = rw.type.shape, rw.types[made].shape[2:]
    whole = (*out[:2], *(s * n for s, n in zip(strides, counts, strict=True)))
    y = rw("Interleave", made, shape=whole, blocks=strides, groups=groups, blocks_first=True)
    ends = [a + o for a, o in zip(offset, out[2:], strict=True)]
    return y if whole == out else rw.slice(y, range(2, len(out)), offset, ends)


@dataclass(frozen=True, slots=True)
class _Phase:
    """Along one dimension: elements s·m + c of a result, which are those from `first` on of phase
    `r`. Its `n_taps` taps take `n` of them from `size` elements."""

    r: int
    first: int
    n_taps: int
    n: int
    size: int

    @property
    def pads(self) -> tuple[int, int]:
        """Zeros before and behind."""
        return self.n_taps - 1 - self.first, self.first + self.n - self.size


def _along(size: int, stride: int, kernel: int, begin: int, n_out: int) -> list[_Phase]:
    """The phases of one dimension, in the order of the elements of the result."""
    firsts = [divmod(c + begin, stride) for c in range(stride)]
    n = -(-n_out // stride)
    return [_Phase(r, q, max(1, -(-(kernel - r) // stride)), n, size) for q, r in firsts]


def _one_by_one(rw: Rewriter, x: str, phases: str, bias: str, along: Sequence[list[_Phase]]) -> str:
    """Every phase as a convolution of its own: of no element that is cut off, by no tap of zeros.

    "" where a phase begins behind its first window.
    """
    out = rw.type.shape
    strides = tuple(len(axis) for axis in along)
    if any(min(phase.pads) < 0 for axis in along for phase in axis):
        return ""
    found = []
    for chosen in itertools.product(*along):
        n = int(np.ravel_multi_index([phase.r for phase in chosen], strides))
        taps = [phase.n_taps for phase in chosen]
        starts = [n * out[1], *(-t for t in taps)]
        ends = [(n + 1) * out[1], *(np.iinfo(np.int64).max for _ in taps)]
        weight = rw.slice(phases, [0, *range(2, len(out))], starts, ends)
        found.append(
            rw(
                *("Conv", x, weight, bias),
                shape=(*out[:2], *(phase.n for phase in chosen)),
                kernel_shape=tuple(taps),
                pads=tuple(phase.pads[end] for end in (0, 1) for phase in chosen),
            )
        )
    if len(found) == 1:
        return found[0]
    return _interleaved(rw, rw("Concat", *found, axis=1), strides, 1, (0,) * len(along))


def _columns_to_image(rw: Rewriter) -> None:
    """Col2Im -> Interleave; where blocks overlap or have holes, ConvTranspose with unit kernels."""
    (n, rows, _), shape = rw.kind(0).shape, rw.type.shape
    block_shape = rw.value(2)
    if rw.value(1) is None or block_shape is None:
        raise rw.refuse("its shape is computed at run time")
    block = tuple(int(b) for b in block_shape.reshape(-1))
    rank, size = len(block), math.prod(block)
    strides, dilations = (rw.attr(a, (1,) * rank) for a in ("strides", "dilations"))
    pads = rw.attr("pads", (0,) * 2 * rank)
    counts = [
        (h + pads[a] + pads[rank + a] - dilations[a] * (block[a] - 1) - 1) // strides[a] + 1
        for a, h in enumerate(shape[2:])
    ]
    columns = rw("Reshape", rw.input(0), shape=(n, rows, *counts))
    whole = tuple(c * b for c, b in zip(counts, block, strict=True))
    if strides == block and whole == shape[2:] and not any(pads) and set(dilations) == {1}:
        rw.result("Interleave", columns, blocks=block, groups=1, blocks_first=False)
        return
    check_constant(rw.node, 4 * shape[1] * size**2)
    units = np.eye(size, dtype=rw.type.dtype).reshape(-1, 1, *block)
    kernel = rw.array(np.tile(units, (shape[1], *(1,) * (rank + 1))))
    attrs = {"strides": strides, "dilations": dilations, "pads": pads, "group": shape[1]}
    rw.returns(_transposed(rw, columns, kernel, "", attrs))


def _begins(attrs: Attrs, size: Shape, strides: Shape, kernel: Shape, out: Shape) -> list[int]:
    """Elements of the full result that are cut off in front; negative: padding before it."""
    mode = attrs.get("auto_pad", "NOTSET")
    if mode in ("NOTSET", "VALID") and "output_shape" not in attrs:
        return list(attrs.get("pads", (0,) * 2 * len(size)))[: len(size)]
    extra = attrs.get("output_padding", (0,) * len(size))
    whole = [(h - 1) * s + k + e for h, s, k, e in zip(size, strides, kernel, extra, strict=True)]
    cut = [n - o for n, o in zip(whole, out, strict=True)]
    if "output_shape" in attrs:  # what is asked for beyond the windows lies behind them
        cut = [max(0, n) for n in cut]
    return [n // 2 if mode == "SAME_UPPER" else n - n // 2 for n in cut]


def _phases(
    rw: Rewriter,
    weight: str,
    groups: int,
    dilations: Shape,
    taps: Sequence[int],
    strides: Shape,
) -> str:
    """(in, out/groups, …) -> (groups · …phase… · out/groups, in/groups, …tap…), taps reversed.

    Dilation puts zeros between the taps.
    """
    n_in, n_out, *kernel = rw.types[weight].shape
    rank = len(kernel)
    if any(d > 1 for d in dilations):
        apart = [n for k in kernel for n in (k, 1)]
        holes = [n for d in dilations for n in (0, d - 1)]
        weight = _padded(rw, rw("Reshape", weight, shape=(n_in, n_out, *apart)), holes)
        kernel = [k * d for k, d in zip(kernel, dilations, strict=True)]
        weight = rw("Reshape", weight, shape=(n_in, n_out, *kernel))
    more = [t * s - k for t, s, k in zip(taps, strides, kernel, strict=True)]
    if any(more):
        weight = _padded(rw, weight, more)
    pairs = [n for pair in zip(taps, strides, strict=True) for n in pair]
    weight = rw("Reshape", weight, shape=(groups, n_in // groups, n_out, *pairs))
    tap_axes = range(3, 3 + 2 * rank, 2)
    weight = rw.slice(weight, tap_axes, [-1] * rank, [np.iinfo(np.int64).min] * rank, step=-1)
    perm = (0, *(a + 1 for a in tap_axes), 2, 1, *tap_axes)
    n_rows = groups * math.prod(strides) * n_out
    turned = rw("Transpose", weight, perm=perm)
    return rw("Reshape", turned, shape=(n_rows, n_in // groups, *taps))


def _padded(rw: Rewriter, weight: str, behind: Sequence[int]) -> str:
    """Zeros behind every spatial dimension, or without its last elements."""
    return rw("Pad", weight, rw.array(np.array((*(0,) * (len(behind) + 4), *behind))))


def _repeated(rw: Rewriter, bias: str, groups: int, n_phases: int) -> str:
    """The bias of every phase."""
    (n,) = rw.types[bias].shape
    each = rw("Reshape", bias, shape=(groups, 1, n // groups))
    wide = rw("Expand", each, rw.array(np.array((groups, n_phases, n // groups))))
    return rw("Reshape", wide, shape=(n * n_phases,))


OPERATORS: Mapping[str, Operator] = {
    "Conv": Operator(
        factors=Factors(
            weight_input=1, channel_axis=1, n_narrow=2, takes_prologue=True, n_terms=window_size
        ),
        define=_conv,
        roles=("x", "weight", "bias"),
        layout=Layout.SPATIAL,
        canonical=_live_taps,
        typing=typed(_check_bias, before=_check_weights),
    ),
    "ConvTranspose": Operator(
        canonical=_transposed_convolution,
        typing=typed(
            _check_bias, before=partial(_check_weights, is_transposed=True), own=_stated_type
        ),
        factors=Factors(n_terms=window_size),
    ),
    "Col2Im": Operator(canonical=_columns_to_image),
}
