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
from autotune.graph.reader.growth import SHARES_BUFFER
from autotune.graph.reader.qlinear import integer_product
from autotune.graph.rewriter import Rewrite, Rewriter

_LOWEST = float(np.finfo(np.float32).min)


# --- parts ----------------------------------------------------------------------------------------


def _heads(rw: Rewriter, x: str, batch: int, length: int, n_heads: int, size: int) -> str:
    """(batch, length, heads · size) -> (batch, heads, length, size)."""
    apart = rw.reshaped(x, batch, length, n_heads, size)
    return rw("Transpose", apart, perm=(0, 2, 1, 3))


def _joined(rw: Rewriter, x: str, batch: int, length: int, width: int) -> None:
    """(batch, heads, length, size) -> (batch, length, heads · size), the result of the node."""
    together = rw("Transpose", x, perm=(0, 2, 1, 3))
    rw.result("Reshape", together, rw.integers(batch, length, width))


def _weights(rw: Rewriter, q: str, k: str, size: int, rank: int = 4) -> str:
    """q · kᵀ · scale."""
    scale = rw.attr("scale", 0.0) or 1 / math.sqrt(size)
    turned = rw("Transpose", k, perm=(*range(rank - 2), rank - 1, rank - 2))
    product = rw("MatMul", q, turned)
    return rw("Mul", product, rw.scalar(scale))


def _causal(rw: Rewriter, n_queries: int, n_keys: int) -> str:
    """Causal mask to add, (n_queries, n_keys); the queries are the last positions."""
    own = _positions(rw, n_queries, n_queries, 1)
    ends = rw("Add", own, rw.array(np.array(n_keys - n_queries)))
    seen = rw("LessOrEqual", _positions(rw, n_keys, n_keys), ends)
    return rw("Where", seen, rw.scalar(0.0), rw.scalar(_LOWEST))


def _positions(rw: Rewriter, n: int, *shape: int) -> str:
    return rw.array(np.arange(n, dtype=np.int64).reshape(shape))


def _mask(rw: Rewriter, slot: int, batch: int, n_keys: int) -> str:
    """Input `slot` as a bias of the scores: lengths, or 0 where a key is masked.

    (batch) lengths, (2·batch) ends and starts, (batch, keys), (batch, queries, keys).
    """
    name, shape = rw.input(slot), rw.shape(slot)
    filler = rw.scalar(rw.attr("mask_filter_value", -10000.0))
    if len(shape) == 1 and shape[0] in (batch, 2 * batch):
        bounds = rw.cast(name, "int64")
        at = _positions(rw, n_keys, 1, 1, 1, n_keys)
        ends, starts = bounds, []
        if shape[0] == 2 * batch and shape[0] != batch:
            lengths = rw.integers(batch, batch)
            ends, *starts = rw.several("Split", 2, bounds, lengths, axis=0)
        kept = rw("Less", at, rw.reshaped(ends, batch, 1, 1, 1))
        for start in starts:
            kept = rw("And", kept, rw("GreaterOrEqual", at, rw.reshaped(start, batch, 1, 1, 1)))
    elif len(shape) in (2, 3) and shape[-1] == n_keys:
        wide = rw.reshaped(name, shape[0], 1, *(shape[1:] if len(shape) == 3 else (1, n_keys)))
        kept = rw.cast(wide, "bool")
    else:
        raise rw.refuse("a mask of that form")
    return rw("Where", kept, rw.scalar(0.0), filler)


def _softmax_product(rw: Rewriter, weights: str, v: str) -> str:
    return rw("MatMul", rw("Softmax", weights, axis=-1), v)


def _without(rw: Rewriter, *slots: int) -> None:
    """Refuse inputs that have no composition here."""
    if any(map(rw.input, slots)):
        raise rw.refuse(f"input {next(n for n in slots if rw.input(n))} is used")


def without_results(rw: Rewriter, *numbers: int) -> None:
    """Refuse results that have no composition here."""
    if any(map(rw.wants, numbers)):
        raise rw.refuse("a further output is used")


# --- Attention and MultiHeadAttention -------------------------------------------------------------


def _attention(rw: Rewriter) -> None:
    """x, weights of q, k and v side by side, bias, mask, past, bias of the scores."""
    _without(rw, 6)
    product = rw("MatMul", rw.input(0), rw.input(1))
    if rw.input(2):
        product = rw("Add", product, rw.input(2))
    _of_projection(rw, product, mask=3, past=4, added=5)


def _quantised_attention(rw: Rewriter) -> None:
    """x, weights, bias, scales of both, mask, zero points of both, past."""
    operands = rw.input(0), rw.input(1), rw.input(6), rw.input(7)
    product = rw("Add", integer_product(rw, operands, (rw.input(3), rw.input(4))), rw.input(2))
    _of_projection(rw, product, mask=5, past=8, added=-1)


def _of_projection(rw: Rewriter, product: str, mask: int, past: int, added: int) -> None:
    """Attention of q, k and v that lie side by side in `product`."""
    if rw.attr("do_rotary", 0) or rw.attr("past_present_share_buffer", 0):
        raise rw.refuse("it rotates, or shares the buffer of its cache")
    batch, length, _ = rw.shape(0)
    n_heads, total = rw.attr("num_heads", 1), rw.shape(1)[-1]
    widths = rw.attr("qkv_hidden_sizes", ()) or (total // 3,) * 3
    parts = rw.several("Split", 3, product, rw.integers(*widths), axis=-1)
    q, k, v = (
        _heads(rw, part, batch, length, n_heads, width // n_heads)
        for part, width in zip(parts, widths, strict=True)
    )
    n_keys = length
    if rw.input(past):
        n_keys += rw.shape(past)[3]
        halves = rw.several("Split", 2, rw.input(past), rw.integers(1, 1), axis=0)
        zero = rw.integers(0)
        before = [rw("Squeeze", half, zero) for half in halves]
        k, v = (rw("Concat", a, b, axis=2) for a, b in zip(before, (k, v), strict=True))
    if rw.wants(1):
        zero = rw.integers(0)
        rw.bind(1, rw("Concat", rw("Unsqueeze", k, zero), rw("Unsqueeze", v, zero), axis=0))
    weights = _weights(rw, q, k, widths[0] // n_heads)
    if rw.input(mask):
        weights = rw("Add", weights, _mask(rw, mask, batch, n_keys))
    if rw.attr("unidirectional", 0):
        weights = rw("Add", weights, _causal(rw, length, n_keys))
    if added >= 0 and rw.input(added):
        weights = rw("Add", weights, rw.input(added))
    _joined(rw, _softmax_product(rw, weights, v), batch, length, widths[2])


def _multi_head_attention(rw: Rewriter) -> None:
    """q, k, v, bias, mask of keys, bias of the scores, past keys, past values."""
    _without(rw, 8, 9)
    without_results(rw, 3)
    if rw.rank(0) != 3 or not rw.input(1) or rw.rank(1) not in (3, 4) or not rw.input(2):
        raise rw.refuse("its operands are packed")
    n_heads, (batch, length, width) = rw.attr("num_heads", 1), rw.shape(0)
    names = [rw.input(n) for n in range(3)]
    is_split = rw.rank(1) == 4
    key, value = rw.shape(1), rw.shape(2)
    n_keys = key[2] if is_split else key[1]
    out = value[1] * value[3] if is_split else value[2]
    if rw.input(3):
        own = names[:1] if is_split else names
        parts = rw.several("Split", 3, rw.input(3), rw.integers(width, width, out), axis=0)
        names[: len(own)] = [rw("Add", x, b) for x, b in zip(own, parts, strict=False)]
    q = _heads(rw, names[0], batch, length, n_heads, width // n_heads)
    k, v = names[1:]
    if not is_split:
        k = _heads(rw, k, batch, n_keys, n_heads, width // n_heads)
        v = _heads(rw, v, batch, n_keys, n_heads, out // n_heads)
    if rw.input(6):
        n_keys += rw.shape(6)[2]
        k, v = rw("Concat", rw.input(6), k, axis=2), rw("Concat", rw.input(7), v, axis=2)
    rw.bind(1, k)
    rw.bind(2, v)
    weights = _weights(rw, q, k, width // n_heads)
    if rw.input(4):
        weights = rw("Add", weights, _mask(rw, 4, batch, n_keys))
    if rw.input(5):
        weights = rw("Add", weights, rw.input(5))
    if rw.attr("unidirectional", 0):
        weights = rw("Add", weights, _causal(rw, length, n_keys))
    _joined(rw, _softmax_product(rw, weights, v), batch, length, out)


# --- rotation -------------------------------------------------------------------------------------


def _rotated(rw: Rewriter, x: str, size: int, tables: tuple[str, str], half: int) -> str:
    """The first 2·`half` elements of every head rotated by angles; the others as they are.

    tables: cosines and sines, (batch or 1, 1, length, half).
    """
    interleaved = rw.attr("interleaved", rw.attr("rotary_interleaved", 0))
    rest: tuple[str, ...] = ()
    if 2 * half < size:
        x, *rest_ = rw.several("Split", 2, x, rw.integers(2 * half, size - 2 * half), axis=-1)
        rest = tuple(rest_)
    if interleaved:
        last = rw.integers(-1)
        pairs = rw("Reshape", x, rw.integers(0, 0, 0, half, 2))
        parts = rw.several("Split", 2, pairs, rw.integers(1, 1), axis=-1)
        a, b = (rw("Squeeze", part, last) for part in parts)
    else:
        a, b = rw.several("Split", 2, x, rw.integers(half, half), axis=-1)
    cos, sin = tables
    real = rw("Sub", rw("Mul", a, cos), rw("Mul", b, sin))
    imaginary = rw("Add", rw("Mul", a, sin), rw("Mul", b, cos))
    if interleaved:
        both = (rw("Unsqueeze", part, last) for part in (real, imaginary))
        turned = rw("Reshape", rw("Concat", *both, axis=-1), rw.integers(0, 0, 0, 2 * half))
    else:
        turned = rw("Concat", real, imaginary, axis=-1)
    return rw("Concat", turned, *rest, axis=-1) if rest else turned


def _tables(rw: Rewriter, slots: tuple[int, int], places: str) -> tuple[str, str]:
    """Rows of cosines and sines at `places` (batch or 1, length) -> (…, 1, length, half)."""
    axis = rw.integers(1)
    rows = [rw("Unsqueeze", rw("Gather", rw.input(n), places), axis) for n in slots]
    return rows[0], rows[1]


def _rotary(rw: Rewriter) -> None:
    """x, places, cosines, sines; x is (batch, length, heads · size) or (batch, heads, …)."""
    if rw.attr("is_packed_batching", 0) or rw.attr("scale", 1.0) != 1.0:
        raise rw.refuse("its batches are packed, or it has a scale")
    shape, half = rw.shape(0), rw.shape(2)[1]
    batch, length = shape[0], shape[-2]
    if len(shape) == 4:
        size, x = shape[3], rw.input(0)
    else:
        n_heads = rw.attr("num_heads", 0)
        size = shape[2] // n_heads if n_heads else 2 * half
        x = _heads(rw, rw.input(0), batch, length, shape[2] // size, size)
    places = rw.input(1)
    if math.prod(rw.shape(1)) == 1:
        first = rw.reshaped(places, 1, 1)
        places = rw("Add", first, _positions(rw, length, 1, length))
    turned = _rotated(rw, x, size, _tables(rw, (2, 3), places), half)
    if len(shape) == 4:
        rw.result("Identity", turned)
    else:
        _joined(rw, turned, batch, length, shape[2])


# --- GroupQueryAttention --------------------------------------------------------------------------


def _group_query_attention(rw: Rewriter) -> None:
    """q, k, v, past keys and values, last filled places, extent of the cache, cosines, sines,
    places, bias of the scores, sinks.

    The new keys lie behind the filled ones of the past; the extent of the cache is a constant.
    """
    _without(rw, *range(12, 16))
    without_results(rw, 3)
    n_heads, n_shared = rw.attr("num_heads", 1), rw.attr("kv_num_heads", 1)
    (batch, length, width), names = rw.shape(0), [rw.input(n) for n in range(3)]
    if not names[1]:
        size = width // (n_heads + 2 * n_shared)
        width = n_heads * size
        lengths = rw.integers(width, n_shared * size, n_shared * size)
        names = list(rw.several("Split", 3, names[0], lengths, axis=-1))
    size = width // n_heads
    q, k, v = (
        _heads(rw, x, batch, length, n, size)
        for x, n in zip(names, (n_heads, n_shared, n_shared), strict=True)
    )
    _check_cache(rw, (batch, n_shared, size))
    n_keys, n_past = _cache_extents(rw, length)
    filled = _filled(rw, batch, length)
    own = _positions(rw, length, 1, length)
    places = rw("Add", rw.reshaped(filled, batch, 1), own)
    if rw.attr("do_rotary", 0):
        tables = _tables(rw, (7, 8), rw.input(9) or places)
        half = rw.shape(7)[1]
        q, k = (_rotated(rw, x, size, tables, half) for x in (q, k))
    if rw.input(3) and n_past:
        if not (rw.wants(1) and rw.wants(2)):
            raise rw.refuse("it has past keys and no present ones")  # ONNX Runtime ignores the past
        k, v = (
            _inserted(
                rw, rw.input(slot), x, filled, (batch, n_shared, length, size), n_past, n_keys
            )
            for slot, x in ((3, k), (4, v))
        )
    elif n_keys != length:
        raise rw.refuse("a cache that is longer than its keys")
    rw.bind(1, k)
    rw.bind(2, v)
    group = n_heads // n_shared
    # of one token, heads that share keys are rows; of several, masks have a row for each token
    shared = (n_shared, group, length) if min(group, length) > 1 else (n_shared, group * length)
    if len(shared) > 2:
        k, v = (rw.reshaped(x, batch, n_shared, 1, n_keys, size) for x in (k, v))
    weights = _weights(rw, rw.reshaped(q, batch, *shared, size), k, size, len(shared) + 2)
    weights = rw.reshaped(weights, batch, n_heads, length, n_keys)
    places = rw.reshaped(places, batch, 1, length, 1)
    weights = _group_masks(rw, weights, places, n_keys, length)
    shares = _with_sinks(rw, weights, (batch, n_heads, length, n_keys))
    shares = rw.reshaped(shares, batch, *shared, n_keys)
    found = rw.reshaped(rw("MatMul", shares, v), batch, n_heads, length, size)
    if 0 < rw.attr("local_window_size", -1) < length and _is_causal_prompt(rw, length):
        found = _without_blind_rows(rw, found, places)
    _joined(rw, found, batch, length, width)


def _is_causal_prompt(rw: Rewriter, length: int) -> bool:
    """Whether prompts of several lengths may be among the queries, padded behind their ends."""
    return length > 1 and int(_total(rw)[0]) == length and bool(rw.attr("causal", 1))


def _last(rw: Rewriter) -> str:
    """The last filled place of every sequence, (batch, 1, 1, 1)."""
    return rw.reshaped(rw.cast(rw.input(5), "int64"), -1, 1, 1, 1)


def _without_blind_rows(rw: Rewriter, found: str, places: str) -> str:
    """Zeros in rows so far behind the end of a prompt that their window has nothing of it."""
    before = rw("Sub", places, rw.array(np.array([rw.attr("local_window_size", -1)])))
    return rw("Where", rw("Less", before, _last(rw)), found, rw.scalar(0.0))


def _total(rw: Rewriter) -> Array:
    total = rw.value(6)
    if total is None:
        raise rw.refuse("its total length is computed at run time; bind it with `constants`")
    return total.reshape(-1)


def _check_cache(rw: Rewriter, heads: tuple[int, int, int]) -> None:
    """Require past keys of as many samples, heads and values of a head as the new ones, and of a
    cache of a window that it is as long as the window and evicts nothing."""
    for shape in (rw.shape(n) for n in (3, 4) if rw.input(n)):
        if (*shape[:2], *shape[3:]) != heads:
            batch, n, size = heads
            raise malformed(
                rw.node, f"its cache is of shape {shape}, not ({batch}, {n}, …, {size})"
            )
    if rw.attr("sliding_window_cache", 0) and not rw.attr(SHARES_BUFFER, 0):
        capacity, window = rw.shape(3)[2] if rw.input(3) else 0, rw.attr("local_window_size", -1)
        if capacity < window:
            raise malformed(rw.node, f"a cache of {capacity} for a window of {window}")
        if int(_total(rw)[0]) > capacity:
            raise rw.refuse("its cache gives up what is older than the window")


def _cache_extents(rw: Rewriter, length: int) -> tuple[int, int]:
    """Extents of the keys with the new ones, and of the past ones."""
    n_past = rw.shape(3)[2] if rw.input(3) else 0
    return max(int(_total(rw)[0]), n_past), n_past


def _filled(rw: Rewriter, batch: int, length: int) -> str:
    """Lengths of the past keys, (batch); 0 for a first prompt."""
    if int(_total(rw)[0]) == length:
        return rw.array(np.zeros(batch, np.int64))
    last = rw.reshaped(rw.cast(rw.input(5), "int64"), batch)
    return rw("Add", last, rw.array(np.array([1 - length])))


def _inserted(
    rw: Rewriter,
    past: str,
    new: str,
    filled: str,
    shape: tuple[int, int, int, int],
    n_past: int,
    n_keys: int,
) -> str:
    """The past up to `filled`, behind it the new keys or values, behind that zeros."""
    batch, _, length, size = shape
    if rw.attr(SHARES_BUFFER, 0):
        return rw("Concat", past, new, axis=2)
    if n_past < n_keys:
        amounts = rw.integers(0, 0, 0, 0, 0, 0, n_keys - n_past, 0)
        past = rw("Pad", past, amounts, rw.scalar(0.0))
    at = _positions(rw, n_keys, 1, 1, n_keys, 1)
    own = rw("Sub", at, rw.reshaped(filled, batch, 1, 1, 1))
    zero, last = rw.array(np.array([0])), rw.array(np.array([length - 1]))
    row = rw("Min", rw("Max", own, zero), last)
    rows = rw("Expand", row, rw.integers(batch, shape[1], n_keys, size))
    moved = rw("GatherElements", new, rows, axis=2)
    is_new = rw("LessOrEqual", own, last)
    behind = rw("Where", is_new, moved, rw.scalar(0.0))
    return rw("Where", rw("Less", own, zero), past, behind)


def _group_masks(rw: Rewriter, weights: str, places: str, n_keys: int, length: int) -> str:
    """A soft cap, the bias of the scores, and the mask of keys that a query does not see."""
    cap, window = rw.attr("softcap", 0.0), rw.attr("local_window_size", -1)
    if cap:
        limit = rw.scalar(cap)
        weights = rw("Mul", rw("Tanh", rw("Div", weights, limit)), limit)
    if rw.input(10):
        weights = rw("Add", weights, rw.input(10))
    if length == 1 and window <= 0 and rw.attr(SHARES_BUFFER, 0):
        return weights  # a state ends with the only query
    at = _positions(rw, n_keys, 1, 1, 1, n_keys)
    if not rw.attr("causal", 1):
        places = _last(rw)
    # rows behind the end of a shorter prompt see no more than its last one
    ends = rw("Min", places, _last(rw)) if _is_causal_prompt(rw, length) else places
    seen = rw("LessOrEqual", at, ends)
    if window > 0:
        first = rw("Sub", places, rw.array(np.array([window])))
        seen = rw("And", seen, rw("Greater", at, first))
    return rw("Where", seen, weights, rw.scalar(_LOWEST))


def _with_sinks(rw: Rewriter, weights: str, shape: tuple[int, int, int, int]) -> str:
    """Softmax with one more weight per head, that of nothing: 0 or the sink of the head."""
    batch, n_heads, length, n_keys = shape
    if not rw.attr("smooth_softmax", 0) > 0 and not rw.input(11):
        return rw("Softmax", weights, axis=-1)
    sink = rw.reshaped(rw.input(11), 1, n_heads, 1, 1) if rw.input(11) else rw.scalar(0.0)
    column = rw("Expand", sink, rw.integers(batch, n_heads, length, 1))
    shares = rw("Softmax", rw("Concat", weights, column, axis=-1), axis=-1)
    return rw.several("Split", 2, shares, rw.integers(n_keys, 1), axis=-1)[0]


COMPOSITIONS: dict[str, Rewrite] = {
    "com.microsoft.Attention": _attention,
    "com.microsoft.QAttention": _quantised_attention,
    "com.microsoft.MultiHeadAttention": _multi_head_attention,
    "com.microsoft.GroupQueryAttention": _group_query_attention,
    "com.microsoft.RotaryEmbedding": _rotary,
}
