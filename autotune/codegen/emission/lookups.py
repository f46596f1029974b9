"""⑤ Lookups in small tables by vector permutes: whole vectors hold all of a table.

    for v in vectorize 16: y[v] = table[int64(uint8(q[v]))]               256 bytes
    ->  y = select(q < 128, vpermi2b(table[0…127], q), vpermi2b(table[128…255], q))

    for v in vectorize 16: y[v] = table[int64(n[v] mod 16)]               16 floats
    ->  y = vpermps(n, table)

Where the CPU has no such instruction, lanes are looked up one by one.
"""

from __future__ import annotations

from contextlib import suppress

from autotune.codegen.emission.arithmetic import TYPES
from autotune.codegen.emission.frame import Emitter
from autotune.codegen.emission.text import F32, I8, I64, Value, constant, undefined, vector
from autotune.dtypes import dtype_bytes
from autotune.te.arith import Linear, bounds
from autotune.te.expr import Binary, Cast, Const, Expr, Load, dtype_of

_BITS = 8
_N_VALUES = 1 << _BITS
_WIDEST = 64
"""Bytes of the vectors of the instruction."""
_N_FLOATS = 16


def table_index(e: Load) -> Expr | None:
    """Index of a load of a small table, an integer of at most 32 bits inside of the table;
    None for any other load."""
    match e:
        case Load(tensor=tensor, indices=(Cast(a=a),)):
            if tensor.shape == (_N_VALUES,) and TYPES[tensor.dtype] is I8:
                return a if dtype_of(a) == "uint8" else None
            if tensor.shape == (_N_FLOATS,) and TYPES[tensor.dtype] is F32:
                return a if dtype_of(a) == "int32" and _is_inside(a) else None
    return None


def _is_inside(e: Expr) -> bool:
    with suppress(KeyError):
        low, high = bounds(e, {})
        return low >= 0 and high < _N_FLOATS
    return False


def load_looked_up(emitter: Emitter, e: Load, index: Expr) -> Value | None:
    """The elements of the table of `e`, for all lanes; None where all choose the same."""
    isa, is_byte = emitter.b.module.isa, TYPES[e.tensor.dtype] is I8
    n_lanes = emitter.at.lanes[1] if emitter.at.lanes else 1
    if not is_byte and isa.lane_lookup and n_lanes == _N_FLOATS:
        at = emitter.value(_remainder(index))  # the instruction takes the lowest bits
        return _permuted_floats(emitter, e, at) if at.type.is_vector else None
    at = emitter.value(index)
    if not at.type.is_vector:
        return None
    if is_byte and isa.byte_lookup and at.type.count <= _WIDEST:
        return _permuted_bytes(emitter, e, at, isa.byte_lookup)
    return _one_by_one(emitter, e, at)


def _remainder(index: Expr) -> Expr:
    """Dividend of `index` where it is a remainder by the number of floats in a vector."""
    match index:
        case Binary(op="mod", a=a, b=Const(value=n)) if n == _N_FLOATS:
            return a
    return index


def _permuted_floats(emitter: Emitter, e: Load, index: Value) -> Value:
    table = emitter.plain_load(e, Linear((), 0), F32, _N_FLOATS, None)
    name = emitter.b.module.isa.lane_lookup
    return emitter.b.call(name, table.type, [table, index])


def _one_by_one(emitter: Emitter, e: Load, index: Value) -> Value:
    b, first = emitter.b, emitter.at.pointers[e.tensor.name]
    kind, size = TYPES[e.tensor.dtype], dtype_bytes(e.tensor.dtype)
    found = undefined(index.type.of(kind))
    for lane in range(index.type.count):
        at = b.cast("zext", b.extract(index, lane), I64)
        found = b.insert(found, b.load(b.offset(first, at, kind), kind, size), lane)
    return found


def _permuted_bytes(emitter: Emitter, e: Load, index: Value, name: str) -> Value:
    b, count = emitter.b, index.type.count
    kind = vector(I8, _WIDEST)
    wide = index
    if count < _WIDEST:
        lanes = [min(n, count) for n in range(_WIDEST)]
        wide = b.shuffle(index, undefined(index.type), lanes)
    quarters = [
        emitter.plain_load(e, Linear((), at), I8, _WIDEST, None)
        for at in range(0, _N_VALUES, _WIDEST)
    ]
    low, high = (
        b.call(name, kind, [x, wide, y]) for x, y in zip(quarters[::2], quarters[1::2], strict=True)
    )
    found = b.select(b.compare("icmp slt", wide, constant(kind, 0)), high, low)
    return found if count == _WIDEST else b.shuffle(found, found, range(count))
