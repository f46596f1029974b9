"""① A model at one number of each length after the other, and the least at which it is the same.

Primes tell an extent of min(n, 8) from none: it is 8 at all of them. At the least number it has to
be what it is elsewhere, so that number is 8.
"""

from __future__ import annotations

import itertools
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from itertools import zip_longest
from math import comb
from typing import Protocol

import numpy as np

from autotune.config import PRECISIONS
from autotune.errors import ModelError, NotCompilable, without_frames
from autotune.extent import Extents, Length, at
from autotune.graph.bound_model import BoundModel
from autotune.graph.ir import Array, Graph, Node, same
from autotune.graph.lengths.formulas import Quotient
from autotune.graph.lengths.numbers import Points, points_of
from autotune.graph.lengths.rounding import open_moves, opened, quotients_in
from autotune.graph.network import named
from autotune.graph.operators.movement import pad_amounts
from autotune.graph.operators.recurrent import OPEN_STEPS, RECURRENT
from autotune.graph.passes.pipeline import prepare_first, prepare_rest
from autotune.graph.reader.importer import import_graph
from autotune.graph.reader.onnx_reader import OnnxModel
from autotune.graph.refusals import require_supported
from autotune.graph.tasks.subgraph import undefined
from autotune.graph.texts import NO_TEXTS, Texts
from autotune.graph.written import WrittenLengths

HINT = "give that dimension one size, or sizes in steps (a multiple of 2, 4, 8, …)"
_FEW = 64
"""Elements of a constant that may decide a shape."""
_LEAST_WRITTEN = 2
"""The least of a number that data decide may look another one: n - 1 elements of one are none."""


class NotLifted(NotCompilable):
    """A model that has no network for all lengths: it can be compiled for each size alone."""


@dataclass(frozen=True)
class ImportedModel:
    """A model at one point: as it was read, without large constants, and behind all passes.

    `owners`: of tensors that are of one of several sessions, the tensor that holds its number.
    """

    graph: Graph
    stored: Graph
    halves: Mapping[str, str]
    written: Mapping[str, str] = field(default_factory=dict)
    """The tensor of each number that an operator writes, by its name."""
    texts: Texts = NO_TEXTS
    owners: Mapping[str, str] = field(default_factory=dict)

    def sharing(self, first: ImportedModel) -> ImportedModel:
        """The same with the constants of `first` where they are equal, whose memory is free."""
        known = first.stored.constants
        constants = {
            n: known[n] if n in known and same(known[n], a) else a
            for n, a in self.stored.constants.items()
        }
        return replace(self, stored=replace(self.stored, constants=constants))


class LengthModel(Protocol):
    """A model with lengths, to be looked at for single numbers of them."""

    @property
    def bound(self) -> BoundModel:
        """Its file."""

    @property
    def dims(self) -> Mapping[str, Extents]:
        """The dimensions of inputs that are known to be lengths."""

    @property
    def precision(self) -> str:
        """Of the factors of products."""

    @property
    def mosts(self) -> Mapping[str, int]:
        """The most of each number."""

    @property
    def given(self) -> Mapping[str, str]:
        """Numbers that the model computes, by name: the tensors that hold them."""

    def points(self, near: bool, quotients: Mapping[str, Quotient] | None = None) -> Points:
        """Where it is looked at: see `points_of`. Raises NotTold."""

    def quotients(self) -> Mapping[str, Quotient]:
        """Numbers that some extents follow, which are quotients of others."""

    def rounded(self) -> LengthModel:
        """The model, to be looked at where extents are quotients."""

    def imported(self, numbers: Mapping[str, int]) -> ImportedModel:
        """The model where lengths have these numbers. Raises ModelError."""

    def least(self, points: Points, graphs: Sequence[Graph]) -> Mapping[str, int]:
        """The least numbers from which on the model is what `graphs` are at the points. Raises
        ModelError."""


@dataclass(frozen=True)
class Written:
    """The lengths that operators of a model write: their mosts and the tensors of their numbers, by
    name. `shortened`, `fixed`, `long`: see `WrittenLengths`."""

    mosts: Mapping[str, int]
    tensors: Mapping[str, str]
    shortened: Mapping[str, int]
    fixed: Collection[str]
    long: Collection[str]

    def at(self, numbers: Mapping[str, int]) -> WrittenLengths:
        """To read the model for these numbers."""
        of = self.shortened, self.fixed, self.long
        return WrittenLengths(lambda name, most: numbers[name], *of)


@dataclass(frozen=True)
class OpenModel:
    """A model whose inputs have lengths: `dims` by their names."""

    bound: BoundModel
    dims: Mapping[str, Extents]
    precision: str
    written: Written | None = None
    computed: frozenset[str] = frozenset()
    """Results of Concat that are computed though they are constants at any number."""
    ends: Mapping[str, tuple[bool, ...]] | None = None
    """Where extents are quotients of numbers: see `rounding.opened`."""
    kept: frozenset[str] = frozenset()
    floats: frozenset[str] = frozenset()
    """Nodes whose products are in float32, and of integers that are of floats: see `Mixture`."""
    given: Mapping[str, str] = field(default_factory=dict)
    read: dict[object, Graph | ModelError] = field(default_factory=dict, compare=False, repr=False)
    """As it was read at some numbers, where that was asked for before."""

    @property
    def mosts(self) -> dict[str, int]:
        """The most of each number."""
        lengths = (e for shape in self.dims.values() for e in shape if isinstance(e, Length))
        own = {length.name: length.most for length in lengths}
        return own | dict(self.written.mosts if self.written else {})

    def points(self, near: bool, quotients: Mapping[str, Quotient] | None = None) -> Points:
        """Where it is looked at: see `points_of`."""
        return points_of(self.mosts, near, quotients)

    def imported(self, numbers: Mapping[str, int]) -> ImportedModel:
        """The model where lengths have these numbers."""
        model, graph = self.read_at(numbers)
        graph = self.with_open_steps(graph)
        if self.ends is not None:
            graph = opened(graph, self.ends)
        first = named(partial(prepare_first, graph))
        rest = first, PRECISIONS[self.precision], self.kept, self.floats
        stored = named(partial(prepare_rest, *rest))
        require_supported(stored, undefined)
        tensors = self.written.tensors if self.written else {}
        return ImportedModel(light(graph), stored, model.halves, tensors, model.texts)

    def with_open_steps(self, graph: Graph) -> Graph:
        """Recurrent operators whose steps follow a length have nodes for the most of them."""
        if not any(n.op in RECURRENT for n in graph.nodes):
            return graph
        most, lower = (self._light_at(at) for at in (self.mosts, points_of(self.mosts).at[1]))
        triples = zip(graph.nodes, _steps(most), _steps(lower), strict=True)
        return replace(graph, nodes=tuple(_with_open_steps(*one) for one in triples))

    def read_at(self, numbers: Mapping[str, int]) -> tuple[OnnxModel, Graph]:
        """The file at these numbers, and its graph. Raises ModelError."""
        shapes = {name: at(extents, numbers) for name, extents in self.dims.items()}
        model = named(partial(self.bound.load, shapes))
        written = self.written.at(numbers) if self.written else None
        of = model, self.bound.operators, written, self.computed
        return model, named(partial(import_graph, *of))

    def joining(self, points: Points) -> tuple[tuple[tuple[str, str], ...], frozenset[str]]:
        """Pairs of lengths whose product results of Concat follow, and these."""
        graphs = [self._light_at(numbers) for numbers in points.at]
        nodes = self.read_at(points.most)[0].proto.graph.node
        concats = [o for n in nodes if n.op_type == "Concat" for o in n.output]
        pairs: dict[tuple[str, str], None] = {}
        joined: set[str] = set()
        for name in concats:
            shapes = [g.types[name].shape for g in graphs if name in g.types]
            is_known = len(shapes) == len(graphs) and len({len(s) for s in shapes}) == 1
            for extent in zip(*shapes, strict=True) if is_known else ():
                if points.affine(extent) is None:
                    follows = [n for n, at in _moves(points) if extent[at] != extent[1]]
                    pairs |= dict.fromkeys(itertools.combinations(follows, 2))
                    joined.add(name)
        return tuple(pairs), frozenset(joined)

    def joined_constants(self) -> frozenset[str]:
        """Results of Concat that are constants at any number, of another size at each: what they
        hold follows where one operand ends, so it is computed. None where it cannot be read."""
        at = points_of(self.mosts).at[:2]
        try:
            graphs = [self._light_at(numbers) for numbers in at]
        except ModelError as error:
            without_frames(error)
            return frozenset()
        made = {o for g in graphs for n in g.nodes for o in n.outputs}
        nodes = self.read_at(at[0])[0].proto.graph.node
        joined = {n.output[0] for n in nodes if n.op_type == "Concat"} - made
        shapes = ([g.types[o].shape if o in g.types else () for g in graphs] for o in joined)
        return frozenset(o for o, (a, b) in zip(joined, shapes, strict=True) if a != b)

    def quotients(self) -> dict[str, Quotient]:
        """Numbers that some extents follow, which are quotients of others."""
        return {} if self.written else quotients_in(self._light_at, self.mosts)

    def rounded(self) -> OpenModel:
        """The model, to be looked at where extents are quotients."""
        fewer = {name: max(1, most - 1) for name, most in self.mosts.items()}
        return replace(self, ends=open_moves(self._light_at, (self.mosts, fewer)))

    def least(self, points: Points, graphs: Sequence[Graph]) -> Mapping[str, int]:
        """The least numbers from which on the model is what `graphs` are at the points.

        One, but where there are other nodes at one, other extents, or no model at all: calls with
        less are refused, which what data decide cannot be. Raises NotLifted, ModelError. So it does
        where a model depends on the order of two lengths, which is the same at all points as a
        rule: each but the longest is looked at beside the least of each other.
        """
        numbers = dict.fromkeys(self.mosts, 1)
        if self._uneven(points, graphs, numbers) is not None:
            numbers = {name: self._least(name, points, graphs) for name in numbers}
            self._require_fewer(points, graphs, numbers)
        mosts = self.mosts
        shorter = sorted(mosts, key=mosts.__getitem__)[:-1]
        longer = [{name: mosts[name] for name in some} for some in _apart(shorter)]
        for at_least in (numbers, *(numbers | some for some in longer)):
            error = self._uneven(points, graphs, at_least)
            if error is not None:
                raise error
        return numbers

    def _require_fewer(
        self, points: Points, graphs: Sequence[Graph], numbers: Mapping[str, int]
    ) -> None:
        """Raise NotLifted where data may give fewer than the least, and extents are others then."""
        written = self.written.mosts if self.written else {}
        fewer = {name: 1 for name in written if numbers[name] > _LEAST_WRITTEN}
        if fewer:
            _require_shapes(
                points, graphs, {**numbers, **fewer}, self._light_at({**numbers, **fewer})
            )

    def _least(self, name: str, points: Points, graphs: Sequence[Graph]) -> int:
        """The least number of one length, beside the most of the others."""
        mosts = self.mosts
        low, high = 0, min(points.at[1][name], mosts[name])
        n = 1
        while low + 1 < high:
            is_even = self._uneven(points, graphs, mosts | {name: n}) is None
            low, high = (low, n) if is_even else (n, high)
            n = (low + high) // 2
        return high

    def _uneven(
        self, points: Points, graphs: Sequence[Graph], numbers: Mapping[str, int]
    ) -> ModelError | None:
        """Why the model is another one at these numbers; None where it is not."""
        try:
            require_some(points, numbers)
            require_even(points, graphs, numbers, self._light_at(numbers))
        except ModelError as error:
            without_frames(error)
            return error
        return None

    def _light_at(self, numbers: Mapping[str, int]) -> Graph:
        """The model as it was read at these numbers, once. Raises ModelError."""
        key = tuple(sorted(numbers.items()))
        if key not in self.read:
            try:
                self.read[key] = light(self.read_at(numbers)[1])
            except ModelError as error:
                without_frames(error)
                self.read[key] = error
        found = self.read[key]
        if isinstance(found, ModelError):
            raise found
        return found


def _apart(names: Sequence[str]) -> list[list[str]]:
    """So few parts of `names` that each name is in one without any other: no two of them are in all
    the same parts, nor one in some of another's (Sperner's sets)."""
    count = next(n for n in itertools.count(1) if comb(n, n // 2) >= len(names))
    own = zip(names, itertools.combinations(range(count), max(count // 2, 1)), strict=False)
    found: list[list[str]] = [[] for _ in range(count)]
    for name, parts in own:
        for part in parts:
            found[part].append(name)
    return [part for part in found if part]


def _moves(points: Points) -> Iterator[tuple[str, int]]:
    """Each name, and the point at which it alone is another number than at the second."""
    return zip(points.most, range(2, 2 + len(points.most)), strict=True)


def _steps(graph: Graph) -> Iterator[int]:
    """Of each node the steps that it takes; 0 of those that take none."""
    for n in graph.nodes:
        shape = graph.shape(n.inputs[0]) if n.op in RECURRENT else (0,)
        yield shape[1 if n.attrs.get("layout") else 0]


def _with_open_steps(node: Node, most: int, lower: int) -> Node:
    return node if most == lower else replace(node, attrs={**node.attrs, OPEN_STEPS: most})


def require_some(points: Points, numbers: Mapping[str, int]) -> None:
    """Raise NotLifted where a number that follows from `numbers` is none."""
    whole = points.whole(numbers)
    if any(whole[name] < 1 for name in points.formulas):
        raise NotLifted(f"the model has nothing to compute at {_told(numbers)}", HINT)


def require_even(
    points: Points, graphs: Sequence[Graph], numbers: Mapping[str, int], graph: Graph
) -> None:
    """Raise NotLifted where `graph`, at the least `numbers`, has other nodes than `graphs` at the
    points, or extents that do not follow from those there."""
    first = graphs[0]
    for a, b in zip_longest(first.nodes, graph.nodes):
        if a is None or b is None or (a.op, a.name) != (b.op, b.name):
            node = a or b
            raise NotLifted(
                f"the model has other operators at {_told(numbers)}, first at {node.op} "
                f"'{node.name}'",
                HINT,
            )
    _require_shapes(points, graphs, numbers, graph)
    _require_reflections(numbers, graph)
    read = {name for node in first.nodes for name in node.inputs}.union(first.outputs)
    for name in (n for n in first.constants if n in read):
        arrays = [g.constants.get(name) for g in (*graphs, graph)]
        known = [a for a in arrays if a is not None]
        if len(known) == len(arrays):
            _require_even(points, known, numbers, f"constant '{name}'")


def _require_shapes(
    points: Points, graphs: Sequence[Graph], numbers: Mapping[str, int], graph: Graph
) -> None:
    for name in (n for n in graphs[0].types if all(n in g.types for g in (*graphs, graph))):
        shapes = [np.asarray(g.types[name].shape) for g in (*graphs, graph)]
        if len({s.size for s in shapes}) > 1:
            raise NotLifted(f"'{name}' has another rank at {_told(numbers)}", HINT)
        _require_even(points, shapes, numbers, f"the shape of '{name}'")


def _require_reflections(numbers: Mapping[str, int], graph: Graph) -> None:
    """Places beyond an operand are mirrored once, or more often: in another way."""
    for node in (n for n in graph.nodes if n.op == "Pad" and n.attrs.get("mode") == "reflect"):
        shape = graph.shape(node.inputs[0])
        amounts = pad_amounts(node, graph.constants, len(shape))
        if amounts is None or any(
            a >= n for a, n in zip(amounts, (*shape, *shape), strict=True) if a
        ):
            raise NotLifted(
                f"Pad '{node.name}' mirrors places more than once at {_told(numbers)}", HINT
            )


def _require_even(
    points: Points, arrays: Sequence[Array], numbers: Mapping[str, int], what: str
) -> None:
    """Whether integers that are affine at the points are so at the least number: the last array."""
    if len({a.shape for a in arrays}) > 1:
        return
    for *known, last in zip(*(a.reshape(-1).tolist() for a in arrays), strict=True):
        form = points.affine(known)
        if form is not None and form.at(points.whole(numbers)) != last:
            raise NotLifted(
                f"{what} does not follow {_told(numbers)}: {last} there, and {form} at larger ones",
                HINT,
            )


def _told(numbers: Mapping[str, int]) -> str:
    return " and ".join(f"{name} = {n}" for name, n in numbers.items())


def light(graph: Graph) -> Graph:
    """`graph` with the constants alone that may decide a shape."""
    few = {n: a for n, a in graph.constants.items() if a.size <= _FEW and a.dtype.kind in "iu"}
    return replace(graph, constants=few)
