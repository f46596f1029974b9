"""① Operators of little use in inference -> others of opset 22: determinants, steps of training.

Det(x)                   ->  elimination with pivots, a few operators for each row
Momentum(r, t, x, g, v)  ->  v' = alpha·v + beta·(norm·x + g), x' = x - r·v'
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from autotune.graph.reader.composer import Composer, Composition

_MOST_ROWS = 64
"""Rows of a matrix up to which its elimination is written out."""


def _number(c: Composer, value: float, like: str) -> str:
    kind = c.types.get(like)
    return c.array(np.array(value, "float32" if kind is None else kind.dtype))


# --- determinants -------------------------------------------------------------------------------


def _det(c: Composer) -> None:
    """x[…, n, n] -> […]: the product of the pivots, with a sign for every exchange of rows."""
    *batch, n, n_columns = c.shape(0)
    if n != n_columns or not 0 < n <= _MOST_ROWS:
        raise c.refuse(f"a matrix of {n} x {n_columns}")
    rest = c.reshaped(c.input(0), -1, n, n)
    total = ""
    for size in range(n, 0, -1):
        pivot, rest = _eliminated(c, rest, size)
        total = c("Mul", total, pivot) if total else pivot
    c.result("Reshape", total, c.integers(*batch))


def _eliminated(c: Composer, x: str, size: int) -> tuple[str, str]:
    """x[m, size, size] -> its largest pivot [m, 1, 1] with a sign, and what is left of it."""
    if size == 1:
        return x, ""
    zero, one = _number(c, 0.0, c.input(0)), _number(c, 1.0, c.input(0))
    first = c("Slice", x, c.integers(0), c.integers(1), c.integers(2))
    best = c("ArgMax", c("Abs", first), axis=1, keepdims=1)
    places = c.array(np.arange(size).reshape(1, size, 1))
    is_best = c("Equal", places, best)
    row = c("ReduceSum", c("Where", is_best, x, zero), c.integers(1))
    top = c("Slice", x, c.integers(0), c.integers(1), c.integers(1))
    moved = c("Where", is_best, top, x)  # the first row takes the place of the pivot's
    below = c("Slice", moved, c.integers(1), c.integers(size), c.integers(1))
    pivot, *others = (
        c("Slice", row, c.integers(a), c.integers(b), c.integers(2)) for a, b in ((0, 1), (1, size))
    )
    is_zero = c("Equal", pivot, zero)
    head = c("Slice", below, c.integers(0), c.integers(1), c.integers(2))
    factor = c("Div", head, c("Where", is_zero, one, pivot))
    tail = c("Slice", below, c.integers(1), c.integers(size), c.integers(2))
    left = c("Sub", tail, c("Mul", factor, others[0]))
    stays = c("Equal", best, c.array(np.zeros((1, 1, 1), np.int64)))
    return c("Where", stays, pivot, c("Neg", pivot)), left


# --- training -----------------------------------------------------------------------------------


def _steps(n_states: int, step: Callable[..., tuple[str, ...]]) -> Composition:
    """An optimiser: r, t, then all x, all gradients and all states; results are x and states."""

    def compose(c: Composer) -> None:
        n = (len(c.node.inputs) - 2) // (2 + n_states)
        for k in range(n):
            operands = [c.input(2 + k + m * n) for m in range(2 + n_states)]
            for m, name in enumerate(step(c, *operands)):
                c.bind(k + m * n, name)

    return compose


def _regularised(c: Composer, x: str, gradient: str) -> str:
    norm = c.attr("norm_coefficient", 0.0)
    return c("Add", c("Mul", _number(c, norm, x), x), gradient) if norm else gradient


def _weighted(c: Composer, alpha: float, a: str, beta: str, b: str) -> str:
    """alpha·a + beta·b."""
    return c("Add", c("Mul", _number(c, alpha, a), a), c("Mul", beta, b))


def _momentum(c: Composer, x: str, g: str, v: str) -> tuple[str, str]:
    g = _regularised(c, x, g)
    alpha = c.attr("alpha", 0.0)
    is_later = c("Greater", c.input(1), c.array(np.array(0)))
    beta = c("Where", is_later, _number(c, c.attr("beta", 1.0), x), _number(c, 1.0, x))
    new = _weighted(c, alpha, v, beta, g)
    step = new
    if c.attr("mode", "standard") == "nesterov":
        step = c("Add", g, c("Mul", _number(c, alpha, x), new))
    return c("Sub", x, c("Mul", c.input(0), step)), new


def _adagrad(c: Composer, x: str, g: str, h: str) -> tuple[str, str]:
    g = _regularised(c, x, g)
    decayed = c("Mul", _time(c, x), _number(c, c.attr("decay_factor", 0.0), x))
    rate = c("Div", c.input(0), c("Add", _number(c, 1.0, x), decayed))
    new = c("Add", h, c("Mul", g, g))
    root = c("Add", c("Sqrt", new), _number(c, c.attr("epsilon", 1e-6), x))
    return c("Sub", x, c("Div", c("Mul", rate, g), root)), new


def _adam(c: Composer, x: str, g: str, v: str, h: str) -> tuple[str, str, str]:
    alpha, beta = c.attr("alpha", 0.9), c.attr("beta", 0.999)
    g, one = _regularised(c, x, g), _number(c, 1.0, x)
    velocity = _weighted(c, alpha, v, _number(c, 1 - alpha, x), g)
    square = _weighted(c, beta, h, _number(c, 1 - beta, x), c("Mul", g, g))
    root = c("Add", c("Sqrt", square), _number(c, c.attr("epsilon", 1e-6), x))
    time = _time(c, x)
    of_alpha, of_beta = (c("Sub", one, c("Pow", _number(c, f, x), time)) for f in (alpha, beta))
    corrected = c("Div", c("Mul", c.input(0), c("Sqrt", of_beta)), of_alpha)
    is_later = c("Greater", c.input(1), c.array(np.array(0)))
    rate = c("Where", is_later, corrected, c.input(0))
    new = c("Sub", x, c("Mul", rate, c("Div", velocity, root)))
    after = c.attr("norm_coefficient_post", 0.0)
    return c("Mul", new, _number(c, 1 - after, x)) if after else new, velocity, square


def _time(c: Composer, like: str) -> str:
    kind = c.types.get(like)
    return c.cast(c.input(1), "float32" if kind is None else kind.dtype)


_TRAINING = "ai.onnx.preview.training"

COMPOSITIONS: dict[str, Composition] = {
    "Det": _det,
    f"{_TRAINING}.Momentum": _steps(1, _momentum),
    f"{_TRAINING}.Adagrad": _steps(1, _adagrad),
    f"{_TRAINING}.Adam": _steps(2, _adam),
}
