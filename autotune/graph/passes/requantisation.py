"""① Requantization of a sum of scaled integers: its scale goes into the factors of the sum.

    Quantize(Relu(f·m + b), t, z)                ->  Quantize(Relu(f·(m/t) + b/t), -, z)
    Quantize(Dequantize(p, r) + Dequantize(q, s), t, z)
                                  ->  Quantize(Dequantize(p, r/t) + Dequantize(q, s/t), -, z)

So nothing is divided at run time. Factors are rounded once more than in the definition.
"""

from __future__ import annotations

import numpy as np

from autotune.graph.ir import Node
from autotune.graph.rewriter import Rewriter, Rule

_LINEAR, _HOMOGENEOUS = ("Add", "Sub"), ("Relu", "LeakyRelu")
"""f(a·x, a·y) = a·f(x, y) for a > 0."""
_SMALLEST, _LARGEST = 2.0**-60, 2.0**60
"""Of scales and factors: their quotient is a float32, and so are its products with integers."""


def _requantise(rw: Rewriter) -> None:
    """Quantize(sum of scaled terms, t, z) -> Quantize(sum of terms scaled by 1/t, -, z)."""
    step = rw.value(1)
    scale = float(step.reshape(-1)[0]) if step is not None and step.size == 1 else 0.0
    if not _SMALLEST < scale < _LARGEST:
        return
    terms = _terms(rw, rw.input(0))
    # one quantised term alone is no sum but a table
    if len(terms) > 1 or [n.op for n in terms] == ["Mul"]:
        sums = _divided(rw, rw.input(0), scale)
        rw.result("Quantize", sums, "", *rw.node.inputs[2:], **rw.node.attrs)


def _terms(rw: Rewriter, name: str) -> list[Node]:
    """The nodes that scale the terms of a sum by constants; none where something else does."""
    maker = rw.maker(name, "Dequantize") or rw.private(name, "Mul", "Clip", *_LINEAR, *_HOMOGENEOUS)
    if maker is None or not all(_is_moderate(rw, n) for n in maker.inputs):
        return []
    known = [n in rw.constants for n in maker.inputs if n]
    if maker.op == "Mul":
        return [maker] if any(known) else []
    if maker.op in ("Dequantize", "Clip") and not all(known[1:]):
        return []
    if maker.op == "Dequantize":
        return [maker]
    parts = [_terms(rw, n) for n in maker.inputs if n and n not in rw.constants]
    return [term for part in parts for term in part] if all(parts) else []


def _is_moderate(rw: Rewriter, name: str) -> bool:
    """Whether no finite number of a constant becomes infinite by a division."""
    value = rw.constants.get(name)
    return value is None or not (np.isfinite(value) & (np.abs(value) > _LARGEST)).any()


def _divided(rw: Rewriter, name: str, scale: float) -> str:
    """Emit a sum of scaled terms, or a constant, divided by `scale`."""
    value = rw.constants.get(name)
    if value is not None:
        return rw.array((value.astype(np.float64) / scale).astype(np.float32))
    if not name:
        return name
    maker = rw.editor.makers[name]
    inputs = list(maker.inputs)
    match maker.op:
        case "Dequantize":
            places = [1]
        case "Mul":
            places = [next(n for n, operand in enumerate(inputs) if operand in rw.constants)]
        case _:
            places = [*range(len(inputs))]
    for n in places:
        inputs[n] = _divided(rw, inputs[n], scale)
    return rw(maker.op, *inputs, **maker.attrs)


REQUANTISE = Rule("requantise", _requantise, {"Quantize"})
