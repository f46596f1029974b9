"""Two models of one operator each, and inputs of them."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

HEAD = '<ir_version: 8, opset_import: ["" : 17]>\n'
STATIC = f"""{HEAD}
m (float[2,3] x, int64[1] n) => (float[2,3] y, int64[1] k) {{ y = Abs (x) k = Neg (n) }}"""
DYNAMIC = HEAD + "m (float[batch,3] x) => (float[batch,3] y) { y = Abs (x) }"


def rows(n: int) -> NDArray[np.float32]:
    """`n` rows of `x`."""
    return -np.arange(3 * n, dtype=np.float32).reshape(n, 3)
