"""⑪ Sizes that nobody said: all up to mosts, as far as the model follows them (decision 0146).

    opened(model, outline) ─► Opening({"s10": "..8", "s86": "s10", "x.2": 48}, network, notes)

The model is read at a few sizes, which tells quickly what its dimensions can be: two that are one,
sizes in steps, a single size. Then it is lifted, with a dimension less free wherever that fails.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, field, replace
from functools import partial
from types import MappingProxyType

from autotune.api.open_sizes import (
    LOWER,
    Numbers,
    Sizes,
    extents_in,
    in_words,
    leasts_of,
    lengths_in,
    lower_number,
    n_bytes_of,
    ties_in,
    weight_of,
)
from autotune.api.ranges import told
from autotune.errors import (
    BeyondLimits,
    ModelError,
    UnsupportedOperator,
    UsageError,
    without_frames,
)
from autotune.extent import Length
from autotune.graph.bound_model import BoundModel
from autotune.graph.ir import Graph
from autotune.graph.lengths.imports import NotLifted, light
from autotune.graph.lengths.lift import lifted_network
from autotune.graph.network import Network, named
from autotune.graph.reader.dimensions import Outline, extents_at, shapes_at, symbols, tied
from autotune.graph.reader.importer import import_graph
from autotune.graph.reader.mosts import (
    LENGTH,
    RECURRENT,
    STEPS,
    Kind,
    OpenDimension,
    is_line,
    open_dimensions,
    strides,
)
from autotune.wording import arguments

_USUAL = (48, 32, 64, 224, 256, 320, 640, 128, 112, 160, 299, 384, 512, 576, 28, 40, 80, 96, 192)
_USUAL_LENGTHS = (128, 512, 256, 64, 32, 16, 576, 160, 320, 400, 480, 1024, 1536, 16000, 8, 1)
"""Sizes that models of a fixed size have, the usual ones first."""
_SHORT = 53
"""A length at which a model is read before it is at the most."""
_FIXED = {"length": 128, "image": 640}
_MANY_STEPS = {"length": 32, "image": 160}
"""Single sizes that are tried first, where each step is a node the latter."""
_LEAST_IMAGE = 64
"""The most of height and width that is tried where larger ones ask for too much, or less."""
_ROOM = 512 << 20
"""Bytes of outputs and of the largest tensor at the most."""
_LARGE_STEPS = (64, 128)
_MOST_READS = 150


@dataclass(frozen=True)
class Opening:
    """What the dimensions of a model are: `dims` as a user would say it, and the network.

    None where all of them have one size.
    """

    dims: dict[str, int | str]
    network: Network | None
    notes: tuple[str, ...]


class NotOpened(Exception):
    """Why no sizes were found at which the model can be compiled."""


def opened(model: BoundModel, outline: Outline, precision: str) -> Opening:
    """The most general sizes that the model can be compiled for. Raises NotOpened.

    `outline`: with names that are tied already.
    """
    held = model if model.parted else model.held()
    return _Search(held, outline, precision, open_dimensions(outline)).found()


def lengths_of(
    model: BoundModel,
    outline: Outline,
    mosts: Mapping[str, int],
    held: Mapping[str, int] = MappingProxyType({}),
) -> Iterator[dict[str, int | str]]:
    """What dimensions may be that are of any size, or a batch of one; the most general first.

    `mosts`: of some of them, in the place of those that are assumed. `held`: sizes that some may be
    fixed to, where they cannot be of any. Raises NotOpened, UnsupportedOperator.
    """
    kinds = {
        n: replace(known, most=mosts.get(n, known.most))
        for n, known in open_dimensions(outline).items()
    }
    whole = model if model.parted else model.held()
    for sizes in _Search(whole, outline, "f32", kinds, held).ways() if kinds else ():
        fixed = {n: x for n, x in sizes.items() if isinstance(x, int)}
        if all(kinds[n].kind == "batch" or held.get(n) == x for n, x in fixed.items()):
            yield in_words(sizes)


@dataclass
class _Search:
    model: BoundModel
    outline: Outline
    precision: str
    kinds: Mapping[str, OpenDimension]
    held: Mapping[str, int] = field(default_factory=dict)
    """Sizes that some are fixed to, where they cannot be of any."""
    graphs: dict[object, Graph | ModelError] = field(default_factory=dict)
    reasons: list[str] = field(default_factory=list)
    refusals: list[str] = field(default_factory=list)
    """Why there is no network for all sizes, where the model could be read."""
    why: dict[str, str] = field(default_factory=dict)
    """Why dimensions have one size."""
    unlifted: set[str] = field(default_factory=set)
    """Dimensions of which that is known from nodes that do not follow them."""
    is_beyond: bool = False
    """Whether the model asked for too much at the sizes at which it was read last."""
    top: dict[str, int] = field(default_factory=dict)
    """Numbers at which lengths are read that would take long at the most."""

    def __post_init__(self) -> None:
        self.sizes: Sizes = {n: Length(n, known.most) for n, known in self.kinds.items()}

    def found(self) -> Opening:
        """The first of the ways that works. Raises NotOpened."""
        try:
            for sizes in self.ways():
                network = self._lifted(sizes)
                if network is not None:
                    return Opening(in_words(sizes), network, self._notes(sizes, network))
        except UnsupportedOperator as error:
            self.refusals.insert(0, error.message)
        return self._static(self.sizes, self._reason)

    def ways(self) -> Iterator[Sizes]:
        """What sizes may be, the most general first, some as long as those before do not work.

        Raises NotOpened, UnsupportedOperator.
        """
        yield from self._of_signals()
        if self._is_simple:
            yield self.sizes
        self.sizes = self._read(self.sizes)
        if self._is_rounded:
            yield self._with_room(self.sizes)
        self.sizes = self._with_room(self._followed(self.sizes))
        yield from self._attempts(self.sizes)

    def _of_signals(self) -> Iterator[Sizes]:
        """Of a model whose lengths are many samples, of which windows make a place: every number of
        samples, and steps that are whole places."""
        steps = [s for s in strides(self.outline) if s not in STEPS]
        lengths = [n for n, known in self.kinds.items() if known.kind == "length"]
        if not steps or not lengths:
            return
        longer = {n: replace(self.kinds[n], most=LENGTH * max(steps)) for n in lengths}
        other = _Search(self.model, self.outline, self.precision, {**self.kinds, **longer})
        with suppress(NotOpened, UnsupportedOperator):
            read = other._read(other.sizes, is_long=True)
            for sizes in (read, other._followed(read)):
                if len(lengths_in(sizes)) == len(self.kinds):
                    yield other._with_room(sizes)

    @property
    def _is_simple(self) -> bool:
        """Whether it may follow all sizes at once, as most models of text do."""
        is_image = any(known.kind == "image" for known in self.kinds.values())
        return not (is_image or self._is_recurrent)

    @property
    def _is_rounded(self) -> bool:
        """Whether sizes of images are of steps alone because windows go several places at once."""
        images = [n for n in lengths_in(self.sizes) if self.kinds[n].kind == "image"]
        has_strides = bool(strides(self.outline)) and not self._is_recurrent
        return has_strides and not all(self._is_even(self.sizes, name) for name in images)

    @property
    def _is_recurrent(self) -> bool:
        return any(n.op_type in RECURRENT for n in self.outline.graph.node)

    @property
    def _reason(self) -> str:
        return next(iter([*self.refusals, *self.reasons]), "nothing follows them")

    # --- sizes at which the model can be read ---

    def _graph(self, sizes: Sizes, numbers: Numbers) -> Graph | None:
        """The model as it is read at some numbers, the most of lengths without one; None where it
        cannot be. Raises UnsupportedOperator."""
        ties, extents = ties_in(sizes), extents_in(sizes, numbers)
        shapes = shapes_at(tied(self.outline, ties), extents)
        key = tuple(sorted(shapes.items()))
        if key not in self.graphs:
            if len(self.graphs) >= _MOST_READS:
                raise NotOpened(self._reason)
            try:
                read = named(partial(self.model.load, shapes))
                graph = named(partial(import_graph, read, self.model.operators))
                self.graphs[key] = light(graph)
            except UnsupportedOperator:
                raise
            except ModelError as error:
                without_frames(error)
                self.graphs[key] = error
        found = self.graphs[key]
        self.is_beyond = isinstance(found, BeyondLimits)
        if isinstance(found, Graph):
            return found
        self.reasons.append(found.message)
        return None

    def _reads(self, sizes: Sizes, *lower: str) -> bool:
        """Whether it can be read at the most, or with numbers of some lengths that are `lower`."""
        tops = self._tops(sizes)
        return self._graph(sizes, tops | {n: lower_number(tops[n]) for n in lower}) is not None

    def _tops(self, sizes: Sizes) -> dict[str, int]:
        """The most number of each length, or less of those that may be long."""
        return {n: min(x.most, self.top.get(n, x.most)) for n, x in lengths_in(sizes).items()}

    def _read(self, sizes: Sizes, is_long: bool = False) -> Sizes:
        """`sizes` less free, so that the model can be read at all of them."""
        long = [n for n, known in self.kinds.items() if known.kind == "length" and not is_long]
        self.top = dict.fromkeys(long, _SHORT)
        if not self._reads(sizes):
            self.top = {}
        sizes = next((s for s in self._readable(sizes) if self._reads(s)), {})
        if not sizes:
            raise NotOpened(self._reason)
        self.why |= {n: self.reasons[0] for n, x in sizes.items() if isinstance(x, int)}
        for name in list(lengths_in(sizes)):
            if name in lengths_in(sizes) and not self._reads(sizes, name):
                sizes = self._narrowed(sizes, name)
        return sizes

    def _readable(self, sizes: Sizes) -> Iterator[Sizes]:
        """Ways in which a model may be readable at the most."""
        yield sizes
        smaller = sizes
        while self.is_beyond and _most_of(self.kinds, smaller, "image") > _LEAST_IMAGE:
            smaller = _shorter(self.kinds, smaller, "image")
            yield smaller
        while _most_of(self.kinds, sizes, "length") > 1:
            sizes = _shorter(self.kinds, sizes, "length")
            yield sizes
        sizes = {n: Length(n, known.most) for n, known in self.kinds.items()}
        names = [n for n, known in self.kinds.items() if known.kind != "batch"]
        for name in names:
            yield from (sizes | {name: size} for size in self._usual(name))
        for a, b in itertools.pairwise(names):
            yield from (sizes | {a: size, b: size} for size in self._usual(a))
        yield sizes | {n: 1 for n, known in self.kinds.items() if known.kind == "batch"}

    def _usual(self, name: str) -> tuple[int, ...]:
        if name in self.held:
            return (self.held[name],)
        return _USUAL if self.kinds[name].kind == "image" else _USUAL_LENGTHS

    def _narrowed(self, sizes: Sizes, name: str) -> Sizes:
        """`sizes` where one that cannot be lower alone is another, has steps, or is fixed."""
        kind = self.kinds[name].kind
        others = [n for n in lengths_in(sizes) if n != name and self.kinds[n].kind == kind]
        for equal in (*([other] for other in others), others):
            if equal and self._reads(sizes, name, *equal):
                first, *rest = (n for n in sizes if n in (name, *equal))
                return {**sizes, **dict.fromkeys(rest, first)}
        for stepped in self._steps(sizes, name):
            if self._reads(stepped) and self._reads(stepped, name):
                return stepped
        return self._fixed(sizes, name)

    def _steps(self, sizes: Sizes, name: str) -> Iterator[Sizes]:
        """`sizes` where one is in steps, the smallest first."""
        kind, length = self.kinds[name], lengths_in(sizes)[name]
        if kind.kind == "batch":
            return
        if self._is_line_height(name):
            return
        own = [s for s in strides(self.outline) if s not in STEPS] if kind.kind == "length" else []
        for step in sorted({*STEPS, *(own or _LARGE_STEPS)}):
            most = LENGTH if step in own else max(length.longest // step, 1)
            yield {**sizes, name: Length(name, most, step)}

    def _is_line_height(self, name: str) -> bool:
        """Whether it is the height of a line of text, which has one size."""
        places = symbols(self.outline)[name]
        is_image = self.kinds[name].kind == "image"
        return is_image and all(p.axis == 2 for p in places) and is_line(self.outline)

    def _fixed(self, sizes: Sizes, name: str) -> Sizes:
        """`sizes` where one has a single size at which the model can be read."""
        self.why.setdefault(name, [*self.reasons, *self.refusals][-1])
        for size in self._sizes(sizes, name):
            if self._reads({**sizes, name: size}):
                return {**sizes, name: size}
        raise NotOpened(self._reason)

    def _sizes(self, sizes: Sizes, name: str) -> Iterable[int]:
        """Single sizes that a dimension may have, the first one first."""
        known, length = self.kinds[name], lengths_in(sizes)[name]
        if known.kind == "batch":
            return (1,)
        if self._is_line_height(name) or name in self.held:
            return self._usual(name)
        most = _MANY_STEPS if self._is_recurrent else _FIXED
        n = min(length.most, max(most[known.kind] // length.factor, 1))
        return (length.at(n), *self._usual(name))

    # --- sizes that the model follows ---

    def _followed(self, sizes: Sizes) -> Sizes:
        """`sizes` in steps, or single ones, so that extents follow them; as long as can be."""
        for name in list(lengths_in(sizes)):
            if not self._is_even(sizes, name):
                why = self.refusals[-1] if self.refusals else self._reason
                steps = (s for s in self._steps(sizes, name) if self._is_even(s, name))
                found = next(steps, None)
                if found is None:
                    self.why[name] = why
                sizes = found or self._fixed(sizes, name)
        self.top = {}
        while not self._reads(sizes):
            shorter = _shorter(self.kinds, sizes, "length")
            if shorter == sizes:
                raise NotOpened(self._reason)
            sizes = shorter
        for name in [n for n in lengths_in(sizes) if self.kinds[n].kind == "length"]:
            sizes = self._longest(sizes, name)
        return sizes

    def _longest(self, sizes: Sizes, name: str) -> Sizes:
        """`sizes` with the highest most of a length that was halved before."""
        length = lengths_in(sizes)[name]
        if length.longest == self.kinds[name].most or length.factor > 1:
            return sizes
        low, high = length.most, 2 * length.most
        while low + 1 < high:
            middle = (low + high) // 2
            is_known = self._reads({**sizes, name: replace(length, most=middle)})
            low, high = (middle, high) if is_known else (low, middle)
        return {**sizes, name: replace(length, most=low)}

    def _pair(self, sizes: Sizes, name: str, times: int = 1) -> tuple[Graph, Graph, int] | None:
        """The model at two numbers of a length, and their difference: a small one `times`."""
        tops = self._tops(sizes)
        lower = lower_number(tops[name])
        if times > 1 and tops[name] - lower in LOWER[:2]:
            return None
        lower = max(tops[name] - times * (tops[name] - lower), 1)
        one, other = self._graph(sizes, tops), self._graph(sizes, tops | {name: lower})
        return None if one is None or other is None else (one, other, tops[name] - lower)

    def _is_even(self, sizes: Sizes, name: str) -> bool:
        """Whether the model has the same nodes at two numbers, and extents that follow them."""
        pair = self._pair(sizes, name)
        if pair is None:
            return False
        one, other, _ = pair
        if [(x.op, x.name) for x in one.nodes] != [(x.op, x.name) for x in other.nodes]:
            self.refusals.append(f"the model has other operators at other sizes of '{name}'")
            return False
        uneven = next((t for t in one.types if not self._is_affine(sizes, name, t)), None)
        if uneven is not None:
            self.refusals.append(f"the shape of '{uneven}' does not follow '{name}' evenly")
        return uneven is None

    def _is_affine(self, sizes: Sizes, name: str, tensor: str) -> bool:
        """Whether extents of a tensor are whole multiples of a number, and a number more."""
        pairs = [self._pair(sizes, name), self._pair(sizes, name, 2)]
        shapes = [
            (one.shape(tensor), other.shape(tensor), n)
            for one, other, n in (pair for pair in pairs if pair is not None)
            if tensor in one.types and tensor in other.types and n
        ]
        slopes = [
            [(x - y, n) for x, y in zip(a, b, strict=True)] if len(a) == len(b) else [(1, 2)]
            for a, b, n in shapes
        ]
        is_whole = all(d % n == 0 for steps in slopes for d, n in steps)
        return is_whole and len({tuple(d // n for d, n in steps) for steps in slopes}) <= 1

    def _with_room(self, sizes: Sizes) -> Sizes:
        """`sizes` with lower mosts, of batches first, where tensors were very large."""
        graph = self._graph(sizes, {})
        assert graph is not None
        n_bytes = {n: n_bytes_of(t.shape, t.dtype) for n, t in graph.types.items()}
        made = [n_bytes[name] for node in graph.nodes for name in node.outputs]
        total = sum(n_bytes[name] for name in graph.outputs) + max(made, default=0)
        for kind, least in (("batch", 1), ("length", _FIXED["length"])):
            for name, x in lengths_in(sizes).items():
                most = x.most
                while total > _ROOM and self.kinds[name].kind == kind and most > least:
                    most, total = most // 2, total // 2
                sizes = {**sizes, name: 1 if most == 1 < x.most else replace(x, most=most)}
        return sizes

    # --- networks ---

    def _attempts(self, sizes: Sizes) -> Iterator[Sizes]:
        """`sizes`, and such with dimensions that are less free."""
        lengths = [n for n in lengths_in(sizes) if self.kinds[n].kind != "batch"]
        batch = {n: 1 for n in lengths_in(sizes) if self.kinds[n].kind == "batch"}
        fixed = {n: next(iter(self._sizes(sizes, n))) for n in lengths}
        some = [{n: fixed[n]} for n in lengths] if len(lengths) > 1 else []
        found = [{}, batch if lengths else {}, *some, fixed if batch else {}]
        found += [batch | one for one in some]
        unique: list[Sizes] = []
        for less in found:
            attempt = {**sizes, **less}
            if attempt not in unique and lengths_in(attempt):
                unique.append(attempt)
                yield attempt

    def _lifted(self, sizes: Sizes) -> Network | None:
        """The network for all sizes, None where there is none."""
        lengths, outline = lengths_in(sizes), tied(self.outline, ties_in(sizes))
        try:
            shapes = shapes_at(outline, extents_in(sizes, {}))
            extents = extents_at(outline, lengths, shapes)
            network = lifted_network(self.model, extents, self.precision)
        except (ModelError, UsageError) as error:
            without_frames(error)
            self.refusals.append(error.message)
            for name in lengths:
                self._refused(name, error)
            return None
        for name, least in leasts_of(network).items():
            if least > (1 if self.kinds[name].kind == "batch" else lengths[name].most // 2):
                self.refusals.append(f"'{name}' would be {least} at least")
                return None
        if weight_of(network) > _ROOM and self._with_room(sizes) != sizes:
            return None
        return network

    def _refused(self, name: str, error: ModelError | UsageError) -> None:
        """What does not follow is told rather than what a model cannot be at an assumed most."""
        if isinstance(error, NotLifted) and name not in self.unlifted:
            self.unlifted.add(name)
            self.why[name] = error.message
        self.why.setdefault(name, error.message)

    def _static(self, sizes: Sizes, reason: str) -> Opening:
        """All dimensions of one size, which the model may have. Raises NotOpened."""
        for name in list(lengths_in(sizes)):
            size = next(iter(self._sizes(sizes, name)))
            try:
                sizes = self._fixed(sizes, name)
            except UnsupportedOperator:
                sizes = {**sizes, name: size}
        dims = in_words(sizes)
        what = ", ".join(f"{n} {v}" for n, v in dims.items())
        note = f"an artifact for one size: {what}; others by {arguments(dims=dims)}"
        return Opening(dims, None, (note, f"it is for no others: {reason}"))

    def _notes(self, sizes: Sizes, network: Network) -> tuple[str, ...]:
        least, lengths = leasts_of(network), lengths_in(sizes)
        known = [told(x, least.get(n, 1)) for n, x in lengths.items()]
        known += [f"{n} {x}" for n, x in sizes.items() if isinstance(x, int)]
        others = arguments(dims=in_words(sizes))
        found = [f"one artifact for all sizes: {', '.join(known)}; others by {others}"]
        ties = ties_in(sizes).items()
        found += [f"{name} is taken to be {end}, for the model needs it" for name, end in ties]
        for name in (n for n, x in sizes.items() if isinstance(x, int)):
            found.append(f"{name} has one size: {self.why.get(name, self._reason)}")
        return tuple(found)


def _most_of(kinds: Mapping[str, OpenDimension], sizes: Sizes, kind: Kind) -> int:
    """The largest most of one kind; 0 where there is none."""
    return max((x.most for n, x in lengths_in(sizes).items() if kinds[n].kind == kind), default=0)


def _shorter(kinds: Mapping[str, OpenDimension], sizes: Sizes, kind: Kind) -> Sizes:
    """`sizes` with half of the most of one kind."""
    found = ((n, x) for n, x in lengths_in(sizes).items() if kinds[n].kind == kind)
    return {**sizes, **{n: replace(x, most=max(x.most // 2, 1)) for n, x in found}}
