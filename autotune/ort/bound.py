"""⑪ ONNX Runtime's bindings with a list of bound arrays: compiled networks use them in place.

bound(onnxruntime) ─► the class IOBinding, a subclass of onnxruntime's own
array_of(value) ─► the memory of an OrtValue as an array; None where it is none of this CPU's
value_of(onnxruntime, array) ─► an OrtValue that keeps the memory of an array, or has its own

Of an OrtValue, `numpy()` gives an array that keeps the value of C++ and nothing of Python's: memory
that only Python knows of would be gone with the last Python object (docs/ownership.md).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from autotune.dtypes import DTYPES, is_of_ml_dtypes, word_in
from autotune.ort.binding import array_at
from autotune.ort.names import OverAny, class_over

_DTYPES = {d.word: d.name for d in DTYPES.values() if not is_of_ml_dtypes(d.name)}
"""NumPy's names of ONNX Runtime's types; others are left to it."""


def bound(package: Any) -> type:
    """The binding class over a package `onnxruntime`."""
    return class_over(BoundArrays, package, "IOBinding")


class BoundArrays(OverAny):  # type: ignore[misc]
    """ONNX Runtime's IOBinding. `inputs`, `outputs`: arrays over the bound memory, by name.

    None stands for an output whose memory the first run makes, and for what is no such array
    (`is_plain` is then False). `results`: outputs of a compiled network by name, in the order
    in which they were bound; None where ONNX Runtime has them.
    """

    def __init__(self, session: Any) -> None:
        super().__init__(session)
        self.inputs: dict[str, NDArray[Any] | None] = {}
        self.outputs: dict[str, NDArray[Any] | None] = {}
        self.results: dict[str, NDArray[Any]] | None = None
        self._values: dict[str, Any] = {}
        self._is_odd = False

    @property
    def is_plain(self) -> bool:
        """Whether a compiled network can read and write the bound arrays."""
        return not self._is_odd and bool(self.outputs)

    def memory(self) -> dict[str, Any]:
        """Arrays that outputs are written to, as far as there are: bound, or of the first run.

        What a run has made stays bound, as with ONNX Runtime: a caller may hold its value and
        read it after every run.
        """
        if any(array is None for array in self.outputs.values()):
            for name, value in zip(self.outputs, super().get_outputs(), strict=True):
                if self.outputs[name] is None and value.has_value():
                    self._values[name], self.outputs[name] = value, array_of(value)
        return {name: a for name, a in self.outputs.items() if a is not None}

    def take(self, found: Mapping[str, NDArray[Any]]) -> None:
        """Outputs of a compiled network, which keep their memory."""
        for name in [name for name, array in self.outputs.items() if array is None]:
            value = value_of(self.package, found[name])
            array = array_of(value)
            if array is not None:
                super().bind_ortvalue_output(name, value)
                self._values[name], self.outputs[name] = value, array
        known = self.outputs.items()
        self.results = {n: found[n] if array is None else array for n, array in known}

    def bind_cpu_input(self, name: str, arr_on_cpu: Any) -> None:
        """See ONNX Runtime's, which copies what is not in the order of C."""
        super().bind_cpu_input(name, arr_on_cpu)
        is_array = isinstance(arr_on_cpu, np.ndarray)
        self._keep(self.inputs, name, _in_order(arr_on_cpu) if is_array else arr_on_cpu)

    def bind_input(
        self,
        name: str,
        device_type: str,
        device_id: int,
        element_type: Any,
        shape: Sequence[int],
        buffer_ptr: int,
    ) -> None:
        """See ONNX Runtime's."""
        super().bind_input(name, device_type, device_id, element_type, shape, buffer_ptr)
        self._keep(self.inputs, name, _at(buffer_ptr, element_type, shape, device_type))

    def bind_ortvalue_input(self, name: str, ortvalue: Any) -> None:
        """See ONNX Runtime's."""
        super().bind_ortvalue_input(name, ortvalue)
        self._keep(self.inputs, name, array_of(ortvalue))

    def bind_output(
        self,
        name: str,
        device_type: str = "cpu",
        device_id: int = 0,
        element_type: Any = None,
        shape: Sequence[int] | None = None,
        buffer_ptr: int | None = None,
    ) -> None:
        """See ONNX Runtime's."""
        super().bind_output(name, device_type, device_id, element_type, shape, buffer_ptr)
        self._values.pop(name, None)
        if buffer_ptr is None:
            self.outputs[name] = None
            self._is_odd |= device_type != "cpu"
        else:
            self._keep(self.outputs, name, _at(buffer_ptr, element_type, shape, device_type))

    def bind_ortvalue_output(self, name: str, ortvalue: Any) -> None:
        """See ONNX Runtime's."""
        super().bind_ortvalue_output(name, ortvalue)
        self._values[name] = ortvalue
        self._keep(self.outputs, name, array_of(ortvalue))

    def clear_binding_inputs(self) -> None:
        """See ONNX Runtime's."""
        super().clear_binding_inputs()
        self.inputs.clear()

    def clear_binding_outputs(self) -> None:
        """See ONNX Runtime's."""
        super().clear_binding_outputs()
        self.outputs.clear()
        self._values.clear()
        self.results = None

    def get_outputs(self) -> Any:
        """See ONNX Runtime's."""
        if self.results is None:
            return super().get_outputs()
        return [
            self._values[name] if name in self._values else value_of(self.package, array)
            for name, array in self.results.items()
        ]

    def copy_outputs_to_cpu(self) -> Any:
        """See ONNX Runtime's."""
        if self.results is None:
            return super().copy_outputs_to_cpu()
        return [array.copy() for array in self.results.values()]

    def get_outputs_as_ortvaluevector(self) -> Any:
        """See ONNX Runtime's: of a compiled network's outputs there is none, so it runs."""
        if self.results is not None:
            self._session.run_with_iobinding(self._iobinding, None)
            self.results = None
        return super().get_outputs_as_ortvaluevector()

    def _keep(self, known: dict[str, Any], name: str, array: Any) -> None:
        known[name] = array
        self._is_odd |= not isinstance(array, np.ndarray)


def array_of(value: Any) -> NDArray[Any] | None:
    """The memory of an OrtValue as an array; None where it is no tensor of numbers in this CPU's.

    The array keeps the value.
    """
    if not value.is_tensor() or value.device_name().lower() != "cpu":
        return None
    kind = dtype_of(value.data_type())
    return None if kind is None else _at(value.data_ptr(), kind, value.shape(), "cpu", value)


def value_of(package: Any, array: NDArray[Any]) -> Any:
    """An OrtValue of an array, of which `numpy()` and views may outlive value and array.

    It is of the same memory where onnxruntime takes that over (`from_dlpack`), else a copy.
    """
    make = package.OrtValue
    if array.dtype.name not in _DTYPES.values():
        from autotune.network.runtime.ort_values import ort_value  # which imports `onnx`

        return ort_value(package, array)
    flags = array.flags
    if hasattr(make, "from_dlpack") and flags.c_contiguous and flags.writeable:
        return make.from_dlpack(array)
    value = make.ortvalue_from_shape_and_type(list(array.shape), array.dtype.type)
    known = array_of(value)
    assert known is not None
    known[...] = array
    return value


def _in_order(array: NDArray[Any]) -> NDArray[Any]:
    return array if array.flags.c_contiguous else np.ascontiguousarray(array)


def dtype_of(kind: str) -> str | None:
    """NumPy's name of the elements of `tensor(float)`; None where it has none."""
    return _DTYPES.get(word_in(kind))


def _at(
    address: int, element_type: Any, shape: Any, device_type: str, owner: object = None
) -> NDArray[Any] | None:
    if device_type != "cpu" or isinstance(element_type, int):
        return None
    return array_at(address, np.dtype(element_type), tuple(map(int, shape)), owner)
