"""⑩ Calls of a model with lengths: its ports at the numbers that a call's arrays have.

    sizes = ModelSizes(model.variants)
    sizes.of({"ids": ids of (1, 17)})  ─►  model.sized({"sequence": 17}), made once

Memory has the shape of the longest. Kernels may write behind a length to the end of their last
tile, and read there, so inputs are copied into working memory, and outputs that kernels write in
place are the front of an array of the longest.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any, Generic, Protocol, TypeAlias, TypeVar

import numpy as np
from numpy.typing import NDArray

from autotune.codegen.memory import Recycled
from autotune.dtypes import dtype_bytes
from autotune.network.artifact.artifact import Artifact, Endpoint
from autotune.network.artifact.numbers import variant_of
from autotune.network.runtime.arguments import Inputs, as_array, in_order, require_names
from autotune.strides import dense

Array = NDArray[Any]
M = TypeVar("M", bound="HasSizes")

_MOST_SIZES = 256
"""Sizes that are remembered; then all are forgotten, which costs microseconds."""
_COPIED = 1 << 20
"""Bytes of a result up to which it has an array of its own, if that is less than half of the
memory of the longest: many small results that are kept should not keep much more."""


class HasSizes(Protocol):
    """A model with lengths: see `runtime.Model`."""

    artifact: Artifact

    def sized(self: M, numbers: Mapping[str, int]) -> M:
        """The model at these numbers."""
        ...


class ModelSizes(Generic[M]):
    """The model at the size of any inputs. `variants`: in the order of the artifact."""

    def __init__(self, variants: Sequence[M]) -> None:
        self._variants = variants
        self._sides = [model.artifact.own_inputs for model in variants]
        self._ports = self._sides[0]
        self._names = tuple(end.name for end in self._ports)
        self._known: dict[object, M] = {}

    def of(self, inputs: Inputs) -> M:
        """The model of one size for these inputs. Raises UsageError where there is none."""
        try:
            if type(inputs) is dict:
                arrays: Any = map(inputs.__getitem__, self._names)
            else:
                arrays = inputs if type(inputs) in (list, tuple) else ()
            found = self._known.get(tuple([array.shape for array in arrays]))
        except (KeyError, AttributeError, TypeError):
            found = None
        return self._made(inputs) if found is None else found

    def _made(self, given: Inputs) -> M:
        inputs = given if isinstance(given, Mapping) else in_order(self._ports, given)
        require_names(self._ports, inputs)
        shapes = {name: _shape(name, inputs[name]) for name in self._names}
        number, numbers = variant_of(self._sides, shapes)
        model = self._variants[number].sized(numbers)
        if len(self._known) >= _MOST_SIZES:
            self._known.clear()
        self._known[tuple(shapes.values())] = model
        return model


class Front:
    """Gives arrays of one shape at the front of larger memory.

    `is_room`: where kernels write the elements of such an array, in the memory for the longest.
    """

    def __init__(self, memory: Recycled, shape: tuple[int, ...], is_room: bool) -> None:
        self._memory, self._shape, self.is_room = memory, shape, is_room
        self._n = math.prod(shape)

    def take(self) -> Array:
        """An array of undefined content. Raises MemoryError without room for it."""
        return self._memory.take().reshape(-1)[: self._n].reshape(self._shape)


Memories: TypeAlias = "dict[str, Recycled | Front]"
"""What gives arrays for the outputs, by their names."""


def has_room(memory: Recycled | Front) -> bool:
    """Whether its arrays are where kernels write an output."""
    return isinstance(memory, Front) and memory.is_room


def result_memory(end: Endpoint, sized: Endpoint, memory: Recycled) -> Front | Recycled:
    """What gives arrays for an output of one size.

    `end`: the output, for whose longest `memory` gives arrays; `sized`: at the numbers.
    """
    n, longest = math.prod(sized.shape), math.prod(end.shape)
    if 2 * n < longest and n * dtype_bytes(sized.stored) < _COPIED:
        return Recycled(sized.shape, memory.dtype)
    is_room = bool(end.extents) and end.window is None and _is_front(sized)
    return Front(memory, sized.shape, is_room)


def _is_front(end: Endpoint) -> bool:
    """Whether the elements of a window follow one another."""
    assert end.window is not None
    shape, strides = end.window
    return all(n == 1 or a == b for n, a, b in zip(shape, strides, dense(shape), strict=True))


def _shape(name: str, value: Any) -> tuple[int, ...]:
    array = value if isinstance(value, np.ndarray) else as_array(name, value)
    return tuple(array.shape)
