"""⑩ Operators as they are defined, for `onnx.reference`, which lacks them.

Computed in float64, and written from their descriptions: nothing is shared with the compiler.
https://github.com/microsoft/onnxruntime/blob/main/docs/ContribOperators.md
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray
from onnx.reference.op_run import OpRun

Array = NDArray[Any]


class MatMulNBits(OpRun):
    """A · ((B - zero points) · scales)ᵀ + bias, with blocks of B along K that share both.

    `g_idx` says of every k which block it belongs to.
    """

    op_domain = "com.microsoft"

    def _run(
        self,
        a: Array,
        b: Array,
        scales: Array,
        zero_points: Array | None = None,
        g_idx: Array | None = None,
        bias: Array | None = None,
        **attrs: Any,
    ) -> tuple[Array]:
        k, n, size = (int(attrs[name]) for name in ("K", "N", "block_size"))
        bits = int(attrs.get("bits", 4))
        n_blocks = -(-k // size)
        block = np.arange(k) // size if g_idx is None else g_idx.astype(np.int64)
        zeros = np.full((n, n_blocks), 2.0 ** (bits - 1))
        if zero_points is not None and zero_points.dtype == np.uint8:
            zeros = _unpacked(zero_points.reshape(n, -1), bits)[:, :n_blocks]
        elif zero_points is not None:
            zeros = zero_points.reshape(n, n_blocks).astype(np.float64)
        integers = _unpacked(b.reshape(n, -1), bits)[:, :k]
        factors = scales.reshape(n, n_blocks).astype(np.float64)
        weights = (integers - zeros[:, block]) * factors[:, block]
        y = a.astype(np.float64) @ weights.T
        return ((y if bias is None else y + bias).astype(a.dtype),)


def _unpacked(data: Array, bits: int) -> Array:
    """Unsigned integers of `bits` that lie in the bytes of every row, the lowest first."""
    shifts = np.arange(0, 8, bits, dtype=np.uint8)
    parts = (data[..., None] >> shifts) & ((1 << bits) - 1)
    return parts.reshape(len(data), -1).astype(np.float64)


DEFINITIONS: tuple[type[OpRun], ...] = (MatMulNBits,)
