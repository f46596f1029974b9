"""⑪ What open dimensions are: of any size up to a most, of one size, or equal to another.

{"s10": Length("s10", 8), "s86": "s10", "height": 48}
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from typing import TypeAlias

from autotune.api.ranges import range_text
from autotune.dtypes import DTYPES
from autotune.extent import Length
from autotune.graph.network import Network

Sizes: TypeAlias = Mapping[str, "Length | int | str"]
Numbers: TypeAlias = Mapping[str, int]

LOWER = (101, 23, 11, 7, 3, 1)
"""Differences of numbers, none of which a stride divides."""


def leasts_of(network: Network) -> dict[str, int]:
    """The least number of each length."""
    extents = (e for port in network.inputs for e in port.extents)
    return {e.name: e.least for e in extents if isinstance(e, Length)}


def lengths_in(sizes: Sizes) -> dict[str, Length]:
    """Dimensions of any size up to a most."""
    return {n: x for n, x in sizes.items() if isinstance(x, Length)}


def ties_in(sizes: Sizes) -> dict[str, str]:
    """Dimensions that equal others."""
    return {n: x for n, x in sizes.items() if isinstance(x, str)}


def extents_in(sizes: Sizes, numbers: Numbers) -> dict[str, int]:
    """The size of each dimension that is no other; of lengths without a number the most."""
    return {
        n: x.at(numbers.get(n, x.most)) if isinstance(x, Length) else x
        for n, x in sizes.items()
        if not isinstance(x, str)
    }


def in_words(sizes: Sizes) -> dict[str, int | str]:
    """As a user says it."""
    return {n: range_text(x) if isinstance(x, Length) else x for n, x in sizes.items()}


def lower_number(n: int) -> int:
    """A number below another, that tells how extents follow it."""
    return n - next((d for d in LOWER if 2 * d <= n), 0)


def weight_of(network: Network) -> int:
    """Bytes of outputs and of the largest tensor at the most."""
    largest = max(n_bytes_of(v.shape, v.dtype) for v in network.values.values())
    return largest + sum(n_bytes_of(port.shape, port.dtype) for port in network.outputs)


def n_bytes_of(shape: Iterable[int], dtype: str) -> int:
    """Bytes of a tensor."""
    return math.prod(shape) * DTYPES[dtype].bits // 8
