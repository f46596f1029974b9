"""① Operands that say *how* become attributes; what remains among the inputs is data.

After this pass `Pad` has `amounts` and `fill`, `Slice` has `starts` and `steps` for every
dimension, `Split` has become slices, reductions have `axes`, and `AveragePool` has a second input:
one over the number of elements that count. Runs on the layout that is stored.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace
from functools import partial

import numpy as np

from autotune.graph.ir import Array, Editor, Graph, Node, Shape, unsupported
from autotune.graph.limits import check_constant
from autotune.graph.operators.products import OF_ONE, REDUCES
from autotune.graph.operators.windows import Window
from autotune.graph.passes.layout import pad_amounts, reduce_axes
from autotune.graph.passes.resizing import resize
from autotune.graph.passes.simplify import remove_identities
from autotune.graph.passes.upscale import interleave, space_to_depth
from autotune.graph.refusals import attempt


def resolve_operands(graph: Graph) -> Graph:
    """Rewrite the graph; see the module. Raises UnsupportedOperator for computed operands."""
    editor, readers = Editor(graph), graph.consumers()
    for original in graph.nodes:
        node = editor.updated(original)
        used = any(name in readers or name in graph.outputs for name in node.outputs[1:])
        attempt(editor, node, partial(_resolve, editor, node, used))
    return remove_identities(editor.build())


def _resolve(editor: Editor, node: Node, uses_more: bool) -> None:
    if node.op != "Split" and uses_more:
        raise unsupported(node, editor.graph, "its second output is used")
    rewrite = _RULES.get(node.op)
    if rewrite is None:
        editor.emit(node)
    else:
        rewrite(editor, node)


def _reduction(editor: Editor, node: Node) -> None:
    rank = len(editor.types[node.inputs[0]].shape)
    axes = reduce_axes(node, editor.constants, rank)
    if axes is None:
        raise unsupported(node, editor.graph, "its axes are computed at run time")
    if not axes:
        op = OF_ONE.get(node.op, "Identity")
        inputs = node.inputs[:1] * (2 if op == "Mul" else 1)
        editor.emit(replace(node, op=op, inputs=inputs, attrs={}))
        return
    editor.emit(replace(node, inputs=node.inputs[:1], attrs={**node.attrs, "axes": axes}))


def _pad(editor: Editor, node: Node) -> None:
    amounts = pad_amounts(node, editor.constants, len(editor.types[node.output].shape))
    if amounts is None:
        raise unsupported(node, editor.graph, "its padding is computed at run time")
    if not any(amounts):
        editor.emit(replace(node, op="Identity", inputs=node.inputs[:1], attrs={}))
        return
    mode = node.attrs.get("mode", "constant")
    _check_padding(editor, node, mode, amounts)
    fill = 0.0
    if len(node.inputs) > 2 and node.inputs[2]:
        fill = float(editor.constants[node.inputs[2]].reshape(-1)[0])
    attrs = {"mode": mode, "amounts": tuple(amounts), "fill": fill}
    editor.emit(replace(node, inputs=node.inputs[:1], attrs=attrs))


def _check_padding(editor: Editor, node: Node, mode: str, amounts: list[int]) -> None:
    """Whether there is such a mode, and something left to repeat where it repeats elements."""
    if mode not in ("constant", "edge", "reflect", "wrap"):
        raise unsupported(node, editor.graph, f"mode '{mode}'")
    shape = editor.types[node.inputs[0]].shape
    pairs = zip(amounts[: len(shape)], amounts[len(shape) :], shape, strict=True)
    if mode != "constant" and any(n + min(b, 0) + min(e, 0) < 1 for b, e, n in pairs):
        raise unsupported(node, editor.graph, f"mode '{mode}' of an axis cropped to nothing")


def _slice(editor: Editor, node: Node) -> None:
    if any(name and name not in editor.constants for name in node.inputs[1:]):
        raise unsupported(node, editor.graph, "its bounds are computed at run time")
    shape = editor.types[node.inputs[0]].shape
    names = (*node.inputs[1:], "", "")
    begin, end = (editor.constants[n].reshape(-1) for n in names[:2])
    axes = editor.constants.get(names[2], np.arange(begin.size))
    steps = editor.constants.get(names[3], np.ones(begin.size, np.int64))
    starts, strides = [0] * len(shape), [1] * len(shape)
    for b, e, a, s in zip(begin, end, axes, steps, strict=True):
        axis = int(a) % len(shape)
        taken = range(shape[axis])[slice(int(b), _end(int(e), int(s), shape[axis]), int(s))]
        starts[axis], strides[axis] = taken.start, taken.step
    _emit_slice(editor, node, node.inputs[0], node.output, tuple(starts), tuple(strides))


def _end(end: int, step: int, extent: int) -> int | None:
    """ONNX's end as Python's: one far below zero with a negative step takes everything."""
    return None if step < 0 and end < -extent else end


def _split(editor: Editor, node: Node) -> None:
    """Split(x) -> one Slice per output."""
    shape = editor.types[node.inputs[0]].shape
    axis = node.attrs.get("axis", 0) % len(shape)
    start = 0
    for out in node.outputs:
        starts = [0] * len(shape)
        starts[axis] = start
        start += editor.types[out].shape[axis]
        _emit_slice(editor, node, node.inputs[0], out, tuple(starts), (1,) * len(shape))


def _emit_slice(
    editor: Editor, node: Node, source: str, out: str, starts: Shape, steps: Shape
) -> None:
    attrs = {"starts": starts, "steps": steps}
    if editor.types[source].shape == editor.types[out].shape and all(s == 1 for s in steps):
        editor.emit(Node(node.name, "Identity", (source,), (out,)))
    else:
        editor.emit(Node(node.name, "Slice", (source,), (out,), attrs))


_MOST_RUNS = 64
"""Most slices that a Gather of constant indices becomes."""


def _gather(editor: Editor, node: Node) -> None:
    """Gather of a few arithmetic runs of constants -> one Slice per run, Concat, Reshape."""
    shape, dtype = editor.types[node.inputs[0]].shape, editor.types[node.output].dtype
    axis = node.attrs.get("axis", 0) % len(shape)
    index = editor.constants.get(node.inputs[1])
    runs = [] if index is None else _runs((index.reshape(-1) % shape[axis]).tolist())
    if not 0 < len(runs) <= _MOST_RUNS:
        editor.emit(node)
        return
    parts = []
    for run in runs:
        starts, steps = [0] * len(shape), [1] * len(shape)
        starts[axis], steps[axis] = run.start, run.step
        taken = (*shape[:axis], len(run), *shape[axis + 1 :])
        parts.append(editor.new(f"{node.output}.part", taken, dtype))
        _emit_slice(editor, node, node.inputs[0], parts[-1], tuple(starts), tuple(steps))
    if len(parts) > 1:
        n_taken = sum(len(run) for run in runs)
        together = (*shape[:axis], n_taken, *shape[axis + 1 :])
        whole = editor.new(f"{node.output}.parts", together, dtype)
        editor.emit(Node(node.name, "Concat", tuple(parts), (whole,), {"axis": axis}))
        parts = [whole]
    editor.emit(Node(node.name, "Reshape", tuple(parts), node.outputs))


def _scatter(editor: Editor, node: Node) -> None:
    """ScatterND and ScatterElements at constant indices -> Where(hit, Gather(updates, rows), x).

    Of several updates of one place the last one stays.
    """
    x, index, updates = node.inputs
    if index not in editor.constants or node.attrs.get("reduction", "none") != "none":
        raise unsupported(node, editor.graph, "only constant indices, and no reduction")
    shape, dtype = editor.types[x].shape, editor.types[x].dtype
    at = _scattered(node, editor.constants[index])
    outer, rest = shape[: at.shape[1]], shape[at.shape[1] :]
    which = np.full(outer, -1)
    which[tuple((at % outer).T)] = np.arange(len(at))
    hit = editor.constant(f"{node.output}.hit", (which >= 0).reshape(*outer, *(1 for _ in rest)))
    rows = editor.constant(f"{node.output}.rows", np.maximum(which, 0))
    stem = f"{node.output}.updates"
    if updates in editor.constants:
        listed = editor.constant(stem, editor.constants[updates].reshape(len(at), *rest))
    else:
        listed = editor.new(stem, (len(at), *rest), dtype)
        editor.emit(Node(node.name, "Reshape", (updates,), (listed,)))
    taken = editor.new(f"{node.output}.taken", shape, dtype)
    editor.emit(Node(node.name, "Gather", (listed, rows), (taken,), {"axis": 0}))
    editor.emit(Node(node.name, "Where", (hit, taken, x), node.outputs))


def _scattered(node: Node, index: Array) -> Array:
    """Where every update goes, one row each: its place in the leading dimensions."""
    if node.op == "ScatterND":
        return index.reshape(-1, index.shape[-1])
    at = np.indices(index.shape)
    at[node.attrs.get("axis", 0)] = index
    return at.reshape(index.ndim, -1).T


def _runs(values: list[int]) -> list[range]:
    """The values as arithmetic progressions, longest first where they begin."""
    runs: list[range] = []
    while values:
        step = values[1] - values[0] if len(values) > 1 else 1
        n = 1
        while step and n < len(values) and values[n] == values[0] + n * step:
            n += 1
        runs.append(range(values[0], values[0] + n * (step or 1), step or 1))
        values = values[n:]
    return runs


def _average_pool(editor: Editor, node: Node) -> None:
    size = editor.types[node.inputs[0]].shape[1:-1]
    out = editor.types[node.output].shape[1:-1]
    window = Window(node, tuple(node.attrs["kernel_shape"]), size, out)
    check_constant(node, 8 * math.prod(out))
    counts = np.ones((), np.int64)
    for n in range(len(size)):
        counts = np.multiply.outer(counts, _n_counted(window, n, node))
    scale = (1.0 / np.maximum(counts, 1)).astype(np.float32)
    scale = scale.reshape(-1)[:1] if (scale == scale.flat[0]).all() else scale[..., None]
    name = editor.constant(f"{node.output}.counts", scale)
    _pool(editor, replace(node, inputs=(node.inputs[0], name)))


def _pool(editor: Editor, node: Node) -> None:
    """Pooling without the outer taps that meet only padding."""
    size = editor.types[node.inputs[0]].shape[1:-1]
    out = editor.types[node.output].shape[1:-1]
    _, attrs = Window(node, tuple(node.attrs["kernel_shape"]), size, out).live()
    editor.emit(replace(node, attrs={**node.attrs, **attrs}))


def _triangle(editor: Editor, node: Node) -> None:
    k = editor.constants.get(node.inputs[1]) if len(node.inputs) > 1 else np.zeros(1)
    if k is None:
        raise unsupported(node, editor.graph, "its diagonal is computed at run time")
    attrs = {**node.attrs, "k": int(k.reshape(-1)[0])}
    editor.emit(replace(node, inputs=node.inputs[:1], attrs=attrs))


def _n_counted(window: Window, n: int, node: Node) -> Array:
    """How many taps of each output position along dimension `n` count."""
    at = np.arange(window.out[n]) * window.strides[n] - window.begin[n]  # of the first tap
    step, padded = window.dilations[n], bool(node.attrs.get("count_include_pad", 0))
    end = window.size[n] + (window.end[n] if padded else 0)
    first = np.zeros_like(at) if padded else np.maximum(0, -(at // step))
    last = np.minimum(window.kernel[n] - 1, (end - 1 - at) // step)
    counted: Array = np.maximum(0, last - first + 1)
    return counted


def _running_sum(editor: Editor, node: Node) -> None:
    axis = editor.constants.get(node.inputs[1])
    if axis is None:
        raise unsupported(node, editor.graph, "its axis is computed at run time")
    at = int(axis.reshape(-1)[0]) % len(editor.types[node.output].shape)
    editor.emit(replace(node, inputs=node.inputs[:1], attrs={**node.attrs, "axis": at}))


def _remainder(editor: Editor, node: Node) -> None:
    """Mod whose meaning is known: of whole numbers by constants, or `fmod` of floats."""
    divisor = editor.constants.get(node.inputs[1])
    is_float = editor.types[node.output].dtype.startswith("float")
    if is_float != bool(node.attrs.get("fmod", 0)):
        raise unsupported(node, editor.graph, "floats need fmod = 1, integers fmod = 0")
    if not is_float and (divisor is None or not divisor.all()):
        raise unsupported(node, editor.graph, "it divides by zero or by what is not constant")
    editor.emit(node)


def _grid_sample(editor: Editor, node: Node) -> None:
    mode = node.attrs.get("mode", "linear")
    if "cubic" in mode:
        raise unsupported(node, editor.graph, f"mode '{mode}'")
    editor.emit(node)


def _expand(editor: Editor, node: Node) -> None:
    editor.emit(replace(node, inputs=node.inputs[:1]))


_RULES: dict[str, Callable[[Editor, Node], None]] = {
    **dict.fromkeys(REDUCES, _reduction),
    "Pad": _pad,
    "Slice": _slice,
    "Split": _split,
    "Gather": _gather,
    "ScatterND": _scatter,
    "ScatterElements": _scatter,
    "CumSum": _running_sum,
    "AveragePool": _average_pool,
    "MaxPool": _pool,
    "LpPool": _pool,
    "Trilu": _triangle,
    "Resize": resize,
    "Interleave": interleave,
    "SpaceToDepth": space_to_depth,
    "Expand": _expand,
    "Mod": _remainder,
    "GridSample": _grid_sample,
}
