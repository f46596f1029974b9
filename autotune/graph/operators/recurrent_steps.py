"""① The steps of RNN, GRU and LSTM: what they read of the weights, and the nodes of their cells.

    RNN   h' = f(xw + h·R)
    GRU   z, r = f(xw + h·R);  n = g(xw + r ⊙ (h·R + b) or (r ⊙ h)·R);  h' = n + z ⊙ (h - n)
    LSTM  i, o, f, c̃ = xw + h·R;  c' = f(f) ⊙ c + f(i) ⊙ g(c̃);  h' = f(o) ⊙ h(c')

Attribute `clip` bounds what activations of gates are applied to. With peepholes an LSTM adds p ⊙ c
to i and f, and p ⊙ c' to o; with `input_forget` f(f) is 1 - f(i).

Where W and R are bytes, data and states are quantised before each product, all of them by one scale
(`DynamicQuantizeLSTM` of com.microsoft).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from autotune.graph.ir import Array, Editor, Node, Shape, float_array
from autotune.graph.operators.integer_products import integer_product
from autotune.graph.operators.quantisation import quantised_dynamically

GATES = {"RNN": 1, "GRU": 3, "LSTM": 4}

Activation = tuple[str, tuple[tuple[str, float], ...]]
"""An elementwise operator and its attributes."""


@dataclass(frozen=True, slots=True)
class Matrix:
    """Weights (in, gates · hidden) that states or data are multiplied by.

    `scale`: of bytes, a number or one for each column; "" for floats. `zero`: zero points of bytes.
    """

    name: str
    scale: str = ""
    zero: str = ""


@dataclass(frozen=True, slots=True)
class Steps:
    """Emits the nodes of the steps of one direction; `shape`: of a state.

    `names`: the inputs of the node, "" where one is left out. `activations`: those of the cell.
    """

    editor: Editor
    node: Node
    names: Sequence[str]
    direction: int
    shape: Shape
    activations: list[Activation]

    @property
    def hidden(self) -> int:
        """Elements of a state."""
        return self.shape[-1]

    @property
    def clip(self) -> float | None:
        """The bound of what activations are applied to."""
        return self.node.attrs.get("clip")

    def emit(
        self, op: str, inputs: Sequence[str], shape: Shape | None = None, **attrs: object
    ) -> str:
        """A node with one result of `shape`, or that of a state."""
        name = self.editor.new(f"{self.node.name}.{op.lower()}", shape or self.shape)
        self.editor.emit(Node(self.node.name, op, tuple(inputs), (name,), attrs))
        return name

    def constant(self, value: Array) -> str:
        """A tensor of the model's weights."""
        return self.editor.constant(f"{self.node.name}.weight", np.ascontiguousarray(value))

    def split(self, name: str, sizes: Sequence[int], axis: int) -> list[str]:
        """Parts of a tensor along `axis`, as views."""
        shape = list(self.editor.types[name].shape)
        parts = []
        for size in sizes:
            shape[axis] = size
            parts.append(self.editor.new(f"{name}.part", shape))
        lengths = self.editor.constant(f"{name}.lengths", np.array(sizes, np.int64))
        inputs = (name, lengths)
        self.editor.emit(Node(self.node.name, "Split", inputs, tuple(parts), {"axis": axis}))
        return parts

    # --- weights ---

    def matrix(self, n: int, gates: slice) -> Matrix:
        """The rows of some gates of W (input 1) or R (2), transposed: (in, gates · hidden)."""
        first, last = gates.start * self.hidden, gates.stop * self.hidden
        value = self.editor.constants.get(self.names[n])
        if value is not None:
            name = self.constant(value[self.direction, first:last].T)
            at = 6 + 2 * n
            scale, zero = (self._of_bytes(m, slice(first, last)) for m in (at, at + 1))
            return Matrix(name, scale, zero)
        n_in = self.editor.types[self.names[n]].shape[-1]
        rows = self._taken(n, first, last, (last - first, n_in))
        return Matrix(self.emit("Transpose", [rows], (n_in, last - first), perm=(1, 0)))

    def _of_bytes(self, n: int, rows: slice) -> str:
        """Scales (inputs 8, 10) or zero points (9, 11) of some rows; "" where there are none."""
        if not self.names[n]:
            return ""
        own = self.editor.constants[self.names[n]][self.direction]
        return self.constant(own[rows] if own.ndim else own)

    def vector(self, n: int, first: int, last: int) -> str:
        """Elements of B (input 3) or the peepholes (7)."""
        value = self.editor.constants.get(self.names[n])
        if value is not None or not self.names[n]:
            return self.constant(self._known(n)[first:last])
        return self._taken(n, first, last, (last - first,))

    def _known(self, n: int) -> Array:
        value = self.editor.constants.get(self.names[n])
        if value is None:
            return np.zeros(2 * GATES[self.node.op] * self.hidden, np.float32)
        return float_array(value[self.direction])

    def _taken(self, n: int, first: int, last: int, shape: Shape) -> str:
        """Rows `first` to `last` of this direction of a tensor, as `shape`."""
        name, d = self.names[n], self.direction
        bounds = ([d, first], [d + 1, last], [0, 1])
        made = [self.editor.constant(f"{name}.bounds", np.array(b, np.int64)) for b in bounds]
        wide = (1, last - first, *self.editor.types[name].shape[2:])
        return self.emit("Reshape", [self.emit("Slice", [name, *made], wide)], shape)

    def input_bias(self) -> str:
        """What is added to the product of the input: all biases but the one that a reset gate
        scales."""
        rows = GATES[self.node.op] * self.hidden
        is_scaled = self.node.op == "GRU" and self.node.attrs.get("linear_before_reset", 0)
        kept = rows - self.hidden if is_scaled else rows
        if not self.names[3] or self.names[3] in self.editor.constants:
            known = self._known(3)
            of_state = np.where(np.arange(rows) < kept, known[rows:], 0)
            return self.constant(float_array(known[:rows] + of_state))
        state = self._filled(self.vector(3, rows, rows + kept), rows, 0)
        return self.emit("Add", [self.vector(3, 0, rows), state], (rows,))

    def _filled(self, x: str, n: int, axis: int) -> str:
        """A vector with zeros behind it (`axis` 0) or in front of it, `n` elements in all."""
        (size,) = self.editor.types[x].shape
        if size == n:
            return x
        zeros = self.constant(np.zeros(n - size, np.float32))
        return self.emit("Concat", [x, zeros] if axis == 0 else [zeros, x], (n,), axis=0)

    def scaled_bias(self) -> tuple[str, str]:
        """The bias of the product that a reset gate scales, and the same behind zeros."""
        n = self.hidden
        inside = self.vector(3, 5 * n, 6 * n)
        value = self.editor.constants.get(inside)
        if value is not None:
            return inside, self.constant(float_array(np.concatenate([np.zeros(2 * n), value])))
        return inside, self._filled(inside, 3 * n, 1)

    # --- parts of cells ---

    def projected(self, x: str, steps: int) -> list[str]:
        """W·x + bias for every step, each (1, 1, batch, gates · hidden)."""
        _, _, batch, _ = self.shape
        gates, n_in = GATES[self.node.op], self.editor.types[x].shape[-1]
        flat, wide = (steps * batch, n_in), (steps * batch, gates * self.hidden)
        rows = self.emit("Reshape", [x], flat)
        product = self.times(rows, self.matrix(1, slice(0, gates)), wide)
        total = self.emit("Add", [product, self.input_bias()], wide)
        apart = self.emit("Reshape", [total], (steps, 1, batch, wide[1]))
        return self.split(apart, [1] * steps, 0)

    def initial(self, name: str) -> str:
        """The state before the first step; "" where it is zero."""
        value = self.editor.constants.get(name)
        if not name or (value is not None and not value.any()):
            return ""
        directions = self.editor.types[name].shape[0]
        wide = self.emit("Reshape", [name], (directions, *self.shape[1:]))
        return self.split(wide, [1] * directions, 0)[self.direction]

    def wide(self, n: int) -> Shape:
        """Shape of `n` states side by side."""
        return (*self.shape[:-1], n * self.hidden)

    def product(self, state: str, r: Matrix, row: str, shape: Shape) -> str:
        """h·R + row; the row where the state is zero. `r` is (hidden, gates · hidden)."""
        if not state:
            return row
        return self.emit("Add", [self.times(state, r, shape), row], shape)

    def times(self, x: str, matrix: Matrix, shape: Shape) -> str:
        """x · matrix, of the result's `shape`; for bytes x is quantised first."""
        if not matrix.scale:
            return self.emit("MatMul", [x, matrix.name], shape)
        rw = self.editor.rw  # type: ignore[attr-defined]
        q, step, zero = quantised_dynamically(rw, x)
        operands = (q, matrix.name, zero, matrix.zero)
        node = Node(self.node.name, "MatMulInteger", operands, ())
        whole = integer_product(rw, node, shape)
        scale = self.emit("Mul", [step, matrix.scale], self.editor.types[matrix.scale].shape)
        return self.emit("Mul", [self.emit("Cast", [whole], shape, to="float32"), scale], shape)

    def activated(self, activation: Activation, x: str, shape: Shape | None = None) -> str:
        """An activation of x, which is clipped before."""
        op, attrs = activation
        if self.clip is not None:
            bounds = [self.constant(np.array(b, np.float32)) for b in (-self.clip, self.clip)]
            x = self.emit("Clip", [x, *bounds], shape)
        return self.emit(op, [x], shape, **dict(attrs))

    def between(self, new: str, old: str, z: str) -> str:
        """new + z ⊙ (old - new), where `old` may be zero."""
        if not old:
            return self.emit("Sub", [new, self.emit("Mul", [new, z])])
        change = self.emit("Mul", [self.emit("Sub", [old, new]), z])
        return self.emit("Add", [change, new])

    def where(self, mask: str, new: str, old: str) -> str:
        """`new` where the sequence has not ended, else `old`, which may be zero."""
        return self.emit("Where", [mask, new, old or self.constant(np.zeros(1, np.float32))])


Cell = Callable[[str, list[str]], list[str]]
"""The row of a step and the states before it -> the states after it."""


def _rnn(made: Steps) -> Cell:
    weight, (f,) = made.matrix(2, slice(0, 1)), made.activations

    def cell(row: str, state: list[str]) -> list[str]:
        return [made.activated(f, made.product(state[0], weight, row, made.shape)), ""]

    return cell


def _lstm(made: Steps) -> Cell:
    weight, (f, g, h) = made.matrix(2, slice(0, 4)), made.activations
    n = made.hidden
    into, out = [], []
    if made.names[7]:
        into = [made.vector(7, 0, n), made.vector(7, 2 * n, 3 * n)]
        out = [made.vector(7, n, 2 * n)]
    attrs = {"clip": made.clip, "input_forget": made.node.attrs.get("input_forget", 0)}

    def cell(row: str, state: list[str]) -> list[str]:
        gates = made.product(state[0], weight, row, made.wide(4))
        before = [state[1], *into] if state[1] else []
        carried = made.emit("LstmState", [gates, *before], activations=(f, g), **attrs)
        peeped = [gates, carried, *out]
        return [made.emit("LstmOutput", peeped, activations=(f, h), clip=made.clip), carried]

    return cell


def _gru(made: Steps) -> Cell:
    """The order of the gates is z, r, n."""
    linear = made.node.attrs.get("linear_before_reset", 0)
    return _gru_linear_before_reset(made) if linear else _gru_reset_before_linear(made)


def _gru_linear_before_reset(made: Steps) -> Cell:
    n, (f, g) = made.hidden, made.activations
    weight = made.matrix(2, slice(0, 3))
    of_zero, of_product = made.scaled_bias()

    def cell(row: str, state: list[str]) -> list[str]:
        gates, x_n = made.split(row, [2 * n, n], 3)
        h_n = of_zero
        if state[0]:
            product = made.product(state[0], weight, of_product, made.wide(3))
            h_gates, h_n = made.split(product, [2 * n, n], 3)
            gates = made.emit("Add", [h_gates, gates], made.wide(2))
        z, reset = made.split(made.activated(f, gates, made.wide(2)), [n, n], 3)
        scaled = made.emit("Mul", [reset, h_n])
        new = made.activated(g, made.emit("Add", [scaled, x_n]))
        return [made.between(new, state[0], z), ""]

    return cell


def _gru_reset_before_linear(made: Steps) -> Cell:
    n, (f, g) = made.hidden, made.activations
    of_gates, of_new = made.matrix(2, slice(0, 2)), made.matrix(2, slice(2, 3))

    def cell(row: str, state: list[str]) -> list[str]:
        x_gates, x_n = made.split(row, [2 * n, n], 3)
        gates = made.product(state[0], of_gates, x_gates, made.wide(2))
        z, reset = made.split(made.activated(f, gates, made.wide(2)), [n, n], 3)
        kept = made.emit("Mul", [state[0], reset]) if state[0] else ""
        new = made.activated(g, made.product(kept, of_new, x_n, made.wide(1)))
        return [made.between(new, state[0], z), ""]

    return cell


CELLS: dict[str, Callable[[Steps], Cell]] = {"RNN": _rnn, "GRU": _gru, "LSTM": _lstm}
