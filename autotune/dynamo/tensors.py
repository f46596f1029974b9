"""⑪ Tensors of PyTorch's as NumPy arrays over the same memory, and back.

bfloat16, which PyTorch does not give to NumPy, goes as the integers that it is stored in.
"""

from __future__ import annotations

from collections.abc import Sequence
from operator import attrgetter
from typing import Any, TypeAlias

import ml_dtypes
import numpy as np
import torch
from numpy.typing import NDArray

Array = NDArray[Any]
Tensor: TypeAlias = Any

_BFLOAT16 = np.dtype(ml_dtypes.bfloat16)
_VERSION = attrgetter("_version")
_PLACE = torch.Tensor.data_ptr


def array_of(tensor: Tensor) -> Array:
    """The elements of a dense tensor in this CPU's memory, uncopied."""
    try:
        array: Array = tensor.numpy()
    except (RuntimeError, TypeError):
        plain = tensor.detach().resolve_conj().resolve_neg()
        if plain.dtype == torch.bfloat16:
            array = plain.view(torch.int16).numpy().view(_BFLOAT16)
        else:
            array = plain.numpy()
    return array


def tensor_of(array: Array) -> Tensor:
    """A tensor over the memory of an array."""
    if array.dtype == _BFLOAT16:
        return torch.from_numpy(array.view(np.int16)).view(torch.bfloat16)
    return torch.from_numpy(array)


def oddity(tensors: Sequence[Any]) -> str:
    """Reason why these cannot be read as arrays; empty where they can."""
    for tensor in tensors:
        if not isinstance(tensor, torch.Tensor):
            continue
        if tensor.device.type != "cpu":
            return f"a tensor is on {tensor.device}"
        if tensor.layout != torch.strided:
            return f"a tensor is {tensor.layout}"
        if torch.utils._python_dispatch.is_traceable_wrapper_subclass(tensor):
            return f"a tensor is a {type(tensor).__name__}"
    return ""


class Snapshot:
    """State of tensors at one time: their memory, and how often it was written in place.

    Writes through `Tensor.data`, and by others into its memory, are not counted.
    """

    def __init__(self, tensors: Sequence[Tensor]) -> None:
        self._held = [tensor.detach() for tensor in tensors]  # nothing else gets their memory
        self._places = list(map(_PLACE, tensors))
        self._versions = list(map(_VERSION, tensors))

    def is_of(self, tensors: Sequence[Tensor]) -> bool:
        """Whether these are the same, and unchanged."""
        places, versions = list(map(_PLACE, tensors)), list(map(_VERSION, tensors))
        return places == self._places and versions == self._versions
