"""⑤ Blocks that are transposed in registers: vectors along one dimension, lanes along another.

    unroll u in 16
      vectorize v in 16
        y[u, v] = x[v, u]

Lane by lane that is 256 loads and as many insertions. Where the unrolled loop goes along
neighbours, each lane's are one vector: 16 loads, and 64 shuffles of two vectors.

    unroll t in 2
      vectorize n in 16
        y[n, t] = x[t, n]

Likewise vectors that are stored between one another: two loads, a shuffle and one store.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from autotune.codegen.emission.frame import Emitter, Frame
from autotune.codegen.emission.text import FunctionBuilder, Type, Value
from autotune.te.arith import Linear
from autotune.te.expr import Load, Var, variables

_LEAST = 4
"""Neighbours for which it pays."""


def neighbours(at: Frame, form: Linear) -> str | None:
    """The unrolled loop whose iterations read neighbours here, all of them for certain."""
    count = at.lanes[1] if at.lanes else 1
    names = {name for atom, _ in form.terms for name in variables(atom)}
    for name, extent in at.extents.items():
        is_read = name in names and form.coefficient(name) == 1 and not form.is_opaque_in(name)
        depends = at.conditions.union(*(at.depends.get(n, ()) for n in names))
        fits = min(extent, count) >= _LEAST and _is_power(extent) and _is_power(count)
        if is_read and fits and name not in depends:
            return name
    return None


def between(at: Frame, form: Linear) -> str | None:
    """The unrolled loop whose iterations store what is between the lanes here, all for certain."""
    stride = at.lane_stride(form)
    names = {name for atom, _ in form.terms for name in variables(atom)}
    depends = at.conditions.union(*(at.depends.get(n, ()) for n in names))
    for name, extent in at.extents.items():
        is_next = name in names and form.coefficient(name) == 1 and not form.is_opaque_in(name)
        if is_next and extent == stride and _is_power(extent) and name not in depends:
            return name
    return None


def interleaved(b: FunctionBuilder, parts: Sequence[Value]) -> Value:
    """Lane 0 of all vectors, then lane 1, …; their number is a power of two."""
    while len(parts) > 1:
        half, n = len(parts) // 2, parts[0].type.count
        order = [lane for k in range(n) for lane in (k, n + k)]
        parts = [b.shuffle(x, y, order) for x, y in zip(parts[:half], parts[half:], strict=True)]
    return parts[0]


def load_transposed(emitter: Emitter, e: Load, form: Linear, kind: Type, name: str) -> Value:
    """Lanes of a load at the present iteration of unrolled loop `name`; see the module.

    The first iteration that comes here makes those of all.
    """
    at = emitter.at
    value, lanes = at.env[name], at.lanes
    assert isinstance(value, int)
    assert lanes is not None
    stride = form.coefficient(lanes[0])
    first = at.expanded(at.without_lane(form.without(Var(name))))

    def key(column: int) -> object:
        return "transposed", first, stride, lanes, name, column

    found = at.find_load(e.tensor.name, key(value))
    if found is not None:
        return found

    def row(lane: int, column: int, width: int) -> Value:
        here = Linear(first.terms, first.const + lane * stride + column)
        return emitter.plain_load(e, here, kind, width, None)

    columns = transposed(emitter.b, lanes[1], at.extents[name], row)
    for column, vector in enumerate(columns):
        at.keep_load(e.tensor.name, key(column), vector)
    return columns[value]


def transposed(
    b: FunctionBuilder, n_lanes: int, n_columns: int, load: Callable[[int, int, int], Value]
) -> list[Value]:
    """Vectors of `n_lanes` lanes, one for each of `n_columns` neighbours; both powers of two.

    `load(lane, first, width)`: neighbours `first`, … of one lane as a vector.
    """
    size = min(n_lanes, n_columns)
    columns: list[Value] = []
    for first in range(0, n_columns, size):
        blocks = [
            _square(b, [load(top + n, first, size) for n in range(size)])
            for top in range(0, n_lanes, size)
        ]
        columns += [_joined(b, parts) for parts in zip(*blocks, strict=True)]
    return columns


def _square(b: FunctionBuilder, rows: list[Value]) -> list[Value]:
    """Eklundh's algorithm: halves of blocks of 2, 4, 8, … rows change places."""
    n, rows = len(rows), list(rows)
    step = 1
    while step < n:
        for k in (k for k in range(n) if not k & step):
            x, y = rows[k], rows[k + step]
            rows[k] = b.shuffle(x, y, [n + j - step if j & step else j for j in range(n)])
            rows[k + step] = b.shuffle(x, y, [n + j if j & step else j + step for j in range(n)])
        step *= 2
    return rows


def _joined(b: FunctionBuilder, parts: Sequence[Value]) -> Value:
    """Vectors one behind another; their number is a power of two."""
    while len(parts) > 1:
        width = 2 * parts[0].type.count
        pairs = zip(parts[::2], parts[1::2], strict=True)
        parts = [b.shuffle(x, y, range(width)) for x, y in pairs]
    return parts[0]


def _is_power(n: int) -> bool:
    return n & (n - 1) == 0
