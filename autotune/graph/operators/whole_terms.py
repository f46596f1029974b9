"""① Channel padding to the dot width: zeros, so that one instruction adds up whole groups.

    Conv(x, w)  3 channels, 4 products an instruction  ->  Conv(Pad(x), w')  4 channels

The zeros of the weights make the others irrelevant.
"""

from __future__ import annotations

import numpy as np

from autotune.dtypes import DTYPES
from autotune.graph.ir import Array
from autotune.graph.operators.definition import Attrs
from autotune.graph.rewriter import Rewriter


def term_axis(op: str, attrs: Attrs, rank: int) -> int:
    """The dimension of the weights of a Conv or MatMul that counts input channels."""
    return 1 if op == "Conv" or attrs.get("trans_b", 0) else max(0, rank - 2)


def channel_axis(op: str, attrs: Attrs, rank: int) -> int:
    """The dimension of the weights of a Conv or MatMul that counts output channels."""
    return 0 if op == "Conv" or attrs.get("trans_b", 0) else rank - 1


def with_zeros(value: Array, axis: int, missing: int) -> Array:
    """`value` with zeros behind a dimension."""
    return np.pad(value, [(0, missing * (n == axis)) for n in range(value.ndim)])


def zeros_behind(rw: Rewriter, name: str, axis: int, missing: int) -> str:
    """Emit a Pad of `missing` zeros behind a dimension of a tensor; the name of its result."""
    kind = rw.types[name]
    pads = np.zeros((2, len(kind.shape)), np.int64)
    pads[1, axis] = missing
    zero = np.zeros((), DTYPES[kind.dtype].numpy)
    wide = (n + missing * (d == axis) for d, n in enumerate(kind.shape))
    return rw("Pad", name, rw.array(pads.reshape(-1)), rw.array(zero), shape=wide)
