"""⑩ From arrays straight into machine code: calls whose arguments need no conversion.

    call = direct_call(inputs, outputs, …)
    call({"x": x}, {"y": y})        # {"y": y}, or None: `Model.run` has to look at it

Python only fetches NumPy's description of every array (`__array_struct__`, a capsule). Machine code
compares it with what the network expects, writes addresses into the network's table, and runs it
without the interpreter's lock. It uses five documented functions of CPython and the array interface
protocol. Whatever is not exactly as expected, it leaves alone: another dtype, shape or order,
read-only outputs, outputs that overlap another array. The code is in the artifact (`direct_ir`).
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Mapping, Sequence
from operator import attrgetter, itemgetter
from typing import Any, Protocol, TypeAlias, TypeVar

import numpy as np
from numpy.typing import NDArray

from autotune.codegen.memory import Recycled
from autotune.network.artifact.artifact import Endpoint
from autotune.network.artifact.table import API

Array = NDArray[Any]
W = TypeVar("W", bound="HasPlaces")
DirectCall: TypeAlias = "Callable[[Any, Any], dict[str, Array] | None]"
"""From inputs and `out` of `Model.run` to its result; None where they need a closer look."""

_C_CONTIGUOUS, _ALIGNED, _NOT_SWAPPED, _WRITEABLE = 0x1, 0x100, 0x200, 0x400
_READ = _C_CONTIGUOUS | _ALIGNED | _NOT_SWAPPED
_WRITTEN = _READ | _WRITEABLE
_KINDS = "fiub"
"""Of NumPy's dtypes, those that kind and size tell apart."""

_ARRAYS = {np.ndarray}
"""Types of arrays for outputs; subclasses take the usual way."""

_NATIVE = ctypes.PYFUNCTYPE(ctypes.c_int, ctypes.py_object, ctypes.c_void_p, ctypes.c_void_p)


class HasAddress(Protocol):
    """The table of an inference: see `working_memory.Place`."""

    address: ctypes.c_void_p


class HasPlaces(Protocol):
    """Working memory of a caller: see `working_memory.CallerMemory`."""

    @property
    def places(self) -> Mapping[object, HasAddress]:
        """The table of each network, as far as there are any."""
        ...


class Lends(Protocol[W]):
    """Working memory for one caller at a time: see `working_memory.Memory`."""

    def take(self) -> W:
        """Working memory that no other caller has."""
        ...

    def give_back(self, working: W, /) -> None:
        """For the next caller."""
        ...


def direct_call(
    inputs: Sequence[Endpoint],
    outputs: Sequence[Endpoint],
    memories: Sequence[Recycled],
    code: tuple[int, int],
    n_threads: int,
    memory: Lends[W],
    key: object,
) -> DirectCall | None:
    """A call of the network; None for one that copies or converts inputs or outputs.

    `memories`: give arrays for outputs. `code`: addresses of `DIRECT` and of the entry.
    `memory`: lends a call its working memory, where the network's place is under `key`.
    """
    api = _api()
    if not outputs or not all(map(_is_direct, (*inputs, *outputs))) or api is None:
        return None
    native = _NATIVE(code[0])
    plan = _Plan((code[1], n_threads), api, inputs, outputs)
    address = ctypes.c_void_p(plan.words.ctypes.data)
    take, give_back = memory.take, memory.give_back
    pick_inputs, pick_outputs = _picker(inputs), _picker(outputs)
    names, is_plain = [end.name for end in outputs], len(inputs) == len(outputs) == 1
    described = attrgetter("__array_struct__")

    known = set(names)

    def completed(out: dict[str, Any]) -> dict[str, Any]:
        """`out`, with new arrays where it has none for an output."""
        if not out.keys() <= known:
            raise KeyError
        pairs = zip(names, memories, strict=True)
        return {name: out[name] if name in out else memory.take() for name, memory in pairs}

    def call(given: Any, out: Any) -> dict[str, Array] | None:
        try:
            arrays = pick_inputs(given)
            if out is None:
                results: Any = [memory.take() for memory in memories]
            else:
                if type(out) is dict and len(out) < len(names):
                    out = completed(out)
                results = pick_outputs((out,) if type(out) is np.ndarray else out)
                if type(results[0]) is not np.ndarray:
                    return None
                if not is_plain and set(map(type, results)) != _ARRAYS:
                    return None
            if is_plain:  # the same as below in a third of the time
                capsules = arrays[0].__array_struct__, results[0].__array_struct__
            else:
                capsules = tuple(map(described, (*arrays, *results)))
            working = take()
            try:
                is_left = native(capsules, address, working.places[key].address)
            finally:
                give_back(working)
        except (KeyError, AttributeError, TypeError):  # the usual way names the fault
            return None
        if is_left:
            return None
        return {names[0]: results[0]} if is_plain else dict(zip(names, results, strict=True))

    call.plan = plan  # type: ignore[attr-defined]  # `address` is in its memory
    return call


def _picker(ends: Sequence[Endpoint]) -> Callable[[Any], Any]:
    """Arrays by name or in order, as they are given, in the order of `ends`.

    Raises KeyError or TypeError for others than these.
    """
    names = [end.name for end in ends]
    n_names, first = len(names), names[0] if names else ""
    by_name = itemgetter(*names) if n_names > 1 else lambda given: tuple(given[n] for n in names)

    def pick(given: Any) -> Any:
        if len(given) != n_names:
            raise KeyError
        kind = type(given)
        if kind is dict:
            return (given[first],) if n_names == 1 else by_name(given)
        if kind is list or kind is tuple:
            return given
        raise TypeError

    return pick


class _Plan:
    """Arguments of the machine code of `direct_ir`: the network, and its arrays' types."""

    def __init__(
        self,
        network: tuple[int, int],
        api: tuple[int, ...],
        inputs: Sequence[Endpoint],
        outputs: Sequence[Endpoint],
    ) -> None:
        ends = [(end, _READ) for end in inputs] + [(end, _WRITTEN) for end in outputs]
        self.shapes = [np.array(end.shape or (0,), np.int64) for end, _ in ends]
        words = [*network, len(ends), len(inputs), *api]
        for (end, flags), shape in zip(ends, self.shapes, strict=True):
            words += _record(end, flags, shape)
        self.words = np.array(words, np.int64)


def _is_direct(end: Endpoint) -> bool:
    """Whether kernels read or write just the elements of the user's array."""
    is_known = end.numpy_dtype.kind in _KINDS
    return end.window is None and end.stored == end.dtype and is_known


def _record(end: Endpoint, flags: int, shape: Array) -> list[int]:
    dtype = end.numpy_dtype
    n_bytes = int(np.prod(end.shape, dtype=np.int64)) * dtype.itemsize
    kind = ord(dtype.kind)
    return [end.base, flags, kind, dtype.itemsize, len(end.shape), shape.ctypes.data, n_bytes]


def _api() -> tuple[int, ...] | None:
    """Addresses of the functions of CPython that the code calls; None where it hides them."""
    try:
        functions = [getattr(ctypes.pythonapi, name) for name in API]
    except AttributeError:
        return None
    return tuple(ctypes.cast(function, ctypes.c_void_p).value or 0 for function in functions)
