"""⑪ Arrays bound to inputs and outputs of a session: ONNX Runtime's IOBinding and OrtValue.

    binding = session.io_binding()
    binding.bind_cpu_input("x", x)
    binding.bind_output("y")            # or ("y", "cpu", 0, dtype, shape, address)
    session.run_with_iobinding(binding)
    y, = binding.copy_outputs_to_cpu()

All memory is this CPU's, so nothing is ever copied to or from a device.
"""

from __future__ import annotations

import ctypes
import math
from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from autotune.errors import UsageError

Array = NDArray[Any]

_TYPES = {"float32": "float", "float64": "double", "object": "string"}


class OrtValue:
    """A tensor in the memory of this CPU."""

    def __init__(self, array: Any) -> None:
        self._array = array

    @staticmethod
    def ortvalue_from_numpy(array: Any, device_type: str = "cpu", device_id: int = 0) -> OrtValue:
        """A value over the memory of `array`. Raises UsageError for another device than the CPU."""
        require_cpu(device_type)
        return OrtValue(np.asarray(array))

    @staticmethod
    def ortvalue_from_shape_and_type(
        shape: Sequence[int], element_type: Any, device_type: str = "cpu", device_id: int = 0
    ) -> OrtValue:
        """A value of undefined content."""
        require_cpu(device_type)
        return OrtValue(np.empty(tuple(shape), np.dtype(element_type)))

    def numpy(self) -> Any:
        """The tensor, in the same memory; a list or dictionary for sequences and maps."""
        return self._array

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> Array:
        return np.array(self._array, dtype=dtype, copy=copy)

    def shape(self) -> list[int]:
        """Extents."""
        return list(self._array.shape)

    def data_type(self) -> str:
        """`tensor(float)`."""
        name = str(self._array.dtype)
        return f"tensor({_TYPES.get(name, name)})"

    def element_type(self) -> Any:
        """NumPy's dtype."""
        return self._array.dtype

    def device_name(self) -> str:
        """`cpu`."""
        return "cpu"

    def data_ptr(self) -> int:
        """Address of the first element."""
        return int(self._array.__array_interface__["data"][0])

    def is_tensor(self) -> bool:
        """Whether it is an array."""
        return isinstance(self._array, np.ndarray)

    def has_value(self) -> bool:
        """Always: there are no empty optionals."""
        return self._array is not None

    def update_inplace(self, array: Any) -> None:
        """Copy `array` into the tensor."""
        self._array[...] = array


class IOBinding:
    """What `InferenceSession.run_with_iobinding` reads, writes and returns."""

    def __init__(self, names: Sequence[str]) -> None:
        self.names = tuple(names)
        """Of all outputs."""
        self.inputs: dict[str, Any] = {}
        self.outputs: dict[str, Array | None] = {}
        self.results: list[OrtValue] = []

    def bind_cpu_input(self, name: str, array: Any) -> None:
        """Read an input from `array`."""
        self.inputs[name] = array

    def bind_ortvalue_input(self, name: str, value: OrtValue) -> None:
        """Read an input from a value."""
        self.inputs[name] = value.numpy()

    def bind_input(
        self,
        name: str,
        device_type: str,
        device_id: int,
        element_type: Any,
        shape: Sequence[int],
        buffer_ptr: int,
    ) -> None:
        """Read an input of that dtype and shape from an address, which the caller keeps valid."""
        require_cpu(device_type)
        self.inputs[name] = _array_at(buffer_ptr, element_type, shape)

    def bind_output(
        self,
        name: str,
        device_type: str = "cpu",
        device_id: int = 0,
        element_type: Any = None,
        shape: Sequence[int] | None = None,
        buffer_ptr: int | None = None,
    ) -> None:
        """Write an output to an address of the caller's, or to an array that is made for it."""
        require_cpu(device_type)
        is_here = buffer_ptr is not None and shape is not None
        self.outputs[name] = _array_at(buffer_ptr, element_type, shape) if is_here else None

    def bind_ortvalue_output(self, name: str, value: OrtValue) -> None:
        """Write an output to a value."""
        self.outputs[name] = value.numpy()

    def clear_binding_inputs(self) -> None:
        """Forget all inputs."""
        self.inputs.clear()

    def clear_binding_outputs(self) -> None:
        """Forget all outputs."""
        self.outputs.clear()

    def synchronize_inputs(self) -> None:
        """Nothing to wait for."""

    def synchronize_outputs(self) -> None:
        """Nothing to wait for."""

    def get_outputs(self) -> list[OrtValue]:
        """What the last run has made, in the order in which outputs were bound."""
        return self.results

    def copy_outputs_to_cpu(self) -> list[Any]:
        """The same as arrays."""
        return [value.numpy() for value in self.results]


def require_cpu(device_type: str) -> None:
    """Raise UsageError for the memory of another device."""
    if device_type.lower() != "cpu":
        raise UsageError(f"there is no device '{device_type}' here", "use 'cpu'")


def _array_at(address: Any, element_type: Any, shape: Any) -> Array:
    """The memory at an address as an array. Raises UsageError for what is no dtype or shape."""
    try:
        dtype, extents = np.dtype(element_type), tuple(map(int, shape))
    except (TypeError, ValueError) as error:
        raise UsageError(
            f"a buffer of {element_type!r} {shape!r}", "give a NumPy dtype and a shape"
        ) from error
    n_bytes = dtype.itemsize * math.prod(extents)
    memory = (ctypes.c_char * n_bytes).from_address(int(address))
    return np.frombuffer(memory, dtype).reshape(extents)
