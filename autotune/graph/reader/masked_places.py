"""① A model with a growing state at its capacity alone, where no length is followed.

    Softmax(x)      ─►  Softmax(Where(place < filled.total, x, lowest))
    MatMul(a, b)    ─►  MatMul(Where(place < filled.total, a, 0), Where(place < filled.total, b, 0))

Extents are those at the capacity: places behind the length are *unused*. Whatever would mix them
with others is masked; where that is not possible the model is refused.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from autotune.graph.operators.definition import Trait
from autotune.graph.operators.state import APPEND, ROWS
from autotune.graph.operators.table import operator_of
from autotune.graph.reader.constant_forms import LengthForm
from autotune.graph.reader.growing import Growing
from autotune.graph.reader.growth import FILLED, TOTAL
from autotune.graph.rewriter import Rewriter

_LOWEST = float(np.finfo(np.float32).min)
"""In place of scores of unused places."""
_FOLLOWING = frozenset(
    (
        *("Tile", "CumSum", "ConstantOfShape", "Trilu", "Gather", "MatMul", "Softmax"),
        *("ReduceSum", "ReduceMax", "ReduceMin", "ScatterElements", "ScatterND"),
        *("GatherElements", "GatherND", "DequantizeLinear", "QuantizeLinear", "LayerNormalization"),
        *("ReduceMean", "ReduceProd", "ReduceL1", "ReduceL2", "ReduceSumSquare", "ReduceLogSum"),
        *("ReduceLogSumExp", "Dropout", "CastLike", "Sum", "Mean", "BitCast", APPEND, ROWS),
    )
)
"""Operators, beside those that are elementwise or move elements, whose unused places of results
come from unused places of operands, once those over which they reduce are masked."""
_NEUTRAL: Mapping[str, float] = {
    **dict.fromkeys((f"Reduce{f}" for f in ("Sum", "L1", "L2", "SumSquare", "LogSum")), 0.0),
    "ReduceProd": 1.0,
    "ReduceMax": _LOWEST,
    "ReduceLogSumExp": _LOWEST,
    "ReduceMin": -_LOWEST,
}
"""What changes no reduction."""


def _follows_places(op: str) -> bool:
    """Whether unused places of results come from unused places of operands alone."""
    operator = operator_of(op)
    return op in _FOLLOWING or operator.is_elementwise or Trait.MOVES in operator.traits


class MaskedPlaces(Growing):
    """`Growing` whose nodes do the same at the capacity, with masks."""

    def _is_special(self, rw: Rewriter, operands: Sequence[str]) -> bool:
        for name in filter(None, rw.node.inputs):
            if not self._follows_evenly(name):
                raise rw.refuse(
                    f"an extent of '{name}' does not grow by the same number with each place of "
                    "the state"
                )
        masked = _MASKED.get(rw.node.op)
        if masked is not None and masked(self, rw, operands):
            return True
        if super()._is_special(rw, operands):
            return True
        if not _follows_places(rw.node.op) and any(any(self.moving(n)) for n in operands if n):
            raise rw.refuse("it mixes the places of a growing state")
        return False

    def _follows_evenly(self, name: str) -> bool:
        """Whether extents grow by the same number with each place."""
        kind, far = self._kind(name), self.probes[1].types.get(name)
        if kind is None or far is None or len(far.shape) != len(kind.shape):
            return True
        less, slopes = self.growth.past - self.probes[1].past, self.moving(name)
        return min(far.shape, default=0) < 0 or all(
            a - b == slope * less for a, b, slope in zip(kind.shape, far.shape, slopes, strict=True)
        )

    # --- masks ---

    def _used(self, rw: Rewriter, name: str, axis: int) -> str:
        """Whether each place of a dimension is used."""
        shape, slopes = self.editor.types[name].shape, self.moving(name)
        if slopes[axis] != 1:
            raise rw.refuse(f"a dimension grows by {slopes[axis]} with each place of the state")
        less = self.growth.capacity - shape[axis]
        length = rw("Sub", TOTAL, rw.integers(less)) if less else TOTAL
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

    def _softmax(self, rw: Rewriter, operands: Sequence[str]) -> bool:
        x, slopes = operands[0], self.moving(operands[0])
        axis = rw.attr("axis", -1) % max(1, len(slopes))
        if not any(slopes[axis : axis + 1]):
            return False
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

    def _product(self, rw: Rewriter, operands: Sequence[str]) -> bool:
        """Both factors are masked: memory of unused places may hold no numbers."""
        factors = list(operands)
        for n, along in ((0, -1), (1, -2)):
            slopes = self.moving(factors[n])
            axis = len(slopes) + max(along, -len(slopes))
            if any(slopes[axis : axis + 1]):
                factors[n] = self._masked(rw, factors[n], axis, 0.0)
        if factors != list(operands):
            rw.again(*factors)
        return factors != list(operands)

    def _layer_norm(self, rw: Rewriter, operands: Sequence[str]) -> bool:
        slopes = self.moving(operands[0])
        if any(slopes[rw.attr("axis", -1) % len(slopes) :]):
            raise rw.refuse("it normalises a growing state")
        return False

    # --- places that move ---

    def _ahead(self, rw: Rewriter, rank: int = 1) -> str:
        """filled - P, without a dimension where `rank` is 0."""
        ahead = rw("Sub", FILLED, rw.integers(self.growth.past))
        return ahead if rank else rw("Squeeze", ahead, rw.integers(0))

    def _joined(self, rw: Rewriter, operands: Sequence[str]) -> bool:
        """A tensor with others behind its used places."""
        x, *rest = operands
        slopes = self.moving(x)
        axis = rw.attr("axis", 0) % max(1, len(slopes))
        if self._concat(rw, operands):
            return True
        if not any(any(self.moving(n)[axis : axis + 1]) for n in operands):
            return False
        if slopes[axis] != 1 or len(rest) != 1 or any(self.moving(rest[0])[axis : axis + 1]):
            raise rw.refuse("it joins a growing tensor in a way that is not known")
        shape, extent = self.editor.types[x].shape, self.editor.types[rest[0]].shape[axis]
        ahead = self.growth.past - shape[axis]
        along = [-1 if d == axis else 1 for d in range(len(shape))]
        own = rw("Sub", rw.array(np.arange(shape[axis] + extent).reshape(along) + ahead), FILLED)
        ends = [rw.integers(n) for n in (0, extent - 1)]
        row = rw("Min", rw("Max", own, ends[0]), ends[1])
        wide = (*shape[:axis], shape[axis] + extent, *shape[axis + 1 :])
        moved = rw("GatherElements", rest[0], rw("Expand", row, rw.integers(*wide)), axis=axis)
        zero = rw.array(np.zeros((), self.editor.types[x].dtype))
        pads = [0] * len(shape) + [extent if d == axis else 0 for d in range(len(shape))]
        padded = rw("Pad", x, rw.integers(*pads), zero)
        rw.result("Where", rw("GreaterOrEqual", own, ends[0]), moved, padded)
        return True

    def _slice(self, rw: Rewriter, operands: Sequence[str]) -> bool:
        """A Slice whose first place moves is a Gather."""
        x, (begins, ends) = operands[0], (rw.value(1), rw.value(2))
        if begins is None or ends is None:
            raise rw.refuse("its places are computed at run time")
        shape, slopes = self.editor.types[x].shape, self.moving(x)
        values = [rw.value(n) if n < len(operands) and operands[n] else None for n in (3, 4)]
        given = np.arange(len(begins)) if values[0] is None else values[0]
        axes = [axis % len(shape) for axis in given.tolist()]
        steps = (values[1] if values[1] is not None else np.ones(len(axes), int)).tolist()
        if any(step != 1 and slopes[axis] for step, axis in zip(steps, axes, strict=True)):
            raise rw.refuse("its step over a growing state is not 1")
        found = [self._first(rw, operands[1], n, shape[a], slopes[a]) for n, a in enumerate(axes)]
        moving = [n for n, (_, slope) in enumerate(found) if slope]
        staying = [n for n in range(len(axes)) if n not in moving]
        if moving and staying:
            parts = [rw.integers(*(int(v[n]) for n in staying)) for v in (begins, ends)]
            along = [rw.integers(*(of[n] for n in staying)) for of in (axes, steps)]
            x = rw("Slice", x, *parts, *along)
            self._moving[x] = tuple(slopes)
        for n in moving:
            (first, slope), axis = found[n], axes[n]
            end = int(ends[n])
            extent = min(end + shape[axis] if end < 0 else end, shape[axis]) - first
            if steps[n] != 1 or self._grows(rw.node.output, axis, extent):
                raise rw.refuse("the number of places that it takes grows while they move")
            ahead = rw("Mul", self._ahead(rw), rw.integers(slope))
            places = rw("Add", rw.array(np.arange(first, first + extent)), ahead)
            x = rw("Gather", x, places, axis=axis)
        if moving:
            rw.result("Identity", x)
        return bool(moving)

    def _grows(self, name: str, axis: int, extent: int) -> bool:
        """Whether a result with this extent at the capacity has another one at other lengths."""
        if name in self._moving:
            return bool(self._moving[name][axis])
        kind = self.probes[0].types.get(name)
        return kind is None or kind.shape[axis] != extent

    def _first(self, rw: Rewriter, name: str, n: int, extent: int, growth: int) -> tuple[int, int]:
        """A first place and by how much it moves; `growth`: of the dimension."""
        begins, form = self.editor.constants[name], self.forms.of(name)
        slope = self.forms.slope(name) if form is LengthForm.AFFINE else np.zeros((), np.int64)
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


_MASKED = {
    "Softmax": MaskedPlaces._softmax,
    **dict.fromkeys((*_NEUTRAL, "ReduceMean"), MaskedPlaces._reduce),
    "LayerNormalization": MaskedPlaces._layer_norm,
    "MatMul": MaskedPlaces._product,
    "Concat": MaskedPlaces._joined,
    "Slice": MaskedPlaces._slice,
    "Gather": MaskedPlaces._gather,
    "Split": MaskedPlaces._split,
}
