"""⑩ Bucketing of a dynamic batch by the variants that there are: 13 as 8 + 4 + 1.

    blocks = Blocks(model.variants, artifact.split)
    outputs = blocks.run({"image": thirteen_images})

That no sample depends on another was proved when the model was compiled: see `graph.samples`.
Blocks are views of the arrays where samples are outermost, else copies.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from autotune.errors import UsageError
from autotune.network.artifact.artifact import BatchSplit, Endpoint
from autotune.network.runtime.arguments import Outputs, as_array, outputs_given

Array = NDArray[Any]
_MOST_PLANS = 1024
"""Shapes that are remembered; then all are forgotten, which costs microseconds."""


class RunsSamples(Protocol):
    """A model at one of its shapes: see `runtime.Model`."""

    @property
    def input_info(self) -> tuple[Endpoint, ...]:
        """Name, shape and dtype of every input."""
        ...

    @property
    def output_info(self) -> tuple[Endpoint, ...]:
        """Name, shape and dtype of every output."""
        ...

    def run(self, inputs: Mapping[str, Any], out: Outputs = None) -> dict[str, Array]:
        """Outputs by name, in `out`."""
        ...


@dataclass(frozen=True, slots=True)
class _Plan:
    """Composition of a batch: the samples of each variant, and the outputs of all."""

    blocks: tuple[tuple[RunsSamples, int, int], ...]
    outputs: tuple[Endpoint, ...]


class BatchBlocks:
    """Inferences of shapes that no variant is for, by variants of fewer samples.

    `other`: the error for inputs of which the variants compute no part.
    """

    def __init__(
        self,
        variants: Sequence[RunsSamples],
        split: BatchSplit,
        other: Callable[[Mapping[str, Array]], UsageError],
    ) -> None:
        self._variants, self._axes, self._other = variants, split.axes, other
        self._names = tuple(end.name for end in variants[0].input_info)
        self._plans: dict[object, _Plan] = {}

    def run(self, inputs: Mapping[str, Any], out: Outputs = None) -> dict[str, Array]:
        """As `Model.run`."""
        arrays = {
            name: x if isinstance(x, np.ndarray) else as_array(name, x)
            for name, x in inputs.items()
        }
        plan = self._plan(arrays)
        ends = {end.name: (end, end.numpy_dtype) for end in plan.outputs}
        given = {} if out is None else outputs_given(ends, out)
        found = {
            n: np.empty(end.shape, dtype) for n, (end, dtype) in ends.items() if n not in given
        }
        for name, array in given.items():  # one that an input lies in is written at the end
            is_read = any(np.may_share_memory(array, x) for x in arrays.values())
            found[name] = np.empty(array.shape, array.dtype) if is_read else array
        found = {name: found[name] for name in ends}
        for model, start, stop in plan.blocks:
            feed = {name: self._part(name, x, start, stop) for name, x in arrays.items()}
            model.run(feed, {name: self._part(name, x, start, stop) for name, x in found.items()})
        for name, array in given.items():
            if found[name] is not array:
                array[...] = found[name]
                found[name] = array
        return found

    def outputs(self, inputs: Mapping[str, Array]) -> tuple[Endpoint, ...]:
        """The outputs for inputs of these shapes. Raises UsageError where there are none."""
        return self._plan(inputs).outputs

    def _part(self, name: str, array: Array, start: int, stop: int) -> Array:
        """The samples from `start` to `stop`; all of an array that has none."""
        if name not in self._axes:
            return array
        axis, inner = self._axes[name]
        return array[(slice(None),) * axis + (slice(start * inner, stop * inner),)]

    def _plan(self, inputs: Mapping[str, Array]) -> _Plan:
        if inputs.keys() != set(self._names):
            raise self._other(inputs)
        key = tuple([inputs[name].shape for name in self._names])
        plan = self._plans.get(key)
        if plan is None:
            plan = self._made(inputs)
            if len(self._plans) >= _MOST_PLANS:
                self._plans.clear()
            self._plans[key] = plan
        return plan

    def _made(self, inputs: Mapping[str, Array]) -> _Plan:
        """The largest variants first. Raises UsageError where none fits."""
        extents = {self._extent(name, x.shape) for name, x in inputs.items() if name in self._axes}
        fitting = {self._extent_of(m): m for m in self._variants if self._fits(m, inputs)}
        if len(extents) != 1 or not fitting:
            raise self._other(inputs)
        (total,) = extents
        blocks: list[tuple[RunsSamples, int, int]] = []
        start = 0
        for extent in sorted(fitting, reverse=True):
            while extent and start + extent <= total:
                blocks.append((fitting[extent], start, start + extent))
                start += extent
        ends = next(iter(fitting.values())).output_info
        is_whole = start == total and (blocks or all(end.name in self._axes for end in ends))
        if not is_whole:
            raise self._other(inputs)
        return _Plan(tuple(blocks), tuple(self._at(end, total) for end in ends))

    def _extent(self, name: str, shape: Sequence[int]) -> int:
        """Samples of a tensor; -1 where it has not the dimension."""
        axis, inner = self._axes[name]
        return shape[axis] // inner if axis < len(shape) else -1

    def _extent_of(self, model: RunsSamples) -> int:
        end = next(end for end in model.input_info if end.name in self._axes)
        return self._extent(end.name, end.shape)

    def _fits(self, model: RunsSamples, inputs: Mapping[str, Array]) -> bool:
        """Whether all but the number of samples is that of `model`."""
        return all(
            self._rest(end.name, inputs[end.name].shape) == self._rest(end.name, end.shape)
            for end in model.input_info
        )

    def _rest(self, name: str, shape: Sequence[int]) -> tuple[int, ...]:
        return tuple(n for d, n in enumerate(shape) if d != self._axes.get(name, (-1, 1))[0])

    def _at(self, end: Endpoint, total: int) -> Endpoint:
        if end.name not in self._axes:
            return end
        axis, inner = self._axes[end.name]
        return replace(end, shape=(*end.shape[:axis], total * inner, *end.shape[axis + 1 :]))
