"""ONNX operators of your own: `autotune tune MODEL --operators operators.py`.

A node `com.acme.Swish` or `com.acme.RowShares` of a model gets its meaning here. A function takes a
tensor per input of the node and the node's attributes by name, and returns a tensor per output.
"""

from __future__ import annotations

from autotune import te


def swish(x: te.Tensor, *, beta: float = 1.0) -> te.Tensor:
    """x · sigmoid(beta · x), of any shape."""
    return te.compute(x.shape, lambda *i: x[i] * te.sigmoid(beta * x[i]))


def row_shares(x: te.Tensor) -> tuple[te.Tensor, te.Tensor]:
    """Each element over the sum of its row, and the sums."""
    k = te.reduce_axis(x.shape[1])
    sums = te.compute(x.shape[0], lambda i: te.sum(x[i, k], k))
    return te.compute(x.shape, lambda i, j: x[i, j] / sums[i]), sums


OPERATORS = {"com.acme.Swish": swish, "com.acme.RowShares": row_shares}
