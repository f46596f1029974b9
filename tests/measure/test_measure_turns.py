"""Orders of turns: no side has a fixed place, or a fixed one before it."""

from __future__ import annotations

from collections import Counter
from itertools import chain, islice, pairwise

import pytest

from autotune.measure.timing.turns import turns


@pytest.mark.parametrize("n_sides", [1, 2, 3, 4, 12])
def test_all_sides_are_alike(n_sides: int) -> None:
    orders = list(islice(turns(n_sides), 4000))
    assert all(sorted(order) == list(range(n_sides)) for order in orders)
    places = Counter((n, place) for order in orders for place, n in enumerate(order))
    followed = Counter(pairwise(chain.from_iterable(orders)))
    itself = [followed[n, n] for n in range(n_sides)]
    another = [followed[a, b] for a in range(n_sides) for b in range(n_sides) if a != b]
    for counts in (places.values(), itself, another):
        mean = sum(counts) / max(len(counts), 1)
        assert all(abs(n - mean) < 5 * (mean + 1) ** 0.5 for n in counts)


def test_an_even_drift_adds_as_much_to_every_side() -> None:
    sums = [0, 0, 0]
    for at, n in enumerate(chain.from_iterable(islice(turns(3), 2))):
        sums[n] += at
    assert sums[0] == sums[1] == sums[2]


def test_a_seed_is_an_order() -> None:
    first, again, other = (list(islice(turns(5, seed), 9)) for seed in (1, 1, 2))
    assert first == again
    assert first != other
