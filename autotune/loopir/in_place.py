"""④ Programs whose result may lie where an operand lies: y[i] = f(…, x[i], …).

That is right where every element of x is read by the very statement that stores that element of y,
and stored once: tiles that overlap would read what they have written.
"""

from __future__ import annotations

from collections.abc import Sequence

from autotune.loopir.nodes import Buffer, Program, Store
from autotune.loopir.visitor import body_loads, statements
from autotune.te.expr import Binary, Load, loads, walk


def replaceable(program: Program) -> list[tuple[str, str]]:
    """Pairs of an input and an output that may be the same memory while the program runs."""
    stores = [s for k in program.kernels for s in statements(k.body) if isinstance(s, Store)]
    reads = [x for k in program.kernels for x in body_loads(k.body)]
    return [
        (x.name, y.name)
        for y in program.buffers
        if y.role == "output" and _is_stored_once(y, stores, reads)
        for x in program.buffers
        if x.role == "input" and _is_like(x, y) and _is_read_in_place(x, y, stores, reads)
    ]


def _is_like(x: Buffer, y: Buffer) -> bool:
    return (x.tensor.shape, x.tensor.dtype, x.strides) == (
        y.tensor.shape,
        y.tensor.dtype,
        y.strides,
    )


def _is_stored_once(y: Buffer, stores: Sequence[Store], reads: Sequence[Load]) -> bool:
    """Whether no element is stored twice (tiles are shifted inwards by a minimum), or read back."""
    ours = [s for s in stores if s.tensor.name == y.name]
    shifted = (
        isinstance(e, Binary) and e.op in ("min", "max")
        for s in ours
        for index in s.indices
        for e in walk(index)
    )
    return not any(x.tensor.name == y.name for x in reads) and not any(shifted)


def _is_read_in_place(x: Buffer, y: Buffer, stores: Sequence[Store], reads: Sequence[Load]) -> bool:
    here = [
        load
        for s in stores
        if s.tensor.name == y.name
        for load in loads(s.value)
        if load.tensor.name == x.name and load.indices == s.indices
    ]
    return bool(here) and len(here) == sum(load.tensor.name == x.name for load in reads)
