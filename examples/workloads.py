"""Computations of `autotune.te`: tune one with `autotune tune workloads.py:matmul_add --args …`."""

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


def transpose(n: int, m: int) -> te.Tensor:
    """y = x transposed."""
    x = te.placeholder((m, n), "x")
    return te.compute((n, m), lambda i, j: x[j, i] * 2, "y")
