"""① Inputs of a decoder that follow from the length of its state: masks, positions, lengths.

    attention_mask (batch, past + n), position_ids (batch, n)    ─►  masks, positions

They are known by their names (`exporters`) and by the extents that they share with the tokens.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Protocol

import numpy as np
from onnx import ModelProto, TensorProto, ValueInfoProto

from autotune.graph.ir import Array
from autotune.graph.reader.exporters import words_of
from autotune.graph.reader.prepared_masks import Meaning, meaning_of
from autotune.graph.reader.states import (
    Dimension,
    StatePair,
    dims_of,
    inputs_of,
    is_mask,
    is_of_encoder,
    is_open,
    name_of,
    words_in,
)
from autotune.graph.reader.static_caches import counted_places, first_places

_TOKENS, _POSITIONS = words_of("tokens"), words_of("positions")
_LASTS, _TOTALS = words_of("lasts"), words_of("totals")
_INTEGERS = (TensorProto.INT64, TensorProto.INT32)


@dataclass(frozen=True, slots=True)
class DecoderInputs:
    """Inputs that follow from the length of a state, and dimensions of inputs by what they are.

    `masks`, `positions`, `lasts`, `totals`, `shapes`, `firsts`, `counts`: see `growing.Growth`;
    the last two where there are static caches alone. `chunk_axes`: (input,
    dimension) of the new places, `total_axes`: of all with them. `chunk`: the number of new places
    where the file has one; 0 where it is open. `prepared`: masks of all places with numbers of
    their own, as those that are added to scores; None where their meaning is not known.
    """

    masks: tuple[str, ...]
    positions: tuple[str, ...]
    lasts: tuple[str, ...]
    totals: tuple[str, ...]
    chunk_axes: tuple[tuple[str, int], ...]
    total_axes: tuple[tuple[str, int], ...]
    shapes: Mapping[str, tuple[int, ...]]
    chunk: int
    prepared: Mapping[str, Meaning | None] = field(default_factory=dict)
    firsts: tuple[str, ...] = ()
    counts: tuple[str, ...] = ()


class FollowLength(Protocol):
    """Names of inputs that follow from the length of a state: see `growing.Growth`."""

    @property
    def masks(self) -> tuple[str, ...]:
        """Those that tell which places count."""

    @property
    def prepared(self) -> Mapping[str, Meaning]:
        """Those that have a row of all places for each new one."""

    @property
    def positions(self) -> tuple[str, ...]:
        """Those that number the new places."""

    @property
    def lasts(self) -> tuple[str, ...]:
        """The last filled place of each sample."""

    @property
    def totals(self) -> tuple[str, ...]:
        """The length with the new places."""

    @property
    def firsts(self) -> tuple[str, ...]:
        """The place of the first new one of each sample."""

    @property
    def counts(self) -> tuple[str, ...]:
        """The number of filled places of each sample, with the new ones."""

    @property
    def shapes(self) -> Mapping[str, tuple[int, ...]]:
        """Extents of those that number the new places, -1 where the file leaves them open."""


def inputs_at(names: FollowLength, length: int, n_new: int) -> dict[str, Array]:
    """The inputs that follow from the length, for `n_new` places of one sequence behind it."""
    total = length + n_new
    return (
        dict.fromkeys(names.masks, np.ones((1, total)))
        | {name: meaning.at(length, n_new) for name, meaning in names.prepared.items()}
        | {name: _places(length, total, names.shapes.get(name, ())) for name in names.positions}
        | dict.fromkeys(names.lasts, np.array([total - 1]))
        | dict.fromkeys(names.firsts, np.array([length]))
        | dict.fromkeys(names.counts, np.array([total]))
        | dict.fromkeys(names.totals, np.array(total))
    )


def _places(first: int, end: int, shape: Sequence[int]) -> Array:
    """The numbers of places, or of the first one where an input of `shape` takes no more; the same
    in all rows that it has."""
    places = np.arange(first, first + 1 if shape[-1:] == (1,) else end)
    rows = [max(1, extent) for extent in shape[:-1]] if shape else [1]
    return np.broadcast_to(places, (*rows, len(places)))


def decoder_inputs(
    model: ModelProto, states: Sequence[StatePair], held: Sequence[str] = ()
) -> DecoderInputs:
    """The inputs of a decoder that are neither its states nor its tokens, by what they are.

    `held`: those that stay for a sequence.
    """
    taken = {*(pair.input for pair in states), *held}
    rest = [v for name, v in inputs_of(model).items() if name not in taken]
    own = [v for v in rest if not is_of_encoder(v.name)]
    firsts, counts = first_places(model), counted_places(model)
    positions = [v for v in own if words_in(v.name) & _POSITIONS and _is_integer(v)]
    tokens = [v for v in own if words_in(v.name) & _TOKENS and dims_of(v)]
    numbering = [v for v in (*tokens, *positions) if dims_of(v)]
    chunk = {name_of(dims_of(v)[_chunk_axis(v)]) for v in numbering} - {""}
    masks = [v for v in own if is_mask(v.name) and _is_of_all(v, chunk)]
    prepared = _names(v for v in masks if len(dims_of(v)) > 2 or not _is_flag(v))
    known = len(prepared) == 1  # of several, some may see a window alone
    return DecoderInputs(
        masks=tuple(name for name in _names(masks) if name not in prepared),
        positions=_names(positions),
        lasts=_with_part(own, _LASTS),
        totals=_with_part(own, _TOTALS),
        chunk_axes=tuple(_chunk_axes(rest, _counting(numbering, masks), chunk)),
        total_axes=tuple((v.name, len(dims_of(v)) - 1) for v in masks),
        shapes={v.name: tuple(map(_extent_or_open, dims_of(v))) for v in positions},
        chunk=max((dims_of(v)[_chunk_axis(v)].dim_value for v in tokens), default=0),
        firsts=tuple(v.name for v in own if v.name in firsts),
        counts=tuple(v.name for v in own if v.name in counts - firsts),
        prepared={name: meaning_of(model, name) if known else None for name in prepared},
    )


def _names(values: Iterable[ValueInfoProto]) -> tuple[str, ...]:
    return tuple(value.name for value in values)


def _with_part(values: Iterable[ValueInfoProto], parts: frozenset[str]) -> tuple[str, ...]:
    """Names that have one of these parts."""
    return _names(v for v in values if any(part in v.name.lower() for part in parts))


def _is_of_all(mask: ValueInfoProto, chunk: set[str]) -> bool:
    """Whether a mask is of all places, and not of the new ones alone."""
    last = dims_of(mask)[-1:]
    return any(is_open(dim) and name_of(dim) not in chunk for dim in last)


def _counting(
    numbering: Iterable[ValueInfoProto], masks: Sequence[ValueInfoProto]
) -> dict[str, int]:
    """The dimension of new places, where what an input is tells it."""
    of_all = {v.name for v in masks}
    found = {v.name: _chunk_axis(v) for v in numbering if v.name not in of_all}
    return found | {v.name: len(dims_of(v)) - 2 for v in masks if len(dims_of(v)) > 2}


def _chunk_axes(
    values: Iterable[ValueInfoProto], counting: Mapping[str, int], chunk: set[str]
) -> Iterator[tuple[str, int]]:
    """Open dimensions of new places: those, and others of the same name."""
    for value in values:
        for axis, dim in enumerate(dims_of(value)):
            if is_open(dim) and (name_of(dim) in chunk or counting.get(value.name) == axis):
                yield value.name, axis


def _chunk_axis(value: ValueInfoProto) -> int:
    """The dimension of new places of tokens, embeddings or positions."""
    last = len(dims_of(value)) - 1
    return max(0, last if _is_integer(value) else last - 1)


def _is_integer(value: ValueInfoProto) -> bool:
    return value.type.tensor_type.elem_type in _INTEGERS


def _is_flag(value: ValueInfoProto) -> bool:
    return _is_integer(value) or value.type.tensor_type.elem_type == TensorProto.BOOL


def _extent_or_open(dim: Dimension) -> int:
    return -1 if is_open(dim) else int(dim.dim_value)
