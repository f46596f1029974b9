"""⑩ Batches of rows of different lengths: padded arrays and lists of rows, over their tokens.

    places_of([[1, 1, 0], [1, 0, 0]])
        ─►  tokens [[0, 0], [0, 1], [1, 0]], slots [[0, 1, 1], [2, 2, 2]]

What mixes a row is computed for as many places as the longest has, so rows of like lengths are run
together (`row_parts`), and results are laid out as the file says. A mask with holes, or with a row
of no token, packs nothing: all places count, and the model computes what its file says.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from autotune.errors import UsageError
from autotune.extent import Length
from autotune.graph.ragged import Ragged
from autotune.network.artifact.artifact import Artifact, Endpoint
from autotune.network.runtime.arguments import Outputs, ends_by_name, outputs_given
from autotune.network.runtime.row_parts import parts_of
from autotune.wording import arguments

Array = NDArray[Any]
Rows = Mapping[str, Sequence[Any]] | Sequence[Any]
Feeds: TypeAlias = Mapping[str, Any]
Run: TypeAlias = Callable[[Feeds, Outputs], dict[str, Array]]
"""A network over tokens, by all its inputs: see `Model.run`."""


@dataclass(frozen=True, slots=True)
class RowPart:
    """Rows of a batch that are run together: their numbers, and the inputs of the network."""

    rows: Array
    feeds: Feeds


class RaggedPorts:
    """What a caller of a network over tokens gives and gets."""

    def __init__(self, artifact: Artifact, ragged: Ragged) -> None:
        self.ragged = ragged
        self.inputs = tuple(p for p in artifact.own_inputs if p.name not in ragged.hidden)
        self.outputs = artifact.own_outputs
        mask = next(p for p in self.inputs if p.name == ragged.mask)
        self.batch, self.sequence = (e for e in mask.extents if isinstance(e, Length))
        self._are_rows = all(map(self._has_rows, (*self.inputs, *self.outputs)))

    # --- padded arrays ---

    def run(self, run: Run, inputs: Feeds, out: Outputs) -> dict[str, Array]:
        """Outputs of padded arrays, rows of like lengths together. `run`: the network."""
        parts = self.parts(inputs)
        if len(parts) == 1:
            return run(parts[0].feeds, out)
        shape = as_mask(self.ragged.mask, inputs[self.ragged.mask]).shape
        numbers = {self.batch.name: shape[0], self.sequence.name: shape[1]}
        ends = ends_by_name([port.at(numbers) for port in self.outputs])
        given = {} if out is None else outputs_given(ends, out)
        found = [(part, run(part.feeds, None)) for part in parts]
        whole = {
            name: given.get(name, np.empty(end.shape, dtype)) for name, (end, dtype) in ends.items()
        }
        for port in self.outputs:
            self._join(port, whole[port.name], found)
        return whole

    def parts(self, inputs: Feeds) -> list[RowPart]:
        """`inputs` in parts, whose rows have like lengths; one with all where they are not rows.

        Raises UsageError for a mask of another rank.
        """
        name = self.ragged.mask
        if name not in inputs:
            return [RowPart(np.arange(0), inputs)]
        mask = as_mask(name, inputs[name])
        first, counts = rows_of(mask)
        every = np.arange(len(mask))
        if not self._are_rows or first.any() or not self._fit(inputs, mask.shape):
            return [RowPart(every, self.with_places(inputs))]
        found = []
        for rows in parts_of(counts, self.ragged.work):
            own = inputs if len(rows) == len(mask) else self._rows(inputs, rows, counts[rows].max())
            found.append(RowPart(rows, self.with_places(own)))
        return found

    def with_places(self, inputs: Feeds, n: int | None = None) -> Feeds:
        """`inputs` with those that say where the tokens are. `n`: how many there have to be."""
        name = self.ragged.mask
        if name not in inputs:
            return inputs
        mask = as_mask(name, inputs[name])
        is_whole = n == mask.size or not (self.ragged.is_anywhere or _begins(mask))
        tokens, slots = places_of(mask, is_whole)
        return {self.ragged.tokens: tokens, self.ragged.slots: slots, **inputs}

    def numbers(self, numbers: Mapping[str, int]) -> Mapping[str, int]:
        """`numbers` with that of tokens, all places of the batch, where it is not told."""
        places = (numbers.get(e.name, 1) for e in (self.batch, self.sequence))
        return {self.ragged.number: math.prod(places), **numbers}

    def _join(self, port: Endpoint, out: Array, found: Sequence[tuple[RowPart, Feeds]]) -> None:
        """Write an output of a batch."""
        for part, outputs in found:
            array = outputs[port.name]
            for axis in self._axes(port):  # behind a row what its last token has
                short = out.shape[axis] - array.shape[axis]
                if short:
                    last = np.take(array, [-1], axis)
                    array = np.concatenate([array, np.repeat(last, short, axis)], axis)
            out[part.rows] = array

    def _rows(self, inputs: Feeds, rows: Array, longest: int) -> Feeds:
        """Some rows of all inputs, as long as their longest."""
        found = {}
        for port in self.inputs:
            array = np.asarray(inputs[port.name])
            window = [rows if axis == 0 else slice(None) for axis in range(array.ndim)]
            for axis in self._axes(port):
                window[axis] = slice(longest)
            found[port.name] = np.ascontiguousarray(array[tuple(window)])
        return found

    def _fit(self, inputs: Feeds, shape: tuple[int, ...]) -> bool:
        """Whether all inputs are of the shape that the mask tells."""
        numbers = {self.batch.name: shape[0], self.sequence.name: shape[1]}
        known = len(inputs) == len(self.inputs)
        return known and all(
            p.name in inputs and np.shape(inputs[p.name]) == _shape(p, numbers) for p in self.inputs
        )

    def _axes(self, port: Endpoint) -> list[int]:
        """The dimensions of a row's tokens."""
        name, extents = self.sequence.name, port.extents
        return [d for d, e in enumerate(extents) if isinstance(e, Length) and e.name == name]

    def _has_rows(self, port: Endpoint) -> bool:
        """Whether a port has the rows of a batch first, and their tokens one by one."""
        first, *others = port.extents or (0,)
        plain = all(e == self.sequence or not isinstance(e, Length) for e in others)
        return first == self.batch and plain

    # --- lists of rows ---

    def run_lists(self, run: Run, rows: Rows) -> dict[str, Any]:
        """Outputs of rows, in lists where they have a number for each token.

        `rows`: see `batches`. Raises UsageError.
        """
        parts = (
            RowPart(batch.rows[part.rows], part.feeds)
            for batch in self.batches(rows)
            for part in self.parts(batch.feeds)
        )
        return self.in_lists([(part, run(part.feeds, None)) for part in parts])

    def batches(self, rows: Rows) -> Iterator[RowPart]:
        """Batches of padded arrays of at most as many rows as one may have.

        `rows`: of each input a list of arrays, or those of the first one; inputs that are left out
        are 0, but for the mask. Raises UsageError.
        """
        ports = {port.name: port for port in self.inputs}
        first = next(name for name in ports if name != self.ragged.mask)
        given = rows if isinstance(rows, Mapping) else {first: rows}
        lists = {name: [np.asarray(row) for row in own] for name, own in given.items()}
        _require_rows(ports, lists, self.sequence)
        counts = np.array([len(row) for row in next(iter(lists.values()))], np.int64)
        for at in range(0, len(counts), self.batch.most):
            part = np.arange(at, min(len(counts), at + self.batch.most))
            own = {name: [arrays[k] for k in part] for name, arrays in lists.items()}
            yield RowPart(part, self._padded(own, counts[part]))

    def in_lists(self, found: Sequence[tuple[RowPart, Feeds]]) -> dict[str, Any]:
        """The outputs of parts, by row."""
        return {port.name: self._in_list(port, found) for port in self.outputs}

    def _in_list(self, port: Endpoint, found: Sequence[tuple[RowPart, Feeds]]) -> Any:
        rows: dict[int, Array] = {}
        axes = self._axes(port)
        for part, outputs in found:
            array = outputs[port.name]
            _, counts = rows_of(part.feeds[self.ragged.mask])
            for row, of_row, n in zip(part.rows, array, counts, strict=True):
                window = [slice(None)] * of_row.ndim
                for axis in axes:
                    window[axis - 1] = slice(n)
                rows[int(row)] = of_row[tuple(window)]
        ordered = [rows[n] for n in sorted(rows)]
        if axes:
            return ordered
        shape = tuple(e for e in port.extents[1:] if isinstance(e, int))
        return np.stack(ordered) if ordered else np.zeros((0, *shape), port.numpy_dtype)

    def mask_of(self, counts: Array) -> Array:
        """The mask of rows of these lengths."""
        dtype = next(p.numpy_dtype for p in self.inputs if p.name == self.ragged.mask)
        return (np.arange(counts.max()) < counts[:, None]).astype(dtype)

    def counted(self, inputs: Feeds, outputs: Mapping[str, Array]) -> dict[str, Array]:
        """Outputs with 0 at the places that the mask of inputs leaves out of rows."""
        mask = as_mask(self.ragged.mask, inputs[self.ragged.mask])
        tokens, _ = places_of(mask, not (self.ragged.is_anywhere or _begins(mask)))
        counts = np.zeros(mask.shape, bool)
        counts[tuple(tokens.T)] = True
        found = dict(outputs)
        for port in self.outputs:
            for axis in self._axes(port) if port.name in found else ():
                array = found[port.name]
                shape = [1] * array.ndim
                shape[0], shape[axis] = mask.shape
                found[port.name] = np.where(counts.reshape(shape), array, np.zeros(1, array.dtype))
        return found

    def _padded(self, rows: Mapping[str, Sequence[Array]], counts: Array) -> dict[str, Array]:
        """The arrays that the file takes."""
        mask = self.mask_of(counts)
        numbers = {self.batch.name: len(counts), self.sequence.name: mask.shape[1]}
        found = {p.name: np.zeros(_shape(p, numbers), p.numpy_dtype) for p in self.inputs}
        found[self.ragged.mask], counted = mask, mask != 0
        for name, own in rows.items():
            found[name][counted] = np.concatenate(own)
        return found


def as_mask(name: str, value: Any) -> Array:
    """A mask as an array. Raises UsageError for one of another rank."""
    mask = np.asarray(value)
    if mask.ndim != 2:
        raise UsageError(f"input '{name}' has shape {mask.shape}", "give rows of one length")
    return mask


def _begins(mask: Array) -> bool:
    """Whether all rows of a mask begin at their first place, or nothing is left out of them."""
    return not rows_of(mask)[0].any()


def rows_of(mask: Array) -> tuple[Array, Array]:
    """The first place of each row that counts, and how many do, one after the other.

    All places, where the mask has holes, or a row without a token.
    """
    n_rows, longest = mask.shape
    flags = mask if mask.dtype == bool else mask != 0
    counts = np.count_nonzero(flags, axis=1)
    place = np.arange(longest)
    none = np.zeros(n_rows, np.int64)
    if counts.all() and np.array_equal(flags, place < counts[:, None]):
        return none, counts
    first = flags.argmax(axis=1) if longest else none
    ends = (first + counts)[:, None]
    if counts.all() and np.array_equal(flags, (place >= first[:, None]) & (place < ends)):
        return first, counts
    return none, np.full(n_rows, longest)


def places_of(mask: Array, is_whole: bool = False) -> tuple[Array, Array]:
    """Row and place of each token, and the token of each place: beside a row, that which is next.

    `is_whole`: all places count, as where the mask has holes.
    """
    n_rows, longest = mask.shape
    first, counts = rows_of(mask)
    if is_whole:
        first, counts = np.zeros(n_rows, np.int64), np.full(n_rows, longest)
    ends = np.cumsum(counts)
    starts = ends - counts
    tokens = np.empty((int(ends[-1]) if n_rows else 0, 2), np.int64)
    tokens[:, 0] = np.repeat(np.arange(n_rows), counts)
    tokens[:, 1] = np.arange(len(tokens)) - np.repeat(starts - first, counts)
    place = np.arange(longest) - first[:, None]
    slots = starts[:, None] + np.clip(place, 0, counts[:, None] - 1)
    return tokens, slots.astype(np.int64)


def _shape(port: Endpoint, numbers: Mapping[str, int]) -> tuple[int, ...]:
    return tuple(
        e.at(numbers.get(e.name, 0)) if isinstance(e, Length) else e
        for e in port.extents or port.shape
    )


def _require_rows(
    ports: Mapping[str, Endpoint], lists: Mapping[str, Sequence[Array]], sequence: Length
) -> None:
    unknown = [name for name in lists if name not in ports]
    if unknown or not lists:
        known = ", ".join(ports)
        raise UsageError(f"there is no input '{', '.join(unknown)}'", f"give rows of {known}")
    for name, rows in lists.items():
        for n, row in enumerate(rows):
            if row.ndim != 1 or not len(row):
                raise UsageError(
                    f"row {n} of '{name}' is no list of one token or more",
                    "give one-dimensional arrays",
                )
            if not np.can_cast(row.dtype, ports[name].numpy_dtype, "same_kind"):
                raise UsageError(
                    f"row {n} of '{name}' has dtype {row.dtype}", f"give {ports[name].dtype}"
                )
            if len(row) > sequence.most:
                dims = arguments(dims={sequence.name: f"..{len(row)}"})
                raise UsageError(
                    f"row {n} of '{name}' has {len(row)} tokens, more than {sequence.most}",
                    f"cut it, or compile the model for so many: {dims}",
                )
    counts = {name: [len(row) for row in rows] for name, rows in lists.items()}
    if any(own != next(iter(counts.values())) for own in counts.values()):
        raise UsageError("inputs have rows of different lengths", "give all of them the same")
