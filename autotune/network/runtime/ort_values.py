"""⑩ Values of ONNX Runtime from NumPy arrays and back, whatever their elements are.

Its own conversions know the types of NumPy alone: not bfloat16, float8 and float4, nor integers of
4 and 2 bits, of which several lie in a byte.
"""

from __future__ import annotations

import ctypes
from typing import Any

import numpy as np
from numpy.typing import NDArray
from onnx import TensorProto, helper, numpy_helper

from autotune.dtypes import word_in

_KINDS = {name.lower(): number for name, number in TensorProto.DataType.items()}
"""Types of elements by ONNX Runtime's words, as in `tensor(float8e5m2)`."""


def kind_of(element: str) -> int | None:
    """The number of a type in a `TensorProto`, by ONNX Runtime's name of it; None for no type."""
    return _KINDS.get(element)


def is_plain(dtype: np.dtype[Any]) -> bool:
    """Whether a dtype is one of NumPy's own."""
    return dtype.isbuiltin == 1


def ort_value(package: Any, array: NDArray[Any]) -> Any:
    """An `OrtValue` of `package` with the elements of an array that holds numbers."""
    dense = np.asarray(array, order="C")
    if is_plain(dense.dtype):
        return package.OrtValue.ortvalue_from_numpy(dense)
    kind = helper.np_dtype_to_tensor_dtype(dense.dtype)
    value = package.OrtValue.ortvalue_from_shape_and_type(list(dense.shape), kind)
    data = numpy_helper.from_array(dense).raw_data
    ctypes.memmove(value.data_ptr(), data, len(data))
    return value


def array_of(value: Any) -> NDArray[Any]:
    """The elements of an `OrtValue` that is a tensor of numbers."""
    kind = _KINDS.get(word_in(value.data_type()), 0)
    if not kind or is_plain(helper.tensor_dtype_to_np_dtype(kind)):
        array: NDArray[Any] = value.numpy()
        return array
    tensor = TensorProto(data_type=kind, dims=value.shape())
    tensor.raw_data = ctypes.string_at(value.data_ptr(), value.tensor_size_in_bytes())
    return numpy_helper.to_array(tensor)
