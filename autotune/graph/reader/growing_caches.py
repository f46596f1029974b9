"""① Caches while a model with a state is imported: new rows behind the filled places of a buffer.

Concat(past, new)                    ─►  Append(buffer, Rows(new))
ScatterND(cache, places, new)        ─►  the same where the places are the new ones
TensorScatter(cache, new, place)
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from autotune.dtypes import DTYPES
from autotune.errors import NotCompilable
from autotune.graph.ir import Array, Editor, Node
from autotune.graph.operators.state import APPEND, BYTE_ROWS, ROW_STEPS, ROWS, rows_first
from autotune.graph.operators.table import permutes
from autotune.graph.reader.constant_forms import ConstantForms, LengthFacts
from autotune.graph.reader.growth import Growth, rows_of, steps_of_rows, stored_as
from autotune.graph.reader.static_caches import TENSOR_SCATTER
from autotune.graph.rewriter import Rewriter
from autotune.graph.state import buffer_of


@dataclass
class GrowingCaches:
    """The states of a model while its nodes are rewritten.

    `probes`: at the other `pasts` of a growth; with static caches also at P, and positions are
    constants in them. `known`: what was found of constants at another capacity; then there are no
    probes.
    """

    growth: Growth
    editor: Editor
    probes: tuple[LengthFacts, ...]
    known: ConstantForms | None = None
    _states: dict[str, str] = field(default_factory=dict)
    """Names of states -> the state."""
    _orders: dict[str, tuple[int, ...]] = field(default_factory=dict)
    _turned: dict[str, tuple[str, tuple[int, ...]]] = field(default_factory=dict)
    _appended: dict[str, tuple[str, str]] = field(default_factory=dict)
    """States -> their new rows, and all places with them."""
    _wholes: dict[str, str] = field(default_factory=dict)
    """Tensors that are all places of a state."""

    def require_appended(self) -> None:
        """Raises NotCompilable for a state whose output is not all of it with new places."""
        names = {stated: own for own, stated in self.editor.graph.output_names.items()}
        for state, (output, _) in self.growth.states.items():
            if self._wholes.get(names.get(output, output)) != state:
                raise NotCompilable(
                    f"'{output}' is not '{state}' with new places behind it",
                    "name the inputs and outputs that are its state (`state`)",
                )

    def takes(self, node: Node) -> bool:
        """Whether a node is replaced before it becomes others."""
        return node.op == TENSOR_SCATTER and self._states.get(node.inputs[0]) is not None

    def _is_alias(self, node: Node) -> bool:
        """Whether a node is another name of a state: nothing reads that but what appends to it."""
        state = self._states.get(node.inputs[0])
        if state is not None and state in self.growth.static and permutes(node):
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
        buffer, rows, attrs = buffer_of(state), rows_of(output), {"axis": axis}

        def written(op: str, made: str, **more: str) -> tuple[str, str]:
            node = Node(f"{rw.node.name}/rows", op, (first,), (made,), {**attrs, **more})
            rw.nodes.append(node)
            return (buffer if made == rows else steps_of_rows(buffer)), made

        stored = stored_as(self.growth, kind)
        if stored == kind.dtype:
            found = emit(APPEND, *written(ROWS, rows))
        elif not DTYPES[stored].is_integer:
            narrow = rw(APPEND, *written(ROWS, rows, to=stored))
            found = emit("Cast", narrow, to=DTYPES[kind.dtype].onnx)
        else:
            whole = rw(APPEND, *written(BYTE_ROWS, rows))
            found = emit("Dequantize", whole, rw(APPEND, *written(ROW_STEPS, steps_of_rows(rows))))
        name = str(rw.node.output if made is None else found)
        self._appended[state], self._wholes[name] = (new, name), state
        return name
