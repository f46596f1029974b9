"""⑩ Batches of rows of different lengths: where the tokens are that count, and lists of rows.

    places_of([[1, 1, 0], [1, 0, 0]])
        ─►  tokens [[0, 0], [0, 1], [1, 0]], slots [[0, 1, 1], [2, 2, 2]]

A mask with holes, or with a row of no token, packs nothing: all places count, and the model
computes what its file says.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from autotune.errors import UsageError
from autotune.extent import Length
from autotune.graph.ragged import NUMBER, SLOTS, TOKENS
from autotune.network.artifact.artifact import Endpoint

Array = NDArray[Any]
Rows = Mapping[str, Sequence[Any]] | Sequence[Any]


class RunsRows(Protocol):
    """A model over tokens: see `runtime.Model`."""

    @property
    def input_info(self) -> tuple[Endpoint, ...]:
        """Its inputs, as the file has them."""

    @property
    def output_info(self) -> tuple[Endpoint, ...]:
        """Its outputs."""

    def run(self, inputs: Mapping[str, Array]) -> dict[str, Array]:
        """Outputs by name."""


def mask_of(ports: Sequence[Endpoint]) -> str:
    """The input that says which places count; "" of a model that is not over tokens."""
    names = {port.name for port in ports}
    masks = (n.removesuffix(TOKENS) for n in names if n.endswith(TOKENS))
    return next((mask for mask in masks if f"{mask}{SLOTS}" in names), "")


def is_own(port: Endpoint, mask: str) -> bool:
    """Whether a port is one of the file."""
    return not mask or port.name not in (f"{mask}{TOKENS}", f"{mask}{SLOTS}")


def with_places(mask: str, inputs: Mapping[str, Any], n: int | None) -> Mapping[str, Any]:
    """`inputs` with those that say where the tokens are. `n`: how many there have to be.

    Raises UsageError for a mask of another rank.
    """
    if mask not in inputs:
        return inputs
    flags = np.asarray(inputs[mask])
    if flags.ndim != 2:
        raise UsageError(f"input '{mask}' has shape {flags.shape}", "give rows of one length")
    tokens, slots = places_of(flags, is_whole=n == flags.size)
    return {f"{mask}{TOKENS}": tokens, f"{mask}{SLOTS}": slots, **inputs}


def with_tokens(
    ports: Sequence[Endpoint], mask: str, numbers: Mapping[str, int]
) -> Mapping[str, int]:
    """`numbers` with that of tokens, all places of the batch, where it is not told."""
    port = next(p for p in ports if p.name == mask)
    names = (e.name for e in port.extents if isinstance(e, Length))
    return {NUMBER: math.prod(numbers.get(n, 1) for n in names), **numbers}


def places_of(mask: Array, is_whole: bool = False) -> tuple[Array, Array]:
    """Row and place of each token, and the token of each place: behind a row, that of its last.

    `is_whole`: all places count, as where the mask has holes.
    """
    n_rows, longest = mask.shape
    flags, place = mask != 0, np.arange(longest)
    counts = np.count_nonzero(flags, axis=1)
    is_padding = counts.all() and np.array_equal(flags, place < counts[:, None])
    if is_whole or not is_padding:
        counts = np.full(n_rows, longest)
    ends = np.cumsum(counts)
    starts = ends - counts
    tokens = np.empty((int(ends[-1]) if n_rows else 0, 2), np.int64)
    tokens[:, 0] = np.repeat(np.arange(n_rows), counts)
    tokens[:, 1] = np.arange(len(tokens)) - np.repeat(starts, counts)
    slots = starts[:, None] + np.minimum(place, counts[:, None] - 1)
    return tokens, slots.astype(np.int64)


def run_rows(model: RunsRows, mask: str, rows: Rows) -> dict[str, Any]:
    """Outputs of rows of different lengths, in lists where they have a number for each token.

    `rows`: of each input a list of arrays, or those of the first one; inputs that are left out are
    0, but for the mask. Raises UsageError.
    """
    ports = {port.name: port for port in model.input_info}
    if not mask:
        raise UsageError("the model is not over tokens", "compile it with `ragged`")
    first = next(name for name in ports if name != mask)
    given = rows if isinstance(rows, Mapping) else {first: rows}
    lists = {name: [np.asarray(row) for row in own] for name, own in given.items()}
    _require_rows(ports, lists)
    counts = [len(row) for row in next(iter(lists.values()))]
    batch, sequence = (e for e in ports[mask].extents if isinstance(e, Length))
    found: dict[str, list[Any]] = {port.name: [] for port in model.output_info}
    for at in range(0, len(counts), batch.most):
        part = slice(at, at + batch.most)
        own = {name: arrays[part] for name, arrays in lists.items()}
        outputs = model.run(_padded(ports, own, counts[part], mask))
        for port in model.output_info:
            found[port.name] += _rows(port, outputs[port.name], counts[part], sequence.name)
    return {p.name: _joined(p, found[p.name], sequence.name) for p in model.output_info}


def _require_rows(ports: Mapping[str, Endpoint], lists: Mapping[str, Sequence[Array]]) -> None:
    unknown = [name for name in lists if name not in ports]
    if unknown or not lists:
        known = ", ".join(ports)
        raise UsageError(f"there is no input '{', '.join(unknown)}'", f"give rows of {known}")
    shapes = {name: [row.shape for row in rows] for name, rows in lists.items()}
    if any(own != next(iter(shapes.values())) for own in shapes.values()):
        raise UsageError("inputs have rows of different lengths", "give all of them the same")
    if any(len(s) != 1 or not s[0] for own in shapes.values() for s in own):
        raise UsageError("a row is no list of one token or more", "give one-dimensional arrays")


def _padded(
    ports: Mapping[str, Endpoint], rows: Mapping[str, Sequence[Array]], counts: list[int], mask: str
) -> dict[str, Array]:
    """The arrays that the file takes."""
    shape = len(counts), max(counts)
    behind = np.arange(shape[1]) >= np.array(counts)[:, None]
    found = {name: np.zeros(shape, port.numpy_dtype) for name, port in ports.items()}
    found[mask] = (~behind).astype(ports[mask].numpy_dtype)
    for name, own in rows.items():
        found[name][~behind] = np.concatenate(own)
    return found


def _follows(port: Endpoint, sequence: str) -> int | None:
    """The dimension of an output's tokens."""
    dims = (d for d, e in enumerate(port.extents) if isinstance(e, Length) and e.name == sequence)
    return next(dims, None)


def _rows(port: Endpoint, array: Array, counts: list[int], sequence: str) -> list[Array]:
    axis = _follows(port, sequence)
    if axis is None:
        return list(array)
    rest = (slice(None),) * (axis - 1)
    return [row[(*rest, slice(n))] for row, n in zip(array, counts, strict=True)]


def _joined(port: Endpoint, rows: list[Array], sequence: str) -> Any:
    """Rows in a list; in one array where all have the same shape whatever their length."""
    if _follows(port, sequence) is not None:
        return rows
    shape = tuple(e for e in port.extents[1:] if isinstance(e, int))
    return np.stack(rows) if rows else np.zeros((0, *shape), port.numpy_dtype)
