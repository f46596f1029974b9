"""Convolution of deformed windows -> their columns, and a product with the weights.

DeformConv(x, w, offset, bias, mask)
->  MatMul(w[g, m/g, c/g·k], DeformedColumns(x, offset, mask)[n, g, c/g·k, i·j]) + bias
"""

from __future__ import annotations

import math

from autotune.graph.limits import check_constant
from autotune.graph.rewriter import Rewrite, Rewriter


def _deform_conv(rw: Rewriter) -> None:
    """x[n, c, h, w], w[m, c/g, kh, kw], offset[n, o·kh·kw·2, i, j] -> [n, m, i, j]."""
    x, weight, offset = (rw.shape(n) for n in range(3))
    if len(x) != 4 or len(weight) != 4 or len(offset) != 4:
        raise rw.refuse(f"an image of {len(x) - 2} dimensions")
    kernel = weight[2:]
    group, parts = rw.attr("group", 1), rw.attr("offset_group", 1)
    n_taps = math.prod(kernel)
    fits = x[1] == weight[1] * group and weight[0] % group == 0 == x[1] % parts
    if not fits or offset[1] != 2 * parts * n_taps or offset[0] != x[0]:
        raise rw.refuse(f"x {x}, weights {weight} and offsets {offset} do not fit together")
    check_constant(rw.node, 4 * x[0] * x[1] * n_taps * math.prod(offset[2:]))
    attrs = {
        "kernel_shape": kernel,
        "strides": rw.attr("strides", (1, 1)),
        "dilations": rw.attr("dilations", (1, 1)),
        "pads": rw.attr("pads", (0, 0, 0, 0)),
    }
    where = (x[0], parts, n_taps)
    offsets = rw.reshaped(rw.input(2), *where, 2, *offset[2:])
    mask = rw.reshaped(rw.input(4), *where, *offset[2:]) if rw.input(4) else ""
    columns = rw("DeformedColumns", rw.input(0), offsets, mask, **attrs)
    n_terms = weight[1] * n_taps
    right = rw.reshaped(columns, x[0], group, n_terms, math.prod(offset[2:]))
    left = rw.reshaped(rw.input(1), group, weight[0] // group, n_terms)
    made = rw.reshaped(rw("MatMul", left, right), x[0], weight[0], *offset[2:])
    if rw.input(3):
        rw.result("Add", made, rw.reshaped(rw.input(3), weight[0], 1, 1))
    else:
        rw.result("Identity", made)


COMPOSITIONS: dict[str, Rewrite] = {"DeformConv": _deform_conv}
