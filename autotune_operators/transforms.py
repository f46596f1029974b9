"""What models of ai.onnx.ml do with their scores at the end (`post_transform`), in each row.

SOFTMAX        Softmax(x)
SOFTMAX_ZERO   the same of scores that are not 0; those stay 0
LOGISTIC       Sigmoid(x)
PROBIT         √2 · the inverse of erf(2x - 1), by Winitzki's approximation, as in ONNX Runtime
"""

from __future__ import annotations

from autotune.graph.rewriter import Rewriter

_ZERO = 1e-7
"""What counts as 0."""
_SHAPE = 0.147
"""Parameter of Winitzki's approximation."""


def post_transform(rw: Rewriter, x: str, name: str, dtype: str) -> str:
    """Scores [b, n] of floats transformed. Raises UnsupportedOperator for a name that is none."""
    match name:
        case "NONE":
            return x
        case "SOFTMAX":
            return rw("Softmax", x, axis=-1)
        case "LOGISTIC":
            return rw("Sigmoid", x)
        case "SOFTMAX_ZERO":
            return _softmax_zero(rw, x, dtype)
        case "PROBIT":
            return _probit(rw, x, dtype)
    raise rw.refuse(f"post_transform {name}")


def _softmax_zero(rw: Rewriter, x: str, dtype: str) -> str:
    axis = rw.integers(-1)
    top = rw("ReduceMax", x, axis)
    is_zero = rw("LessOrEqual", rw("Abs", x), rw.scalar(_ZERO, dtype))
    power = rw("Exp", rw("Sub", x, top))
    kept = rw("Where", is_zero, rw.scalar(0.0, dtype), power)
    held = rw("Where", is_zero, rw("Mul", x, rw("Exp", rw("Neg", top))), power)
    return rw("Div", held, rw("ReduceSum", kept, axis))


def _probit(rw: Rewriter, x: str, dtype: str) -> str:
    one, two = rw.scalar(1.0, dtype), rw.scalar(2.0, dtype)
    y = rw("Sub", rw("Mul", x, two), one)
    log = rw("Log", rw("Mul", rw("Sub", one, y), rw("Add", one, y)))
    v = rw("Mul", log, rw.scalar(0.5, dtype))
    v = rw("Add", v, rw.scalar(2 / (3.14159 * _SHAPE), dtype))
    w = rw("Mul", log, rw.scalar(1 / _SHAPE, dtype))
    root = rw("Sqrt", rw("Sub", rw("Sqrt", rw("Sub", rw("Mul", v, v), w)), v))
    signed = rw("Where", rw("Less", y, rw.scalar(0.0, dtype)), rw("Neg", root), root)
    return rw("Mul", signed, rw.scalar(1.41421356, dtype))
