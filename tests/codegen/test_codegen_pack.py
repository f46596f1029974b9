from __future__ import annotations

import itertools
from unittest.mock import Mock

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from autotune.codegen.memory import ALIGNMENT
from autotune.codegen.pack import pack
from autotune.loopir.nodes import Packing
from autotune.te.expr import (
    Axis,
    Binary,
    Compare,
    Const,
    Expr,
    Select,
    Tensor,
    Var,
    idx,
)


def value(e: Expr, at: dict[str, int]) -> int:
    """Direct evaluation of one index at one point, in plain Python."""
    match e:
        case Const(value=v):
            return int(v)
        case Var(name=name):
            return at[name]
        case Binary(op=op, a=a, b=b) | Compare(op=op, a=a, b=b):
            x, y = value(a, at), value(b, at)
            table = {
                "add": lambda: x + y,
                "sub": lambda: x - y,
                "mul": lambda: x * y,
                "floordiv": lambda: x // y,
                "mod": lambda: x % y,
                "min": lambda: min(x, y),
                "max": lambda: max(x, y),
                "lt": lambda: int(x < y),
            }
            return table[op]()
        case Select(cond=cond, a=a, b=b):
            return value(a if value(cond, at) else b, at)
        case _:
            raise AssertionError(e)


def reference(packing: Packing, source: np.ndarray) -> np.ndarray:
    out = np.zeros(packing.packed.shape, packing.packed.dtype)
    for point in itertools.product(*(range(a.extent) for a in packing.axes)):
        at = {a.name: p for a, p in zip(packing.axes, point, strict=True)}
        where = tuple(value(e, at) for e in packing.indices)
        if all(0 <= i < n for i, n in zip(where, source.shape, strict=True)):
            out[point] = source[where]
    return out


def make(axes: list[Axis], shape: tuple[int, ...], indices: list[Expr]) -> Packing:
    packed = Tensor("w.packed", tuple(a.extent for a in axes))
    return Packing(packed, Tensor("w", shape), tuple(axes), tuple(indices))


def numbered(shape: tuple[int, ...]) -> np.ndarray:
    return np.arange(1, 1 + np.prod(shape), dtype=np.float32).reshape(shape)


@st.composite
def packings(draw: st.DrawFn) -> Packing:
    n_axes = draw(st.integers(1, 4))
    axes = [Axis(f"i{n}", draw(st.integers(1, 6))) for n in range(n_axes)]

    def term() -> Expr:
        var = Var(draw(st.sampled_from([a.name for a in axes])))
        return Binary("mul", var, idx(draw(st.integers(-3, 5))))

    def affine() -> Expr:
        total: Expr = idx(draw(st.integers(-4, 6)))
        for _ in range(draw(st.integers(0, 3))):
            total = Binary("add", total, term())
        return total

    def index(depth: int) -> Expr:
        kind = draw(st.sampled_from(["affine", "min", "max", "floordiv", "mod", "select", "sum"]))
        if kind == "affine" or depth == 0:
            return affine()
        if kind in ("floordiv", "mod"):
            return Binary(kind, index(depth - 1), idx(draw(st.integers(1, 5))))
        if kind == "select":
            return Select(Compare("lt", affine(), affine()), index(depth - 1), affine())
        return Binary("add" if kind == "sum" else kind, index(depth - 1), affine())

    shape = tuple(draw(st.integers(1, 12)) for _ in range(draw(st.integers(1, 3))))
    return make(axes, shape, [index(2) for _ in shape])


@pytest.mark.slow
@settings(max_examples=400, deadline=None)
@given(packings())
def test_equals_direct_evaluation(packing: Packing) -> None:
    source = numbered(packing.source.shape)
    np.testing.assert_array_equal(pack(packing, source), reference(packing, source))


def shifted(n: int, tile: int, depth: int) -> Packing:
    """Columns in tiles of `tile`, the last one moved inwards."""
    o, k, v = Axis("o", -(-n // tile)), Axis("k", depth), Axis("v", tile)
    start = Binary("min", Binary("mul", o.var, idx(tile)), idx(n - tile))
    return make([o, k, v], (depth, n), [k.var, Binary("add", start, v.var)])


def padded(n: int, tile: int, depth: int) -> Packing:
    """Columns in tiles of `tile`, the last one padded with zeros."""
    o, k, v = Axis("o", -(-n // tile)), Axis("k", depth), Axis("v", tile)
    return make(
        [o, k, v], (depth, n), [k.var, Binary("add", Binary("mul", o.var, idx(tile)), v.var)]
    )


def test_shifted_tile_repeats_what_it_shares() -> None:
    packed = pack(shifted(10, 4, 2), numbered((2, 10)))
    assert packed[:, 0].tolist() == [[1, 2, 3, 4], [5, 6, 7, 8], [7, 8, 9, 10]]


def test_outside_is_zero() -> None:
    packed = pack(padded(10, 4, 2), numbered((2, 10)))
    assert packed[2].tolist() == [[9, 10, 0, 0], [19, 20, 0, 0]]


def test_fused_axis_is_divided() -> None:
    k, v = Axis("k", 12), Axis("v", 3)
    indices: list[Expr] = [
        Binary("floordiv", k.var, idx(4)),
        Binary("mod", k.var, idx(4)),
        v.var,
    ]
    packed = pack(make([k, v], (3, 4, 3), indices), numbered((3, 4, 3)))
    np.testing.assert_array_equal(packed, numbered((12, 3)))


def test_result_is_aligned_and_has_the_packed_shape() -> None:
    packed = pack(padded(10, 4, 2), numbered((2, 10)))
    assert packed.shape == (3, 2, 4)
    assert packed.ctypes.data % ALIGNMENT == 0
    assert packed.flags.c_contiguous


def test_writes_into_given_memory() -> None:
    out = np.zeros((3, 2, 4), np.float32)
    assert pack(shifted(10, 4, 2), numbered((2, 10)), out) is out
    assert out[0, 0, 0] == 1


def test_source_need_not_be_contiguous() -> None:
    source = np.asfortranarray(numbered((2, 10)))
    np.testing.assert_array_equal(
        pack(shifted(10, 4, 2), source), reference(shifted(10, 4, 2), source)
    )


@pytest.mark.parametrize("packing", [shifted(1000, 32, 8), padded(1000, 32, 8)])
def test_large_tiles_take_few_copies(packing: Packing, monkeypatch: pytest.MonkeyPatch) -> None:
    copyto = Mock(wraps=np.copyto)
    with monkeypatch.context() as patch:
        patch.setattr(np, "copyto", copyto)
        packed = pack(packing, numbered(packing.source.shape))
    np.testing.assert_array_equal(packed, reference(packing, numbered(packing.source.shape)))
    assert copyto.call_count == 2
