from __future__ import annotations

import itertools

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.lib.stride_tricks import as_strided

from autotune.codegen.memory import ALIGNMENT
from autotune.errors import CodegenError
from autotune.graph.network import Network, Port, TaskCall
from autotune.graph.tasks.storage import Activation
from autotune.network.compile.memory import (
    Block,
    align,
    fold_strides,
    live_blocks,
    place_of,
    plan_arena,
)
from autotune.strides import dense


@st.composite
def block_lists(draw: st.DrawFn) -> list[Block]:
    spans = st.tuples(st.integers(1, 5000), st.integers(-1, 12), st.integers(0, 5))
    items = draw(st.lists(spans, max_size=25))
    return [Block(f"b{n}", size, first, first + d) for n, (size, first, d) in enumerate(items)]


@given(block_lists())
def test_no_two_busy_blocks_share_a_byte(blocks: list[Block]) -> None:
    plan = plan_arena(blocks)
    assert plan.offsets.keys() == {b.name for b in blocks}
    for a, b in itertools.combinations(blocks, 2):
        if a.first <= b.last and b.first <= a.last:
            x, y = plan.offsets[a.name], plan.offsets[b.name]
            assert x + a.n_bytes <= y or y + b.n_bytes <= x


@given(block_lists())
def test_offsets_are_aligned_inside_the_arena_and_independent_of_order(
    blocks: list[Block],
) -> None:
    plan = plan_arena(blocks)
    assert plan == plan_arena(reversed(blocks))
    assert plan.n_bytes % ALIGNMENT == 0
    for b in blocks:
        assert plan.offsets[b.name] % ALIGNMENT == 0
        assert 0 <= plan.offsets[b.name] <= plan.n_bytes - b.n_bytes


@given(block_lists())
def test_the_arena_is_never_larger_than_everything_side_by_side(blocks: list[Block]) -> None:
    assert plan_arena(blocks).n_bytes <= sum(align(b.n_bytes) for b in blocks)


def test_a_chain_needs_only_two_buffers() -> None:
    blocks = [Block(f"b{n}", 640, n, n + 1) for n in range(10)]
    assert plan_arena(blocks).n_bytes == 2 * 640


def test_the_smallest_sufficient_gap_is_used() -> None:
    blocks = [
        Block("big", 4096, 0, 9),
        Block("hole of 1024", 1024, 0, 0),
        Block("wall", 512, 0, 9),
        Block("hole of 256", 256, 0, 0),
        Block("lid", 128, 0, 9),
        Block("small", 64, 5, 6),
    ]
    offsets = plan_arena(blocks).offsets
    assert offsets["small"] == offsets["hole of 256"]


# --- strides ----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("shape", "strides", "new_shape", "expected"),
    [
        ((4, 6), (6, 1), (2, 2, 6), (12, 6, 1)),
        ((4, 6), (10, 1), (2, 2, 6), (20, 10, 1)),
        ((1, 5, 5, 8), (600, 120, 24, 1), (25, 8), (24, 1)),
        ((1, 5, 5, 8), (999, 120, 24, 1), (1, 25, 8), (200, 24, 1)),
        ((6,), (1,), (6, 1, 1), (1, 1, 1)),
        ((1, 1), (7, 7), (), ()),
    ],
)
def test_strides_follow_a_free_reshape(
    shape: tuple[int, ...],
    strides: tuple[int, ...],
    new_shape: tuple[int, ...],
    expected: tuple[int, ...],
) -> None:
    assert fold_strides(shape, strides, new_shape) == expected


def test_a_reshape_that_needs_a_copy_is_an_internal_error() -> None:
    with pytest.raises(CodegenError, match="internal"):
        fold_strides((4, 6), (10, 1), (24,))


@given(st.permutations([2, 3, 4]), st.integers(0, 3))
def test_folded_strides_visit_the_same_elements(shape: list[int], padding: int) -> None:
    a, b, c = shape
    strides = (b * (c + padding), c + padding, 1)
    store = np.arange(a * b * (c + padding))
    before = as_strided(store, shape, [8 * s for s in strides])
    folded = fold_strides(shape, strides, (a * b, c))
    after = as_strided(store, (a * b, c), [8 * s for s in folded])
    assert np.array_equal(before.ravel(), after.ravel())


# --- liveness ---------------------------------------------------------------------------------


def value(name: str, *shape: int, parent: str | None = None, offset: int = 0) -> Activation:
    strides = dense(shape) if parent is None else (16, 1)
    return Activation(name, shape, "float32", strides, parent, offset)


@pytest.fixture
def concat() -> Network:
    """x → a, b (side by side in c) → d → y; a is also read by the last call."""
    values = [
        value("x", 4, 8),
        value("c", 4, 16),
        value("a", 4, 8, parent="c"),
        value("b", 4, 8, parent="c", offset=8),
        value("d", 4, 16),
        value("y", 4, 16),
    ]
    calls = (
        TaskCall("t", {"i": "x"}, {}, {"o": "a"}, "first"),
        TaskCall("t", {"i": "x"}, {}, {"o": "b"}, "second"),
        TaskCall("t", {"i": "c"}, {}, {"o": "d"}, "third"),
        TaskCall("t", {"i": "d", "j": "a"}, {}, {"o": "y"}, "fourth"),
    )
    ports = (Port("x", (4, 8), "float32", "x"),), (Port("y", (4, 16), "float32", "y"),)
    return Network("n", *ports, {v.name: v for v in values}, calls, {}, "hash")


def test_windows_keep_their_storage_alive(concat: Network) -> None:
    blocks = {b.name: b for b in live_blocks(concat, [{}, {}, {"t": 100}, {}])}
    assert blocks == {
        "x": Block("x", 128, -1, 1),
        "c": Block("c", 256, 0, 3),
        "d": Block("d", 256, 2, 3),
        "y": Block("y", 256, 3, 4),
        "t": Block("t", 100, 2, 2),
    }


def test_bound_storages_take_no_room(concat: Network) -> None:
    names = [b.name for b in live_blocks(concat, [{}] * 4, {"x", "y"})]
    assert names == ["c", "d"]


def test_a_window_of_a_window_adds_up() -> None:
    values = [value("r", 4, 16), value("w", 4, 8, parent="r", offset=4)]
    values.append(value("v", 4, 2, parent="w", offset=2))
    place = place_of({v.name: v for v in values}, "v")
    assert (place.root, place.offset, place.strides) == ("r", 6, (16, 1))
    assert not place.is_dense


def test_a_window_outside_its_storage_is_an_internal_error() -> None:
    values = {"r": value("r", 4, 16), "w": value("w", 4, 8, parent="r", offset=9)}
    with pytest.raises(CodegenError, match="outside"):
        place_of(values, "w")
