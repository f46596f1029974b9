"""ONNX operators of your own: `autotune tune MODEL --operators operators.py`.

A node `com.acme.Swish` or `com.acme.RowShares` of a model gets its meaning here. A function takes a
tensor per input of the node and the node's attributes by name, and returns a tensor per output. A
composition emits nodes of other operators in place of its own.
"""

from __future__ import annotations

from autotune import Composition, Rewriter, te


def swish(x: te.Tensor, *, beta: float = 1.0) -> te.Tensor:
    """x · sigmoid(beta · x), of any shape."""
    return te.compute(x.shape, lambda *i: x[i] * te.sigmoid(beta * x[i]))


def row_shares(x: te.Tensor) -> tuple[te.Tensor, te.Tensor]:
    """Each element over the sum of its row, and the sums."""
    k = te.reduce_axis(x.shape[1])
    sums = te.compute(x.shape[0], lambda i: te.sum(x[i, k], k))
    return te.compute(x.shape, lambda i, j: x[i, j] / sums[i]), sums


def scaled_norm(rw: Rewriter) -> None:
    """x / ‖x‖ · scale, of each row: inputs x and scale, attribute `epsilon`."""
    norm = rw("ReduceL2", rw.input(0), rw.integers(-1), keepdims=1)
    safe = rw("Max", norm, rw.scalar(rw.attr("epsilon", 1e-6)))
    rw.result("Mul", rw("Div", rw.input(0), safe), rw.input(1))


OPERATORS = {
    "com.acme.Swish": swish,
    "com.acme.RowShares": row_shares,
    "com.acme.ScaledNorm": Composition(scaled_norm),
}
