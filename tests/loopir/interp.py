"""The reference interpreter of loop IR: its semantics, and the oracle of code generation.

It executes the text of `autotune.loopir.python_text` over checked memory. A statement is evaluated
in float64 and rounded once, where it stores; loads that a Select does not choose are not made.
Raised as `InvalidAccess`, since machine code would go on silently:

- an index outside the tensor, or an element read before it was written;
- an iteration of the parallel range that reads what another one wrote in the same kernel, or
  writes another value over it.

Threads of a GPU's block run from barrier to barrier; what another one wrote since is foreign too.
The parallel range runs backwards, so a program that depends on the order of its iterations fails.
"""

from __future__ import annotations

import math
from array import array
from collections.abc import Callable, Iterable, Iterator, Mapping
from functools import partial
from typing import Any

import numpy as np
from numpy.typing import NDArray

from autotune.dtypes import DTYPES, DType
from autotune.loopir.launch import launch_of
from autotune.loopir.nodes import Buffer, Kernel, Packing, Program
from autotune.loopir.python_text import PythonNames, kernel_text, packing_text
from autotune.te.evaluate import derive
from autotune.te.integers import INTEGER_OPS, WITHIN
from autotune.te.intrinsics import BITS_AS, INTRINSICS

Array = NDArray[Any]
Scalar = float | int | bool
_DISPUTED, _NOBODY, _OUTSIDE = -3, -2, -1


class InvalidAccess(Exception):
    """A program accesses memory out of bounds, not yet written, or of another iteration."""


def interpret(
    program: Program,
    inputs: Mapping[str, Array],
    rounding: float = 0.0,
    garbage: bool = False,
) -> dict[str, Array]:
    """Outputs of `program` for its inputs and unpacked constants, by name.

    `rounding`: how far two values that overlapping tiles give one element may lie apart, relative
    to the larger; 0: they are equal. Where minimal filtering gives way to plain sums in one tile
    and not in its neighbour (`guarding`), they differ in rounding.

    `garbage`: elements that were never written are read, as anything: those behind limits are. What
    two iterations make of such is two values: the element is as if it was never written.

    Raises InvalidAccess (see above), and KeyError for a missing input.
    """
    names = PythonNames()
    clock = _Clock(rounding, garbage)
    memory = {
        b.name: _Memory(b.name, b.tensor.shape, b.tensor.dtype, clock) for b in program.buffers
    }
    values = derive(program.derived, inputs)
    for buffer in program.buffers:
        if buffer.name in values:
            memory[buffer.name].fill(values[buffer.name])
    for packing in program.packs:
        memory[packing.packed.name] = _pack(packing, values[packing.source.name], names)
    for kernel in program.kernels:
        _run(kernel, memory, names, clock)
    return {b.name: _result(b, memory, garbage) for b in program.buffers if b.role == "output"}


class _Clock:
    """The running iteration, with its parallel range."""

    def __init__(self, rounding: float = 0.0, garbage: bool = False) -> None:
        self.now = _OUTSIDE
        self.rounding = rounding
        self.garbage = garbage


class _Memory:
    """A checked tensor; remembers by which iteration of the running kernel each element was set."""

    def __init__(self, name: str, shape: tuple[int, ...], dtype: str, clock: _Clock) -> None:
        self.name, self.shape, self.dtype, self.clock = name, shape, dtype, clock
        size = math.prod(shape)
        self.code = _code(dtype)
        self.convert = _CONVERSIONS[dtype]
        self.values: array[Any] = array(self.code, bytes(size * array(self.code).itemsize))
        self.writers = [_NOBODY] * size

    def __getitem__(self, at: int | tuple[int, ...]) -> Scalar:
        n = self._offset(at)
        writer = self.writers[n]
        if writer in (_DISPUTED, _NOBODY) and self.clock.garbage:
            return _garbage(self.dtype)
        if writer == _NOBODY:
            raise InvalidAccess(f"{self.name}[{at}] is read before it is written")
        if writer not in (_OUTSIDE, self.clock.now):
            raise InvalidAccess(f"{self.name}[{at}] is read, and written by another iteration")
        value: Scalar = self.values[n]
        return bool(value) if self.dtype == "bool" else value

    def __setitem__(self, at: int | tuple[int, ...], value: Scalar) -> None:
        n = self._offset(at)
        before, writer = self.values[n], self.writers[n]
        if writer == _DISPUTED:
            return
        self.values[n], self.writers[n] = self.convert(value), self.clock.now
        foreign = writer not in (_NOBODY, _OUTSIDE, self.clock.now)
        if foreign and not math.isnan(before) and not self._agrees(self.values[n], before):
            if not self.clock.garbage:
                raise InvalidAccess(f"{self.name}[{at}] gets two values from two iterations")
            self.writers[n] = _DISPUTED

    def _agrees(self, value: Scalar, before: Scalar) -> bool:
        return value == before or math.isclose(value, before, rel_tol=self.clock.rounding)

    def _offset(self, at: int | tuple[int, ...]) -> int:
        where = at if isinstance(at, tuple) else (at,)
        if len(where) != len(self.shape):
            raise InvalidAccess(f"{self.name}[{at}] has {len(self.shape)} dimensions")
        offset = 0
        for i, n in zip(where, self.shape, strict=True):
            if not 0 <= i < n:
                raise InvalidAccess(f"{self.name}[{at}] is outside {self.shape}")
            offset = offset * n + i
        return offset

    def fill(self, values: Array) -> None:
        """Set every element from outside."""
        record = DTYPES[self.dtype]
        held = np.asarray(values, record.numpy).astype(DTYPES[record.compute].numpy)
        flat = np.ascontiguousarray(held).reshape(-1)
        if flat.size != len(self.values):
            raise InvalidAccess(f"{self.name} has {len(self.values)} elements, got {flat.size}")
        self.values = array(self.code, flat.tobytes())
        self.settle(written=True)

    def settle(self, written: bool = False) -> None:
        """Pass the barrier after a kernel: any iteration may now read its stores."""
        gone = () if written else (_DISPUTED, _NOBODY)
        self.writers = [_NOBODY if w in gone else _OUTSIDE for w in self.writers]


def _run(kernel: Kernel, memory: dict[str, _Memory], names: PythonNames, clock: _Clock) -> None:
    def empty(shape: tuple[int, ...], dtype: str) -> _Memory:
        return _Memory(f"local of {kernel.name}", shape, dtype, clock)

    function = _compiled(kernel.name, kernel_text(kernel, names), {"empty": empty})
    arguments = [memory[b] for b in kernel.buffers]
    if launch := launch_of(kernel):
        for number, at in enumerate(np.ndindex(launch.grid)):
            thread = partial(function, *arguments, *at)
            _run_block(thread, launch.block, number * math.prod(launch.block), clock)
    for t in reversed(range(0 if launch else kernel.extent)):
        clock.now = t
        function(*arguments, t, t + 1)
    clock.now = _OUTSIDE
    for buffer in arguments:
        buffer.settle()


def _run_block(
    thread: Callable[..., Iterator[str]], block: tuple[int, ...], first: int, clock: _Clock
) -> None:
    """The threads of a block, last first, from one barrier to the next; `first`: number of one."""
    held: dict[tuple[str, tuple[int, ...]], _Memory] = {}

    def shared(name: str, shape: tuple[int, ...], dtype: str) -> _Memory:
        return held.setdefault((name, shape), _Memory(name, shape, dtype, clock))

    threads = [thread(shared, *t) for t in np.ndindex(block)]
    came = {"barrier"}
    while came == {"barrier"}:
        came = set()
        for n in reversed(range(len(threads))):
            clock.now = first + n
            came.add(next(threads[n]))
        for buffer in held.values():
            buffer.settle()
    if came != {"done"}:
        raise InvalidAccess("some threads of a block do not come to a barrier")


def _pack(packing: Packing, source: Array, names: PythonNames) -> _Memory:
    def zeros(shape: tuple[int, ...], dtype: str) -> _Memory:
        out = _Memory(packing.packed.name, shape, dtype, _Clock())
        out.settle(written=True)
        return out

    given = _Memory(packing.source.name, packing.source.shape, packing.source.dtype, _Clock())
    given.fill(source)
    symbol = f"pack_{names.tensor(packing.packed.name)}"
    packed: _Memory = _compiled(symbol, packing_text(packing, names), {"zeros": zeros})(given)
    return packed


def _compiled(symbol: str, text: str, extra: Mapping[str, object]) -> Callable[..., Any]:
    scope: dict[str, Any] = dict(_FUNCTIONS) | dict(extra)
    exec(compile(text, f"<{symbol}>", "exec"), scope)
    function: Callable[..., Any] = scope[symbol]
    return function


def _garbage(dtype: str) -> Scalar:
    return math.nan if DTYPES[dtype].is_float else DTYPES[dtype].wrapped(7777)


def _result(buffer: Buffer, memory: dict[str, _Memory], garbage: bool) -> Array:
    held = memory[buffer.name]
    if _NOBODY in held.writers and not garbage:
        raise InvalidAccess(f"{buffer.name} is not written in full")
    for n in (n for n, writer in enumerate(held.writers) if writer == _NOBODY):
        held.values[n] = _garbage(held.dtype)
    return np.array(held.values, DTYPES[buffer.tensor.dtype].numpy).reshape(buffer.tensor.shape)


# --- the functions of the text, with the result of machine code where Python would raise ---------


def _total(function: Callable[..., Any]) -> Callable[..., float]:
    """A function of NumPy on floats: NaN and infinities instead of exceptions and warnings."""

    def value(*args: float) -> float:
        with np.errstate(all="ignore"):
            return float(function(*map(np.float64, args)))

    return value


def _code(dtype: str) -> str:
    """The type code of `array` that holds elements as they are computed with."""
    char = DTYPES[DTYPES[dtype].compute].numpy.char
    return "b" if char == "?" else char


def _conversion(dtype: DType) -> Callable[[Scalar], Scalar]:
    """Conversion of a stored value to an element of `dtype`."""
    if dtype.is_narrow:
        return dtype.rounded
    if dtype.is_float:
        return lambda x: array(dtype.numpy.char, [x])[0]
    return bool if dtype.kind == "bool" else lambda x: dtype.wrapped(int(x))


_CONVERSIONS = {d.name: _conversion(d) for d in DTYPES.values()}


def _defined(texts: Iterable[str]) -> dict[str, Any]:
    """The functions that pieces of printed Python define."""
    scope: dict[str, Any] = {}
    for text in texts:
        exec(text, scope)
    return {name: value for name, value in scope.items() if not name.startswith("_")}


_divide = _total(np.divide)
_FUNCTIONS: dict[str, Any] = {
    "inf": math.inf,
    "nan": math.nan,
    "max": lambda a, b: a if a > b or a != a else b,
    "min": lambda a, b: a if a < b or a != a else b,
    "divide": _divide,
    "power": _total(np.float_power),
    "fmod": _total(np.fmod),
    **{f.name: _total(f.oracle) for f in INTRINSICS.values() if f.numpy or f.python},
    **_CONVERSIONS,
    **_defined([WITHIN, BITS_AS, *(op.python for op in INTEGER_OPS.values())]),
    **_defined(f.python for f in INTRINSICS.values() if f.takes == "integers"),
}
