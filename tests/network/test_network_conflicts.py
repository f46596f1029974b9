from __future__ import annotations

import itertools

from hypothesis import given
from hypothesis import strategies as st

from autotune.network.compile.conflicts import BufferAccess, access, done_before


@st.composite
def windows(draw: st.DrawFn) -> tuple[BufferAccess, set[int]]:
    shape = draw(st.lists(st.integers(1, 4), min_size=1, max_size=3))
    strides = [draw(st.integers(0, 12)) for _ in shape[1:]] + [1]
    start = draw(st.integers(0, 20)) * 4
    points = itertools.product(*map(range, shape))
    elements = {sum(i * s for i, s in zip(p, strides, strict=True)) for p in points}
    touched = {start + 4 * e + k for e in elements for k in range(4)}
    return access(0, start, shape, strides, "float32", draw(st.booleans())), touched


@given(windows(), windows())
def test_no_conflict_means_no_common_byte_that_is_written(
    a: tuple[BufferAccess, set[int]], b: tuple[BufferAccess, set[int]]
) -> None:
    if not a[0].conflicts(b[0]):
        assert not (a[1] & b[1]) or not (a[0].writes or b[0].writes)


def test_columns_of_a_concatenation_do_not_conflict() -> None:
    left = access(0, 0, (5, 5, 8), (120, 24, 1), "float32", True)
    right = access(0, 32, (25, 16), (24, 1), "float32", True)
    assert not left.conflicts(right)
    assert not right.conflicts(left)
    wider = access(0, 28, (25, 16), (24, 1), "float32", True)
    assert left.conflicts(wider)
    assert wider.conflicts(left)


def test_readers_share_and_other_bases_do_not_matter() -> None:
    def whole(base: int, writes: bool) -> BufferAccess:
        return access(base, 0, (8,), (1,), "float32", writes)

    assert not whole(0, False).conflicts(whole(0, False))
    assert whole(0, True).conflicts(whole(0, False))
    assert not whole(0, True).conflicts(whole(1, True))


def test_branches_meet_where_they_join() -> None:
    def at(start: int, writes: bool) -> BufferAccess:
        return access(0, start, (8,), (1,), "float32", writes)

    produce = [at(0, True)]
    branch_a = [at(0, False), at(32, True)]
    branch_b = [at(0, False), at(64, True)]
    join = [at(32, False), at(64, False), at(96, True)]
    assert done_before([produce, branch_a, branch_b, join]) == [0, 1, 1, 3]
    assert done_before([produce, branch_b, branch_a, [at(64, False)]]) == [0, 1, 1, 2]
    assert done_before([produce, join, join]) == [0, 0, 2]
