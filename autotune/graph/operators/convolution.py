"""① Convolution and transposed convolution.

    Conv(x, W, b)           activations (n, …spatial…, c); dense, depthwise or grouped
    ConvTranspose(x, W, b)  -> Conv, Interleave, Slice      every phase of it is a convolution
                               (and what rearranges W where it is computed)
    Col2Im(x)               -> Interleave, or ConvTranspose where blocks overlap

A transposed convolution of stride s adds W[k] to y[s·i + k] for every x[i]. Of y[s·q + r] only the
taps k = s·t + r are part, so with T = ⌈K/s⌉ it is Σ x[q - t]·W[s·t + r] over t < T: an ordinary
convolution of T taps, reversed, with a set of output channels for every r.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np

from autotune.errors import ModelError
from autotune.graph.ir import Array, Editor, Node, Shape, unsupported
from autotune.graph.limits import check_constant
from autotune.graph.operators.definition import (
    Layout,
    Operands,
    Operator,
    Scope,
    biased,
    optional,
    product_of,
    shape_text,
    tensor,
)
from autotune.graph.operators.windows import Window, check_window, space_axes
from autotune.te.expr import Axis, Reduce, Tensor


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


def _live_taps(editor: Editor, node: Node) -> None:
    """Drop the outer taps that read only padding, as those of a large dilation do."""
    weight = editor.constants.get(node.inputs[1])
    if weight is not None:
        size, out = editor.types[node.inputs[0]].shape[2:], editor.types[node.output].shape[2:]
        live, attrs = Window(node, weight.shape[2:], size, out).live()
        kept = [slice(None)] * 2 + [slice(t.start, t.stop) for t in live]
        taps = weight[tuple(kept)]
        if taps.shape != weight.shape:
            name = editor.constant(f"{node.inputs[1]}.live", np.ascontiguousarray(taps))
            inputs = (node.inputs[0], name, *node.inputs[2:])
            node = replace(node, inputs=inputs, attrs={**node.attrs, **attrs})
    editor.emit(node)


# --- checks -----------------------------------------------------------------------------------


def _check_weights(editor: Editor, node: Node, is_transposed: bool = False) -> str:
    """Weights (out, in/groups, …kernel…) fit to the data; transposed: (in, out/groups, …)."""
    data, weights = (editor.types[n].shape for n in node.inputs[:2])
    groups = node.attrs.get("group", 1)
    if groups < 1 or len(data) < 2 or len(weights) < 2:
        return f"{groups} groups, data {data} and weights {weights}"
    fits = weights[1] * groups == data[1] and weights[0] % groups == 0
    if is_transposed:
        fits = weights[0] == data[1] and data[1] % groups == 0
    if not fits:
        return f"{groups} groups, {data[1]} channels and weights {weights}"
    return check_window(editor, node, weights[2:], is_transposed)


def _check_transposed(editor: Editor, node: Node) -> str:
    return _check_weights(editor, node, is_transposed=True)


def _check_bias(editor: Editor, node: Node) -> str:
    """A bias has an element for every channel of the result."""
    channels = editor.types[node.output].shape[1]
    if len(node.inputs) < 3 or not node.inputs[2]:
        return ""
    bias = editor.types[node.inputs[2]].shape
    return "" if bias == (channels,) else f"a bias of {shape_text(bias)} for {channels} channels"


def _transposed_shape(editor: Editor, node: Node) -> Shape | None:
    """The extents of `output_shape`, or extent · stride with `auto_pad` SAME."""
    is_same = node.attrs.get("auto_pad", "NOTSET") in ("SAME_UPPER", "SAME_LOWER")
    shape, weight = (editor.types[n].shape for n in node.inputs[:2])
    size = tuple(node.attrs.get("output_shape", ()))
    if not size and not is_same:
        return None
    if not size:
        strides = node.attrs.get("strides", (1,) * (len(shape) - 2))
        size = tuple(n * s for n, s in zip(shape[2:], strides, strict=True))
    if len(size) != len(shape) - 2 or min(size) < 1:
        raise ModelError(
            f"operator 'ConvTranspose' (node '{node.name}') has output_shape {size}",
            "give one extent for every spatial dimension",
        )
    return (shape[0], weight[1] * node.attrs.get("group", 1), *size)


def window_size(given: Sequence[Array]) -> int:
    """Elements of the weights of one output channel."""
    return max(1, int(given[1].size) // max(1, int(given[1].shape[0])))


# --- transposed -------------------------------------------------------------------------------


def _transposed_convolution(editor: Editor, node: Node) -> None:
    """ConvTranspose -> Conv, Interleave and, unless that is all of the result, Slice."""
    weight = editor.types[node.inputs[1]].shape
    shape, out = editor.types[node.inputs[0]].shape, editor.types[node.output].shape
    groups, size = node.attrs.get("group", 1), shape[2:]
    strides = tuple(node.attrs.get("strides", (1,) * len(size)))
    given = node.attrs.get("dilations", (1,) * len(size))
    dilations = tuple(1 if k == 1 else d for k, d in zip(weight[2:], given, strict=True))
    kernel = tuple((k - 1) * d + 1 for k, d in zip(weight[2:], dilations, strict=True))
    begin = _begins(node, size, strides, kernel, out[2:])
    taps, pads, offset = [], [], []
    for h, s, k, b, o in zip(size, strides, kernel, begin, out[2:], strict=True):
        t = max(-(-k // s), -(-(b + o) // s) - h + 1)
        first, last = min(b // s, t - 1), (b + o - 1) // s
        taps.append(t)
        pads.append((t - 1 - first, max(0, last - h + 1)))
        offset.append(b - s * first)
    phased = (t * s for t, s in zip(taps, strides, strict=True))
    check_constant(node, 4 * math.prod(weight[:2]) * math.prod(phased))
    inputs = [
        node.inputs[0],
        _phases(_Folded(editor, node), node.inputs[1], groups, dilations, taps, strides),
    ]
    if len(node.inputs) > 2 and node.inputs[2]:
        inputs.append(_repeated_bias(editor, node, groups, math.prod(strides)))
    counts = [h + sum(p) - t + 1 for h, p, t in zip(size, pads, taps, strict=True)]
    channels, dtype = out[1] * math.prod(strides), editor.types[node.output].dtype
    phases = editor.new(f"{node.output}.phases", (shape[0], channels, *counts), dtype)
    attrs = {
        "group": groups,
        "kernel_shape": tuple(taps),
        "pads": (*(p for p, _ in pads), *(p for _, p in pads)),
    }
    editor.emit(Node(node.name, "Conv", tuple(inputs), (phases,), attrs))
    whole = (*out[:2], *(s * n for s, n in zip(strides, counts, strict=True)))
    name = node.output if whole == out else editor.new(f"{node.output}.whole", whole, dtype)
    attrs = {"blocks": strides, "groups": groups, "blocks_first": True}
    editor.emit(Node(node.name, "Interleave", (phases,), (name,), attrs))
    if whole != out:
        ends = [a + o for a, o in zip(offset, out[2:], strict=True)]
        bounds = (offset, ends, range(2, len(out)))
        made = [editor.constant(f"{node.output}.bounds", np.array(b, np.int64)) for b in bounds]
        editor.emit(Node(node.name, "Slice", (name, *made), node.outputs))


def _columns_to_image(editor: Editor, node: Node) -> None:
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
    dtype = editor.types[node.output].dtype
    columns = editor.new(f"{node.output}.columns", (n, rows, *counts), dtype)
    editor.emit(Node(node.name, "Reshape", node.inputs[:1], (columns,)))
    whole = tuple(c * b for c, b in zip(counts, block, strict=True))
    if strides == block and whole == shape[2:] and not any(pads) and set(dilations) == {1}:
        attrs = {"blocks": block, "groups": 1, "blocks_first": False}
        editor.emit(Node(node.name, "Interleave", (columns,), node.outputs, attrs))
        return
    check_constant(node, 4 * shape[1] * math.prod(block) ** 2)
    units = np.eye(math.prod(block), dtype=dtype).reshape(-1, 1, *block)
    kernel = editor.constant(f"{node.output}.units", np.tile(units, (shape[1], *(1,) * (rank + 1))))
    attrs = {"strides": strides, "dilations": dilations, "pads": pads, "group": shape[1]}
    overlapping = Node(node.name, "ConvTranspose", (columns, kernel), node.outputs, attrs)
    _transposed_convolution(editor, overlapping)


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


@dataclass(frozen=True, slots=True)
class _Folded:
    """Moves the elements of a tensor: at once where it is a constant, else by nodes."""

    editor: Editor
    node: Node

    def reshape(self, x: str, *shape: int) -> str:
        """x in another shape."""
        return self._moved("Reshape", x, (), {}, lambda a: a.reshape(shape))

    def transpose(self, x: str, *perm: int) -> str:
        """x with its dimensions in another order."""
        return self._moved("Transpose", x, (), {"perm": perm}, lambda a: a.transpose(perm))

    def pad(self, x: str, *behind: int) -> str:
        """x with zeros behind every dimension, or without its last elements."""
        amounts = np.array((*(0,) * len(behind), *behind))
        size = [slice(n if n < 0 else None) for n in behind]
        widths = [(0, max(0, n)) for n in behind]
        return self._moved("Pad", x, (amounts,), {}, lambda a: np.pad(a[tuple(size)], widths))

    def flip(self, x: str, *axes: int) -> str:
        """x with the order of elements reversed along some dimensions."""
        n, least = len(axes), np.iinfo(np.int64).min
        bounds = (np.full(n, -1), np.full(n, least), np.array(axes, np.int64), np.full(n, -1))
        return self._moved("Slice", x, bounds, {}, lambda a: np.flip(a, axes))

    def repeat(self, x: str, *shape: int) -> str:
        """x broadcast to a shape."""
        known = (np.array(shape),)
        return self._moved("Expand", x, known, {}, lambda a: np.broadcast_to(a, shape))

    def _moved(
        self,
        op: str,
        x: str,
        operands: tuple[Array, ...],
        attrs: Mapping[str, object],
        move: Callable[[Array], Array],
    ) -> str:
        editor, kind = self.editor, self.editor.types[x]
        if x in editor.constants:
            return editor.constant(
                f"{x}.{op.lower()}", np.ascontiguousarray(move(editor.constants[x]))
            )
        like = np.broadcast_to(np.zeros(1, bool), kind.shape)
        new = editor.new(f"{self.node.output}.weight", move(like).shape, kind.dtype)
        known = (editor.constant(f"{new}.by", value) for value in operands)
        editor.emit(Node(self.node.name, op, (x, *known), (new,), attrs))
        return new


def _phases(
    to: _Folded, weight: str, groups: int, dilations: Shape, taps: Sequence[int], strides: Shape
) -> str:
    """(in, out/groups, …) -> (groups · …phase… · out/groups, in/groups, …tap…), taps reversed.

    Dilation puts zeros between the taps.
    """
    n_in, n_out, *kernel = to.editor.types[weight].shape
    rank = len(kernel)
    if any(d > 1 for d in dilations):
        apart = [n for k in kernel for n in (k, 1)]
        holes = [n for d in dilations for n in (0, d - 1)]
        weight = to.pad(to.reshape(weight, n_in, n_out, *apart), 0, 0, *holes)
        kernel = [k * d for k, d in zip(kernel, dilations, strict=True)]
        weight = to.reshape(weight, n_in, n_out, *kernel)
    more = [t * s - k for t, s, k in zip(taps, strides, kernel, strict=True)]
    if any(more):
        weight = to.pad(weight, 0, 0, *more)
    pairs = [n for pair in zip(taps, strides, strict=True) for n in pair]
    weight = to.reshape(weight, groups, n_in // groups, n_out, *pairs)
    tap_axes = range(3, 3 + 2 * rank, 2)
    weight = to.flip(weight, *tap_axes)
    weight = to.transpose(weight, 0, *(a + 1 for a in tap_axes), 2, 1, *tap_axes)
    return to.reshape(weight, groups * math.prod(strides) * n_out, n_in // groups, *taps)


def _repeated_bias(editor: Editor, node: Node, groups: int, n_phases: int) -> str:
    to, bias = _Folded(editor, node), node.inputs[2]
    (n,) = editor.types[bias].shape
    each = to.repeat(to.reshape(bias, groups, 1, n // groups), groups, n_phases, n // groups)
    return to.reshape(each, n * n_phases)


OPERATORS: Mapping[str, Operator] = {
    "Conv": Operator(
        n_narrow=2,
        define=_conv,
        takes_prologue=True,
        roles=("x", "weight", "bias"),
        weight_input=1,
        channel_axis=1,
        layout=Layout.SPATIAL,
        any_type=True,
        canonical=_live_taps,
        precondition=_check_weights,
        check=_check_bias,
        n_terms=window_size,
    ),
    "ConvTranspose": Operator(
        canonical=_transposed_convolution,
        precondition=_check_transposed,
        shape=_transposed_shape,
        check=_check_bias,
        n_terms=window_size,
    ),
    "Col2Im": Operator(canonical=_columns_to_image),
}
