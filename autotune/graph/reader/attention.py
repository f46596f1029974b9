"""① Attention as ONNX Runtime's domain has it -> products, masks and a softmax.

    com.microsoft.MultiHeadAttention(q, k, v)  ->  Softmax(q · kᵀ · scale + masks) · v

Heads are dimension 1 inside: (batch, heads, length, size). A cache of keys and values is static:
its extent is that of the operand, how much of it is filled may be decided at run time.
Meanings: https://github.com/microsoft/onnxruntime/blob/main/docs/ContribOperators.md
"""

from __future__ import annotations

import math

import numpy as np

from autotune.graph.ir import Array, malformed
from autotune.graph.reader.composer import Composer, Composition

_LOWEST = float(np.finfo(np.float32).min)


# --- parts ----------------------------------------------------------------------------------------


def _heads(c: Composer, x: str, batch: int, length: int, n_heads: int, size: int) -> str:
    """(batch, length, heads · size) -> (batch, heads, length, size)."""
    apart = c.reshaped(x, batch, length, n_heads, size)
    return c("Transpose", apart, perm=(0, 2, 1, 3))


def _joined(c: Composer, x: str, batch: int, length: int, width: int) -> None:
    """(batch, heads, length, size) -> (batch, length, heads · size), the result of the node."""
    together = c("Transpose", x, perm=(0, 2, 1, 3))
    c.result("Reshape", together, c.integers(batch, length, width))


def _weights(c: Composer, q: str, k: str, size: int) -> str:
    """q · kᵀ · scale."""
    scale = c.attr("scale", 0.0) or 1 / math.sqrt(size)
    product = c("MatMul", q, c("Transpose", k, perm=(0, 1, 3, 2)))
    return c("Mul", product, c.float(scale))


def _causal(c: Composer, n_queries: int, n_keys: int) -> str:
    """What is added so that a query does not see the keys behind it; the queries come last."""
    seen = np.tri(n_queries, n_keys, n_keys - n_queries, dtype=bool)
    return c.array(np.where(seen, 0, _LOWEST).astype(np.float32))


def _positions(c: Composer, n: int, *shape: int) -> str:
    return c.array(np.arange(n, dtype=np.int64).reshape(shape))


def _mask(c: Composer, slot: int, batch: int, n_keys: int) -> str:
    """Input `slot` as what is added to the weights: lengths, or 0 where a key is masked.

    (batch) lengths, (2·batch) ends and starts, (batch, keys), (batch, queries, keys).
    """
    name, shape = c.input(slot), c.shape(slot)
    filler = c.float(c.attr("mask_filter_value", -10000.0))
    if len(shape) == 1 and shape[0] in (batch, 2 * batch):
        bounds = c.cast(name, "int64")
        at = _positions(c, n_keys, 1, 1, 1, n_keys)
        ends, starts = bounds, []
        if shape[0] == 2 * batch and shape[0] != batch:
            lengths = c.integers(batch, batch)
            ends, *starts = c.several("Split", 2, bounds, lengths, axis=0)
        kept = c("Less", at, c.reshaped(ends, batch, 1, 1, 1))
        for start in starts:
            kept = c("And", kept, c("GreaterOrEqual", at, c.reshaped(start, batch, 1, 1, 1)))
    elif len(shape) in (2, 3) and shape[-1] == n_keys:
        wide = c.reshaped(name, shape[0], 1, *(shape[1:] if len(shape) == 3 else (1, n_keys)))
        kept = c.cast(wide, "bool")
    else:
        raise c.refuse("a mask of that form")
    return c("Where", kept, c.float(0.0), filler)


def _softmax_product(c: Composer, weights: str, v: str) -> str:
    return c("MatMul", c("Softmax", weights, axis=-1), v)


def _without(c: Composer, *slots: int) -> None:
    """Refuse inputs that have no composition here."""
    if any(map(c.input, slots)):
        raise c.refuse(f"input {next(n for n in slots if c.input(n))} is used")


# --- Attention and MultiHeadAttention -------------------------------------------------------------


def _attention(c: Composer) -> None:
    """x, weights of q, k and v side by side, bias, mask, past, what is added to the weights."""
    _without(c, 6)
    product = c("MatMul", c.input(0), c.input(1))
    if c.input(2):
        product = c("Add", product, c.input(2))
    _of_projection(c, product, mask=3, past=4, added=5)


def _quantised_attention(c: Composer) -> None:
    """x, weights, bias, scales of both, mask, zero points of both, past."""
    operands = c.input(0), c.input(1), c.input(6), c.input(7)
    product = c("Add", c.integer_product(operands, (c.input(3), c.input(4))), c.input(2))
    _of_projection(c, product, mask=5, past=8, added=-1)


def _of_projection(c: Composer, product: str, mask: int, past: int, added: int) -> None:
    """Attention of q, k and v that lie side by side in `product`."""
    if c.attr("do_rotary", 0) or c.attr("past_present_share_buffer", 0):
        raise c.refuse("it rotates, or shares the buffer of its cache")
    batch, length, _ = c.shape(0)
    n_heads, total = c.attr("num_heads", 1), c.shape(1)[-1]
    widths = c.attr("qkv_hidden_sizes", ()) or (total // 3,) * 3
    parts = c.several("Split", 3, product, c.integers(*widths), axis=-1)
    q, k, v = (
        _heads(c, part, batch, length, n_heads, width // n_heads)
        for part, width in zip(parts, widths, strict=True)
    )
    n_keys = length
    if c.input(past):
        n_keys += c.shape(past)[3]
        halves = c.several("Split", 2, c.input(past), c.integers(1, 1), axis=0)
        zero = c.integers(0)
        before = [c("Squeeze", half, zero) for half in halves]
        k, v = (c("Concat", a, b, axis=2) for a, b in zip(before, (k, v), strict=True))
    if c.wants(1):
        zero = c.integers(0)
        c.bind(1, c("Concat", c("Unsqueeze", k, zero), c("Unsqueeze", v, zero), axis=0))
    weights = _weights(c, q, k, widths[0] // n_heads)
    if c.input(mask):
        weights = c("Add", weights, _mask(c, mask, batch, n_keys))
    if c.attr("unidirectional", 0):
        weights = c("Add", weights, _causal(c, length, n_keys))
    if added >= 0 and c.input(added):
        weights = c("Add", weights, c.input(added))
    _joined(c, _softmax_product(c, weights, v), batch, length, widths[2])


def _multi_head_attention(c: Composer) -> None:
    """q, k, v, bias, mask of keys, what is added to the weights, past keys, past values."""
    _without(c, 8, 9)
    c.refuse_results(3)
    if c.rank(0) != 3 or not c.input(1) or c.rank(1) not in (3, 4) or not c.input(2):
        raise c.refuse("its operands are packed")
    n_heads, (batch, length, width) = c.attr("num_heads", 1), c.shape(0)
    names = [c.input(n) for n in range(3)]
    is_split = c.rank(1) == 4
    key, value = c.shape(1), c.shape(2)
    n_keys = key[2] if is_split else key[1]
    out = value[1] * value[3] if is_split else value[2]
    if c.input(3):
        own = names[:1] if is_split else names
        parts = c.several("Split", 3, c.input(3), c.integers(width, width, out), axis=0)
        names[: len(own)] = [c("Add", x, b) for x, b in zip(own, parts, strict=False)]
    q = _heads(c, names[0], batch, length, n_heads, width // n_heads)
    k, v = names[1:]
    if not is_split:
        k = _heads(c, k, batch, n_keys, n_heads, width // n_heads)
        v = _heads(c, v, batch, n_keys, n_heads, out // n_heads)
    if c.input(6):
        n_keys += c.shape(6)[2]
        k, v = c("Concat", c.input(6), k, axis=2), c("Concat", c.input(7), v, axis=2)
    c.bind(1, k)
    c.bind(2, v)
    weights = _weights(c, q, k, width // n_heads)
    if c.input(4):
        weights = c("Add", weights, _mask(c, 4, batch, n_keys))
    if c.input(5):
        weights = c("Add", weights, c.input(5))
    if c.attr("unidirectional", 0):
        weights = c("Add", weights, _causal(c, length, n_keys))
    _joined(c, _softmax_product(c, weights, v), batch, length, out)


# --- rotation -------------------------------------------------------------------------------------


def _rotated(c: Composer, x: str, size: int, tables: tuple[str, str], half: int) -> str:
    """The first 2·`half` elements of every head rotated by angles; the others as they are.

    tables: cosines and sines, (batch or 1, 1, length, half).
    """
    interleaved = c.attr("interleaved", c.attr("rotary_interleaved", 0))
    rest: tuple[str, ...] = ()
    if 2 * half < size:
        x, *rest_ = c.several("Split", 2, x, c.integers(2 * half, size - 2 * half), axis=-1)
        rest = tuple(rest_)
    if interleaved:
        last = c.integers(-1)
        pairs = c("Reshape", x, c.integers(0, 0, 0, half, 2))
        parts = c.several("Split", 2, pairs, c.integers(1, 1), axis=-1)
        a, b = (c("Squeeze", part, last) for part in parts)
    else:
        a, b = c.several("Split", 2, x, c.integers(half, half), axis=-1)
    cos, sin = tables
    real = c("Sub", c("Mul", a, cos), c("Mul", b, sin))
    imaginary = c("Add", c("Mul", a, sin), c("Mul", b, cos))
    if interleaved:
        both = (c("Unsqueeze", part, last) for part in (real, imaginary))
        turned = c("Reshape", c("Concat", *both, axis=-1), c.integers(0, 0, 0, 2 * half))
    else:
        turned = c("Concat", real, imaginary, axis=-1)
    return c("Concat", turned, *rest, axis=-1) if rest else turned


def _tables(c: Composer, slots: tuple[int, int], places: str) -> tuple[str, str]:
    """Rows of cosines and sines at `places` (batch or 1, length) -> (…, 1, length, half)."""
    axis = c.integers(1)
    rows = [c("Unsqueeze", c("Gather", c.input(n), places), axis) for n in slots]
    return rows[0], rows[1]


def _rotary(c: Composer) -> None:
    """x, places, cosines, sines; x is (batch, length, heads · size) or (batch, heads, …)."""
    if c.attr("is_packed_batching", 0) or c.attr("scale", 1.0) != 1.0:
        raise c.refuse("its batches are packed, or it has a scale")
    shape, half = c.shape(0), c.shape(2)[1]
    batch, length = shape[0], shape[-2]
    if len(shape) == 4:
        size, x = shape[3], c.input(0)
    else:
        n_heads = c.attr("num_heads", 0)
        size = shape[2] // n_heads if n_heads else 2 * half
        x = _heads(c, c.input(0), batch, length, shape[2] // size, size)
    places = c.input(1)
    if math.prod(c.shape(1)) == 1:
        first = c.reshaped(places, 1, 1)
        places = c("Add", first, _positions(c, length, 1, length))
    turned = _rotated(c, x, size, _tables(c, (2, 3), places), half)
    if len(shape) == 4:
        c.result("Identity", turned)
    else:
        _joined(c, turned, batch, length, shape[2])


# --- GroupQueryAttention --------------------------------------------------------------------------


def _group_query_attention(c: Composer) -> None:
    """q, k, v, past keys and values, last filled places, extent of the cache, cosines, sines,
    places, what is added to the weights, sinks.

    The new keys lie behind the filled ones of the past; the extent of the cache is a constant.
    """
    _without(c, *range(12, 16))
    c.refuse_results(3)
    n_heads, n_shared = c.attr("num_heads", 1), c.attr("kv_num_heads", 1)
    (batch, length, width), names = c.shape(0), [c.input(n) for n in range(3)]
    if not names[1]:
        size = width // (n_heads + 2 * n_shared)
        width = n_heads * size
        lengths = c.integers(width, n_shared * size, n_shared * size)
        names = list(c.several("Split", 3, names[0], lengths, axis=-1))
    size = width // n_heads
    q, k, v = (
        _heads(c, x, batch, length, n, size)
        for x, n in zip(names, (n_heads, n_shared, n_shared), strict=True)
    )
    _check_cache(c, (batch, n_shared, size))
    n_keys, n_past = _cache_extents(c, length)
    filled = _filled(c, batch, length)
    own = _positions(c, length, 1, length)
    places = c("Add", c.reshaped(filled, batch, 1), own)
    if c.attr("do_rotary", 0):
        tables = _tables(c, (7, 8), c.input(9) or places)
        half = c.shape(7)[1]
        q, k = (_rotated(c, x, size, tables, half) for x in (q, k))
    if c.input(3) and n_past:
        if not (c.wants(1) and c.wants(2)):
            raise c.refuse("it has past keys and no present ones")  # ONNX Runtime ignores the past
        k, v = (
            _inserted(c, c.input(slot), x, filled, (batch, n_shared, length, size), n_past, n_keys)
            for slot, x in ((3, k), (4, v))
        )
    elif n_keys != length:
        raise c.refuse("a cache that is longer than its keys")
    c.bind(1, k)
    c.bind(2, v)
    group = n_heads // n_shared
    rows = c.reshaped(q, batch, n_shared, group * length, size)
    weights = c.reshaped(_weights(c, rows, k, size), batch, n_heads, length, n_keys)
    places = c.reshaped(places, batch, 1, length, 1)
    weights = _group_masks(c, weights, places, n_keys, length)
    shares = _with_sinks(c, weights, (batch, n_heads, length, n_keys))
    shares = c.reshaped(shares, batch, n_shared, group * length, n_keys)
    found = c.reshaped(c("MatMul", shares, v), batch, n_heads, length, size)
    if 0 < c.attr("local_window_size", -1) < length and _is_causal_prompt(c, length):
        found = _without_blind_rows(c, found, places)
    _joined(c, found, batch, length, width)


def _is_causal_prompt(c: Composer, length: int) -> bool:
    """Whether prompts of several lengths may be among the queries, padded behind their ends."""
    return length > 1 and int(_total(c)[0]) == length and bool(c.attr("causal", 1))


def _last(c: Composer) -> str:
    """The last filled place of every sequence, (batch, 1, 1, 1)."""
    return c.reshaped(c.cast(c.input(5), "int64"), -1, 1, 1, 1)


def _without_blind_rows(c: Composer, found: str, places: str) -> str:
    """Zeros in rows so far behind the end of a prompt that their window has nothing of it."""
    before = c("Sub", places, c.array(np.array([c.attr("local_window_size", -1)])))
    return c("Where", c("Less", before, _last(c)), found, c.float(0.0))


def _total(c: Composer) -> Array:
    total = c.value(6)
    if total is None:
        raise c.refuse("its total length is computed at run time; bind it with `constants`")
    return total.reshape(-1)


def _check_cache(c: Composer, heads: tuple[int, int, int]) -> None:
    """Require past keys of as many samples, heads and values of a head as the new ones, and of a
    cache of a window that it is as long as the window and evicts nothing."""
    for shape in (c.shape(n) for n in (3, 4) if c.input(n)):
        if (*shape[:2], *shape[3:]) != heads:
            batch, n, size = heads
            raise malformed(c.node, f"its cache is of shape {shape}, not ({batch}, {n}, …, {size})")
    if c.attr("sliding_window_cache", 0):
        capacity, window = c.shape(3)[2] if c.input(3) else 0, c.attr("local_window_size", -1)
        if capacity < window:
            raise malformed(c.node, f"a cache of {capacity} for a window of {window}")
        if int(_total(c)[0]) > capacity:
            raise c.refuse("its cache gives up what is older than the window")


def _cache_extents(c: Composer, length: int) -> tuple[int, int]:
    """Extents of the keys with the new ones, and of the past ones."""
    n_past = c.shape(3)[2] if c.input(3) else 0
    return max(int(_total(c)[0]), n_past), n_past


def _filled(c: Composer, batch: int, length: int) -> str:
    """How many keys the past of every sequence has, (batch): all before a first prompt is none."""
    if int(_total(c)[0]) == length:
        return c.array(np.zeros(batch, np.int64))
    last = c.reshaped(c.cast(c.input(5), "int64"), batch)
    return c("Add", last, c.array(np.array([1 - length])))


def _inserted(
    c: Composer,
    past: str,
    new: str,
    filled: str,
    shape: tuple[int, int, int, int],
    n_past: int,
    n_keys: int,
) -> str:
    """The past up to `filled`, behind it what is new, behind that zeros."""
    batch, _, length, size = shape
    if n_past < n_keys:
        amounts = c.integers(0, 0, 0, 0, 0, 0, n_keys - n_past, 0)
        past = c("Pad", past, amounts, c.float(0.0))
    at = _positions(c, n_keys, 1, 1, n_keys, 1)
    own = c("Sub", at, c.reshaped(filled, batch, 1, 1, 1))
    zero, last = c.array(np.array([0])), c.array(np.array([length - 1]))
    row = c("Min", c("Max", own, zero), last)
    rows = c("Expand", row, c.integers(batch, shape[1], n_keys, size))
    moved = c("GatherElements", new, rows, axis=2)
    is_new = c("LessOrEqual", own, last)
    behind = c("Where", is_new, moved, c.float(0.0))
    return c("Where", c("Less", own, zero), past, behind)


def _group_masks(c: Composer, weights: str, places: str, n_keys: int, length: int) -> str:
    """A soft cap, what is added, and the keys that a query does not see."""
    cap, window = c.attr("softcap", 0.0), c.attr("local_window_size", -1)
    if cap:
        limit = c.float(cap)
        weights = c("Mul", c("Tanh", c("Div", weights, limit)), limit)
    if c.input(10):
        weights = c("Add", weights, c.input(10))
    at = _positions(c, n_keys, 1, 1, 1, n_keys)
    if not c.attr("causal", 1):
        places = _last(c)
    # rows behind the end of a shorter prompt see no more than its last one
    ends = c("Min", places, _last(c)) if _is_causal_prompt(c, length) else places
    seen = c("LessOrEqual", at, ends)
    if window > 0:
        first = c("Sub", places, c.array(np.array([window])))
        seen = c("And", seen, c("Greater", at, first))
    return c("Where", seen, weights, c.float(_LOWEST))


def _with_sinks(c: Composer, weights: str, shape: tuple[int, int, int, int]) -> str:
    """Softmax with one more weight per head, that of nothing: 0 or the sink of the head."""
    batch, n_heads, length, n_keys = shape
    if not c.attr("smooth_softmax", 0) > 0 and not c.input(11):
        return c("Softmax", weights, axis=-1)
    sink = c.reshaped(c.input(11), 1, n_heads, 1, 1) if c.input(11) else c.float(0.0)
    column = c("Expand", sink, c.integers(batch, n_heads, length, 1))
    shares = c("Softmax", c("Concat", weights, column, axis=-1), axis=-1)
    return c.several("Split", 2, shares, c.integers(n_keys, 1), axis=-1)[0]


COMPOSITIONS: dict[str, Composition] = {
    "com.microsoft.Attention": _attention,
    "com.microsoft.QAttention": _quantised_attention,
    "com.microsoft.MultiHeadAttention": _multi_head_attention,
    "com.microsoft.GroupQueryAttention": _group_query_attention,
    "com.microsoft.RotaryEmbedding": _rotary,
}
