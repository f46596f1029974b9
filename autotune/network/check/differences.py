"""⑩ Difference of an output from the expected one: places without a number, and the error.

NaN and ±infinity have to be at the same places; they do not enter the scale. Integers and booleans
have to be equal.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from autotune.dtypes import DTYPES, PORT_TYPES, SMALL_TYPES

Array = NDArray[Any]

TOLERANCE = 1e-4
"""Largest absolute error over the largest absolute output.

A float32 sum of k products in another order differs by about √k·6e-8 of its terms: 4e-6 for the
longest sums of common networks (k ≈ 5,000), and a few times that after a hundred layers. A single
wrong, missing or doubled term of such a sum is 1e-3 and more.
"""

_TOLERANCES = {d.name: 4 * d.eps for d in DTYPES.values() if d.is_narrow} | {
    d.name: 2.0**-d.digits for d in SMALL_TYPES.values() if d.is_float
}
"""Eight units of roundoff: an oracle rounds to half precision after every node, we at the end. Of
floats of a byte and less one step: a number halfway between two falls on either side."""

_LEAST_SCALE = 1e-30
"""Outputs smaller than this come of denormal numbers, which count as zero: no error is relative to
them."""


@dataclass(frozen=True, slots=True)
class Difference:
    """An output beside the expected one.

    `error`: largest difference of numbers over the largest expected one, in size; inf where shape
    or dtype are others. `n_moved`: elements of which only one is NaN, or infinite with that sign;
    of integers and booleans those that are not equal. `what`: the largest difference in words.
    `squares`: sums of the squares of the differences and of what is expected, where both are
    numbers.
    """

    error: float
    n_moved: int
    what: str
    squares: tuple[float, float] = (0.0, 0.0)

    @property
    def rms(self) -> float:
        """RMS of the differences over that of the expected values; inf beyond every number."""
        return relative_rms(*self.squares)

    def within(self, error: float, n_moved: int = 0) -> bool:
        """Whether it is at most so large, in so many elements."""
        return self.error <= error and self.n_moved <= n_moved


def relative_rms(errors: float, sizes: float) -> float:
    """√(errors / sizes) of two sums of squares; √errors where all that is expected is 0.

    Sums that overflow are inf, and so is their root.
    """
    if not (math.isfinite(errors) and math.isfinite(sizes)):
        return math.inf if errors else 0.0
    return math.sqrt(errors / sizes) if sizes else math.sqrt(errors)


def tolerance(dtype: np.dtype[Any]) -> float:
    """The error of an output of `dtype` that is always allowed."""
    return _TOLERANCES.get(dtype.name, TOLERANCE)


def flat_outputs(outputs: Mapping[str, Any]) -> dict[str, Array]:
    """Outputs as arrays: `parts[0]` of a list; maps as their values, and `scores.keys`.

    A list of maps with the same keys, as classifiers give one for every row, is a matrix of values.
    """
    flat: dict[str, Array] = {}
    for name, value in outputs.items():
        maps = value if isinstance(value, list) else [value]
        if all(isinstance(m, dict) and m and m.keys() == maps[0].keys() for m in maps) and maps:
            keys = list(maps[0])
            rows = [[m[key] for key in keys] for m in maps]
            flat[name] = np.array(rows if isinstance(value, list) else rows[0])
            flat[f"{name}.keys"] = np.array(keys, object if isinstance(keys[0], str) else None)
        elif isinstance(value, list):
            flat |= flat_outputs({f"{name}[{n}]": item for n, item in enumerate(value)})
        elif isinstance(value, np.ndarray):
            flat[name] = value
        else:
            flat[name] = np.array(value, object if isinstance(value, str) else None)
    return flat


def difference(actual: Array, expected: Array) -> Difference:
    """Compare two arrays element by element."""
    if actual.shape != expected.shape or actual.dtype != expected.dtype:
        ours, theirs = (f"{a.dtype} of shape {a.shape}" for a in (actual, expected))
        return Difference(float("inf"), 0, f"it is {ours}, expected {theirs}")
    if not is_float(expected.dtype):
        moved = np.asarray(actual != expected)
        what = _moved(actual, expected, moved)
        return Difference(0.0, int(np.count_nonzero(moved)), what, _squares(actual, expected))
    with np.errstate(invalid="ignore"):  # of unwritten memory: NaN of any kind
        return _of_floats(actual.astype(np.float64), expected.astype(np.float64))


def max_error(actual: Array, expected: Array) -> float:
    """Largest absolute difference over the largest finite expected value, in size.

    Over one where all that is expected is zero; inf where NaN and infinities are at other places.
    """
    if actual.shape != expected.shape:
        return float("inf")
    if actual.dtype == object:
        return 0.0 if np.array_equal(actual, expected) else float("inf")
    found = _of_floats(actual.astype(np.float64), expected.astype(np.float64))
    return float("inf") if found.n_moved else found.error


def is_float(dtype: np.dtype[Any]) -> bool:
    """Whether it has fractions: NumPy does not know bfloat16 as a float."""
    known = PORT_TYPES.get(dtype.name)
    return known.is_float if known else dtype.kind == "f"


def _of_floats(actual: Array, expected: Array) -> Difference:
    finite = np.isfinite(expected)
    same = (actual == expected) | (np.isnan(actual) & np.isnan(expected))
    moved = ~same & ~(finite & np.isfinite(actual))
    n_moved = int(np.count_nonzero(moved))
    # large differences may overflow; values that are not finite have been judged
    with np.errstate(invalid="ignore", over="ignore"):
        apart = np.where(same | moved, 0.0, np.abs(actual - expected))
    error = float(apart.max(initial=0.0)) / scale_of(expected)
    with np.errstate(over="ignore"):
        sizes = np.square(expected, where=finite, out=np.zeros_like(expected))
        squares = float(np.square(apart).sum()), float(sizes.sum())
    if n_moved:
        return Difference(error, n_moved, _moved(actual, expected, moved), squares)
    what = f"{_at(apart, actual, expected)}, {error:.2g} of the largest value" if error else ""
    return Difference(error, 0, what, squares)


def _squares(actual: Array, expected: Array) -> tuple[float, float]:
    """Sums of squares of integers and booleans; nothing for text."""
    if expected.dtype.kind not in "iub":
        return 0.0, 0.0
    ours, theirs = actual.astype(np.float64), expected.astype(np.float64)
    return float(np.square(ours - theirs).sum()), float(np.square(theirs).sum())


def scale_of(expected: Array) -> float:
    """The largest finite size; one where all is zero."""
    largest = float(np.abs(expected).max(initial=0.0, where=np.isfinite(expected)))
    return max(largest, _LEAST_SCALE) if largest else 1.0


def _moved(actual: Array, expected: Array, moved: Array) -> str:
    count = f"{np.count_nonzero(moved):,} of {moved.size:,} elements are not what they should be"
    return f"{count}: {_at(moved, actual, expected)}" if moved.any() else ""


def _at(score: Array, actual: Array, expected: Array) -> str:
    at = np.unravel_index(int(score.argmax()), score.shape)
    where = tuple(int(i) for i in at)
    return f"at {where} found {_text(actual[at])}, expected {_text(expected[at])}"


def _text(value: Any) -> str:
    return f"{value:.6g}" if isinstance(value, float) else str(value)
