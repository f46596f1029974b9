"""① Growth of a model with a state, and the graph at its capacity: buffers in place of states.

past (…, P, …) -> present (…, P + L, …)    ─►    buffer (…, capacity, …), filled (1) -> rows
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace

from autotune.dtypes import DTYPES
from autotune.graph.ir import Graph, TensorType
from autotune.graph.operators.state import step_axis
from autotune.graph.reader.prepared_masks import Meaning
from autotune.graph.state import StateInfo, buffer_of

GROUPED = "com.microsoft.GroupQueryAttention"
SHARES_BUFFER = "autotune_state"
"""An attribute of nodes whose past is a state."""
FILLED = "filled"
"""The input that holds the length of the state: places that are filled already."""
TOTAL = "filled.total"
"""The tensor that holds the number of filled places with the new ones, and this number."""


@dataclass(frozen=True)
class Growth:
    """Growth of a model. `states`: inputs and outputs that grow, with their dimension.

    `capacity`: places of the buffers. `chunk`: new ones of a call. `masks`: inputs that tell which
    places count, `prepared`: those with a row for each new one, `positions`: those that number the
    new ones, `lasts`: the last filled place of each sample, `totals`: the length with the new ones.
    All of these are computed. `replaced`:
    inputs that outputs of the same shape replace. `held`: inputs that stay for a
    sequence; `passed`: outputs that are such an input, by input. `flag`: the input that says
    whether there is a past; without one the file computes `passed` of other inputs. `cache`: the
    dtype of the elements of buffers of floats. `shapes`: of `positions`, -1 where they are open.
    `static`: states that have all places in the file, see `static_caches`; there `firsts` are the
    inputs that are the place of the first new row, `counts` the number of places with the new ones.
    `places`: those of static states, where it is looked at a smaller capacity.
    """

    states: Mapping[str, tuple[str, int]]
    capacity: int
    chunk: int
    masks: tuple[str, ...] = ()
    prepared: Mapping[str, Meaning] = field(default_factory=dict)
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
    places: int = 0

    @property
    def grows(self) -> bool:
        """Whether the file has as many places as are filled, be it in its masks alone."""
        return not self.states or not self.static.issuperset(self.states)

    @property
    def computed(self) -> frozenset[str]:
        """Inputs that are none any more."""
        by_place = *self.masks, *self.prepared, *self.positions, *self.lasts, *self.firsts
        return frozenset((*by_place, *self.totals, *self.counts))

    def at(self, chunk: int, capacity: int) -> Growth:
        """It with so many new places, in another capacity but of static states."""
        return replace(self, chunk=chunk, capacity=capacity, places=self.places or self.capacity)

    def extent(self, state: str) -> int:
        """Places of the buffer of a state."""
        return self.places or self.capacity if state in self.static else self.capacity

    @property
    def past(self) -> int:
        """The extent of the past at which the model is imported."""
        return self.capacity - self.chunk

    @property
    def pasts(self) -> tuple[int, int, int]:
        """Extents of the past at which it is imported: that, one less, and one near nothing."""
        return self.past, self.past - 1, min(2, self.past - 2)


def rows_of(output: str) -> str:
    """The new rows of a state, of which an output of the model has all."""
    return f"{output}.rows"


def begin_state(held: tuple[str, ...]) -> StateInfo:
    """That of the network that begins a sequence: see `StateInfo`."""
    return StateInfo(held=held)


def steps_of_rows(name: str) -> str:
    """The numbers that rows, or those of a buffer, are multiples of where they are integers."""
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
        buffer, rows = buffer_of(state), rows_of(output)
        buffers[buffer], axes[buffer] = rows, axis
        if steps_of_rows(buffer) in types:
            steps[buffer] = steps_of_rows(buffer)
            buffers[steps_of_rows(buffer)], axes[steps_of_rows(buffer)] = steps_of_rows(rows), axis
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
        kind, buffer, rows = types[state], buffer_of(state), rows_of(output)
        shape = (*kind.shape[:axis], growth.extent(state), *kind.shape[axis + 1 :])
        stored = stored_as(growth, kind)
        types[buffer] = TensorType(shape, stored)
        inputs[inputs.index(state)] = buffer
        outputs[outputs.index(output)] = rows
        if stored != kind.dtype and DTYPES[stored].is_integer:
            along = step_axis(axis, len(shape))
            single = tuple(1 if d == along else n for d, n in enumerate(shape))
            types[steps_of_rows(buffer)] = TensorType(single, kind.dtype)
            inputs.append(steps_of_rows(buffer))
            outputs.append(steps_of_rows(rows))
    types[FILLED] = TensorType((1,), "int64")
    kept = [name for name in inputs if name not in growth.computed]
    passed = {*growth.passed.values()}
    made = tuple(n for n in outputs if graph.output_names.get(n, n) not in passed)
    return replace(graph, inputs=(*kept, FILLED), outputs=(*made, TOTAL), types=types)
