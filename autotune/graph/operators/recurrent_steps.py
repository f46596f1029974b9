"""① The steps of RNN, GRU and LSTM: slices of the weights, and the nodes of their cells.

    RNN   h' = f(xw + h·R)
    GRU   z, r = f(xw + h·R);  n = g(xw + r ⊙ (h·R + b) or (r ⊙ h)·R);  h' = n + z ⊙ (h - n)
    LSTM  i, o, f, c̃ = xw + h·R;  c' = f(f) ⊙ c + f(i) ⊙ g(c̃);  h' = f(o) ⊙ h(c')

Attribute `clip` bounds the operands of activations of gates. With peepholes an LSTM adds p ⊙ c
to i and f, and p ⊙ c' to o; with `input_forget` f(f) is 1 - f(i).

Where W and R are bytes, data and states are quantised before each product, all of them by one scale
(`DynamicQuantizeLSTM` of com.microsoft).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from autotune.graph.ir import Node, Shape
from autotune.graph.operators.integer_products import integer_product
from autotune.graph.operators.quantisation import quantised_dynamically
from autotune.graph.operators.state import BELOW
from autotune.graph.rewriter import Rewriter

GATES = {"RNN": 1, "GRU": 3, "LSTM": 4}

Activation = tuple[str, tuple[tuple[str, float], ...]]
"""An elementwise operator and its attributes."""


@dataclass(frozen=True, slots=True)
class Matrix:
    """Weights (in, gates · hidden), which multiply states or data.

    `scale`: of bytes, a number or one for each column; "" for floats. `zero`: zero points of bytes.
    """

    name: str
    scale: str = ""
    zero: str = ""


@dataclass(frozen=True, slots=True)
class TakenSteps:
    """Of each step how many columns of a gate are computed, and whether it is taken."""

    columns: Sequence[str]
    flags: Sequence[str]


@dataclass(frozen=True, slots=True)
class RecurrentSteps:
    """Emits the nodes of the steps of one direction; `shape`: of a state.

    `names`: the inputs of the node, "" where one is left out. `activations`: those of the cell.
    """

    rw: Rewriter
    node: Node
    names: Sequence[str]
    direction: int
    shape: Shape
    activations: list[Activation]
    taken: TakenSteps | None = None
    """Which are taken, where that follows a length."""

    @property
    def hidden(self) -> int:
        """Elements of a state."""
        return self.shape[-1]

    @property
    def clip(self) -> float | None:
        """The bound of operands of activations."""
        return self.node.attrs.get("clip")

    # --- weights ---

    def matrix(self, n: int, gates: slice) -> Matrix:
        """The rows of some gates of W (input 1) or R (2), transposed: (in, gates · hidden)."""
        first, last = gates.start * self.hidden, gates.stop * self.hidden
        turned = self.rw("Transpose", self._taken(n, first, last), perm=(1, 0))
        at = 6 + 2 * n
        scale, zero = (self._of_bytes(m, slice(first, last)) for m in (at, at + 1))
        return Matrix(turned, scale, zero)

    def _of_bytes(self, n: int, rows: slice) -> str:
        """Scales (inputs 8, 10) or zero points (9, 11) of some rows; "" where there are none."""
        if not self.names[n]:
            return ""
        own = self.rw.constants[self.names[n]][self.direction]
        return self.rw.array(own[rows] if own.ndim else own)

    def vector(self, n: int, first: int, last: int) -> str:
        """Elements of B (input 3) or the peepholes (7); zeros where they are left out."""
        if not self.names[n]:
            return self.rw.array(np.zeros(last - first, np.float32))
        return self._taken(n, first, last)

    def _taken(self, n: int, first: int, last: int) -> str:
        """Rows `first` to `last` of this direction of an input."""
        d = self.direction
        rows = self.rw.slice(self.names[n], (0, 1), (d, first), (d + 1, last))
        return self.rw("Reshape", rows, shape=self.rw.types[rows].shape[1:])

    def input_bias(self) -> str:
        """Bias of the product of the input: all biases but the one that a reset gate scales."""
        rows = GATES[self.node.op] * self.hidden
        is_scaled = self.node.op == "GRU" and self.node.attrs.get("linear_before_reset", 0)
        kept = rows - self.hidden if is_scaled else rows
        own, state = self.vector(3, 0, rows), self.vector(3, rows, rows + kept)
        if is_scaled:
            state = self.rw("Concat", state, self._zeros(self.hidden), axis=0)
        a, b = (self.rw.constants.get(name) for name in (own, state))
        if a is None or b is None:
            return self.rw("Add", own, state)
        return self.rw.array(a + b)

    def scaled_bias(self) -> tuple[str, str]:
        """The bias of the product that a reset gate scales, and the same behind zeros."""
        n = self.hidden
        inside = self.vector(3, 5 * n, 6 * n)
        return inside, self.rw("Concat", self._zeros(2 * n), inside, axis=0)

    def _zeros(self, n: int) -> str:
        return self.rw.array(np.zeros(n, np.float32))

    # --- parts of cells ---

    def projected(self, x: str, most: int) -> tuple[str, ...]:
        """W·x + bias for every step, each (1, 1, batch, gates · hidden)."""
        batch, gates, steps = self.shape[2], GATES[self.node.op], self.rw.types[x].shape[0]
        rows = self.rw("Reshape", x, shape=(steps * batch, self.rw.types[x].shape[-1]))
        product = self.times(rows, self.matrix(1, slice(0, gates)))
        total = self.rw("Add", product, self.input_bias())
        apart = self.rw("Reshape", total, shape=(steps, 1, batch, gates * self.hidden))
        if not self.taken:
            return self.rw.split(apart, [1] * steps, 0)
        rest = self.rw.integers(0, 0, 0, 0, most + 1 - steps, 0, 0, 0)
        return self.rw.split(self.rw("Pad", apart, rest), [1] * (most + 1), 0)[:-1]

    def initial(self, name: str) -> str:
        """The state before the first step; "" where it is zero."""
        value, d = self.rw.constants.get(name), self.direction
        if not name or (value is not None and not value.any()):
            return ""
        wide = self.rw("Reshape", name, shape=(self.rw.types[name].shape[0], *self.shape[1:]))
        return self.rw.slice(wide, (0,), (d,), (d + 1,))

    def product(self, t: int, state: str, r: Matrix, row: str) -> str:
        """h·R + row at step t; the row where the state is zero. `r` is (hidden, gates · hidden)."""
        if not state:
            return row
        total = self.rw("Add", self.times(state, r), row)
        if not self.taken:
            return total
        gates = self.rw.types[total].shape[-1] // self.hidden
        return self.rw(BELOW, total, self.taken.columns[t], times=gates)

    def kept(self, t: int, new: str, old: str) -> str:
        """`new` where step t is taken, else `old`, which may be zero."""
        return self.where(self.taken.flags[t], new, old) if self.taken else new

    def times(self, x: str, matrix: Matrix) -> str:
        """x · matrix; for bytes x is quantised first."""
        rw = self.rw
        if not matrix.scale:
            return rw("MatMul", x, matrix.name)
        q, step, zero = quantised_dynamically(rw, x)
        operands = (q, matrix.name, zero, matrix.zero)
        shape = (*rw.types[x].shape[:-1], rw.types[matrix.name].shape[-1])
        whole = integer_product(rw, Node(rw.node.name, "MatMulInteger", operands, ()), shape)
        scale = rw("Mul", step, matrix.scale)
        return rw("Mul", rw("Cast", whole, to="float32"), scale)

    def activated(self, activation: Activation, x: str) -> str:
        """An activation of x, which is clipped before."""
        op, parameters = activation
        if self.clip is not None:
            bounds = (np.array(bound, np.float32) for bound in (-self.clip, self.clip))
            x = self.rw("Clip", x, *map(self.rw.array, bounds))
        attrs: dict[str, Any] = dict(parameters)
        return self.rw(op, x, **attrs)

    def between(self, new: str, old: str, z: str) -> str:
        """new + z ⊙ (old - new), where `old` may be zero."""
        rw = self.rw
        if not old:
            return rw("Sub", new, rw("Mul", new, z))
        return rw("Add", rw("Mul", rw("Sub", old, new), z), new)

    def where(self, mask: str, new: str, old: str) -> str:
        """`new` where the sequence has not ended, else `old`, which may be zero."""
        return self.rw("Where", mask, new, old or self._zeros(1))


Cell = Callable[[int, str, list[str]], list[str]]
"""A step, its row and the states before it -> the states after it."""


def _rnn(made: RecurrentSteps) -> Cell:
    weight, (f,) = made.matrix(2, slice(0, 1)), made.activations

    def cell(t: int, row: str, state: list[str]) -> list[str]:
        new = made.activated(f, made.product(t, state[0], weight, row))
        return [made.kept(t, new, state[0]), ""]

    return cell


def _lstm(made: RecurrentSteps) -> Cell:
    weight, (f, g, h) = made.matrix(2, slice(0, 4)), made.activations
    n, shape = made.hidden, made.shape
    into, out = [], []
    if made.names[7]:
        into = [made.vector(7, 0, n), made.vector(7, 2 * n, 3 * n)]
        out = [made.vector(7, n, 2 * n)]
    into_attrs: dict[str, Any] = {
        "activations": (f, g),
        "clip": made.clip,
        "input_forget": made.node.attrs.get("input_forget", 0),
    }
    out_attrs: dict[str, Any] = {"activations": (f, h), "clip": made.clip}

    def cell(t: int, row: str, state: list[str]) -> list[str]:
        gates = made.product(t, state[0], weight, row)
        before = [state[1], *into] if state[1] else []
        carried = made.rw("LstmState", gates, *before, shape=shape, **into_attrs)
        carried = made.kept(t, carried, state[1])
        new = made.rw("LstmOutput", gates, carried, *out, shape=shape, **out_attrs)
        return [made.kept(t, new, state[0]), carried]

    return cell


def _gru(made: RecurrentSteps) -> Cell:
    """The order of the gates is z, r, n."""
    linear = made.node.attrs.get("linear_before_reset", 0)
    return _gru_linear_before_reset(made) if linear else _gru_reset_before_linear(made)


def _gru_linear_before_reset(made: RecurrentSteps) -> Cell:
    n, (f, g), rw = made.hidden, made.activations, made.rw
    weight = made.matrix(2, slice(0, 3))
    of_zero, of_product = made.scaled_bias()

    def cell(t: int, row: str, state: list[str]) -> list[str]:
        gates, x_n = rw.split(row, (2 * n, n), 3)
        h_n = of_zero
        if state[0]:
            h_gates, h_n = rw.split(made.product(t, state[0], weight, of_product), (2 * n, n), 3)
            gates = rw("Add", h_gates, gates)
        z, reset = rw.split(made.activated(f, gates), (n, n), 3)
        new = made.activated(g, rw("Add", rw("Mul", reset, h_n), x_n))
        return [made.kept(t, made.between(new, state[0], z), state[0]), ""]

    return cell


def _gru_reset_before_linear(made: RecurrentSteps) -> Cell:
    n, (f, g), rw = made.hidden, made.activations, made.rw
    of_gates, of_new = made.matrix(2, slice(0, 2)), made.matrix(2, slice(2, 3))

    def cell(t: int, row: str, state: list[str]) -> list[str]:
        x_gates, x_n = rw.split(row, (2 * n, n), 3)
        gates = made.product(t, state[0], of_gates, x_gates)
        z, reset = rw.split(made.activated(f, gates), (n, n), 3)
        kept = rw("Mul", state[0], reset) if state[0] else ""
        new = made.activated(g, made.product(t, kept, of_new, x_n))
        return [made.kept(t, made.between(new, state[0], z), state[0]), ""]

    return cell


CELLS: dict[str, Callable[[RecurrentSteps], Cell]] = {"RNN": _rnn, "GRU": _gru, "LSTM": _lstm}
