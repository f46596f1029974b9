"""① The values of inputs that are always the same, and their JSON in logs and artifacts."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Annotated, Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from autotune.codec import Coded
from autotune.errors import UsageError

Array = NDArray[Any]
Constants = Mapping[str, Array]

MOST_ELEMENTS = 1 << 16
"""More belongs into the model: logs hold the values as text."""


def require_constant(name: str, value: Array) -> None:
    """Raise UsageError for a value that cannot be bound to an input."""
    if value.dtype.kind not in "biuf" or value.dtype.itemsize > 8:
        raise UsageError(f"the constant '{name}' is of {value.dtype}", "give numbers")
    if value.size > MOST_ELEMENTS:
        raise UsageError(
            f"the constant '{name}' has {value.size} elements, at most {MOST_ELEMENTS} can be "
            "bound",
            "make it an initialiser of the model",
        )


def constants_to_json(constants: Constants) -> dict[str, Any]:
    """`constants` as JSON values."""
    return {
        name: {"dtype": str(a.dtype), "shape": list(a.shape), "values": a.reshape(-1).tolist()}
        for name, a in constants.items()
    }


def constants_from_json(data: Mapping[str, Any]) -> dict[str, Array]:
    """The arrays of `constants_to_json`. Raises ValueError, TypeError, LookupError for others."""
    found = {}
    for name, item in data.items():
        dtype, shape = np.dtype(item["dtype"]), tuple(item["shape"])
        if dtype.kind not in "biuf" or not all(type(n) is int and n >= 0 for n in shape):
            raise ValueError("no array of numbers")
        if math.prod(shape) != len(item["values"]) or len(item["values"]) > MOST_ELEMENTS:
            raise ValueError("another number of elements")
        found[name] = np.array(item["values"], dtype).reshape(shape)
    return found


ConstantsField: TypeAlias = Annotated[Constants, Coded(constants_to_json, constants_from_json)]
"""Constants as a field of a record that has a JSON form."""
