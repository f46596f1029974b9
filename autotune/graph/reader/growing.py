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
from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np

from autotune.dtypes import DTYPES
from autotune.errors import UnsupportedOperator
from autotune.graph.fallback.shape_inputs import SHAPE_OPERANDS
from autotune.graph.ir import Array, Node, Shape, TensorType, unsupported
from autotune.graph.operators.state import (
    BELOW,
    MATMUL_BELOW,
    SOFTMAX_BELOW,
)
from autotune.graph.operators.table import operator_of
from autotune.graph.reader.constant_forms import ConstantForms, LengthForm
from autotune.graph.reader.growing_caches import GrowingCaches
from autotune.graph.reader.growth import FILLED
from autotune.graph.reader.static_caches import SCATTERS, TENSOR_SCATTER
from autotune.graph.reader.unused_places import LOWEST, NEUTRAL, ZERO_KEEPING, follows_places
from autotune.graph.rewriter import Rewriter


@dataclass
class Growing(GrowingCaches):
    """Rewrites of nodes while a model is imported: see the module."""

    _moving: dict[str, Shape] = field(default_factory=dict)
    _done: set[str] = field(default_factory=set)
    _sources: dict[str, Node] = field(default_factory=dict)
    _twins: dict[str, str] = field(default_factory=dict)
    _zeroed: set[str] = field(default_factory=set)
    _scored: dict[str, tuple[str, str]] = field(default_factory=dict)
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
        if node.op in ZERO_KEEPING and first in self._zeroed:
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
        """first + slope · filled, or constant + slope · (filled - P) where the first is not
        exact; "" where that is not what it is."""
        value = self.editor.constants[name]
        slope = self._forms.slope(name) if self._forms.of(name) is LengthForm.AFFINE else None
        if slope is None:
            return ""
        first, moved = value - slope * self.growth.past, FILLED
        if not (_is_whole(value) and _is_whole(slope)):
            first, moved = value, self._ahead(rw)
        moved = moved if value.ndim else rw("Squeeze", moved, rw.integers(0))
        moved = rw("Mul", rw.cast(moved, str(value.dtype)), rw.array(slope))
        return rw("Add", rw.array(first.astype(value.dtype)), moved)

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
            rw.again(self._masked(rw, x, axis, LOWEST))
            self._zeroed.add(rw.node.output)
        return True

    def _reduce(self, rw: Rewriter, operands: Sequence[str]) -> bool:
        x, slopes = operands[0], self.moving(operands[0])
        axes = rw.value(1) if len(operands) > 1 and operands[1] else np.arange(len(slopes))
        if axes is None:
            return False
        moved = [a % len(slopes) for a in axes.tolist() if slopes[a % len(slopes)]]
        if moved and rw.node.op not in NEUTRAL:
            raise rw.refuse("it is a mean over a growing state")
        for axis in moved:
            x = self._masked(rw, x, axis, NEUTRAL[rw.node.op])
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
        bounds = {a: int(ends[axes.index(a)]) for a in firsts}
        behind = {a: min(n + shape[a] if n < 0 else n, shape[a]) for a, n in bounds.items()}
        extents = {a: behind[a] - first for a, (first, _) in firsts.items()}
        if any(self._grows(rw.node.output, a, n) for a, n in extents.items()) or any(
            steps[axes.index(a)] != 1 for a in firsts
        ):
            raise rw.refuse("the number of places that it takes grows while they move")
        staying = [n for n, axis in enumerate(axes) if axis not in firsts]
        if staying:
            parts = [rw.integers(*(int(v[n]) for n in staying)) for v in (begins, ends)]
            along = [rw.integers(*(of[n] for n in staying)) for of in (axes, steps)]
            x = rw("Slice", x, *parts, *along)
            self._moving[x] = tuple(slopes)
        for axis, (first, slope) in firsts.items():
            extent = extents[axis]
            ahead = rw("Mul", self._ahead(rw), rw.integers(slope))
            places = rw("Add", rw.array(np.arange(first, first + extent)), ahead)
            x = rw("Gather", x, places, axis=axis)
        rw.result("Identity", x)
        return True

    def _grows(self, name: str, axis: int, extent: int) -> bool:
        """Whether a result with this extent at the capacity has another one at other lengths."""
        if name in self._moving:
            return bool(self._moving[name][axis])
        kind = self.probes[0].types.get(name)
        return kind is None or kind.shape[axis] != extent

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


def _is_whole(values: Array) -> bool:
    """Whether sums and products of numbers like these are exact."""
    return values.dtype.kind in "iu" or bool(
        (values == np.rint(values)).all() and (abs(values) < _MOST_WHOLE).all()
    )


_MOST_WHOLE = 1 << 20
_RECOMPUTED = frozenset(
    (
        "Reshape",
        "Expand",
        "Unsqueeze",
        "Squeeze",
        "Tile",
        "Slice",
        "Split",
        "Range",
        "ReduceMean",
        *NEUTRAL,
    )
)
"""Operators that have a shape or axes for an operand, and are computed at run time all the same."""
_SPECIAL = {
    "Softmax": Growing._softmax,
    **dict.fromkeys((*NEUTRAL, "ReduceMean"), Growing._reduce),
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
