"""Steps of training.

Momentum(r, t, x, g, v)  ->  v' = alpha·v + beta·(norm·x + g), x' = x - r·v'
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from autotune.graph.rewriter import Rewrite, Rewriter


def _number(rw: Rewriter, value: float, like: str) -> str:
    kind = rw.types.get(like)
    return rw.array(np.array(value, "float32" if kind is None else kind.dtype))


def _steps(n_states: int, step: Callable[..., tuple[str, ...]]) -> Rewrite:
    """An optimiser: r, t, then all x, all gradients and all states; results are x and states."""

    def compose(rw: Rewriter) -> None:
        n = (len(rw.node.inputs) - 2) // (2 + n_states)
        for k in range(n):
            operands = [rw.input(2 + k + m * n) for m in range(2 + n_states)]
            for m, name in enumerate(step(rw, *operands)):
                rw.bind(k + m * n, name)

    return compose


def _regularised(rw: Rewriter, x: str, gradient: str) -> str:
    norm = rw.attr("norm_coefficient", 0.0)
    return rw("Add", rw("Mul", _number(rw, norm, x), x), gradient) if norm else gradient


def _weighted(rw: Rewriter, alpha: float, a: str, beta: str, b: str) -> str:
    """alpha·a + beta·b."""
    return rw("Add", rw("Mul", _number(rw, alpha, a), a), rw("Mul", beta, b))


def _momentum(rw: Rewriter, x: str, g: str, v: str) -> tuple[str, str]:
    g = _regularised(rw, x, g)
    alpha = rw.attr("alpha", 0.0)
    is_later = rw("Greater", rw.input(1), rw.array(np.array(0)))
    beta = rw("Where", is_later, _number(rw, rw.attr("beta", 1.0), x), _number(rw, 1.0, x))
    new = _weighted(rw, alpha, v, beta, g)
    step = new
    if rw.attr("mode", "standard") == "nesterov":
        step = rw("Add", g, rw("Mul", _number(rw, alpha, x), new))
    return rw("Sub", x, rw("Mul", rw.input(0), step)), new


def _adagrad(rw: Rewriter, x: str, g: str, h: str) -> tuple[str, str]:
    g = _regularised(rw, x, g)
    decayed = rw("Mul", _time(rw, x), _number(rw, rw.attr("decay_factor", 0.0), x))
    rate = rw("Div", rw.input(0), rw("Add", _number(rw, 1.0, x), decayed))
    new = rw("Add", h, rw("Mul", g, g))
    root = rw("Add", rw("Sqrt", new), _number(rw, rw.attr("epsilon", 1e-6), x))
    return rw("Sub", x, rw("Div", rw("Mul", rate, g), root)), new


def _adam(rw: Rewriter, x: str, g: str, v: str, h: str) -> tuple[str, str, str]:
    alpha, beta = rw.attr("alpha", 0.9), rw.attr("beta", 0.999)
    g, one = _regularised(rw, x, g), _number(rw, 1.0, x)
    velocity = _weighted(rw, alpha, v, _number(rw, 1 - alpha, x), g)
    square = _weighted(rw, beta, h, _number(rw, 1 - beta, x), rw("Mul", g, g))
    root = rw("Add", rw("Sqrt", square), _number(rw, rw.attr("epsilon", 1e-6), x))
    time = _time(rw, x)
    of_alpha, of_beta = (rw("Sub", one, rw("Pow", _number(rw, f, x), time)) for f in (alpha, beta))
    corrected = rw("Div", rw("Mul", rw.input(0), rw("Sqrt", of_beta)), of_alpha)
    is_later = rw("Greater", rw.input(1), rw.array(np.array(0)))
    rate = rw("Where", is_later, corrected, rw.input(0))
    new = rw("Sub", x, rw("Mul", rate, rw("Div", velocity, root)))
    after = rw.attr("norm_coefficient_post", 0.0)
    return rw("Mul", new, _number(rw, 1 - after, x)) if after else new, velocity, square


def _time(rw: Rewriter, like: str) -> str:
    kind = rw.types.get(like)
    return rw.cast(rw.input(1), "float32" if kind is None else kind.dtype)


_TRAINING = "ai.onnx.preview.training"

COMPOSITIONS: dict[str, Rewrite] = {
    f"{_TRAINING}.Momentum": _steps(1, _momentum),
    f"{_TRAINING}.Adagrad": _steps(1, _adagrad),
    f"{_TRAINING}.Adam": _steps(2, _adam),
}
