"""① The networks of a model with a growing state, for each number of new places.

grown_networks(bound, variants)  ─►  a prefill of any number, a step of one, what begins a sequence
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property, partial
from itertools import chain, islice

import numpy as np

from autotune.config import PRECISIONS
from autotune.errors import AutotuneError, NotCompilable
from autotune.extent import Extents
from autotune.graph.bound_model import BoundModel
from autotune.graph.ir import Array, Graph, Node, Shape, TensorType
from autotune.graph.last_rows import rows_first, with_last_rows
from autotune.graph.lengths.formulas import Quotient, whole
from autotune.graph.lengths.imports import ImportedModel, NotLifted, light, require_even
from autotune.graph.lengths.lift import lifted
from autotune.graph.lengths.numbers import Points, points_of, primes_from
from autotune.graph.lengths.rounding import open_moves, opened, quotients_in
from autotune.graph.network import Network, as_stated, named, stored_network
from autotune.graph.passes.cached_products import FEW_ROWS
from autotune.graph.passes.decoders import join_decoder
from autotune.graph.passes.pipeline import prepare
from autotune.graph.reader.constant_forms import ConstantForms
from autotune.graph.reader.grown import LEAST_PAST, Grown
from autotune.graph.reader.growth import TOTAL, begin_state, state_of
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
from autotune.graph.together import of_sessions, together

_AT_EACH = "compile it without `capacity`, at each length that you need (`dims`)"
_LEAST_PROMPT = 2
_FEW_CHUNKS = 4
"""What a quotient has to be at the most for a step to be looked at where it is two and more."""


class OtherSteps(NotLifted):
    """A prefill that may follow its length where it has up to `places` places; 0 for a step for
    drafts, without which the others may be lifted."""

    def __init__(self, error: NotLifted, places: int) -> None:
        super().__init__(error.message, _AT_EACH)
        self.places = places


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
    known: ConstantForms | None = None
    for one in variants:
        model = named(partial(bound.load, one.shapes[0]))
        if one.is_open and known is None:
            known = _forms(bound, one)
        given = known if one.is_open else None
        found, forms = named(partial(_grown_phases, bound, one, model, given))
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
        rows = rows or _Rows(bound, one, _told(found.step), state)
        state = replace(state, places=rows.of(one, _told(found.step)))
        if one.scores == "last":
            state = of_last_place(state, map(partial(_stated, found.step), found.step.outputs))
        state = replace(state, verifies=one.verifies)
        step = Step(bound, one, found.step, forms, model.halves, state, precision)
        if one.sessions > 1:
            yield replace(_lifted(Together(step)), state=of_sessions(state, one.sessions))
        else:
            yield replace(_lifted(step), state=state)
    if begin is not None and kinds:
        model = named(partial(bound.load, variants[0].shapes[0]))
        yield _begin_network(bound, begin, model, begin_state(tuple(kinds)), precision)


@dataclass(frozen=True)
class Step:
    """A step as a model with lengths: its filled places, and its new ones if it is open.

    `step`: it at the most, with `forms` of constants and `halves`. All of its places are used at
    every number: buffers are as long then.
    """

    bound: BoundModel
    variant: Grown
    step: Graph
    forms: ConstantForms
    halves: Mapping[str, str]
    state: StateInfo
    precision: str
    dims: Mapping[str, Extents] = field(default_factory=dict)
    ends: Mapping[str, tuple[bool, ...]] | None = None
    """Where extents are quotients of numbers: see `rounding.opened`."""

    @property
    def mosts(self) -> dict[str, int]:
        """The most new places, and all with them."""
        growth = self.variant.growth
        new = {PROMPT: growth.chunk} if self.variant.is_open else {}
        follows = growth.grows and not self.variant.is_masked
        return new | ({TOTAL: growth.capacity} if follows else {})

    @property
    def given(self) -> dict[str, str]:
        """A step computes the number of its places."""
        return {TOTAL: TOTAL} if TOTAL in self.mosts else {}

    def points(self, near: bool, quotients: Mapping[str, Quotient] | None = None) -> Points:
        """Numbers of new places, and of all places that have them."""
        mosts, chunk = self.mosts, self.variant.growth.chunk
        new: list[dict[str, int]] = [{}, {}]
        if self.variant.is_open:
            new = [dict(at) for at in points_of({PROMPT: chunk}, near, quotients).at[1:]]
        if TOTAL not in mosts:
            return _points((mosts, *new), quotients)
        least = max(at.get(PROMPT, chunk) for at in new) + LEAST_PAST
        taken = {chunk, mosts[TOTAL], *(n for at in new for n in at.values())}
        able = primes_from(max(FEW_ROWS + 1, least))
        if near:
            able = chain(range(mosts[TOTAL] - 1, least - 1, -1), primes_from(mosts[TOTAL] + 1))
        t, u = islice((n for n in able if n not in taken), 2)
        own = [{**at, TOTAL: t} for at in (new if self.variant.is_open else new[:1])]
        return _points((mosts, *own, {**new[0], TOTAL: u}), quotients)

    def quotients(self) -> dict[str, Quotient]:
        """Numbers that some extents follow, which are quotients of that of new places."""
        return self._quotients

    @property
    def other_places(self) -> int:
        """Places of a prefill that may be lifted though this one is not: so many that quotients are
        at least two at most of them, or, in a small capacity, so few that they are one; or 0."""
        chunk, able = self.variant.growth.chunk, self.variant.growth.capacity - LEAST_PAST

        def most(n: int) -> int:
            return max(whole(self._quotients, {PROMPT: n})[q] for q in self._quotients)

        if not self._quotients or most(chunk) >= _FEW_CHUNKS:
            return 0
        wanted = _FEW_CHUNKS if most(able) >= _FEW_CHUNKS else 1
        found = max(n for n in range(1, able + 1) if most(n) <= wanted)
        return found if found != chunk else 0

    @cached_property
    def _quotients(self) -> dict[str, Quotient]:
        if not self.variant.is_open:
            return {}
        rest = {n: most for n, most in self.mosts.items() if n != PROMPT}
        read = self._light_at
        return quotients_in(lambda at: read({**at, **rest}), {PROMPT: self.mosts[PROMPT]})

    def rounded(self) -> Step:
        """The step, to be looked at where extents are quotients."""
        mosts = self.mosts
        fewer = {n: most - (n == PROMPT) for n, most in mosts.items()}
        return replace(self, ends=open_moves(self._light_at, (mosts, fewer)))

    def imported(self, numbers: Mapping[str, int]) -> ImportedModel:
        """The step behind so many places, and for so many."""
        graph = self._read(numbers)
        if self.ends is not None:
            graph = opened(graph, self.ends)
        stored = rows_first(named(partial(prepare, graph, PRECISIONS[self.precision])))
        require_supported(stored, undefined)
        return ImportedModel(light(_told(graph)), stored, self.halves)

    def least(self, points: Points, graphs: Sequence[Graph]) -> Mapping[str, int]:
        """Two new places, for the step of one is another network, behind as few as are imported."""
        new = _LEAST_PROMPT if self.variant.is_open else self.variant.growth.chunk
        least = {PROMPT: new, TOTAL: new + LEAST_PAST}
        numbers = {name: least[name] for name in self.mosts}
        require_even(points, graphs, numbers, self._light_at(numbers))
        return numbers

    def _light_at(self, numbers: Mapping[str, int]) -> Graph:
        return light(_told(self._read(numbers)))

    def _read(self, numbers: Mapping[str, int]) -> Graph:
        growth, mosts = self.variant.growth, self.mosts
        n = numbers.get(PROMPT, growth.chunk)
        if n > growth.chunk:
            raise NotLifted(
                f"there are {growth.chunk} new places at most, and {n} are looked at", _AT_EACH
            )
        graph = self.step if TOTAL in mosts else _told(self.step)
        if numbers != mosts:
            places = numbers.get(TOTAL, growth.capacity)
            one = replace(self.variant, growth=growth.at(n, places))
            model = named(partial(self.bound.load, one.shape))
            found, _ = named(partial(_grown_phases, self.bound, one, model, self.forms))
            graph = found.step if TOTAL in mosts else _told(found.step)
        return with_last_rows(graph, self.state.last_rows)


@dataclass(frozen=True)
class Together:
    """A step of several sessions, each with a length of its own."""

    step: Step

    bound = property(lambda self: self.step.bound)
    dims = property(lambda self: self.step.dims)
    precision = property(lambda self: self.step.precision)
    mosts = property(lambda self: self.step.mosts)
    given = property(lambda self: self.step.given)

    def points(self, near: bool, quotients: Mapping[str, Quotient] | None = None) -> Points:
        """Those of a step."""
        return self.step.points(near, quotients)

    def quotients(self) -> dict[str, Quotient]:
        """None: each session has one new place."""
        return {}

    def rounded(self) -> Together:
        """Itself."""
        return self

    @cached_property
    def moving(self) -> frozenset[int]:
        """The nodes that follow the length."""
        mosts = self.mosts
        if TOTAL not in mosts:
            return frozenset()
        found = [self.step.imported(n).stored for n in (mosts, {TOTAL: mosts[TOTAL] - 1})]
        first, other = ([*map(partial(_seen, g), g.nodes)] for g in found)
        pairs = enumerate(zip(first, other, strict=False))
        return frozenset(n for n, (a, b) in pairs if not _is_same(a, b))

    def least(self, points: Points, graphs: Sequence[Graph]) -> Mapping[str, int]:
        """As few filled places as are imported."""
        numbers = dict.fromkeys(self.mosts, LEAST_PAST + 1)
        require_even(points, graphs, numbers, self.imported(numbers).graph)
        return numbers

    def imported(self, numbers: Mapping[str, int]) -> ImportedModel:
        """The step of all sessions, where each is at the same length."""
        one, k = self.step.imported(numbers), self.step.variant.sessions
        graphs = one.graph, one.stored
        whole, stored, owners = together(*graphs, self.step.state, k, TOTAL, self.moving)
        return replace(one, graph=_told(whole), stored=stored, owners=owners)


def _lifted(step: Step | Together) -> Network:
    """The network of a step. Raises NotLifted, which says what else is possible."""
    try:
        return lifted(step)
    except NotLifted as error:
        if isinstance(step, Step) and step.variant.verifies:
            raise OtherSteps(error, 0) from error
        if isinstance(step, Step) and (places := step.other_places):
            raise OtherSteps(error, places) from error
        raise NotLifted(error.message, _AT_EACH) from error


def _points(
    at: Sequence[Mapping[str, int]], formulas: Mapping[str, Quotient] | None = None
) -> Points:
    return Points(tuple(whole(formulas or {}, numbers) for numbers in at), formulas or {})


def _told(graph: Graph) -> Graph:
    """A step without the number of its places as an output."""
    return replace(graph, outputs=tuple(name for name in graph.outputs if name != TOTAL))


def _seen(graph: Graph, node: Node) -> list[Array | Shape]:
    """Shapes of what a node reads and makes, and constants."""
    names = [name for name in (*node.inputs, *node.outputs) if name]
    return [graph.constants.get(name, graph.shape(name)) for name in names]


def _is_same(one: Sequence[Array | Shape], other: Sequence[Array | Shape]) -> bool:
    return len(one) == len(other) and all(map(np.array_equal, one, other))


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


def _forms(bound: BoundModel, variant: Grown) -> ConstantForms:
    """How constants of a prefill follow the filled places: as they do for the fewest new ones,
    where all that any number of new places can meet is met."""
    least = variant.at(_LEAST_PROMPT)
    model = named(partial(bound.load, least.shapes[0]))
    return named(partial(_grown_phases, bound, least, model))[1]


def _grown_phases(
    bound: BoundModel, variant: Grown, model: OnnxModel, known: ConstantForms | None = None
) -> tuple[Phases, ConstantForms]:
    growth = variant.growth
    models = [model, *(bound.load(s) for s in (() if known else variant.shapes[1:]))]
    masks = variant.is_masked
    graph, forms = import_grown(models, growth, bound.operators, known, masks)
    graph = join_decoder(graph)
    made = {name: output for name, output in growth.passed.items() if name in graph.inputs}
    if growth.flag and made:
        bare = replace(bound, constants={**bound.constants, growth.flag: np.array(False)})
        graph = fed_by(graph, import_graph(bare.load(variant.first), bound.operators), made)
    return phases(graph, growth.held), forms


def _begin_network(
    bound: BoundModel, graph: Graph, model: OnnxModel, state: StateInfo, precision: str
) -> Network:
    def made() -> Network:
        stored = prepare(graph, PRECISIONS[precision])
        return stored_network(graph, stored, bound.path.stem, bound.digest)

    return replace(
        as_stated(named(made), model.halves),
        precision=precision,
        state=state,
        random_weights=bound.random_weights,
        constant_inputs=dict(bound.constants),
    )
