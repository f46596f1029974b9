"""① RNN, GRU and LSTM, unrolled into matrix products and elementwise cells.

    xw = MatMul(x, W) + b                             all steps of a direction at once
    h₁ = cell(xw₁, h₀);  h₂ = cell(xw₂, h₁);  …       one after the other
    y  = Concat(h₁, h₂, …)

    RNN   h' = f(xw + h·R)
    GRU   z, r = f(xw + h·R);  n = g(xw + r ⊙ (h·R + b) or (r ⊙ h)·R);  h' = n + z ⊙ (h - n)
    LSTM  i, o, f, c̃ = xw + h·R;  c' = f(f) ⊙ c + f(i) ⊙ g(c̃);  h' = f(o) ⊙ h(c')

A step reads its rows of the first product as a view and writes its part of the result in place (see
`storage`); all steps call the same tasks. W and R are (directions, gates · hidden, in), as in ONNX;
the results of a step are (1, 1, batch, hidden).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np

from autotune.errors import ModelError
from autotune.graph.ir import Array, Editor, Node, Shape, float_array, unsupported
from autotune.graph.limits import MOST_STEPS, refused
from autotune.graph.operators import elementwise
from autotune.graph.operators.definition import Operands, Operator, Scope, axes_of, read, tensor
from autotune.te.expr import Expr, Tensor, add, idx, mul

_GATES = {"RNN": 1, "GRU": 3, "LSTM": 4}
_ACTIVATIONS = {"RNN": ("Tanh",), "GRU": ("Sigmoid", "Tanh"), "LSTM": ("Sigmoid", "Tanh", "Tanh")}
_KNOWN = {name.lower(): name for name in ("Relu", "Tanh", "Sigmoid", "Softsign", "Softplus")}
"""Activations without parameters, by lower-case name."""


def _recurrent(editor: Editor, node: Node) -> None:
    """RNN, GRU and LSTM -> MatMul, Add and the operators of their cells."""
    names = (*node.inputs, *("",) * (8 - len(node.inputs)))
    x, initial = names[0], names[5:7]
    steps, batch, _ = editor.types[x].shape
    w, r, b = _weights(editor, node, names)
    _require_shapes(editor, node, names, w, r, b)
    _refuse_variants(editor, node, names, steps)
    if steps * len(w) > MOST_STEPS:
        reason = f"it takes {steps * len(w):,} steps, {MOST_STEPS:,} are possible"
        raise refused(node, reason, "MOST_STEPS")
    found = []
    for d in range(len(w)):
        backward = d == 1 or node.attrs.get("direction", "forward") == "reverse"
        made = _Steps(editor, node, d, (1, 1, batch, r.shape[2]))
        rows = made.projected(x, steps, w[d], _input_bias(node, b[d]))
        state = [made.initial(name) for name in initial]
        cell = _CELLS[node.op](made, r[d], np.split(b[d], 2)[1])
        outputs: list[str] = []
        for row in reversed(rows) if backward else rows:
            state = cell(row, state)
            outputs.append(state[0])
        found.append((outputs[::-1] if backward else outputs, state))
    _emit_results(editor, node, found)


def _emit_results(editor: Editor, node: Node, found: list[tuple[list[str], list[str]]]) -> None:
    """Y (steps, directions, batch, hidden), and the last states (directions, batch, hidden)."""
    y, *last = (*node.outputs, *("",) * (3 - len(node.outputs)))
    steps = [o for outputs, _ in found for o in outputs]
    each = editor.types[steps[0]].shape
    if y and len(found) == 1:
        _concat(editor, node, steps, y, 0)
    elif y:
        sides = [editor.new(f"{y}.side", (len(outputs), *each[1:])) for outputs, _ in found]
        for (outputs, _), side in zip(found, sides, strict=True):
            _concat(editor, node, outputs, side, 0)
        _concat(editor, node, sides, y, 1)
    for n, name in enumerate(last):
        if name:
            whole = editor.new(f"{name}.all", (len(found), *each[1:]))
            _concat(editor, node, [state[n] for _, state in found], whole, 0)
            editor.emit(Node(node.name, "Reshape", (whole,), (name,)))


def _concat(editor: Editor, node: Node, parts: list[str], out: str, axis: int) -> None:
    if len(parts) == 1:
        editor.emit(Node(node.name, "Reshape", tuple(parts), (out,)))
    else:
        editor.emit(Node(node.name, "Concat", tuple(parts), (out,), {"axis": axis}))


# --- what the node says -----------------------------------------------------------------------


def _weights(editor: Editor, node: Node, names: Sequence[str]) -> tuple[Array, Array, Array]:
    """W, R and B of all directions; B is (directions, 2 · gates · hidden), zeros if absent."""
    w, r = (editor.constants.get(n) for n in names[1:3])
    b = editor.constants.get(names[3])
    if w is None or r is None or (names[3] and b is None):
        raise unsupported(node, editor.graph, "its weights are computed at run time")
    zeros = np.zeros((len(w), 2 * _GATES[node.op] * r.shape[-1]), np.float32)
    return w, r, zeros if b is None else b


def _require_shapes(
    editor: Editor, node: Node, names: Sequence[str], w: Array, r: Array, b: Array
) -> None:
    """Raises ModelError where the shapes of inputs do not fit together."""
    _, batch, n_in = editor.types[names[0]].shape
    hidden = r.shape[-1]
    directions = _directions(node)
    if node.attrs.get("hidden_size", hidden) != hidden:
        raise _unfitting(node, f"hidden_size {node.attrs['hidden_size']} instead of {hidden}")
    rows = _GATES[node.op] * hidden
    pairs = [
        (w.shape, (directions, rows, n_in)),
        (r.shape, (directions, rows, hidden)),
        (b.shape, (directions, 2 * rows)),
        *((editor.types[n].shape, (batch,)) for n in names[4:5] if n),
        *((editor.types[n].shape, (directions, batch, hidden)) for n in names[5:7] if n),
    ]
    for found, wanted in pairs:  # ONNX compares ranks only
        if found != wanted:
            shapes = ("x".join(map(str, s)) for s in (found, wanted))
            raise _unfitting(node, "the shape {} instead of {}".format(*shapes))


def _directions(node: Node) -> int:
    direction = node.attrs.get("direction", "forward")
    if direction not in ("forward", "reverse", "bidirectional"):
        raise _unfitting(node, f"direction '{direction}'")
    return 2 if direction == "bidirectional" else 1


def _unfitting(node: Node, reason: str) -> ModelError:
    return ModelError(
        f"an input or attribute of operator '{node.op}' (node '{node.name}') has {reason}",
        "export the model again",
    )


def _refuse_variants(editor: Editor, node: Node, names: Sequence[str], steps: int) -> None:
    """Raises UnsupportedOperator for variants that no known exporter writes."""
    lengths = editor.constants.get(names[4])
    if names[4] and (lengths is None or np.any(lengths != steps)):
        raise unsupported(node, editor.graph, "its sequences end at different steps")
    if names[7]:
        raise unsupported(node, editor.graph, "it has peepholes")
    for attr in ("layout", "clip", "input_forget", "activation_alpha", "activation_beta"):
        if node.attrs.get(attr) or (attr == "clip" and attr in node.attrs):
            raise unsupported(node, editor.graph, f"it has the attribute '{attr}'")


def _activations(editor: Editor, node: Node, direction: int) -> list[str]:
    """Names of operators, as many as the cell has."""
    default = _ACTIVATIONS[node.op]
    given = node.attrs.get("activations", default * 2)
    if len(given) != len(default) * _directions(node) and "activations" in node.attrs:
        raise _unfitting(node, f"{len(given)} activations")
    names = given[len(default) * direction :][: len(default)]
    if any(a.lower() not in _KNOWN for a in names):
        raise unsupported(node, editor.graph, f"its activations are {', '.join(names)}")
    return [_KNOWN[a.lower()] for a in names]


def _input_bias(node: Node, b: Array) -> Array:
    """The bias that is added to the product of the input: all but the one the reset gate scales."""
    of_input, of_state = np.split(b, 2)
    if node.op == "GRU" and node.attrs.get("linear_before_reset", 0):
        kept = len(of_state) // 3 * 2
        of_state = np.concatenate([of_state[:kept], np.zeros_like(of_state[kept:])])
    return float_array(of_input + of_state)


# --- steps ------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class _Steps:
    """Emits the nodes of the steps of one direction; `shape`: of a state."""

    editor: Editor
    node: Node
    direction: int
    shape: Shape

    @property
    def activations(self) -> list[str]:
        """Operators of the cell."""
        return _activations(self.editor, self.node, self.direction)

    @property
    def hidden(self) -> int:
        """Elements of a state."""
        return self.shape[-1]

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

    def projected(self, x: str, steps: int, w: Array, bias: Array) -> list[str]:
        """W·x + bias for every step, each (1, 1, batch, gates · hidden)."""
        _, _, batch, _ = self.shape
        flat, wide = (steps * batch, w.shape[1]), (steps * batch, w.shape[0])
        rows = self.emit("Reshape", [x], flat)
        product = self.emit("MatMul", [rows, self.constant(w.T)], wide)
        total = self.emit("Add", [product, self.constant(bias)], wide)
        apart = self.emit("Reshape", [total], (steps, 1, batch, w.shape[0]))
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

    def product(self, state: str, r: str, row: str, shape: Shape) -> str:
        """h·R + row; the row where the state is zero. `r` is (hidden, gates · hidden)."""
        if not state:
            return row
        return self.emit("Add", [self.emit("MatMul", [state, r], shape), row], shape)

    def between(self, new: str, old: str, z: str) -> str:
        """new + z ⊙ (old - new), where `old` may be zero."""
        if not old:
            return self.emit("Sub", [new, self.emit("Mul", [new, z])])
        change = self.emit("Mul", [self.emit("Sub", [old, new]), z])
        return self.emit("Add", [change, new])


_Cell = Callable[[str, list[str]], list[str]]
"""The row of a step and the states before it -> the states after it."""


def _rnn(made: _Steps, r: Array, _: Array) -> _Cell:
    weight, (f,) = made.constant(r.T), made.activations

    def cell(row: str, state: list[str]) -> list[str]:
        return [made.emit(f, [made.product(state[0], weight, row, made.shape)]), ""]

    return cell


def _lstm(made: _Steps, r: Array, _: Array) -> _Cell:
    weight, (f, g, h) = made.constant(r.T), made.activations

    def cell(row: str, state: list[str]) -> list[str]:
        gates = made.product(state[0], weight, row, made.wide(4))
        before = [state[1]] if state[1] else []
        carried = made.emit("LstmState", [gates, *before], activations=(f, g))
        return [made.emit("LstmOutput", [gates, carried], activations=(f, h)), carried]

    return cell


def _gru(made: _Steps, r: Array, bias: Array) -> _Cell:
    """The order of the gates is z, r, n."""
    linear = made.node.attrs.get("linear_before_reset", 0)
    return _gru_linear_before_reset(made, r, bias) if linear else _gru_reset_before_linear(made, r)


def _gru_linear_before_reset(made: _Steps, r: Array, bias: Array) -> _Cell:
    n, (f, g) = made.hidden, made.activations
    inside = float_array(bias[2 * n :])
    extra = float_array(np.concatenate([np.zeros(2 * n), inside]))
    weight, of_product, of_zero = (made.constant(c) for c in (r.T, extra, inside))

    def cell(row: str, state: list[str]) -> list[str]:
        gates, x_n = made.split(row, [2 * n, n], 3)
        h_n = of_zero
        if state[0]:
            product = made.product(state[0], weight, of_product, made.wide(3))
            h_gates, h_n = made.split(product, [2 * n, n], 3)
            gates = made.emit("Add", [h_gates, gates], made.wide(2))
        z, reset = made.split(made.emit(f, [gates], made.wide(2)), [n, n], 3)
        scaled = made.emit("Mul", [reset, h_n])
        return [made.between(made.emit(g, [made.emit("Add", [scaled, x_n])]), state[0], z), ""]

    return cell


def _gru_reset_before_linear(made: _Steps, r: Array) -> _Cell:
    n, (f, g) = made.hidden, made.activations
    of_gates, of_new = made.constant(r[: 2 * n].T), made.constant(r[2 * n :].T)

    def cell(row: str, state: list[str]) -> list[str]:
        x_gates, x_n = made.split(row, [2 * n, n], 3)
        gates = made.product(state[0], of_gates, x_gates, made.wide(2))
        z, reset = made.split(made.emit(f, [gates], made.wide(2)), [n, n], 3)
        kept = made.emit("Mul", [state[0], reset]) if state[0] else ""
        new = made.emit(g, [made.product(kept, of_new, x_n, made.wide(1))])
        return [made.between(new, state[0], z), ""]

    return cell


_CELLS: dict[str, Callable[[_Steps, Array, Array], _Cell]] = {
    "RNN": _rnn,
    "GRU": _gru,
    "LSTM": _lstm,
}


# --- as te computations -----------------------------------------------------------------------


def _lstm_state(scope: Scope, node: Node, operands: Operands, shape: Shape) -> Tensor:
    """c' = f(f) ⊙ c + f(i) ⊙ g(c̃), of the gates i, o, f, c̃ side by side; c may be absent."""
    f, g = (_function(name) for name in node.attrs["activations"])
    gates, axes = tensor(operands, 0), axes_of(shape)
    at = [gates[(*axes[:-1], add(axes[-1].var, idx(k * shape[-1])))] for k in range(4)]
    value = mul(f(at[0]), g(at[3]))
    if len(operands) > 1:
        value = add(mul(f(at[2]), read(tensor(operands, 1), axes)), value)
    return scope.compute("state", axes, value)


def _lstm_output(scope: Scope, node: Node, operands: Operands, shape: Shape) -> Tensor:
    """h' = f(o) ⊙ h(c')."""
    f, h = (_function(name) for name in node.attrs["activations"])
    gates, axes = tensor(operands, 0), axes_of(shape)
    o = gates[(*axes[:-1], add(axes[-1].var, idx(shape[-1])))]
    return scope.compute("output", axes, mul(f(o), h(read(tensor(operands, 1), axes))))


def _function(name: str) -> Callable[[Expr], Expr]:
    formula = elementwise.OPERATORS[name].formula
    assert formula is not None
    return lambda x: formula({}, x)


def _with_hidden_size(editor: Editor, node: Node) -> Node:
    """Attribute `hidden_size` from the shape of the weights, where it is left out."""
    if "hidden_size" in node.attrs:
        return node
    size = editor.types[node.inputs[2]].shape[-1:] if len(node.inputs) > 2 else ()
    return replace(node, attrs={**node.attrs, "hidden_size": size[0]}) if size else node


OPERATORS: Mapping[str, Operator] = {
    **{op: Operator(canonical=_recurrent, completed=_with_hidden_size) for op in _CELLS},
    "LstmState": Operator(define=_lstm_state),
    "LstmOutput": Operator(define=_lstm_output),
}
