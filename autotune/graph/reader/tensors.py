"""① The value of a tensor in an ONNX file, or an error that names it."""

from __future__ import annotations

from typing import Any

from numpy.typing import NDArray
from onnx import TensorProto, numpy_helper

from autotune.errors import ModelError
from autotune.units import format_shape

Array = NDArray[Any]


def array_of(tensor: TensorProto, what: str = "constant") -> Array:
    """The array of `tensor`. Raises ModelError where its data do not fit to its type and shape.

    `what`: its kind in the message, besides its name.
    """
    try:
        value: Array = numpy_helper.to_array(tensor)
    except Exception as error:  # whatever data a file may hold
        reason = " ".join(str(error).split())[:120]
        raise ModelError(
            f"{what} '{tensor.name}' of shape {format_shape(tensor.dims)} cannot be read: {reason}",
            "export the model again; external data must lie beside the file",
        ) from error
    return value
