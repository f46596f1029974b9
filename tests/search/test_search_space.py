"""Populations stay inside their domains whatever is done to them."""

from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from autotune.search.space import Parameter, Role, Sketch

SIZES = st.lists(st.integers(1, 6), max_size=5)


def space(sizes: list[int]) -> Sketch:
    return Sketch(
        "s", (), tuple(Parameter(f"p{k}", tuple(range(n)), Role.TILE) for k, n in enumerate(sizes))
    )


@given(SIZES, st.integers(0, 2**32 - 1))
def test_sampling_mutating_and_crossing_stay_inside(sizes: list[int], seed: int) -> None:
    sketch, rng = space(sizes), np.random.default_rng(seed)
    a, b = sketch.sample(20, rng), sketch.sample(20, rng)
    for rows in (a, sketch.mutate(a, rng), sketch.cross(a, b, rng)):
        assert rows.shape == a.shape
        assert (rows >= 0).all()
        assert (rows < np.array(sizes or [1])).all() if sizes else rows.shape[1] == 0


@given(SIZES)
def test_size_counts_rows(sizes: list[int]) -> None:
    assert space(sizes).size == int(np.prod(sizes, dtype=object))


def test_mutation_changes_at_most_two_parameters() -> None:
    sketch, rng = space([6, 6, 6, 6]), np.random.default_rng(0)
    rows = sketch.sample(200, rng)
    changed = (sketch.mutate(rows, rng) != rows).sum(axis=1)
    assert changed.max() <= 2
    assert changed.sum() > 0
