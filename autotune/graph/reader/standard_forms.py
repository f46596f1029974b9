"""① Decompositions of standard operators where their record has no definition.

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
from autotune.graph.rewriter import Rewrite, Rewriter


def _dtype(rw: Rewriter, n: int = 0) -> str:
    kind = rw.types.get(rw.input(n))
    return "" if kind is None else kind.dtype


def _layer_norm(rw: Rewriter) -> None:
    """All three results: normalised, mean, and 1 / standard deviation."""
    if not (rw.wants(1) or rw.wants(2)) or _dtype(rw) != "float32":
        return
    rank = rw.rank(0)
    axes = rw.integers(*range(rw.attr("axis", -1) % rank, rank))
    mean = rw("ReduceMean", rw.input(0), axes)
    centred = rw("Sub", rw.input(0), mean)
    variance = rw("ReduceMean", rw("Mul", centred, centred), axes)
    root = rw("Sqrt", rw("Add", variance, rw.scalar(rw.attr("epsilon", 1e-5))))
    inverse = rw("Reciprocal", root)
    rw.bind(1, mean)
    rw.bind(2, inverse)
    scaled = rw("Mul", rw("Mul", centred, inverse), rw.input(1))
    if rw.input(2):
        rw.result("Add", scaled, rw.input(2))
    else:
        rw.result("Identity", scaled)


def _batch_norm(rw: Rewriter) -> None:
    """Parameters that are computed, and the statistics of training."""
    training = rw.attr("training_mode", 0)
    if _dtype(rw) != "float32" or not (training or any(rw.value(n) is None for n in range(1, 5))):
        return
    rank, x = rw.rank(0), rw.input(0)
    scale, shift, mean, variance = (
        rw.reshaped(rw.input(n), -1, *(1,) * (rank - 2)) for n in range(1, 5)
    )
    if training:
        axes = rw.integers(0, *range(2, rank))
        mean = rw("ReduceMean", x, axes)
        centred = rw("Sub", x, mean)
        variance = rw("ReduceMean", rw("Mul", centred, centred), axes)
        momentum = rw.attr("momentum", 0.9)
        for n, found in ((1, mean), (2, variance)):
            kept = rw("Mul", rw.input(n + 2), rw.scalar(momentum))
            new = rw("Mul", rw.reshaped(found, -1), rw.scalar(1 - momentum))
            rw.bind(n, rw("Add", kept, new))
    root = rw("Sqrt", rw("Add", variance, rw.scalar(rw.attr("epsilon", 1e-5))))
    factor = rw("Div", scale, root)
    rw.result("Add", rw("Mul", rw("Sub", x, mean), factor), shift)


def _dropout(rw: Rewriter) -> None:
    """Dropout at inference -> Identity, with a mask of true."""
    ratio, training = rw.value(1), rw.value(2)
    is_off = not rw.input(2) or (training is not None and not training.any())
    if not rw.wants(1) and is_off:
        return
    if not is_off and (ratio is None or ratio.any()):
        return
    rw.result("Identity", rw.input(0))
    if rw.wants(1):
        rw.bind(1, rw("Expand", rw.array(np.ones(1, bool)), rw.integers(*rw.shape(0))))


def _hardmax(rw: Rewriter) -> None:
    """1 at the first largest element along an axis, else 0."""
    shape = rw.shape(0)
    axis = rw.attr("axis", -1)
    if not -len(shape) <= axis < len(shape):
        raise malformed(rw.node, f"axis {axis} of {len(shape)} dimensions")
    best = rw("ArgMax", rw.input(0), axis=axis, keepdims=1)
    places = _places(rw, axis % len(shape))
    rw.result("Cast", rw("Equal", places, best), to=DTYPES[_dtype(rw)].onnx)


def _eye_like(rw: Rewriter) -> None:
    """Ones on a diagonal: only the shape of the operand matters."""
    rows, columns = rw.shape(0)
    kind = rw.attr("dtype", 0) or DTYPES[_dtype(rw)].onnx
    check_constant(rw.node, rows * columns)
    ones = np.eye(rows, columns, rw.attr("k", 0), dtype=bool)
    rw.result("Cast", rw.array(ones), to=kind)


def _bitwise_not(rw: Rewriter) -> None:
    """All bits set, less x: -1 - x, or the largest number - x without a sign."""
    dtype = _dtype(rw)
    if not dtype:
        raise rw.refuse("the type of its operand is not known")
    every = np.iinfo(dtype).max if dtype.startswith("u") else -1
    rw.result("Sub", rw.array(np.array([every], dtype)), rw.input(0))


def _along(axis: int, rank: int) -> list[int]:
    return [-1 if a == axis else 1 for a in range(rank)]


def _places(rw: Rewriter, axis: int) -> str:
    """0, 1, … along a dimension of the first input."""
    shape = rw.shape(0)
    return rw.array(np.arange(shape[axis]).reshape(_along(axis, len(shape))))


def _reverse_sequence(rw: Rewriter) -> None:
    """x[…] from the place length - 1 - t where t is below the length of the batch."""
    shape = rw.shape(0)
    time, batch = rw.attr("time_axis", 0), rw.attr("batch_axis", 1)
    if time == batch:
        raise malformed(rw.node, f"time_axis and batch_axis {time}")
    at = _places(rw, time)
    lengths = rw.reshaped(rw.cast(rw.input(1), "int64"), *_along(batch, len(shape)))
    turned = rw("Sub", rw("Sub", lengths, rw.array(np.array([1]))), at)
    rows = rw("Expand", rw("Where", rw("Less", at, lengths), turned, at), rw.integers(*shape))
    rw.result("GatherElements", rw.input(0), rows, axis=time)


def _tensor_scatter(rw: Rewriter) -> None:
    """A cache with the update at the place that every batch has, or around its end."""
    shape, extent = rw.shape(0), rw.shape(1)
    axis = rw.attr("axis", -2) % len(shape)
    own = _places(rw, axis)
    if rw.input(2):
        own = rw("Sub", own, rw.reshaped(rw.cast(rw.input(2), "int64"), *_along(0, len(shape))))
    if rw.attr("mode", "linear") == "circular":
        own = rw("Mod", own, rw.array(np.array([shape[axis]])))
    zero, last = rw.array(np.array([0])), rw.array(np.array([extent[axis] - 1]))
    written = rw("And", rw("GreaterOrEqual", own, zero), rw("LessOrEqual", own, last))
    row = rw("Min", rw("Max", own, zero), last)
    wide = (*extent[:axis], shape[axis], *extent[axis + 1 :])
    if math.prod(wide) == 0:
        raise rw.refuse("its update has no elements")
    moved = rw("GatherElements", rw.input(1), rw("Expand", row, rw.integers(*wide)), axis=axis)
    rw.result("Where", written, moved, rw.input(0))


def _compress(rw: Rewriter) -> None:
    """The rows of a dimension, or of the flattened operand, where a constant is true."""
    condition = rw.value(1)
    if condition is None:
        raise rw.refuse("its condition is computed at run time")
    shape, axis = rw.shape(0), rw.attr("axis", None)
    if axis is not None and not -len(shape) <= axis < len(shape):
        raise malformed(rw.node, f"axis {axis} of {len(shape)} dimensions")
    x = rw.input(0) if axis is not None else rw.reshaped(rw.input(0), -1)
    rows = np.flatnonzero(condition)
    if rows.size and rows[-1] >= (math.prod(shape) if axis is None else shape[axis]):
        raise malformed(rw.node, f"a condition of {condition.size} elements for {shape}")
    rw.result("Gather", x, rw.array(rows), axis=axis or 0)


def _max_unpool(rw: Rewriter) -> None:
    """Zeros with the elements at the places that MaxPool found, which count in the result.

    So do ONNX Runtime and PyTorch where output_shape is larger than the windows cover.
    """
    shape, kernel = rw.shape(0), rw.attr("kernel_shape", ())
    n = len(kernel)
    strides, pads = rw.attr("strides", (1,) * n), rw.attr("pads", (0,) * 2 * n)
    if n != len(shape) - 2 or len(strides) != n or len(pads) != 2 * n:
        raise malformed(rw.node, f"a window of {n} dimensions for {len(shape) - 2}")
    window = zip(shape[2:], strides, kernel, pads[:n], pads[n:], strict=True)
    out = (*shape[:2], *((h - 1) * s + k - b - e for h, s, k, b, e in window))
    if rw.input(2):
        wanted = rw.value(2)
        if wanted is None:
            raise rw.refuse("its output_shape is computed at run time")
        if wanted.size != len(out) or any(b < a for a, b in zip(out, wanted, strict=True)):
            raise malformed(rw.node, f"output_shape {tuple(wanted.tolist())} for {out}")
        out = tuple(wanted.tolist())
    check_constant(rw.node, 4 * math.prod(out))
    zeros = rw("Expand", rw.array(np.zeros(1, np.float32)), rw.integers(math.prod(out)))
    flat = [rw.reshaped(rw.input(k), -1) for k in (1, 0)]
    places = rw("Unsqueeze", flat[0], rw.integers(1))
    rw.result("Reshape", rw("ScatterND", zeros, places, flat[1]), rw.integers(*out))


def _space_to_depth(rw: Rewriter) -> None:
    """Blocks whose places run within each channel; those before the channels are left."""
    if rw.attr("mode", "DCR") != "CRD":
        return
    (n, channels, *sizes), size = rw.shape(0), rw.attr("blocksize", 1)
    if size < 1 or any(extent % size for extent in sizes):
        raise malformed(rw.node, f"blocks of {size} in {sizes}")
    pairs = [part for extent in sizes for part in (extent // size, size)]
    apart = rw.reshaped(rw.input(0), n, channels, *pairs)
    inner = range(3, 2 + len(pairs), 2)
    moved = rw("Transpose", apart, perm=(0, 1, *inner, *(a - 1 for a in inner)))
    rows = (n, channels * size ** len(sizes), *(extent // size for extent in sizes))
    rw.result("Reshape", moved, rw.integers(*rows))


def _range(rw: Rewriter) -> None:
    """Bounds that are tensors of one element, as some function bodies have them."""
    known = [rw.value(n) for n in range(3)]
    if all(v is not None and v.size == 1 for v in known) and any(
        v is not None and v.ndim for v in known
    ):
        rw.result("Range", *(rw.array(v.reshape(())) for v in known if v is not None))


COMPOSITIONS: dict[str, Rewrite] = {
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
