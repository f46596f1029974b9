"""Floor 0: array programs: what a function does with arrays, recorded once, run without Python.

    trace = Trace(n)
    found = function({"i.tile": trace.input("i.tile", [4, 8, …]), …})     # arrays of shape [n]
    program = trace.program([found])
    program({"i.tile": [1, 2, …], …}, m)                                  # of shape [m]

An analysis walks loops, indices and axes, and nine tenths of its time are that walk, which is the
same for all candidates of a sketch. A trace keeps the array operations alone: in their order, each
of equal ones once, without those that no result needs. The functions are those of NumPy, called
with the same operands, so results are equal to the last bit.

The last dimension of every array counts the candidates. A constant has to be the same for all of
them, and nothing may branch on a traced value: else `Untraceable` is raised, not a wrong program.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial, wraps
from typing import Any, ParamSpec, TypeAlias, TypeVar, cast

import numpy as np

Columns: TypeAlias = Mapping[str, np.ndarray]
_Compiled: TypeAlias = tuple[Callable[..., Any], Callable[[list[Any]], Any], int]
P = ParamSpec("P")
R = TypeVar("R")
_COUNT = object()
"""An operand: the number of candidates."""


class Untraceable(Exception):
    """The function does something with a traced array that a program cannot repeat."""


@dataclass(frozen=True, slots=True)
class _Operation:
    """`values[to] = function(*(values[i] for i in operands))`."""

    function: Callable[..., Any]
    operands: tuple[int, ...]
    to: int

    def compiled(self) -> _Compiled:
        """With a function that picks the operands, as a sequence, from all values."""
        first, n = self.operands[0], len(self.operands)
        pick = operator.itemgetter(*self.operands if n > 1 else (slice(first, first + 1),))
        return self.function, pick, self.to


@dataclass(frozen=True, slots=True)
class ArrayProgram:
    """Operations on numbered values: 0 is the number of candidates, then inputs and constants."""

    inputs: tuple[tuple[str, int], ...]
    initial: tuple[Any, ...]
    operations: tuple[_Compiled, ...]
    results: tuple[int, ...]

    def __call__(self, inputs: Columns, n: int) -> list[np.ndarray]:
        """The results for `n` candidates."""
        values = list(self.initial)
        values[0] = n
        for name, at in self.inputs:
            values[at] = inputs[name]
        for function, operands, to in self.operations:
            values[to] = function(*operands(values))
        return [values[i] for i in self.results]


@dataclass(slots=True)
class Trace:
    """Operations as they are recorded; each has a value of its own."""

    n: int
    initial: list[Any] = field(default_factory=lambda: [None])
    operations: dict[int, _Operation] = field(default_factory=dict)
    inputs: dict[str, int] = field(default_factory=dict)
    _results: dict[tuple[Hashable, tuple[int, ...]], Traced] = field(default_factory=dict)
    _constants: dict[Hashable, int] = field(default_factory=dict)

    def input(self, name: str, value: np.ndarray) -> Traced:
        """A traced array in place of one that a program is given."""
        self.inputs[name] = len(self.initial)
        self.initial.append(None)
        return self._traced(value, self.inputs[name])

    def record(
        self, key: Hashable, function: Callable[..., Any], operands: Sequence[Any]
    ) -> Traced:
        """The result of an operation, which `key` and its operands identify."""
        numbers = tuple(map(self.number, operands))
        known = self._results.get((key, numbers))
        if known is not None:
            return known
        value = function(*[self.n if x is _COUNT else _plain(x) for x in operands])
        same = _unchanged(key, operands, value) if key in _NEUTRAL else None
        if same is not None:
            return same
        at = len(self.initial)
        self.initial.append(None)
        self.operations[at] = _Operation(function, numbers, at)
        found = self._results[key, numbers] = self._traced(value, at)
        return found

    def spread(self, array: np.ndarray, shape: tuple[int, ...]) -> Traced:
        """An array broadcast to `shape`, whose last extent is the number of candidates."""
        lead = shape[:-1]

        def spread(value: np.ndarray, n: int) -> np.ndarray:
            if value.shape == (*lead, 1):  # in a third of the time
                return value.repeat(n, axis=-1)
            return np.broadcast_to(value, (*lead, n))

        return self.record(("spread", lead), spread, (array, _COUNT))

    def number(self, operand: Any) -> int:
        """Number of the value of an operand; a constant becomes one."""
        if isinstance(operand, Traced):
            if operand.origin is not self:
                raise Untraceable("an array whose origin was not recorded")
            return operand.at
        if operand is _COUNT:
            return 0
        key: Hashable
        if isinstance(operand, np.ndarray):
            operand = self._alike(operand)
            key = operand.shape, operand.dtype.str, operand.tobytes()
        else:
            key = type(operand), repr(operand)
        if key not in self._constants:
            self._constants[key] = len(self.initial)
            self.initial.append(operand)
        return self._constants[key]

    def program(self, results: Sequence[np.ndarray]) -> ArrayProgram:
        """What the results need, each value in the place of one that nothing needs any more."""
        wanted = tuple(map(self.number, results))
        last: dict[int, int] = dict.fromkeys(wanted, len(self.initial))
        needed = []
        for at in sorted(self.operations, reverse=True):
            if at in last:
                needed.append(self.operations[at])
                for i in self.operations[at].operands:
                    last.setdefault(i, at)
        place = {0: 0}
        initial: list[Any] = [None]
        for i in sorted(last.keys() - self.operations.keys() - {0}):
            place[i] = len(initial)
            initial.append(self.initial[i])
        free: list[int] = []
        operations = []
        for one in reversed(needed):
            operands = tuple(place[i] for i in one.operands)
            free += {place[i] for i in one.operands if last[i] == one.to and i in self.operations}
            if not free:
                free.append(len(initial))
                initial.append(None)
            place[one.to] = free.pop()
            operations.append(_Operation(one.function, operands, place[one.to]).compiled())
        inputs = tuple((name, place[i]) for name, i in self.inputs.items() if i in place)
        return ArrayProgram(
            inputs, tuple(initial), tuple(operations), tuple(place[i] for i in wanted)
        )

    def _traced(self, value: Any, at: int) -> Traced:
        found: Traced = np.asarray(value).view(Traced)
        found.origin, found.at = self, at
        return found

    def _alike(self, constant: np.ndarray) -> np.ndarray:
        """A constant with one column where it has one for every candidate."""
        if not constant.ndim or constant.shape[-1] != self.n:
            return constant
        column = constant[..., :1]
        if not (constant == column).all():
            raise Untraceable("a constant that differs between candidates")
        return column


class Traced(np.ndarray):
    """An array whose uses are recorded. What no method here knows has no origin, see `number`."""

    origin: Trace | None
    at: int

    def __array_finalize__(self, other: Any) -> None:
        self.origin, self.at = None, 0

    def __array_ufunc__(self, ufunc: Any, method: str, *inputs: Any, **kwargs: Any) -> Any:
        if "out" in kwargs or method not in ("__call__", "reduce"):
            raise Untraceable(f"{ufunc.__name__} in place")
        function = getattr(ufunc, method)
        if method == "reduce" and len(inputs) > 1:
            inputs, kwargs = inputs[:1], {"axis": inputs[1], **kwargs}
        key = (ufunc, method, repr(kwargs)) if kwargs else ufunc
        function = partial(function, **kwargs) if kwargs else function
        return _trace_of(inputs).record(key, function, inputs)

    def __array_function__(self, func: Any, types: Any, args: Any, kwargs: Any) -> Any:
        if func in _SHAPES:  # the same for all candidates
            return func(*map(_plain, args), **kwargs)
        if func is np.broadcast_to:
            return _trace_of(args).spread(*args)
        if func in _JOINS:
            return _joined(func, *args, **kwargs)
        if func not in _ELEMENTWISE:
            raise Untraceable(f"{func.__name__} of a traced array")
        return _trace_of(args).record((func, repr(kwargs)), partial(func, **kwargs), args)

    def __getitem__(self, index: Any) -> Any:
        return _trace_of([self]).record(("item", repr(index)), operator.itemgetter(index), [self])

    def astype(self, dtype: Any, *args: Any, **kwargs: Any) -> Any:
        """As that of any array."""
        function = operator.methodcaller("astype", dtype, *args, **kwargs)
        return _trace_of([self]).record(("astype", repr((dtype, args, kwargs))), function, [self])

    def _refuse(self, *_: Any) -> Any:
        raise Untraceable("a branch on a traced value")

    __bool__ = __int__ = __float__ = __index__ = __setitem__ = __iter__ = _refuse


_SHAPES = (np.ndim, np.shape, np.full_like, np.zeros_like, np.ones_like)
_JOINS = (np.stack, np.concatenate)
_ELEMENTWISE = (np.where, np.clip, np.argmax)
_NEUTRAL: dict[Any, tuple[float, tuple[int, ...]]] = {
    np.add: (0, (0, 1)),
    np.subtract: (0, (1,)),
    np.multiply: (1, (0, 1)),
    np.divide: (1, (1,)),
}
"""Constants, by function, with which it changes nothing, and which of its operands they are."""


def _joined(func: Any, parts: Sequence[Any], axis: int = 0, **kwargs: Any) -> Any:
    trace = _trace_of(parts)
    whole = [p if isinstance(p, Traced) else trace.spread(p, p.shape) for p in parts]

    def join(*values: np.ndarray) -> Any:
        return func(values, axis=axis, **kwargs)

    return trace.record((func, axis, repr(kwargs)), join, whole)


def _trace_of(operands: Sequence[Any]) -> Trace:
    for x in operands:
        if isinstance(x, Traced):
            if x.origin is None:
                break
            return x.origin
    raise Untraceable("an array whose origin was not recorded")


def _unchanged(key: Hashable, operands: Sequence[Any], value: Any) -> Traced | None:
    """The operand that the operation leaves as it is, as a product with one does."""
    neutral, sides = _NEUTRAL[key]
    for side in sides:
        one, other = operands[side], operands[1 - side]
        is_neutral = not isinstance(one, Traced) and np.all(one == neutral)
        if is_neutral and (other.shape, other.dtype) == (value.shape, value.dtype):
            return cast("Traced", other)
    return None


def _plain(value: Any) -> Any:
    return value.view(np.ndarray) if isinstance(value, Traced) else value


def one_operation(function: Callable[P, R]) -> Callable[P, R]:
    """A function of arrays that is recorded as a whole."""

    @wraps(function)
    def call(*args: P.args, **kwargs: P.kwargs) -> R:
        if any(isinstance(x, Traced) for x in args):
            return _trace_of(args).record(function, function, args)  # type: ignore[return-value]
        return function(*args, **kwargs)

    return call
