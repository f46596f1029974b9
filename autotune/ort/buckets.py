"""⑪ Bucketing: extents are rounded up, so that a new length is no new compilation.

    rounded_up({"batch": 3, "length": 37})      ->      {"batch": 3, "length": 48}

A network of the rounded extents computes all calls that are rounded up to them, where a proof says
that padding changes nothing (`api.padding`).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from autotune.errors import UsageError
from autotune.ort.request import Feed, Run

if TYPE_CHECKING:
    from autotune.api.compile.padding import Padding

Extents = dict[str, int]
"""Of open dimensions, by name."""
Dimensions = Mapping[str, Sequence[Any]]
"""Shapes of inputs, with the names of open dimensions."""
_FIRST = 4
"""Extents up to this one are buckets of their own; then there are two between powers of two."""


def extents_of(shapes: Mapping[str, Sequence[int]], dimensions: Dimensions) -> Extents | None:
    """The extents that shapes give the open dimensions; None where these have no names, or two."""
    found: Extents = {}
    for name, shape in shapes.items():
        if len(shape) != len(dimensions[name]):
            return None
        for extent, dimension in zip(shape, dimensions[name], strict=True):
            if isinstance(dimension, int):
                continue
            if not isinstance(dimension, str) or found.setdefault(dimension, extent) != extent:
                return None
    return found


def rounded_up(extents: Extents) -> Extents:
    """The buckets of extents: 1, 2, 3, 4, 6, 8, 12, 16, 24, …"""
    return {name: _bucket(extent) for name, extent in extents.items()}


def _bucket(extent: int) -> int:
    if extent <= _FIRST:
        return extent
    power = 1 << (extent - 1).bit_length()
    return power * 3 // 4 if extent <= power * 3 // 4 else power


def shapes_at(dimensions: Dimensions, names: Sequence[str], extents: Extents) -> dict[str, Any]:
    """Shapes of the inputs named, at some extents."""
    return {n: tuple(extents.get(d, d) for d in dimensions[n]) for n in names}


def padded(run: Run, paddings: Sequence[Padding], extents: Extents) -> Run:
    """Inferences of fewer places and samples than a network has.

    Raises UsageError where these data may not be padded.
    """
    from autotune.api.compile.padding import cut, pad

    def run_padded(feed: Feed, out: Any = None) -> dict[str, Any]:
        lengths = []
        arrays: Any = feed
        for padding in paddings:
            name, axis = next(iter(padding.inputs.items()))
            lengths.append(arrays[name].shape[axis])
            if lengths[-1] != extents[padding.dimension]:
                arrays = pad(arrays, padding, extents[padding.dimension])
        found: Mapping[str, Any] = run(arrays)
        for padding, length in zip(paddings, lengths, strict=True):
            if length != extents[padding.dimension]:
                found = cut(found, padding, length)
        outputs = {name: np.ascontiguousarray(array) for name, array in found.items()}
        for name, array in (out or {}).items():
            if array.shape != outputs[name].shape or array.dtype != outputs[name].dtype:
                raise UsageError(f"`out` of '{name}' is no array for it", "give another one")
            array[...] = outputs[name]
            outputs[name] = array
        return outputs

    return run_padded
