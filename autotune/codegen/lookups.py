"""⑤ Looking bytes up in a table of 256: two permutations of its halves, and a choice.

    for v in vectorize 16: y[v] = table[int64(uint8(q[v]))]
    ->  y = select(q < 128, vpermi2b(table[0…127], q), vpermi2b(table[128…255], q))

Where the CPU has no such instruction, lanes are looked up one by one.
"""

from __future__ import annotations

from autotune.codegen.arithmetic import TYPES
from autotune.codegen.dots import Emitter
from autotune.codegen.text import I8, I64, Value, constant, undefined, vector
from autotune.te.arith import Linear
from autotune.te.expr import Cast, Expr, Load, dtype_of

_BITS = 8
_N_VALUES = 1 << _BITS
_WIDEST = 64
"""Bytes of the vectors of the instruction."""


def byte_index(e: Load) -> Expr | None:
    """The byte by which a load of a table of all bytes chooses; None for any other load."""
    match e:
        case Load(tensor=tensor, indices=(Cast(a=a),)) if tensor.shape == (_N_VALUES,):
            is_byte = dtype_of(a) == "uint8" and TYPES[tensor.dtype] is I8
            return a if is_byte else None
    return None


def load_looked_up(emitter: Emitter, e: Load, index: Value) -> Value:
    """The bytes of the table of `e` at `index`, a vector of bytes."""
    name = emitter.b.module.isa.byte_lookup
    if name and index.type.count <= _WIDEST:
        return _permuted(emitter, e, index, name)
    b, first = emitter.b, emitter.at.pointers[e.tensor.name]
    found = undefined(index.type)
    for lane in range(index.type.count):
        at = b.cast("zext", b.extract(index, lane), I64)
        found = b.insert(found, b.load(b.offset(first, at, I8), I8, 1), lane)
    return found


def _permuted(emitter: Emitter, e: Load, index: Value, name: str) -> Value:
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
