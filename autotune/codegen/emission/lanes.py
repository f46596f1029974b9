"""⑤ Shuffles: lanes of vectors in another order."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from autotune.codegen.emission.text import F32, I32, I64, FunctionBuilder, Value, constant, vector

NEAR_STRIDES = (2, 3, 4)
"""Elements between lanes that come out of whole vectors: up to 4 loads, and a shuffle for each."""


def repeated(b: FunctionBuilder, few: Value, count: int) -> Value:
    """The lanes of `few` again and again, `count` lanes in all."""
    n = few.type.count
    return few if n == count else b.shuffle(few, few, [lane % n for lane in range(count)])


def side_by_side(b: FunctionBuilder, vectors: Sequence[Value]) -> Value:
    """Lane 0 of each of `vectors`, then lane 1 of each, …; there are a power of two of them."""
    while len(vectors) > 1:
        half, count = len(vectors) // 2, vectors[0].type.count
        lanes = [n for k in range(count) for n in (k, count + k)]
        vectors = [
            b.shuffle(x, y, lanes) for x, y in zip(vectors[:half], vectors[half:], strict=True)
        ]
    return vectors[0]


def picked(b: FunctionBuilder, vectors: Sequence[Value], stride: int, phase: int) -> Value:
    """Lanes `phase`, `phase` + `stride`, … of `vectors` in a row; `stride` is a power of two."""
    while stride > 1:
        odd = phase % 2
        if len(vectors) == 1:
            vectors = [_half(b, vectors[0], odd)]
        else:
            lanes = range(odd, 2 * vectors[0].type.count, 2)
            pairs = zip(vectors[::2], vectors[1::2], strict=True)
            vectors = [b.shuffle(x, y, lanes) for x, y in pairs]
        stride, phase = stride // 2, phase // 2
    return vectors[0]


def _half(b: FunctionBuilder, value: Value, odd: int) -> Value:
    """The even or the odd lanes of one vector.

    Taken as halves of wider integers. From a sum of even and odd lanes that shuffles pick, LLVM
    makes a horizontal addition, which encodes only the first 16 registers, so the register tile
    spills.
    """
    count = value.type.count // 2
    if count == 1 or value.type.scalar is not F32:
        return b.shuffle(value, value, range(odd, 2 * count, 2))
    pairs = b.bitcast(value, vector(I64, count))
    if odd:
        pairs = b.binary("lshr", pairs, constant(pairs.type, 32))
    return b.bitcast(b.cast("trunc", pairs, vector(I32, count)), vector(value.type.scalar, count))


def strided(
    b: FunctionBuilder,
    count: int,
    stride: int,
    mask: Value | None,
    load: Callable[[int, Value | None], Value],
) -> Value:
    """Elements 0, `stride`, 2·`stride`, … as `count` lanes, and nothing read behind the last one.

    `load`: the `count` elements from one on, those that a mask leaves. `mask`: which lanes to read.
    """
    whole: Value | None = None
    end = (count - 1) * stride + 1
    taken = 0
    while taken < count:
        start = min(taken * stride, end - count)
        after = min(count, (start + count - 1) // stride + 1)
        at = {n: n * stride - start for n in range(taken, after)}
        part = load(start, None if mask is None else _scattered(b, mask, at))
        lanes = [count + at[n] if n in at else n for n in range(count)]
        whole = b.shuffle(part if whole is None else whole, part, lanes)
        taken = after
    assert whole is not None
    return whole


def _scattered(b: FunctionBuilder, mask: Value, at: Mapping[int, int]) -> Value:
    """Lane n of `mask` in lane `at[n]`; false in all others."""
    count = mask.type.count
    source = {place: n for n, place in at.items()}
    lanes = [source.get(place, count) for place in range(count)]
    return b.shuffle(mask, constant(mask.type, 0), lanes)
