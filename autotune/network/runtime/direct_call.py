"""⑩ From arrays straight into machine code: calls whose arguments need no conversion.

    code = DirectCode.of(…)
    call = direct_call(code, memories)
    call({"x": x}, {"y": y})        # {"y": y}, or None: `Model.run` has to look at it

Python only fetches NumPy's description of every array (`__array_struct__`, a capsule). Machine code
(`codegen.ports_code`) compares it with what the network expects, finds the numbers of the lengths,
and runs the network without the interpreter's lock. It uses five documented functions of CPython
and the array interface protocol. Whatever is not exactly as expected, it leaves alone: another
dtype, shape or order, read-only outputs, outputs that overlap another array.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Mapping, Sequence
from operator import attrgetter, itemgetter
from typing import Any, Protocol, TypeAlias, TypeVar

import numpy as np
from numpy.typing import NDArray

from autotune.network.artifact.artifact import Endpoint
from autotune.network.artifact.plan import CallPlan

Array = NDArray[Any]
W = TypeVar("W", bound="HasPlaces")
DirectCall: TypeAlias = "Callable[[Any, Any], dict[str, Array] | None]"
"""From inputs and `out` of `Model.run` to its result; None where they need a closer look."""

_API = (
    "PyTuple_GetItem",
    "PyCapsule_GetPointer",
    "PyEval_SaveThread",
    "PyEval_RestoreThread",
    "PyErr_Clear",
)
"""Documented functions of CPython, in the order in which a head has them."""
_KINDS = "fiub"
"""Of NumPy's dtypes, those that kind and size tell apart."""
_ARRAYS = {np.ndarray}
"""Types of arrays for outputs; subclasses take the usual way."""
_NATIVE = ctypes.PYFUNCTYPE(
    ctypes.c_int64, ctypes.py_object, ctypes.c_void_p, ctypes.c_void_p, ctypes.c_void_p
)


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


class Gives(Protocol):
    """Gives arrays for an output: see `codegen.memory.Recycled`."""

    def take(self) -> Array:
        """An array of undefined content."""
        ...


class DirectCode:
    """The machine code of a network with its plan.

    `code`: addresses of `direct` and of the entry. `memory`: lends a call its working memory, where
    the network's place is under `key`.
    """

    def __init__(
        self,
        plan: CallPlan,
        api: Sequence[int],
        code: tuple[int, int],
        n_threads: int,
        memory: Lends[Any],
        key: object,
    ) -> None:
        self.plan, self.memory, self.key = plan, memory, key
        self.native = _NATIVE(code[0])
        self.words = np.array([code[1], n_threads, *api, *plan.words], np.int64)

    @staticmethod
    def of(
        plan: CallPlan,
        code: tuple[int, int] | None,
        n_threads: int,
        memory: Lends[Any],
        key: object,
    ) -> DirectCode | None:
        """None for a network that converts inputs or outputs, or without such code."""
        api = _api()
        ends = (*plan.inputs, *plan.outputs)
        if code is None or api is None or not plan.outputs or not all(map(_is_direct, ends)):
            return None
        return DirectCode(plan, api, code, n_threads, memory, key)


def direct_call(
    code: DirectCode, memories: Sequence[Gives], are_fronts: Sequence[bool] = ()
) -> DirectCall:
    """Calls of the network of one size. `memories`: give arrays for outputs; `are_fronts`: whether
    these have memory for the longest behind them.
    """
    native, key = code.native, code.key
    address = ctypes.c_void_p(code.words.ctypes.data)
    take, give_back = code.memory.take, code.memory.give_back
    inputs, outputs = code.plan.inputs, code.plan.outputs
    pick_inputs, pick_outputs = _picker(inputs), _picker(outputs)
    names, is_plain = [end.name for end in outputs], len(inputs) == len(outputs) == 1
    described = attrgetter("__array_struct__")
    known = set(names)
    is_front = np.array(are_fronts, np.int64)
    fronts = ctypes.c_void_p(is_front.ctypes.data) if is_front.any() else None

    def completed(out: dict[str, Any]) -> dict[str, Any]:
        """`out`, with new arrays where it has none for an output."""
        if not out.keys() <= known:
            raise KeyError
        pairs = zip(names, memories, strict=True)
        return {name: out[name] if name in out else memory.take() for name, memory in pairs}

    def call(given: Any, out: Any) -> dict[str, Array] | None:
        try:
            arrays, own = pick_inputs(given), None
            if out is None:
                own = fronts
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
                is_left = native(capsules, address, working.places[key].address, own)
            finally:
                give_back(working)
        except (KeyError, AttributeError, TypeError):  # the usual way names the fault
            return None
        if is_left:
            return None
        return {names[0]: results[0]} if is_plain else dict(zip(names, results, strict=True))

    call.kept = code, is_front  # type: ignore[attr-defined]  # their addresses are in use
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


def _is_direct(end: Endpoint) -> bool:
    """Whether kernels read or write just the elements of the user's array."""
    return end.stored == end.dtype and end.numpy_dtype.kind in _KINDS


def _api() -> tuple[int, ...] | None:
    """Addresses of the functions of CPython that the code calls; None where it hides them."""
    try:
        functions = [getattr(ctypes.pythonapi, name) for name in _API]
    except AttributeError:
        return None
    return tuple(ctypes.cast(function, ctypes.c_void_p).value or 0 for function in functions)
