"""⑪ From dimensions by name to the shapes of inputs: every combination is a variant of the model.

variants(path, dims={"batch": 1, "sequence": {16: 0.5, 128: 0.5}})
    ─► Variant({"ids": (1, 16)}, 0.5), Variant({"ids": (1, 128)}, 0.5)
variants(path, dims={"batch": 1, "sequence": "..512"})
    ─► Variant({"ids": (1, 512)}, lengths={"sequence": Length("sequence", 512)})
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from autotune.api.opening import NotOpened, opened
from autotune.api.operators import operators_of
from autotune.api.ranges import is_name, length_of
from autotune.api.request import Dims, Like, Source, Values
from autotune.api.sources import model_files
from autotune.api.states import replaced_state
from autotune.cache import FileStore
from autotune.errors import (
    DynamicShape,
    ModelError,
    NotCompilable,
    UnsupportedOperator,
    UsageError,
    without_frames,
)
from autotune.extent import Extents, Length
from autotune.files import Stamps, paths_of
from autotune.graph.bound_model import BoundModel
from autotune.graph.constant_values import Constants, require_constant
from autotune.graph.grown_networks import OtherSteps, grown_networks
from autotune.graph.lengths.imports import OpenModel
from autotune.graph.lengths.lift import lifted_network, open_model
from autotune.graph.lengths.writing import may_write
from autotune.graph.network import Network, network_at
from autotune.graph.ragged.model import ragged_model, ragged_network
from autotune.graph.reader.constant_inputs import bind_constants
from autotune.graph.reader.dimensions import (
    SIZE,
    Outline,
    Shapes,
    batches,
    ends_of,
    extents_at,
    free_symbols,
    input_names,
    is_decoder,
    require_dimensions,
    require_static,
    shapes_at,
    tied,
)
from autotune.graph.reader.grown import Grown, for_sessions, grown
from autotune.graph.reader.mosts import STEPS
from autotune.graph.reader.onnx_reader import read_outline
from autotune.graph.state import CACHE_TYPES, SCORES
from autotune.names import listed, require_known
from autotune.network.check.oracles import Original
from autotune.network.compile.variants import unified
from autotune.network.runtime.apart import ApartProcess, apart
from autotune.records import Header
from autotune.wording import arguments

PLAIN = "f32"
"""The type of states as in the file."""
MOST_VARIANTS = 64
"""More would be hours of compilation, asked for by mistake."""


@dataclass(frozen=True, slots=True)
class Variant:
    """One combination of extents: shapes of inputs by name, and its share of all inferences.

    The shares of all variants of a model add up to 1. `lengths`: dimensions of which every extent
    up to a most is computed, by name; `shapes` are then the longest.
    """

    shapes: dict[str, tuple[int, ...]]
    share: float = 1.0
    lengths: Mapping[str, Length] = field(default_factory=dict)


def variants(
    model: Path,
    shapes: Shapes | None = None,
    dims: Dims | None = None,
    constants: Constants | None = None,
) -> tuple[Variant, ...]:
    """Every combination of the extents in `dims`, beside `shapes` of inputs; in their order.

    `constants`: inputs that are none any more, see `constant_inputs`.

    Raises UsageError for names and extents that the model does not have, for more than
    `MOST_VARIANTS`, and for shares that are not positive.
    """
    given = dict(shapes or {})
    if not dims:
        return (Variant(given),)
    ties = ties_of(dims)
    dims = {n: v for n, v in dims.items() if n not in ties}
    lengths = {n: length_of(n, text) for n, text in dims.items() if isinstance(text, str)}
    names, choices = list(dims), [_shares(name, values) for name, values in dims.items()]
    n_variants = math.prod(map(len, choices))
    if n_variants > MOST_VARIANTS:
        counts = " x ".join(f"{len(c)} of '{n}'" for n, c in zip(names, choices, strict=True))
        raise UsageError(
            f"{n_variants} combinations of dimensions ({counts}) are too many",
            f"give at most {MOST_VARIANTS}, or compile several artifacts",
        )
    outline = read_outline(model)
    bind_constants(outline, constants or {})
    outline = tied(outline, ties)
    lengths |= {n: lengths[end] for n, end in ends_of(ties).items() if end in lengths}
    found = tuple(
        Variant(
            dict(shapes_at(outline, dict(zip(names, (n for n, _ in point), strict=True)), given)),
            math.prod(share for _, share in point),
            lengths,
        )
        for point in itertools.product(*choices)
    )
    require_static(outline, names, given)
    return found


def ties_of(dims: Dims | None) -> dict[str, str]:
    """Dimensions that are said to be others, by name."""
    return {name: text for name, text in (dims or {}).items() if is_name(text)}


@dataclass(frozen=True, slots=True)
class Bound:
    """A model at the shapes of all its variants, ready to be read.

    `fallback`: what cannot be compiled may run in ONNX Runtime. `files`: the model's as they were
    in the beginning, for it is read several times. `grown`: of a model whose state grows, in the
    order of its variants. `replaced`: states of a fixed shape, by input. `process`: for models in
    ONNX Runtime, which one process serves as long as this is there. `notes`: what was settled that
    the source left open. `lifted`: networks with lengths by their precision that were made already.
    `ragged`: those with lengths are over tokens.
    """

    model: BoundModel
    variants: tuple[Variant, ...] = (Variant({}),)
    fallback: bool = True
    files: Stamps = field(default=Stamps(()), compare=False)
    grown: tuple[Grown, ...] = ()
    replaced: Mapping[str, str] = field(default_factory=dict)
    notes: tuple[str, ...] = ()
    process: ApartProcess = field(default_factory=apart, compare=False, repr=False)
    lifted: dict[str, tuple[Network, ...]] = field(default_factory=dict, compare=False, repr=False)
    ragged: bool = False

    @property
    def path(self) -> Path:
        """The model's file."""
        return self.model.path

    def networks(self, precision: str = "f32") -> tuple[Network, ...]:
        """A network for every variant: see `network.compile.variants.unified`, `build_network`."""
        if precision in self.lifted:  # its weights are not held
            return self.lifted.pop(precision)
        networks: Iterable[Network]
        if self.grown:
            networks = grown_networks(self.model, self.grown, precision)
        else:
            networks = (self._network(variant, precision) for variant in self.variants)
        if self.replaced:
            networks = (replace(n, state=replaced_state(n, self.replaced)) for n in networks)
        return unified(networks) if len(self.variants) > 1 else tuple(networks)

    def _network(self, variant: Variant, precision: str) -> Network:
        """That of a variant. Raises UsageError where it has lengths that nothing can follow."""
        if not variant.lengths:
            try:
                return network_at(self.model, variant.shapes, precision)
            except UnsupportedOperator as error:
                return self._with_written(variant, precision, error)
        try:
            return self.with_lengths(variant, precision)
        except UsageError:
            raise
        except ModelError as error:
            names = ", ".join(f"'{name}'" for name in variant.lengths)
            sizes = arguments(dims=dict.fromkeys(variant.lengths, SIZE))
            steps = {n: f"..{max(STEPS)}/{max(STEPS)}" for n in variant.lengths}
            hint = f"sizes of an image may be possible in steps: {arguments(dims=steps)}"
            if isinstance(error, UnsupportedOperator):
                hint = "ONNX Runtime runs the rest then" if self.fallback else ""
            raise UsageError(
                f"{names} cannot be of any size up to a most: {error.message}",
                f"give sizes: {sizes}{'; ' if hint else ''}{hint}",
            ) from error

    def _with_written(
        self, variant: Variant, precision: str, error: UnsupportedOperator
    ) -> Network:
        """That of a variant in which operators write lengths. Raises `error` where none can, and
        the reason where they can and something else cannot be."""
        if not may_write(read_outline(self.path)):
            raise error
        try:
            return self.with_lengths(variant, precision)
        except NotCompilable:
            raise
        except ModelError:
            raise error from None

    def with_lengths(self, variant: Variant, precision: str) -> Network:
        """The network of a variant for all sizes. Raises as `lifted_network`."""
        make = ragged_network if self.ragged else lifted_network
        return make(self.model, self._extents(variant), precision)

    def open_model(self, variant: Variant) -> OpenModel:
        """The model of a variant with lengths, to be lifted. Raises as `with_lengths`."""
        make = ragged_model if self.ragged else open_model
        return make(self.model, self._extents(variant), PLAIN)

    def _extents(self, variant: Variant) -> Mapping[str, Extents]:
        """The dimensions of all inputs, with the lengths of a variant."""
        outline = read_outline(self.path)
        bind_constants(outline, self.model.constants)
        return extents_at(outline, variant.lengths, variant.shapes)

    def original(self, shapes: Shapes) -> Original:
        """The file at shapes of its inputs."""
        return Original(self.model, shapes)

    def originals(self) -> list[Original]:
        """The file at the shapes of every variant."""
        return [self.original(variant.shapes) for variant in self.variants]


def bind(source: Source, known: tuple[Variant, ...] = (), store: FileStore | None = None) -> Bound:
    """The model of a source, which is a file, with all that the source binds.

    `known`: the variants where the source names no shapes. `store`: see `BoundModel`. A `ragged`
    one is over tokens, or has a note that says why it is not. Raises as `variants`, `arrays_of`
    and `operators_of`.
    """
    bound = _bound(source, known, store)
    if not source.ragged:
        return bound
    one, (variant, *others), why = replace(bound, ragged=True), bound.variants, ""
    if others or not variant.lengths:
        why = "it has several shapes" if others else "a batch and a sequence have to be of any size"
    else:
        try:
            return replace(one, lifted={PLAIN: (one.with_lengths(variant, PLAIN),)})
        except (ModelError, UsageError) as error:
            why = error.message
    return replace(bound, notes=(*bound.notes, f"rows are padded, not packed: {why}"))


def _bound(source: Source, known: tuple[Variant, ...], store: FileStore | None) -> Bound:
    path, fixed = Path(source.model), arrays_of(source.constants)  # type: ignore[arg-type]
    files = Stamps.of(model_files(path))
    operators = operators_of(map(str, paths_of(source.operators)))
    model = BoundModel(path, bool(source.random_weights), operators, fixed, store)
    if source.capacity is not None:
        if source.like is not None:
            raise UsageError("a `capacity` leaves no shapes open", "leave out `like`")
        cache, extents = require_cache_type(source), _extents(source.dims)
        step = grown(path, source.capacity, source.state, extents, cache)
        step = replace(step, scores=require_scores(source))
        if step.growth.flag:
            model = replace(model, constants={step.growth.flag: np.array(True), **fixed})
        return _grown(Bound(model, (), False, files), step, source.sessions)
    require_cache_type(source)
    fallback = source.fallback and not source.state
    replaced = dict(source.state or {})
    bound = Bound(model, known, fallback, files, replaced=replaced)
    ties = ties_of(source.dims)
    is_said = bool(source.shapes or {*(source.dims or {})} - {*ties} or source.like is not None)
    if known and not (is_said or ties):
        return bound
    outline = read_outline(path)
    bind_constants(outline, fixed)
    outline = tied(outline, ties)
    is_batch_alone = not set(free_symbols(outline, {})) - set(batches(outline))
    if is_said or replaced or is_batch_alone or is_decoder(outline):
        return _settled(bound, source, outline)
    return _open(bound, source, outline)


def _grown(bound: Bound, step: Grown, sessions: Iterable[int]) -> Bound:
    """`bound` of a model with a growing state: with a prefill where one follows its length."""
    together, prefill = tuple(for_sessions(step, sessions)), step.with_prefill()
    beside = together + step.verifying()
    chunks, notes = step.with_chunks() + together, tuple[str, ...]()
    sizes = ", ".join(str(one.growth.chunk) for one in chunks if one.sessions == 1)
    in_chunks = f"a prompt is steps of {sizes} tokens, not one of all"
    ways = [(prefill, in_chunks)] if prefill else []
    ways.append((chunks, "a step takes as long as in a full cache"))
    while ways:
        steps, told = ways.pop(0)
        found = _of_steps(bound, steps if steps is chunks else steps + beside)
        try:
            return replace(found, notes=notes, lifted={PLAIN: found.networks()})
        except OtherSteps as error:
            without_frames(error)
            beside = beside if error.places else together
            ways.insert(0, (step.with_prefill(error.places) if error.places else steps, told))
        except ModelError as error:
            notes = (*notes, f"{told}: {error.message}")
    masked = tuple(replace(one, is_masked=True) for one in chunks)
    return replace(_of_steps(bound, masked), notes=notes)


def _of_steps(bound: Bound, steps: tuple[Grown, ...]) -> Bound:
    """`bound` with these steps, and with what begins a sequence where inputs stay for one."""
    shapes = [dict(step.shapes[0]) for step in steps]
    if held := steps[0].growth.held:
        shapes.append({n: s for n, s in steps[0].first.items() if n in held})
    variants = tuple(Variant(one, 1 / len(shapes)) for one in shapes)
    return replace(bound, variants=variants, grown=steps, lifted={})


def _open(bound: Bound, source: Source, outline: Outline) -> Bound:
    """`bound` with every size up to mosts, as far as its network follows them (decision 0140)."""
    try:
        found = opened(bound.model, outline, PLAIN)
    except NotOpened as error:
        return _settled(bound, source, outline, str(error))
    dims = {**ties_of(source.dims), **found.dims}
    known = variants(bound.path, None, dims, bound.model.constants)
    done = replace(bound, variants=known, notes=found.notes, lifted={})
    if found.network is not None:
        done.lifted[PLAIN] = (found.network,)
    return done


def _settled(bound: Bound, source: Source, outline: Outline, reason: str = "") -> Bound:
    """`bound` at the sizes that the source names, with a batch of one; `reason`: why not at all.

    Raises UsageError for arrays that are like no input, DynamicShape for dimensions that are open.
    """
    shapes = {**_shapes_like(source.like, input_names(outline)), **(source.shapes or {})}
    ties = ties_of(source.dims)
    dims = {name: values for name, values in (source.dims or {}).items() if name not in ties}
    require_dimensions(outline, dims)
    one = batches(outline, dims, shapes)
    try:
        require_static(outline, {*dims, *one}, shapes)
    except DynamicShape as error:
        raise _of_decoder(error) if is_decoder(outline) else _with_reason(error, reason) from None
    notes: tuple[str, ...] = ()
    if one:
        sizes = arguments(dims=dict.fromkeys(one, SIZE))
        notes = (f"the batch ({', '.join(one)}) is 1: {sizes} compiles for another",)
        notes += (f"it is no length, with any size: {reason}",) if reason else ()
    said = {**dims, **ties, **dict.fromkeys(one, 1)}
    found = variants(bound.path, shapes, said, bound.model.constants)
    return replace(bound, variants=found, notes=notes)


def _with_reason(error: DynamicShape, reason: str) -> DynamicShape:
    if not reason:
        return error
    message = f"{error.message}; one artifact for all sizes is not possible: {reason}"
    return DynamicShape(message, error.hint, error.settings)


def _of_decoder(error: DynamicShape) -> DynamicShape:
    settings = {"capacity": SIZE}
    return DynamicShape(
        error.message,
        f"give the most tokens that this decoder keeps: {arguments(**settings)}; or one size of "
        "each dimension: `dims`",
        settings,
    )


def _shapes_like(like: Like, names: list[str]) -> dict[str, tuple[int, ...]]:
    """Shapes of inputs by name, as arrays have them."""
    given: Any = {} if like is None else like
    arrays = given if isinstance(given, Mapping) else {"": given}
    if "" in arrays and len(names) != 1:
        raise UsageError(
            f"which input is the array like? {listed('input', names)}", "give arrays by name"
        )
    found = {name or names[0]: tuple(map(int, np.shape(a))) for name, a in arrays.items()}
    require_known("input", found, names)
    return found


def told_of_state(source: Source) -> dict[str, Any]:
    """What a source says of the state of its model, as JSON; nothing where it says nothing."""
    if source.capacity is None and not source.state:
        return {}
    pairs: dict[str, Any] = {"state": dict(source.state)} if source.state else {}
    if source.capacity is None:
        return pairs
    if source.scores != SCORES[0]:
        pairs["scores"] = source.scores
    sessions = {"sessions": list(source.sessions)} if source.sessions else {}
    dims = {"dims": _extents(source.dims)} if source.dims else {}
    known = {"capacity": source.capacity}
    if source.cache_type != PLAIN:
        pairs["cache_type"] = source.cache_type
    return {**known, **sessions, **dims, **pairs}


def require_cache_type(source: Source) -> str:
    """The dtype of the elements of states that grow. Raises UsageError for none that is known."""
    dtype = CACHE_TYPES.get(source.cache_type)
    if dtype is None:
        raise UsageError(
            f"there is no `cache_type` '{source.cache_type}'", f"it is {', '.join(CACHE_TYPES)}"
        )
    if dtype != CACHE_TYPES[PLAIN] and source.capacity is None:
        raise UsageError(
            f"only states that grow can be kept in {source.cache_type}",
            "give a `capacity`; states of a fixed shape stay as in the file",
        )
    return dtype


def require_scores(source: Source) -> str:
    """Of which places steps give outputs. Raises UsageError for anything else."""
    if source.scores not in SCORES:
        raise UsageError(f"there are no `scores` '{source.scores}'", f"it is {', '.join(SCORES)}")
    return source.scores


def _extents(dims: Dims | None) -> dict[str, int]:
    """Dimensions of one extent each. Raises UsageError for others."""
    found = {}
    for name, values in (dims or {}).items():
        known = (
            [values] if isinstance(values, int) else [] if isinstance(values, str) else list(values)
        )
        if len(known) != 1:
            raise UsageError(
                f"dimension '{name}' of a model with a state has one extent", "give one"
            )
        found[name] = known[0]
    return found


def _shares(name: str, values: Values) -> list[tuple[int, float]]:
    """Extents of a dimension with their shares, which add up to 1; of a range the longest."""
    if isinstance(values, str):
        values = length_of(name, values).longest
    if isinstance(values, int):
        values = [values]
    weights = dict(values) if isinstance(values, Mapping) else dict.fromkeys(values, 1.0)
    if len(weights) < len(values):
        raise UsageError(f"dimension '{name}' has a value twice", "give every value once")
    if not weights:
        raise UsageError(f"dimension '{name}' has no values", "give one or more")
    total = sum(weights.values())
    if min(weights.values()) <= 0 or not math.isfinite(total):
        raise UsageError(
            f"the shares of dimension '{name}' are not positive numbers",
            "write them like `dims={'sequence': {16: 0.5, 128: 0.5}}`",
        )
    return [(extent, weight / total) for extent, weight in weights.items()]


def variants_of(header: Header) -> tuple[Variant, ...]:
    """The variants that a log was made for."""
    found = tuple(Variant(v.shapes, v.share, v.lengths) for v in header.variants)
    return found or (Variant(header.shapes, lengths=header.lengths),)


def arrays_of(constants: Mapping[str, Any] | None) -> dict[str, NDArray[Any]]:
    """Constant inputs as arrays, from whatever NumPy converts. Raises UsageError."""
    arrays = {name: np.asarray(value) for name, value in (constants or {}).items()}
    for name, array in arrays.items():
        require_constant(name, array)
    return arrays
