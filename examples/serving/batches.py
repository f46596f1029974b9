"""Micro-batches of what is waiting, for a model with variants for several batch sizes.

autotune compile model.onnx --dim batch=1,2,4,8 -o model.atn

batches = Batches(autotune.load("model.atn"))
output = await batches.infer(sample)
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from statistics import median
from typing import Any

import numpy as np
from numpy.typing import NDArray
from waiting import MOST_WAITING, Batcher

import autotune

Array = NDArray[Any]
MOST_DELAY = 1.1
"""What micro-batches may make of the median latency of a burst of requests."""


def ends(n: int, sizes: Sequence[int], seconds: Mapping[int, float], alone: bool) -> list[float]:
    """When `n` requests that come at once are answered; with `alone` the first one is no batch."""
    found: list[float] = []
    now = 0.0
    while len(found) < n:
        left = 1 if alone and not found else n - len(found)
        size = max(size for size in sizes if size <= left)
        now += seconds[size]
        found += [now] * size
    return found


def harmless(seconds: Mapping[int, float]) -> list[int]:
    """The batch sizes with which no burst has a median of more than `MOST_DELAY` of what it had.

    `seconds`: latencies of the model by batch size, 1 among them. A batch delays its first requests
    and is done sooner than its last ones would be alone: sizes that save too little are left out.
    """
    found = [1]
    for size in sorted(seconds)[1:]:
        bursts = [(n, alone) for n in range(1, 4 * size) for alone in (False, True)]
        if all(
            median(ends(n, [*found, size], seconds, alone))
            <= MOST_DELAY * median(ends(n, [1], seconds, alone))
            for n, alone in bursts
        ):
            found.append(size)
    return found


def latencies_s(variants: Mapping[int, autotune.Model]) -> dict[int, float]:
    """The least latency of each variant; they take turns, so that noise is everybody's."""
    found = dict.fromkeys(variants, float("inf"))
    for _ in range(12):
        for size, model in variants.items():
            end = model.input_info[0]
            x = np.zeros(end.shape, end.numpy_dtype)
            start = time.perf_counter()
            model(x)
            found[size] = min(found[size], time.perf_counter() - start)
    return found


class Batches(Batcher[Array, Array]):
    """Micro-batches of the sizes that a model has variants for.

    Raises UsageError for a model that has not one input and one output, or none for one sample.
    """

    def __init__(self, model: autotune.Model, most_waiting: int = MOST_WAITING) -> None:
        super().__init__(self._inferred, self._size, most_waiting)
        by_size = {variant.input_info[0].shape[0]: variant for variant in model.variants}
        if len(model.input_info) != 1 or len(model.output_info) != 1 or 1 not in by_size:
            raise autotune.UsageError(
                f"'{model.artifact.name}' is no model of one input and one output that takes a "
                "single sample",
                "compile it for batches of 1, 2, 4 and 8: `--dim batch=1,2,4,8`",
            )
        self.model = model
        self.sample = model.input_info[0]
        self.sizes = harmless(latencies_s(by_size))

    async def infer(self, sample: Array) -> Array:
        """The output for one sample; neither has the dimension of the batch."""
        (found,) = await self.answers([sample])
        return found

    def _size(self, waiting: Sequence[Array]) -> int:
        return max(size for size in self.sizes if size <= len(waiting))

    async def _inferred(self, samples: list[Array]) -> Sequence[Array]:
        (found,) = (await self.model.run_async([np.stack(samples)])).values()
        return list(found)
