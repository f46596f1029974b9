"""⑩ Values of ONNX as JSON and plain bytes, for a process that is not trusted with a pickle.

    told, blob = packed([array, ["a", "b"], {1: 0.5}])
    unpacked(told, blob)                    # equal values; arrays are views of the blob

Arrays of numbers lie in the blob; everything else, strings too, is in the JSON.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import ml_dtypes  # noqa: F401 (gives NumPy the names of its types)
import numpy as np

_ALIGNMENT = 64
_REGISTERED = 2
"""`isbuiltin` of types that a package has added to NumPy."""


def packed(values: Iterable[Any]) -> tuple[list[Any], bytearray]:
    """Values as JSON, and the bytes of their arrays. Raises TypeError for other than ONNX has."""
    blob = bytearray()
    return [_told(value, blob) for value in values], blob


def unpacked(told: Iterable[Any], blob: bytearray) -> list[Any]:
    """Inverse of `packed`. Raises ValueError, TypeError, KeyError or IndexError for other things"""
    return [_value(one, blob) for one in told]


def _told(value: Any, blob: bytearray) -> Any:
    match value:
        case None | bool() | int() | str():
            return value
        case float():
            return {"float": repr(value)}
        case list() | tuple():
            return [_told(item, blob) for item in value]
        case dict():
            pairs = [[_told(k, blob), _told(v, blob)] for k, v in value.items()]
            return {"map": pairs}
        case np.ndarray() | np.generic():
            return _told_array(np.asarray(value), blob)
    raise TypeError(f"'{type(value).__name__}' is no value that can be handed over")


def _told_array(array: Any, blob: bytearray) -> Any:
    shape = list(array.shape)
    if array.dtype.kind in "OU":
        return {"texts": [str(text) for text in array.ravel()], "shape": shape}
    blob.extend(bytes(-len(blob) % _ALIGNMENT))
    begin, dtype = len(blob), array.dtype
    blob.extend(np.ascontiguousarray(array).reshape(-1).view(np.uint8).data)
    return {
        "dtype": dtype.name if dtype.isbuiltin == _REGISTERED else dtype.str,
        "at": begin,
        "shape": shape,
    }


def _value(told: Any, blob: bytearray) -> Any:
    match told:
        case list():
            return [_value(item, blob) for item in told]
        case {"float": text}:
            return float(text)
        case {"map": pairs}:
            return {_value(k, blob): _value(v, blob) for k, v in pairs}
        case {"texts": texts, "shape": shape}:
            return np.array(texts, object).reshape(shape)
        case {"dtype": name, "at": begin, "shape": shape}:
            dtype, count = np.dtype(name), int(np.prod(shape, dtype=np.int64))
            if not count:
                return np.zeros(shape, dtype)
            return np.frombuffer(blob, dtype, count, begin).reshape(shape)
    return told
