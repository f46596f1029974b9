"""① Inputs that are always the same become constants: their readers take part in folding.

    input sr int64 []  with {"sr": 16000}  ->  initialiser sr

A single number fills whatever shape the input has.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from onnx import ModelProto, ValueInfoProto, helper, numpy_helper

from autotune.errors import UsageError
from autotune.graph.constant_values import Array, Constants, require_constant
from autotune.graph.reader.random_weights import replace_all
from autotune.names import require_known


def bind_constants(model: ModelProto, constants: Constants) -> None:
    """Make the inputs named in `constants` initialisers of their own types, in place.

    Raises UsageError for unknown inputs, and for values that do not fit the shape or type.
    """
    inputs = {value.name: value for value in model.graph.input}
    require_known("input", constants, inputs)
    for name, given in constants.items():
        tensor = numpy_helper.from_array(as_input(inputs[name], given), name)
        model.graph.initializer.append(tensor)
    left = [value for value in model.graph.input if value.name not in constants]
    replace_all(model.graph.input, left)


def initialise(model: ModelProto, values: Constants) -> None:
    """Make inputs initialisers of these values, of any size, which fit them, in place."""
    model.graph.initializer.extend(numpy_helper.from_array(v, name) for name, v in values.items())
    left = [value for value in model.graph.input if value.name not in values]
    replace_all(model.graph.input, left)


def fed(model: ModelProto, constants: Constants) -> dict[str, Array]:
    """`constants` as the inputs of `model` take them, by name."""
    inputs = {value.name: value for value in model.graph.input}
    return {n: as_input(inputs[n], given) for n, given in constants.items() if n in inputs}


def shapes_of(arrays: Constants) -> dict[str, tuple[int, ...]]:
    """Shapes by name."""
    return {name: array.shape for name, array in arrays.items()}


def as_input(value: ValueInfoProto, given: Array) -> Array:
    """`given` in the type and shape of an input. Raises UsageError where it does not fit."""
    require_constant(value.name, given)
    tensor = value.type.tensor_type
    try:
        dtype = helper.tensor_dtype_to_np_dtype(tensor.elem_type)
    except KeyError:
        raise UsageError(f"input '{value.name}' is no tensor of numbers", "leave it open") from None
    shape = [d.dim_value if d.WhichOneof("value") == "dim_value" else -1 for d in tensor.shape.dim]
    is_open = not tensor.HasField("shape")
    if given.ndim == 0 and not is_open:
        filled = np.broadcast_to(given, [max(n, 1) if n < 0 else n for n in shape])
    else:
        fits = is_open or (
            len(shape) == given.ndim
            and all(n in (-1, m) for n, m in zip(shape, given.shape, strict=True))
        )
        if not fits:
            raise UsageError(
                f"input '{value.name}' has shape {_text(shape)}, the constant for it has "
                f"{_text(given.shape)}",
                "give a single number, or an .npy file of that shape",
            )
        filled = given
    require_constant(value.name, filled)
    with np.errstate(all="ignore"):
        stored: Array = np.ascontiguousarray(filled.astype(dtype)).reshape(filled.shape)
        is_same = np.array_equal(
            stored.astype(filled.dtype), filled, equal_nan=filled.dtype.kind == "f"
        )
    if not is_same and dtype.kind in "biu":
        raise UsageError(
            f"input '{value.name}' is of {dtype}, which the constant for it does not fit",
            "give whole numbers in the range of the type",
        )
    return stored


def _text(shape: Any) -> str:
    return "x".join("?" if n < 0 else str(n) for n in shape) or "scalar"
