"""Small models, and inputs of them."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

HEAD = '<ir_version: 8, opset_import: ["" : 17, "com.microsoft" : 1]>\n'
STATIC = f"""{HEAD}
m (float[2,3] x, int64[1] n) => (float[2,3] y, int64[1] k) {{ y = Abs (x) k = Neg (n) }}"""
DYNAMIC = HEAD + "m (float[batch,3] x) => (float[batch,3] y) { y = Abs (x) }"

SINGLE = f"""{HEAD}
m (float[rows,3] x) => (float[some,3] y) {{
  start = Constant <value_ints = [0]> () end = Constant <value_ints = [4]> ()
  first = Slice (x, start, end) own = Abs (first)
  n = Shape <end = 1> (x) seven = Constant <value_ints = [7]> () rest = Mod (n, seven)
  one = Constant <value_ints = [1]> () few = Add (rest, one) some_rows = Slice (x, start, few)
  low = Abs (some_rows) under = Neg (low) high = ReduceMax <keepdims = 0> (under)
  above = Relu (high) y = Sub (own, above) }}"""
"""At most four rows, less what no row of `rows` has: of as many rows as the rest of their number by
seven, and one, so that no network is for all sizes."""
ATTENTION = f"""{HEAD}
m (float[batch,length,8] x, int64[batch,length] mask) => (float[batch,length,8] y) {{
  real = Cast <to = 1> (mask) one = Constant <value_float = 1.0> ()
  gone = Sub (one, real) lowest = Constant <value_float = -3.4e38> ()
  axes = Constant <value_ints = [1]> () added = Mul (gone, lowest)
  row = Unsqueeze (added, axes) keys = Transpose <perm = [0, 2, 1]> (x)
  scores = MatMul (x, keys) masked = Add (scores, row) parts = Softmax (masked)
  y = MatMul (parts, x) }}"""

LINE = f"""{HEAD}
m (float[batch,3,high,wide] x, float[24,1] rows) => (float[batch,3,high,wide] y) {{
  y = Add (x, rows) }}"""
"""Of one height, which its file does not say."""


def rows(n: int) -> NDArray[np.float32]:
    """`n` rows of `x`."""
    return -np.arange(3 * n, dtype=np.float32).reshape(n, 3)
