"""⑩ From arrays straight into machine code: calls whose arguments need no conversion.

    call = direct_call(inputs, outputs, …)
    call({"x": x}, {"y": y})        # {"y": y}, or None: `Model.run` has to look at it

Python only fetches NumPy's description of every array (`__array_struct__`, a capsule). Machine code
compares it with what the network expects, writes addresses into the network's table, and runs it
without the interpreter's lock. It uses five documented functions of CPython and the array interface
protocol. Whatever is not exactly as expected, it leaves alone: another dtype, shape or order,
read-only outputs, outputs that overlap another array.
"""

from __future__ import annotations

import ctypes
import threading
from collections.abc import Callable, Sequence
from functools import cache
from operator import attrgetter, itemgetter
from typing import Any, Protocol, TypeAlias

import llvmlite.binding as llvm
import numpy as np
from numpy.typing import NDArray

from autotune.codegen.jit import Library
from autotune.codegen.memory import Recycled
from autotune.codegen.team import Team
from autotune.network.artifact import Endpoint

Array = NDArray[Any]
DirectCall: TypeAlias = "Callable[[Any, Any], dict[str, Array] | None]"
"""From inputs and `out` of `Model.run` to its result; None where they need a closer look."""

_C_CONTIGUOUS, _ALIGNED, _NOT_SWAPPED, _WRITEABLE = 0x1, 0x100, 0x200, 0x400
_READ = _C_CONTIGUOUS | _ALIGNED | _NOT_SWAPPED
_WRITTEN = _READ | _WRITEABLE
_KINDS = "fiub"
"""Of NumPy's dtypes, those that kind and size tell apart."""

_ARRAYS = {np.ndarray}
"""What outputs are written to; of subclasses, the usual way knows more."""

_HEAD, _RECORD = 5, 8
"""Words of a plan before its arrays, and of each array."""
_NAME = "autotune_direct"

_API = ("PyTuple_GetItem", "PyCapsule_GetPointer", "PyEval_SaveThread", "PyEval_RestoreThread")


class Locked(Protocol):
    """What has the lock of an arena."""

    lock: threading.Lock


def direct_call(
    inputs: Sequence[Endpoint],
    outputs: Sequence[Endpoint],
    memories: Sequence[Recycled],
    network: tuple[int, int, int],
    arena: Locked,
    team: Team,
) -> DirectCall | None:
    """A call of the network; None for one that copies or converts inputs or outputs.

    `memories`: give arrays for outputs. `network`: addresses of the entry and of its table, and the
    number of threads. `arena`: its lock is held during an inference.
    """
    ends = (*inputs, *outputs)
    native = _native() if outputs and all(map(_is_direct, ends)) else None
    if native is None:
        return None
    plan = _Plan(network, inputs, outputs)
    address = ctypes.c_void_p(plan.words.ctypes.data)
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
        if team.forked_thread:
            return None
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
            with arena.lock:
                is_left = native(capsules, address)
        except (KeyError, AttributeError, TypeError):  # a closer look says what is wrong
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
    """What machine code has to know, as `_ir` says: the network, and what its arrays are like."""

    def __init__(
        self,
        network: tuple[int, int, int],
        inputs: Sequence[Endpoint],
        outputs: Sequence[Endpoint],
    ) -> None:
        ends = [(end, _READ) for end in inputs] + [(end, _WRITTEN) for end in outputs]
        self.shapes = [np.array(end.shape or (0,), np.int64) for end, _ in ends]
        words = [*network, len(ends), len(inputs)]
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
    return [end.base, flags, kind, dtype.itemsize, len(end.shape), shape.ctypes.data, n_bytes, 0]


@cache
def _native() -> Callable[[tuple[Any, ...], ctypes.c_void_p], int] | None:
    """The function of machine code; None in an interpreter that does not show its own."""
    try:
        functions = [getattr(ctypes.pythonapi, name) for name in (*_API, "PyErr_Clear")]
    except AttributeError:
        return None
    addresses = [ctypes.cast(function, ctypes.c_void_p).value for function in functions]
    llvm.initialize_native_target()
    llvm.initialize_native_asmprinter()
    machine = llvm.Target.from_default_triple().create_target_machine(opt=2, reloc="pic")
    module = llvm.parse_assembly(_ir(machine.triple, [a or 0 for a in addresses]))
    module.verify()
    library = Library((bytes(machine.emit_object(module)),))
    kind = ctypes.PYFUNCTYPE(ctypes.c_int, ctypes.py_object, ctypes.c_void_p)
    function = kind(library.address(_NAME))
    function.library = library  # type: ignore[attr-defined]  # keeps the code alive
    return function


def _ir(triple: str, addresses: Sequence[int]) -> str:
    """LLVM IR of `i32 autotune_direct(tuple of capsules, plan)`: 0 where the network has run.

    A plan is `entry, table, n_threads, n_arrays, n_inputs`, then a record for each array: `slot,
    flags, kind, itemsize, rank, address of the shape, bytes`, and room for the address. A capsule
    has a `PyArrayInterface`: `i32 two, i32 rank, i8 kind, i32 itemsize, i32 flags, ptr shape,
    ptr strides, ptr data`.
    """
    item, pointer, save, restore, clear = (f"inttoptr (i64 {a} to ptr)" for a in addresses)
    return f"""target triple = "{triple}"
define i32 @{_NAME}(ptr %capsules, ptr %plan) {{
start:
  {_field("entry", "ptr", "plan", 0)}
  {_field("table", "ptr", "plan", 8)}
  {_field("n_threads", "i64", "plan", 16)}
  {_field("n", "i64", "plan", 24)}
  {_field("n_inputs", "i64", "plan", 32)}
  %records = getelementptr i64, ptr %plan, i64 {_HEAD}
  br label %array
array:
  %i = phi i64 [ 0, %start ], [ %i_next, %alone ]
  %capsule = call ptr {item}(ptr %capsules, i64 %i)
  %no_item = icmp eq ptr %capsule, null
  br i1 %no_item, label %failed, label %open
open:
  %given = call ptr {pointer}(ptr %capsule, ptr null)
  %no_capsule = icmp eq ptr %given, null
  br i1 %no_capsule, label %failed, label %compare
compare:
  %at = mul i64 %i, {_RECORD}
  %record = getelementptr i64, ptr %records, i64 %at
  {_field("slot", "i64", "record", 0)}
  {_field("flags", "i64", "record", 8)}
  {_field("kind", "i64", "record", 16)}
  {_field("itemsize", "i64", "record", 24)}
  {_field("rank", "i64", "record", 32)}
  {_field("shape", "ptr", "record", 40)}
  {_field("n_bytes", "i64", "record", 48)}
  {_field("g_two", "i32", "given", 0)}
  {_field("g_rank32", "i32", "given", 4)}
  {_field("g_kind8", "i8", "given", 8)}
  {_field("g_itemsize32", "i32", "given", 12)}
  {_field("g_flags32", "i32", "given", 16)}
  {_field("g_shape", "ptr", "given", 24)}
  {_field("g_data", "i64", "given", 40)}
  %g_rank = sext i32 %g_rank32 to i64
  %g_kind = zext i8 %g_kind8 to i64
  %g_itemsize = sext i32 %g_itemsize32 to i64
  %g_flags = zext i32 %g_flags32 to i64
  %has = and i64 %g_flags, %flags
  %c0 = icmp eq i32 %g_two, 2
  %c1 = icmp eq i64 %g_rank, %rank
  %c2 = icmp eq i64 %g_kind, %kind
  %c3 = icmp eq i64 %g_itemsize, %itemsize
  %c4 = icmp eq i64 %has, %flags
  %c01 = and i1 %c0, %c1
  %c23 = and i1 %c2, %c3
  %c234 = and i1 %c23, %c4
  %is_like = and i1 %c01, %c234
  br i1 %is_like, label %extents, label %left
extents:
  %d = phi i64 [ 0, %compare ], [ %d_next, %extent ]
  %all_equal = icmp eq i64 %d, %rank
  br i1 %all_equal, label %take, label %extent
extent:
  %want_at = getelementptr i64, ptr %shape, i64 %d
  %have_at = getelementptr i64, ptr %g_shape, i64 %d
  %want = load i64, ptr %want_at
  %have = load i64, ptr %have_at
  %d_next = add i64 %d, 1
  %is_equal = icmp eq i64 %want, %have
  br i1 %is_equal, label %extents, label %left
take:
  %data_at = getelementptr i64, ptr %record, i64 7
  store i64 %g_data, ptr %data_at
  %slot_at = getelementptr i64, ptr %table, i64 %slot
  store i64 %g_data, ptr %slot_at
  %end = add i64 %g_data, %n_bytes
  %is_input = icmp ult i64 %i, %n_inputs
  br i1 %is_input, label %alone, label %others
others:
  %k = phi i64 [ 0, %take ], [ %k_next, %other ]
  %no_more = icmp eq i64 %k, %i
  br i1 %no_more, label %alone, label %other
other:
  %k_at = mul i64 %k, {_RECORD}
  %k_record = getelementptr i64, ptr %records, i64 %k_at
  {_field("k_bytes", "i64", "k_record", 48)}
  {_field("k_data", "i64", "k_record", 56)}
  %k_end = add i64 %k_data, %k_bytes
  %is_before = icmp ult i64 %g_data, %k_end
  %is_after = icmp ult i64 %k_data, %end
  %overlaps = and i1 %is_before, %is_after
  %k_next = add i64 %k, 1
  br i1 %overlaps, label %left, label %others
alone:
  %i_next = add i64 %i, 1
  %is_last = icmp eq i64 %i_next, %n
  br i1 %is_last, label %run, label %array
run:
  %state = call ptr {save}()
  call void %entry(ptr %table, i64 %n_threads)
  call void {restore}(ptr %state)
  ret i32 0
failed:
  call void {clear}()
  ret i32 1
left:
  ret i32 1
}}"""


def _field(name: str, kind: str, base: str, offset: int) -> str:
    """Load a field that lies `offset` bytes after `base`."""
    return (
        f"%{name}_p = getelementptr i8, ptr %{base}, i64 {offset}\n"
        f"  %{name} = load {kind}, ptr %{name}_p"
    )
