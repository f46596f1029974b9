"""① RNN, GRU and LSTM, unrolled into matrix products and elementwise cells.

    xw = MatMul(x, W) + b                             all steps of a direction at once
    h₁ = cell(xw₁, h₀);  h₂ = cell(xw₂, h₁);  …       one after the other
    y  = Concat(h₁, h₂, …)

A step reads its rows of the first product as a view and writes its part of the result in place (see
`storage`); all steps call the same tasks. W and R are (directions, gates · hidden, in), as in ONNX;
the results of a step are (1, 1, batch, hidden). Cells: `recurrent_steps`.

Where sequences end at different steps, a state is kept from there on and the result is zero. The
other direction begins at the last step of each sequence, for which its state is the initial one.
So it is where steps follow a length: there are nodes for the most, and behind the length (see
`_taken`) products end before they begin.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace

import numpy as np

from autotune.errors import ModelError
from autotune.graph.ir import Node, Shape, TensorType, unsupported
from autotune.graph.limits import MOST_STEPS, refused
from autotune.graph.operators import elementwise
from autotune.graph.operators.definition import (
    FLOAT32,
    FLOATS,
    Attrs,
    Folding,
    Formula,
    Infer,
    Operands,
    Operator,
    Scope,
    Types,
    axes_of,
    like_first,
    literal,
    optional,
    read,
    tensor,
    typed,
)
from autotune.graph.operators.recurrent_steps import (
    CELLS,
    GATES,
    Activation,
    RecurrentSteps,
    TakenSteps,
)
from autotune.graph.rewriter import Rewriter
from autotune.te.expr import (
    Expr,
    Tensor,
    call,
    compare,
    idx,
    maximum,
    minimum,
    select,
)

OPEN_STEPS = "most_steps"
"""The attribute of a node whose steps follow a length: the most of them."""
RECURRENT = frozenset((*CELLS, "com.microsoft.DynamicQuantizeLSTM"))
STEP_COLUMNS = "autotune.StepColumns"
_ACTIVATIONS = {"RNN": ("Tanh",), "GRU": ("Sigmoid", "Tanh"), "LSTM": ("Sigmoid", "Tanh", "Tanh")}
_PARAMETERS: Mapping[str, Mapping[str, float | None]] = {
    **{name: {} for name in ("Relu", "Tanh", "Sigmoid", "Softsign", "Softplus")},
    "LeakyRelu": {"alpha": 0.01},
    "ThresholdedRelu": {"alpha": 1.0},
    "Elu": {"alpha": 1.0},
    "HardSigmoid": {"alpha": 0.2, "beta": 0.5},
    "ScaledTanh": {"alpha": None, "beta": None},
    "Affine": {"alpha": None, "beta": None},
}
"""The activations of the standard, and what their parameters are where none are given: those of
the operators of the same name, if there are any."""
_KNOWN = {name.lower(): name for name in _PARAMETERS}


def _recurrent(rw: Rewriter) -> None:
    """RNN, GRU and LSTM -> MatMul, Add and the operators of their cells.

    Attribute `layout` 1: the batch is the first dimension of data, states and results.
    """
    names = [rw.input(n) for n in range(12)]
    if not rw.attr("layout", 0):
        rw.returns(*_unrolled(rw, rw.node, names))
        return
    for n in (0, 5, 6):
        names[n] = names[n] and rw("Transpose", names[n], perm=(1, 0, 2))
    perms = ((2, 0, 1, 3), (1, 0, 2), (1, 0, 2))
    results = zip(_unrolled(rw, rw.node, names), perms, strict=False)
    rw.returns(*[rw("Transpose", name, perm=perm) for name, perm in results])


def _unrolled(rw: Rewriter, node: Node, names: Sequence[str]) -> list[str]:
    """Y (steps, directions, batch, hidden), and the last states (directions, batch, hidden)."""
    steps, batch, _ = rw.types[names[0]].shape
    _require_shapes(rw, node, names)
    directions = _directions(node)
    is_open, most = OPEN_STEPS in node.attrs, node.attrs.get(OPEN_STEPS, steps)
    if most * directions > MOST_STEPS:
        reason = f"it takes {most * directions:,} steps, {MOST_STEPS:,} are possible"
        raise refused(node, reason, "MOST_STEPS")
    activations = _activations(rw, node)
    n_each, hidden = len(_ACTIVATIONS[node.op]), rw.types[names[2]].shape[-1]
    taken = _taken(rw, steps, most, hidden) if is_open else None
    found = []
    for d in range(directions):
        chosen = activations[n_each * d :][:n_each]
        made = RecurrentSteps(rw, node, names, d, (1, 1, batch, hidden), chosen, taken)
        state = [made.initial(name) for name in names[5:7]]
        backward = d == 1 or node.attrs.get("direction", "forward") == "reverse"
        rows, masks = made.projected(names[0], most), _masks(made, most)
        found.append(_run(made, rows, state, masks, backward))
    parts = [outputs + outputs[:1] if is_open else outputs for outputs, _ in found]
    y = _joined(rw, [_joined(rw, outputs, 0) for outputs in parts], 1)
    if is_open:
        y = rw.slice(y, (0,), (0,), (steps,))
    states = zip(*(state for _, state in found), strict=True)
    last = [_joined(rw, parts, 0) for parts in states if parts[0]]
    return [y, *(rw("Reshape", name, shape=(directions, batch, hidden)) for name in last)]


def _taken(rw: Rewriter, steps: int, most: int, columns: int) -> TakenSteps:
    """Which of the most steps are taken: by how many columns of a gate are computed, one where a
    step is not taken, and as flags."""
    rest = [1] * (most + 1)
    numbers = rw(STEP_COLUMNS, rw.array(np.full(most + 1, columns)), steps=steps)
    flags = rw(STEP_COLUMNS, rw.array(np.full(most + 1, 2)), steps=steps)
    flags = rw("Less", rw.integers(1), flags)
    wide = rw("Reshape", flags, shape=(most + 1, 1, 1, 1))
    return TakenSteps(rw.split(numbers, rest, 0), rw.split(wide, rest, 0))


def _joined(rw: Rewriter, parts: Sequence[str], axis: int) -> str:
    return rw("Concat", *parts, axis=axis) if len(parts) > 1 else parts[0]


def _run(
    made: RecurrentSteps, rows: Sequence[str], state: list[str], masks: list[str], backward: bool
) -> tuple[list[str], list[str]]:
    """The results of all steps of one direction, and its last states.

    `masks`: which sequences have a step, for each of them.
    """
    cell = CELLS[made.node.op](made)
    outputs = [""] * len(rows)
    for t in reversed(range(len(rows))) if backward else range(len(rows)):
        new = cell(t, rows[t], state)
        outputs[t] = new[0]
        if masks:
            pairs = zip(new, state, strict=True)
            state = [made.where(masks[t], a, b) if a else "" for a, b in pairs]
            outputs[t] = made.where(masks[t], new[0], "")
        else:
            state = new
    return outputs, state


def _masks(made: RecurrentSteps, steps: int) -> list[str]:
    """For every step a flag for each sequence, whether it has one; none where all have all."""
    rw, name, columns = made.rw, made.names[4], (1, 1, made.shape[2], 1)
    lengths = rw.constants.get(name)
    if not name or (lengths is not None and np.all(lengths == rw.types[made.names[0]].shape[0])):
        return []
    if lengths is not None:
        return [rw.array(np.reshape(t < lengths, columns)) for t in range(steps)]
    ends, dtype = rw("Reshape", name, shape=columns), rw.types[name].dtype
    return [rw("Less", rw.array(np.full(1, t, dtype)), ends) for t in range(steps)]


# --- attributes of the node -------------------------------------------------------------------


def _require_shapes(rw: Rewriter, node: Node, names: Sequence[str]) -> None:
    """Raises ModelError where the shapes of inputs do not fit together."""
    _, batch, n_in = rw.types[names[0]].shape
    hidden = rw.types[names[2]].shape[-1]
    directions = _directions(node)
    if node.attrs.get("hidden_size", hidden) != hidden:
        raise _unfitting(node, f"hidden_size {node.attrs['hidden_size']} instead of {hidden}")
    rows = GATES[node.op] * hidden
    wanted = [
        (1, (directions, rows, n_in)),
        (2, (directions, rows, hidden)),
        (3, (directions, 2 * rows)),
        (4, (batch,)),
        (5, (directions, batch, hidden)),
        (6, (directions, batch, hidden)),
        (7, (directions, 3 * hidden)),
    ]
    for n, shape in wanted:  # ONNX compares ranks only
        found = rw.types[names[n]].shape if names[n] else shape
        if found != shape:
            shapes = ("x".join(map(str, s)) for s in (found, shape))
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


def _activations(rw: Rewriter, node: Node) -> list[Activation]:
    """As many as the cell has, for every direction; each takes the next of the parameters given."""
    default = _ACTIVATIONS[node.op]
    given = node.attrs.get("activations", default * _directions(node))
    if len(given) != len(default) * _directions(node):
        raise _unfitting(node, f"{len(given)} activations")
    if any(a.lower() not in _KNOWN for a in given):
        raise unsupported(node, rw.editor.graph, f"its activations are {', '.join(given)}")
    values = {p: iter(node.attrs.get(f"activation_{p}", ())) for p in ("alpha", "beta")}
    found: list[Activation] = []
    for name in (_KNOWN[a.lower()] for a in given):
        attrs = {p: next(values[p], v) for p, v in _PARAMETERS[name].items()}
        if None in attrs.values():
            raise unsupported(node, rw.editor.graph, f"activation {name} needs alpha and beta")
        found.append((name, tuple((p, float(v)) for p, v in attrs.items() if v is not None)))
    return found


# --- as te computations -----------------------------------------------------------------------


def _lstm_state(scope: Scope, node: Node, operands: Operands, shape: Shape) -> Tensor:
    """c' = f(f) ⊙ c + f(i) ⊙ g(c̃), of the gates i, o, f, c̃ side by side; c may be absent.

    Two more operands are the peepholes of i and f.
    """
    f, g = (_function(node, n) for n in range(2))
    gates, axes = tensor(operands, 0), axes_of(shape)
    at: list[Expr] = [gates[(*axes[:-1], axes[-1] + k * shape[-1])] for k in range(4)]
    if len(operands) == 1:
        return scope.compute("state", axes, f(at[0]) * g(at[3]))
    before = read(tensor(operands, 1), axes)
    if len(operands) > 2:
        for k, n in ((0, 2), (2, 3)):
            at[k] = at[k] + read(tensor(operands, n), axes) * before
    taken = f(at[0])
    kept = 1 - taken if node.attrs["input_forget"] else f(at[2])
    return scope.compute("state", axes, kept * before + taken * g(at[3]))


def _lstm_output(scope: Scope, node: Node, operands: Operands, shape: Shape) -> Tensor:
    """h' = f(o) ⊙ h(c'), where c' is not clipped. A third operand is the peephole of o."""
    f = _function(node, 0)
    h = _function(replace(node, attrs={**node.attrs, "clip": None}), 1)
    gates, axes = tensor(operands, 0), axes_of(shape)
    o: Expr = gates[(*axes[:-1], axes[-1] + shape[-1])]
    state, peephole = read(tensor(operands, 1), axes), optional(operands, 2)
    if peephole is not None:
        o = o + read(peephole, axes) * state
    return scope.compute("output", axes, f(o) * h(state))


def _step_columns(scope: Scope, node: Node, operands: Operands, shape: Shape) -> Tensor:
    """The operand for steps that are taken, then 1."""
    (step,) = axes_of(shape)
    taken = compare("lt", step.var, idx(node.attrs["steps"]))
    columns = read(tensor(operands, 0), (step,))
    return scope.compute("columns", (step,), select(taken, columns, idx(1)))


def _function(node: Node, n: int) -> Callable[[Expr], Expr]:
    """Activation `n` of a cell, of the clipped operand."""
    (name, attrs), bound = node.attrs["activations"][n], node.attrs.get("clip")
    known: Mapping[str, Operator] = {**elementwise.OPERATORS, **OPERATORS}
    formula: Formula | None = known[name].formula
    assert formula is not None

    def function(x: Expr) -> Expr:
        if bound is not None:
            x = minimum(literal(bound), maximum(literal(-bound), x))
        y: Expr = formula(dict(attrs), x)
        return y

    return function


def _affine(attrs: Attrs, x: Expr) -> Expr:
    return literal(attrs["alpha"]) * x + literal(attrs["beta"])


def _scaled_tanh(attrs: Attrs, x: Expr) -> Expr:
    return literal(attrs["alpha"]) * call("tanh", literal(attrs["beta"]) * x)


def _type(rw: Rewriter, infer: Infer) -> Types:
    """Attribute `hidden_size` from the shape of the weights, where it is left out."""
    size = rw.kind(2).shape[-1:] if rw.input(2) and "hidden_size" not in rw.node.attrs else ()
    return infer(hidden_size=size[0]) if size else infer()


def _quantised(rw: Rewriter) -> None:
    """W and R are bytes (directions, in, gates · hidden); their scales and zero points, behind the
    inputs of LSTM, are (directions) or (directions, gates · hidden)."""
    names = [rw.input(n) for n in range(12)]
    if any(names[n] not in rw.constants for n in (1, 2, 8, 9, 10, 11)):
        raise rw.refuse("its weights are computed at run time")
    hidden, directions = rw.kind(2).shape[1], _directions(rw.node)
    for n in (8, 9, 10, 11):
        shape = rw.kind(n).shape
        if shape not in ((directions,), (directions, 4 * hidden)):
            raise _unfitting(rw.node, f"{shape} scales or zero points")
    for n in (1, 2):
        names[n] = rw("Transpose", names[n], perm=(0, 2, 1))
    rw.returns(*_unrolled(rw, replace(rw.node, op="LSTM"), names))


def _quantised_types(rw: Rewriter) -> Types:
    """Types of Y and of the last states of DynamicQuantizeLSTM."""
    x, r = (rw.kind(n).shape for n in (0, 2))
    if len(x) != 3 or len(r) != 3:
        raise _unfitting(rw.node, f"the shapes {x} and {r} instead of three dimensions each")
    state = (_directions(rw.node), x[1], r[1])
    shapes = ((x[0], *state), state, state)[: len(rw.node.outputs)]
    return [TensorType(shape, rw.kind(0).dtype) for shape in shapes]


OPERATORS: Mapping[str, Operator] = {
    "com.microsoft.DynamicQuantizeLSTM": Operator(
        canonical=_quantised, typing=typed(own=_quantised_types)
    ),
    **{op: Operator(canonical=_recurrent, typing=_type) for op in CELLS},
    "LstmState": Operator(define=_lstm_state, dtypes=FLOAT32),
    "LstmOutput": Operator(define=_lstm_output, dtypes=FLOAT32),
    STEP_COLUMNS: Operator(
        define=_step_columns, typing=typed(own=like_first), folding=Folding.NEVER
    ),
    "Affine": elementwise.of_formula(_affine, dtypes=FLOATS),
    "ScaledTanh": elementwise.of_formula(_scaled_tanh, dtypes=FLOATS),
}
"""The last two are activations of a cell, and once were operators."""
