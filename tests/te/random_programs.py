"""Random programs of the public language, each with what NumPy computes by the same steps.

    program = random_program(seed)      evaluate(program.dag, program.inputs) == program.expected

Values stay near one, so that float64 of both differs in rounding alone.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from autotune import te
from autotune.te.dag import ComputeDAG

Array = NDArray[Any]
Value = tuple[te.Tensor, Array]

FUNCTIONS: dict[str, tuple[Callable[..., Any], Callable[..., Any]]] = {
    "exp": (lambda x: te.exp(-abs(x)), lambda x: np.exp(-abs(x))),
    "log": (lambda x: te.log(1.5 + te.abs(x)), lambda x: np.log(1.5 + abs(x))),
    "rsqrt": (lambda x: te.rsqrt(x * x + 1), lambda x: 1 / np.sqrt(x * x + 1)),
    "sigmoid": (te.sigmoid, lambda x: 1 / (1 + np.exp(-x))),
    "erf": (te.erf, np.vectorize(math.erf, otypes=[float])),
    "tanh": (te.tanh, np.tanh),
    "clip": (lambda x: te.clip(x, -0.75, 1), lambda x: np.clip(x, -0.75, 1)),
    "add": (lambda x: 0.5 + x, lambda x: 0.5 + x),
    "sub": (lambda x: 1 - x, lambda x: 1 - x),
    "mul": (lambda x: 0.25 * x, lambda x: 0.25 * x),
    "div": (lambda x: 2 / (1.5 + abs(x)), lambda x: 2 / (1.5 + abs(x))),
    "pow": (lambda x: 0.5 ** abs(x), lambda x: 0.5 ** abs(x)),
    "power": (lambda x: te.power(abs(x) + 1, 0.5), lambda x: np.sqrt(abs(x) + 1)),
    "saturate": (
        lambda x: te.saturate(te.round(x * 90), "int8").astype("float32") / 90,
        lambda x: np.clip(np.round(x * 90), -128, 127) / 90,
    ),
}
PAIRS: dict[str, tuple[Callable[..., Any], Callable[..., Any]]] = {
    "add": (lambda x, y: x + y, lambda x, y: x + y),
    "sub": (lambda x, y: x - y, lambda x, y: x - y),
    "mul": (lambda x, y: x * te.tanh(y), lambda x, y: x * np.tanh(y)),
    "div": (lambda x, y: x / (1 + abs(y)), lambda x, y: x / (1 + abs(y))),
    "minimum": (te.minimum, np.minimum),
    "maximum": (te.maximum, np.maximum),
    "le": (lambda x, y: te.where(x <= y, x, -1), lambda x, y: np.where(x <= y, x, -1)),
    "ge": (
        lambda x, y: te.where((x >= y) | (x < -0.5), y, 0.5),
        lambda x, y: np.where((x >= y) | (x < -0.5), y, 0.5),
    ),
    "xor": (
        lambda x, y: te.where((x > 0) ^ (y > 0), x, y),
        lambda x, y: np.where((x > 0) ^ (y > 0), x, y),
    ),
}
INTEGERS: dict[str, tuple[Callable[..., Any], Callable[..., Any]]] = {
    "floordiv": (lambda x: (x + 3) // 4, lambda x: (x + 3) // 4),
    "mod": (lambda x: x % 5, lambda x: x % 5),
    "neg": (lambda x: -x, lambda x: -x),
    "bits": (lambda x: (x & 11) | (x ^ 5), lambda x: (x & 11) | (x ^ 5)),
    "shifts": (lambda x: (x << 2) >> 1, lambda x: (x << 2) >> 1),
    "quotient": (lambda x: te.quotient(x, x * 0 + 3), lambda x: np.trunc(x / 3).astype(int)),
    "remainder": (lambda x: te.remainder(x, x * 0 + 3), lambda x: np.fmod(x, 3)),
    "power": (lambda x: te.integer_power(x % 3, x * 0 + 2), lambda x: (x % 3) ** 2),
}
REDUCTIONS: dict[str, tuple[Callable[..., Any], Callable[..., Any]]] = {
    "sum": (te.sum, np.sum),
    "max": (te.max, np.max),
    "min": (te.min, np.min),
}


@dataclass(frozen=True, slots=True)
class Program:
    """`expected`: values of the outputs, by NumPy in float64."""

    dag: ComputeDAG
    inputs: dict[str, Array]
    expected: dict[str, Array]


class _Drawing:
    def __init__(self, seed: int) -> None:
        self.rng = np.random.default_rng(seed)
        self.n = 0
        self.inputs: dict[str, Array] = {}
        self.made: list[Value] = []

    def pick(self, options: Any) -> Any:
        return options[int(self.rng.integers(len(options)))]

    def name(self, kind: str) -> str:
        self.n += 1
        return f"{kind}{self.n}"

    def given(self, shape: tuple[int, ...], dtype: str = "float32") -> Value:
        name, is_constant = self.name("x"), bool(self.rng.random() < 0.3)
        values = self.rng.standard_normal(shape).astype(np.float32)
        if dtype != "float32":
            values = self.rng.integers(-9, 10, shape).astype(dtype)
        self.inputs[name] = values
        wide = np.float64 if dtype == "float32" else np.int64
        return te.placeholder(shape, name, dtype, is_constant), values.astype(wide)

    def step(self, value: Value) -> Value:
        kinds = (self.function, self.pair, self.moved, self.window, self.reduced, self.product)
        step: Callable[[Value], Value] = self.pick((*kinds, self.integers, self.padded))
        return step(value)

    def function(self, value: Value) -> Value:
        (x, data), (ours, numpy) = value, FUNCTIONS[self.pick(sorted(FUNCTIONS))]
        return te.compute(x.shape, lambda *i: ours(x[i]), self.name("t")), numpy(data)

    def pair(self, value: Value) -> Value:
        x, data = value
        ours, numpy = PAIRS[self.pick(sorted(PAIRS))]
        first = int(self.rng.integers(len(x.shape) + 1))  # broadcast along those before
        others = [v for v in self.made if v[0].shape == x.shape[first:]]
        y, other = self.pick(others) if others else self.given(x.shape[first:])
        swapped = self.rng.random() < 0.5

        def element(*i: te.Expression) -> Any:
            a, b = x[i], y[i[first:]]
            return ours(b, a) if swapped else ours(a, b)

        made = numpy(*((other, data) if swapped else (data, other)))
        return te.compute(x.shape, element, self.name("t")), np.broadcast_to(made, x.shape)

    def moved(self, value: Value) -> Value:
        x, data = value
        order = [int(n) for n in self.rng.permutation(len(x.shape))]
        shape = tuple(x.shape[n] for n in order)
        back = [order.index(n) for n in range(len(order))]
        flipped = self.rng.random() < 0.3

        def element(*i: te.Expression) -> Any:
            at = [i[n] for n in back]
            at[-1] = x.shape[-1] - 1 - at[-1] if flipped else at[-1]
            return x[tuple(at)]

        source = data[..., ::-1] if flipped else data
        return te.compute(shape, element, self.name("t")), source.transpose(order)

    def padded(self, value: Value) -> Value:
        x, data = value
        wide = (*x.shape[:-1], x.shape[-1] + 3)
        end = x.shape[-1] + 1

        def element(*i: te.Expression) -> Any:
            inside = (i[-1] > 0) & (i[-1] < end)
            return te.where(inside, x[(*i[:-1], i[-1] - 1)], 0)

        widths = [*[(0, 0)] * (data.ndim - 1), (1, 2)]
        return te.compute(wide, element, self.name("t")), np.pad(data, widths)

    def window(self, value: Value) -> Value:
        """Every second place of the last dimension."""
        x, data = value
        n = (x.shape[-1] + 1) // 2
        made = te.compute((*x.shape[:-1], n), lambda *i: x[(*i[:-1], i[-1] * 2)], self.name("t"))
        return made, data[..., ::2]

    def reduced(self, value: Value) -> Value:
        x, data = value
        ours, numpy = REDUCTIONS[self.pick(sorted(REDUCTIONS))]
        at = int(self.rng.integers(len(x.shape)))
        shape = x.shape[:at] + x.shape[at + 1 :] or (1,)
        k = te.reduce_axis(x.shape[at], self.name("k"))

        def element(*i: te.Expression) -> Any:
            return ours(x[(*i[:at], k, *i[at : len(x.shape) - 1])], k)

        return te.compute(shape, element, self.name("t")), numpy(data, axis=at).reshape(shape)

    def product(self, value: Value) -> Value:
        x, data = value
        n = int(self.rng.integers(1, 5))
        w, other = self.given((x.shape[-1], n))
        k = te.reduce_axis(x.shape[-1], self.name("k"))
        shape = (*x.shape[:-1], n)
        made = te.compute(
            shape, lambda *i: te.sum(x[(*i[:-1], k)] * w[k, i[-1]], k), self.name("t")
        )
        return made, data @ other

    def integers(self, value: Value) -> Value:
        """`value` plus something of integers."""
        x, data = value
        ours, numpy = INTEGERS[self.pick(sorted(INTEGERS))]
        y, other = self.given(x.shape, self.pick(("int32", "int64", "int16")))

        def element(*i: te.Expression) -> Any:
            return x[i] + ours(y[i]).astype("float32") * 0.125

        return te.compute(x.shape, element, self.name("t")), data + numpy(other) * 0.125


def random_program(seed: int, n_steps: int = 6) -> Program:
    """A program of so many steps, of which one or two are outputs."""
    draw = _Drawing(seed)
    rank = int(draw.rng.integers(1, 5))
    shape = tuple(int(n) for n in draw.rng.choice([1, 2, 3, 4, 5], rank))
    draw.made = [draw.given(shape)]
    for _ in range(n_steps):
        value = draw.made[-1] if draw.rng.random() < 0.8 else draw.pick(draw.made)
        draw.made.append(draw.step(value))
    outputs = [draw.made[-1]]
    if draw.rng.random() < 0.3 and draw.made[-2][0].name.startswith("t"):
        outputs.append(draw.made[-2])
    dag = te.dag_of([tensor for tensor, _ in outputs])
    inputs = {p.name: draw.inputs[p.name] for p in dag.placeholders}
    return Program(dag, inputs, {tensor.name: value for tensor, value in outputs})
