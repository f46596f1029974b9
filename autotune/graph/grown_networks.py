"""① The networks of a model with a growing state, for each number of new places.

grown_networks(bound, variants)  ─►  a prefill of any number, a step of one, what begins a sequence
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial

import numpy as np

from autotune.config import PRECISIONS
from autotune.errors import AutotuneError, NotCompilable
from autotune.extent import Extents
from autotune.graph.bound_model import BoundModel
from autotune.graph.ir import Graph, Shape, TensorType
from autotune.graph.last_rows import rows_first, with_last_rows
from autotune.graph.lengths.imports import ImportedModel, NotLifted, light, require_even
from autotune.graph.lengths.lift import lifted
from autotune.graph.lengths.numbers import Points
from autotune.graph.network import Network, as_stated, named, stored_network
from autotune.graph.passes.decoders import join_decoder
from autotune.graph.passes.pipeline import prepare
from autotune.graph.reader.grown import Grown
from autotune.graph.reader.growth import begin_state, state_of
from autotune.graph.reader.held import Phases, fed_by, phases
from autotune.graph.reader.importer import grown_shapes, import_graph, import_grown
from autotune.graph.reader.onnx_reader import OnnxModel
from autotune.graph.refusals import require_supported
from autotune.graph.state import (
    NO_ROWS,
    PROMPT,
    StateInfo,
    assumed_axes,
    of_last_place,
    rows_axes,
)
from autotune.graph.tasks.subgraph import undefined
from autotune.graph.together import together
from autotune.graph.unread import without_unread

_AT_EACH = "compile it without `capacity`, at each length that you need (`dims`)"
_LEAST_PROMPT = 2


def grown_networks(
    bound: BoundModel, variants: Sequence[Grown], precision: str = "f32"
) -> Iterator[Network]:
    """The networks of a model with a growing state, see `reader.growing` and `together`; one that
    begins a sequence last, where inputs stay for one (`reader.held`).

    Raises NotCompilable where variants do not agree on what is computed in the beginning, or on
    what has a row for each place, and NotLifted for a prefill that does not follow its length.
    """
    bound = bound if bound.parted else bound.held()
    begin: Graph | None = None
    kinds: dict[str, TensorType] = {}
    rows: _Rows | None = None
    for one in variants:
        model = named(partial(bound.load, one.shapes[0]))
        found = named(partial(_grown_phases, bound, one, model))
        held = {name: found.step.types[name] for name in found.held}
        if begin is None:
            begin, kinds = found.begin, held
        elif held != kinds:
            raise NotCompilable(
                "steps of several places read what the encoder gives in another way than single "
                "ones",
                _AT_EACH,
            )
        state = state_of(one.growth, found.step.types, found.held)
        rows = rows or _Rows(bound, one, found.step, state)
        state = replace(state, places=rows.of(one, found.step))
        if one.scores == "last":
            state = of_last_place(state, map(partial(_stated, found.step), found.step.outputs))
        if one.is_open:
            prefill = Prefill(bound, one, found.step, model.halves, state.last_rows, precision)
            yield replace(without_unread(lifted(prefill)), state=state)
        else:
            yield _grown_network(bound, found.step, model, state, precision, one.sessions)
    if begin is not None and kinds:
        model = named(partial(bound.load, variants[0].shapes[0]))
        yield _grown_network(bound, begin, model, begin_state(tuple(kinds)), precision)


@dataclass(frozen=True)
class Prefill:
    """A step as a model with one length, its new places: see `lengths.lift`.

    `step`: it at the most, with `halves`. `last_rows`: see `StateInfo`.
    """

    bound: BoundModel
    variant: Grown
    step: Graph
    halves: Mapping[str, str]
    last_rows: Mapping[str, int]
    precision: str
    dims: Mapping[str, Extents] = field(default_factory=dict)

    @property
    def mosts(self) -> dict[str, int]:
        """The most new places."""
        return {PROMPT: self.variant.growth.chunk}

    def imported(self, numbers: Mapping[str, int]) -> ImportedModel:
        """The step for so many places, in the memory of the capacity."""
        graph = self._read(numbers[PROMPT])
        stored = rows_first(named(partial(prepare, graph, PRECISIONS[self.precision])))
        require_supported(stored, undefined)
        return ImportedModel(light(graph), stored, self.halves)

    def least(self, points: Points, graphs: Sequence[Graph]) -> Mapping[str, int]:
        """Two places: the step of one is another network."""
        numbers = {PROMPT: _LEAST_PROMPT}
        require_even(points, graphs, numbers, light(self._read(_LEAST_PROMPT)))
        return numbers

    def _read(self, n: int) -> Graph:
        most = self.mosts[PROMPT]
        if n > most:
            raise NotLifted(f"there are {most} new places at most, and {n} are looked at", _AT_EACH)
        graph = self.step
        if n < most:
            one = self.variant.at(n)
            model = named(partial(self.bound.load, one.shapes[0]))
            graph = named(partial(_grown_phases, self.bound, one, model)).step
        return with_last_rows(graph, self.last_rows)


class _Rows:
    """The dimension of new places of each port of the caller's: see `StateInfo.places`.

    It is that in which a step differs from the file at another number of them.
    """

    def __init__(self, bound: BoundModel, variant: Grown, step: Graph, state: StateInfo) -> None:
        shapes = _port_shapes(step)
        self._shapes = {name: shapes[name] for name in shapes if name not in state.ports}
        self._places = self._found(bound, variant)

    def _found(self, bound: BoundModel, variant: Grown) -> dict[str, int]:
        chunk = variant.growth.chunk
        if variant.other is None:
            return assumed_axes(self._shapes, chunk)
        beside, inputs = variant.other
        try:
            model = named(partial(bound.load, inputs))
            others = named(partial(grown_shapes, model, beside, bound.operators))
        except AutotuneError:  # the file computes no other number of new places
            return assumed_axes(self._shapes, chunk)
        return rows_axes(self._shapes, chunk, others, beside.chunk)

    def of(self, variant: Grown, step: Graph) -> Mapping[str, int]:
        """Those of a step of `variant`. Raises NotCompilable where it has others."""
        shapes, chunk = _port_shapes(step), variant.growth.chunk
        for name, first in self._shapes.items():
            axis = self._places.get(name)
            wanted = tuple(chunk if d == axis else n for d, n in enumerate(first))
            if axis != NO_ROWS and shapes[name] != wanted:
                raise NotCompilable(
                    f"'{name}' {list(shapes[name])} of {chunk} new places has no row for each, "
                    f"beside {list(first)}",
                    _AT_EACH,
                )
        return self._places


def _port_shapes(graph: Graph) -> dict[str, Shape]:
    """Shapes of inputs and outputs, by the names that the file has for them."""
    names = (*graph.inputs, *graph.outputs)
    return {_stated(graph, name): graph.types[name].shape for name in names}


def _stated(graph: Graph, name: str) -> str:
    """The name of an output in the file."""
    return graph.output_names.get(name, name)


def _grown_phases(bound: BoundModel, variant: Grown, model: OnnxModel) -> Phases:
    growth = variant.growth
    probes = (bound.load(shapes) for shapes in variant.shapes[1:])
    graph = join_decoder(import_grown([model, *probes], growth, bound.operators))
    made = {name: output for name, output in growth.passed.items() if name in graph.inputs}
    if growth.flag and made:
        bare = replace(bound, constants={**bound.constants, growth.flag: np.array(False)})
        graph = fed_by(graph, import_graph(bare.load(variant.first), bound.operators), made)
    return phases(graph, growth.held)


def _grown_network(
    bound: BoundModel,
    graph: Graph,
    model: OnnxModel,
    state: StateInfo,
    precision: str,
    sessions: int = 1,
) -> Network:
    def made() -> Network:
        whole, own = with_last_rows(graph, state.last_rows), state
        stored = rows_first(prepare(whole, PRECISIONS[precision]))
        if sessions > 1:
            whole, stored, own = together(whole, stored, state, sessions)
        network = stored_network(whole, stored, bound.path.stem, bound.digest)
        return replace(without_unread(network), precision=precision, state=own)

    return replace(
        as_stated(named(made), model.halves),
        random_weights=bound.random_weights,
        constant_inputs=dict(bound.constants),
    )
