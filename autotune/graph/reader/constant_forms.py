"""① Constants of an import with a state: how each follows the number of filled places.

    Shape(past)               affine: another number with each place
    Range(0, total)           same: more elements, but those that are there stay what they are
    Range(past, total) // 4   computed: the nodes that made it compute it at run time

The form of a constant follows from the node that made it and the forms of its operands. Two more
imports, one of them near an empty state, have to agree with it: a constant that they contradict is
computed. One whose node is not known has these numbers alone.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import IntEnum

import numpy as np

from autotune.graph.fallback.shape_inputs import SHAPE_OPERANDS
from autotune.graph.ir import Array, Editor, Node, TensorType
from autotune.graph.operators.definition import Trait, ViewKind
from autotune.graph.operators.table import operator_of, view_of


@dataclass(frozen=True)
class LengthFacts:
    """Types and constants of an import at another length: `past` places are filled."""

    types: Mapping[str, TensorType]
    constants: Mapping[str, Array]
    past: int


class LengthForm(IntEnum):
    """How a constant follows the number of filled places; the larger, the less is known."""

    SAME = 0
    """Each element is the same at any length, though there may be more of them."""
    AFFINE = 1
    """Each element moves by a number of its own with each place."""
    COMPUTED = 2


_LINEAR = frozenset(("Add", "Sub", "Sum", "Neg", "Identity", "Cast"))
_SIGNED: Mapping[str, Callable[[Array, Array], bool]] = {
    "Equal": lambda low, high: bool(((low > 0) & (high > 0) | (low < 0) & (high < 0)).all()),
    "Less": lambda low, high: bool(((low < 0) == (high < 0)).all()),
    "GreaterOrEqual": lambda low, high: bool(((low < 0) == (high < 0)).all()),
    "Greater": lambda low, high: bool(((low > 0) == (high > 0)).all()),
    "LessOrEqual": lambda low, high: bool(((low > 0) == (high > 0)).all()),
}
"""Comparisons: whether a difference that is this at the shortest and at the longest state, and
changes evenly between, always has the same answer."""


@dataclass
class ConstantForms:
    """Forms of the constants of an import at `past`; `probes`: the same at other lengths.

    `moving`: for each dimension of a tensor by how much it grows with the length. `known`: the
    forms at another capacity, which are those here.
    """

    editor: Editor
    probes: Sequence[LengthFacts]
    past: int
    moving: Callable[[str], Sequence[int]]
    known: ConstantForms | None = None
    _noted: dict[str, LengthForm] = field(default_factory=dict)

    def of(self, name: str) -> LengthForm:
        """The form of a constant; the same for anything else."""
        if not name or name not in self.editor.constants or name in self.editor.graph.constants:
            return LengthForm.SAME
        if self.known is not None:
            is_there = name in self.known.editor.constants
            return self.known.of(name) if is_there else LengthForm.COMPUTED
        if name not in self._noted:
            self._noted[name] = self._by_numbers(name)
        return self._noted[name]

    def note(self, node: Node) -> None:
        """Remember the forms of the constants that a node has made."""
        if self.known is not None:
            return
        form = self._made(node)
        for name in filter(None, node.outputs):
            found = form if form is LengthForm.COMPUTED else self._by_numbers(name)
            is_known = found is form or (form, found) == (LengthForm.AFFINE, LengthForm.SAME)
            self._noted[name] = found if is_known else LengthForm.COMPUTED

    def slope(self, name: str) -> Array | None:
        """By how much each element of a constant moves with each place; None where it does not
        move evenly between the lengths that are known."""
        if self.known is not None:
            is_there = name in self.known.editor.constants
            found = self.known.slope(name) if is_there else None
            return None if found is None else _of_shape(found, self.editor.constants[name].shape)
        value, near, far = (self.editor.constants[name], *(self._other(name, n) for n in (0, 1)))
        if near is None or far is None or value.dtype.kind not in "iuf":
            return None
        if not value.ndim == near.ndim == far.ndim:
            return None
        if not _fits(near, value) or not _fits(far, near):
            return None
        with np.errstate(all="ignore"):
            late = value[tuple(map(slice, near.shape))] - near
            all_of_them = value[tuple(map(slice, far.shape))] - far
            expected = late[tuple(map(slice, far.shape))] * (self.past - self.probes[1].past)
        if not np.array_equal(all_of_them, expected):
            return None
        if late.size and (late == late.flat[0]).all():
            return np.array(late.flat[0], value.dtype)
        return np.asarray(late) if value.shape == near.shape else None

    def _other(self, name: str, n: int) -> Array | None:
        return self.probes[n].constants.get(name)

    def _by_numbers(self, name: str) -> LengthForm:
        value = self.editor.constants[name]
        others = [self._other(name, n) for n in (0, 1)]
        if any(other is None for other in others):
            return LengthForm.SAME  # it was written here
        if all(other is not None and is_prefix(other, value) for other in others):
            return LengthForm.SAME
        return LengthForm.COMPUTED if self.slope(name) is None else LengthForm.AFFINE

    def _made(self, node: Node) -> LengthForm:
        """The form that results have by their operands."""
        op, operator = node.op, operator_of(node.op)
        forms = [self.of(name) for name in node.inputs]
        kept = SHAPE_OPERANDS.get(op, ())
        data = [form for slot, form in enumerate(forms) if slot not in kept]
        worst = max(data, default=LengthForm.SAME)
        if op in ("Shape", "Size"):
            return LengthForm.AFFINE if any(self.moving(node.inputs[0])) else LengthForm.SAME
        if op == "Range":
            return LengthForm.COMPUTED if forms[2] else forms[0]
        if op == "ConstantOfShape":
            return LengthForm.SAME
        if worst is LengthForm.COMPUTED or self._is_shifted(node, forms):
            return LengthForm.COMPUTED
        moves = Trait.MOVES in operator.traits or op == "Gather"
        if worst is LengthForm.SAME:
            return (
                LengthForm.COMPUTED
                if op.startswith("Reduce") and self._mixes(node)
                else LengthForm.SAME
            )
        if op in _LINEAR or (moves and (op == "Concat" or not any(data[1:]))):
            is_number = self.editor.constants[node.output].dtype.kind in "iuf"
            return LengthForm.AFFINE if is_number else LengthForm.COMPUTED
        if op == "Mul" and sum(map(bool, data)) == 1:
            return LengthForm.AFFINE
        return LengthForm.SAME if self._is_decided(node) else LengthForm.COMPUTED

    def _mixes(self, node: Node) -> bool:
        """Whether operands have more elements at another length, and results as many."""
        return any(any(self.moving(name)) for name in node.inputs if name)

    def _is_shifted(self, node: Node, forms: Sequence[LengthForm]) -> bool:
        """Whether results are elements from the end of a dimension that grows, or from a place that
        moves, or lie behind a part that grows."""
        view = view_of(node)
        axis, slopes = node.attrs.get("axis", 0), [[*self.moving(n)] for n in node.inputs]
        if node.op == "Gather":
            return any(slopes[0][axis:][:1]) and not self._all(node.inputs[1], 0)
        if view is ViewKind.JOINED:
            return any(any(one[axis:][:1]) for one in slopes[:-1])
        if view is ViewKind.PART:
            is_moved = any(forms[n] for n in (1, 3, 4) if n < len(forms))
            steps = node.inputs[4] if len(node.inputs) > 4 else ""
            is_plain = self._all(node.inputs[1], 0) and (not steps or self._all(steps, 1))
            return is_moved or (any(slopes[0]) and not is_plain)
        return node.op == "CumSum" and bool(node.attrs.get("reverse", 0))

    def _all(self, name: str, least: int) -> bool:
        """Whether a constant is nowhere less than a number."""
        value = self.editor.constants.get(name)
        return value is not None and bool((value >= least).all())

    def _is_decided(self, node: Node) -> bool:
        """Whether a comparison has the same answer at every length up to `past`."""
        decided = _SIGNED.get(node.op)
        if decided is None:
            return False
        high = [self.editor.constants[name].astype(np.float64) for name in node.inputs]
        slopes = [self.slope(n) if self.of(n) else np.zeros(()) for n in node.inputs]
        if any(slope is None for slope in slopes):
            return False
        low = [a - s * self.past for a, s in zip(high, slopes, strict=True) if s is not None]
        return decided(low[0] - low[1], high[0] - high[1])


def _of_shape(slope: Array, shape: Sequence[int]) -> Array | None:
    """A slope as it is for other extents; None where it is not known for all elements."""
    part = slope[tuple(map(slice, shape))] if slope.ndim else slope
    return part if part.shape in ((), tuple(shape)) else None


def is_prefix(small: Array, large: Array) -> bool:
    """Whether the elements that both have are equal."""
    if small.ndim != large.ndim or small.dtype != large.dtype:
        return False
    if any(a > b for a, b in zip(small.shape, large.shape, strict=True)):
        return False
    part = large[tuple(map(slice, small.shape))]
    return np.array_equal(small, part, equal_nan=small.dtype.kind == "f")


def _fits(small: Array, large: Array) -> bool:
    """Whether an array is as large as another one in every dimension, or smaller."""
    return all(a <= b for a, b in zip(small.shape, large.shape, strict=True))
