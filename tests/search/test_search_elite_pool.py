"""Good schedules of one task as proposals for another."""

from __future__ import annotations

import numpy as np

from autotune.schedule.steps import Hole, Split
from autotune.search.elite_pool import ElitePool
from autotune.search.space import Parameter, Role, Sketch


def sketch(name: str, **domains: tuple[int, ...]) -> Sketch:
    steps = tuple(Split("c", p, (Hole(p),)) for p in domains)
    return Sketch(name, steps, tuple(Parameter(p, d, Role.TILE) for p, d in domains.items()))


ONE = sketch("tiled", tile=(1, 2, 4, 8), panels=(1, 16))
OTHER = sketch("tiled", tile=(1, 3, 7), unroll=(5, 6))


def test_the_best_row_of_another_task_takes_the_nearest_values() -> None:
    elite_pool, rng = ElitePool(), np.random.default_rng(0)
    elite_pool.enter("a", ONE, np.array([1, 0]), 2.0)
    elite_pool.enter("a", ONE, np.array([3, 1]), 1.0)
    elite_pool.enter("a", ONE, np.array([0, 0]), 3.0)
    (row,) = elite_pool.rows("b", OTHER, rng)
    assert OTHER.parameters[0].domain[row[0]] == 7  # nearest to 8
    assert row[1] in (0, 1)  # unknown there: by chance
    assert {int(elite_pool.rows("b", OTHER, rng)[0][1]) for _ in range(50)} == {0, 1}


def test_nothing_travels_to_its_own_task_or_another_structure() -> None:
    elite_pool, rng = ElitePool(), np.random.default_rng(0)
    elite_pool.enter("a", ONE, np.array([3, 1]), 1.0)
    assert elite_pool.rows("a", ONE, rng).shape == (0, 2)
    assert elite_pool.rows("b", sketch("rows", tile=(1, 2)), rng).shape == (0, 1)
    elite_pool.enter("c", ONE, np.array([0, 1]), 1.0)
    assert sorted(int(r[0]) for r in elite_pool.rows("b", ONE, rng)) == [0, 3]
