"""Discrete Fourier transforms -> products with known matrices, convolutions with known kernels.

    DFT(x)          ->  MatMul(x as rows of real numbers, matrix), of two factors where it is long
    STFT(x, window) ->  Conv(x, rows of the matrix · window), one step per frame

A complex number is two real ones beside each other, so a complex matrix is one of 2 × 2 blocks.
Formulas: ONNX operator reference; factors: Cooley and Tukey (1965).
"""

from __future__ import annotations

import math

import numpy as np

from autotune.graph.ir import Array, Shape
from autotune.graph.limits import check_constant
from autotune.graph.rewriter import Rewrite, Rewriter

_LONG = 256
"""Lengths from here on are taken in two factors: products fall from n² to n·(a + b)."""


def _dft(rw: Rewriter) -> None:
    """x[…, n, …, 1 or 2] -> the transform along an axis, with length, direction and side."""
    shape, dtype = rw.shape(0), rw.types[rw.input(0)].dtype
    axis = _single(rw, 2, -2) % len(shape)
    inverse, onesided = bool(rw.attr("inverse", 0)), bool(rw.attr("onesided", 0))
    if len(shape) < 2 or axis == len(shape) - 1 or shape[-1] not in (1, 2):
        raise rw.refuse(f"axis {axis} of shape {shape}")
    if onesided and not inverse and shape[-1] != 1:
        raise rw.refuse("one side of the transform of complex numbers")
    to_real = inverse and onesided
    length = _single(rw, 1, 2 * (shape[axis] - 1) if to_real else shape[axis])
    if length < 1:
        raise rw.refuse(f"length {length}")
    order = (*(a for a in range(len(shape) - 1) if a != axis), axis, len(shape) - 1)
    moved = rw("Transpose", rw.input(0), perm=order)
    outer = tuple(shape[a] for a in order[:-2])
    given = (math.prod(outer), shape[axis], shape[-1])
    a, b = _factors(length)
    if to_real or length < _LONG or a == 1:
        made, n_made, parts = _whole(rw, moved, given, length, (inverse, onesided), dtype)
    else:
        made, n_made, parts = _in_factors(rw, moved, given, (a, b), inverse, dtype)
        if onesided:
            n_made = length // 2 + 1
            zero, end, one = (rw.integers(v) for v in (0, n_made, 1))
            made = rw("Slice", made, zero, end, one)
    back = tuple(order.index(a) for a in range(len(shape)))
    rw.result("Transpose", rw.reshaped(made, *outer, n_made, parts), perm=back)


def _single(rw: Rewriter, n: int, default: int) -> int:
    """Input `n`, a whole number that has to be known."""
    if not rw.input(n):
        return default
    value = rw.value(n)
    if value is None or value.size != 1:
        raise rw.refuse(f"its input {n} is computed at run time")
    return int(value.reshape(-1)[0])


def _factors(n: int) -> tuple[int, int]:
    """a · b = n, as near to one another as can be, a ≤ b."""
    a = next(a for a in range(math.isqrt(n), 0, -1) if n % a == 0)
    return a, n // a


def _whole(
    rw: Rewriter, x: str, given: Shape, length: int, form: tuple[bool, bool], dtype: str
) -> tuple[str, int, int]:
    """One product: its result [rows, n·parts], n and parts.

    In float64: it is short, and what should be zero because terms cancel is expected to be so.
    """
    rows, n_in, n_parts = given
    inverse, onesided = form
    n_out, parts = (length // 2 + 1 if onesided else length), 2
    if inverse and onesided:
        n_out, parts = length, 1
    check_constant(rw.node, 8 * n_in * n_parts * n_out * parts)
    matrix = _matrix(n_in, n_parts, length, inverse, onesided)
    flat = rw.cast(rw.reshaped(x, rows, n_in * n_parts), "float64")
    return rw.cast(rw("MatMul", flat, rw.array(matrix)), dtype), n_out, parts


def _matrix(n_in: int, n_parts: int, length: int, inverse: bool, onesided: bool) -> Array:
    """[n_in · n_parts, n_out · parts]: the transforms of all unit vectors."""
    units = np.eye(n_in * n_parts).reshape(-1, n_in, n_parts)
    signal = units[..., 0] + (1j * units[..., 1] if n_parts == 2 else 0)
    if inverse and onesided:
        return np.fft.irfft(signal, length, axis=1)
    found = (np.fft.ifft if inverse else np.fft.fft)(signal, length, axis=1)
    found = found[:, : length // 2 + 1] if onesided else found
    pairs: Array = np.stack([found.real, found.imag], axis=-1).reshape(len(units), -1)
    return pairs


def _in_factors(
    rw: Rewriter, x: str, given: Shape, factors: tuple[int, int], inverse: bool, dtype: str
) -> tuple[str, int, int]:
    """Two products: of the places n1 in x[b·n1 + n2], then of n2; the result [rows, n, 2].

    y[k1 + a·k2] = Σ_n2 w^(n2·k1) (Σ_n1 x[b·n1 + n2] w_a^(n1·k1)) w_b^(n2·k2)
    """
    rows, n_in, parts = given
    a, b = factors
    n = a * b
    x = _of_length(rw, rw.reshaped(x, *given), n_in, n)
    check_constant(rw.node, 16 * (n * a * parts + 2 * b * b))
    turn = (2j if inverse else -2j) * np.pi
    n1, n2, k1, k2 = np.arange(a), np.arange(b)[:, None, None], np.arange(a), np.arange(b)
    first = np.exp(turn * (np.outer(n1, k1) / a + n2 * k1 / n))
    second = np.exp(turn * np.outer(np.arange(b), k2) / b) / (n if inverse else 1)
    split = rw("Transpose", rw.reshaped(x, rows, a, b, parts), perm=(2, 0, 1, 3))
    left = rw.reshaped(split, b, rows, a * parts)
    inner = rw("MatMul", left, rw.array(_blocks(first, parts).astype(dtype)))
    turned = rw("Transpose", rw.reshaped(inner, b, rows, a, 2), perm=(1, 2, 0, 3))
    right = rw.reshaped(turned, rows, a, 2 * b)
    outer = rw("MatMul", right, rw.array(_blocks(second, 2).astype(dtype)))
    joined = rw("Transpose", rw.reshaped(outer, rows, a, b, 2), perm=(0, 2, 1, 3))
    return rw.reshaped(joined, rows, n, 2), n, 2


def _blocks(z: Array, n_parts: int) -> Array:
    """A matrix of complex numbers [n, k] as one of real ones [n · n_parts, k · 2]."""
    rows = [np.stack([z.real, z.imag], axis=-1), np.stack([-z.imag, z.real], axis=-1)]
    *batch, n, k = z.shape
    found: Array = np.stack(rows[:n_parts], axis=-3).reshape(*batch, n * n_parts, 2 * k)
    return found


def _of_length(rw: Rewriter, x: str, extent: int, length: int) -> str:
    """x[rows, extent, parts] cut off or filled with zeros at the end of dimension 1."""
    if extent > length:
        return rw("Slice", x, *(rw.integers(v) for v in (0, length, 1)))
    if extent < length:
        return rw("Pad", x, rw.integers(0, 0, 0, 0, length - extent, 0))
    return x


def _stft(rw: Rewriter) -> None:
    """signal[b, n, 1 or 2] -> [b, frames, bins, 2]: a convolution with the rows of the matrix."""
    shape, dtype = rw.shape(0), rw.types[rw.input(0)].dtype
    if len(shape) == 2:
        shape = (*shape, 1)
    window = rw.value(2)
    if rw.input(2) and window is None:
        raise rw.refuse("its window is computed at run time")
    step, batch, n, parts = _single(rw, 1, 0), *shape
    length = _single(rw, 3, n if window is None else window.size)
    onesided = bool(rw.attr("onesided", 1))
    if step < 1 or length < 1 or length > n or (onesided and parts != 1):
        raise rw.refuse(f"steps of {step} in frames of {length} of a signal of {shape}")
    weights = np.ones(length) if window is None else window.astype(np.float64).reshape(-1)
    n_bins = length // 2 + 1 if onesided else length
    check_constant(rw.node, 8 * len(weights) * parts * n_bins * 2)
    matrix = _matrix(len(weights), parts, length, inverse=False, onesided=onesided)
    matrix = matrix * np.repeat(weights, parts)[:, None]
    kernel = matrix.reshape(len(weights), parts, -1).transpose(2, 1, 0)
    n_frames = 1 + (n - length) // step
    n_read = (n_frames - 1) * step + len(weights)
    x = _of_length(rw, rw.reshaped(rw.input(0), *shape), n, n_read)
    moved = rw("Transpose", x, perm=(0, 2, 1))
    known = rw.array(np.ascontiguousarray(kernel, dtype))
    made = rw("Conv", moved, known, strides=(step,), kernel_shape=(len(weights),))
    rows = rw("Transpose", made, perm=(0, 2, 1))
    rw.result("Reshape", rows, rw.integers(batch, n_frames, n_bins, 2))


def _mel_weights(rw: Rewriter) -> None:
    """Bands, length of the transform, rate, lowest and highest frequency -> [bins, bands]:
    triangles between places that are evenly apart in mel = 2595 · log10(1 + Hz / 700)."""
    given = [rw.value(n) for n in range(5)]
    if any(v is None or v.size != 1 for v in given):
        raise rw.refuse("an input is computed at run time")
    n_bands, length, rate, *edges = (v.reshape(-1)[0] for v in given if v is not None)
    n_bins = int(length) // 2 + 1
    if n_bands < 1 or length < 1 or rate < 1:
        raise rw.refuse(f"{n_bands} bands of {length} samples at {rate} Hz")
    check_constant(rw.node, 8 * n_bins * int(n_bands))
    low, high = (2595 * np.log10(1 + float(e) / 700) for e in edges)
    mel = np.arange(n_bands + 2) * ((high - low) / (n_bands + 2)) + low
    places = (int(length) + 1) * (700 * (10 ** (mel / 2595) - 1)) // rate
    left, middle, right = places[:-2], places[1:-1], places[2:]
    k = np.arange(n_bins)[:, None]
    rise = np.where(middle > left, (k - left) / np.maximum(middle - left, 1), 1.0)
    fall = (right - k) / np.maximum(right - middle, 1)
    found = np.where((left <= k) & (k <= middle), rise, 0.0)
    found = np.where((middle <= k) & (k < right), fall, found)
    rw.result("Cast", rw.array(found), to=rw.attr("output_datatype", 1))


COMPOSITIONS: dict[str, Rewrite] = {
    "DFT": _dft,
    "STFT": _stft,
    "MelWeightMatrix": _mel_weights,
}
