"""⑤ Loads whose lanes are not contiguous, composed of contiguous loads."""

from __future__ import annotations

from autotune.codegen.emission.frame import Emitter, Guard
from autotune.codegen.emission.lanes import picked, repeated, strided
from autotune.codegen.emission.text import Type, Value
from autotune.te.arith import Linear
from autotune.te.expr import Load


def load_repeated(
    emitter: Emitter, e: Load, form: Linear, kind: Type, period: int, guard: Guard | None
) -> Value:
    """A few contiguous elements, repeated over the lanes."""
    count, first = _lanes(emitter), emitter.at.without_lane(form)
    few = emitter.plain_load(e, first, kind, min(period, count), guard)
    return repeated(emitter.b, few, count)


def load_picked(
    emitter: Emitter, e: Load, form: Linear, kind: Type, stride: int, width: int
) -> Value:
    """Every `stride`-th element, out of the vectors of `width` lanes that hold them all."""
    first = emitter.at.expanded(emitter.at.without_lane(form))
    phase, n = first.const % stride, stride * _lanes(emitter)
    starts = range(first.const - phase, first.const - phase + n, width)
    whole = [emitter.plain_load(e, Linear(first.terms, at), kind, width, None) for at in starts]
    return picked(emitter.b, whole, stride, phase)


def load_strided(
    emitter: Emitter, e: Load, form: Linear, kind: Type, stride: int, guard: Guard | None
) -> Value:
    """Every `stride`-th element, out of the vectors around them."""
    count, first = _lanes(emitter), emitter.at.without_lane(form)
    mask = guard.holds if guard is not None and guard.holds.type.is_vector else None

    def part(start: int, mask: Value | None) -> Value:
        held = Guard(mask, guard.loops) if guard is not None and mask is not None else guard
        here = Linear(first.terms, first.const + start)
        return emitter.plain_load(e, here, kind, count, held)

    return strided(emitter.b, count, stride, mask, part)


def _lanes(emitter: Emitter) -> int:
    assert emitter.at.lanes is not None
    return emitter.at.lanes[1]
