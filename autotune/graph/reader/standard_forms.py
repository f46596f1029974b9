"""① Forms of standard operators that their own definition leaves out -> others of opset 22.

    LayerNormalization(x) -> y, mean, deviation   ->   ReduceMean, Sub, Mul, …
    TensorScatter(cache, update, places)          ->   Where(written, GatherElements(update), cache)

A composition that appends nothing leaves the node to the record of its operator.
"""

from __future__ import annotations

import math

import numpy as np

from autotune.dtypes import DTYPES
from autotune.graph.ir import malformed
from autotune.graph.limits import check_constant
from autotune.graph.reader.composer import Composer, Composition


def _dtype(c: Composer, n: int = 0) -> str:
    kind = c.types.get(c.input(n))
    return "" if kind is None else kind.dtype


def _layer_norm(c: Composer) -> None:
    """All three results: normalised, mean, and 1 / standard deviation."""
    if not (c.wants(1) or c.wants(2)) or _dtype(c) != "float32":
        return
    rank = c.rank(0)
    axes = c.integers(*range(c.attr("axis", -1) % rank, rank))
    mean = c("ReduceMean", c.input(0), axes)
    centred = c("Sub", c.input(0), mean)
    variance = c("ReduceMean", c("Mul", centred, centred), axes)
    root = c("Sqrt", c("Add", variance, c.float(c.attr("epsilon", 1e-5))))
    inverse = c("Reciprocal", root)
    c.bind(1, mean)
    c.bind(2, inverse)
    scaled = c("Mul", c("Mul", centred, inverse), c.input(1))
    if c.input(2):
        c.result("Add", scaled, c.input(2))
    else:
        c.result("Identity", scaled)


def _batch_norm(c: Composer) -> None:
    """Parameters that are computed, and the statistics of training."""
    training = c.attr("training_mode", 0)
    if _dtype(c) != "float32" or not (training or any(c.value(n) is None for n in range(1, 5))):
        return
    rank, x = c.rank(0), c.input(0)
    scale, shift, mean, variance = (
        c.reshaped(c.input(n), -1, *(1,) * (rank - 2)) for n in range(1, 5)
    )
    if training:
        axes = c.integers(0, *range(2, rank))
        mean = c("ReduceMean", x, axes)
        centred = c("Sub", x, mean)
        variance = c("ReduceMean", c("Mul", centred, centred), axes)
        momentum = c.attr("momentum", 0.9)
        for n, found in ((1, mean), (2, variance)):
            kept = c("Mul", c.input(n + 2), c.float(momentum))
            new = c("Mul", c.reshaped(found, -1), c.float(1 - momentum))
            c.bind(n, c("Add", kept, new))
    root = c("Sqrt", c("Add", variance, c.float(c.attr("epsilon", 1e-5))))
    factor = c("Div", scale, root)
    c.result("Add", c("Mul", c("Sub", x, mean), factor), shift)


def _dropout(c: Composer) -> None:
    """Where nothing is dropped, all of the mask is true."""
    ratio, training = c.value(1), c.value(2)
    is_off = not c.input(2) or (training is not None and not training.any())
    if not c.wants(1) and is_off:
        return
    if not is_off and (ratio is None or ratio.any()):
        return
    c.result("Identity", c.input(0))
    if c.wants(1):
        c.bind(1, c("Expand", c.array(np.ones(1, bool)), c.integers(*c.shape(0))))


def _hardmax(c: Composer) -> None:
    """1 at the first largest element along an axis, else 0."""
    shape = c.shape(0)
    axis = c.attr("axis", -1)
    if not -len(shape) <= axis < len(shape):
        raise malformed(c.node, f"axis {axis} of {len(shape)} dimensions")
    best = c("ArgMax", c.input(0), axis=axis, keepdims=1)
    places = _places(c, axis % len(shape))
    c.result("Cast", c("Equal", places, best), to=DTYPES[_dtype(c)].onnx)


def _eye_like(c: Composer) -> None:
    """Ones on a diagonal: only the shape of the operand matters."""
    rows, columns = c.shape(0)
    kind = c.attr("dtype", 0) or DTYPES[_dtype(c)].onnx
    check_constant(c.node, rows * columns)
    ones = np.eye(rows, columns, c.attr("k", 0), dtype=bool)
    c.result("Cast", c.array(ones), to=kind)


def _bitwise_not(c: Composer) -> None:
    """All bits set, less x: -1 - x, or the largest number - x without a sign."""
    dtype = _dtype(c)
    if not dtype:
        raise c.refuse("the type of its operand is not known")
    every = np.iinfo(dtype).max if dtype.startswith("u") else -1
    c.result("Sub", c.array(np.array([every], dtype)), c.input(0))


def _along(axis: int, rank: int) -> list[int]:
    return [-1 if a == axis else 1 for a in range(rank)]


def _places(c: Composer, axis: int) -> str:
    """0, 1, … along a dimension of the first input."""
    shape = c.shape(0)
    return c.array(np.arange(shape[axis]).reshape(_along(axis, len(shape))))


def _reverse_sequence(c: Composer) -> None:
    """x[…] from the place length - 1 - t where t is below the length of the batch."""
    shape = c.shape(0)
    time, batch = c.attr("time_axis", 0), c.attr("batch_axis", 1)
    if time == batch:
        raise malformed(c.node, f"time_axis and batch_axis {time}")
    at = _places(c, time)
    lengths = c.reshaped(c.cast(c.input(1), "int64"), *_along(batch, len(shape)))
    turned = c("Sub", c("Sub", lengths, c.array(np.array([1]))), at)
    rows = c("Expand", c("Where", c("Less", at, lengths), turned, at), c.integers(*shape))
    c.result("GatherElements", c.input(0), rows, axis=time)


def _tensor_scatter(c: Composer) -> None:
    """A cache with the update at the place that every batch has, or around its end."""
    shape, extent = c.shape(0), c.shape(1)
    axis = c.attr("axis", -2) % len(shape)
    own = _places(c, axis)
    if c.input(2):
        own = c("Sub", own, c.reshaped(c.cast(c.input(2), "int64"), *_along(0, len(shape))))
    if c.attr("mode", "linear") == "circular":
        own = c("Mod", own, c.array(np.array([shape[axis]])))
    zero, last = c.array(np.array([0])), c.array(np.array([extent[axis] - 1]))
    written = c("And", c("GreaterOrEqual", own, zero), c("LessOrEqual", own, last))
    row = c("Min", c("Max", own, zero), last)
    wide = (*extent[:axis], shape[axis], *extent[axis + 1 :])
    if math.prod(wide) == 0:
        raise c.refuse("its update has no elements")
    moved = c("GatherElements", c.input(1), c("Expand", row, c.integers(*wide)), axis=axis)
    c.result("Where", written, moved, c.input(0))


def _compress(c: Composer) -> None:
    """The rows of a dimension, or of the flattened operand, where a constant is true."""
    condition = c.value(1)
    if condition is None:
        raise c.refuse("its condition is computed at run time")
    shape, axis = c.shape(0), c.attr("axis", None)
    if axis is not None and not -len(shape) <= axis < len(shape):
        raise malformed(c.node, f"axis {axis} of {len(shape)} dimensions")
    x = c.input(0) if axis is not None else c.reshaped(c.input(0), -1)
    rows = np.flatnonzero(condition)
    if rows.size and rows[-1] >= (math.prod(shape) if axis is None else shape[axis]):
        raise malformed(c.node, f"a condition of {condition.size} elements for {shape}")
    c.result("Gather", x, c.array(rows), axis=axis or 0)


def _max_unpool(c: Composer) -> None:
    """Zeros with the elements at the places that MaxPool found, which count in the result.

    So do ONNX Runtime and PyTorch where output_shape is larger than what the windows cover.
    """
    shape, kernel = c.shape(0), c.attr("kernel_shape", ())
    n = len(kernel)
    strides, pads = c.attr("strides", (1,) * n), c.attr("pads", (0,) * 2 * n)
    if n != len(shape) - 2 or len(strides) != n or len(pads) != 2 * n:
        raise malformed(c.node, f"a window of {n} dimensions for {len(shape) - 2}")
    window = zip(shape[2:], strides, kernel, pads[:n], pads[n:], strict=True)
    out = (*shape[:2], *((h - 1) * s + k - b - e for h, s, k, b, e in window))
    if c.input(2):
        wanted = c.value(2)
        if wanted is None:
            raise c.refuse("its output_shape is computed at run time")
        if wanted.size != len(out) or any(b < a for a, b in zip(out, wanted, strict=True)):
            raise malformed(c.node, f"output_shape {tuple(wanted.tolist())} for {out}")
        out = tuple(wanted.tolist())
    check_constant(c.node, 4 * math.prod(out))
    zeros = c("Expand", c.array(np.zeros(1, np.float32)), c.integers(math.prod(out)))
    flat = [c.reshaped(c.input(k), -1) for k in (1, 0)]
    places = c("Unsqueeze", flat[0], c.integers(1))
    c.result("Reshape", c("ScatterND", zeros, places, flat[1]), c.integers(*out))


def _space_to_depth(c: Composer) -> None:
    """Blocks whose places run within each channel; those before the channels are left."""
    if c.attr("mode", "DCR") != "CRD":
        return
    (n, channels, *sizes), size = c.shape(0), c.attr("blocksize", 1)
    if size < 1 or any(extent % size for extent in sizes):
        raise malformed(c.node, f"blocks of {size} in {sizes}")
    pairs = [part for extent in sizes for part in (extent // size, size)]
    apart = c.reshaped(c.input(0), n, channels, *pairs)
    inner = range(3, 2 + len(pairs), 2)
    moved = c("Transpose", apart, perm=(0, 1, *inner, *(a - 1 for a in inner)))
    rows = (n, channels * size ** len(sizes), *(extent // size for extent in sizes))
    c.result("Reshape", moved, c.integers(*rows))


def _range(c: Composer) -> None:
    """Bounds that are tensors of one element, as some function bodies have them."""
    known = [c.value(n) for n in range(3)]
    if all(v is not None and v.size == 1 for v in known) and any(
        v is not None and v.ndim for v in known
    ):
        c.result("Range", *(c.array(v.reshape(())) for v in known if v is not None))


COMPOSITIONS: dict[str, Composition] = {
    "SpaceToDepth": _space_to_depth,
    "Range": _range,
    "LayerNormalization": _layer_norm,
    "BatchNormalization": _batch_norm,
    "Dropout": _dropout,
    "Hardmax": _hardmax,
    "EyeLike": _eye_like,
    "BitwiseNot": _bitwise_not,
    "ReverseSequence": _reverse_sequence,
    "TensorScatter": _tensor_scatter,
    "Compress": _compress,
    "MaxUnpool": _max_unpool,
}
"""Of opset 22, or newer than it."""
