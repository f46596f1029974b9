"""① Linear attention and causal convolutions as ONNX Runtime's domain has them, all places at once.

    S[t] = exp(g[t]) · S[t - 1] + k[t] ⊗ u[t]           o[t] = scale · S[t]ᵀ · q[t]
    u[t] = v[t], or with the delta rule β[t] · (v[t] - exp(g[t]) · S[t - 1]ᵀ · k[t])

With G[t] = Σ g[s] over s ≤ t and D[t, s] = exp(G[t] - G[s]) for s ≤ t, else 0:

    o = scale · (exp(G) · q · S[0] + (D ∘ q·kᵀ) · u)
    S[T] = exp(G[T]) · S[0] + (D[T] ∘ k)ᵀ · u
    u = (I + β · strictly lower (D ∘ k·kᵀ))⁻¹ · β · (v - exp(G) · k · S[0])

The inverse is a substitution, place by place (`Substituted`); all else are products. One place is
the recurrence itself.
Meanings: https://github.com/microsoft/onnxruntime/blob/main/docs/ContribOperators.md
Source: Yang et al., Gated Delta Networks, 2024
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from autotune.graph.ir import malformed
from autotune.graph.operators.substitution import SUBSTITUTED
from autotune.graph.rewriter import Rewrite, Rewriter

_RULES = {"linear": (False, False), "gated": (True, False)} | {
    "delta": (False, True),
    "gated_delta": (True, True),
}
"""Whether there is a decay, and whether what the state has is taken away."""
_LOWEST = float(np.finfo(np.float32).min)


@dataclass(frozen=True, slots=True)
class _Sizes:
    """Extents: samples, heads of q and of k, places, numbers of a key and of a value."""

    batch: int
    queries: int
    heads: int
    places: int
    key: int
    value: int


def _linear_attention(rw: Rewriter) -> None:
    """q, k, v (batch, places, heads · size), state (batch, heads, key, value), decay, rate."""
    rule = rw.attr("update_rule", "gated_delta")
    if rule not in _RULES or rw.attr("state_window", 0):
        raise rw.refuse(f"update rule {rule}, or a window of states")
    decays, is_delta = _RULES[rule]
    n = _sizes(rw)
    q, k, v = (
        _heads(rw, rw.input(i), n.places, heads, size)
        for i, (heads, size) in enumerate(
            ((n.queries, n.key), (n.heads, n.key), (n.heads, n.value))
        )
    )
    q = rw.reshaped(q, n.batch, n.heads, -1, n.places, n.key) if n.queries >= n.heads else q
    before = rw.input(3) or rw.array(np.zeros((n.batch, n.heads, n.key, n.value), np.float32))
    since, apart = _decays(rw, n) if decays else ("", _mask(rw, n.places))
    u = _replaced(rw, n, k, v, before, since, apart) if is_delta else v
    _outputs(rw, n, q, k, u, before, since, apart)
    _state(rw, n, k, u, before, since)


def _sizes(rw: Rewriter) -> _Sizes:
    queries, heads = rw.attr("q_num_heads", 0), rw.attr("kv_num_heads", 0)
    if not queries or not heads or max(queries, heads) % min(queries, heads):
        raise malformed(rw.node, f"{queries} heads of queries, {heads} of keys")
    batch, places, width = rw.shape(0)
    return _Sizes(batch, queries, heads, places, width // queries, rw.shape(2)[2] // heads)


def _heads(rw: Rewriter, x: str, places: int, heads: int, size: int) -> str:
    """(batch, places, heads · size) -> (batch, heads, places, size)."""
    return rw("Transpose", rw.reshaped(x, -1, places, heads, size), perm=(0, 2, 1, 3))


def _mask(rw: Rewriter, n: int) -> str:
    """1 where a place sees another one, (places, places)."""
    return rw.cast(_seen(rw, n), "float32")


def _seen(rw: Rewriter, n: int) -> str:
    at = np.arange(n, dtype=np.int64)
    return rw("LessOrEqual", rw.array(at[None]), rw.array(at[:, None]))


def _decays(rw: Rewriter, n: _Sizes) -> tuple[str, str]:
    """The logarithm of the decay since the beginning, (…, places, 1), and the decay between two
    places, (…, places, places)."""
    width = rw.shape(4)[2] // n.heads
    if width != 1 and n.places > 1:
        raise rw.refuse("a decay for each number of a key, for several places at once")
    own = _heads(rw, rw.input(4), n.places, n.heads, width)
    if n.places == 1:
        return own, _mask(rw, 1)
    since = rw("MatMul", _mask(rw, n.places), own)
    between = rw("Sub", since, rw("Transpose", since, perm=(0, 1, 3, 2)))
    return since, rw("Exp", rw("Where", _seen(rw, n.places), between, rw.scalar(_LOWEST)))


def _decayed(rw: Rewriter, x: str, since: str) -> str:
    return rw("Mul", x, rw("Exp", since)) if since else x


def _replaced(rw: Rewriter, n: _Sizes, k: str, v: str, before: str, since: str, apart: str) -> str:
    """What each place adds to the state along its key: u of the module."""
    rates = rw.shape(5)[2]
    rate = _heads(rw, rw.input(5), n.places, rates, 1)
    known = rw("MatMul", _decayed(rw, k, since), before)
    own = rw("Mul", rate, rw("Sub", v, known))
    if n.places == 1:
        return own
    keys = rw("MatMul", k, rw("Transpose", k, perm=(0, 1, 3, 2)))
    factors = rw("Mul", rate, rw("Mul", keys, apart))
    shape = n.batch * n.heads
    factors = rw.reshaped(factors, shape, n.places, n.places)
    found = rw(SUBSTITUTED, factors, rw.reshaped(own, shape, n.places, n.value))
    turned = rw("Transpose", found, perm=(0, 2, 1))
    return rw.reshaped(turned, n.batch, n.heads, n.places, n.value)


def _outputs(
    rw: Rewriter, n: _Sizes, q: str, k: str, u: str, before: str, since: str, apart: str
) -> None:
    one = rw.integers(2)
    if n.queries < n.heads:  # heads of keys that share one of queries
        wide = rw("Unsqueeze", q, one)
        each = (n.batch, n.queries, n.heads // n.queries, n.places, n.key)
        q = rw.reshaped(rw("Expand", wide, rw.integers(*each)), n.batch, n.heads, 1, *each[3:])
    k, u, before = (rw("Unsqueeze", x, one) for x in (k, u, before))
    since = rw("Unsqueeze", since, one) if since else ""
    apart = rw("Unsqueeze", apart, one) if since and n.places > 1 else apart
    scores = rw("Mul", rw("MatMul", q, rw("Transpose", k, perm=(0, 1, 2, 4, 3))), apart)
    old = rw("MatMul", _decayed(rw, q, since), before)
    total = rw("Add", old, rw("MatMul", scores, u))
    scale = rw.attr("scale", 0.0) or 1 / math.sqrt(n.key)
    most = max(n.queries, n.heads)
    y = rw.reshaped(rw("Mul", total, rw.scalar(scale)), n.batch, most, n.places, n.value)
    y = rw("Transpose", y, perm=(0, 2, 1, 3))
    rw.result("Reshape", y, rw.integers(n.batch, n.places, most * n.value))


def _state(rw: Rewriter, n: _Sizes, k: str, u: str, before: str, since: str) -> None:
    if not rw.wants(1):
        return
    if since and n.places > 1:
        last = rw.slice(since, (2,), (n.places - 1,), (n.places,))
        k = rw("Mul", k, rw("Exp", rw("Sub", last, since)))
        since = last
    if since:  # (…, 1, key or 1) -> (…, key or 1, 1)
        before = _decayed(rw, before, rw("Transpose", since, perm=(0, 1, 3, 2)))
    added = rw("MatMul", rw("Transpose", k, perm=(0, 1, 3, 2)), u)
    rw.bind(1, rw("Add", before, added))


# --- CausalConvWithState --------------------------------------------------------------------------


def _causal_convolution(rw: Rewriter) -> None:
    """x (batch, channels, places), weights (channels, 1, k), bias, former places."""
    extended = ("state_window", "state_update_capacity", "input_channels", "input_channel_offset")
    if rw.rank(0) != 3 or rw.attr("ndim", 1) != 1 or any(rw.attr(a, 0) for a in extended):
        raise rw.refuse("several dimensions, or a window of states")
    is_last, activation = bool(rw.attr("channels_last", 0)), rw.attr("activation", "none")
    if activation not in ("none", "silu", "swish"):
        raise rw.refuse(f"activation {activation}")
    n_channels, step = rw.shape(1)[0], rw.attr("dilation", 1)
    room = (rw.shape(1)[2] - 1) * step
    x, past = (_channels_first(rw, rw.input(n), is_last) for n in (0, 3))
    if not past:
        past = rw.array(np.zeros((rw.shape(0)[0], n_channels, room), np.float32))
    whole = rw("Concat", past, x, axis=2)
    y = rw("Conv", whole, rw.input(1), rw.input(2), group=n_channels, dilations=[step])
    y = y if activation == "none" else rw("Mul", y, rw("Sigmoid", y))
    rw.result("Identity", _channels_first(rw, y, is_last))
    if rw.wants(1):
        ends = np.iinfo(np.int64).max
        rw.bind(1, _channels_first(rw, rw.slice(whole, (2,), (-room,), (ends,)), is_last))


def _channels_first(rw: Rewriter, x: str, is_last: bool) -> str:
    return rw("Transpose", x, perm=(0, 2, 1)) if x and is_last else x


COMPOSITIONS: dict[str, Rewrite] = {
    "com.microsoft.LinearAttention": _linear_attention,
    "com.microsoft.CausalConvWithState": _causal_convolution,
}
