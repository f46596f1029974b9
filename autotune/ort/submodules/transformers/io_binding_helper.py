"""⑪ `onnxruntime.transformers.io_binding_helper`: types of arrays and tensors."""

from __future__ import annotations

from typing import Any

import numpy as np

from autotune.dtypes import PORT_TYPES, is_of_ml_dtypes, word_in

_TORCH = {
    **{d.word: d.name for d in PORT_TYPES.values() if d.bits >= 8},
    **{name: name for name in ("complex64", "complex128")},
}
_NUMPY = {word: name for word, name in _TORCH.items() if not is_of_ml_dtypes(name)}


class TypeHelper:
    """Types of a session's inputs and outputs; those of PyTorch import it."""

    @staticmethod
    def get_input_type(ort_session: Any, name: str) -> str:
        """`tensor(float)`. Raises ValueError for a name that is no input's."""
        return _type_of(ort_session.get_inputs(), "input", name)

    @staticmethod
    def get_output_type(ort_session: Any, name: str) -> str:
        """The same of an output."""
        return _type_of(ort_session.get_outputs(), "output", name)

    @staticmethod
    def ort_type_to_numpy_type(ort_type: str) -> Any:
        """`numpy.float32` for `tensor(float)`. Raises ValueError for types that NumPy lacks."""
        name = _element(ort_type, _NUMPY)
        return bool if name == "bool" else getattr(np, name)

    @staticmethod
    def ort_type_to_torch_type(ort_type: str) -> Any:
        """`torch.float32` for `tensor(float)`. Raises ValueError for types that PyTorch lacks."""
        import torch  # type: ignore[import-not-found,unused-ignore]

        return getattr(torch, _element(ort_type, _TORCH))

    @staticmethod
    def numpy_type_to_torch_type(numpy_type: Any) -> Any:
        """PyTorch's type of the elements of an array."""
        import torch

        return getattr(torch, np.dtype(numpy_type).name)

    @staticmethod
    def torch_type_to_numpy_type(torch_type: Any) -> Any:
        """NumPy's type of the elements of a tensor."""
        name = str(torch_type).removeprefix("torch.")
        return bool if name == "bool" else getattr(np, name)

    @staticmethod
    def get_io_numpy_type_map(ort_session: Any) -> dict[str, Any]:
        """NumPy's types of all inputs and outputs by name."""
        ends = (*ort_session.get_inputs(), *ort_session.get_outputs())
        return {end.name: TypeHelper.ort_type_to_numpy_type(end.type) for end in ends}


def _type_of(ends: Any, what: str, name: str) -> str:
    for end in ends:
        if end.name == name:
            return str(end.type)
    raise ValueError(f"{what} name {name} not found")


def _element(ort_type: str, names: dict[str, str]) -> str:
    kind = word_in(ort_type)
    if kind not in names:
        raise ValueError(f"{ort_type} not found in map")
    return names[kind]
