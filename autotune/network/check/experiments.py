"""⑩ What experiments with rounding allow: tolerances by precision, spreads of an oracle's outputs.

expected, outputs of models that round otherwise  ─►  Spread of each output
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import replace
from typing import Any

from numpy.typing import NDArray

from autotune.config import PRECISIONS
from autotune.dtypes import DTYPES
from autotune.network.check.differences import Difference, difference
from autotune.network.check.experience import Spread

Array = NDArray[Any]

ROUNDING_FACTOR = 8.0
"""Tolerance of an ill-conditioned output, as a multiple of the oracle's own rounding spread.

A sum of K terms rounds K times where the experiment rounds once; eight is above all findings."""
_NARROW_FACTOR = 3.0
"""The same for products in half precision, of which a network has fewer than it has operators."""
INEXACT = 2.0**8
"""The largest difference by rounding: 3·10⁻⁵, where programs of the tuner may have 5·10⁻⁵."""
TELLING = 0.25
"""Largest tolerance: above it, unrelated numbers would pass."""
_EPS = DTYPES["float32"].eps
_FEW_ROUNDINGS = 4.0


def unit_of(precision: str) -> float:
    """A rounding of products in a precision, in roundings of float32."""
    return DTYPES[PRECISIONS[precision]].eps / _EPS


def least_error(unit: float) -> float:
    """The error that products of this rounding may always have; 0 in float32."""
    return _FEW_ROUNDINGS * _EPS * (unit - 1.0)


def factor_of(unit: float) -> float:
    """Tolerance as a multiple of a spread that was found with this rounding."""
    return ROUNDING_FACTOR if unit == 1.0 else _NARROW_FACTOR


def other_precisions(precision: str) -> str:
    """Hint with other settings, for a precision that is too low."""
    wide = {
        "f16": "`precision='bf16'`, which has the range of float32, or f32",
        "bf16": "`precision='f16'`, which has more digits, but ends at 65504, or f32",
    }
    return f"compile it with {wide[precision]}"


def found_difference(found: Mapping[str, Array], name: str, expected: Array) -> Difference:
    """Of one output: lists may be shorter, so that a part of one is missing."""
    if name not in found:
        return Difference(math.inf, 0, "it is not there")
    return difference(found[name], expected)


def spreads(
    expected: Mapping[str, Array], others: Iterable[Mapping[str, Array]]
) -> dict[str, Spread]:
    """How far outputs lie from the expected ones at most, by name."""
    known = dict.fromkeys(expected, Spread())
    for other in others:
        for name, array in expected.items():
            found = found_difference(other, name, array)
            if math.isfinite(found.error):
                known[name] = known[name].joined(Spread(found.error, found.n_moved, found.rms))
            else:
                known[name] = replace(known[name], is_reshaped=True)
    return known
