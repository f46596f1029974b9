"""② The numbers of a call: integers that limits, conditions and indices of a task follow.

    y[i<512 and n[0]] = x[i] + x[n[0] - 1]                  n is one of 1 … 512

A number is the one element of an int64 placeholder. Which values it may have follows from where it
is used: a limit is at most the extent of its axis, an index is inside of its dimension.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import suppress
from typing import TypeAlias

from autotune.te.arith import Linear, bounds, linear
from autotune.te.dag import Compute, ComputeDAG
from autotune.te.expr import INDEX, Compare, Const, Expr, Load, Tensor, Var, loads, variables, walk

_MARK = "#"


def variable(name: str) -> Var:
    """The variable that stands for a number, where a definition or a kernel has it by name."""
    return Var(_MARK + name)


def number_of(var: str) -> str | None:
    """The number that a variable stands for; None for an axis or a loop."""
    return var.removeprefix(_MARK) if var.startswith(_MARK) else None


def is_number(e: Expr) -> bool:
    """Whether `e` is the one element of a tensor of indices."""
    if not isinstance(e, Load) or not _is_scalar(e.tensor):
        return False
    return all(isinstance(i, Const) for i in e.indices)


def elements(op: Compute) -> list[Load]:
    """What `op` reads but the numbers of the call."""
    return [x for x in op.reads if not is_number(x)]


def _is_scalar(tensor: Tensor) -> bool:
    return tensor.dtype == INDEX and tensor.size == 1


def follows_numbers(e: Expr) -> bool:
    """Whether `e` depends on numbers alone."""
    return not variables(e) and all(map(is_number, loads(e)))


def is_limited(dag: ComputeDAG) -> bool:
    """Whether some elements of `dag` are nobody's: see `te.expr.Axis`."""
    return any(op.limits for op in dag.computes)


def numbers(dag: ComputeDAG) -> dict[str, tuple[int, int]]:
    """Least and most value of each number that a limit, else a condition, else an index follows."""
    inputs = {p.name for p in dag.placeholders if not p.constant and _is_scalar(p.tensor)}
    out: dict[str, tuple[int, int]] = {}
    if not inputs:  # as in nearly all tasks
        return out
    for place in (_of_limits, _of_conditions, _of_indices):
        found: dict[str, tuple[int, int]] = {}
        for name, low, high in (b for op in dag.computes for b in place(op)):
            least, most = found.get(name, (low, high))
            found[name] = max(least, low), max(low, min(most, high))
        out = {n: span for n, span in found.items() if n in inputs} | out
    return out


_ANY = 1 << 40


def spans(dag: ComputeDAG) -> dict[str, tuple[int, int]]:
    """The numbers of `dag` with what they are at least and at most where a limit is one or more.

    Some of a limit's numbers may be none then: a part of a Concat is empty. A condition alone says
    nothing: all its places may count, or none.
    """
    found = dict.fromkeys(numbers(dag), (-_ANY, _ANY))
    limited = [b for op in dag.computes for b in _of_limits(op, least=0) if b[0] in found]
    for name in {name for name, _, _ in limited}:
        lows, highs = zip(*((low, high) for n, low, high in limited if n == name), strict=True)
        found[name] = min(lows), min(highs)
    return found


_Bounds: TypeAlias = Iterator[tuple[str, int, int]]
"""A name, and the least and the most value that one place where it is used permits."""


def _of_limits(op: Compute, least: int = 1) -> _Bounds:
    for axis in op.axes:
        if axis.limit is not None:
            yield from _within(linear(axis.limit), least, 1, axis.extent)


def _of_conditions(op: Compute) -> _Bounds:
    """From the first place of a prefix to all places of the axes around."""
    ranges = {a.name: (0, a.extent - 1) for a in (*op.axes, *op.reduce_axes)}
    for e in walk(op.body):
        if isinstance(e, Compare) and e.op == "lt" and variables(e.a) and follows_numbers(e.b):
            with suppress(KeyError):
                yield from _within(linear(e.b), 1, 1, bounds(e.a, ranges)[1] + 1)


def _of_indices(op: Compute) -> _Bounds:
    for e in op.reads:
        for index, size in zip(e.indices, e.tensor.shape, strict=True):
            if not variables(index):
                yield from _within(linear(index), 0, 0, size - 1)


def _within(form: Linear, least: int, low: int, high: int) -> _Bounds:
    """The values from `least` on of each number of `form` that keep it in `low` … `high`.

    Where there are several, each has its most while the others have their least.
    """
    found = [(atom, c) for atom, c in form.terms if isinstance(atom, Load) and is_number(atom)]
    if len(found) < len(form.terms) or any(c <= 0 for _, c in found):
        return
    for atom, factor in found:
        rest = form.const + least * sum(c for other, c in found if other != atom)
        lowest = -((form.const - low) // factor) if len(found) == 1 else least
        yield atom.tensor.name, max(least, lowest), (high - rest) // factor
