"""⑪ Padding: inputs of one extent computed by a network for a longer one; results are cut back.

    found = paddable(bound, "sequence", {"ids": (8, 64), "mask": (8, 64)})
    longer = pad(feed, found, 64)
    outputs = cut(network(longer), found, length)

`paddable` proves that the real elements of all outputs are the same, but for the order in which
sums are rounded; where it cannot, it says why. `batchable` does so for the samples of a batch.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from autotune.api.compile.batch_buckets import places_of_dimension
from autotune.dtypes import DTYPES
from autotune.errors import AutotuneError, UsageError
from autotune.graph.bound_model import BoundModel
from autotune.graph.index_limits import index_limits
from autotune.graph.ir import Graph
from autotune.graph.network import named
from autotune.graph.padded_axes import Anchor
from autotune.graph.padding import Axes, output_axes
from autotune.graph.passes.pipeline import prepare_uncut
from autotune.graph.reader.dimensions import Shapes
from autotune.graph.reader.importer import import_graph
from autotune.graph.refusals import require_supported
from autotune.graph.samples import PROOF_EXTENTS, sample_axes
from autotune.graph.subgraph import undefined
from autotune.te.value_ranges import LARGEST

Arrays = Mapping[str, NDArray[Any]]

ANCHORS: tuple[Anchor, ...] = ("first", "last", "all")
_HINT = "compile every extent that you use"
_PROBLEM = "cannot be padded"


@dataclass(frozen=True, slots=True)
class Padding:
    """A dimension that may be longer than the data are: zeros behind them change no result.

    `inputs`: the axis that it is of each input. `outputs`: axes of each output that are cut back,
    and how many of their indices are one place. `masks`: inputs that have to be 0 or 1; `anchors`:
    where they have to be 1 in every row, at one of these: the "first" or the "last" real place, or
    "all" of them. Where `masks` is empty, data may be any. `least`: the shortest length.
    """

    dimension: str
    inputs: Mapping[str, int]
    outputs: Axes
    masks: tuple[str, ...] = ()
    anchors: tuple[Anchor, ...] = ()
    least: int = 1


def _graphs(bound: BoundModel, shapes: Shapes) -> tuple[Graph, Graph]:
    """The graph as it is imported, and as it is proved on."""
    model = named(lambda: bound.load(shapes))
    graph = named(lambda: import_graph(model, bound.operators))
    prepared = named(lambda: prepare_uncut(graph))
    require_supported(prepared, undefined)
    return graph, prepared


def paddable(bound: BoundModel, dimension: str, shapes: Shapes) -> Padding | str:
    """Padding of data that are shorter than `shapes` in `dimension`, or the reason against it.

    `shapes`: of all inputs with open dimensions, as the network has them. It is proved for these
    extents of the other dimensions alone, at three lengths; see `graph.padding`.
    """
    try:
        return named(lambda: _paddable(bound, dimension, shapes))
    except AutotuneError as error:
        return error.message


def batchable(bound: BoundModel, dimension: str, shapes: Shapes) -> Padding | str:
    """Padding of batches with samples of zeros, or the reason against it: samples depend on others.

    `shapes`: of all inputs with open dimensions; the proof gives `dimension` other extents.
    """
    try:
        return named(lambda: _batchable(bound, dimension, shapes))
    except AutotuneError as error:
        return error.message


def why_not(feed: Arrays, padding: Padding) -> str:
    """Reason why these inputs may not be padded; empty if they may be."""
    lengths = {feed[name].shape[axis] for name, axis in padding.inputs.items()}
    if len(lengths) > 1 or min(lengths) < padding.least:
        return f"inputs have {', '.join(map(str, sorted(lengths)))} of '{padding.dimension}'"
    for name, array in feed.items():
        if array.dtype.kind == "f" and not (np.abs(array) <= LARGEST).all():
            return f"'{name}' has values beyond {LARGEST:.4g}, or NaN"
    for name in padding.masks:
        mask = feed[name]
        if not np.logical_or(mask == 0, mask == 1).all():
            return f"'{name}' has other values than 0 and 1"
    if not padding.masks or any(_holds(feed, padding, anchor) for anchor in padding.anchors):
        return ""
    places = " or ".join(padding.anchors)
    return f"{', '.join(padding.masks)}: not 1 at the {places} of '{padding.dimension}'"


def pad(feed: Arrays, padding: Padding, extent: int) -> dict[str, NDArray[Any]]:
    """`feed` with zeros behind the data, up to `extent`. Raises UsageError; see `why_not`."""
    problem = why_not(feed, padding)
    if problem:
        raise UsageError(problem, _HINT)
    return dict(feed) | {
        name: _padded(np.asarray(feed[name]), axis, extent) for name, axis in padding.inputs.items()
    }


def cut(outputs: Arrays, padding: Padding, length: int) -> dict[str, NDArray[Any]]:
    """The real elements of outputs of padded inputs: views of them."""
    return {
        name: array[_real(padding.outputs.get(name, ()), array.ndim, length)]
        for name, array in outputs.items()
    }


def _holds(feed: Arrays, padding: Padding, anchor: Anchor) -> bool:
    at = {"first": slice(1), "last": slice(-1, None), "all": slice(None)}[anchor]
    return all(
        bool((feed[n][(slice(None),) * padding.inputs[n] + (at,)] == 1).all())
        for n in padding.masks
    )


def _padded(array: NDArray[Any], axis: int, extent: int) -> NDArray[Any]:
    length = array.shape[axis]
    if length > extent:
        raise UsageError(f"{length} places do not fit into {extent}", _HINT)
    shape = (*array.shape[:axis], extent, *array.shape[axis + 1 :])
    found = np.zeros(shape, array.dtype)
    found[(slice(None),) * axis + (slice(length),)] = array
    return found


def _real(axes: tuple[tuple[int, int], ...], rank: int, length: int) -> tuple[slice, ...]:
    inner = dict(axes)
    return tuple(slice(length * inner[d] if d in inner else None) for d in range(rank))


# --- the proofs ----------------------------------------------------------------------------------


def _paddable(bound: BoundModel, dimension: str, shapes: Shapes) -> Padding:
    inputs = _axes_of(bound, dimension, shapes)
    extent = min(shapes[name][axis] for name, axis in inputs.items())
    lengths = tuple(_lengths_below(extent))
    if not lengths:
        raise UsageError(f"'{dimension}' {_PROBLEM}: {extent} is too short", _HINT)
    bound = bound.held()
    imported, whole = _graphs(bound, _at(shapes, inputs, extent))
    _require_outputs(imported, whole, dimension)
    masks, proved, rest = frozenset[str](), _possible_anchors(whole, inputs), None
    for n in lengths:  # the first one decides of most models that it cannot be padded
        shorter = _graphs(bound, _at(shapes, inputs, n))[1]
        masks, proved, outputs = _proved((shorter, whole), dimension, inputs, proved)
        if rest is not None and outputs != rest:
            raise UsageError(f"'{dimension}' {_PROBLEM}: its outputs have other axes", _HINT)
        rest = outputs
    assert rest is not None
    anchors = tuple(anchor for _, anchor in proved) if masks else ()
    return Padding(
        dimension, inputs, _named(imported, rest), tuple(sorted(masks)), anchors, min(lengths)
    )


Assumptions = list[tuple[frozenset[str], Anchor]]
"""Inputs that are masks, and the places where they are 1: weakest assumptions first."""


def _proved(
    graphs: tuple[Graph, Graph], dimension: str, inputs: Mapping[str, int], some: Assumptions
) -> tuple[frozenset[str], Assumptions, Axes]:
    """The first masks of `some` with which padding is proved, all their anchors, and the axes.

    Raises the UsageError of the last of them where none is enough.
    """
    found: Assumptions = []
    axes: Axes = {}
    error = UsageError(f"'{dimension}' {_PROBLEM}", _HINT)
    for masks, anchor in some:
        if found and (masks != found[0][0] or anchor == "all"):
            continue  # it follows from the others
        try:
            axes = output_axes(graphs, dimension, inputs, masks, anchor)
        except UsageError as reason:
            error = reason
        else:
            found.append((masks, anchor))
    if not found:
        raise error
    return found[0][0], found, axes


def _batchable(bound: BoundModel, dimension: str, shapes: Shapes) -> Padding:
    inputs = _axes_of(bound, dimension, shapes)
    bound = bound.held()
    (imported, first), (_, second) = (_graphs(bound, _at(shapes, inputs, n)) for n in PROOF_EXTENTS)
    _require_outputs(imported, first, dimension)
    found = sample_axes((first, second), dimension, inputs)
    outputs = _named(imported, {name: (axis,) for name, axis in found.items()})
    return Padding(dimension, inputs, outputs)


def _axes_of(bound: BoundModel, dimension: str, shapes: Shapes) -> dict[str, int]:
    places = places_of_dimension(bound, dimension, _PROBLEM, _HINT)
    missing = next((p.input for p in places if p.input not in shapes), None)
    if missing is not None:
        raise UsageError(f"'{dimension}' {_PROBLEM}: input '{missing}' has no shape", _HINT)
    return {place.input: place.axis for place in places}


def _lengths_below(extent: int) -> Iterator[int]:
    """A length near `extent`, one half as long, and a short one: primes, if there are."""
    primes = [n for n in range(2, extent) if all(n % k for k in range(2, int(n**0.5) + 1))]
    middle = [n for n in primes if n <= extent // 2]
    yield from dict.fromkeys((*primes[-1:], *middle[-1:], *primes[:1]))


def _at(shapes: Shapes, axes: Mapping[str, int], extent: int) -> Shapes:
    given = dict(shapes)
    for name, axis in axes.items():
        given[name] = (*given[name][:axis], extent, *given[name][axis + 1 :])
    return given


def _require_outputs(imported: Graph, prepared: Graph, dimension: str) -> None:
    if any(name not in prepared.outputs for name in imported.outputs):
        raise UsageError(f"'{dimension}' {_PROBLEM}: an output has no elements", _HINT)


def _named(imported: Graph, axes: Axes) -> Axes:
    """`axes` by the names of outputs in the file."""
    return {imported.output_names.get(name, name): found for name, found in axes.items()}


def _possible_anchors(graph: Graph, inputs: Mapping[str, int]) -> Assumptions:
    found: Assumptions = []
    for masks in _possible_masks(graph, inputs):
        found += [(masks, anchor) for anchor in (ANCHORS if masks else ANCHORS[:1])]
    return found


def _possible_masks(graph: Graph, inputs: Mapping[str, int]) -> list[frozenset[str]]:
    """Sets of inputs that may be masks, the likely ones first: none, those called so, integers."""
    indices = index_limits(graph)
    others = [n for n in inputs if n not in indices]
    called_so = [n for n in others if "mask" in n.lower()]
    integers = [n for n in others if not DTYPES[graph.types[n].dtype].is_float]
    return list(dict.fromkeys(map(frozenset, ((), called_so, {*called_so, *integers}))))
