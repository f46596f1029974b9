"""① A model with a growing state at a capacity: its length is a number that is given at run time.

    past (…, P, …), tokens (…, L) -> present (…, P + L, …)
    ─►  buffer (…, capacity, …), filled (1), tokens (…, L) -> rows (…, L, …)

The model is imported at P = capacity - L, where every extent is static. What depends on P is found
by importing at P - 1 and near 0 as well: extents that move with it, and constants. Extents are a
length (`grown_networks.Step`), or stay at the capacity (`masked_places`). Constants that move are
computed at run time: those that are affine in P from `filled`, others by the nodes that made them
(`constant_forms`). Where neither is possible the model is refused.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np

from autotune.dtypes import DTYPES
from autotune.errors import UnsupportedOperator
from autotune.graph.fallback.shape_inputs import SHAPE_OPERANDS
from autotune.graph.ir import Array, Node, Shape, TensorType, unsupported
from autotune.graph.operators.table import operator_of
from autotune.graph.reader.constant_forms import ConstantForms, LengthForm
from autotune.graph.reader.growing_caches import GrowingCaches
from autotune.graph.reader.growth import FILLED, TOTAL
from autotune.graph.reader.prepared_masks import Meaning
from autotune.graph.reader.static_caches import SCATTERS, TENSOR_SCATTER
from autotune.graph.rewriter import Rewriter


@dataclass
class Growing(GrowingCaches):
    """Rewrites of nodes while a model is imported: see the module."""

    _moving: dict[str, Shape] = field(default_factory=dict)
    _done: set[str] = field(default_factory=set)
    _sources: dict[str, Node] = field(default_factory=dict)
    _twins: dict[str, str] = field(default_factory=dict)
    _open: set[str] = field(default_factory=set)
    """Results of nodes that compute what was a constant: they are rewritten as all others."""

    def __post_init__(self) -> None:
        past, probes = self.growth.past, self.probes
        self.forms = ConstantForms(self.editor, probes, past, self.moving, self.known)

    # --- inputs and outputs ---

    def begin(self) -> list[Node]:
        """The nodes that compute what is no input any more."""
        growth = self.growth
        self._states = {name: name for name in growth.states}
        rw = Rewriter(Node(TOTAL, "Identity", (FILLED,), (TOTAL,)), self.editor)
        self.editor.types[TOTAL] = self.editor.types[FILLED]
        rw.result("Add", FILLED, rw.integers(growth.chunk))
        for name in growth.totals:
            kind = self.editor.types[name]
            self.editor.set_constant(name, np.full(kind.shape, growth.capacity, kind.dtype))
        for name in growth.masks:
            within = rw("Less", rw.array(np.arange(self.editor.types[name].shape[-1])), TOTAL)
            self._made(rw, name, within)
        for name, meaning in growth.prepared.items():
            self._prepared(rw, name, meaning)
        for name in growth.positions:
            n = (
                growth.shapes[name][-1]
                if growth.shapes.get(name, ())[-1:] == (1,)
                else growth.chunk
            )
            self._made(rw, name, rw("Add", FILLED, rw.array(np.arange(n))))
        for name in growth.lasts:
            self._made(rw, name, rw("Sub", TOTAL, rw.integers(1)))
        for name in growth.firsts:
            self._made(rw, name, FILLED)
        for name in growth.counts:
            self._made(rw, name, TOTAL)
        return rw.nodes

    def _made(self, rw: Rewriter, name: str, value: str) -> None:
        """`value`, in the shape and the type of the input that it stands for."""
        kind = self.editor.types.pop(name)
        cast = rw("Cast", value, to=DTYPES[kind.dtype].onnx)
        shaped = rw("Expand", rw.reshaped(cast, -1), rw.integers(math.prod(kind.shape[-1:])))
        wide = rw("Expand", shaped, rw.integers(*kind.shape)) if kind.shape else shaped
        rw.nodes.append(Node(name, "Reshape", (wide, rw.integers(*kind.shape)), (name,)))
        self._done.add(name)

    def _prepared(self, rw: Rewriter, name: str, meaning: Meaning) -> None:
        """The mask in which a new place sees itself and all places in front of it."""
        kind = self.editor.types.pop(name)
        n_new, n_places = kind.shape[-2:]
        own = rw("Add", FILLED, rw.array(np.arange(n_new)[:, None]))
        seen = rw("LessOrEqual", rw.array(np.arange(n_places)), own)
        numbers = (
            rw.array(np.array([n]).astype(kind.dtype)) for n in (meaning.seen, meaning.unseen)
        )
        value = rw("Where", seen, *numbers)
        rw.nodes.append(Node(name, "Expand", (value, rw.integers(*kind.shape)), (name,)))
        self._done.add(name)

    # --- facts ---

    def _kind(self, name: str) -> TensorType | None:
        kind = self.editor.types.get(name)
        return kind if kind is not None and min(kind.shape, default=0) >= 0 else None

    def moving(self, name: str) -> Shape:
        """For each dimension of a tensor by how much it grows with the length."""
        kind = self._kind(name)
        if name in self._moving or kind is None or not self.probes:
            return self._moving.get(name, ())
        probe = self.probes[0].types.get(name)
        if probe is None or len(probe.shape) != len(kind.shape):
            return (0,) * len(kind.shape)
        return tuple(a - b for a, b in zip(kind.shape, probe.shape, strict=True))

    def _moves(self, name: str) -> bool:
        """Whether a constant is another one at another length, where places are used."""
        return name not in self._moving and self.forms.of(name) is not LengthForm.SAME

    def note(self, node: Node) -> None:
        """Remember which node made constants."""
        self.forms.note(node)
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

    def _rewrite(self, rw: Rewriter) -> None:
        node = rw.node
        kept = SHAPE_OPERANDS.get(node.op, ())
        operands = tuple(
            self._at_run_time(rw, name) if n not in kept and self._moves(name) else name
            for n, name in enumerate(node.inputs)
        )
        if not self._is_special(rw, operands) and operands != node.inputs:
            rw.again(*operands)

    def _is_special(self, rw: Rewriter, operands: Sequence[str]) -> bool:
        """Whether a node became others."""
        special = _SPECIAL.get(rw.node.op)
        return special is not None and special(self, rw, operands)

    def _follow(self, node: Node) -> None:
        first = node.inputs[0]
        if node.op == "Identity" and first in self._wholes:
            self._wholes[node.output] = self._wholes[first]

    # --- constants that move ---

    def _at_run_time(self, rw: Rewriter, name: str) -> str:
        """A constant that moves, as it is at the length of the call."""
        if name not in self._twins:
            self._twins[name] = self._affine(rw, name) or self._computed(rw, name)
            self._moving[self._twins[name]] = self.moving(name)
        return self._twins[name]

    def _affine(self, rw: Rewriter, name: str) -> str:
        """first + slope · filled; "" where that is not what it is, or the first is not exact."""
        value = self.editor.constants[name]
        slope = self.forms.slope(name) if self.forms.of(name) is LengthForm.AFFINE else None
        if slope is None:
            return ""
        if not (_is_whole(value) and _is_whole(slope)):
            return ""
        first = value - slope * self.growth.past
        moved = FILLED if value.ndim else rw("Squeeze", FILLED, rw.integers(0))
        moved = rw("Mul", rw.cast(moved, str(value.dtype)), rw.array(slope))
        return rw("Add", rw.array(first.astype(value.dtype)), moved)

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

    # --- operators ---

    def _concat(self, rw: Rewriter, operands: Sequence[str]) -> bool:
        x, *rest = operands
        axis = rw.attr("axis", 0) % max(1, len(self.editor.types[x].shape))
        state = self._states.get(x)
        if state is not None and axis == self.growth.states[state][1] and len(rest) == 1:
            self._append(rw, state, rest[0])
            return True
        return False

    def _slice(self, rw: Rewriter, operands: Sequence[str]) -> bool:
        """A Slice of a constant whose first place moves is a Gather: it would be a constant."""
        x, (begins, ends) = operands[0], (rw.value(1), rw.value(2))
        if begins is None or ends is None:
            raise rw.refuse("its places are computed at run time")
        if x not in self.editor.constants:
            return False
        shape = self.editor.types[x].shape
        values = [rw.value(n) if n < len(operands) and operands[n] else None for n in (3, 4)]
        axes = np.arange(len(begins)) if values[0] is None else values[0] % len(shape)
        steps = np.ones(len(axes), int) if values[1] is None else values[1]
        slope = self.forms.slope(operands[1])
        slopes = np.zeros(()) if slope is None else np.broadcast_to(slope, begins.shape)
        moving = [n for n, by in enumerate(np.broadcast_to(slopes, begins.shape)) if by]
        if not moving:
            return False
        if any(steps[n] != 1 for n in moving):
            raise rw.refuse("its step over a growing state is not 1")
        staying = [n for n in range(len(axes)) if n not in moving]
        if staying:
            of = (v[staying].tolist() for v in (begins, ends, axes, steps))
            x = rw("Slice", x, *(rw.integers(*v) for v in of))
        for n in moving:
            extent = self.editor.types[rw.node.output].shape[axes[n]]
            by = int(slopes[n])
            first = int(begins[n]) - by * self.growth.past
            filled = rw("Mul", FILLED, rw.integers(by))
            x = rw(
                "Gather",
                x,
                rw("Add", rw.array(np.arange(first, first + extent)), filled),
                axis=int(axes[n]),
            )
        rw.result("Identity", x)
        return True


def _is_whole(values: Array) -> bool:
    """Whether sums and products of numbers like these are exact."""
    return values.dtype.kind in "iu" or bool(
        (values == np.rint(values)).all() and (abs(values) < _MOST_WHOLE).all()
    )


_MOST_WHOLE = 1 << 20
_RECOMPUTED = frozenset(
    (
        *("Reshape", "Expand", "Unsqueeze", "Squeeze", "Tile", "Slice", "Split", "Range"),
        *(f"Reduce{f}" for f in ("Mean", "Sum", "L1", "L2", "SumSquare", "LogSum", "Prod", "Max")),
        *("ReduceLogSumExp", "ReduceMin"),
    )
)
"""Operators that have a shape or axes for an operand, and are computed at run time all the same."""
_SPECIAL = {
    "Concat": Growing._concat,
    **dict.fromkeys(SCATTERS, Growing._scatter),
    TENSOR_SCATTER: Growing._tensor_scatter,
    "Transpose": Growing._transpose,
    "Slice": Growing._slice,
}
