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

from autotune.dtypes import PORT_TYPES, tensor_type
from autotune.errors import UsageError
from autotune.ort.memory import require_cpu

Array = NDArray[Any]

_NUMBERS = {d.name: d.onnx for d in PORT_TYPES.values()} | {"object": 8}
_DTYPES = {d.onnx: d.numpy for d in PORT_TYPES.values()} | {8: np.dtype(object)}


class OrtValue:
    """A tensor in the memory of this CPU. `is_bound`: the memory is that of a caller's binding."""

    def __init__(self, array: Any, is_bound: bool = False) -> None:
        self._array, self.is_bound = array, is_bound

    @staticmethod
    def ortvalue_from_numpy(array: Any, device_type: str = "cpu", device_id: int = 0) -> OrtValue:
        """A value over the memory of `array`. Raises UsageError for another device than the CPU."""
        require_cpu(device_type)
        given = np.asarray(array)
        return OrtValue(given.astype(object) if given.dtype.kind == "U" else given)

    @staticmethod
    def ortvalue_from_numpy_with_onnx_type(data: Any, onnx_element_type: int) -> OrtValue:
        """A value over the memory of `data` with elements of ONNX's type of that number.

        Raises UsageError where they are not as wide.
        """
        array, dtype = np.ascontiguousarray(data), dtype_of(onnx_element_type)
        if array.dtype.itemsize != dtype.itemsize:
            raise UsageError(
                f"elements of {array.dtype} are no {dtype}", "give an array of the same width"
            )
        return OrtValue(array.view(dtype))

    @staticmethod
    def ortvalue_from_shape_and_type(
        shape: Sequence[int],
        element_type: Any,
        device_type: str = "cpu",
        device_id: int = 0,
        vendor_id: int = -1,
    ) -> OrtValue:
        """A value of undefined content. `element_type`: NumPy's type, or the number of ONNX's."""
        require_cpu(device_type)
        return OrtValue(np.empty(tuple(shape), dtype_of(element_type)))

    def numpy(self) -> Any:
        """The tensor, in the same memory; a list or dictionary for sequences and maps."""
        return self._array

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> Array:
        return np.array(self._array, dtype=dtype, copy=copy)

    def __dlpack__(self, *, stream: object = None) -> Any:
        return self._array.__dlpack__()

    def __dlpack_device__(self) -> Any:
        return self._array.__dlpack_device__()

    @staticmethod
    def from_dlpack(data: Any) -> OrtValue:
        """A value over the memory of an object with `__dlpack__`."""
        return OrtValue(np.from_dlpack(data))

    def shape(self) -> list[int]:
        """Extents."""
        return list(self._array.shape)

    def data_type(self) -> str:
        """`tensor(float)`."""
        return tensor_type(str(self._array.dtype))

    def element_type(self) -> int:
        """The number of ONNX's type of the elements."""
        return _NUMBERS[self._array.dtype.name]

    def tensor_size_in_bytes(self) -> int:
        """Bytes of all elements."""
        return int(self._array.nbytes)

    def device_name(self) -> str:
        """`cpu`."""
        return "cpu"

    def data_ptr(self) -> int:
        """Address of the first element, which the others follow."""
        if not self._array.flags.c_contiguous:  # as the first places of a state are
            self._array = np.ascontiguousarray(self._array)
        return int(self._array.__array_interface__["data"][0])

    def is_tensor(self) -> bool:
        """Whether it is an array."""
        return isinstance(self._array, np.ndarray)

    def is_tensor_sequence(self) -> bool:
        """Whether it is a list of arrays."""
        return isinstance(self._array, list)

    def is_sparse_tensor(self) -> bool:
        """Never."""
        return False

    def has_value(self) -> bool:
        """Always: there are no empty optionals."""
        return self._array is not None

    def update_inplace(self, array: Any) -> None:
        """Copy `array` into the tensor."""
        self._array[...] = array


class IOBinding:
    """Inputs, outputs and results of `InferenceSession.run_with_iobinding`."""

    def __init__(self, session: Any = None) -> None:
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
        """Results of the last run, in the order in which outputs were bound."""
        return list(self.results)

    def copy_outputs_to_cpu(self) -> list[Any]:
        """The same as arrays; copies of those that were bound to memory of the caller's."""
        return [v.numpy().copy() if v.is_bound else v.numpy() for v in self.results]


SessionIOBinding = IOBinding


def copy_tensors(src: Sequence[OrtValue], dst: Sequence[OrtValue], stream: object = None) -> None:
    """Copy each value of `src` into that of `dst` at its place."""
    for value, into in zip(src, dst, strict=True):
        into.update_inplace(value.numpy())


def dtype_of(element_type: Any) -> np.dtype[Any]:
    """NumPy's dtype for a type of NumPy's, or for the number of one of ONNX's.

    Raises UsageError for others.
    """
    try:
        is_number = isinstance(element_type, int)
        found: np.dtype[Any] = _DTYPES[element_type] if is_number else np.dtype(element_type)
    except (KeyError, TypeError) as error:
        raise UsageError(
            f"there are no elements of {element_type!r}", "give a NumPy dtype"
        ) from error
    return found


def _array_at(address: Any, element_type: Any, shape: Any) -> Array:
    """The memory at an address as an array. Raises UsageError for a bad dtype or shape."""
    try:
        dtype, extents = dtype_of(element_type), tuple(map(int, shape))
    except (TypeError, ValueError) as error:
        raise UsageError(
            f"a buffer of {element_type!r} {shape!r}", "give a NumPy dtype and a shape"
        ) from error
    return array_at(address, dtype, extents)


def array_at(
    address: int, dtype: np.dtype[Any], shape: tuple[int, ...], owner: object = None
) -> Array:
    """The memory at an address as an array, which keeps `owner`; of None, the caller's to keep."""
    memory: Any = (ctypes.c_char * (dtype.itemsize * math.prod(shape))).from_address(int(address))
    memory.owner = owner
    array: Array = np.frombuffer(memory, dtype).reshape(shape)
    return array
