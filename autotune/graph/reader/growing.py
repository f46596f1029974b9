"""① A model with a growing state at a capacity: its length is a number that is given at run time.

    past (…, P, …), tokens (…, L) -> present (…, P + L, …)
    ─►  buffer (…, capacity, …), filled (1), tokens (…, L) -> rows (…, L, …)

The model is imported at P = capacity - L, where every extent is static. What depends on P is found
by importing at P - 1 and near 0 as well: extents that move with it, and constants. Extents stay at
the capacity: places behind the length are *unused*, and whatever would mix them with others
(Softmax, sums, products over such a dimension) is masked. Constants that move are
computed at run time: those that are affine in P from `filled`, others by the nodes that made them
(`constant_forms`). Where neither is possible the model is refused.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from autotune.dtypes import DTYPES
from autotune.errors import NotCompilable, UnsupportedOperator
from autotune.graph.ir import Array, Editor, Graph, Node, Shape, TensorType, unsupported
from autotune.graph.operators.state import (
    APPEND,
    BELOW,
    BYTE_ROWS,
    MATMUL_BELOW,
    ROW_STEPS,
    ROWS,
    SOFTMAX_BELOW,
    rows_first,
    step_axis,
)
from autotune.graph.operators.table import operator_of
from autotune.graph.reader.constant_forms import ConstantForms, LengthFacts, LengthForm
from autotune.graph.reader.static_caches import SCATTERS, TENSOR_SCATTER
from autotune.graph.rewriter import Rewriter
from autotune.graph.shape_inputs import SHAPE_OPERANDS
from autotune.graph.state import StateInfo, buffer_of

GROUPED = "com.microsoft.GroupQueryAttention"
SHARES_BUFFER = "autotune_state"
"""An attribute of nodes whose past is a state."""
FILLED = "filled"
"""The input that holds the length of the state: places that are filled already."""
_LOWEST = float(np.finfo(np.float32).min)


@dataclass(frozen=True)
class Growth:
    """Growth of a model. `states`: inputs and outputs that grow, with their dimension.

    `capacity`: places of the buffers. `chunk`: new ones of a call. `masks`: inputs that tell which
    places count, `positions`: those that number the new ones, `lasts`: the last filled place of
    each sample, `totals`: the length with the new ones. All of these are computed. `replaced`:
    inputs that an output of the same shape takes the place of. `held`: inputs that stay for a
    sequence; `passed`: outputs that are such an input, by input. `flag`: the input that says
    whether there is a past; without one the file computes `passed` of other inputs. `cache`: the
    dtype of the elements of buffers of floats. `shapes`: of `positions`, -1 where they are open.
    `static`: states that have all places in the file, see `static_caches`; there `firsts` are the
    inputs that are the place of the first new row, `counts` the number of places with the new ones.
    """

    states: Mapping[str, tuple[str, int]]
    capacity: int
    chunk: int
    masks: tuple[str, ...] = ()
    positions: tuple[str, ...] = ()
    lasts: tuple[str, ...] = ()
    totals: tuple[str, ...] = ()
    replaced: Mapping[str, str] = field(default_factory=dict)
    held: tuple[str, ...] = ()
    passed: Mapping[str, str] = field(default_factory=dict)
    flag: str = ""
    cache: str = "float32"
    shapes: Mapping[str, tuple[int, ...]] = field(default_factory=dict)
    static: frozenset[str] = frozenset()
    firsts: tuple[str, ...] = ()
    counts: tuple[str, ...] = ()

    @property
    def computed(self) -> frozenset[str]:
        """Inputs that are none any more."""
        by_place = *self.masks, *self.positions, *self.lasts, *self.firsts
        return frozenset((*by_place, *self.totals, *self.counts))

    @property
    def past(self) -> int:
        """The extent of the past at which the model is imported."""
        return self.capacity - self.chunk

    @property
    def pasts(self) -> tuple[int, int, int]:
        """Extents of the past at which it is imported: that, one less, and one near nothing."""
        return self.past, self.past - 1, min(2, self.past - 2)


_FOLLOWING = frozenset(
    (
        *("Transpose", "Reshape", "Flatten", "Expand", "Unsqueeze", "Squeeze", "Tile", "CumSum"),
        *("ConstantOfShape", "Trilu", "Gather", "Slice", "Concat", "Split", "MatMul", "Softmax"),
        *("ReduceSum", "ReduceMax", "ReduceMin", "ScatterElements", "ScatterND"),
        *("GatherElements", "GatherND", "DequantizeLinear", "QuantizeLinear", "LayerNormalization"),
        *("ReduceMean", "ReduceProd", "ReduceL1", "ReduceL2", "ReduceSumSquare", "ReduceLogSum"),
        *("ReduceLogSumExp", "Pad", "Dropout", "CastLike", "Sum", "Mean", "BitCast", APPEND, ROWS),
    )
)
"""Operators, beside those that are elementwise, whose unused places of results come from unused
places of operands, once those over which they reduce are masked."""
_ZERO_KEEPING = frozenset(
    (
        *("Cast", "Identity", "Dropout", "Reshape", "Transpose", "Expand", "Unsqueeze"),
        *("Squeeze", "Mul", "Div"),
    )
)
"""Operators whose results are zero where their first operand is."""
_NEUTRAL: Mapping[str, float] = {
    **dict.fromkeys((f"Reduce{f}" for f in ("Sum", "L1", "L2", "SumSquare", "LogSum")), 0.0),
    "ReduceProd": 1.0,
    "ReduceMax": _LOWEST,
    "ReduceLogSumExp": _LOWEST,
    "ReduceMin": -_LOWEST,
}
"""What changes no reduction."""


@dataclass
class Growing:
    """Rewrites of nodes while a model is imported: see the module.

    `probes`: at the other `pasts` of a growth; with static caches also at P, and positions are
    constants in them.
    """

    growth: Growth
    editor: Editor
    probes: tuple[LengthFacts, ...]
    _moving: dict[str, Shape] = field(default_factory=dict)
    _done: set[str] = field(default_factory=set)
    _sources: dict[str, Node] = field(default_factory=dict)
    _twins: dict[str, str] = field(default_factory=dict)
    _zeroed: set[str] = field(default_factory=set)
    _states: dict[str, str] = field(default_factory=dict)
    _orders: dict[str, tuple[int, ...]] = field(default_factory=dict)
    _turned: dict[str, tuple[str, tuple[int, ...]]] = field(default_factory=dict)
    _scored: dict[str, tuple[str, str]] = field(default_factory=dict)
    _appended: dict[str, tuple[str, str]] = field(default_factory=dict)
    """States -> their new rows, and all places with them."""
    _wholes: dict[str, str] = field(default_factory=dict)
    """Tensors that are all places of a state."""
    _total: str = ""
    _open: set[str] = field(default_factory=set)
    """Results of nodes that compute what was a constant: they are rewritten as all others."""

    def __post_init__(self) -> None:
        past, probes = self.growth.past, self.probes
        self._forms = ConstantForms(self.editor, probes, past, self.moving)

    # --- inputs and outputs ---

    def begin(self) -> list[Node]:
        """The nodes that compute what is no input any more."""
        growth = self.growth
        self._states = {name: name for name in growth.states}
        rw = Rewriter(Node("state", "Identity", (FILLED,), ("state",)), self.editor)
        self._total = rw("Add", FILLED, rw.integers(growth.chunk))
        for name in growth.totals:
            kind = self.editor.types[name]
            self.editor.set_constant(name, np.full(kind.shape, growth.capacity, kind.dtype))
        for name in growth.masks:
            within = rw("Less", rw.array(np.arange(growth.capacity)), self._total)
            self._made(rw, name, within)
        for name in growth.positions:
            n = (
                growth.shapes[name][-1]
                if growth.shapes.get(name, ())[-1:] == (1,)
                else growth.chunk
            )
            self._made(rw, name, rw("Add", FILLED, rw.array(np.arange(n))))
        for name in growth.lasts:
            self._made(rw, name, rw("Sub", self._total, rw.integers(1)))
        for name in growth.firsts:
            self._made(rw, name, FILLED)
        for name in growth.counts:
            self._made(rw, name, self._total)
        return rw.nodes

    def _made(self, rw: Rewriter, name: str, value: str) -> None:
        """`value`, in the shape and the type of the input that it stands for."""
        kind = self.editor.types.pop(name)
        cast = rw("Cast", value, to=DTYPES[kind.dtype].onnx)
        shaped = rw("Expand", rw.reshaped(cast, -1), rw.integers(math.prod(kind.shape[-1:])))
        wide = rw("Expand", shaped, rw.integers(*kind.shape)) if kind.shape else shaped
        rw.nodes.append(Node(name, "Reshape", (wide, rw.integers(*kind.shape)), (name,)))
        self._done.add(name)

    def require_appended(self) -> None:
        """Raises NotCompilable for a state whose output is not all of it with new places."""
        names = {stated: own for own, stated in self.editor.graph.output_names.items()}
        for state, (output, _) in self.growth.states.items():
            if self._wholes.get(names.get(output, output)) != state:
                raise NotCompilable(
                    f"'{output}' is not '{state}' with new places behind it",
                    "name the inputs and outputs that are its state (`state`)",
                )

    # --- facts ---

    def _kind(self, name: str) -> TensorType | None:
        kind = self.editor.types.get(name)
        return kind if kind is not None and min(kind.shape, default=0) >= 0 else None

    def moving(self, name: str) -> Shape:
        """For each dimension of a tensor by how much it grows with the length."""
        kind, probe = self._kind(name), self.probes[0].types.get(name)
        if name in self._moving or kind is None:
            return self._moving.get(name, ())
        if probe is None or len(probe.shape) != len(kind.shape):
            return (0,) * len(kind.shape)
        return tuple(a - b for a, b in zip(kind.shape, probe.shape, strict=True))

    def _moves(self, name: str) -> bool:
        """Whether a constant is another one at another length, where places are used."""
        return name not in self._moving and self._forms.of(name) is not LengthForm.SAME

    def _follows_evenly(self, name: str) -> bool:
        """Whether extents grow by the same number with each place."""
        kind, far = self._kind(name), self.probes[1].types.get(name)
        slopes, less = self.moving(name), self.growth.past - self.probes[1].past
        if (
            kind is None
            or far is None
            or len(far.shape) != len(kind.shape)
            or min(far.shape, default=0) < 0
        ):
            return True
        return all(
            a - b == slope * less for a, b, slope in zip(kind.shape, far.shape, slopes, strict=True)
        )

    def note(self, node: Node) -> None:
        """Remember which node made constants."""
        self._forms.note(node)
        self._sources |= dict.fromkeys(filter(None, node.outputs), node)

    def require_decided(self, node: Node) -> None:
        """Raise UnsupportedOperator for a branch or a loop that the length decides on."""
        deciding = node.inputs[: {"If": 1, "Loop": 2}.get(node.op, 0)]
        if any(self._moves(name) for name in deciding):
            raise unsupported(
                node,
                self.editor.graph,
                "how it is computed depends on the length of the state",
            )
        if node.op == "Scan" and any(any(self.moving(name)) for name in node.inputs):
            raise unsupported(node, self.editor.graph, "it scans a growing state")

    # --- nodes ---

    def takes(self, node: Node) -> bool:
        """Whether a node is replaced before it becomes others."""
        return node.op == TENSOR_SCATTER and self._states.get(node.inputs[0]) is not None

    def replaced(self, node: Node) -> list[Node] | None:
        """The nodes that do the same at run time; None for a node that stays."""
        if node.op in ("Shape", "Size") or not node.outputs or node.outputs[0] in self._done:
            return None
        if not (operator_of(node.op).is_native or self.takes(node)):
            return None  # it becomes others
        constants = self.editor.constants
        given = [n for n in node.inputs if n]
        is_open = node.output in self._open
        self._open.discard(node.output)
        is_known = all(n in constants for n in given) and not is_open
        if is_known or any(self._kind(n) is None for n in given):
            return None
        self._done.add(node.output)
        if self._is_alias(node):
            return []
        rw = Rewriter(node, self.editor)
        self._rewrite(rw)
        made = {name for made in rw.nodes for name in made.outputs}
        self._done |= made - self._open
        self._follow(node)
        return rw.nodes or None

    def _is_alias(self, node: Node) -> bool:
        """Whether a node is another name of a state: nothing reads that but what appends to it."""
        state = self._states.get(node.inputs[0])
        if state is not None and state in self.growth.static and node.op == "Transpose":
            return self._is_turned(node, state)
        if state is None or node.op not in ("Identity", "Concat") or len(node.inputs) > 1:
            return False
        self._states[node.output] = state
        self.editor.types[node.output] = self.editor.types[state]
        return True

    def _is_turned(self, node: Node, state: str) -> bool:
        """Remember a static cache with its dimensions in another order."""
        kind = self.editor.types[state]
        order = node.attrs.get("perm", range(len(kind.shape))[::-1])
        known = self._orders.get(node.inputs[0], tuple(range(len(kind.shape))))
        self._orders[node.output] = tuple(known[d] for d in order)
        self._states[node.output] = state
        shape = tuple(kind.shape[d] for d in self._orders[node.output])
        self.editor.types[node.output] = replace(kind, shape=shape)
        return True

    def _rewrite(self, rw: Rewriter) -> None:
        node = rw.node
        for name in filter(None, node.inputs):
            if not self._follows_evenly(name):
                raise rw.refuse(
                    f"an extent of '{name}' does not grow by the same number with each place of "
                    "the state"
                )
        kept = SHAPE_OPERANDS.get(node.op, ())
        operands = tuple(
            self._at_run_time(rw, name) if n not in kept and self._moves(name) else name
            for n, name in enumerate(node.inputs)
        )
        special = _SPECIAL.get(node.op)
        if special is not None and special(self, rw, operands):
            return
        if not follows_places(node.op) and any(any(self.moving(n)) for n in operands if n):
            raise rw.refuse("it mixes the places of a growing state")
        if operands != node.inputs:
            rw.again(*operands)

    def _follow(self, node: Node) -> None:
        first = node.inputs[0]
        if node.op == "Identity" and first in self._wholes:
            self._wholes[node.output] = self._wholes[first]
        if node.op == "Softmax" or (node.op in _ZERO_KEEPING and first in self._zeroed):
            self._zeroed.add(node.output)
        if node.op == "Where" and all(map(self._is_zeroed, node.inputs[1:])):
            self._zeroed.add(node.output)

    def _is_zeroed(self, name: str) -> bool:
        value = self.editor.constants.get(name)
        return name in self._zeroed or (value is not None and not value.any())

    # --- constants that move ---

    def _at_run_time(self, rw: Rewriter, name: str) -> str:
        """A constant that moves, as it is at the length of the call."""
        if name not in self._twins:
            self._twins[name] = self._affine(rw, name) or self._computed(rw, name)
            self._moving[self._twins[name]] = self.moving(name)
        return self._twins[name]

    def _affine(self, rw: Rewriter, name: str) -> str:
        """constant + slope · (filled - P); "" where that is not what it is."""
        value = self.editor.constants[name]
        slope = self._forms.slope(name) if self._forms.of(name) is LengthForm.AFFINE else None
        if slope is None:
            return ""
        ahead = self._ahead(rw, value.ndim)
        moved = rw("Mul", rw.cast(ahead, str(value.dtype)), rw.array(slope))
        return rw("Add", rw.array(value), moved)

    def _ahead(self, rw: Rewriter, rank: int = 1) -> str:
        """filled - P, without a dimension where `rank` is 0."""
        ahead = rw("Sub", FILLED, rw.integers(self.growth.past))
        return ahead if rank else rw("Squeeze", ahead, rw.integers(0))

    def _computed(self, rw: Rewriter, name: str) -> str:
        """The result of the node that made a constant, at the length of the call."""
        node = self._sources.get(name)
        if node is None or (node.op in SHAPE_OPERANDS and node.op not in _RECOMPUTED):
            raise self._refused(rw, name)
        if node.op == "Trilu" and len(node.inputs) > 1 and self._moves(node.inputs[1]):
            return self._triangle(rw, node)
        if node.op == "Range":
            return self._range(rw, node)
        kept = SHAPE_OPERANDS.get(node.op, ())  # extents are those at the capacity
        operands = (
            self._at_run_time(rw, one) if one and n not in kept and self._moves(one) else one
            for n, one in enumerate(node.inputs)
        )
        index = node.outputs.index(name)
        made = rw.several(node.op, len(node.outputs), *operands, **node.attrs)
        for one, source in zip(made, node.outputs, strict=True):
            self.editor.types[one] = self.editor.types[source]
            self._moving[one] = self.moving(source)
            self._open.add(one)
        return made[index]

    def _range(self, rw: Rewriter, node: Node) -> str:
        """As many numbers, from the first one at the length of the call on."""
        values = [self.editor.constants[one] for one in node.inputs]
        if self._moves(node.inputs[2]):
            raise self._refused(rw, node.output)
        n = self.editor.types[node.output].shape[0]
        steps = np.arange(n) * values[2]
        first = self._at_run_time(rw, node.inputs[0])
        return rw("Add", first, rw.array(steps.astype(values[0].dtype)))

    def _triangle(self, rw: Rewriter, node: Node) -> str:
        """Trilu whose diagonal moves."""
        x, k = (self._at_run_time(rw, n) if self._moves(n) else n for n in node.inputs[:2])
        rows, columns = self.editor.types[node.inputs[0]].shape[-2:]
        ahead = np.arange(columns)[None, :] - np.arange(rows)[:, None]
        op = "GreaterOrEqual" if node.attrs.get("upper", 1) else "LessOrEqual"
        kept = rw(op, rw.array(ahead), k)
        dtype = self.editor.types[node.inputs[0]].dtype
        return rw("Where", kept, x, rw.array(np.zeros((), dtype)))

    def _refused(self, rw: Rewriter, name: str) -> UnsupportedOperator:
        source = self._sources.get(name)
        by = f", the result of {source.op} (node '{source.name}')," if source else ""
        return rw.refuse(
            f"'{name}'{by} depends on the length of the state in a way that is not known"
        )

    # --- masks ---

    def _length(self, rw: Rewriter, name: str, axis: int) -> str:
        """The number of used places of a dimension."""
        shape, slopes = self.editor.types[name].shape, self.moving(name)
        if slopes[axis] != 1:
            raise rw.refuse(f"a dimension grows by {slopes[axis]} with each place of the state")
        less = self.growth.capacity - shape[axis]
        return rw("Sub", self._total, rw.integers(less)) if less else self._total

    def _used(self, rw: Rewriter, name: str, axis: int) -> str:
        """Whether each place of a dimension is used."""
        shape = self.editor.types[name].shape
        length = self._length(rw, name, axis)
        places = np.arange(shape[axis]).reshape([-1 if d == axis else 1 for d in range(len(shape))])
        return rw("Less", rw.array(places), length)

    def _masked(self, rw: Rewriter, name: str, axis: int, fill: float) -> str:
        """A tensor with `fill` at unused places of a dimension."""
        dtype = self.editor.types[name].dtype
        info = np.finfo(dtype) if np.dtype(dtype).kind == "f" else np.iinfo(dtype)
        value = np.array(min(max(fill, float(info.min)), float(info.max))).astype(dtype)
        made = rw("Where", self._used(rw, name, axis), name, rw.array(value))
        self._moving[made] = self.moving(name)
        return made

    # --- operators ---

    def _softmax(self, rw: Rewriter, operands: Sequence[str]) -> bool:
        x, slopes = operands[0], self.moving(operands[0])
        axis = rw.attr("axis", -1) % max(1, len(slopes))
        if not any(slopes[axis : axis + 1]):
            return False
        if axis == len(slopes) - 1 and self.editor.types[x].dtype == "float32":
            length = self._length(rw, x, axis)
            rw.result(SOFTMAX_BELOW, rw(BELOW, x, length), length)
        else:
            rw.again(self._masked(rw, x, axis, _LOWEST))
        return True

    def _reduce(self, rw: Rewriter, operands: Sequence[str]) -> bool:
        x, slopes = operands[0], self.moving(operands[0])
        axes = rw.value(1) if len(operands) > 1 and operands[1] else np.arange(len(slopes))
        if axes is None:
            return False
        moved = [a % len(slopes) for a in axes.tolist() if slopes[a % len(slopes)]]
        if moved and rw.node.op not in _NEUTRAL:
            raise rw.refuse("it is a mean over a growing state")
        for axis in moved:
            x = self._masked(rw, x, axis, _NEUTRAL[rw.node.op])
        if moved:
            rw.again(x, *operands[1:])
        return bool(moved)

    def _layer_norm(self, rw: Rewriter, operands: Sequence[str]) -> bool:
        slopes = self.moving(operands[0])
        if any(slopes[rw.attr("axis", -1) % len(slopes) :]):
            raise rw.refuse("it normalises a growing state")
        return False

    def _product(self, rw: Rewriter, operands: Sequence[str]) -> bool:
        x, slopes = operands[0], self.moving(operands[0])
        ranks = [len(self.editor.types[n].shape) for n in operands]
        is_float = min(ranks) > 1 and self.editor.types[x].dtype == "float32"
        if not any(slopes[-1:]):
            return is_float and self._scores(rw, operands)
        if is_float:
            rw.result(MATMUL_BELOW, *operands, self._length(rw, x, len(slopes) - 1))
        elif x not in self._zeroed:
            rw.again(self._masked(rw, x, len(slopes) - 1, 0.0), *operands[1:])
        return True

    def _scores(self, rw: Rewriter, operands: Sequence[str]) -> bool:
        """A product whose columns are places: those behind the length are not computed.

        Of one row, Softmax says so behind it, without anything between them.
        """
        keys, columns = operands[1], self.moving(operands[1])[-1:]
        if self.growth.chunk == 1 or not any(columns):
            return False
        length = self._length(rw, keys, len(self.moving(keys)) - 1)
        self._scored[rw.node.output] = rw("MatMul", *operands), length
        rw.result(BELOW, *self._scored[rw.node.output])
        return True

    def _scaled(self, rw: Rewriter, operands: Sequence[str]) -> bool:
        """Scores times a number: the kernel that computes them ends with what tells the places."""
        scores, length = self._scored.get(operands[0], ("", ""))
        factor = self.editor.constants.get(operands[1])
        if not scores or factor is None or factor.size != 1:
            return False
        self._scored[rw.node.output] = rw(rw.node.op, scores, operands[1]), length
        rw.result(BELOW, *self._scored[rw.node.output])
        return True

    def _concat(self, rw: Rewriter, operands: Sequence[str]) -> bool:
        x, *rest = operands
        slopes = self.moving(x)
        axis = rw.attr("axis", 0) % max(1, len(slopes))
        state = self._states.get(x)
        if state is not None and axis == self.growth.states[state][1] and len(rest) == 1:
            self._append(rw, state, rest[0])
            return True
        if not any(any(self.moving(n)[axis : axis + 1]) for n in operands):
            return False
        if slopes[axis] != 1 or len(rest) != 1 or any(self.moving(rest[0])[axis : axis + 1]):
            raise rw.refuse("it joins a growing tensor in a way that is not known")
        self._inserted(rw, x, rest[0], axis)
        return True

    def _scatter(self, rw: Rewriter, operands: Sequence[str]) -> bool:
        """Rows of a static cache at the positions of the new places."""
        x, indices, new = operands
        state = self._states.get(x)
        if state is None:
            return False
        order = self._orders.get(x, tuple(range(len(self.editor.types[state].shape))))
        axis = rw.attr("axis", 0) % len(order)
        pairs = [
            (probe.constants.get(indices), self._new_places(indices, axis, probe.past))
            for probe in self.probes
        ]
        if order[axis] != self.growth.states[state][1] or not all(
            value is not None and np.array_equal(value, wanted) for value, wanted in pairs
        ):
            raise rw.refuse("it writes other places of a cache than the new ones")
        self._written(rw, state, new, order)
        return True

    def _tensor_scatter(self, rw: Rewriter, operands: Sequence[str]) -> bool:
        """Rows of a static cache from the place of the first new one on."""
        x, new, first = (*operands, "")[:3]
        state = self._states[x]
        order = self._orders.get(x, tuple(range(len(self.editor.types[state].shape))))
        axis = rw.attr("axis", -2) % len(order)
        is_new = first and all(
            np.array_equal(probe.constants.get(first, ()), [probe.past]) for probe in self.probes
        )
        if order[axis] != self.growth.states[state][1] or not is_new:
            raise rw.refuse("it writes other places of a cache than the new ones")
        self._written(rw, state, new, order)
        return True

    def _written(self, rw: Rewriter, state: str, new: str, order: tuple[int, ...]) -> None:
        """A static cache with new rows, all with their dimensions in this order."""
        back = tuple(order.index(d) for d in range(len(order)))
        if back == tuple(range(len(order))):
            self._append(rw, state, new)
            return
        whole = self._append(rw, state, rw("Transpose", new, perm=back), rw)
        rw.result("Transpose", whole, perm=order)
        self._turned[rw.node.output] = whole, order

    def _transpose(self, rw: Rewriter, operands: Sequence[str]) -> bool:
        """A static cache as the file has it again, behind the rows that were written."""
        whole, order = self._turned.get(operands[0], ("", ()))
        back = tuple(order[d] for d in rw.attr("perm", range(len(order))[::-1])) if whole else ()
        is_back = bool(whole) and back == tuple(range(len(order)))
        if is_back:
            rw.result("Identity", whole)
            self._wholes[rw.node.output] = self._wholes[whole]
        return is_back

    def _new_places(self, indices: str, axis: int, past: int) -> Array:
        """What indices are that name the new places behind `past` others."""
        shape = self.editor.types[indices].shape
        places = np.arange(self.growth.chunk) + past
        along = [-1 if d == axis else 1 for d in range(len(shape))]
        return np.broadcast_to(places.reshape(along), shape)

    def _append(
        self, rw: Rewriter, state: str, new: str, made: Callable[..., Any] | None = None
    ) -> Any:
        """New rows of a state: an output that the caller has bound to the end of the buffer.

        `made` emits the node whose result is all places: that of the node that is rewritten.
        """
        emit = rw.result if made is None else made
        output, axis = self.growth.states[state]
        kind = self.editor.types[state]
        known, whole = self._appended.get(state, (new, ""))
        if known != new:
            raise rw.refuse(f"it appends other places to '{state}' than a node before it")
        if whole:
            again = emit("Identity", whole)
            self._wholes[str(rw.node.output if made is None else again)] = state
            return again
        first = rw("Transpose", new, perm=rows_first(axis, len(kind.shape)))
        buffer, rows, attrs = buffer_of(state), _rows(output), {"axis": axis}

        def written(op: str, made: str, **more: str) -> tuple[str, str]:
            node = Node(f"{rw.node.name}/rows", op, (first,), (made,), {**attrs, **more})
            rw.nodes.append(node)
            return (buffer if made == rows else _steps(buffer)), made

        stored = stored_as(self.growth, kind)
        if stored == kind.dtype:
            found = emit(APPEND, *written(ROWS, rows))
        elif not DTYPES[stored].is_integer:
            narrow = rw(APPEND, *written(ROWS, rows, to=stored))
            found = emit("Cast", narrow, to=DTYPES[kind.dtype].onnx)
        else:
            whole = rw(APPEND, *written(BYTE_ROWS, rows))
            found = emit("Dequantize", whole, rw(APPEND, *written(ROW_STEPS, _steps(rows))))
        name = str(rw.node.output if made is None else found)
        self._appended[state], self._wholes[name] = (new, name), state
        return name

    def _inserted(self, rw: Rewriter, x: str, new: str, axis: int) -> None:
        """A tensor with others behind its used places."""
        shape, extent = self.editor.types[x].shape, self.editor.types[new].shape[axis]
        ahead = self.growth.past - shape[axis]
        along = [-1 if d == axis else 1 for d in range(len(shape))]
        own = rw("Sub", rw.array(np.arange(shape[axis] + extent).reshape(along) + ahead), FILLED)
        ends = [rw.integers(n) for n in (0, extent - 1)]
        row = rw("Min", rw("Max", own, ends[0]), ends[1])
        wide = (*shape[:axis], shape[axis] + extent, *shape[axis + 1 :])
        rows = rw("Expand", row, rw.integers(*wide))
        moved = rw("GatherElements", new, rows, axis=axis)
        zero = rw.array(np.zeros((), self.editor.types[x].dtype))
        pads = [0] * len(shape) + [extent if d == axis else 0 for d in range(len(shape))]
        padded = rw("Pad", x, rw.integers(*pads), zero)
        rw.result("Where", rw("GreaterOrEqual", own, ends[0]), moved, padded)

    def _slice(self, rw: Rewriter, operands: Sequence[str]) -> bool:
        """A Slice whose first place moves is a Gather."""
        x = operands[0]
        shape, slopes = self.editor.types[x].shape, self.moving(x)
        values = [rw.value(n) if n < len(operands) and operands[n] else None for n in range(5)]
        begins, ends = values[1], values[2]
        if begins is None or ends is None:
            raise rw.refuse("its places are computed at run time")
        given = values[3] if values[3] is not None else np.arange(len(begins))
        axes = [axis % len(shape) for axis in given.tolist()]
        steps = (values[4] if values[4] is not None else np.ones(len(axes), int)).tolist()
        firsts = {}
        for n, axis in enumerate(axes):
            if steps[n] != 1 and slopes[axis]:
                raise rw.refuse("its step over a growing state is not 1")
            first, slope = self._first(rw, operands[1], n, shape[axis], slopes[axis])
            if slope:
                firsts[axis] = first, slope
        if not firsts:
            return False
        made = self.moving(rw.node.output)
        if any(made[axis] or steps[axes.index(axis)] != 1 for axis in firsts):
            raise rw.refuse("the number of places that it takes grows while they move")
        staying = [n for n, axis in enumerate(axes) if axis not in firsts]
        if staying:
            parts = [rw.integers(*(int(v[n]) for n in staying)) for v in (begins, ends)]
            along = [rw.integers(*(of[n] for n in staying)) for of in (axes, steps)]
            x = rw("Slice", x, *parts, *along)
            self._moving[x] = made
        for axis, (first, slope) in firsts.items():
            extent = self.editor.types[rw.node.output].shape[axis]
            ahead = rw("Mul", self._ahead(rw), rw.integers(slope))
            places = rw("Add", rw.array(np.arange(first, first + extent)), ahead)
            x = rw("Gather", x, places, axis=axis)
        rw.result("Identity", x)
        return True

    def _first(self, rw: Rewriter, name: str, n: int, extent: int, growth: int) -> tuple[int, int]:
        """A first place and by how much it moves; `growth`: of the dimension."""
        begins, form = self.editor.constants[name], self._forms.of(name)
        slope = self._forms.slope(name) if form is LengthForm.AFFINE else np.zeros((), np.int64)
        if form is LengthForm.COMPUTED or slope is None:
            raise self._refused(rw, name)
        own = int(np.broadcast_to(slope, begins.shape)[n])
        first = int(begins[n])
        if first < 0:
            first, own = max(0, first + extent), own + growth
        return min(first, extent), own

    def _gather(self, rw: Rewriter, operands: Sequence[str]) -> bool:
        """Places that count from the end of a growing dimension."""
        index, slopes = rw.value(1), self.moving(operands[0])
        axis = rw.attr("axis", 0) % max(1, len(slopes))
        if index is None or not any(slopes[axis : axis + 1]) or not (index < 0).any():
            return False
        if (index >= 0).any() or operands[1] != rw.input(1):
            raise rw.refuse("it counts places of a growing state from both ends")
        ahead = self._ahead(rw, index.ndim)
        first = rw.array(index.astype(np.int64) + self.editor.types[operands[0]].shape[axis])
        rw.again(operands[0], rw("Add", first, ahead))
        return True

    def _split(self, rw: Rewriter, operands: Sequence[str]) -> bool:
        slopes = self.moving(operands[0])
        if any(slopes[rw.attr("axis", 0) % max(1, len(slopes)) :][:1]):
            raise rw.refuse("it splits a growing state")
        return False


_RECOMPUTED = frozenset(
    ("Reshape", "Expand", "Unsqueeze", "Squeeze", "Tile", "Slice", "Range", "ReduceMean", *_NEUTRAL)
)
"""Operators that have a shape or axes for an operand, and are computed at run time all the same."""
_SPECIAL = {
    "Softmax": Growing._softmax,
    **dict.fromkeys((*_NEUTRAL, "ReduceMean"), Growing._reduce),
    "LayerNormalization": Growing._layer_norm,
    "MatMul": Growing._product,
    **dict.fromkeys(("Mul", "Div"), Growing._scaled),
    "Concat": Growing._concat,
    **dict.fromkeys(SCATTERS, Growing._scatter),
    TENSOR_SCATTER: Growing._tensor_scatter,
    "Transpose": Growing._transpose,
    "Slice": Growing._slice,
    "Gather": Growing._gather,
    "Split": Growing._split,
}


def follows_places(op: str) -> bool:
    """Whether unused places of results come from unused places of operands alone."""
    return op in _FOLLOWING or operator_of(op).is_elementwise


def _rows(output: str) -> str:
    return f"{output}.rows"


def begin_state(held: tuple[str, ...]) -> StateInfo:
    """That of the network that begins a sequence: see `StateInfo`."""
    return StateInfo(held=held)


def _steps(name: str) -> str:
    return f"{name}.steps"


def stored_as(growth: Growth, kind: TensorType) -> str:
    """The dtype of the buffer of a state: another one for rows of floats."""
    return growth.cache if kind.dtype == "float32" and len(kind.shape) > 1 else kind.dtype


def state_of(
    growth: Growth, types: Mapping[str, TensorType], held: tuple[str, ...] = ()
) -> StateInfo:
    """The ports of a grown graph that are its state; `types`: of its tensors, `held`: see
    `StateInfo`."""
    buffers, axes, steps = {}, {}, {}
    for state, (output, axis) in growth.states.items():
        buffer, rows = buffer_of(state), _rows(output)
        buffers[buffer], axes[buffer] = rows, axis
        if _steps(buffer) in types:
            steps[buffer] = _steps(buffer)
            buffers[_steps(buffer)], axes[_steps(buffer)] = _steps(rows), axis
    return StateInfo(
        growth.capacity, FILLED, buffers, axes, growth.replaced, held=held, steps=steps
    )


def sharing_buffers(graph: Graph, growth: Growth) -> Graph:
    """`graph` whose GroupQueryAttention appends to its past, where this is a state."""
    nodes = (
        replace(node, attrs={**node.attrs, SHARES_BUFFER: 1})
        if len(node.inputs) > 3 and node.op == GROUPED and node.inputs[3] in growth.states
        else node
        for node in graph.nodes
    )
    return replace(graph, nodes=tuple(nodes))


def grown_graph(graph: Graph, growth: Growth) -> Graph:
    """`graph` with buffers and `filled` in place of states, rows in place of their outputs."""
    types, inputs, outputs = dict(graph.types), list(graph.inputs), list(graph.outputs)
    for state, (output, axis) in growth.states.items():
        kind, buffer, rows = types[state], buffer_of(state), _rows(output)
        shape = (*kind.shape[:axis], growth.capacity, *kind.shape[axis + 1 :])
        stored = stored_as(growth, kind)
        types[buffer] = TensorType(shape, stored)
        inputs[inputs.index(state)] = buffer
        outputs[outputs.index(output)] = rows
        if stored != kind.dtype and DTYPES[stored].is_integer:
            along = step_axis(axis, len(shape))
            single = tuple(1 if d == along else n for d, n in enumerate(shape))
            types[_steps(buffer)] = TensorType(single, kind.dtype)
            inputs.append(_steps(buffer))
            outputs.append(_steps(rows))
    types[FILLED] = TensorType((1,), "int64")
    kept = [name for name in inputs if name not in growth.computed]
    passed = {*growth.passed.values()}
    made = tuple(n for n in outputs if graph.output_names.get(n, n) not in passed)
    return replace(graph, inputs=(*kept, FILLED), outputs=made, types=types)
