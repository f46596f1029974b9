"""Computations of `autotune.te`; tune one by its name and what it is called with:

autotune tune workloads.py:matmul_add --args 1024,1024,1024 --trials 64 --log matmul.jsonl
autotune tune workloads.py:capsule --args 1,14,32,32 --trials 64 --log capsule.jsonl
autotune tune workloads.py:blur --args 1024,1024 --trials 32 --log blur.jsonl
"""

from __future__ import annotations

from autotune import te


def matmul_add(n: int, m: int, k: int) -> te.Tensor:
    """out = a · b + c."""
    a, b = te.placeholder((n, k), "a"), te.placeholder((k, m), "b")
    c, r = te.placeholder((n, m), "c"), te.reduce_axis(k, "r")
    product = te.compute((n, m), lambda i, j: te.sum(a[i, r] * b[r, j], r), "product")
    return te.compute((n, m), lambda i, j: product[i, j] + c[i, j], "out")


def capsule(n: int, size: int, channels: int, filters: int, matrix: int = 4) -> te.Tensor:
    """Capsule convolution: pixels and filters are matrices, so each product is one of matrices."""
    x = te.placeholder((n, size + 2, size + 2, channels, matrix, matrix), "x")
    w = te.placeholder((3, 3, channels, filters, matrix, matrix), "w")
    kh, kw = te.reduce_axis(3, "kh"), te.reduce_axis(3, "kw")
    c, k = te.reduce_axis(channels, "c"), te.reduce_axis(matrix, "k")
    return te.compute(
        (n, size, size, filters, matrix, matrix),
        lambda b, h, v, f, i, j: te.sum(
            x[b, h + kh, v + kw, c, i, k] * w[kh, kw, c, f, k, j], [kh, kw, c, k]
        ),
        "y",
    )


def blur(n: int, m: int) -> te.Tensor:
    """The mean of 3 × 3 pixels: along rows, then along columns. x has a border of one pixel."""
    x = te.placeholder((n + 2, m + 2), "x")
    rows = te.compute((n + 2, m), lambda i, j: (x[i, j] + x[i, j + 1] + x[i, j + 2]) / 3, "rows")
    return te.compute((n, m), lambda i, j: (rows[i, j] + rows[i + 1, j] + rows[i + 2, j]) / 3, "y")
