"""⑩ Rows of a batch in parts of like lengths, for what is computed for all places of the longest.

    parts_of([3, 90, 4, 80], …)  ─►  [0, 2], [3, 1]

A call more reads all weights again. What it saves are operations behind rows.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

Array = NDArray[Any]

_CALL = 32
"""Tokens that take as long as a call more: 14 of reading weights from memory at about seven
operations a byte, and tiles of the last tokens that are not full."""
_MIXING = 2
"""A pair of places takes so many times as long as its operations in products do: exponentials, and
short rows."""


def parts_of(counts: Array, work: tuple[int, int, int]) -> list[Array]:
    """The numbers of rows with so many tokens, in parts that take least time together.

    `work`: operations of a token, a place, a pair of places.
    """
    token, place, pair = work
    n, order = len(counts), np.argsort(counts, kind="stable")
    length = counts[order].astype(np.float64)
    of_row = length * place + length**2 * (pair * _MIXING)
    call = float(_CALL * token)
    if n < 2 or n * of_row[-1] - of_row.sum() <= call:
        return [np.arange(n)]
    best, begins = np.zeros(n + 1), np.zeros(n + 1, np.int64)
    for end in range(1, n + 1):
        costs = best[:end] + np.arange(end, 0, -1) * of_row[end - 1]
        begins[end] = begin = int(costs.argmin())
        best[end] = costs[begin] + call
    found, end = [], n
    while end:
        found.append(np.sort(order[begins[end] : end]))
        end = int(begins[end])
    return found[::-1] if len(found) > 1 else [np.arange(n)]
