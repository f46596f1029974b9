"""① Convolution of deformed windows -> their columns, and a product with the weights.

DeformConv(x, w, offset, bias, mask)
->  MatMul(w[g, m/g, c/g·k], DeformedColumns(x, offset, mask)[n, g, c/g·k, i·j]) + bias
"""

from __future__ import annotations

import math

from autotune.graph.limits import check_constant
from autotune.graph.reader.composer import Composer, Composition


def _deform_conv(c: Composer) -> None:
    """x[n, c, h, w], w[m, c/g, kh, kw], offset[n, o·kh·kw·2, i, j] -> [n, m, i, j]."""
    x, weight, offset = (c.shape(n) for n in range(3))
    if len(x) != 4 or len(weight) != 4 or len(offset) != 4:
        raise c.refuse(f"an image of {len(x) - 2} dimensions")
    kernel = weight[2:]
    group, parts = c.attr("group", 1), c.attr("offset_group", 1)
    n_taps = math.prod(kernel)
    fits = x[1] == weight[1] * group and weight[0] % group == 0 == x[1] % parts
    if not fits or offset[1] != 2 * parts * n_taps or offset[0] != x[0]:
        raise c.refuse(f"x {x}, weights {weight} and offsets {offset} do not fit together")
    check_constant(c.node, 4 * x[0] * x[1] * n_taps * math.prod(offset[2:]))
    attrs = {
        "kernel_shape": kernel,
        "strides": c.attr("strides", (1, 1)),
        "dilations": c.attr("dilations", (1, 1)),
        "pads": c.attr("pads", (0, 0, 0, 0)),
    }
    where = (x[0], parts, n_taps)
    offsets = c.reshaped(c.input(2), *where, 2, *offset[2:])
    mask = c.reshaped(c.input(4), *where, *offset[2:]) if c.input(4) else ""
    columns = c("DeformedColumns", c.input(0), offsets, mask, **attrs)
    n_terms = weight[1] * n_taps
    right = c.reshaped(columns, x[0], group, n_terms, math.prod(offset[2:]))
    left = c.reshaped(c.input(1), group, weight[0] // group, n_terms)
    made = c.reshaped(c("MatMul", left, right), x[0], weight[0], *offset[2:])
    if c.input(3):
        c.result("Add", made, c.reshaped(c.input(3), weight[0], 1, 1))
    else:
        c.result("Identity", made)


COMPOSITIONS: dict[str, Composition] = {"DeformConv": _deform_conv}
